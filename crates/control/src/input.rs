//! Inputs and outputs of the core: everything that can happen to it, and everything it can request;
//! two closed enums, so that the loop, the tests and the simulator speak the same language.

use crate::lease::SchedulerShardName;
use crate::log_time::{ClockSkews, ClockSource};
use cellwright_cell::command::{Request, Verdict};
use cellwright_cell::id::MachineId;
use cellwright_cell::time::{Span, Time};
use cellwright_messages::{LeaseAnswer, LinkShardReport, Unavailable};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Identifies a request that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Identifies a batch in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// Both clocks at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Leads log time, see [`crate::log_time`]; may jump.
    pub wall: Time,
    /// Milliseconds since the process started; never jumps. Leases and heartbeat timeouts use this
    /// one.
    pub elapsed: Span,
}

/// The source of requests; each has a queue of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// The cell's own components: never behind users.
    System,
    /// Reports and requests of the agent of one machine.
    Agent(String),
    Scheduler(String),
    User(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::System => f.write_str("the system"),
            Origin::Agent(machine) => write!(f, "the agent of {machine}"),
            Origin::Scheduler(name) => write!(f, "scheduler {name}"),
            Origin::User(name) => write!(f, "user {name}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    Tick,
    Role(Role),
    Requests { ticket: Ticket, origin: Origin, bytes: usize, requests: Vec<Request> },
    Committed { batch: BatchId, result: Result<Committed, Unavailable> },
    Forward(LinkShardReport),
    Lease { ticket: Ticket, scheduler: String, scheduler_shard: SchedulerShardName, wall: Time },
    Archive(ArchiveProgress),
}

/// How far the archive has come, as the leading master's writer of it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArchiveProgress {
    /// Every job that ended before this time is in the archive.
    pub before: Time,
    pub trouble: Option<ArchiveTrouble>,
}

/// The archive cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveTrouble {
    /// For how long.
    pub lasts: Span,
    /// Jobs and logs that wait for it.
    pub waiting: u32,
    /// Jobs and logs that were forgotten unarchived under this leader.
    pub lost: u32,
}

/// The raft role of this replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// Number of this replica.
    pub id: u64,
    pub term: u64,
    pub leading: bool,
    /// Address of the leader, if there is one.
    pub leader: Option<String>,
    pub voters: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub index: u64,
    pub term: u64,
    pub verdicts: Vec<Verdict>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    Propose {
        batch: BatchId,
        now: Time,
        requests: Vec<Request>,
    },
    Answer {
        ticket: Ticket,
        result: Result<Committed, Unavailable>,
    },
    Lease {
        ticket: Ticket,
        answer: Result<LeaseAnswer, Unavailable>,
    },
    Alarms(Vec<Alarm>),
    /// The current log time.
    LogTime(Time),
    /// How far apart clocks are.
    Skews(ClockSkews),
    /// How many commands each controller has issued in this leadership, by its name.
    Controllers(BTreeMap<&'static str, u64>),
}

/// A condition that an operator should look at; on the metrics page and in the status.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Alarm {
    /// More than half of the machines that were up are silent: none is declared down.
    MostMachinesSilent { silent: u32, up: u32 },
    /// Machines wait to be declared down because of the rate limit.
    DownRateLimited { waiting: u32 },
    /// A machine that is up has not been heard from for this long.
    MachineSilent { machine: MachineId, silent: Span },
    /// A clock is further from the cell's than the bound, ahead if positive.
    ClockSkew { source: ClockSource, seconds: i64 },
    /// The archive cannot be written, or was not written in time.
    ArchiveFailing { seconds: u64, waiting: u32, lost: u32 },
}
