//! A container on disk: its OCI config, its root filesystem over the packages, and the files it
//! writes.
//!
//! The root is an overlay whose lower layers are the unpacked packages, shared by all tasks of the
//! machine and never written. The lowest layer is a skeleton of empty directories: the runtime
//! needs mount points, and must not create them in a package. The uppermost layer has the mount
//! points of file systems in memory, for the runtime gives what it mounts there the mode of the
//! directory below.
//!
//! A link in a package on the path to a mount point would redirect the mount, so none is accepted.
//!
//! The root is mounted where other users can pass: users of a container are nobody on the machine,
//! and the runtime becomes one of them before it enters.

use super::config::description;
use super::device;
use super::host_volume::PinnedHostPath;
use super::spec::{ContainerId, ContainerSpec, overlay_path};
use super::users;
use crate::{Error, kernel_file, mounts};
use oci_spec::OciSpecError;
use rustix::mount::{MountFlags, mount};
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// The part of a bundle that no other account of the machine can reach.
const PRIVATE_DIR: &str = "private";
/// Where the roots of bundles are mounted whose own folder other accounts cannot pass through.
const PUBLIC_ROOTS: &str = "/run/cellwright-roots";
/// Options of one mount are a page, and the last byte ends them.
const MAX_MOUNT_OPTIONS: usize = 4095;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    id: ContainerId,
    directory: PathBuf,
}

impl Bundle {
    /// The bundle of `id` below `run`, whether it is there or not.
    #[must_use]
    pub fn at(run: &Path, id: &ContainerId) -> Bundle {
        Bundle { id: id.clone(), directory: run.join(id.as_str()) }
    }

    #[must_use]
    pub fn id(&self) -> &ContainerId {
        &self.id
    }

    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn pid_file(&self) -> PathBuf {
        self.directory.join("pid")
    }

    /// The first process of the container, which may have exited by now.
    ///
    /// # Errors
    /// When the runtime has not recorded it.
    pub fn first_process(&self) -> Result<u32, Error> {
        let path = self.pid_file();
        let text = kernel_file::read(&path)?;
        let number = kernel_file::parse(&path, "process", text.trim())?;
        u32::try_from(number).map_err(|_| Error::invalid("process", number, "a process number"))
    }

    pub(super) fn runtime_log(&self) -> PathBuf {
        self.directory.join("runtime.log")
    }

    /// The file that describes a process to execute beside the task; only root can reach it.
    #[must_use]
    pub fn exec_file(&self, name: &str) -> PathBuf {
        self.directory.join(PRIVATE_DIR).join(name).with_extension("json")
    }

    fn paths(&self) -> BundlePaths {
        let private = self.directory.join(PRIVATE_DIR);
        let inside = self.directory.join("rootfs");
        BundlePaths {
            root: if is_world_traversable(&inside) { inside } else { self.public_root() },
            nodes: private.join("devices"),
            host_volumes: private.join("lent"),
            users: private.join("users"),
        }
    }

    /// The root of a bundle that other accounts cannot reach: no other bundle of the machine has
    /// the same.
    fn public_root(&self) -> PathBuf {
        let text = self.directory.to_string_lossy();
        // FNV-1a: short, and the same in every build.
        let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, fold);
        Path::new(PUBLIC_ROOTS).join(format!("{hash:016x}-{}", self.id))
    }

    /// Mounts the root and writes the config. What an earlier try left is removed first.
    ///
    /// # Errors
    /// When the spec is invalid, or the root cannot be mounted. Nothing stays mounted then.
    pub fn prepare(&self, spec: &ContainerSpec) -> Result<(), Error> {
        let paths = self.paths();
        let description = description(spec, &paths)?;
        check_links(spec)?;
        self.remove()?;
        let made = self.lay_out(spec, &paths).and_then(|()| {
            // It contains the environment, which other accounts must not read.
            let text = serde_json::to_string(&description).map_err(OciSpecError::from)?;
            write_private(&self.directory.join("config.json"), &text)
        });
        if made.is_err() {
            // The first error says more than one from cleaning up after it.
            let _ = self.remove();
        }
        made
    }

    /// Unmounts and deletes everything. One that is not there is fine.
    ///
    /// # Errors
    /// When a mount stays, in which case nothing is deleted.
    pub fn remove(&self) -> Result<(), Error> {
        mounts::remove_tree(&self.public_root())?;
        mounts::remove_tree(&self.directory)
    }

    /// Creates the root, the skeleton, the uppermost layer, and the directories for what the task
    /// writes: all but the first two where no other account of the machine can reach them. The
    /// uppermost layer has directories where everybody may write, and a task can create a
    /// set-user-ID program: outside nothing forbids it.
    fn make_parts(&self) -> Result<[PathBuf; 5], Error> {
        let private = self.directory.join(PRIVATE_DIR);
        let [root, skeleton] = ["rootfs", "skeleton"].map(|name| self.directory.join(name));
        let [top, upper, work] = ["top", "upper", "work"].map(|name| private.join(name));
        let parts = [root, skeleton, top, upper, work];
        for part in &parts {
            make_directory(part)?;
        }
        set_mode(&private, 0o700)?;
        // Only root can list a bundle from outside; its root is open to its own user.
        set_mode(&self.directory, 0o711)?;
        Ok(parts)
    }

    fn lay_out(&self, spec: &ContainerSpec, paths: &BundlePaths) -> Result<(), Error> {
        let [_, skeleton, top, upper, work] = &self.make_parts()?;
        create_public_root(&paths.root)?;
        skeleton_for(spec, skeleton)?;
        for scratch in &spec.scratch {
            let target = top.join(scratch.target.strip_prefix("/").unwrap_or(&scratch.target));
            make_directory(&target)?;
            set_mode(&target, 0o1777)?;
        }
        let owner = spec.users.map_or(0, |map| map.range.first);
        let user = (spec.user.uid, spec.user.gid);
        let user = spec.users.map_or(Some(user), |map| map.outside(user));
        device::make(&paths.nodes, &spec.devices, user.unwrap_or((owner, owner)))?;
        if let Some(map) = &spec.users {
            users::pin_namespace(map, spec.userns_owner, &paths.users)?;
        }
        paths.mount_host_volumes(spec)?;
        chown(upper, Some(owner), Some(owner)).map_err(Error::file("give away", upper))?;
        let layers = spec.layers.iter().map(PathBuf::as_path);
        let lower = std::iter::once(top.as_path()).chain(layers).chain([skeleton.as_path()]);
        let mut options = format!("lowerdir={}", join_layers(lower)?);
        if spec.writable_root {
            overlay_path(&self.directory)?;
            let (upper, work) = (upper.display(), work.display());
            options.push_str(&format!(",upperdir={upper},workdir={work}"));
        }
        mount_overlay(&paths.root, &options)
    }
}

/// The paths of a bundle's parts that its config names.
pub(super) struct BundlePaths {
    pub root: PathBuf,
    /// Device nodes of the container.
    pub nodes: PathBuf,
    /// Host volumes of the container.
    pub host_volumes: PathBuf,
    /// The user namespace.
    pub users: PathBuf,
}

impl BundlePaths {
    /// Where the host volume at position `number` is mounted first.
    pub fn host_volume(&self, number: usize) -> PathBuf {
        self.host_volumes.join(number.to_string())
    }

    fn mount_host_volumes(&self, spec: &ContainerSpec) -> Result<(), Error> {
        if spec.host_volumes.is_empty() {
            return Ok(());
        }
        make_directory(&self.host_volumes)?;
        let mut all = spec.host_volumes.iter().enumerate();
        all.try_for_each(|(number, volume)| volume.folder.mount(&self.host_volume(number)))
    }
}

/// Whether everybody may pass through all the folders around `path`: the runtime does, as the
/// container's own root, which is nobody on the machine, and so do plain tasks.
#[must_use]
pub fn is_world_traversable(path: &Path) -> bool {
    let passes = |folder: &Path| {
        fs::metadata(folder).is_ok_and(|about| about.permissions().mode() & 0o001 != 0)
    };
    path.ancestors().skip(1).filter(|folder| folder.exists()).all(passes)
}

/// Creates the mount point of a root that is not in its bundle.
fn create_public_root(root: &Path) -> Result<(), Error> {
    let all = Path::new(PUBLIC_ROOTS);
    if !root.starts_with(all) {
        return Ok(());
    }
    make_directory(root)?;
    set_mode(all, 0o711)?;
    if is_world_traversable(root) {
        return Ok(());
    }
    Err(Error::invalid("folder of roots", all.display(), "one that everybody may pass through"))
}

/// # Errors
/// When a link in a layer, or in a host volume, is on the path to a mount point.
fn check_links(spec: &ContainerSpec) -> Result<(), Error> {
    let own = ["/proc", "/dev", "/sys", "/etc"].map(Path::new);
    for target in spec.targets().chain(own).chain([spec.cwd.as_path()]) {
        let inside = target.strip_prefix("/").unwrap_or(target);
        for layer in &spec.layers {
            let path_parts = inside.ancestors().filter(|part| !part.as_os_str().is_empty());
            let is_link = |part: &&Path| {
                fs::symlink_metadata(layer.join(part)).is_ok_and(|about| about.is_symlink())
            };
            if let Some(part) = path_parts.into_iter().find(is_link) {
                let link = Path::new("/").join(part);
                let within = "the package that is the root";
                return Err(Error::Link { target: target.to_owned(), link, within });
            }
        }
        for volume in spec.host_volumes.iter().filter(|other| other.target != target) {
            let Ok(inner) = target.strip_prefix(&volume.target) else { continue };
            if !PinnedHostPath::is_link_free(&volume.folder, inner) {
                let within = "a folder that the machine lends";
                let link = target.to_owned();
                return Err(Error::Link { target: target.to_owned(), link, within });
            }
        }
    }
    Ok(())
}

fn join_layers<'a>(layers: impl Iterator<Item = &'a Path>) -> Result<String, Error> {
    let mut texts = Vec::new();
    for layer in layers {
        overlay_path(layer)?;
        if !layer.is_dir() {
            return Err(Error::invalid("layer", layer.display(), "a directory that is there"));
        }
        texts.push(layer.display().to_string());
    }
    Ok(texts.join(":"))
}

pub(super) fn mount_overlay(at: &Path, options: &str) -> Result<(), Error> {
    if options.len() > MAX_MOUNT_OPTIONS {
        let found = format!("{} bytes of paths", options.len());
        return Err(Error::invalid("layers", found, "4095 bytes of paths in all"));
    }
    let data = CString::new(options)
        .map_err(|_| Error::invalid("layers", options.escape_debug(), "no zero bytes"))?;
    let flags = MountFlags::NODEV | MountFlags::NOSUID;
    mount("overlay", at, "overlay", flags, data.as_c_str())
        .map_err(|e| Error::file("mount an overlay at", at)(e.into()))
}

/// Writes or replaces a file that only its owner can read.
///
/// # Errors
/// When the disk refuses.
pub fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    let mut options = OpenOptions::new();
    let made = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    made.and_then(|mut file| file.write_all(text.as_bytes())).map_err(Error::file("write", path))
}

fn make_directory(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(Error::file("make", path))?;
    set_mode(path, 0o755)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), Error> {
    let mode = fs::Permissions::from_mode(mode);
    fs::set_permissions(path, mode).map_err(Error::file("set the mode of", path))
}

/// Empty mount points for everything that will be mounted.
fn skeleton_for(spec: &ContainerSpec, skeleton: &Path) -> Result<(), Error> {
    let within = |target: &Path| skeleton.join(target.strip_prefix("/").unwrap_or(target));
    for directory in ["/proc", "/dev", "/sys", "/tmp", "/etc"] {
        make_directory(&within(Path::new(directory)))?;
    }
    make_directory(&within(&spec.cwd))?;
    for scratch in &spec.scratch {
        make_directory(&within(&scratch.target))?;
    }
    for bind in &spec.binds {
        let about = fs::metadata(&bind.source).map_err(Error::file("look at", &bind.source))?;
        create_mount_point(&within(&bind.target), about.is_dir())?;
    }
    for volume in &spec.host_volumes {
        create_mount_point(&within(&volume.target), volume.folder.is_folder())?;
    }
    Ok(())
}

/// An empty folder or file.
fn create_mount_point(mount_point: &Path, is_folder: bool) -> Result<(), Error> {
    if is_folder {
        return make_directory(mount_point);
    }
    if let Some(parent) = mount_point.parent() {
        make_directory(parent)?;
    }
    fs::write(mount_point, "").map_err(Error::file("make", mount_point))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::{Bind, HostVolumeMount};

    #[test]
    fn a_link_of_a_package_leads_no_mount_anywhere() {
        let base = std::env::temp_dir().join(format!("cellwright-links-{}", std::process::id()));
        let layer = base.join("layer");
        fs::create_dir_all(layer.join("etc")).unwrap();
        fs::create_dir_all(base.join("lent/inner")).unwrap();
        for name in ["work", "opt"] {
            std::os::unix::fs::symlink("/etc", layer.join(name)).unwrap();
        }
        std::os::unix::fs::symlink("/etc", layer.join("etc/resolv.conf")).unwrap();
        std::os::unix::fs::symlink("inner", base.join("lent/link")).unwrap();
        let group = crate::cgroup::GroupPath::new("x").unwrap();
        let spec = ContainerSpec::new(vec!["true".into()], vec![layer], group);
        let to = |target: &str| {
            let (source, target) = ("/usr".into(), target.into());
            let binds = vec![Bind { source, target, writable: false }];
            check_links(&ContainerSpec { binds, ..spec.clone() })
        };
        check_links(&spec).unwrap();
        to("/etc/hosts").unwrap();
        for (target, link) in [("/work", "/work"), ("/opt/a/b", "/opt")] {
            let error = to(target).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("mount target {target}: {link} is a link")),
                "{error}"
            );
        }
        assert!(to("/etc/resolv.conf").is_err());
        let with_volume = |target: &str| {
            let folder = PinnedHostPath::open(&base.join("lent")).unwrap();
            let at = |target: &str| HostVolumeMount {
                folder: folder.clone(),
                target: target.into(),
                writable: true,
            };
            let host_volumes = vec![at("/data"), at(target)];
            check_links(&ContainerSpec { host_volumes, ..spec.clone() })
        };
        assert!(with_volume("/data/inner").is_ok() && with_volume("/data/link").is_err());
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn what_a_task_writes_to_its_root_cannot_be_reached_from_outside() {
        let run = std::env::temp_dir().join(format!("cellwright-bundle-{}", std::process::id()));
        let bundle = Bundle::at(&run, &ContainerId::new("7-1").unwrap());
        let parts = bundle.make_parts().unwrap();
        let is_private = |path: &&PathBuf| {
            let inside = path.ancestors().take_while(|above| *above != run);
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
            inside.into_iter().any(|above| mode(above) & 0o007 == 0)
        };
        let are_private: Vec<bool> = parts.iter().map(|part| is_private(&part)).collect();
        assert_eq!(are_private, [false, false, true, true, true]);
        fs::remove_dir_all(run).unwrap();
    }
}
