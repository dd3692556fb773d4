//! Task drivers: how a program is run. A driver prepares an attempt's folder and the launch for the
//! shim; it lists the isolation it cannot provide. The driver of an agent is selected once, when it
//! starts: containers where they work, plain processes elsewhere, with the reason advertised.

pub mod container;
pub mod exec_spec;
pub mod process;
pub mod task_env;
pub mod task_user;

use crate::cgroups::TaskCgroups;
use crate::config::{Config, ConfigError, DriverChoice};
use crate::credentials::TaskCredentials;
use crate::devices::GrantedDevice;
use crate::shim::protocol::{Launch, LogSettings};
use crate::state_dir::Folders;
use cellwright_cell::desired::RunSpec;
use cellwright_cell::id::Attempt;
use cellwright_isolate::cgroup::Group;
use cellwright_isolate::container::{IdRange, is_world_traversable};
use container::ContainerDriver;
use process::ProcessDriver;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The inputs of a driver for one attempt.
pub struct StartContext<'a> {
    pub attempt: Attempt,
    /// IDs of users and groups of the machine that are its own, or its alloc's. Absent: the agent
    /// is not root, and cannot change users.
    pub range: Option<IdRange>,
    /// `user/job/index`.
    pub name: &'a str,
    pub machine: &'a str,
    pub work: &'a RunSpec,
    /// The attempt's folder.
    pub folder: PathBuf,
    /// The folder the program works in.
    pub directory: PathBuf,
    /// The shared folder of its alloc.
    pub alloc: Option<PathBuf>,
    /// Names and folders of its packages.
    pub packages: &'a [(String, PathBuf)],
    /// Its devices, or those of its alloc.
    pub devices: &'a [GrantedDevice],
    /// Its cgroup, created, with its limits.
    pub group: Option<Group>,
    pub lease_until: Option<u64>,
    pub logs: LogSettings,
    /// Its identity; nothing in a cell without identities.
    pub credentials: Option<&'a TaskCredentials>,
}

/// Why a driver cannot run a task; for its owner.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error("{field}: {value}; allowed: {allowed}")]
    Cannot { field: &'static str, value: String, allowed: String },
    #[error("{}: {why}", path.display())]
    Io { path: PathBuf, why: std::io::Error },
    #[error("{0}")]
    Isolate(#[from] cellwright_isolate::Error),
}

pub trait Driver: Send + Sync {
    fn name(&self) -> &'static str;

    /// Isolation that tasks do not get, for people to know.
    fn isolation_gaps(&self) -> Vec<String>;

    /// Prepares the attempt's folder and returns the launch. May be called again for the same
    /// attempt, and then does the same again.
    ///
    /// # Errors
    /// When this task cannot be run here.
    fn prepare(&self, start: &StartContext<'_>) -> Result<Launch, DriverError>;

    /// The container runtime with its known vulnerabilities, if there is one.
    fn runtime(&self) -> Option<&str> {
        None
    }

    /// Removes what a crash left of attempts other than `kept`, whose folders are in `tasks`.
    fn sweep(&self, tasks: &Path, kept: &BTreeSet<String>);
}

/// The driver of an agent, and why it is not the one that isolates best.
#[derive(Clone)]
pub struct SelectedDriver {
    pub driver: Arc<dyn Driver>,
    /// Why containers are not available, if they are not.
    pub container_off: Option<String>,
}

/// Selects the configured driver, or the one with the best isolation that works here.
///
/// # Errors
/// When the configuration demands containers and they do not work.
pub fn select(
    config: &Config,
    folders: &Folders,
    groups: &TaskCgroups,
) -> Result<SelectedDriver, ConfigError> {
    let plain = |why: String| {
        let groups_off = groups.unavailable_reason().map(str::to_owned);
        let (users, inaccessible_root) =
            (config.users.clone(), !is_world_traversable(folders.root()));
        let inaccessible_root = inaccessible_root.then(|| folders.root().to_owned());
        let driver = Arc::new(ProcessDriver { groups_off, users, inaccessible_root });
        SelectedDriver { driver, container_off: Some(why) }
    };
    if config.driver == DriverChoice::Process {
        return Ok(plain("the configuration says so: driver = \"process\"".into()));
    }
    let opened = ContainerDriver::open(config, folders);
    let opened = opened.and_then(|driver| match groups.unavailable_reason() {
        None => Ok(driver),
        Some(why) => Err(format!("no control groups: {why}")),
    });
    match opened {
        Ok(driver) => Ok(SelectedDriver { driver: Arc::new(driver), container_off: None }),
        Err(why) if config.driver == DriverChoice::Container => Err(ConfigError::Field {
            field: "driver".into(),
            value: "container".into(),
            allowed: format!("process on this machine: {why}"),
        }),
        Err(why) => Ok(plain(why)),
    }
}
