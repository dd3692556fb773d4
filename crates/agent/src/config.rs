//! The agent's configuration: a TOML file, written by `cell agent join` and by people. A value that
//! is left out is detected on the machine or has the default stated at the field; an unknown key is
//! an error.

use crate::calibration::CpuFactorSource;
use crate::id_ranges::IDS_PER_RANGE;
use crate::listen::DEFAULT_PORT;
use crate::shim::protocol::LogSettings;
use crate::state_dir::Retention;
use cellwright_cell::constraint::Attributes;
use cellwright_cell::isolation::{HOST_VOLUME_PREFIX, host_volume_attribute};
use cellwright_cell::label::Labels;
use cellwright_cell::machine::PortRange;
use cellwright_cell::name::{MAX_TOKEN, Name, Token};
use cellwright_cell::named::NamedAmount;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::MAX_LIST;
use serde::Deserialize;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{}: {why}", path.display())]
    Io { path: PathBuf, why: io::Error },
    #[error("{0}")]
    Text(String),
    #[error("{field}: {value}; allowed: {allowed}")]
    Field { field: String, value: String, allowed: String },
    #[error("this machine: {0}")]
    Machine(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The machine's name in the cell. Left out: the host's.
    pub name: Option<Name>,
    /// Where the agent keeps its state and its tasks' folders.
    #[serde(default = "default_data")]
    pub data_dir: PathBuf,
    /// The file with masters, authority, certificate and key, as `cell agent join` writes it.
    pub identity: Option<PathBuf>,
    /// Where masters and other agents dial this one. Left out: port 7071 of `address`, or of all
    /// addresses when there is none; some port of loopback in a cell without identities.
    #[serde(default)]
    pub listen: Listen,
    /// Where tasks here are reached from other machines. Left out: they have no names.
    pub address: Option<IpAddr>,
    /// How tasks are run. Left out: in containers where they work, else as plain processes.
    #[serde(default)]
    pub driver: DriverChoice,
    /// The container runtime. Left out: runc, as it is found.
    #[serde(default = "default_runtime")]
    pub runtime: PathBuf,
    /// Accounts of the machine that jobs may have their tasks run as, where tasks are accounts of
    /// the machine: as plain processes of an agent that is root, and in containers with host
    /// volumes. Left out: `nobody` alone.
    #[serde(default)]
    pub users: Vec<String>,
    /// Folders of the machine that jobs may mount into their tasks. Left out: none.
    #[serde(default)]
    pub volumes: Vec<HostVolume>,
    /// Whether devices are detected. Left out: yes.
    #[serde(default = "yes")]
    pub find_devices: bool,
    /// Devices of the machine that jobs may ask for, beside those that are detected. Left out:
    /// none.
    #[serde(default)]
    pub devices: Vec<DeviceConfig>,
    /// Bytes that packages may take on disk. Left out: 10 GiB.
    #[serde(default = "default_package_bytes")]
    pub package_bytes: u64,
    /// Left out: what the kernel says.
    pub capacity: Option<Resources>,
    /// How many cores of the cell one CPU of this machine is worth. Left out: 1.
    #[serde(default)]
    pub cpu_factor: CpuFactorSource,
    /// Reserved for the system. Left out: a little of each, see `default_reserve`.
    pub reserve: Option<Resources>,
    pub rack: Option<Token>,
    pub power: Option<Token>,
    #[serde(default)]
    pub labels: Labels,
    #[serde(default)]
    pub attributes: Attributes,
    #[serde(default)]
    pub named: Vec<NamedAmount>,
    /// Left out: 20000 to 31999.
    pub ports: Option<PortRange>,
    #[serde(default)]
    pub logs: Logs,
    #[serde(default)]
    pub ended: RetentionConfig,
    #[serde(default)]
    pub control: ControlConfig,
    #[serde(default)]
    pub id_ranges: IdRangeConfig,
    #[serde(default)]
    pub processes: ProcessLimits,
    #[serde(default)]
    pub counting: DiskScanLimits,
}

/// How tasks are run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverChoice {
    #[default]
    Auto,
    Container,
    Process,
}

/// A folder that the operator offers to tasks: its path, or `{ path = "/srv", writable = false }`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "toml::Value")]
pub struct HostVolume {
    pub path: PathBuf,
    /// Left out: true.
    pub writable: bool,
}

impl TryFrom<toml::Value> for HostVolume {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<HostVolume, String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            path: PathBuf,
            #[serde(default = "yes")]
            writable: bool,
        }
        let wrong = |why: String| {
            format!("volumes: {why}; allowed: a path, or {{ path = \"/srv\", writable = false }}")
        };
        let (path, writable) = match value {
            toml::Value::String(path) => (path.into(), true),
            toml::Value::Table(_) => {
                let table: Result<Table, _> = value.try_into();
                let table = table.map_err(|error| wrong(error.message().to_owned()))?;
                (table.path, table.writable)
            }
            other => return Err(wrong(other.to_string())),
        };
        // Without doubled and trailing slashes, as job specs spell it.
        Ok(HostVolume { path: path.components().collect(), writable })
    }
}

/// A device that the operator configures by hand.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// Its kind: `gpu`, `kvm`.
    pub kind: Token,
    /// Left out: `generic`.
    pub model: Option<Token>,
    /// Its ID for its users. Left out: how many of its kind come before it.
    pub id: Option<Token>,
    /// Paths of its nodes on the machine, its own first. Left out: none.
    #[serde(default)]
    pub nodes: Vec<PathBuf>,
}

/// Where an agent can be dialled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Listen {
    #[default]
    Auto,
    Disabled,
    Address(SocketAddr),
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Listen, String> {
        match text.parse() {
            _ if text == "off" => Ok(Listen::Disabled),
            Ok(address) => Ok(Listen::Address(address)),
            Err(_) => Err(format!("listen: {text:?}; allowed: ADDRESS:PORT, or off")),
        }
    }
}

/// How much of a task's output is kept, of each of its two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Logs {
    pub file_bytes: u64,
    pub files: u32,
    /// Bytes a second.
    pub rate: u64,
}

impl Default for Logs {
    fn default() -> Logs {
        Logs { file_bytes: 10 << 20, files: 3, rate: 4 << 20 }
    }
}

/// How long, and how much, of ended attempts is retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionConfig {
    pub seconds: u64,
    pub bytes: u64,
}

impl Default for RetentionConfig {
    fn default() -> RetentionConfig {
        RetentionConfig { seconds: 24 * 3600, bytes: 1 << 30 }
    }
}

/// How resources are shared out on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ControlConfig {
    /// How long the machine is short, although tasks over their reservations are throttled, before
    /// the masters are asked for an eviction; and how long it must be well before they place more
    /// on it.
    pub pressure_eviction_seconds: u64,
}

impl Default for ControlConfig {
    fn default() -> ControlConfig {
        ControlConfig { pressure_eviction_seconds: 60 }
    }
}

/// Numbers of users and groups that tasks have, 65,536 for each task at a time, where the agent is
/// root. No other account of the machine may have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IdRangeConfig {
    /// The first number of the first range.
    pub first: u32,
    /// How many ranges: the most tasks at once.
    pub count: u32,
}

impl Default for IdRangeConfig {
    /// Beyond the numbers that accounts and other tools use: directory services give numbers up to
    /// 2,000,200,000 (sssd), and many programs take none from 2^31 on.
    fn default() -> IdRangeConfig {
        IdRangeConfig { first: 0x7740_0000, count: 2240 }
    }
}

/// Most processes and threads, whatever jobs ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessLimits {
    /// Of all tasks together. Left out: half of what the kernel allows.
    pub all: Option<u64>,
    /// Of one task. Left out: a quarter of `all`.
    pub task: Option<u64>,
}

impl ProcessLimits {
    /// Most of all tasks together, and most of one, on a kernel that allows `most`.
    #[must_use]
    pub fn ceilings(&self, most: u64) -> (u64, u64) {
        let all = self.all.unwrap_or(most / 2).max(1);
        (all, self.task.unwrap_or(all / 4).clamp(1, all))
    }
}

/// How much of what a task has on disk is counted: with more files the task counts as over its disk
/// limit, if it has one. A task can create files faster than they can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DiskScanLimits {
    /// Files and folders.
    pub files: u64,
    /// Open files and mappings of all its processes that are inspected in one pass.
    pub open_files: usize,
}

impl Default for DiskScanLimits {
    fn default() -> DiskScanLimits {
        DiskScanLimits { files: 100_000, open_files: 262_144 }
    }
}

/// The end of a new file: how much of the machine tasks may have, whatever jobs ask for.
const TEMPLATE_LIMITS: &str = "\
     # Numbers of users and groups that are tasks', 65536 for each, and nobody else's.\n\
     # id_ranges = { first = 2000683008, count = 2240 }\n\
     \n\
     # Most processes and threads; left out, half of the kernel's, a quarter of that.\n\
     # processes = { all = 16384, task = 4096 }\n\
     \n\
     # Files of a task that are counted: with more it is over its limit of disk, if it has\n\
     # one. Open ones that are looked at in one go; nobody may have 32 times as many.\n\
     # counting = { files = 100000, open_files = 262144 }\n";

/// The longest that `pressure_eviction_seconds` may be.
const MAX_PRESSURE_EVICTION_SECONDS: u64 = 24 * 3600;

fn yes() -> bool {
    true
}

fn default_runtime() -> PathBuf {
    "runc".into()
}

fn default_package_bytes() -> u64 {
    10 << 30
}

fn default_data() -> PathBuf {
    "/var/lib/cellwright/agent".into()
}

impl Config {
    /// The same, with these host volumes added.
    ///
    /// # Errors
    /// When one of them cannot be advertised to masters, or is configured twice in different ways.
    pub fn with_host_volumes(mut self, volumes: Vec<HostVolume>) -> Result<Config, ConfigError> {
        self.volumes.extend(volumes);
        check_volumes(&self)?;
        Ok(self)
    }

    /// # Errors
    /// When it is not TOML, or has an invalid value.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let config: Config =
            toml::from_str(text).map_err(|error| ConfigError::Text(error.to_string()))?;
        let least = [
            ("logs.file_bytes", config.logs.file_bytes, 4096),
            ("logs.files", u64::from(config.logs.files), 1),
            ("logs.rate", config.logs.rate, 1),
            ("counting.files", config.counting.files, 1000),
            ("counting.open_files", config.counting.open_files as u64, 1000),
        ];
        for (field, value, least) in least {
            if value < least {
                let allowed = format!("{least} or more");
                return Err(ConfigError::Field {
                    field: field.into(),
                    value: value.to_string(),
                    allowed,
                });
            }
        }
        check_volumes(&config)?;
        check_ids(config.id_ranges)?;
        let none = |most: Option<u64>| most == Some(0);
        if none(config.processes.all) || none(config.processes.task) {
            return Err(ConfigError::Field {
                field: "processes".into(),
                value: "0".into(),
                allowed: "1 or more".into(),
            });
        }
        let seconds = config.control.pressure_eviction_seconds;
        if !(1..=MAX_PRESSURE_EVICTION_SECONDS).contains(&seconds) {
            return Err(ConfigError::Field {
                field: "control.pressure_eviction_seconds".into(),
                value: seconds.to_string(),
                allowed: format!("1 to {MAX_PRESSURE_EVICTION_SECONDS}"),
            });
        }
        if let (Listen::Address(address), None) = (config.listen, &config.identity)
            && !address.ip().is_loopback()
        {
            return Err(ConfigError::Field {
                field: "listen".into(),
                value: address.to_string(),
                allowed: "a loopback address: without `identity`, whoever reaches it may read and \
                          run commands"
                    .into(),
            });
        }
        Ok(config)
    }

    /// # Errors
    /// When it cannot be read, or has an invalid value.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|why| ConfigError::Io { path: path.to_owned(), why })?;
        Config::parse(&text)
    }

    /// A new file, for people to change.
    #[must_use]
    pub fn template(name: &Name, identity: &Path) -> String {
        let text = |value: &str| toml::Value::String(value.to_owned()).to_string();
        format!(
            "# Configuration of a cellwright agent. Amounts are thousandths of cores, bytes, and\n\
             # bytes a second. A key that is left out has the value shown here.\n\
             \n\
             # The machine's name in the cell, as in its certificate.\n\
             name = {}\n\
             \n\
             # Masters, authority, certificate and key.\n\
             identity = {}\n\
             \n\
             # Where the agent keeps its state and its tasks' folders.\n\
             # data_dir = {}\n\
             \n\
             # Where tasks here are reached from other machines; without it they have no names.\n\
             # address = \"10.0.0.7\"\n\
             \n\
             # Failure domains, and what jobs can ask for.\n\
             # rack = \"r1\"\n\
             # power = \"p1\"\n\
             # labels = {{ tier = \"front\" }}\n\
             # attributes = {{ ssd = {{ integer = 1 }} }}\n\
             \n\
             # Where masters and other agents dial this one (`cell logs`, `cell exec`, packages):\n\
             # ADDRESS:PORT, or off. Left out: port 7071 of `address`, or of all addresses.\n\
             # listen = \"0.0.0.0:7071\"\n\
             \n\
             # Kept for the system, of what the machine has; left out, a little of each.\n\
             # reserve = {{ cpu = 100, ram = 268435456, disk = 0 }}\n\
             \n\
             # Cores of the cell that one CPU of this machine is worth, as 1.25, or \"measured\".\n\
             # cpu_factor = 1\n\
             \n\
             # How tasks are run: \"container\", \"process\", or the best that works (\"auto\").\n\
             # driver = \"auto\"\n\
             # runtime = \"runc\"\n\
             \n\
             # Accounts of this machine that jobs may name as their `user`, where tasks are plain\n\
             # processes or borrow volumes; without them all such tasks are `nobody`.\n\
             # users = []\n\
             \n\
             # Folders of this machine that jobs may have their tasks see, for writing too unless\n\
             # it says otherwise: [\"/srv/data\", {{ path = \"/opt\", writable = false }}].\n\
             # volumes = []\n\
             \n\
             # Devices of this machine that jobs may ask for, beside GPUs, which are found.\n\
             # find_devices = true\n\
             # devices = [{{ kind = \"kvm\", nodes = [\"/dev/kvm\"] }}]\n\
             \n\
             # Bytes that packages may take on disk.\n\
             # package_bytes = 10737418240\n\
             \n\
             # Of each task's output: bytes of a file, files, and bytes a second.\n\
             # logs = {{ file_bytes = 10485760, files = 3, rate = 4194304 }}\n\
             \n\
             # How long and how much of attempts that are over is kept.\n\
             # ended = {{ seconds = 86400, bytes = 1073741824 }}\n\
             \n\
             # How long production goes short of CPU or disk rate, with all others held back,\n\
             # before the masters are asked to move one of them elsewhere.\n\
             # control = {{ pressure_eviction_seconds = 60 }}\n\
             \n\
             {TEMPLATE_LIMITS}",
            text(name.as_str()),
            text(&identity.display().to_string()),
            text(&default_data().display().to_string()),
        )
    }

    /// The address to listen on, if any.
    #[must_use]
    pub fn listen_address(&self) -> Option<SocketAddr> {
        match (self.listen, &self.identity) {
            (Listen::Disabled, _) => None,
            (Listen::Address(address), _) => Some(address),
            (Listen::Auto, None) => Some((Ipv4Addr::LOCALHOST, 0).into()),
            (Listen::Auto, Some(_)) => {
                let all = Ipv4Addr::UNSPECIFIED.into();
                Some((self.address.unwrap_or(all), DEFAULT_PORT).into())
            }
        }
    }

    #[must_use]
    pub fn log_settings(&self) -> LogSettings {
        let Logs { file_bytes, files, rate } = self.logs;
        LogSettings { file_bytes, files, rate }
    }

    #[must_use]
    pub fn retention(&self) -> Retention {
        Retention { time: Duration::from_secs(self.ended.seconds), bytes: self.ended.bytes }
    }
}

/// Beyond the numbers that a package can name, and within those that the kernel has: the last one
/// stands for none.
fn check_ids(ranges: IdRangeConfig) -> Result<(), ConfigError> {
    let end = u64::from(ranges.first) + u64::from(ranges.count) * u64::from(IDS_PER_RANGE);
    // Agents of one machine recognise each other's ranges by their first numbers: those of two
    // agents are the same or have nothing in common.
    let is_aligned = ranges.first.is_multiple_of(IDS_PER_RANGE);
    if ranges.first >= IDS_PER_RANGE && is_aligned && ranges.count > 0 && end <= u64::from(u32::MAX)
    {
        return Ok(());
    }
    Err(ConfigError::Field {
        field: "id_ranges".into(),
        value: format!("{} ranges from {} on", ranges.count, ranges.first),
        allowed: format!(
            "1 range or more of {IDS_PER_RANGE} numbers each, from a multiple of {IDS_PER_RANGE} \
             to 4294967294"
        ),
    })
}

/// A host volume is advertised to masters as an attribute with its path in the name.
fn check_volumes(config: &Config) -> Result<(), ConfigError> {
    let wrong = |field: &str, value: String, allowed: String| {
        Err(ConfigError::Field { field: field.into(), value, allowed })
    };
    if config.volumes.len() > MAX_LIST {
        let count = config.volumes.len().to_string();
        return wrong("volumes", count, format!("at most {MAX_LIST}"));
    }
    let is_nameable = |volume: &&HostVolume| {
        let path = volume.path.to_str().filter(|_| volume.path.is_absolute());
        path.is_some_and(|path| host_volume_attribute(path).is_ok())
    };
    if let Some(volume) = config.volumes.iter().find(|volume| !is_nameable(volume)) {
        let most = MAX_TOKEN - HOST_VOLUME_PREFIX.len();
        let allowed = format!("absolute paths of at most {most} ASCII characters, without spaces");
        return wrong("volumes", volume.path.display().to_string(), allowed);
    }
    let differs = |one: &HostVolume, other: &HostVolume| {
        one.path == other.path && one.writable != other.writable
    };
    let twice = |volume: &&HostVolume| config.volumes.iter().any(|other| differs(volume, other));
    if let Some(volume) = config.volumes.iter().find(twice) {
        let allowed = "each path either for writing or for reading alone, not both";
        return wrong("volumes", volume.path.display().to_string(), allowed.into());
    }
    let is_ours = |name: &&Token| {
        name.as_str().strip_prefix(HOST_VOLUME_PREFIX).is_some_and(|path| path.starts_with('/'))
    };
    match config.attributes.keys().find(is_ours) {
        Some(name) => {
            let allowed = "other names; a folder is lent by its path in `volumes`";
            wrong("attributes", name.to_string(), allowed.into())
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_lent_by_paths_that_masters_can_be_told() {
        let volumes_of = |text: &str| Config::parse(text).map(|config| config.volumes);
        let both = "volumes = [\"/srv//data/\", { path = \"/opt\", writable = false }]";
        let volume = |path: &str, writable| HostVolume { path: path.into(), writable };
        assert_eq!(volumes_of(both).unwrap(), [volume("/srv/data", true), volume("/opt", false)]);
        for (text, says) in [
            ("volumes = [\"srv\"]", "volumes: srv; allowed: absolute paths of at most 121"),
            ("volumes = [\"/a b\"]", "volumes: /a b; allowed: absolute paths"),
            ("volumes = [7]", "volumes: 7; allowed: a path, or { path"),
            (
                "volumes = [\"/a\", { path = \"/a/\", writable = false }]",
                "volumes: /a; allowed: each path either for writing",
            ),
            ("volumes = [{ path = \"/a\", write = true }]", "unknown field `write`"),
            ("attributes = { \"volume./a\" = { integer = 1 } }", "attributes: volume./a; allowed"),
        ] {
            let error = volumes_of(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        let many = vec!["\"/a\""; 65].join(", ");
        assert!(volumes_of(&format!("volumes = [{many}]")).is_err());
        assert!(volumes_of("attributes = { \"volume.size\" = { integer = 1 } }").is_ok());
    }

    #[test]
    fn the_template_says_what_the_defaults_are() {
        let name = Name::new("m7").unwrap();
        let text = Config::template(&name, Path::new("/etc/x"));
        let plain = Config::parse(&text).unwrap();
        assert_eq!(
            (plain.name.clone(), plain.identity.clone()),
            (Some(name), Some("/etc/x".into()))
        );
        let is_setting = |line: &str| {
            let keys = [
                "data_dir",
                "logs",
                "ended",
                "control",
                "driver",
                "runtime",
                "users",
                "volumes",
                "find_devices",
                "package_bytes",
                "id_ranges",
            ];
            keys.iter().any(|key| line.starts_with(key))
        };
        let lines = text.lines().map(|line| match line.strip_prefix("# ") {
            Some(rest) if is_setting(rest) && rest.contains(" = ") => rest,
            _ => line,
        });
        let spelt_out: Vec<&str> = lines.collect();
        assert_eq!(Config::parse(&spelt_out.join("\n")).unwrap(), plain);
        assert_ne!(spelt_out.join("\n").trim(), text.trim());
    }

    #[test]
    fn tasks_have_numbers_beyond_those_of_directories() {
        let IdRangeConfig { first, count } = IdRangeConfig::default();
        assert!(first > 2_000_200_000 && first.is_multiple_of(IDS_PER_RANGE));
        assert_eq!(u64::from(first) + u64::from(count) * u64::from(IDS_PER_RANGE), 1 << 31);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let check = |text: &str, part: &str| {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        };
        check("colour = 1", "colour");
        check("name = \"M7\"", "M7");
        check("listen = \"10.0.0.1:80\"", "listen: 10.0.0.1:80; allowed: a loopback address");
        check("driver = \"chroot\"", "chroot");
        check("volumes = [\"srv\"]", "volumes: srv; allowed: absolute paths");
        check("listen = \"here\"", "listen: \"here\"; allowed: ADDRESS:PORT, or off");
        check("logs = { files = 0 }", "logs.files: 0; allowed: 1 or more");
        check("logs = { file_bytes = 9 }", "logs.file_bytes: 9; allowed: 4096 or more");
        check("id_ranges = { first = 1000 }", "id_ranges: 2240 ranges from 1000 on; allowed: 1");
        check("id_ranges = { first = 100000 }", "from a multiple of 65536 to 4294967294");
        check("id_ranges = { count = 0 }", "id_ranges: 0 ranges from 2000683008 on; allowed: 1");
        check("id_ranges = { count = 65535 }", "id_ranges: 65535 ranges from");
        check("processes = { all = 0 }", "processes: 0; allowed: 1 or more");
        let never = "control = { pressure_eviction_seconds = 0 }";
        check(never, "control.pressure_eviction_seconds: 0; allowed: 1 to 86400");
    }

    #[test]
    fn an_agent_is_dialled_where_its_configuration_lets_it() {
        let on = |text: &str| {
            let address = Config::parse(text).unwrap().listen_address();
            address.map(|address| address.to_string())
        };
        let with = |text: &str| format!("identity = \"/x\"\n{text}");
        assert_eq!(on("").as_deref(), Some("127.0.0.1:0"));
        assert_eq!(on(&with("")).as_deref(), Some("0.0.0.0:7071"));
        assert_eq!(on(&with("address = \"10.0.0.7\"")).as_deref(), Some("10.0.0.7:7071"));
        assert_eq!(on(&with("listen = \"10.0.0.7:80\"")).as_deref(), Some("10.0.0.7:80"));
        assert_eq!(on(&with("listen = \"off\"")), None);
    }
}
