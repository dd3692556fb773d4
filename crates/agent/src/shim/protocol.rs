//! What a shim and its agent tell each other: a line of JSON each, over a socket in the attempt's
//! folder. A shim lives longer than the agent that started it, so this is a contract between
//! versions: fields are added with defaults, never changed.

use crate::core::End;
use cellwright_cell::task::ExitClass;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Version of these messages.
pub const VERSION: u32 = 1;

/// Names in an attempt's folder.
pub const LAUNCH: &str = "launch";
pub const LOCK: &str = "lock";
pub const BEGUN: &str = "begun";
pub const EXIT: &str = "exit";
pub const SOCKET: &str = "shim.sock";
pub const LOGS: &str = "logs";

/// The line a shim writes to standard output once it can be talked to.
pub const READY: &str = "ready";

/// What a shim is to run; written by the agent before the shim starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// `user/job/index`.
    pub name: String,
    pub command: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    pub directory: PathBuf,
    /// User and group to run as. Absent: those of the agent.
    #[serde(default)]
    pub identity: Option<(u32, u32)>,
    pub logs: LogSettings,
    /// Killed at this time of the boot clock, unless the lease is renewed.
    #[serde(default)]
    pub lease_until: Option<u64>,
    /// Killed when it has run for so many milliseconds.
    #[serde(default)]
    pub max_run: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSettings {
    /// Bytes of one file of one stream.
    pub file_bytes: u64,
    /// Files of one stream, the present one included.
    pub files: u32,
    /// Bytes a second that are kept of one stream; more is dropped and counted.
    pub rate: u64,
}

/// Who the shim is, left behind before the program starts. An attempt that has this never begins
/// again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    pub shim: i32,
    /// When the shim was born, in the kernel's ticks: its number may be given to another.
    pub born: u64,
    /// The boot it was born in: both numbers above mean nothing in another. Empty: not known.
    #[serde(default)]
    pub boot_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Warn now, kill after so many milliseconds.
    Stop {
        grace: u64,
    },
    Kill,
    Signal {
        number: i32,
    },
    Lease {
        until: u64,
    },
    Status,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub version: u32,
    pub shim: i32,
    pub pid: i32,
    /// When the program started, on the boot clock.
    pub started: u64,
    pub stopping: bool,
    pub lease_until: Option<u64>,
}

/// Why the program ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Of its own accord, or by a signal that was not ours.
    Itself,
    /// After it had been told to stop.
    Told,
    LeaseOver,
    RanTooLong,
    CouldNotStart(String),
    /// Nobody saw it end.
    Lost(String),
}

/// The end of an attempt, on disk before anybody is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub cause: Cause,
    /// On the boot clock.
    pub started: Option<u64>,
    pub ended: u64,
}

impl Exit {
    /// What the masters are told of it.
    #[must_use]
    pub fn end(&self) -> End {
        match (&self.cause, self.code, self.signal) {
            (Cause::Told | Cause::Lost(_), _, _) => End::Gone,
            (Cause::LeaseOver | Cause::RanTooLong, _, _) => End::Failed(ExitClass::TimedOut),
            (Cause::CouldNotStart(_), _, _) => End::Failed(ExitClass::CouldNotStart),
            (Cause::Itself, Some(0), _) => End::Finished,
            (Cause::Itself, Some(code), _) => End::Failed(ExitClass::Code(code)),
            (Cause::Itself, None, Some(signal)) => End::Failed(ExitClass::Signal(signal)),
            (Cause::Itself, None, None) => End::Gone,
        }
    }
}
