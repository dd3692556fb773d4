//! The list of mounts, and unmounting a tree of them before anything below is deleted: a recursive
//! delete that walks through a forgotten bind mount deletes files that belong to others.

use crate::Error;
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    pub path: PathBuf,
    pub fs_type: String,
    /// Options of the file system, comma-separated.
    pub options: String,
}

/// Mounts of this process's namespace, in the order in which they were mounted.
///
/// # Errors
/// When the list cannot be read.
pub fn list() -> Result<Vec<MountEntry>, Error> {
    let path = Path::new("/proc/self/mountinfo");
    parse(path, &fs::read(path).map_err(Error::file("read", path))?)
}

/// Bytes and not text: the kernel escapes blanks and backslashes in a mount point and leaves all
/// else as it is, so a user who may mount at a path that is not UTF-8 could make the list
/// unreadable for us.
pub(crate) fn parse(path: &Path, list: &[u8]) -> Result<Vec<MountEntry>, Error> {
    let line = |line: &[u8]| {
        let dash = line.windows(3).position(|three| three == b" - ")?;
        let (left, right) = (&line[..dash], String::from_utf8_lossy(&line[dash + 3..]));
        let mut right = right.split(' ');
        Some(MountEntry {
            path: unescape(left.split(|byte| *byte == b' ').nth(4)?),
            fs_type: right.next()?.to_owned(),
            options: right.nth(1)?.to_owned(),
        })
    };
    let read = |bytes: &[u8]| {
        line(bytes).ok_or_else(|| Error::Unreadable {
            path: path.to_owned(),
            field: "mount",
            value: String::from_utf8_lossy(bytes).into_owned(),
            expected: "fields as in proc_pid_mountinfo(5)",
        })
    };
    list.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(read).collect()
}

/// Spaces and the like stand as `\040`.
fn unescape(bytes: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits = bytes.get(at + 1..at + 4).and_then(|digits| std::str::from_utf8(digits).ok());
        let octal = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (bytes[at], octal) {
            (b'\\', Some(byte)) => {
                out.push(byte);
                at += 4;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

/// Unmounts everything at `root` and below it, latest first. Returns how many mounts there were.
///
/// A busy one is detached: it leaves the tree at once and disappears with its last user.
///
/// # Errors
/// When the kernel refuses, which it does without root.
pub fn unmount_below(root: &Path) -> Result<usize, Error> {
    let Some(root) = resolved(root)? else { return Ok(0) };
    let mut count = 0;
    for mount in list()?.iter().rev().filter(|mount| mount.path.starts_with(&root)) {
        let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        match unmount(&mount.path, flags) {
            Ok(()) => count += 1,
            // It disappeared with a mount above it.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
            Err(e) => return Err(Error::file("unmount", &mount.path)(e.into())),
        }
    }
    Ok(count)
}

/// Unmounts all below `root` and only then deletes it. What is not there is fine.
///
/// # Errors
/// When a mount is left, in which case nothing is deleted; or when a file cannot be deleted.
pub fn remove_tree(root: &Path) -> Result<(), Error> {
    unmount_below(root)?;
    let Some(resolved) = resolved(root)? else { return Ok(()) };
    if let Some(left) = list()?.into_iter().find(|mount| mount.path.starts_with(&resolved)) {
        return Err(Error::StillMounted { path: left.path });
    }
    match fs::remove_dir_all(&resolved) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(Error::file("delete", &resolved)(e)),
    }
}

/// The path as the list of mounts spells it; `None` when it is not there. The last part is not
/// followed: a link planted in place of a directory must not decide what is deleted.
fn resolved(path: &Path) -> Result<Option<PathBuf>, Error> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Error::invalid("path", path.display(), "a path that ends in a name"));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let found = fs::canonicalize(parent).map(|parent| parent.join(name));
    match found.and_then(|path| fs::symlink_metadata(&path).map(|about| (path, about))) {
        Ok((path, about)) if about.is_dir() => Ok(Some(path)),
        Ok((path, _)) => Err(Error::invalid("path", path.display(), "a directory, not a link")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::file("resolve", path)(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_with_odd_names_are_read() {
        let text = "36 35 98:0 /a /mnt/a\\040b\\134c rw master:1 - ext4 /dev/vda rw,discard\n";
        let mounts = parse(Path::new("mountinfo"), text.as_bytes()).unwrap();
        assert_eq!(mounts[0].path, Path::new("/mnt/a b\\c"));
        assert_eq!(
            (mounts[0].fs_type.as_str(), mounts[0].options.as_str()),
            ("ext4", "rw,discard")
        );
        let wrong = parse(Path::new("mountinfo"), b"36 35\n").unwrap_err().to_string();
        assert!(wrong.contains("`36 35`"), "{wrong}");
        let no_text = b"36 35 98:0 / /mnt/\xff rw - fuse x rw\n36 35 98:0 / /b rw - ext4 x rw\n";
        let mounts = parse(Path::new("mountinfo"), no_text).unwrap();
        let odd = std::ffi::OsString::from_vec(b"/mnt/\xff".to_vec());
        assert_eq!((mounts[0].path.as_os_str(), mounts.len()), (odd.as_os_str(), 2));
    }

    #[test]
    fn the_list_of_this_machine_reads() {
        let mounts = list().unwrap();
        assert!(mounts.iter().any(|mount| mount.path == Path::new("/proc")), "{mounts:?}");
    }

    #[test]
    fn a_link_is_not_followed_to_what_it_points_at() {
        let base = std::env::temp_dir().join(format!("cellwright-mounts-{}", std::process::id()));
        fs::create_dir_all(base.join("precious/data")).unwrap();
        std::os::unix::fs::symlink(base.join("precious"), base.join("link")).unwrap();
        let wrong = remove_tree(&base.join("link")).unwrap_err().to_string();
        assert!(wrong.ends_with("allowed: a directory, not a link"), "{wrong}");
        assert!(base.join("precious/data").is_dir());
        remove_tree(&base).unwrap();
        assert!(!base.exists());
        remove_tree(&base).unwrap();
    }
}
