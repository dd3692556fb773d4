//! The protocol between a shim and its agent: a line of JSON for each message, over a socket in the
//! attempt's folder. A shim lives longer than the agent that started it, so this is a contract
//! between versions: fields are added with defaults, never changed.

use cellwright_agent_core::book::FinalReading;
use cellwright_agent_core::reconcile::End;
use cellwright_cell::task::{ExitClass, NoticeOutcome};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Version of these messages, which a shim names in its [`Status`].
pub const VERSION: u32 = 1;

/// File names in an attempt's folder.
pub const LAUNCH: &str = "launch";
/// What the shim says, and the file that it holds locked as long as it lives.
pub const SHIM_LOG: &str = "shim.log";
pub const BEGUN: &str = "begun";
pub const EXIT: &str = "exit";
pub const SOCKET: &str = "shim.sock";
pub const LOGS: &str = "logs";

/// The line a shim writes to standard output once it accepts connections.
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
    pub run_as: Option<(u32, u32)>,
    pub logs: LogSettings,
    /// Killed at this time of the boot clock, unless the lease is renewed.
    pub lease_until: Option<u64>,
    /// Killed when it has run for so many milliseconds.
    pub max_run: Option<u64>,
    /// The cgroup it runs in. Absent: none.
    pub group: Option<String>,
    /// The container it runs in. Absent: it is a plain process.
    pub container: Option<Container>,
    /// The folder of its secrets, which is removed when it ends.
    pub secrets: Option<PathBuf>,
    /// The folder of its identity, which is removed when it ends.
    pub identity_dir: Option<PathBuf>,
}

/// A container whose bundle is on disk, for the runtime to create and start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    pub runtime: PathBuf,
    /// Where the runtime keeps the state of its containers.
    pub state: PathBuf,
    /// Where the containers' bundles are.
    pub run: PathBuf,
    pub id: String,
    /// User and group of the program as the machine numbers them.
    pub owner: (u32, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSettings {
    /// Bytes of one file of one stream.
    pub file_bytes: u64,
    /// Files of one stream, the current one included.
    pub files: u32,
    /// Bytes a second that are kept of one stream; more is dropped and counted.
    pub rate: u64,
}

/// The identity of the shim, recorded before the program starts. An attempt that has this never
/// begins again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimRecord {
    pub shim: i32,
    /// When the shim was born, in the kernel's ticks: its pid may be reused.
    pub born: u64,
    /// The ID of the boot it was born in: pid and birth mean nothing in another.
    pub boot_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Give notice now, kill after so many milliseconds.
    Stop {
        grace: u64,
    },
    Kill,
    /// Kill at once, because it disturbs others or is beyond its limits.
    Condemn {
        /// What the masters are told. Absent: that it is gone, through no fault of its own.
        class: Option<ExitClass>,
        /// For its owner.
        why: String,
    },
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
pub enum ExitCause {
    /// Of its own accord, or by a signal that was not ours.
    Itself,
    /// After it had been told to stop.
    Told,
    LeaseOver,
    RanTooLong,
    CouldNotStart(String),
    /// Killed because the machine could not let it go on.
    Condemned {
        class: Option<ExitClass>,
        why: String,
    },
    /// Its exit was not observed.
    Lost(String),
}

/// The exit of an attempt, on disk before any reader is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub cause: ExitCause,
    /// Whether the kernel killed some of its processes for memory, and whose limit was hit.
    pub memory: OomCause,
    /// Of a task that was told to stop: the outcome of the notice. Absent: it was not observed.
    pub notice: Option<NoticeOutcome>,
    /// On the boot clock.
    pub started: Option<u64>,
    pub ended: u64,
    /// Whether the container's seccomp filter killed it, whatever signal is reported.
    pub filtered: bool,
    /// What it had used when the last of its processes was gone. Absent: nobody could read it.
    #[serde(default)]
    pub usage: Option<FinalReading>,
}

/// What an out-of-memory kill had to do with an exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OomCause {
    #[default]
    Nothing,
    /// It wanted more than its limit.
    OwnLimit,
    /// Another was short of it.
    Bystander,
}

impl Exit {
    /// What the masters are told of it.
    #[must_use]
    pub fn outcome(&self) -> End {
        let out_of_memory = match self.memory {
            OomCause::Nothing => None,
            OomCause::OwnLimit => Some(ExitClass::OutOfMemory),
            OomCause::Bystander => Some(ExitClass::OutOfMemoryBystander),
        };
        match (&self.cause, self.code, self.signal) {
            (ExitCause::Condemned { class, .. }, _, _) => class.map_or(End::Gone, End::Failed),
            (ExitCause::Told, _, _) => self.notice.map_or(End::Gone, End::Stopped),
            (ExitCause::Lost(_), _, _) => End::Gone,
            (ExitCause::LeaseOver | ExitCause::RanTooLong, _, _) => {
                End::Failed(ExitClass::TimedOut)
            }
            (ExitCause::CouldNotStart(_), _, _) => End::Failed(ExitClass::CouldNotStart),
            (ExitCause::Itself, Some(0), _) => End::Finished,
            // A program whose child was killed for memory may have coped, and then it finished.
            (ExitCause::Itself, _, _) if out_of_memory.is_some() => {
                out_of_memory.map_or(End::Gone, End::Failed)
            }
            (ExitCause::Itself, Some(code), _) => End::Failed(ExitClass::Code(code)),
            (ExitCause::Itself, None, Some(signal)) => End::Failed(ExitClass::Signal(signal)),
            (ExitCause::Itself, None, None) => End::Gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_by_its_cause_and_by_what_memory_had_to_do_with_it() {
        let exit = |cause, code, signal, memory| {
            let (notice, started, filtered, usage) = (None, None, false, None);
            let exit =
                Exit { code, signal, cause, memory, notice, started, ended: 0, filtered, usage };
            exit.outcome()
        };
        let kill = |memory| exit(ExitCause::Itself, None, Some(9), memory);
        assert_eq!(kill(OomCause::Nothing), End::Failed(ExitClass::Signal(9)));
        assert_eq!(kill(OomCause::OwnLimit), End::Failed(ExitClass::OutOfMemory));
        assert_eq!(kill(OomCause::Bystander), End::Failed(ExitClass::OutOfMemoryBystander));
        let own = OomCause::OwnLimit;
        // A shell reports it with an exit code; a program that coped without its child finished.
        assert_eq!(
            exit(ExitCause::Itself, Some(137), None, own),
            End::Failed(ExitClass::OutOfMemory)
        );
        assert_eq!(exit(ExitCause::Itself, Some(0), None, own), End::Finished);
        assert_eq!(exit(ExitCause::Told, None, Some(9), own), End::Gone);
        let condemned = |class| ExitCause::Condemned { class, why: "disk".into() };
        let over = Some(ExitClass::OverDiskLimit);
        let none = OomCause::Nothing;
        assert_eq!(
            exit(condemned(over), None, Some(9), none),
            End::Failed(ExitClass::OverDiskLimit)
        );
        assert_eq!(exit(condemned(None), None, Some(9), none), End::Gone);
    }
}
