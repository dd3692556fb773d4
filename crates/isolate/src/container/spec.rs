//! The spec of a container, checked before anything is created. A task gets only what is in the
//! spec: the defaults are those for an untrusted program.

use super::device::DeviceNode;
use super::host_volume::PinnedHostPath;
use super::users::{IdMap, UserNsOwner};
use crate::Error;
use crate::cgroup::GroupPath;
use cellwright_cell::isolation::KERNEL_PATHS;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// Name of a container on this machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(String);

impl ContainerId {
    /// # Errors
    /// When it could not be a file name and a runtime's id at once.
    pub fn new(id: &str) -> Result<ContainerId, Error> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
        if (1..=100).contains(&id.len()) && id.bytes().all(plain) && !id.starts_with('-') {
            return Ok(ContainerId(id.to_owned()));
        }
        let allowed = "1 to 100 letters, digits, `-` and `_`, not starting with `-`";
        Err(Error::invalid("container id", id, allowed))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerSpec {
    /// Program and arguments.
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Inside the container.
    pub cwd: PathBuf,
    pub user: User,
    pub hostname: String,
    /// Directories stacked to form the root, uppermost first. They are never written.
    pub layers: Vec<PathBuf>,
    /// Whether the task may write anywhere in its root; its changes are removed with the bundle.
    pub writable_root: bool,
    pub binds: Vec<Bind>,
    /// Folders of the machine that are mounted into it.
    pub host_volumes: Vec<HostVolumeMount>,
    pub scratch: Vec<Scratch>,
    /// Its devices, beside the default ones such as `/dev/null`.
    pub devices: Vec<DeviceNode>,
    /// Beyond these, resource limits are those of the process that starts the runtime. In a user
    /// namespace, setting some here takes the right to change any limit of the machine.
    pub rlimits: Vec<Rlimit>,
    pub network: Network,
    /// The mapping of the container's user IDs to the machine's; `None`: they are the same.
    pub users: Option<IdMap>,
    /// Creates its user namespace.
    pub userns_owner: UserNsOwner,
    /// Whether set-user-ID files can be created: not where others than the task can reach what it
    /// writes.
    pub set_id_files: bool,
    /// The cgroup in which the task runs; it must exist.
    pub group: GroupPath,
    /// The OOM killer's preference, -1000 to 1000, highest first.
    pub oom_score: i32,
}

impl ContainerSpec {
    /// The strictest container around `command`: no privileges, the user nobody, nothing writable,
    /// no network, no core dumps.
    #[must_use]
    pub fn new(command: Vec<String>, layers: Vec<PathBuf>, group: GroupPath) -> ContainerSpec {
        ContainerSpec {
            command,
            env: BTreeMap::new(),
            cwd: PathBuf::from("/"),
            user: User { uid: 65_534, gid: 65_534, groups: Vec::new() },
            hostname: "task".to_owned(),
            layers,
            writable_root: false,
            binds: Vec::new(),
            host_volumes: Vec::new(),
            scratch: Vec::new(),
            devices: Vec::new(),
            rlimits: vec![Rlimit { kind: RlimitKind::CoreSize, soft: 0, hard: 0 }],
            network: Network::Own,
            users: None,
            userns_owner: UserNsOwner::default(),
            set_id_files: true,
            group,
            oom_score: 0,
        }
    }

    /// # Errors
    /// Names the first invalid field.
    pub fn check(&self) -> Result<(), Error> {
        if self.command.first().is_none_or(String::is_empty) {
            return Err(Error::invalid("command", "", "a program and its arguments"));
        }
        if let Some(bad) = self.command.iter().find(|word| word.contains('\0')) {
            return Err(Error::invalid("command", bad.escape_debug(), "words without a zero byte"));
        }
        for (name, value) in &self.env {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                let found = name.escape_debug();
                return Err(Error::invalid("env", found, "names without `=`, no zero bytes"));
            }
        }
        check_absolute("cwd", &self.cwd)?;
        // A working directory below one of these can lead to the host (through a descriptor of the
        // runtime, for one), and no program has reason to start there.
        if KERNEL_PATHS.iter().any(|place| self.cwd.starts_with(place)) {
            let allowed = "a directory outside /proc, /sys and /dev";
            return Err(Error::invalid("cwd", self.cwd.display(), allowed));
        }
        if self.layers.is_empty() {
            return Err(Error::invalid("layers", "none", "at least one directory"));
        }
        self.layers.iter().try_for_each(|layer| overlay_path(layer))?;
        for target in self.targets() {
            check_absolute("mount target", target)?;
            // Below /dev as well: the runtime masks files with /dev/null.
            let mut kernels = KERNEL_PATHS.iter();
            if target == Path::new("/") || kernels.any(|place| target.starts_with(place)) {
                let allowed = "a place in the container other than /, /proc, /sys and /dev";
                return Err(Error::invalid("mount target", target.display(), allowed));
            }
        }
        for (number, node) in self.devices.iter().enumerate() {
            let same = |other: &DeviceNode| other.target == node.target;
            if self.devices[..number].iter().any(same) {
                let found = node.target.display();
                return Err(Error::invalid("devices", found, "each place once"));
            }
        }
        if let Some(bind) = self.binds.iter().find(|bind| !bind.source.is_absolute()) {
            let found = bind.source.display();
            return Err(Error::invalid("mount source", found, "an absolute path"));
        }
        if !(-1000..=1000).contains(&self.oom_score) {
            return Err(Error::invalid("oom score", self.oom_score, "-1000 to 1000"));
        }
        let ids = (self.user.uid, self.user.gid);
        if self.users.is_some_and(|map| map.outside(ids).is_none()) {
            let found = format!("{}:{}", ids.0, ids.1);
            return Err(Error::invalid("user", found, "numbers that the container has"));
        }
        Ok(())
    }

    /// All mount targets in the container's root.
    pub(super) fn targets(&self) -> impl Iterator<Item = &Path> {
        let binds = self.binds.iter().map(|bind| bind.target.as_path());
        let host_volumes = self.host_volumes.iter().map(|volume| volume.target.as_path());
        let scratch = self.scratch.iter().map(|scratch| scratch.target.as_path());
        binds.chain(host_volumes).chain(scratch)
    }
}

fn check_absolute(field: &'static str, path: &Path) -> Result<(), Error> {
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if path.is_absolute() && path.components().all(plain) {
        return Ok(());
    }
    Err(Error::invalid(field, path.display(), "an absolute path without `..`"))
}

/// Options of an overlay are one text with these characters between the paths.
pub(super) fn overlay_path(path: &Path) -> Result<(), Error> {
    let text = path.to_str().unwrap_or("");
    if path.is_absolute() && !text.is_empty() && !text.contains([',', ':', '\\', '"']) {
        return Ok(());
    }
    let allowed = "an absolute path without `,`, `:`, `\\` and `\"`";
    Err(Error::invalid("layer", path.display(), allowed))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// A file or directory of the machine, seen in the container without what is mounted below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    pub source: PathBuf,
    pub target: PathBuf,
    pub writable: bool,
}

/// A folder of the machine that is mounted into it, as it was resolved and not by its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostVolumeMount {
    pub folder: PinnedHostPath,
    pub target: PathBuf,
    pub writable: bool,
}

/// A directory in memory, charged to the task and removed with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scratch {
    pub target: PathBuf,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rlimit {
    pub kind: RlimitKind,
    pub soft: u64,
    pub hard: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RlimitKind {
    CoreSize,
    OpenFiles,
    FileSize,
    LockedMemory,
    Stack,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// That of the machine.
    Host,
    /// A new one with nothing in it but a loopback, which the runtime brings up.
    Own,
    /// One that the agent has created, named by its file.
    Joined(PathBuf),
}

/// `count` IDs of the machine from `first` on stand for 0 and up in the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    pub first: u32,
    pub count: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> ContainerSpec {
        let group = GroupPath::new("cellwright/x").unwrap();
        ContainerSpec::new(vec!["/bin/true".into()], vec!["/packages/a".into()], group)
    }

    fn error_after(change: impl FnOnce(&mut ContainerSpec)) -> String {
        let mut spec = spec();
        change(&mut spec);
        spec.check().unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        spec().check().unwrap();
        let bind = |source: &str, target: &str| {
            let (source, target) = (source.into(), target.into());
            vec![Bind { source, target, writable: true }]
        };
        let map = Some(IdMap::shifted(IdRange { first: 1 << 30, count: 65_536 }));
        let cases = [
            (error_after(|s| s.command.clear()), "command is ``"),
            (error_after(|s| s.command[0] = "a\0b".into()), "command is `a\\0b`"),
            (error_after(|s| drop(s.env.insert("A=B".into(), String::new()))), "env is `A=B`"),
            (error_after(|s| s.cwd = "data".into()), "cwd is `data`"),
            (error_after(|s| s.cwd = "/a/../b".into()), "cwd is `/a/../b`"),
            (error_after(|s| s.layers.clear()), "layers is `none`"),
            (error_after(|s| s.layers[0] = "/a,upperdir=/etc".into()), "layer is"),
            (error_after(|s| s.layers[0] = "/a:/etc".into()), "layer is"),
            (error_after(|s| s.binds = bind("/x", "/proc/sys")), "mount target is"),
            (error_after(|s| s.binds = bind("/x", "/dev/null")), "mount target is"),
            (error_after(|s| s.binds = bind("/x", "/../etc")), "mount target is"),
            (error_after(|s| s.binds = bind("x", "/data")), "mount source is"),
            (error_after(|s| s.oom_score = 1001), "oom score is `1001`"),
            (error_after(|s| (s.users, s.user.gid) = (map, 70_000)), "user is `65534:70000`"),
        ];
        for (message, expected) in cases {
            assert!(message.starts_with(expected), "{message} / {expected}");
        }
    }

    #[test]
    fn a_working_directory_cannot_be_a_door_to_the_host() {
        for path in ["/proc/self/fd/7", "/proc", "/dev/fd/7", "/sys/fs/cgroup"] {
            assert!(error_after(|s| s.cwd = path.into()).contains("outside /proc"), "{path}");
        }
    }

    #[test]
    fn ids_are_file_names() {
        assert!(ContainerId::new("task-7_1").is_ok());
        for bad in ["", "..", "a/b", "-f", "a b", "a.b"] {
            assert!(ContainerId::new(bad).is_err(), "{bad}");
        }
    }
}
