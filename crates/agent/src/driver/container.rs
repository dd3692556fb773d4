//! The `container` driver: a program in a container of its own, by an OCI runtime. It prepares the
//! bundle; the shim has the runtime create and start the container, and so is the parent that
//! learns how it ended.
//!
//! What a task sees:
//!
//! | path | what |
//! |---|---|
//! | `/` | the package that its job names as its root, or the machine's own programs; read-only |
//! | `/work` | its own folder, its working directory |
//! | `/packages/NAME` | its other packages, read-only |
//! | `/alloc` | inside an alloc: the folder that its tasks share |
//! | `/secrets`, `/identity`, `/ports` | its secrets; its credentials; the ports assigned to it |
//! | `/devices`, below `/dev` | the devices granted to it |
//! | `/tmp` | in memory, charged to it |
//!
//! User IDs are always mapped: whichever user a task has inside, outside it has one of its own
//! range. Only the account of a task with host volumes, whose files must keep their owners, is the
//! same outside too, and the machine's operator decides which accounts those may be.

use super::task_env::{
    TaskPaths, check_package_name, environment, io, log_limits, open_alloc, remove_dir,
    restrict_access, sweep_secrets, write_credentials, write_devices, write_files, write_ports,
    write_secrets,
};
use super::task_user::{TaskIds, container_ids, container_ids_with_volumes};
use super::{Driver, DriverError, StartContext};
use crate::config::{Config, HostVolume};
use crate::shim::protocol::{Container, Launch};
use crate::state_dir::Folders;
use cellwright_cell::admit::MIN_CONTAINER_RAM;
use cellwright_cell::isolation::{
    ETC_LOOKUP_PATHS, NAME_RESOLUTION_FILES, Network as Asked, SYSTEM_PROGRAM_DIRS, Volume,
};
use cellwright_isolate::container::{
    Bind, Bundle, ContainerId, ContainerSpec, DeviceNode, HostVolumeMount, Network, PinnedHostPath,
    Probe, Runc, Scratch, User, UserNsOwner, probe, sweep,
};
use cellwright_isolate::mounts;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Size of `/tmp`.
const TMP_BYTES: u64 = 64 << 20;

pub struct ContainerDriver {
    program: PathBuf,
    /// Where the runtime keeps the state of its containers.
    state: PathBuf,
    /// Where the containers' roots are mounted.
    run: PathBuf,
    /// The lowest layer of roots made of the machine's programs: links such as `bin -> usr/bin`.
    host_layer: PathBuf,
    /// Folders of the machine that tasks may mount.
    host_volumes: Vec<HostVolume>,
    /// Accounts of the machine that jobs may name, beside `nobody`.
    users: Vec<String>,
    /// The runtime's version, with its known vulnerabilities.
    version: String,
    /// Creates the user namespaces.
    userns_owner: UserNsOwner,
}

impl ContainerDriver {
    /// # Errors
    /// With all the reasons why containers do not work here, in one line.
    pub fn open(config: &Config, folders: &Folders) -> Result<ContainerDriver, String> {
        let run = folders.containers_dir();
        let mut driver = ContainerDriver {
            users: config.users.clone(),
            version: String::new(),
            program: config.runtime.clone(),
            state: run.join("state"),
            host_layer: run.join("host-layer"),
            // A requested path is compared with the real path of a host volume.
            host_volumes: config.volumes.iter().filter_map(canonical_volume).collect(),
            userns_owner: UserNsOwner::FirstOfRange,
            run,
        };
        let made = fs::DirBuilder::new().recursive(true).mode(0o711).create(&driver.run);
        made.map_err(|why| format!("{}: {why}", driver.run.display()))?;
        let probed = probe(&driver.runtime(), &driver.run);
        match (probed.unavailable_reason(), probed) {
            (None, Probe::Ready { runtime, userns_owner: maker }) => {
                (driver.version, driver.userns_owner) = (runtime, maker);
            }
            (why, _) => return Err(why.unwrap_or_default()),
        }
        driver.create_host_layer().map(|()| driver).map_err(|error| error.to_string())
    }

    fn runtime(&self) -> Runc {
        Runc::new(&self.program, &self.state)
    }

    /// Where `/bin` is a link into `/usr`, it is one in the container too.
    fn create_host_layer(&self) -> Result<(), DriverError> {
        let layer = &self.host_layer;
        mounts::remove_tree(layer)?;
        fs::create_dir_all(layer).map_err(io(layer))?;
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(layer, open).map_err(io(layer))?;
        for program_dir in SYSTEM_PROGRAM_DIRS {
            if let Ok(target) = fs::read_link(program_dir) {
                symlink(target, layer.join(program_dir.trim_start_matches('/')))
                    .map_err(io(layer))?;
            }
        }
        Ok(())
    }

    /// The task's user IDs, inside and outside.
    fn task_ids(
        &self,
        start: &StartContext<'_>,
        root: Option<&Path>,
    ) -> Result<TaskIds, DriverError> {
        let none = || DriverError::Cannot {
            field: "range of users",
            value: "none".into(),
            allowed: "one for every container".into(),
        };
        let range = start.range.ok_or_else(none)?;
        let user = start.work.user.as_ref().map(|user| user.as_str());
        // A task with host volumes has an account of the machine, not of a package.
        if start.work.isolation.volumes.is_empty() {
            container_ids(user, root, range)
        } else {
            container_ids_with_volumes(user, &self.users, range)
        }
    }

    fn bundle(&self, start: &StartContext<'_>) -> Result<Bundle, DriverError> {
        Ok(Bundle::at(&self.run, &ContainerId::new(&start.attempt.to_string())?))
    }

    fn spec(
        &self,
        start: &StartContext<'_>,
        root: Option<&Path>,
        ids: &TaskIds,
    ) -> Result<ContainerSpec, DriverError> {
        let no_group = || DriverError::Cannot {
            field: "control group",
            value: "none".into(),
            allowed: "one for every container".into(),
        };
        let group = start.group.as_ref().ok_or_else(no_group)?.path().clone();
        let layers = vec![root.unwrap_or(&self.host_layer).to_owned()];
        let mut spec = ContainerSpec::new(start.work.command.clone(), layers, group);
        spec.user = User { uid: ids.inside.0, gid: ids.inside.1, groups: Vec::new() };
        (spec.users, spec.userns_owner) = (Some(ids.map), self.userns_owner);
        // The shim has lowered its own, which the runtime inherits.
        spec.rlimits.clear();
        spec.hostname = start.name.split('/').skip(1).collect::<Vec<_>>().join("-");
        spec.scratch = vec![Scratch { target: "/tmp".into(), bytes: TMP_BYTES }];
        spec.network = match start.work.isolation.network {
            Asked::Host => Network::Host,
            Asked::Own => Network::Own,
        };
        spec.binds = binds(start, root)?;
        spec.host_volumes = self.host_volumes(start)?;
        // Other accounts of the machine may reach what it writes there.
        spec.set_id_files = !spec.host_volumes.iter().any(|volume| volume.writable);
        Ok(spec)
    }

    fn host_volumes(&self, start: &StartContext<'_>) -> Result<Vec<HostVolumeMount>, DriverError> {
        let open = |volume: &Volume| {
            let folder = self.open_host_volume(&volume.source, volume.writable)?;
            let (target, writable) = (volume.target.clone().into(), volume.writable);
            Ok(HostVolumeMount { folder, target, writable })
        };
        start.work.isolation.volumes.iter().map(open).collect()
    }

    /// A folder of the machine that its operator offers to tasks; links in it lead nowhere else.
    /// The folder that was checked is the one that is mounted, even if its name changes.
    fn open_host_volume(
        &self,
        source: &str,
        writable: bool,
    ) -> Result<PinnedHostPath, DriverError> {
        let pinned = PinnedHostPath::open(Path::new(source))?;
        let found = pinned.path();
        // Of nested host volumes the innermost decides. Two configured paths to one folder may
        // differ: then it is read-only.
        let containing = self.host_volumes.iter().filter(|volume| found.starts_with(&volume.path));
        let innermost =
            containing.max_by_key(|volume| (volume.path.components().count(), !volume.writable));
        if innermost.is_some_and(|volume| volume.writable || !writable) {
            return Ok(pinned);
        }
        let describe = |volume: &HostVolume| {
            let how = if volume.writable { "" } else { " for reading" };
            format!("{}{how}", volume.path.display())
        };
        let available: Vec<String> = self.host_volumes.iter().map(describe).collect();
        let value = if writable { format!("{source} for writing") } else { source.to_owned() };
        Err(DriverError::Cannot {
            field: "task.isolation.volumes.source",
            value,
            allowed: format!("what this machine's operator lends: [{}]", available.join(", ")),
        })
    }
}

/// A host volume with its real path.
fn canonical_volume(volume: &HostVolume) -> Option<HostVolume> {
    Some(HostVolume { path: volume.path.canonicalize().ok()?, writable: volume.writable })
}

/// Adds the granted devices; writes the file that lists their paths inside.
fn add_devices(
    start: &StartContext<'_>,
    spec: &mut ContainerSpec,
) -> Result<Vec<Vec<PathBuf>>, DriverError> {
    let mut seen = Vec::new();
    for granted in start.devices {
        let nodes = granted.host_device.nodes.iter().map(|node| DeviceNode::of(node));
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        seen.push(nodes.iter().map(|node| node.target().to_owned()).collect());
        // Devices of a kind may share a node.
        for node in nodes {
            if !spec.devices.contains(&node) {
                spec.devices.push(node);
            }
        }
    }
    Ok(seen)
}

/// The machine's programs, and the files in which they look up names.
fn host_program_binds() -> Vec<Bind> {
    let is_folder = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|about| about.is_dir());
    let programs = SYSTEM_PROGRAM_DIRS.iter().map(PathBuf::from).filter(is_folder);
    let config_files = ETC_LOOKUP_PATHS.iter().map(PathBuf::from).filter(|path| path.exists());
    let bind = |path: PathBuf| Bind { source: path.clone(), target: path, writable: false };
    programs.chain(config_files).map(bind).collect()
}

fn binds(start: &StartContext<'_>, root: Option<&Path>) -> Result<Vec<Bind>, DriverError> {
    let bind =
        |source: PathBuf, target: &str, writable| Bind { source, target: target.into(), writable };
    let mut binds = vec![bind(start.directory.clone(), "/work", true)];
    binds.extend(start.alloc.clone().map(|shared| bind(shared, "/alloc", true)));
    let is_root = |name: &str| start.work.isolation.root.as_ref().map(|r| r.as_str()) == Some(name);
    for (name, unpacked) in start.packages.iter().filter(|(name, _)| !is_root(name)) {
        check_package_name(name)?;
        binds.push(bind(unpacked.clone(), &format!("/packages/{name}"), false));
    }
    if root.is_none() {
        binds.extend(host_program_binds());
    } else if start.work.isolation.network == Asked::Host {
        let there = NAME_RESOLUTION_FILES.into_iter().filter(|path| Path::new(path).exists());
        binds.extend(there.map(|path| bind(path.into(), path, false)));
    }
    Ok(binds)
}

/// The unpacked package that the job names as the root of its tasks.
fn root_package<'a>(start: &'a StartContext<'_>) -> Option<&'a Path> {
    let named = start.work.isolation.root.as_ref()?;
    let found = start.packages.iter().find(|(name, _)| name == named.as_str());
    found.map(|(_, unpacked)| unpacked.as_path())
}

impl Driver for ContainerDriver {
    fn name(&self) -> &'static str {
        "container"
    }

    fn isolation_gaps(&self) -> Vec<String> {
        let shared = "what the kernel lets a user hold (inotify, signals) is shared by all \
                      containers: users other than root cannot make namespaces";
        let is_shared = self.userns_owner == UserNsOwner::Root;
        is_shared.then(|| shared.to_owned()).into_iter().collect()
    }

    fn prepare(&self, start: &StartContext<'_>) -> Result<Launch, DriverError> {
        check_min_ram(start)?;
        let root = root_package(start);
        let ids = self.task_ids(start, root)?;
        let owner = ids.outside;
        restrict_access(start, Some(ids.map.range.first))?;
        write_files(start, Some(owner))?;
        open_alloc(start)?;
        let ports = write_ports(start)?;
        let mut spec = self.spec(start, root, &ids)?;
        let seen = add_devices(start, &mut spec)?;
        let devices = write_devices(start, &seen)?;
        let secrets = write_secrets(start, Some(owner))?;
        let credentials = write_credentials(start, Some(owner))?;
        let file = |source: &Path, target: &str| Bind {
            source: source.to_owned(),
            target: target.into(),
            writable: false,
        };
        spec.binds.extend(ports.as_ref().map(|ports| file(ports, "/ports")));
        spec.binds.extend(devices.as_ref().map(|devices| file(devices, "/devices")));
        spec.binds.extend(secrets.as_ref().map(|secrets| file(secrets, "/secrets")));
        spec.binds.extend(credentials.as_ref().map(|folder| file(folder, "/identity")));
        let task_paths = TaskPaths {
            directory: "/work".into(),
            ports: ports.as_ref().map(|_| "/ports".into()),
            packages: "/packages".into(),
            alloc: start.alloc.as_ref().map(|_| "/alloc".into()),
            devices: devices.as_ref().map(|_| "/devices".into()),
            secrets: secrets.as_ref().map(|_| "/secrets".into()),
            credentials: credentials.as_ref().map(|_| "/identity".into()),
        };
        spec.env = environment(start, &task_paths);
        spec.cwd.clone_from(&task_paths.directory);
        let bundle = self.bundle(start)?;
        if let Err(why) = bundle.prepare(&spec) {
            // Leftovers are in a folder that only root can enter.
            let _ = [&secrets, &credentials].map(|folder| folder.as_deref().map(remove_dir));
            return Err(why.into());
        }
        let container = Container {
            runtime: self.program.clone(),
            state: self.state.clone(),
            run: self.run.clone(),
            id: bundle.id().to_string(),
            owner,
        };
        Ok(Launch {
            name: start.name.to_owned(),
            command: spec.command,
            env: spec.env.into_iter().collect(),
            directory: spec.cwd,
            run_as: Some(ids.inside),
            logs: log_limits(start),
            lease_until: start.lease_until,
            max_run: start.work.max_run.map(|length| length.0),
            group: Some(spec.group.to_string()),
            container: Some(container),
            secrets,
            identity_dir: credentials,
        })
    }

    fn runtime(&self) -> Option<&str> {
        Some(&self.version)
    }

    fn sweep(&self, tasks: &Path, kept: &BTreeSet<String>) {
        sweep_secrets(tasks, kept);
        let keep = kept.iter().filter_map(|id| ContainerId::new(id).ok()).collect();
        match sweep(&self.runtime(), &self.run, &keep) {
            Ok(swept) => {
                for stuck in swept.stuck {
                    tracing::error!(stuck, "what was left of a container stays");
                }
            }
            Err(error) => tracing::error!(%error, "containers cannot be listed"),
        }
    }
}

/// The runtime itself counts against the limit while it starts a container.
fn check_min_ram(start: &StartContext<'_>) -> Result<(), DriverError> {
    let ram = start.work.limits.ram;
    if ram >= MIN_CONTAINER_RAM || start.work.isolation.slack_ram {
        return Ok(());
    }
    let least = MIN_CONTAINER_RAM >> 20;
    Err(DriverError::Cannot {
        field: "task.limits.ram",
        value: ram.to_string(),
        allowed: format!("{MIN_CONTAINER_RAM} ({least} MiB) or more in a container"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_dir::scratch::Scratch as Folder;
    use cellwright_cell::isolation::Isolation;

    #[test]
    fn what_is_borrowed_covers_nothing_that_a_task_has() {
        let is_admitted = |target: &str| {
            let volume = Volume { source: "/srv".into(), target: target.into(), writable: false };
            let isolation = Isolation { volumes: vec![volume], ..Isolation::default() };
            isolation.invalid_volume_targets().next().is_none()
        };
        assert!(is_admitted("/alloc/data") && !is_admitted("/work"));
        // Admission knows every path that is bound from the machine.
        for bind in host_program_binds() {
            let target = bind.target.to_str().unwrap();
            assert!(!is_admitted(target), "{target}");
        }
    }

    #[test]
    fn only_what_is_lent_can_be_borrowed() {
        let folder = Folder::new();
        let [writable_dir, not_offered, offered_twice] =
            ["lent", "kept", "shown"].map(|name| folder.path(name));
        let fixed = writable_dir.join("fixed");
        let open = fixed.join("open");
        fs::create_dir_all(writable_dir.join("inner")).unwrap();
        fs::create_dir_all(open.join("inner")).unwrap();
        fs::create_dir_all(fixed.join("inner")).unwrap();
        fs::create_dir_all(&not_offered).unwrap();
        fs::create_dir_all(&offered_twice).unwrap();
        symlink(&not_offered, writable_dir.join("way-out")).unwrap();
        let driver = ContainerDriver {
            program: "runc".into(),
            state: folder.path("state"),
            run: folder.path("run"),
            host_layer: folder.path("layer"),
            // One configured path to a folder is writable, another is not.
            host_volumes: [
                (&fixed, false),
                (&writable_dir, true),
                (&open, true),
                (&offered_twice, false),
                (&offered_twice, true),
            ]
            .into_iter()
            .filter_map(|(path, writable)| {
                canonical_volume(&HostVolume { path: path.clone(), writable })
            })
            .collect(),
            users: Vec::new(),
            version: String::new(),
            userns_owner: UserNsOwner::FirstOfRange,
        };
        let open_volume =
            |path: PathBuf, writable| driver.open_host_volume(path.to_str().unwrap(), writable);
        assert!(
            open_volume(writable_dir.join("inner"), true).is_ok()
                && open_volume(writable_dir.clone(), false).is_ok()
        );
        assert!(
            open_volume(offered_twice.clone(), false).is_ok()
                && open_volume(fixed.clone(), false).is_ok()
        );
        assert!(open_volume(open.join("inner"), true).is_ok());
        let inner = fixed.join("inner");
        for path in
            [not_offered, writable_dir.join("way-out"), "/etc".into(), offered_twice, fixed, inner]
        {
            let error = open_volume(path.clone(), true).unwrap_err().to_string();
            assert!(error.contains("what this machine's operator lends"), "{path:?}: {error}");
        }
    }
}
