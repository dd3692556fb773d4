//! The `container` driver: a program in a container of its own, by an OCI runtime. It lays out the
//! container; the shim has the runtime make and start it, and so is the parent that learns how
//! it ended.
//!
//! What a task sees:
//!
//! | path | what |
//! |---|---|
//! | `/` | the package that its job names as its root, or the machine's own programs; read-only |
//! | `/work` | its own folder, where it starts |
//! | `/packages/NAME` | its other packages, read-only |
//! | `/alloc` | inside an alloc: the folder that its tasks share |
//! | `/secrets`, `/identity`, `/ports` | its secrets; who it is; the ports it was given |
//! | `/devices`, below `/dev` | the devices it was given |
//! | `/tmp` | in memory, charged to it |
//!
//! Users are shifted, always: whoever a task is inside, it is one of its own range outside. Only
//! the account of a task that borrows folders of the machine, whose owners must stay who they are,
//! is that account outside too, and its operator says which accounts those are.

use super::told::{
    Places, check_package_name, environment, io, logs, open_alloc, remove, shut, sweep_secrets,
    write_devices, write_files, write_papers, write_ports, write_secrets,
};
use super::who::{Contained, borrowing, contained};
use super::{Driver, DriverError, Start};
use crate::config::{Config, LentVolume};
use crate::folder::Folders;
use crate::shim::protocol::{Container, Launch};
use cellwright_cell::admit::LEAST_RAM_CONTAINED;
use cellwright_cell::isolation::{Isolation, LOOKED_UP, NAMES, Network as Asked, PROGRAMS, Volume};
use cellwright_isolate::container::{
    Bind, Borrowed, Bundle, ContainerId, ContainerSpec, DeviceNode, HeldFolder, Maker, Network,
    Probe, Runc, Scratch, User, probe, sweep,
};
use cellwright_isolate::mounts;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Room in `/tmp`.
const TMP_BYTES: u64 = 64 << 20;

pub struct ContainerDriver {
    program: PathBuf,
    /// Where the runtime remembers its containers.
    state: PathBuf,
    /// Where the containers' roots are put together.
    run: PathBuf,
    /// The lowest layer of roots made of the machine's programs: links such as `bin -> usr/bin`.
    host_layer: PathBuf,
    /// Folders that tasks may borrow.
    volumes: Vec<LentVolume>,
    /// Accounts of the machine that jobs may name, beside `nobody`.
    users: Vec<String>,
    /// The runtime, with what is known against it.
    version: String,
    /// Who makes the namespaces of users.
    maker: Maker,
}

impl ContainerDriver {
    /// # Errors
    /// With all the reasons why containers do not work here, in one line.
    pub fn open(config: &Config, folders: &Folders) -> Result<ContainerDriver, String> {
        let run = folders.containers();
        let mut driver = ContainerDriver {
            users: config.users.clone(),
            version: String::new(),
            program: config.runtime.clone(),
            state: run.join("state"),
            host_layer: run.join("host-layer"),
            // What is lent is compared with where a path really leads.
            volumes: config.volumes.iter().filter_map(real).collect(),
            maker: Maker::OwnRange,
            run,
        };
        let made = fs::DirBuilder::new().recursive(true).mode(0o711).create(&driver.run);
        made.map_err(|why| format!("{}: {why}", driver.run.display()))?;
        let probed = probe(&driver.runtime(), &driver.run);
        match (probed.why_not(), probed) {
            (None, Probe::Ready { runtime, maker }) => {
                (driver.version, driver.maker) = (runtime, maker);
            }
            (why, _) => return Err(why.unwrap_or_default()),
        }
        driver.lay_host_layer().map(|()| driver).map_err(|error| error.to_string())
    }

    fn runtime(&self) -> Runc {
        Runc::new(&self.program, &self.state)
    }

    /// Where `/bin` is a link into `/usr`, so it is in the container.
    fn lay_host_layer(&self) -> Result<(), DriverError> {
        let layer = &self.host_layer;
        mounts::remove_tree(layer)?;
        fs::create_dir_all(layer).map_err(io(layer))?;
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(layer, open).map_err(io(layer))?;
        for place in PROGRAMS {
            if let Ok(target) = fs::read_link(place) {
                symlink(target, layer.join(place.trim_start_matches('/'))).map_err(io(layer))?;
            }
        }
        Ok(())
    }

    /// Who the task is, inside and outside.
    fn who(&self, start: &Start<'_>, root: Option<&Path>) -> Result<Contained, DriverError> {
        let none = || DriverError::Cannot {
            field: "range of users",
            value: "none".into(),
            allowed: "one for every container".into(),
        };
        let range = start.range.ok_or_else(none)?;
        let user = start.work.user.as_ref().map(|user| user.as_str());
        // Whoever borrows folders of the machine is somebody of the machine, not of a package.
        if start.work.isolation.volumes.is_empty() {
            contained(user, root, range)
        } else {
            borrowing(user, &self.users, range)
        }
    }

    fn bundle(&self, start: &Start<'_>) -> Result<Bundle, DriverError> {
        Ok(Bundle::at(&self.run, &ContainerId::new(&start.attempt.to_string())?))
    }

    fn spec(
        &self,
        start: &Start<'_>,
        root: Option<&Path>,
        who: &Contained,
    ) -> Result<ContainerSpec, DriverError> {
        let no_group = || DriverError::Cannot {
            field: "control group",
            value: "none".into(),
            allowed: "one for every container".into(),
        };
        let group = start.group.as_ref().ok_or_else(no_group)?.path().clone();
        let layers = vec![root.unwrap_or(&self.host_layer).to_owned()];
        let mut spec = ContainerSpec::new(start.work.command.clone(), layers, group);
        spec.user = User { uid: who.inside.0, gid: who.inside.1, groups: Vec::new() };
        (spec.users, spec.maker) = (Some(who.map), self.maker);
        // The shim has lowered its own, which the runtime inherits.
        spec.rlimits.clear();
        spec.hostname = start.name.split('/').skip(1).collect::<Vec<_>>().join("-");
        spec.scratch = vec![Scratch { target: "/tmp".into(), bytes: TMP_BYTES }];
        spec.network = match start.work.isolation.network {
            Asked::Host => Network::Host,
            Asked::Own => Network::Own,
        };
        spec.binds = binds(start, root)?;
        spec.borrowed = self.borrowed(start)?;
        // Others of the machine may reach what it writes there.
        spec.set_id_files = !spec.borrowed.iter().any(|lent| lent.writable);
        Ok(spec)
    }

    fn borrowed(&self, start: &Start<'_>) -> Result<Vec<Borrowed>, DriverError> {
        check_targets(&start.work.isolation)?;
        let borrow = |volume: &Volume| {
            let folder = self.lent(&volume.source, volume.writable)?;
            let (target, writable) = (volume.target.clone().into(), volume.writable);
            Ok(Borrowed { folder, target, writable })
        };
        start.work.isolation.volumes.iter().map(borrow).collect()
    }

    /// A folder of the machine that its operator lends to tasks; links in it lead nowhere else.
    /// What is looked at is what is given, whatever becomes of its name.
    fn lent(&self, source: &str, writable: bool) -> Result<HeldFolder, DriverError> {
        let held = HeldFolder::open(Path::new(source))?;
        let found = held.path();
        // Of folders inside each other the innermost decides. Two ways to one folder may have been
        // given different answers: then it is not for writing.
        let around = self.volumes.iter().filter(|lent| found.starts_with(&lent.path));
        let innermost = around.max_by_key(|lent| (lent.path.components().count(), !lent.writable));
        if innermost.is_some_and(|lent| lent.writable || !writable) {
            return Ok(held);
        }
        let shown = |lent: &LentVolume| {
            let how = if lent.writable { "" } else { " for reading" };
            format!("{}{how}", lent.path.display())
        };
        let lent: Vec<String> = self.volumes.iter().map(shown).collect();
        let value = if writable { format!("{source} for writing") } else { source.to_owned() };
        Err(DriverError::Cannot {
            field: "task.isolation.volumes.source",
            value,
            allowed: format!("what this machine's operator lends: [{}]", lent.join(", ")),
        })
    }
}

/// Where a folder that is lent really is.
fn real(volume: &LentVolume) -> Option<LentVolume> {
    Some(LentVolume { path: volume.path.canonicalize().ok()?, writable: volume.writable })
}

/// A job that was admitted before its volumes' targets were looked at may ask for any.
fn check_targets(asked: &Isolation) -> Result<(), DriverError> {
    let Some((position, allowed)) = asked.misplaced().next() else { return Ok(()) };
    let target = asked.volumes.get(position).map(|volume| volume.target.clone());
    Err(DriverError::Cannot {
        field: "task.isolation.volumes.target",
        value: target.unwrap_or_default(),
        allowed: allowed.into(),
    })
}

/// Lends what it was given; says where inside each device is.
fn lend(start: &Start<'_>, spec: &mut ContainerSpec) -> Result<Vec<Vec<PathBuf>>, DriverError> {
    let mut seen = Vec::new();
    for granted in start.devices {
        let nodes = granted.held.nodes.iter().map(|node| DeviceNode::of(node));
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

/// The machine's programs and what they look up.
fn machines_programs() -> Vec<Bind> {
    let is_folder = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|about| about.is_dir());
    let programs = PROGRAMS.iter().map(PathBuf::from).filter(is_folder);
    let looked_up = LOOKED_UP.iter().map(PathBuf::from).filter(|path| path.exists());
    let bind = |path: PathBuf| Bind { source: path.clone(), target: path, writable: false };
    programs.chain(looked_up).map(bind).collect()
}

fn binds(start: &Start<'_>, root: Option<&Path>) -> Result<Vec<Bind>, DriverError> {
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
        binds.extend(machines_programs());
    } else if start.work.isolation.network == Asked::Host {
        let there = NAMES.into_iter().filter(|path| Path::new(path).exists());
        binds.extend(there.map(|path| bind(path.into(), path, false)));
    }
    Ok(binds)
}

/// Where the package is unpacked that the job names as the root of its tasks.
fn root_package<'a>(start: &'a Start<'_>) -> Option<&'a Path> {
    let named = start.work.isolation.root.as_ref()?;
    let found = start.packages.iter().find(|(name, _)| name == named.as_str());
    found.map(|(_, unpacked)| unpacked.as_path())
}

impl Driver for ContainerDriver {
    fn name(&self) -> &'static str {
        "container"
    }

    fn gaps(&self) -> Vec<String> {
        let shared = "what the kernel lets a user hold (inotify, signals) is shared by all \
                      containers: users other than root cannot make namespaces";
        let is_shared = self.maker == Maker::Root;
        is_shared.then(|| shared.to_owned()).into_iter().collect()
    }

    fn prepare(&self, start: &Start<'_>) -> Result<Launch, DriverError> {
        has_enough(start)?;
        let root = root_package(start);
        let who = self.who(start, root)?;
        let owner = who.outside;
        shut(start, Some(who.map.range.first))?;
        write_files(start, Some(owner))?;
        open_alloc(start)?;
        let ports = write_ports(start)?;
        let mut spec = self.spec(start, root, &who)?;
        let seen = lend(start, &mut spec)?;
        let devices = write_devices(start, &seen)?;
        let secrets = write_secrets(start, Some(owner))?;
        let papers = write_papers(start, Some(owner))?;
        let file = |source: &Path, target: &str| Bind {
            source: source.to_owned(),
            target: target.into(),
            writable: false,
        };
        spec.binds.push(file(&ports, "/ports"));
        spec.binds.extend(devices.as_ref().map(|devices| file(devices, "/devices")));
        spec.binds.extend(secrets.as_ref().map(|secrets| file(secrets, "/secrets")));
        spec.binds.extend(papers.as_ref().map(|papers| file(papers, "/identity")));
        let places = Places {
            directory: "/work".into(),
            ports: "/ports".into(),
            packages: "/packages".into(),
            alloc: start.alloc.as_ref().map(|_| "/alloc".into()),
            devices: devices.as_ref().map(|_| "/devices".into()),
            secrets: secrets.as_ref().map(|_| "/secrets".into()),
            papers: papers.as_ref().map(|_| "/identity".into()),
        };
        spec.env = environment(start, &places);
        spec.cwd.clone_from(&places.directory);
        let bundle = self.bundle(start)?;
        if let Err(why) = bundle.prepare(&spec) {
            // What stays behind is in a folder that root alone can enter.
            let _ = [&secrets, &papers].map(|folder| folder.as_deref().map(remove));
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
            identity: Some(who.inside),
            logs: logs(start),
            lease_until: start.lease_until,
            max_run: start.work.max_run.map(|length| length.0),
            group: Some(spec.group.to_string()),
            container: Some(container),
            secrets,
            papers,
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
fn has_enough(start: &Start<'_>) -> Result<(), DriverError> {
    let ram = start.work.limits.ram;
    if ram >= LEAST_RAM_CONTAINED || start.work.isolation.slack_ram {
        return Ok(());
    }
    let least = LEAST_RAM_CONTAINED >> 20;
    Err(DriverError::Cannot {
        field: "task.limits.ram",
        value: ram.to_string(),
        allowed: format!("{LEAST_RAM_CONTAINED} ({least} MiB) or more in a container"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::scratch::Scratch as Folder;

    #[test]
    fn what_is_borrowed_covers_nothing_that_a_task_has() {
        let asked = |targets: &[&str]| {
            let volume = |target: &&str| Volume {
                source: "/srv".into(),
                target: (*target).into(),
                writable: false,
            };
            let volumes = targets.iter().map(volume).collect();
            check_targets(&Isolation { volumes, ..Isolation::default() })
        };
        assert!(asked(&["/data", "/alloc/data"]).is_ok());
        let said = asked(&["/data", "/work"]).unwrap_err().to_string();
        assert!(said.contains("task.isolation.volumes.target: /work"), "{said}");
        // Whatever is bound from the machine has a rule.
        for bind in machines_programs() {
            let target = bind.target.to_str().unwrap().to_owned();
            assert!(asked(&[&target]).is_err(), "{target}");
        }
    }

    #[test]
    fn only_what_is_lent_can_be_borrowed() {
        let folder = Folder::new();
        let [lent, kept, shown] = ["lent", "kept", "shown"].map(|name| folder.path(name));
        let fixed = lent.join("fixed");
        let open = fixed.join("open");
        fs::create_dir_all(lent.join("inner")).unwrap();
        fs::create_dir_all(open.join("inner")).unwrap();
        fs::create_dir_all(fixed.join("inner")).unwrap();
        fs::create_dir_all(&kept).unwrap();
        fs::create_dir_all(&shown).unwrap();
        symlink(&kept, lent.join("way-out")).unwrap();
        let driver = ContainerDriver {
            program: "runc".into(),
            state: folder.path("state"),
            run: folder.path("run"),
            host_layer: folder.path("layer"),
            // One way to a folder says that it may be written to, another that it may not.
            volumes: [
                (&fixed, false),
                (&lent, true),
                (&open, true),
                (&shown, false),
                (&shown, true),
            ]
            .into_iter()
            .filter_map(|(path, writable)| real(&LentVolume { path: path.clone(), writable }))
            .collect(),
            users: Vec::new(),
            version: String::new(),
            maker: Maker::OwnRange,
        };
        let borrow = |path: PathBuf, writable| driver.lent(path.to_str().unwrap(), writable);
        assert!(borrow(lent.join("inner"), true).is_ok() && borrow(lent.clone(), false).is_ok());
        assert!(borrow(shown.clone(), false).is_ok() && borrow(fixed.clone(), false).is_ok());
        assert!(borrow(open.join("inner"), true).is_ok());
        let inner = fixed.join("inner");
        for path in [kept, lent.join("way-out"), "/etc".into(), shown, fixed, inner] {
            let error = borrow(path.clone(), true).unwrap_err().to_string();
            assert!(error.contains("what this machine's operator lends"), "{path:?}: {error}");
        }
    }
}
