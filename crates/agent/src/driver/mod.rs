//! How a program is run on this machine. A driver turns an order into what the shim launches; it
//! says whether it can run here at all, and what it cannot keep a task from.

pub mod process;

use crate::core::Attempt;
use crate::shim::protocol::{Launch, LogSettings};
use cellwright_cell::desired::Work;
use std::path::PathBuf;

/// What a driver is given for one attempt.
pub struct Start<'a> {
    pub attempt: Attempt,
    /// `user/job/index`.
    pub name: &'a str,
    pub machine: &'a str,
    pub work: &'a Work,
    /// The attempt's folder.
    pub folder: PathBuf,
    /// The folder the program works in.
    pub directory: PathBuf,
    /// The shared folder of its alloc.
    pub alloc: Option<PathBuf>,
    pub lease_until: Option<u64>,
    pub logs: LogSettings,
}

/// Why a driver cannot run a task; for its owner.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error("{field}: {value}; allowed: {allowed}")]
    Cannot { field: &'static str, value: String, allowed: String },
    #[error("{}: {why}", path.display())]
    Io { path: PathBuf, why: std::io::Error },
}

pub trait Driver: Send + Sync {
    fn name(&self) -> &'static str;

    /// Why it is off on this machine, if it is.
    fn off(&self) -> Option<String>;

    /// What it does not keep tasks from, for people to know.
    fn gaps(&self) -> Vec<String>;

    /// Makes the attempt's folder ready and says what to launch. May be called again for the same
    /// attempt, and then does the same again.
    ///
    /// # Errors
    /// When this task cannot be run here.
    fn prepare(&self, start: &Start<'_>) -> Result<Launch, DriverError>;
}
