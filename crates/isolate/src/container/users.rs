//! The user namespace of a container, and the mapping of its user IDs to the machine's.
//!
//! The kernel counts what users hold (inotify watches, pending signals, message queues) against the
//! creator of the namespace as well as against the user inside it. A namespace that the runtime
//! creates is root's, and all containers of the machine would share root's limits. So each is
//! created by the first user of its own range, a user of no other container, and the runtime joins
//! it.

use super::spec::IdRange;
use crate::Error;
use rustix::mount::mount_bind;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Creates a user namespace; part of every distribution.
const UNSHARE: &str = "unshare";

/// How users and groups of a container are mapped to IDs of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdMap {
    /// The IDs of the machine for those from 0 on.
    pub range: IdRange,
    /// A user and a group that are the same inside and outside: those of host volumes. All others
    /// inside stay in the range.
    pub kept: Option<(u32, u32)>,
}

/// `count` numbers from `inside` on are those from `outside` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

impl IdMap {
    #[must_use]
    pub fn shifted(range: IdRange) -> IdMap {
        IdMap { range, kept: None }
    }

    /// The IDs on the machine of a user and a group inside; nothing for numbers that the container
    /// does not have.
    #[must_use]
    pub fn outside(&self, ids: (u32, u32)) -> Option<(u32, u32)> {
        let find = |extents: Vec<Extent>, id: u32| {
            let holds = |e: &&Extent| (e.inside..e.inside + e.count).contains(&id);
            extents.iter().find(holds).map(|e| e.outside + (id - e.inside))
        };
        Some((find(self.users(), ids.0)?, find(self.groups(), ids.1)?))
    }

    pub(super) fn users(&self) -> Vec<Extent> {
        extents(self.range, self.kept.map(|kept| kept.0))
    }

    pub(super) fn groups(&self) -> Vec<Extent> {
        extents(self.range, self.kept.map(|kept| kept.1))
    }
}

fn extents(range: IdRange, kept: Option<u32>) -> Vec<Extent> {
    let IdRange { first, count } = range;
    let same = |id: u32| Extent { inside: id, outside: id, count: 1 };
    let from =
        |inside: u32, to: u32| Extent { inside, outside: first + inside, count: to - inside };
    let list = match kept {
        None => vec![from(0, count)],
        Some(id) if id < count => vec![from(0, id), same(id), from(id + 1, count)],
        Some(id) => vec![from(0, count), same(id)],
    };
    list.into_iter().filter(|extent| extent.count > 0).collect()
}

/// The owner of user namespaces: what users inside hold counts against it too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UserNsOwner {
    /// The first user of the range.
    #[default]
    FirstOfRange,
    /// Root, where the kernel lets no other user create one.
    Root,
}

/// Creates a namespace with this map and keeps it at `at`, a file, until that is unmounted.
///
/// # Errors
/// When the machine has no `unshare`, or the kernel refuses.
pub(super) fn pin_namespace(
    map: &IdMap,
    userns_owner: UserNsOwner,
    at: &Path,
) -> Result<(), Error> {
    let mut holder = Holder::start(map.range.first, userns_owner)?;
    holder.wait_until_unshared()?;
    let of = PathBuf::from(format!("/proc/{}", holder.0.id()));
    write_map(&of.join("uid_map"), &map.users())?;
    write_map(&of.join("gid_map"), &map.groups())?;
    fs::write(at, "").map_err(Error::file("make", at))?;
    mount_bind(of.join("ns/user"), at).map_err(|e| Error::file("keep users at", at)(e.into()))
}

/// The kernel takes a map in one piece.
fn write_map(path: &Path, extents: &[Extent]) -> Result<(), Error> {
    let line = |e: &Extent| format!("{} {} {}\n", e.inside, e.outside, e.count);
    let text: String = extents.iter().map(line).collect();
    let opened = OpenOptions::new().write(true).open(path);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|source| Error::Write {
        path: path.to_owned(),
        value: text,
        source,
    })
}

/// A process in the new namespace, which echoes its input until that is closed.
struct Holder(Child);

impl Holder {
    fn start(user: u32, userns_owner: UserNsOwner) -> Result<Holder, Error> {
        let mut command = Command::new(UNSHARE);
        command.args(["--user", "cat"]).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if userns_owner == UserNsOwner::FirstOfRange {
            command.uid(user).gid(user);
        }
        let started = command.spawn();
        started.map(Holder).map_err(|source| Error::Spawn { program: UNSHARE.into(), source })
    }

    /// A process that echoes a byte has created the namespace.
    fn wait_until_unshared(&mut self) -> Result<(), Error> {
        let mut byte = [0u8];
        let written = self.0.stdin.as_mut().map(|stdin| stdin.write_all(b"?"));
        let read = self.0.stdout.as_mut().map(|stdout| stdout.read_exact(&mut byte));
        if matches!((written, read), (Some(Ok(())), Some(Ok(())))) {
            return Ok(());
        }
        let mut stderr_text = String::new();
        if let Some(stderr) = self.0.stderr.as_mut() {
            // It has exited, so this ends; what is not UTF-8 is not worth a second error.
            let _ = stderr.read_to_string(&mut stderr_text);
        }
        let (program, message) = (UNSHARE.into(), stderr_text.trim().to_owned());
        Err(Error::Runtime { program, verb: "--user", id: "a namespace".into(), message })
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Its input is closed before it is waited for, and so it ends.
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_inside_is_in_the_range_but_the_one_that_is_kept() {
        let range = IdRange { first: 1_000_000, count: 65_536 };
        let plain = IdMap::shifted(range);
        assert_eq!(plain.outside((0, 65_535)), Some((1_000_000, 1_065_535)));
        assert_eq!(plain.outside((101, 70_000)), None);
        assert_eq!(plain.outside((65_536, 0)), None);
        let mapped = IdMap { range, kept: Some((33, 65_534)) };
        assert_eq!(mapped.outside((33, 65_534)), Some((33, 65_534)));
        assert_eq!(mapped.outside((32, 65_535)), Some((1_000_032, 1_065_535)));
        assert_eq!(mapped.outside((34, 33)), Some((1_000_034, 1_000_033)));
        let far = IdMap { range, kept: Some((100_000, 0)) };
        assert_eq!(far.outside((100_000, 0)), Some((100_000, 0)));
        assert_eq!(far.outside((100_001, 1)), None);
        assert_eq!(far.groups()[0], Extent { inside: 0, outside: 0, count: 1 });
        for map in [plain, mapped, far] {
            let held: u32 = map.users().iter().map(|extent| extent.count).sum();
            assert!(held == 65_536 || held == 65_537, "{held}");
        }
    }
}
