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
//! Root inside is nobody outside: numbers of users are shifted, unless a task borrows folders of
//! the machine, whose owners must stay who they are.

use super::told::{
    Ids, Places, check_package_name, environment, find_account, io, is_open_to_all, logs,
    open_alloc, remove, sweep_secrets, write_devices, write_files, write_papers, write_ports,
    write_secrets,
};
use super::who::{NOBODY, allowed};
use super::{Driver, DriverError, Start};
use crate::config::{Config, LentVolume};
use crate::folder::Folders;
use crate::shim::protocol::{Container, Launch};
use cellwright_cell::admit::LEAST_RAM_CONTAINED;
use cellwright_cell::isolation::{Isolation, LOOKED_UP, NAMES, Network as Asked, PROGRAMS};
use cellwright_isolate::container::{
    Bind, Bundle, ContainerId, ContainerSpec, DeviceNode, IdRange, Network, Probe, Runc, Scratch,
    User, probe, sweep,
};
use cellwright_isolate::mounts;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Users of containers are these of the machine: beyond what accounts and other tools use.
const SHIFTED: IdRange = IdRange { first: 0x7000_0000, count: 65_536 };
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
    /// Whether users can be shifted: a stranger must get to the containers' roots.
    shifts: bool,
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
            shifts: is_open_to_all(&run),
            run,
        };
        let made = fs::DirBuilder::new().recursive(true).mode(0o711).create(&driver.run);
        made.map_err(|why| format!("{}: {why}", driver.run.display()))?;
        let probed = probe(&driver.runtime(), &driver.run);
        match (probed.why_not(), probed) {
            (None, Probe::Ready { runtime }) => driver.version = runtime,
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

    /// Whether users are shifted for this task, and who `ids` are on the machine then.
    fn shifted(&self, start: &Start<'_>, ids: Ids) -> (Option<IdRange>, Ids) {
        let fits = ids.0 < SHIFTED.count && ids.1 < SHIFTED.count;
        if !self.shifts || !fits || !start.work.isolation.volumes.is_empty() {
            return (None, ids);
        }
        (Some(SHIFTED), (SHIFTED.first + ids.0, SHIFTED.first + ids.1))
    }

    /// Who the task is inside, how users are shifted, and who it is on the machine.
    fn who(
        &self,
        start: &Start<'_>,
        root: Option<&Path>,
    ) -> Result<(Ids, Option<IdRange>, Ids), DriverError> {
        // Whoever borrows folders of the machine is somebody of the machine, not of a package.
        let borrows = !start.work.isolation.volumes.is_empty();
        let user = start.work.user.as_ref().map(|user| user.as_str());
        let ids = account(user, root.filter(|_| !borrows))?;
        let (user_namespace, owner) = self.shifted(start, ids);
        if user_namespace.is_none() {
            if ids.0 == 0 {
                return Err(real_root(borrows));
            }
            user.map_or(Ok(()), |user| allowed(user, &self.users))?;
        }
        Ok((ids, user_namespace, owner))
    }

    fn bundle(&self, start: &Start<'_>) -> Result<Bundle, DriverError> {
        Ok(Bundle::at(&self.run, &ContainerId::new(&start.attempt.to_string())?))
    }

    fn spec(
        &self,
        start: &Start<'_>,
        root: Option<&Path>,
        ids: Ids,
    ) -> Result<ContainerSpec, DriverError> {
        let no_group = || DriverError::Cannot {
            field: "control group",
            value: "none".into(),
            allowed: "one for every container".into(),
        };
        let group = start.group.as_ref().ok_or_else(no_group)?.path().clone();
        let layers = vec![root.unwrap_or(&self.host_layer).to_owned()];
        let mut spec = ContainerSpec::new(start.work.command.clone(), layers, group);
        spec.user = User { uid: ids.0, gid: ids.1, groups: Vec::new() };
        spec.hostname = start.name.split('/').skip(1).collect::<Vec<_>>().join("-");
        spec.scratch = vec![Scratch { target: "/tmp".into(), bytes: TMP_BYTES }];
        spec.network = match start.work.isolation.network {
            Asked::Host => Network::Host,
            Asked::Own => Network::Own,
        };
        spec.binds = self.binds(start, root)?;
        Ok(spec)
    }

    fn binds(&self, start: &Start<'_>, root: Option<&Path>) -> Result<Vec<Bind>, DriverError> {
        let bind = |source: PathBuf, target: &str, writable| Bind {
            source,
            target: target.into(),
            writable,
        };
        let mut binds = vec![bind(start.directory.clone(), "/work", true)];
        binds.extend(start.alloc.clone().map(|shared| bind(shared, "/alloc", true)));
        let is_root =
            |name: &str| start.work.isolation.root.as_ref().map(|r| r.as_str()) == Some(name);
        for (name, unpacked) in start.packages.iter().filter(|(name, _)| !is_root(name)) {
            check_package_name(name)?;
            binds.push(bind(unpacked.clone(), &format!("/packages/{name}"), false));
        }
        check_targets(&start.work.isolation)?;
        for volume in &start.work.isolation.volumes {
            let source = self.lent(&volume.source, volume.writable)?;
            binds.push(bind(source, &volume.target, volume.writable));
        }
        if root.is_none() {
            binds.extend(machines_programs());
        } else if start.work.isolation.network == Asked::Host {
            let there = NAMES.into_iter().filter(|path| Path::new(path).exists());
            binds.extend(there.map(|path| bind(path.into(), path, false)));
        }
        Ok(binds)
    }

    /// A folder of the machine that its operator lends to tasks; links in it lead nowhere else.
    fn lent(&self, source: &str, writable: bool) -> Result<PathBuf, DriverError> {
        let found = fs::canonicalize(source).map_err(io(Path::new(source)))?;
        // Of folders inside each other the innermost decides. Two ways to one folder may have been
        // given different answers: then it is not for writing.
        let around = self.volumes.iter().filter(|lent| found.starts_with(&lent.path));
        let innermost = around.max_by_key(|lent| (lent.path.components().count(), !lent.writable));
        if innermost.is_some_and(|lent| lent.writable || !writable) {
            return Ok(found);
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
    let Some((position, allowed)) = asked.misplaced() else { return Ok(()) };
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

/// User and group inside: an account of the root package, or of the machine.
fn account(user: Option<&str>, root: Option<&Path>) -> Result<Ids, DriverError> {
    let Some(user) = user else { return Ok(NOBODY) };
    // Never through a link of the package's, which could lead anywhere.
    let list = |root: &Path| {
        let path = root.join("etc/passwd");
        let plain = fs::symlink_metadata(&path).is_ok_and(|about| about.is_file());
        if plain { fs::read_to_string(path).unwrap_or_default() } else { String::new() }
    };
    let inside = root.and_then(|root| find_account(&list(root), user));
    inside.or_else(|| find_account(&list(Path::new("/")), user)).ok_or_else(|| {
        DriverError::Cannot {
            field: "task.user",
            value: user.to_owned(),
            allowed: "an account of the task's root package or of this machine".into(),
        }
    })
}

/// Where the package is unpacked that the job names as the root of its tasks.
fn root_package<'a>(start: &'a Start<'_>) -> Option<&'a Path> {
    let named = start.work.isolation.root.as_ref()?;
    let found = start.packages.iter().find(|(name, _)| name == named.as_str());
    found.map(|(_, unpacked)| unpacked.as_path())
}

/// Root inside is nobody outside, or there is none.
fn real_root(borrows: bool) -> DriverError {
    let why = match borrows {
        true => "with `task.isolation.volumes`, whose owners are the machine's",
        false => "while the agent's folder is closed to others, so that users cannot be shifted",
    };
    DriverError::Cannot {
        field: "task.user",
        value: "root".into(),
        allowed: format!("any other account {why}"),
    }
}

impl Driver for ContainerDriver {
    fn name(&self) -> &'static str {
        "container"
    }

    fn gaps(&self) -> Vec<String> {
        Vec::new()
    }

    fn prepare(&self, start: &Start<'_>) -> Result<Launch, DriverError> {
        has_enough(start)?;
        let root = root_package(start);
        let (ids, user_namespace, owner) = self.who(start, root)?;
        write_files(start, Some(owner))?;
        open_alloc(start)?;
        let ports = write_ports(start)?;
        let mut spec = self.spec(start, root, ids)?;
        let seen = lend(start, &mut spec)?;
        let devices = write_devices(start, &seen)?;
        let secrets = write_secrets(start, Some(owner))?;
        let papers = write_papers(start, Some(owner))?;
        spec.user_namespace = user_namespace;
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
            identity: Some(ids),
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
    use cellwright_cell::isolation::Volume;

    #[test]
    fn accounts_are_the_packages_first_and_never_behind_a_link() {
        let folder = Folder::new();
        let root = folder.path("root");
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::write(root.join("etc/passwd"), "root:x:7:8::/:/bin/sh\nweb:x:33:34::/:\n").unwrap();
        assert_eq!(account(None, Some(&root)).unwrap(), NOBODY);
        assert_eq!(account(Some("web"), Some(&root)).unwrap(), (33, 34));
        assert_eq!(account(Some("root"), Some(&root)).unwrap(), (7, 8));
        assert_eq!(account(Some("root"), None).unwrap(), (0, 0));
        let error = account(Some("no-such-account"), Some(&root)).unwrap_err().to_string();
        assert!(error.contains("task.user: no-such-account"), "{error}");
        fs::rename(root.join("etc/passwd"), folder.path("elsewhere")).unwrap();
        symlink(folder.path("elsewhere"), root.join("etc/passwd")).unwrap();
        // The machine may have an account of that name; it is not this one.
        assert_ne!(account(Some("root"), Some(&root)).unwrap(), (7, 8));
    }

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
            shifts: true,
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

    #[test]
    fn nobody_is_root_of_the_machine() {
        for (borrows, why) in [(true, "volumes"), (false, "closed to others")] {
            let error = real_root(borrows).to_string();
            assert!(error.starts_with("task.user: root; allowed: any other"), "{error}");
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn roots_behind_a_closed_door_have_no_shifted_users() {
        let folder = Folder::new();
        let inner = folder.path("open/inner");
        fs::create_dir_all(&inner).unwrap();
        assert!(is_open_to_all(&inner));
        let closed = fs::Permissions::from_mode(0o700);
        fs::set_permissions(folder.path("open"), closed).unwrap();
        assert!(!is_open_to_all(&inner));
    }
}
