//! A container on disk: its description, its root laid over the packages, and what it writes there.
//!
//! The root is an overlay whose lower layers are the unpacked packages, shared by all tasks of the
//! machine and never written. Lowest of all lies a skeleton of empty directories: the runtime needs
//! places to mount on, and must not make them in a package.

use super::config::description;
use super::device;
use super::spec::{ContainerId, ContainerSpec, overlay_path};
use crate::{Error, kernel_file, mounts};
use oci_spec::OciSpecError;
use rustix::mount::{MountFlags, mount};
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// The part of a bundle that nobody of the machine gets to.
const PRIVATE: &str = "private";
/// Options of one mount are a page, and the last byte ends them.
const MOST_OPTIONS: usize = 4095;

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

    /// The first process of the container, which may have ended by now.
    ///
    /// # Errors
    /// When the runtime has not said which it is.
    pub fn first_process(&self) -> Result<u32, Error> {
        let path = self.pid_file();
        let text = kernel_file::read(&path)?;
        let number = kernel_file::parse(&path, "process", text.trim())?;
        u32::try_from(number).map_err(|_| Error::invalid("process", number, "a process number"))
    }

    pub(super) fn runtime_log(&self) -> PathBuf {
        self.directory.join("runtime.log")
    }

    /// Where what is run beside the task is described; root alone gets there.
    #[must_use]
    pub fn exec_file(&self, name: &str) -> PathBuf {
        self.directory.join(PRIVATE).join(name).with_extension("json")
    }

    fn root(&self) -> PathBuf {
        self.directory.join("rootfs")
    }

    /// Where the nodes of devices lie that it is lent.
    fn nodes(&self) -> PathBuf {
        self.directory.join(PRIVATE).join("devices")
    }

    /// Makes the root and writes the description. What an earlier try left is removed first.
    ///
    /// # Errors
    /// When the spec cannot be, or the root cannot be mounted. Nothing stays mounted then.
    pub fn prepare(&self, spec: &ContainerSpec) -> Result<(), Error> {
        let description = description(spec, &self.root(), &self.nodes())?;
        self.remove()?;
        let made = self.lay_out(spec).and_then(|()| {
            // The environment in it is nobody else's business.
            let text = serde_json::to_string(&description).map_err(OciSpecError::from)?;
            write_private(&self.directory.join("config.json"), &text)
        });
        if made.is_err() {
            // The first error says more than one of cleaning up after it.
            let _ = self.remove();
        }
        made
    }

    /// Unmounts and deletes everything. One that is not there is fine.
    ///
    /// # Errors
    /// When a mount stays, in which case nothing is deleted.
    pub fn remove(&self) -> Result<(), Error> {
        mounts::remove_tree(&self.directory)
    }

    /// The root, the skeleton, and what the task writes: those two where nobody of the machine gets
    /// to. A task can make a program there that runs as its owner, and outside nothing forbids it.
    fn make_parts(&self) -> Result<[PathBuf; 4], Error> {
        let private = self.directory.join(PRIVATE);
        let [root, skeleton] = ["rootfs", "skeleton"].map(|name| self.directory.join(name));
        let parts = [root, skeleton, private.join("upper"), private.join("work")];
        for part in &parts {
            make_directory(part)?;
        }
        set_mode(&private, 0o700)?;
        // Nobody but root looks into a bundle from outside; its root is open to its own user.
        set_mode(&self.directory, 0o711)?;
        Ok(parts)
    }

    fn lay_out(&self, spec: &ContainerSpec) -> Result<(), Error> {
        let [root, skeleton, upper, work] = &self.make_parts()?;
        skeleton_for(spec, skeleton)?;
        let owner = spec.user_namespace.map_or(0, |range| range.first);
        let user = (owner + spec.user.uid, owner + spec.user.gid);
        device::make(&self.nodes(), &spec.devices, user)?;
        chown(upper, Some(owner), Some(owner)).map_err(Error::file("give away", upper))?;
        let lower = spec.layers.iter().map(PathBuf::as_path).chain([skeleton.as_path()]);
        let mut options = format!("lowerdir={}", joined(lower)?);
        if spec.writable_root {
            overlay_path(&self.directory)?;
            let (upper, work) = (upper.display(), work.display());
            options.push_str(&format!(",upperdir={upper},workdir={work}"));
        }
        mount_overlay(root, &options)
    }
}

fn joined<'a>(layers: impl Iterator<Item = &'a Path>) -> Result<String, Error> {
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
    if options.len() > MOST_OPTIONS {
        let shown = format!("{} bytes of paths", options.len());
        return Err(Error::invalid("layers", shown, "4095 bytes of paths in all"));
    }
    let data = CString::new(options)
        .map_err(|_| Error::invalid("layers", options.escape_debug(), "no zero bytes"))?;
    let flags = MountFlags::NODEV | MountFlags::NOSUID;
    mount("overlay", at, "overlay", flags, data.as_c_str())
        .map_err(|e| Error::file("mount an overlay at", at)(e.into()))
}

/// Writes a new file, or anew, that its owner alone can read.
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

/// Empty places for everything that will be mounted.
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
        let place = within(&bind.target);
        let about = fs::metadata(&bind.source).map_err(Error::file("look at", &bind.source))?;
        if about.is_dir() {
            make_directory(&place)?;
            continue;
        }
        if let Some(parent) = place.parent() {
            make_directory(parent)?;
        }
        fs::write(&place, "").map_err(Error::file("make", &place))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_task_writes_to_its_root_cannot_be_reached_from_outside() {
        let run = std::env::temp_dir().join(format!("cellwright-bundle-{}", std::process::id()));
        let bundle = Bundle::at(&run, &ContainerId::new("7-1").unwrap());
        let parts = bundle.make_parts().unwrap();
        let shut = |path: &&PathBuf| {
            let inside = path.ancestors().take_while(|above| *above != run);
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
            inside.into_iter().any(|above| mode(above) & 0o007 == 0)
        };
        let shut: Vec<bool> = parts.iter().map(|part| shut(&part)).collect();
        assert_eq!(shut, [false, false, true, true]);
        fs::remove_dir_all(run).unwrap();
    }
}
