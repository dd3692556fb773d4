//! Host volumes: folders of the machine that are mounted into a container. A task that may write to
//! one can replace what is in it at any moment, so a path is resolved once, and the result is what
//! is checked and mounted: through its descriptor, to a mount point that no task can reach.

use crate::Error;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, StatVfsMountFlags, fstat, fstatvfs, openat2};
use rustix::mount::{
    MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_change, move_mount, open_tree,
};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A resolved folder or file of the machine, which cannot be replaced any more.
#[derive(Clone, Debug)]
pub struct PinnedHostPath {
    descriptor: Arc<OwnedFd>,
    path: PathBuf,
}

impl PartialEq for PinnedHostPath {
    fn eq(&self, other: &PinnedHostPath) -> bool {
        Arc::ptr_eq(&self.descriptor, &other.descriptor)
    }
}

impl Eq for PinnedHostPath {}

impl PinnedHostPath {
    /// # Errors
    /// When it is not there, was removed meanwhile, or is reached only through the kernel's own
    /// links in `/proc`.
    pub fn open(path: &Path) -> Result<PinnedHostPath, Error> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let opened = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS);
        let opened = opened.map_err(|why| Error::file("open", path)(why.into()))?;
        // The kernel's own path of the descriptor.
        let link = format!("/proc/self/fd/{}", opened.as_raw_fd());
        let found = fs::read_link(link).map_err(Error::file("look at", path))?;
        let about = fstat(&opened).map_err(|why| Error::file("look at", path)(why.into()))?;
        if about.st_nlink == 0 || !found.is_absolute() {
            return Err(Error::invalid("folder", path.display(), "one that is there"));
        }
        Ok(PinnedHostPath { descriptor: Arc::new(opened), path: found })
    }

    /// Its path when it was resolved, without links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn is_folder(&self) -> bool {
        fstat(&*self.descriptor).is_ok_and(|about| {
            rustix::fs::FileType::from_raw_mode(about.st_mode) == rustix::fs::FileType::Directory
        })
    }

    /// The restrictive mount options of the file system it is on, as the runtime spells them:
    /// without root on the machine it cannot be mounted with fewer.
    pub(super) fn mount_restrictions(&self) -> Vec<&'static str> {
        let Ok(about) = fstatvfs(&*self.descriptor) else { return Vec::new() };
        let words = [
            (StatVfsMountFlags::NOEXEC, "noexec"),
            (StatVfsMountFlags::RDONLY, "ro"),
            (StatVfsMountFlags::NOATIME, "noatime"),
            (StatVfsMountFlags::NODIRATIME, "nodiratime"),
        ];
        let holds = |(flag, _): &(StatVfsMountFlags, _)| about.f_flag.contains(*flag);
        words.into_iter().filter(holds).map(|(_, word)| word).collect()
    }

    /// Whether a path inside it is reached without a link; one that is not there is.
    pub(super) fn is_link_free(&self, inside: &Path) -> bool {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
        let found = openat2(&*self.descriptor, inside, flags, Mode::empty(), resolve);
        matches!(found, Ok(_) | Err(rustix::io::Errno::NOENT))
    }

    /// Mounts it at `at`, which is created, without what is mounted below it.
    pub(super) fn mount(&self, at: &Path) -> Result<(), Error> {
        let made = if self.is_folder() { fs::create_dir(at) } else { fs::write(at, "") };
        made.map_err(Error::file("make", at))?;
        let mount_error = |why: rustix::io::Errno| Error::file("mount a folder at", at)(why.into());
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = open_tree(&*self.descriptor, "", flags).map_err(mount_error)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&tree, "", CWD, at, flags).map_err(mount_error)?;
        mount_change(at, MountPropagationFlags::PRIVATE).map_err(mount_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_was_found_stays_whatever_its_name_leads_to_now() {
        let base = std::env::temp_dir().join(format!("cellwright-held-{}", std::process::id()));
        fs::create_dir_all(base.join("lent/inner")).unwrap();
        fs::create_dir_all(base.join("kept")).unwrap();
        let base = base.canonicalize().unwrap();
        symlink(base.join("lent"), base.join("way")).unwrap();
        symlink("inner", base.join("lent/link")).unwrap();
        let pinned = PinnedHostPath::open(&base.join("way/inner")).unwrap();
        assert_eq!(pinned.path(), base.join("lent/inner"));
        let outer = PinnedHostPath::open(&base.join("lent")).unwrap();
        assert!(
            outer.is_link_free(Path::new("inner")) && outer.is_link_free(Path::new("none/here"))
        );
        assert!(
            !outer.is_link_free(Path::new("link")) && !outer.is_link_free(Path::new("../kept"))
        );
        fs::rename(base.join("lent/inner"), base.join("lent/before")).unwrap();
        symlink(base.join("kept"), base.join("lent/inner")).unwrap();
        let same = fs::metadata(base.join("lent/before")).unwrap();
        let about = fstat(&*pinned.descriptor).unwrap();
        assert_eq!(about.st_ino, std::os::unix::fs::MetadataExt::ino(&same));
        assert!(PinnedHostPath::open(Path::new("/proc/self/root")).is_err());
        fs::remove_dir_all(base).unwrap();
    }
}
