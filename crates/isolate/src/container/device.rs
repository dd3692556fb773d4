//! Device nodes of the machine in a container, beside the default ones that every container has.
//!
//! A container gets nodes of its own, which belong to its user, whatever the owner of the machine's
//! nodes: they are created in the bundle, removed with it, and are all that the container's cgroup
//! may open. Rejected: having the runtime create them, which it cannot do in a user namespace,
//! where it binds the machine's own node with an owner that means nothing inside.

use crate::Error;
use rustix::fs::{CWD, FileType, Mode, StatVfsMountFlags, major, makedev, minor, mknodat, statvfs};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, chown};
use std::path::{Component, Path, PathBuf};

/// Names that every container has in `/dev`, and names that lead out of it.
const DEFAULT_DEVICES: [&str; 16] = [
    "console", "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr",
    "stdin", "stdout", "tty", "urandom", "zero",
];

/// A device as a container sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceNode {
    /// In the container, below `/dev`.
    pub(super) target: PathBuf,
    pub(super) is_block: bool,
    pub(super) major: u32,
    pub(super) minor: u32,
}

impl DeviceNode {
    /// The device behind a node of the machine. Inside it has the same path where that is below
    /// `/dev`, and else its name there.
    ///
    /// # Errors
    /// When there is no device, or its path inside is taken.
    pub fn of(node: &Path) -> Result<DeviceNode, Error> {
        let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        if !node.is_absolute() || !node.components().all(plain) {
            let allowed = "an absolute path without `..`";
            return Err(Error::invalid("device node", node.display(), allowed));
        }
        let about = fs::metadata(node).map_err(Error::file("look at", node))?;
        let kind = about.file_type();
        if !kind.is_char_device() && !kind.is_block_device() {
            let allowed = "a character or block device";
            return Err(Error::invalid("device node", node.display(), allowed));
        }
        let name = Path::new(node.file_name().unwrap_or_default());
        let relative = node.strip_prefix("/dev").unwrap_or(name);
        let first = relative.components().next().map(|part| part.as_os_str().to_owned());
        if first.is_none_or(|first| DEFAULT_DEVICES.iter().any(|usual| first == *usual)) {
            let allowed = "one that a container does not have anyway";
            return Err(Error::invalid("device node", node.display(), allowed));
        }
        let number = about.rdev();
        Ok(DeviceNode {
            target: Path::new("/dev").join(relative),
            is_block: kind.is_block_device(),
            major: major(number),
            minor: minor(number),
        })
    }

    /// Its path in the container.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }
}

/// The path of the node at position `number` of a spec's list, below the bundle's folder of nodes.
pub(super) fn node_path(nodes: &Path, number: usize) -> PathBuf {
    nodes.join(number.to_string())
}

/// Creates the nodes, for `owner` alone.
pub(super) fn make(nodes: &Path, list: &[DeviceNode], owner: (u32, u32)) -> Result<(), Error> {
    if list.is_empty() {
        return Ok(());
    }
    fs::create_dir_all(nodes).map_err(Error::file("make", nodes))?;
    let about = statvfs(nodes).map_err(|why| Error::file("look at", nodes)(why.into()))?;
    if about.f_flag.contains(StatVfsMountFlags::NODEV) {
        let allowed = "a file system that is not mounted `nodev`, for tasks with devices";
        return Err(Error::invalid("folder of containers", nodes.display(), allowed));
    }
    for (number, node) in list.iter().enumerate() {
        let at = node_path(nodes, number);
        let kind = if node.is_block { FileType::BlockDevice } else { FileType::CharacterDevice };
        mknodat(CWD, &at, kind, Mode::RUSR | Mode::WUSR, makedev(node.major, node.minor))
            .map_err(|why| Error::file("make", &at)(why.into()))?;
        chown(&at, Some(owner.0), Some(owner.1)).map_err(Error::file("give away", &at))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_devices_that_a_container_does_not_have_anyway() {
        let error_of = |path: &str| DeviceNode::of(Path::new(path)).unwrap_err().to_string();
        for (path, why) in [
            ("dev/kvm", "an absolute path"),
            ("/dev/../etc/passwd", "an absolute path"),
            ("/etc/passwd", "a character or block device"),
            ("/dev/null", "does not have anyway"),
            ("/dev/no-such-device", "/dev/no-such-device"),
        ] {
            let error = error_of(path);
            assert!(error.contains(why), "{path}: {error}");
        }
    }
}
