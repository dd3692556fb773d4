//! The user a task runs as. In a container it is an account of its root package or of the machine's
//! passwd file, by numbers that are mapped to the task's own range on the machine, whatever the
//! file says. Where it is an account of the machine (as a plain process that names one, or with
//! host volumes) it is one that the operator lets jobs have. Permission to submit a job is not
//! permission to be root, or to be the person whose keys lie in a home folder here.
//!
//! A package defines accounts for itself, never for the machine: names of the machine's accounts
//! are looked up in the machine's passwd file alone, and numbers that a container does not have are
//! rejected.
//!
//! Rejected: letting jobs name every account with a number of 1000 and more. Those are people.

use super::DriverError;
use super::task_env::{Ids, io};
use crate::id_ranges::IDS_PER_RANGE;
use cellwright_isolate::container::{IdMap, IdRange};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The user of a program whose job names none.
pub const NOBODY: Ids = (65_534, 65_534);
const NOBODY_NAME: &str = "nobody";
/// The passwd file, in a root.
const PASSWD_PATH: &str = "etc/passwd";
/// Bytes of a passwd file that are read.
const MAX_PASSWD_BYTES: u64 = 1 << 20;

/// The IDs of a task, inside its container and outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskIds {
    pub inside: Ids,
    pub outside: Ids,
    pub map: IdMap,
}

/// The IDs of a task in a container without host volumes: an account of its root package, or of the
/// machine by its numbers, in its own range.
///
/// # Errors
/// When there is no such account, or its numbers are not those of a container.
pub fn container_ids(
    user: Option<&str>,
    root: Option<&Path>,
    range: IdRange,
) -> Result<TaskIds, DriverError> {
    let map = IdMap::shifted(range);
    let inside = match user {
        None => NOBODY,
        Some(user) => container_account_ids(user, root)?,
    };
    let outside = map.outside(inside).ok_or_else(|| range_error(user, inside, ""))?;
    Ok(TaskIds { inside, outside, map })
}

/// The IDs of a task in a container with host volumes, whose owners are the machine's: an account
/// that the operator lets jobs have, under its own numbers. All others inside are in its range.
///
/// # Errors
/// When jobs may not have the account, or it is root.
pub fn container_ids_with_volumes(
    user: Option<&str>,
    users: &[String],
    range: IdRange,
) -> Result<TaskIds, DriverError> {
    let ids = host_account_ids(user, users)?;
    if ids.0 == 0 || ids.1 == 0 {
        let why = "any other account with `task.isolation.volumes`, whose owners are the machine's";
        return Err(user_error(user, format!("{why}: numbers other than 0")));
    }
    Ok(TaskIds { inside: ids, outside: ids, map: IdMap { range, kept: Some(ids) } })
}

/// User and group of a plain process: an account of the machine that its job names and the operator
/// allows, or else one of its own range. Nothing: those of the agent, which is not root and cannot
/// change users.
///
/// # Errors
/// When there is no such account, or jobs may not have it.
pub fn process_ids(
    user: Option<&str>,
    users: &[String],
    range: Option<IdRange>,
) -> Result<Option<Ids>, DriverError> {
    let own = rustix::process::geteuid();
    if own.is_root() {
        let is_nobody = user.is_none_or(|user| user == NOBODY_NAME);
        let of_range = range.filter(|_| is_nobody).and_then(|r| IdMap::shifted(r).outside(NOBODY));
        return of_range.map_or_else(|| host_account_ids(user, users), Ok).map(Some);
    }
    let Some(user) = user else { return Ok(None) };
    let found = host_accounts()?.find(user)?;
    let found = found.ok_or_else(|| user_error(Some(user), "an account of this machine".into()))?;
    if own.as_raw() == found.ids.0 {
        return Ok(Some(found.ids));
    }
    let why = "the agent's own account: an agent that is not root cannot become another";
    Err(user_error(Some(user), why.into()))
}

/// An account of the machine that the operator lets jobs have, `nobody` if none is named.
fn host_account_ids(user: Option<&str>, users: &[String]) -> Result<Ids, DriverError> {
    let Some(user) = user else { return Ok(NOBODY) };
    check_allowed(user, users)?;
    if user == NOBODY_NAME {
        return Ok(NOBODY);
    }
    let found = host_accounts()?.find(user)?;
    let found = found.ok_or_else(|| user_error(Some(user), "an account of this machine".into()))?;
    Ok(found.ids)
}

fn container_account_ids(user: &str, root: Option<&Path>) -> Result<Ids, DriverError> {
    let of_package = root.map(package_accounts).transpose()?.flatten();
    for list in of_package.into_iter().chain([host_accounts()?]) {
        if let Some(found) = list.find(user)? {
            if found.ids.0 < IDS_PER_RANGE && found.ids.1 < IDS_PER_RANGE {
                return Ok(found.ids);
            }
            let suffix = format!("; {}, line {}", list.name, found.line);
            return Err(range_error(Some(user), found.ids, &suffix));
        }
    }
    let allowed = "an account of the task's root package or of this machine";
    Err(user_error(Some(user), allowed.into()))
}

fn range_error(user: Option<&str>, ids: Ids, suffix: &str) -> DriverError {
    let most = IDS_PER_RANGE - 1;
    let (uid, gid) = ids;
    user_error(user, format!("an account with numbers from 0 to {most}, not {uid}:{gid}{suffix}"))
}

fn user_error(user: Option<&str>, allowed: String) -> DriverError {
    let value = user.unwrap_or(NOBODY_NAME).to_owned();
    DriverError::Cannot { field: "task.user", value, allowed }
}

/// # Errors
/// When jobs may not have the account of that name.
pub fn check_allowed(user: &str, users: &[String]) -> Result<(), DriverError> {
    if user == NOBODY_NAME || users.iter().any(|name| name == user) {
        return Ok(());
    }
    let names: Vec<&str> =
        [NOBODY_NAME].into_iter().chain(users.iter().map(String::as_str)).collect();
    let names = names.join(", ");
    Err(user_error(Some(user), format!("what this machine's operator allows (`users`): {names}")))
}

/// A passwd file.
struct Accounts {
    text: String,
    /// Its name in error messages.
    name: &'static str,
}

struct Account {
    ids: Ids,
    line: usize,
}

impl Accounts {
    /// # Errors
    /// When the account is listed without numbers.
    fn find(&self, user: &str) -> Result<Option<Account>, DriverError> {
        let named = |line: &&str| line.split(':').next() == Some(user);
        let Some(at) = self.text.lines().position(|line| named(&line)) else { return Ok(None) };
        let mut fields = self.text.lines().nth(at).unwrap_or_default().split(':').skip(2);
        let mut number = || fields.next().and_then(|field| field.parse::<u32>().ok());
        let line = at + 1;
        match (number(), number()) {
            (Some(uid), Some(gid)) => Ok(Some(Account { ids: (uid, gid), line })),
            _ => {
                let allowed = format!("an account with numbers; {}, line {line}", self.name);
                Err(user_error(Some(user), allowed))
            }
        }
    }
}

fn host_accounts() -> Result<Accounts, DriverError> {
    let path = Path::new("/").join(PASSWD_PATH);
    let file = File::open(&path).map_err(io(&path))?;
    Ok(Accounts { text: read(file).map_err(io(&path))?, name: "/etc/passwd of this machine" })
}

/// The passwd file of a package, if it has one; never through a link, which could lead anywhere,
/// and never from what is not a regular file.
fn package_accounts(root: &Path) -> Result<Option<Accounts>, DriverError> {
    let folder = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat(CWD, root, folder, Mode::empty()).map_err(|why| io(root)(why.into()))?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    let Ok(list) = openat2(opened, PASSWD_PATH, flags, Mode::empty(), resolve) else {
        return Ok(None);
    };
    let list = File::from(list);
    if !list.metadata().is_ok_and(|about| about.is_file()) {
        return Ok(None);
    }
    let text = read(list).map_err(io(&root.join(PASSWD_PATH)))?;
    Ok(Some(Accounts { text, name: "/etc/passwd of the task's root package" }))
}

fn read(list: File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    list.take(MAX_PASSWD_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_dir::scratch::Scratch;
    use std::fs;
    use std::os::unix::fs::symlink;

    const RANGE: IdRange = IdRange { first: 0x7740_0000, count: IDS_PER_RANGE };

    #[test]
    fn jobs_have_only_the_accounts_that_the_operator_lets_them_have() {
        let users = ["root".to_owned(), "no-such-account".to_owned()];
        for (user, users, fine) in [
            ("nobody", &users[..0], true),
            ("root", &users[..0], false),
            ("root", &users[1..], false),
            ("root", &users[..1], true),
        ] {
            assert_eq!(check_allowed(user, users).is_ok(), fine, "{user} {users:?}");
        }
        let error = check_allowed("root", &users[1..]).unwrap_err().to_string();
        assert!(error.starts_with("task.user: root; allowed: what this machine's"), "{error}");
        assert!(error.ends_with("nobody, no-such-account"), "{error}");
        let error = process_ids(Some("no-such-account"), &users, None).unwrap_err().to_string();
        assert!(error.contains("task.user: no-such-account"), "{error}");
        if !rustix::process::geteuid().is_root() {
            assert_eq!(process_ids(None, &users, None).unwrap(), None);
            return;
        }
        let own = Some((RANGE.first + NOBODY.0, RANGE.first + NOBODY.1));
        assert_eq!(process_ids(None, &users, Some(RANGE)).unwrap(), own);
        assert_eq!(process_ids(Some("nobody"), &[], Some(RANGE)).unwrap(), own);
        assert_eq!(process_ids(Some("root"), &users, Some(RANGE)).unwrap(), Some((0, 0)));
        assert!(process_ids(Some("root"), &[], Some(RANGE)).is_err());
    }

    #[test]
    fn a_package_says_who_its_accounts_are_and_never_who_anybody_is_on_the_machine() {
        let folder = Scratch::new();
        let root = folder.path("root");
        fs::create_dir_all(root.join("etc")).unwrap();
        let list = "root:x:7:8::/:/bin/sh\nweb:x:33:34::/:\nnobody:x:101:70000::/:\n\
                    big:x:65536:0::/:\nnone:x:-1:0::/:\nlast:x:65535:65535::/:\n";
        fs::write(root.join("etc/passwd"), list).unwrap();
        let ids_of = |user| container_ids(user, Some(&root), RANGE);
        let inside = |user| ids_of(Some(user)).unwrap().inside;
        assert_eq!(ids_of(None).unwrap().inside, NOBODY);
        assert_eq!(
            (inside("web"), inside("root"), inside("last")),
            ((33, 34), (7, 8), (65_535, 65_535))
        );
        assert_eq!(ids_of(Some("web")).unwrap().outside, (RANGE.first + 33, RANGE.first + 34));
        for (user, says) in [
            ("nobody", "0 to 65535, not 101:70000; /etc/passwd of the task's root package, line 3"),
            ("big", "0 to 65535, not 65536:0; /etc/passwd of the task's root package, line 4"),
            ("none", "an account with numbers; /etc/passwd of the task's root package, line 5"),
            ("no-such-account", "an account of the task's root package or of this machine"),
        ] {
            let error = ids_of(Some(user)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("task.user: {user}; allowed: ")), "{error}");
            assert!(error.ends_with(says), "{error}");
        }
        // With host volumes it is an account of the machine, whatever a package says.
        let ids = container_ids_with_volumes(Some("nobody"), &[], RANGE).unwrap();
        assert_eq!((ids.inside, ids.outside), (NOBODY, NOBODY));
        assert_eq!(ids.map.outside((0, 0)), Some((RANGE.first, RANGE.first)));
        let error = container_ids_with_volumes(Some("root"), &["root".into()], RANGE)
            .unwrap_err()
            .to_string();
        assert!(error.contains("task.user: root; allowed: any other account with"), "{error}");
        assert!(container_ids_with_volumes(Some("web"), &[], RANGE).is_err());
    }

    #[test]
    fn the_list_of_a_package_is_never_behind_a_link() {
        let folder = Scratch::new();
        let root = folder.path("root");
        fs::create_dir_all(folder.path("elsewhere")).unwrap();
        fs::create_dir_all(root.join("etc")).unwrap();
        let list = folder.path("elsewhere/passwd");
        fs::write(&list, "root:x:7:8::/:\n").unwrap();
        let ids_of = || container_ids(Some("root"), Some(&root), RANGE).unwrap().inside;
        symlink(&list, root.join("etc/passwd")).unwrap();
        assert_eq!(ids_of(), (0, 0), "the machine's");
        fs::remove_dir_all(root.join("etc")).unwrap();
        symlink(folder.path("elsewhere"), root.join("etc")).unwrap();
        assert_eq!(ids_of(), (0, 0), "the machine's");
    }
}
