//! The folder into which a package is unpacked, accessed only through its own descriptor.
//!
//! Every name is opened with `openat2` under rules that the kernel enforces: nothing above the
//! folder, no symbolic link on the path, no other file system. So whatever an archive contains, and
//! whatever races with us, a name that leads outside is an error and not a write. Rejected: joining
//! paths and checking them beforehand. What was checked is a text; what is opened is whatever is
//! there by then.

use crate::error::{PackageError, at, at_errno};
use crate::path::EntryPath;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};

const RESOLVE_INSIDE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

pub(crate) struct UnpackDir {
    path: PathBuf,
    root: OwnedFd,
    /// The folder used last; entries come sorted, so it is mostly the next one too.
    recent: Option<(String, OwnedFd)>,
}

impl UnpackDir {
    /// A new, empty folder.
    pub(crate) fn create(path: &Path) -> Result<UnpackDir, PackageError> {
        rustix::fs::mkdir(path, Mode::RWXU).map_err(at_errno(path))?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(at_errno(path))?;
        Ok(UnpackDir { path: path.to_owned(), root, recent: None })
    }

    pub(crate) fn folder(&mut self, path: &EntryPath) -> Result<(), PackageError> {
        let error_path = self.path.clone();
        self.in_parent(
            path,
            |folder| rustix::fs::mkdirat(folder, path.name(), Mode::RWXU),
            &error_path,
        )
    }

    pub(crate) fn file(&mut self, path: &EntryPath) -> Result<File, PackageError> {
        let error_path = self.path.clone();
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let open = |folder: &OwnedFd| {
            rustix::fs::openat2(folder, path.name(), flags, mode, RESOLVE_INSIDE)
        };
        self.in_parent(path, open, &error_path).map(File::from)
    }

    pub(crate) fn symbolic_link(
        &mut self,
        path: &EntryPath,
        target: &str,
    ) -> Result<(), PackageError> {
        let error_path = self.path.clone();
        self.in_parent(
            path,
            |folder| rustix::fs::symlinkat(target, folder, path.name()),
            &error_path,
        )
    }

    /// `target` was made by [`UnpackDir::file`]; links to links would move them to another depth.
    pub(crate) fn hard_link(
        &mut self,
        path: &EntryPath,
        target: &EntryPath,
    ) -> Result<(), PackageError> {
        let error_path = self.path.clone();
        let from = match target.folder() {
            Some(folder) => {
                Some(self.open_folder(folder).map_err(|e| missing_folder_error(target, e))?)
            }
            None => None,
        };
        let root = self.root.try_clone().map_err(at(&error_path))?;
        let link = |folder: &OwnedFd| {
            let from = from.as_ref().unwrap_or(&root);
            rustix::fs::linkat(from, target.name(), folder, path.name(), AtFlags::empty())
        };
        self.in_parent(path, link, &error_path)
    }

    pub(crate) fn set_mode(&mut self, path: &EntryPath, mode: u32) -> Result<(), PackageError> {
        let error_path = self.path.join(path.as_str());
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open =
            rustix::fs::openat2(&self.root, path.as_str(), flags, Mode::empty(), RESOLVE_INSIDE);
        let folder = open.map_err(at_errno(&error_path))?;
        rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode)).map_err(at_errno(&error_path))
    }

    /// Everything created here survives a power cut once this returns. One call for the file system
    /// rather than one for each of a hundred thousand files.
    pub(crate) fn sync(&self) -> Result<(), PackageError> {
        rustix::fs::syncfs(self.root.as_fd()).map_err(at_errno(&self.path))
    }

    fn in_parent<T>(
        &mut self,
        path: &EntryPath,
        act: impl FnOnce(&OwnedFd) -> rustix::io::Result<T>,
        error_path: &Path,
    ) -> Result<T, PackageError> {
        let done = match path.folder() {
            None => act(&self.root),
            Some(folder) => {
                let is_recent = self.recent.as_ref().is_some_and(|(name, _)| name == folder);
                if !is_recent {
                    let opened =
                        self.open_folder(folder).map_err(|e| missing_folder_error(path, e))?;
                    self.recent = Some((folder.to_owned(), opened));
                }
                match &self.recent {
                    Some((_, folder)) => act(folder),
                    None => Err(Errno::NOENT),
                }
            }
        };
        done.map_err(|why| match why {
            Errno::EXIST => PackageError::Twice { path: path.to_string() },
            why => at_errno(&error_path.join(path.as_str()))(why),
        })
    }

    fn open_folder(&self, folder: &str) -> Result<OwnedFd, Errno> {
        // Without NOFOLLOW: with it and PATH, a link at the end would be opened and not refused.
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        rustix::fs::openat2(&self.root, folder, flags, Mode::empty(), RESOLVE_INSIDE)
    }
}

fn missing_folder_error(path: &EntryPath, why: Errno) -> PackageError {
    let position = match why {
        Errno::LOOP => "a link",
        Errno::NOTDIR => "a file",
        Errno::XDEV => "another file system",
        _ => "a folder that is missing",
    };
    PackageError::NoFolder { path: path.to_string(), place: position.to_owned() }
}
