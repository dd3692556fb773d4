//! Messages between the cell's own parts: agents, schedulers and replicas. They travel as postcard
//! on the same listener as the public API, under `/internal`, and only certificates of the cell's
//! own parts open that door.
//!
//! Agents send their *full* state and are answered with their full orders, so no message depends on
//! an earlier one having arrived. A link shard compares what an agent says with the replicated
//! state and forwards only differences; the comparison is against the log, not against the last
//! report, so a lost forward is simply found again at the next poll.
//!
//! Rejected: sequence-numbered deltas from agents. They save bytes that a poll every few seconds
//! does not need, and a gap in them is a bug that hides for months.

use cellwright_cell::command::{Request, TaskReport, Verdict};
use cellwright_cell::desired::DesiredTask;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::machine::{MachineSpec, ShortageReport};
use cellwright_cell::name::Name;
use cellwright_cell::observed::ObservedTask;
use cellwright_cell::resource::Resources;
use cellwright_cell::saver::SaverEnd;
use cellwright_cell::spec::PackageRef;
use cellwright_cell::time::Span;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Version of these messages. A peer of another major version is refused by name.
pub const PROTOCOL: u32 = 1;

/// A position in the log. Agents obey only a newer one, so that a replica left behind cannot give
/// orders. Only entries that a quorum holds are applied, so the index alone orders all that
/// replicas of one log can say; the era tells the log of a restored cell from the one before.
///
/// Rejected: the replica's term instead. One that was cut off raises its term with every vote it
/// calls for, and would outrank those that know more.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch {
    pub era: u64,
    pub index: u64,
}

/// What an agent says at every poll: everything it knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentReport {
    pub protocol: u32,
    pub machine: Name,
    /// Number of this life of the agent's machine; grows with every boot.
    pub incarnation: u64,
    /// Grows with every report of one life. Two may be on their way at once, and one that was held
    /// up must not undo what a later one has told: what it does not list may have started since.
    pub number: u64,
    /// The newest orders the agent has taken; hanging polls are answered when there are newer ones.
    pub taken: Epoch,
    /// Whether the answer may wait for new orders. News of the agent's own travel apart from the
    /// hanging poll and are answered at once.
    pub hang: bool,
    /// Digest of the orders it holds, so that unchanged orders need not be sent again.
    pub orders_digest: u64,
    /// What the machine is, as the agent found it. Sent with the first report of a connection.
    pub spec: Option<MachineSpec>,
    pub tasks: Vec<ObservedTask>,
    pub packages: Option<BTreeSet<PackageRef>>,
    pub usage: Vec<TaskUsage>,
    /// What the machine is short of although whoever may be is held back, in full; each resource
    /// once, in their order.
    pub shortages: Vec<ShortageReport>,
}

/// What one task used since the last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskUsage {
    pub task: TaskId,
    pub attempt: u32,
    /// Rates (CPU, disk rate) as averages, space (RAM, disk) as peaks of the interval.
    pub used: Resources,
}

/// What the link shard answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentOrders {
    pub epoch: Epoch,
    /// `None`: as before. Whatever runs and is not listed is to be killed.
    pub tasks: Option<Vec<DesiredTask>>,
    pub orders_digest: u64,
    /// How long the next poll may hang at most.
    pub poll: Span,
    /// How long before this poll arrived the leader had last heard of the agent for sure. Leases
    /// of `at_most_one` tasks count from then; a replica that has lost the leader renews none.
    pub heard_ago: Option<Span>,
    /// Another replica now holds this agent's share: dial there.
    pub redial: Option<String>,
    /// The machine was removed from the cell. It is heard again after it joined with a new token.
    pub is_dismissed: bool,
}

/// What a link shard tells the leader, at least once a second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkForward {
    pub shard: u64,
    /// Term the shard believes in; the leader of another term refuses.
    pub term: u64,
    /// Machines heard since the last forward that arrived.
    pub heard: Vec<MachineId>,
    /// Differences found between full reports and the replicated state.
    pub differences: Vec<Difference>,
}

/// What one agent's full state says that the replicated state does not know yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Difference {
    /// A machine that was down, or unknown, or has booted again.
    Up {
        machine: Name,
        incarnation: u64,
        spec: Option<Box<MachineSpec>>,
    },
    Tasks {
        machine: MachineId,
        incarnation: u64,
        /// Of the report it was found in.
        number: u64,
        reports: Vec<TaskReport>,
    },
    Packages {
        machine: MachineId,
        packages: BTreeSet<PackageRef>,
    },
    Reservations(Vec<cellwright_cell::command::ReservationChange>),
    /// Runs of savers that have ended.
    Savers {
        machine: MachineId,
        ends: Vec<SaverEnd>,
    },
    Shortages {
        machine: MachineId,
        incarnation: u64,
        shortages: Vec<ShortageReport>,
    },
}

/// One log entry as a follower of the log (a scheduler's cached copy) gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRecord {
    pub index: u64,
    /// Index of the record before this one. The log also holds raft's own entries, so indices have
    /// gaps; a follower whose copy does not stand at `previous` has missed something.
    pub previous: u64,
    pub term: u64,
    /// As written by [`cellwright_cell::encode::save_entry`].
    pub entry: Vec<u8>,
}

/// Answer to "what came after index N?". Hangs until there is something, or the wait is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogAnswer {
    Records(Vec<LogRecord>),
    /// The log no longer reaches back so far: start from this checkpoint.
    Snapshot {
        index: u64,
        term: u64,
        state: Vec<u8>,
    },
}

/// Commands of a trusted part. Each gets its own verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    pub requests: Vec<Request>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposalAnswer {
    pub index: u64,
    pub verdicts: Vec<Verdict>,
}

/// A scheduler asks to be the one for a share of the work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    pub scheduler: String,
    /// The share: jobs whose label `scheduler` has this value; empty: all that have none.
    pub lane: String,
    /// Statistics of the passes since the last request, for the metrics page.
    pub passes: PassStatistics,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAnswer {
    pub granted: bool,
    pub holder: String,
    pub length: Span,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassStatistics {
    pub passes: u64,
    pub placed: u64,
    pub refused: u64,
    pub preempted: u64,
    pub pending: u64,
    /// Sum over the passes.
    pub micros: u64,
    pub longest_micros: u64,
    pub evaluations: u64,
}

impl PassStatistics {
    /// Adds a later report to this one.
    pub fn add(&mut self, later: &PassStatistics) {
        self.passes += later.passes;
        self.placed += later.placed;
        self.refused += later.refused;
        self.preempted += later.preempted;
        self.pending = later.pending;
        self.micros += later.micros;
        self.longest_micros = self.longest_micros.max(later.longest_micros);
        self.evaluations += later.evaluations;
    }
}
