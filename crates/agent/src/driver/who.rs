//! Who a task is on the machine, where it is an account of the machine and not of a container: the
//! account its job names, if the operator lets jobs have that one, and `nobody` otherwise. Whoever
//! may submit a job is not thereby allowed to be root, or to be the person whose keys lie in a home
//! folder here.
//!
//! Rejected: letting jobs name every account with a number of 1000 and more. Those are people.

use super::DriverError;
use super::told::{Ids, find_account, io};
use std::fs;
use std::path::Path;

/// Who runs a program whose job names nobody.
pub const NOBODY: Ids = (65_534, 65_534);
const NOBODYS_NAME: &str = "nobody";

/// User and group of a task that names `user`, on a machine whose operator allows `users`. Nothing:
/// those of the agent, which is not root and cannot become another.
///
/// # Errors
/// When the account is not there, or not for jobs.
pub fn account(user: Option<&str>, users: &[String]) -> Result<Option<Ids>, DriverError> {
    let path = Path::new("/etc/passwd");
    let own = rustix::process::geteuid();
    let cannot = |allowed: String| DriverError::Cannot {
        field: "task.user",
        value: user.unwrap_or_default().to_owned(),
        allowed,
    };
    let Some(user) = user else { return Ok(own.is_root().then_some(NOBODY)) };
    if own.is_root() {
        allowed(user, users)?;
        if user == NOBODYS_NAME {
            return Ok(Some(NOBODY));
        }
    }
    let accounts = fs::read_to_string(path).map_err(io(path))?;
    let found = find_account(&accounts, user);
    let found = found.ok_or_else(|| cannot("an account of this machine".into()))?;
    if own.is_root() || own.as_raw() == found.0 {
        return Ok(Some(found));
    }
    let why = "the agent's own account: an agent that is not root cannot become another";
    Err(cannot(why.into()))
}

/// # Errors
/// When jobs may not have the account of that name.
pub fn allowed(user: &str, users: &[String]) -> Result<(), DriverError> {
    if user == NOBODYS_NAME || users.iter().any(|name| name == user) {
        return Ok(());
    }
    let names: Vec<&str> =
        [NOBODYS_NAME].into_iter().chain(users.iter().map(String::as_str)).collect();
    Err(DriverError::Cannot {
        field: "task.user",
        value: user.to_owned(),
        allowed: format!("what this machine's operator allows (`users`): {}", names.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_have_only_the_accounts_that_the_operator_lets_them_have() {
        let users = ["root".to_owned(), "no-such-account".to_owned()];
        for (user, users, fine) in [
            ("nobody", &users[..0], true),
            ("root", &users[..0], false),
            ("root", &users[1..], false),
            ("root", &users[..1], true),
        ] {
            assert_eq!(allowed(user, users).is_ok(), fine, "{user} {users:?}");
        }
        let error = allowed("root", &users[1..]).unwrap_err().to_string();
        assert!(error.starts_with("task.user: root; allowed: what this machine's"), "{error}");
        assert!(error.ends_with("nobody, no-such-account"), "{error}");
        let error = account(Some("no-such-account"), &users).unwrap_err().to_string();
        assert!(error.contains("task.user: no-such-account"), "{error}");
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(account(None, &users).unwrap(), is_root.then_some(NOBODY));
        if is_root {
            assert_eq!(account(Some("nobody"), &[]).unwrap(), Some(NOBODY));
            assert_eq!(account(Some("root"), &users).unwrap(), Some((0, 0)));
            assert!(account(Some("root"), &[]).is_err());
        }
    }
}
