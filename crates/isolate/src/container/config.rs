//! The OCI config of a container (`config.json`). Limits are not in it: the cgroup has them
//! already, and the runtime is only given the cgroup's path.

use super::bundle::BundlePaths;
use super::device;
use super::runtime::Exec;
use super::seccomp::{self, SeccompPolicy};
use super::spec::{ContainerSpec, Network, RlimitKind};
use super::users::Extent;
use crate::Error;
use oci_spec::OciSpecError;
use oci_spec::runtime::{
    Capabilities, Linux, LinuxBuilder, LinuxCapabilities, LinuxCapabilitiesBuilder,
    LinuxDeviceCgroup, LinuxDeviceCgroupBuilder, LinuxDeviceType, LinuxIdMapping,
    LinuxIdMappingBuilder, LinuxNamespace, LinuxNamespaceBuilder, LinuxNamespaceType,
    LinuxResourcesBuilder, Mount, MountBuilder, PosixRlimit, PosixRlimitBuilder, PosixRlimitType,
    Process, ProcessBuilder, RootBuilder, Spec, SpecBuilder, UserBuilder,
};
use std::path::{Path, PathBuf};

/// Files that would show a task the machine's hardware and its neighbours.
const MASKED_PATHS: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

const READ_ONLY_PATHS: &[&str] =
    &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Size of shared memory; it is charged to the task like any other.
const SHM_SIZE: &str = "size=67108864";

/// The OCI config of `spec` with its parts at `paths`.
///
/// # Errors
/// When the spec does not pass [`ContainerSpec::check`].
pub(super) fn description(spec: &ContainerSpec, paths: &BundlePaths) -> Result<Spec, Error> {
    spec.check()?;
    let root = paths.root.as_path();
    let built = SpecBuilder::default()
        .version("1.0.2")
        .hostname(spec.hostname.as_str())
        .root(RootBuilder::default().path(root).readonly(!spec.writable_root).build()?)
        .process(process(spec)?)
        .mounts(mounts(spec, paths)?)
        .linux(linux(spec, &paths.users)?)
        .build()?;
    Ok(built)
}

fn process(spec: &ContainerSpec) -> Result<Process, OciSpecError> {
    let env: Vec<String> = spec.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let user = UserBuilder::default()
        .uid(spec.user.uid)
        .gid(spec.user.gid)
        .additional_gids(spec.user.groups.clone())
        .umask(0o022u32)
        .build()?;
    ProcessBuilder::default()
        .terminal(false)
        .user(user)
        .args(spec.command.clone())
        .env(env)
        .cwd(spec.cwd.clone())
        .capabilities(no_capabilities()?)
        .rlimits(rlimits(spec)?)
        .no_new_privileges(true)
        .oom_score_adj(spec.oom_score)
        .build()
}

impl Exec {
    /// The process description for the runtime: with as few privileges as the task itself has.
    /// Resource limits are those of the process that starts the runtime.
    ///
    /// # Errors
    /// When it cannot be written in the OCI format.
    pub fn description(&self) -> Result<String, Error> {
        let env: Vec<String> =
            self.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let user = UserBuilder::default().uid(self.uid).gid(self.gid).umask(0o022u32).build()?;
        let process = ProcessBuilder::default()
            .terminal(self.terminal)
            .user(user)
            .args(self.command.clone())
            .env(env)
            .cwd(self.cwd.clone())
            .capabilities(no_capabilities()?)
            .rlimits(Vec::new())
            .no_new_privileges(true)
            .build()?;
        serde_json::to_string(&process).map_err(|why| OciSpecError::from(why).into())
    }
}

fn no_capabilities() -> Result<LinuxCapabilities, OciSpecError> {
    LinuxCapabilitiesBuilder::default()
        .bounding(Capabilities::default())
        .effective(Capabilities::default())
        .inheritable(Capabilities::default())
        .permitted(Capabilities::default())
        .ambient(Capabilities::default())
        .build()
}

fn rlimits(spec: &ContainerSpec) -> Result<Vec<PosixRlimit>, OciSpecError> {
    let rlimit_of = |limit: &super::spec::Rlimit| {
        let kind = match limit.kind {
            RlimitKind::CoreSize => PosixRlimitType::RlimitCore,
            RlimitKind::OpenFiles => PosixRlimitType::RlimitNofile,
            RlimitKind::FileSize => PosixRlimitType::RlimitFsize,
            RlimitKind::LockedMemory => PosixRlimitType::RlimitMemlock,
            RlimitKind::Stack => PosixRlimitType::RlimitStack,
        };
        PosixRlimitBuilder::default().typ(kind).soft(limit.soft).hard(limit.hard).build()
    };
    spec.rlimits.iter().map(rlimit_of).collect()
}

fn mount(target: &Path, kind: &str, source: &Path, options: &[&str]) -> Result<Mount, Error> {
    let options: Vec<String> = options.iter().map(ToString::to_string).collect();
    let built = MountBuilder::default()
        .destination(target)
        .typ(kind)
        .source(source)
        .options(options)
        .build()?;
    Ok(built)
}

fn mounts(spec: &ContainerSpec, paths: &BundlePaths) -> Result<Vec<Mount>, Error> {
    let kernel = |target: &str, kind: &str, options: &[&str]| {
        mount(Path::new(target), kind, Path::new(kind), options)
    };
    let mut list = vec![
        kernel("/proc", "proc", &["nosuid", "noexec", "nodev"])?,
        kernel("/dev", "tmpfs", &["nosuid", "noexec", "strictatime", "mode=755", "size=65536"])?,
        kernel("/dev/pts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666"])?,
        kernel("/dev/shm", "tmpfs", &["nosuid", "noexec", "nodev", "mode=1777", SHM_SIZE])?,
        kernel("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"])?,
    ];
    // The kernel shows a network's entries in /sys only to the owners of that network.
    if spec.users.is_none() || spec.network == Network::Own {
        list.push(kernel("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"])?);
    }
    for scratch in &spec.scratch {
        let size = format!("size={}", scratch.bytes);
        let options = ["nosuid", "nodev", "mode=1777", size.as_str()];
        list.push(mount(&scratch.target, "tmpfs", Path::new("tmpfs"), &options)?);
    }
    for bind in &spec.binds {
        let access = if bind.writable { "rw" } else { "ro" };
        // Not what is mounted below the source: these options would not apply there.
        let options = ["bind", "rprivate", "nosuid", "nodev", access];
        list.push(mount(&bind.target, "bind", &bind.source, &options)?);
    }
    for (number, volume) in spec.host_volumes.iter().enumerate() {
        let access = if volume.writable { "rw" } else { "ro" };
        let mut options = vec!["bind", "rprivate", "nosuid", "nodev", access];
        options.extend(volume.folder.mount_restrictions());
        list.push(mount(&volume.target, "bind", &paths.host_volume(number), &options)?);
    }
    for (number, node) in spec.devices.iter().enumerate() {
        let source = device::node_path(&paths.nodes, number);
        let options = ["bind", "rprivate", "nosuid", "noexec", "rw"];
        list.push(mount(&node.target, "bind", &source, &options)?);
    }
    // Outer targets first, or an outer mount would cover an inner one.
    list.sort_by_key(|mount| mount.destination().components().count());
    Ok(list)
}

fn linux(spec: &ContainerSpec, users: &Path) -> Result<Linux, Error> {
    let resources = LinuxResourcesBuilder::default().devices(device_rules(spec)?).build()?;
    let texts = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<String>>();
    let mut linux = LinuxBuilder::default()
        .cgroups_path(PathBuf::from(format!("/{}", spec.group)))
        .resources(resources)
        .namespaces(namespaces(spec, users)?)
        .seccomp(seccomp::profile(seccomp_policy(spec))?)
        .masked_paths(texts(MASKED_PATHS))
        .readonly_paths(texts(READ_ONLY_PATHS));
    if let Some(map) = spec.users {
        linux = linux.uid_mappings(mapping(&map.users())?).gid_mappings(mapping(&map.groups())?);
    }
    Ok(linux.build()?)
}

/// Tasks with host volumes that run as the same account of the machine are the same user. Two of
/// them on one network could otherwise listen on one port.
fn seccomp_policy(spec: &ContainerSpec) -> SeccompPolicy {
    let shared_user = spec.users.is_none_or(|map| map.kept.is_some());
    let shared_ports = !shared_user || spec.network == Network::Own;
    SeccompPolicy { set_id_files: spec.set_id_files, shared_ports }
}

/// No device but the default ones, which the runtime adds, and those of the spec.
fn device_rules(spec: &ContainerSpec) -> Result<Vec<LinuxDeviceCgroup>, OciSpecError> {
    let none = LinuxDeviceCgroupBuilder::default().allow(false).access("rwm").build();
    let assigned = spec.devices.iter().map(|node| {
        let kind = if node.is_block { LinuxDeviceType::B } else { LinuxDeviceType::C };
        LinuxDeviceCgroupBuilder::default()
            .allow(true)
            .typ(kind)
            .major(i64::from(node.major))
            .minor(i64::from(node.minor))
            .access("rw")
            .build()
    });
    std::iter::once(none).chain(assigned).collect()
}

fn mapping(extents: &[Extent]) -> Result<Vec<LinuxIdMapping>, OciSpecError> {
    let mapping_of = |extent: &Extent| {
        let builder = LinuxIdMappingBuilder::default();
        builder.container_id(extent.inside).host_id(extent.outside).size(extent.count).build()
    };
    extents.iter().map(mapping_of).collect()
}

fn namespaces(spec: &ContainerSpec, users: &Path) -> Result<Vec<LinuxNamespace>, OciSpecError> {
    let new = |kind| LinuxNamespaceBuilder::default().typ(kind).build();
    let mut list = vec![
        new(LinuxNamespaceType::Pid)?,
        new(LinuxNamespaceType::Mount)?,
        new(LinuxNamespaceType::Ipc)?,
        new(LinuxNamespaceType::Uts)?,
        new(LinuxNamespaceType::Cgroup)?,
    ];
    match &spec.network {
        Network::Host => {}
        Network::Own => list.push(new(LinuxNamespaceType::Network)?),
        Network::Joined(path) => {
            let builder = LinuxNamespaceBuilder::default().typ(LinuxNamespaceType::Network);
            list.push(builder.path(path.as_path()).build()?);
        }
    }
    if spec.users.is_some() {
        let builder = LinuxNamespaceBuilder::default().typ(LinuxNamespaceType::User);
        list.push(builder.path(users).build()?);
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::GroupPath;
    use crate::container::{
        Bind, DeviceNode, HostVolumeMount, IdMap, IdRange, PinnedHostPath, Scratch,
    };
    use serde_json::{Value, json};

    fn spec() -> ContainerSpec {
        let group = GroupPath::new("cellwright/x").unwrap();
        ContainerSpec::new(vec!["/bin/true".into()], vec!["/packages/a".into()], group)
    }

    fn written(spec: &ContainerSpec) -> Value {
        let paths = BundlePaths {
            root: "/run/x/root".into(),
            nodes: "/run/x/nodes".into(),
            host_volumes: "/run/x/lent".into(),
            users: "/run/x/users".into(),
        };
        serde_json::to_value(description(spec, &paths).unwrap()).unwrap()
    }

    fn kinds(value: &Value) -> Vec<&str> {
        let list = value["linux"]["namespaces"].as_array().unwrap();
        list.iter().map(|namespace| namespace["type"].as_str().unwrap()).collect()
    }

    #[test]
    fn the_default_is_the_strictest() {
        let value = written(&spec());
        let process = &value["process"];
        assert_eq!(process["noNewPrivileges"], json!(true));
        assert_eq!(
            (&process["user"]["uid"], &process["user"]["gid"]),
            (&json!(65534), &json!(65534))
        );
        for set in ["bounding", "effective", "inheritable", "permitted", "ambient"] {
            assert_eq!(process["capabilities"][set], json!([]), "{set}");
        }
        let core = json!([{"type": "RLIMIT_CORE", "soft": 0, "hard": 0}]);
        assert_eq!(process["rlimits"], core);
        assert_eq!(value["root"], json!({"path": "/run/x/root", "readonly": true}));
        assert_eq!(kinds(&value), ["pid", "mount", "ipc", "uts", "cgroup", "network"]);
        let linux = &value["linux"];
        assert_eq!(linux["cgroupsPath"], json!("/cellwright/x"));
        let devices = json!({"devices": [{"allow": false, "access": "rwm"}]});
        assert_eq!(linux["resources"], devices);
        assert!(linux["maskedPaths"].as_array().unwrap().contains(&json!("/proc/kcore")));
        assert!(linux["readonlyPaths"].as_array().unwrap().contains(&json!("/proc/sys")));
    }

    #[test]
    fn a_device_that_is_lent_is_seen_and_may_be_opened_and_no_other() {
        let mut container_spec = spec();
        let target = "/dev/dri/card0".into();
        container_spec.devices = vec![DeviceNode { target, is_block: false, major: 226, minor: 7 }];
        let value = written(&container_spec);
        let rules = &value["linux"]["resources"]["devices"];
        let rule = json!({"allow": true, "type": "c", "major": 226, "minor": 7, "access": "rw"});
        assert_eq!(rules, &json!([{"allow": false, "access": "rwm"}, rule]));
        let mounts = value["mounts"].as_array().unwrap();
        let seen = mounts.iter().find(|mount| mount["destination"] == "/dev/dri/card0").unwrap();
        assert_eq!(seen["source"], "/run/x/nodes/0");
        assert!(!seen["options"].as_array().unwrap().contains(&json!("nodev")));
    }

    #[test]
    fn networks_and_users_as_asked() {
        let mut container_spec = spec();
        container_spec.network = Network::Host;
        assert!(!kinds(&written(&container_spec)).contains(&"network"));
        container_spec.network = Network::Joined("/run/netns/t1".into());
        let range = IdRange { first: 100_000, count: 65_536 };
        container_spec.users = Some(IdMap::shifted(range));
        let value = written(&container_spec);
        let joined = json!({"type": "network", "path": "/run/netns/t1"});
        assert!(value["linux"]["namespaces"].as_array().unwrap().contains(&joined));
        let pinned = json!({"type": "user", "path": "/run/x/users"});
        assert!(value["linux"]["namespaces"].as_array().unwrap().contains(&pinned));
        let map = json!([{"containerID": 0, "hostID": 100_000, "size": 65_536}]);
        assert_eq!((&value["linux"]["uidMappings"], &value["linux"]["gidMappings"]), (&map, &map));
    }

    #[test]
    fn what_is_lent_is_mounted_from_a_place_that_no_task_gets_to() {
        let mut container_spec = spec();
        let folder = PinnedHostPath::open(Path::new("/usr")).unwrap();
        container_spec.host_volumes =
            vec![HostVolumeMount { folder, target: "/data".into(), writable: false }];
        container_spec.set_id_files = false;
        let value = written(&container_spec);
        let mounts = value["mounts"].as_array().unwrap();
        let seen = mounts.iter().find(|mount| mount["destination"] == "/data").unwrap();
        assert_eq!(seen["source"], "/run/x/lent/0");
        let options = seen["options"].as_array().unwrap();
        assert!(options.contains(&json!("ro")) && options.contains(&json!("nosuid")));
        let rules = value["linux"]["seccomp"]["syscalls"].as_array().unwrap();
        let chmod = |value: &Value| value["names"].as_array().unwrap().contains(&json!("chmod"));
        assert!(rules.iter().any(chmod));
        let rules = written(&spec());
        assert!(!rules["linux"]["seccomp"]["syscalls"].as_array().unwrap().iter().any(chmod));
    }

    #[test]
    fn ports_are_shared_only_by_who_is_a_user_of_its_own_or_has_a_network_of_its_own() {
        let range = IdRange { first: 100_000, count: 65_536 };
        let own = IdMap::shifted(range);
        let shared_map = IdMap { range, kept: Some((65_534, 65_534)) };
        for (users, network, may) in [
            (Some(own), Network::Host, true),
            (Some(shared_map), Network::Host, false),
            (Some(shared_map), Network::Joined("/run/netns/t1".into()), false),
            (Some(shared_map), Network::Own, true),
            (None, Network::Host, false),
        ] {
            let value = written(&ContainerSpec { users, network, ..spec() });
            let rules = value["linux"]["seccomp"]["syscalls"].as_array().unwrap();
            let names = |rule: &Value| rule["names"].as_array().unwrap().clone();
            let is_denied = rules.iter().any(|rule| names(rule).contains(&json!("setsockopt")));
            assert_eq!(is_denied, !may, "{users:?}");
        }
    }

    #[test]
    fn outer_mounts_come_before_inner_ones() {
        let mut container_spec = spec();
        container_spec.scratch = vec![Scratch { target: "/data/tmp".into(), bytes: 4096 }];
        let (source, target) = ("/srv/data".into(), "/data".into());
        container_spec.binds = vec![Bind { source, target, writable: false }];
        let value = written(&container_spec);
        let mounts = value["mounts"].as_array().unwrap();
        let at = |target: &str| mounts.iter().position(|m| m["destination"] == target).unwrap();
        assert!(at("/data") < at("/data/tmp") && at("/dev") < at("/dev/shm"));
        let options = mounts[at("/data")]["options"].as_array().unwrap();
        assert!(options.contains(&json!("ro")) && options.contains(&json!("nosuid")));
    }
}
