//! Isolation of a task from its machine and its neighbours (B37, B38, X9), as its owner specifies
//! it: its root, its network, its use of resources that others leave, the folders of the machine
//! that it sees, and its secrets.
//!
//! The defaults suit most tasks: the machine's own programs as the root, the machine's network, CPU
//! that others leave but none of their memory.
//!
//! The host volumes of a machine are among its attributes, one for each folder: `volume./srv/data`
//! is `writable` or `read-only`. Rejected: a separate list in the machine's spec, which no
//! constraint could refer to and which every agent and every stored machine would have had to
//! learn.

#[cfg(feature = "schema")]
use crate::admit::MAX_PROCESSES;
use crate::constraint::{AttributeValue, Attributes};
use crate::name::{InvalidName, Token};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Most processes and threads of a task whose spec does not say.
pub const DEFAULT_PROCESSES: u32 = 1024;

/// Replaces the value of a secret wherever a spec is shown.
pub const REDACTED: &str = "(hidden)";

/// Precedes the path in the name of the attribute of a host volume.
pub const HOST_VOLUME_PREFIX: &str = "volume.";
/// Value of that attribute for a folder that tasks may write to.
pub const HOST_VOLUME_WRITABLE: &str = "writable";
/// Value of that attribute for a folder that tasks may only read.
pub const HOST_VOLUME_READ_ONLY: &str = "read-only";

/// The attribute by which a machine offers a folder, named by an absolute path, as a host volume.
///
/// # Errors
/// When the path has spaces or other characters that no attribute may have, or is too long.
pub fn host_volume_attribute(path: &str) -> Result<Token, InvalidName> {
    Token::new(&format!("{HOST_VOLUME_PREFIX}{path}"))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// That of the machine. Use of a port that was not given is seen and reported.
    #[default]
    Host,
    /// One with nothing in it: no port of the machine can be used.
    Own,
}

/// How a task is shut off. Left out: each field as stated there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Isolation {
    /// The package that is the task's file system. `None`: the machine's own programs, read-only.
    pub root: Option<Token>,
    /// Left out: host.
    pub network: Network,
    /// Whether it may use CPU that others leave, beyond its limit. Left out: true.
    pub slack_cpu: bool,
    /// Whether it may use memory that others leave, beyond its limit, and be killed first when
    /// they want it back. Left out: false.
    pub slack_ram: bool,
    /// Cores that are closed to other latency-sensitive tasks. Left out: 0.
    pub whole_cores: u32,
    /// Most processes and threads. Left out: 1024.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_PROCESSES)))]
    pub processes: u32,
    /// Folders of the machine that its operator lends to tasks. Left out: none.
    pub volumes: Vec<Volume>,
}

impl Default for Isolation {
    fn default() -> Isolation {
        Isolation {
            root: None,
            network: Network::Host,
            slack_cpu: true,
            slack_ram: false,
            whole_cores: 0,
            processes: DEFAULT_PROCESSES,
            volumes: Vec::new(),
        }
    }
}

/// A folder of the machine, seen by a task.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Volume {
    /// The path on the machine.
    pub source: String,
    /// The path that the task sees.
    pub target: String,
    /// Left out: false.
    #[serde(default)]
    pub writable: bool,
}

impl Volume {
    /// What the volume needs from the machine; the path at which the task sees it does not matter.
    #[must_use]
    pub fn host_volume(&self) -> HostVolume {
        HostVolume { source: self.source.clone(), writable: self.writable }
    }
}

/// Paths in a container that belong to the kernel: nothing is mounted there or below.
pub const KERNEL_PATHS: [&str; 3] = ["/proc", "/sys", "/dev"];
/// Folders of the machine's programs, mounted read-only: the root of a task that names no package.
pub const SYSTEM_PROGRAM_DIRS: [&str; 7] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// What programs look up in `/etc`, and nothing secret: the machine's own files, mounted read-only
/// for a task that names no package as its root.
pub const ETC_LOOKUP_PATHS: [&str; 16] = [
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/group",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/pki",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl",
];
/// Files for name resolution on the machine's network, mounted whatever a task's root is.
pub const NAME_RESOLUTION_FILES: [&str; 2] = ["/etc/hosts", "/etc/resolv.conf"];
/// What a task gets at these paths is read-only, so nothing can be mounted below either.
const READ_ONLY_MOUNTS: [&str; 5] = ["/packages", "/secrets", "/identity", "/ports", "/devices"];
/// These are filled for every task; a mount over them would hide that.
const TASK_MOUNTS: [&str; 3] = ["/work", "/alloc", "/etc"];

impl Isolation {
    /// Volumes whose target no task could see: their positions, and what is allowed instead.
    ///
    /// One volume inside another is fine if the outer has a folder to mount it on, which is not
    /// known before a machine is chosen.
    pub fn invalid_volume_targets(&self) -> impl Iterator<Item = (usize, TargetFlaw)> {
        let mut seen = BTreeSet::new();
        self.volumes.iter().enumerate().filter_map(move |(position, volume)| {
            let target = volume.target.as_str();
            let twice = if seen.insert(target) { None } else { Some(TargetFlaw::Twice) };
            twice.or_else(|| self.reserved(target)).map(|flaw| (position, flaw))
        })
    }

    fn reserved(&self, target: &str) -> Option<TargetFlaw> {
        let is_in = |places: &[&str]| ancestors(target).any(|folder| places.contains(&folder));
        if is_in(&KERNEL_PATHS) {
            return Some(TargetFlaw::Kernel);
        }
        if is_in(&READ_ONLY_MOUNTS) {
            return Some(TargetFlaw::Given);
        }
        if TASK_MOUNTS.contains(&target) {
            return Some(TargetFlaw::Filled);
        }
        if self.network == Network::Host && is_in(&NAME_RESOLUTION_FILES) {
            return Some(TargetFlaw::Names);
        }
        if self.root.is_none() && is_in(&ETC_LOOKUP_PATHS) {
            return Some(TargetFlaw::LookedUp);
        }
        (self.root.is_none() && is_in(&SYSTEM_PROGRAM_DIRS)).then_some(TargetFlaw::Programs)
    }
}

/// Why nothing may be put where a volume is to be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TargetFlaw {
    /// Another volume is there.
    Twice,
    /// The kernel's own places.
    Kernel,
    /// What the cell gives to tasks.
    Given,
    /// A folder that is filled for the task.
    Filled,
    /// How names are found on the machine's network.
    Names,
    /// What programs of the machine look up.
    LookedUp,
    /// The machine's programs.
    Programs,
}

/// A folder of the machine that a task wants to use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostVolume {
    /// The path on the machine.
    pub source: String,
    pub writable: bool,
}

impl HostVolume {
    /// Whether a machine with these attributes offers the folder, or one that contains it. The
    /// innermost of those decides: a read-only folder inside a writable one is read-only.
    #[must_use]
    pub fn is_granted(&self, attributes: &Attributes) -> bool {
        let attribute_of = |folder| attributes.get(&host_volume_attribute(folder).ok()?);
        let Some(AttributeValue::Text(how)) = ancestors(&self.source).find_map(attribute_of) else {
            return false;
        };
        how == HOST_VOLUME_WRITABLE || !self.writable && how == HOST_VOLUME_READ_ONLY
    }
}

impl fmt::Display for HostVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.writable { " for writing" } else { "" };
        write!(f, "volume {}{how}", self.source)
    }
}

/// The path itself, then every folder that contains it, up to the root.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |inner| match inner.rsplit_once('/')? {
        ("", "") => None,
        ("", _) => Some("/"),
        (outer, _) => Some(outer),
    })
}

/// A value that the agent writes into a file for the task and that is never shown.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Secret(pub String);

impl Secret {
    /// The placeholder where a spec is shown.
    #[must_use]
    pub fn redacted() -> Secret {
        Secret(REDACTED.to_owned())
    }
}

/// Keeps values out of logs.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_what_most_want() {
        let none: Isolation = serde_json::from_str("{}").unwrap();
        assert_eq!(none, Isolation::default());
        assert_eq!((none.slack_cpu, none.slack_ram, none.network), (true, false, Network::Host));
        let own: Isolation = serde_json::from_str(r#"{"network": "own"}"#).unwrap();
        assert_eq!(own, Isolation { network: Network::Own, ..Isolation::default() });
    }

    #[test]
    fn a_folder_is_lent_with_all_that_is_in_it_as_its_machine_says() {
        let machine = |all: &[(&str, &str)]| -> Attributes {
            let one = |(path, how): &(&str, &str)| {
                (host_volume_attribute(path).unwrap(), AttributeValue::Text((*how).to_owned()))
            };
            all.iter().map(one).collect()
        };
        let attributes =
            machine(&[("/srv/data", HOST_VOLUME_WRITABLE), ("/srv/models", HOST_VOLUME_READ_ONLY)]);
        let check = |source: &str, reads: bool, writes: bool| {
            for (writable, want) in [(false, reads), (true, writes)] {
                let volume = HostVolume { source: source.into(), writable };
                assert_eq!(volume.is_granted(&attributes), want, "{volume}");
            }
        };
        check("/srv/data", true, true);
        check("/srv/data/a b/c", true, true);
        check("/srv/models/large", true, false);
        check("/srv", false, false);
        check("/srv/database", false, false);
        check("/", false, false);
        let all = machine(&[("/", HOST_VOLUME_READ_ONLY), ("/srv", HOST_VOLUME_WRITABLE)]);
        let volume = |source: &str, writable| HostVolume { source: source.into(), writable };
        assert!(volume("/etc", false).is_granted(&all) && !volume("/etc", true).is_granted(&all));
        assert!(volume("/srv/x", true).is_granted(&all), "the innermost decides");
        let fixed =
            machine(&[("/srv", HOST_VOLUME_WRITABLE), ("/srv/models", HOST_VOLUME_READ_ONLY)]);
        for (source, writes) in [("/srv/x", true), ("/srv/models", false), ("/srv/models/a", false)]
        {
            assert!(volume(source, false).is_granted(&fixed), "{source}");
            assert_eq!(volume(source, true).is_granted(&fixed), writes, "{source}");
        }
        assert!(host_volume_attribute("/a b").is_err());
        assert_eq!(volume("/x", true).to_string(), "volume /x for writing");
    }

    #[test]
    fn a_folder_is_seen_where_nothing_else_is() {
        let check = |targets: &[&str], root: Option<&str>, want: Option<(usize, &str)>| {
            let volume = |target: &&str| {
                let (source, target) = ("/srv".into(), (*target).into());
                Volume { source, target, writable: false }
            };
            let volumes = targets.iter().map(volume).collect();
            let root = root.map(|root| Token::new(root).unwrap());
            let isolation = Isolation { volumes, root, ..Isolation::default() };
            let found = isolation.invalid_volume_targets().next();
            assert_eq!(found.map(|found| found.0), want.map(|want| want.0), "{targets:?}");
            let text_matches = want.is_none_or(|want| {
                found.is_some_and(|(_, flaw)| flaw.to_string().contains(want.1))
            });
            assert!(text_matches, "{targets:?}: {found:?}");
        };
        check(&["/data", "/alloc/data", "/etc/app", "/tmp", "/process", "/users"], None, None);
        check(&["/data", "/data/cache"], None, None);
        check(&["/data", "/models", "/data"], None, Some((2, "each target once")));
        for kernels in ["/proc", "/proc/sys/x", "/sys", "/dev/shm"] {
            check(&[kernels], Some("alpine"), Some((0, "outside /proc, /sys and /dev")));
        }
        for given in ["/packages", "/packages/tool", "/secrets", "/identity/x", "/ports"] {
            check(&["/data", given], None, Some((1, "outside /packages")));
        }
        for filled in ["/work", "/alloc", "/etc"] {
            check(&[filled], Some("alpine"), Some((0, "any path but /work")));
        }
        for looked_up in ["/etc/ssl", "/etc/ssl/certs", "/etc/pki", "/etc/passwd"] {
            check(&[looked_up], None, Some((0, "look up in /etc (")));
            check(&[looked_up], Some("alpine"), None);
        }
        check(&["/etc/ssl-app", "/etc/hosts.d"], None, None);
        for names in NAME_RESOLUTION_FILES {
            for root in [None, Some("alpine")] {
                check(&[names], root, Some((0, "on the machine's network")));
            }
        }
        for programs in ["/usr", "/usr/local/x", "/lib64"] {
            check(&[programs], None, Some((0, "machine's programs")));
            check(&[programs], Some("alpine"), None);
        }
    }

    #[test]
    fn names_on_a_network_of_ones_own_are_ones_own() {
        let volume = |target: &&str| Volume {
            source: "/srv".into(),
            target: (*target).into(),
            writable: false,
        };
        let volumes: Vec<Volume> = NAME_RESOLUTION_FILES.iter().map(volume).collect();
        let own = Isolation { network: Network::Own, volumes, ..Isolation::default() };
        assert!(
            own.invalid_volume_targets()
                .next()
                .is_some_and(|(_, allowed)| allowed.to_string().contains("a package"))
        );
        let root = Some(Token::new("alpine").unwrap());
        assert_eq!(Isolation { root, ..own }.invalid_volume_targets().next(), None);
    }

    #[test]
    fn a_secret_is_not_printed() {
        let secret = Secret("rosebud".into());
        assert_eq!(format!("{secret:?}"), REDACTED);
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"rosebud\"");
    }
}
