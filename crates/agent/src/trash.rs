//! Removes what tasks leave behind. A task owns its folder and may have filled it with millions of
//! files, or nested folders deeper than any stack or table of descriptors; so removal has a thread
//! of its own, never runs in the loop, and goes one level at a time: the files in a folder are
//! removed, and the folders in it are moved up beside it, to be next.
//!
//! Nothing is reached by a path that a task could change: entries are removed relative to an open
//! folder, and links are removed, not followed.

use cellwright_supervise::{Supervisor, catch_panic, failpoint, note_restart};
use rustix::fs::{
    AtFlags, Dir, DirEntry, FileType, Mode, OFlags, chmodat, open, openat, renameat, statat,
    unlinkat,
};
use rustix::io::Errno;
use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

/// The folder of what is to be removed; on the same file system as what is discarded into it.
#[derive(Clone, Debug)]
pub struct Trash {
    folder: PathBuf,
    wake: mpsc::Sender<()>,
}

impl Trash {
    /// Removes what an earlier agent left there, and everything that is discarded from now on.
    ///
    /// # Errors
    /// When the folder cannot be created, or no thread started.
    pub fn open(folder: PathBuf) -> io::Result<Trash> {
        fs::create_dir_all(&folder)?;
        let (wake, woken) = mpsc::channel();
        let dir = folder.clone();
        Supervisor::default().spawn_thread("trash", move || {
            empty_again(&dir);
            while woken.recv().is_ok() {
                // One pass serves all discards before it.
                while woken.try_recv().is_ok() {}
                empty_again(&dir);
            }
        })?;
        Ok(Trash { folder, wake })
    }

    /// Makes `path` absent at once, and removes it soon. A path that is absent already is fine.
    ///
    /// # Errors
    /// When it cannot be moved.
    pub fn discard(&self, path: &Path) -> io::Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        for number in 0_u64.. {
            match fs::rename(path, self.folder.join(format!("{name}.{number}"))) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                // The name exists already.
                Err(error) if is_taken(&error) => {}
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        // The thread ends with the agent; the next one starts with what is there.
        let _ = self.wake.send(());
        Ok(())
    }
}

/// Whether a name exists already and cannot be replaced.
pub fn is_taken(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, IsADirectory, NotADirectory};
    matches!(error.kind(), AlreadyExists | DirectoryNotEmpty | IsADirectory | NotADirectory)
}

/// Whatever a task left there, the next discard retries its removal.
fn empty_again(folder: &Path) {
    if let Err(panicked) = catch_panic(|| empty_or_warn(folder)) {
        note_restart("trash", &panicked);
    }
}

fn empty_or_warn(folder: &Path) {
    failpoint("trash");
    match empty(folder) {
        Ok(0) => {}
        Ok(left) => tracing::warn!(left, "some of what is over cannot be removed"),
        Err(error) => tracing::error!(%error, "what is over cannot be removed"),
    }
}

/// Removes everything in `folder`. Returns how many entries could not be removed.
///
/// # Errors
/// When the folder itself cannot be read.
fn empty(folder: &Path) -> io::Result<usize> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(folder, flags, Mode::empty())?;
    let mut moved = 0_u64;
    loop {
        let mut left = 0;
        let mut progress = false;
        // Read piece by piece, as there may be millions: folders that are moved up meanwhile may be
        // listed now or in the next round.
        for entry in Dir::read_from(&root)? {
            let entry = entry?;
            if is_dot_entry(&entry) {
                continue;
            }
            match clear(root.as_fd(), entry.file_name(), &mut moved) {
                Ok(()) => progress = true,
                Err(_) => left += 1,
            }
        }
        if !progress {
            return Ok(left);
        }
    }
}

/// `.` and `..`, which every folder lists.
fn is_dot_entry(entry: &DirEntry) -> bool {
    matches!(entry.file_name().to_bytes(), b"." | b"..")
}

/// Removes one entry of the trash; the folders in it become entries of the trash.
fn clear(root: BorrowedFd<'_>, name: &CStr, moved: &mut u64) -> io::Result<()> {
    if remove(root, name).is_ok() {
        return Ok(());
    }
    let inner = enter(root, name)?;
    for entry in Dir::read_from(&inner)? {
        let entry = entry?;
        let name = entry.file_name();
        if is_dot_entry(&entry) || remove(inner.as_fd(), name).is_ok() {
            continue;
        }
        make_writable(inner.as_fd(), name);
        // Not empty: it is moved up under an unused number.
        loop {
            *moved += 1;
            let up = format!("up.{moved}");
            match renameat(&inner, name, root, up.as_str()) {
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR | Errno::ISDIR) => {}
                done => break done?,
            }
        }
    }
    Ok(unlinkat(root, name, AtFlags::REMOVEDIR)?)
}

fn remove(folder: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    match unlinkat(folder, name, AtFlags::empty()) {
        // Linux returns the first, other systems the second.
        Err(Errno::ISDIR | Errno::PERM) => Ok(unlinkat(folder, name, AtFlags::REMOVEDIR)?),
        done => Ok(done?),
    }
}

/// Opens a folder to empty it.
fn enter(root: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    make_writable(root, name);
    Ok(openat(root, name, flags, Mode::empty())?)
}

/// An agent that is not root is bound by permissions; it owns what its tasks created. No other
/// account can reach into the trash, so what was not a link a moment ago is none now.
fn make_writable(folder: BorrowedFd<'_>, name: &CStr) {
    let is_folder = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory);
    if is_folder {
        // If this is refused, so is the next step, and that is reported.
        let _ = chmodat(folder, name, Mode::RWXU, AtFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_dir::scratch::Scratch;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// Nested folders, deeper than the limits of descriptors and of path names.
    fn nest(at: &Path, depth: usize) {
        let mode = Mode::RWXU;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut folder = open(at, flags, Mode::empty()).unwrap();
        for _ in 0..depth {
            rustix::fs::mkdirat(&folder, "x", mode).unwrap();
            folder = openat(&folder, "x", flags, Mode::empty()).unwrap();
        }
    }

    #[test]
    fn whatever_a_task_left_is_removed_and_nothing_else() {
        let scratch = Scratch::new();
        let (trash, outside) = (scratch.path("trash"), scratch.path("outside"));
        let work = trash.join("work.0");
        fs::create_dir_all(work.join("a/b/c")).unwrap();
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("kept"), "kept").unwrap();
        fs::write(work.join("a/b/file"), "x").unwrap();
        symlink(&outside, work.join("link")).unwrap();
        symlink(&outside, work.join("a/up.1")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, work.join("pipe"), FileType::Fifo, Mode::RWXU, 0)
            .unwrap();
        fs::set_permissions(work.join("a/b/c"), fs::Permissions::from_mode(0o0)).unwrap();
        fs::set_permissions(work.join("a"), fs::Permissions::from_mode(0o0)).unwrap();
        fs::create_dir_all(work.join("deep")).unwrap();
        nest(&work.join("deep"), 20_000);
        assert_eq!(empty(&trash).unwrap(), 0);
        assert_eq!(fs::read_dir(&trash).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(outside.join("kept")).unwrap(), "kept");
    }

    #[test]
    fn what_is_thrown_away_is_gone_at_once_and_names_do_not_clash() {
        let scratch = Scratch::new();
        let trash = Trash { folder: scratch.path("trash"), wake: mpsc::channel().0 };
        fs::create_dir_all(&trash.folder).unwrap();
        for round in 0..3 {
            let path = scratch.path("work");
            fs::create_dir_all(path.join("full")).unwrap();
            trash.discard(&path).unwrap();
            assert!(!path.exists());
            assert_eq!(fs::read_dir(&trash.folder).unwrap().count(), round + 1);
        }
        trash.discard(&scratch.path("absent")).unwrap();
    }
}
