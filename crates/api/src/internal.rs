//! Internal messages between the cell's own parts: agents, schedulers and replicas. They travel as
//! postcard on the same listener as the public API, under `/internal`, and only certificates of the
//! cell's own parts are admitted there. [`crate::wire`] says which version of them two parts speak.
//!
//! Agents send their *full* state and are answered with their full orders, so no message depends on
//! an earlier one having arrived. A link shard compares an agent's report with the replicated state
//! and forwards only differences; the comparison is against the log, not against the last report,
//! so a lost forward is simply found again at the next poll.
//!
//! Rejected: sequence-numbered deltas from agents. They save bytes that a poll every few seconds
//! does not need, and a gap in them is a bug that hides for months.

use crate::wire_messages;
use cellwright_cell::command::{Request, TaskReport, Verdict};
use cellwright_cell::desired::DesiredTask;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::log_saver::LogSaverEnd;
use cellwright_cell::machine::{MachineSpec, ResourcePressureReport};
use cellwright_cell::name::Name;
use cellwright_cell::observed::ObservedTask;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::PackageRef;
use cellwright_cell::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

wire_messages!(
    AgentReport,
    AgentOrders,
    LogAnswer,
    Proposal,
    ProposalAnswer,
    LeaseRequest,
    LeaseAnswer,
);

/// A position in the log. Agents obey only a newer one, so that a replica left behind cannot give
/// orders. Only entries that a quorum holds are applied, so the index alone orders all orders of
/// one log; the log epoch distinguishes the log of a restored cell from the one before.
///
/// Rejected: the replica's term instead. A replica that was cut off raises its term with every
/// election it starts, and would outrank those that know more.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch {
    pub era: u64,
    pub index: u64,
}

/// An agent's report at every poll: its full state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentReport {
    pub machine: Name,
    /// Incarnation number of the agent's machine; grows with every boot. No clock gives it: the
    /// masters report the newest they know ([`AgentOrders::incarnation`]), and a new incarnation
    /// takes the next.
    pub incarnation: u64,
    /// Grows with every report of one incarnation. Two reports may be in flight at once, and one
    /// that was delayed must not undo a later one: what it does not list may have started since.
    pub number: u64,
    /// The newest orders the agent has applied; hanging polls are answered when there are newer
    /// ones.
    pub taken: Epoch,
    /// Whether the answer may wait for new orders. An agent sends its own changes in a separate
    /// poll, which is answered at once.
    pub hang: bool,
    /// Digest of the orders it holds, so that unchanged orders need not be sent again.
    pub orders_digest: u64,
    /// The machine's specification, as the agent detected it. Sent with the first report of a
    /// connection.
    pub spec: Option<MachineSpec>,
    pub tasks: Vec<ObservedTask>,
    pub packages: Option<BTreeSet<PackageRef>>,
    pub usage: Vec<TaskUsage>,
    /// The resources that the machine is short of although every task that may be throttled is;
    /// each resource once, in order.
    pub shortages: Vec<ResourcePressureReport>,
    /// The machine's clock when the report was sent.
    pub wall: Time,
}

impl AgentReport {
    /// Drops what the masters can do without for a while, until the report takes no more than
    /// `max_bytes` bytes: an agent that is not heard at all loses its tasks. The list of tasks is
    /// never dropped.
    pub fn shrink(&mut self, max_bytes: usize) {
        let fits = |report: &AgentReport| {
            postcard::experimental::serialized_size(report).is_ok_and(|bytes| bytes <= max_bytes)
        };
        let parts: [fn(&mut AgentReport); 3] = [
            |report| report.usage.clear(),
            |report| report.packages = None,
            |report| report.spec = None,
        ];
        for leave_out in parts {
            if fits(self) {
                return;
            }
            leave_out(self);
        }
    }
}

/// What one task used since the last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskUsage {
    pub task: TaskId,
    pub attempt: u32,
    /// Rates (CPU, disk rate) as averages, space (RAM, disk) as peaks of the interval.
    pub used: Resources,
}

/// The answer of a link shard to an agent's report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentOrders {
    pub epoch: Epoch,
    /// `None`: unchanged. Every running task that is not listed is to be killed.
    pub tasks: Option<Vec<DesiredTask>>,
    pub orders_digest: u64,
    /// How long the next poll may hang at most.
    pub poll: Span,
    /// How long before this poll arrived the leader had last certainly heard from the agent. Leases
    /// of `at_most_one` tasks count from then; a replica that has lost the leader renews none.
    pub heard_ago: Option<Span>,
    /// Another replica now owns this agent's polls: dial there.
    pub redial: Option<String>,
    /// The machine was removed from the cell. Its agent is accepted again after it joined with a
    /// new token.
    pub is_dismissed: bool,
    /// The newest incarnation of the machine in the log; 0 for none.
    pub incarnation: u64,
}

/// A link shard's report to the leader, at least once a second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkShardReport {
    pub shard: u64,
    /// The shard's current term; the leader of another term rejects the report.
    pub term: u64,
    /// Machines heard since the last report that arrived.
    pub heard_machines: Vec<MachineId>,
    /// Differences found between full reports and the replicated state.
    pub differences: Vec<StateDifference>,
    /// The shard's clock when the report was sent.
    pub wall: Time,
    /// By how many milliseconds the clocks of machines were ahead of the shard's when they were
    /// heard. The network delay of a report makes them look behind.
    pub clock_offsets: Vec<(MachineId, i64)>,
}

/// A difference between an agent's full state and the replicated state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateDifference {
    /// A machine that was down, or unknown, or has booted again.
    Up {
        machine: Name,
        incarnation: u64,
        spec: Option<Box<MachineSpec>>,
    },
    Tasks {
        machine: MachineId,
        incarnation: u64,
        /// Number of the report it was found in.
        number: u64,
        reports: Vec<TaskReport>,
    },
    Packages {
        machine: MachineId,
        packages: BTreeSet<PackageRef>,
    },
    Reservations(Vec<cellwright_cell::command::ReservationChange>),
    /// Log saver runs that have ended.
    LogSavers {
        machine: MachineId,
        ends: Vec<LogSaverEnd>,
    },
    ResourcePressure {
        machine: MachineId,
        incarnation: u64,
        shortages: Vec<ResourcePressureReport>,
    },
}

/// One log entry as a follower of the log (a scheduler's cached copy) gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRecord {
    pub index: u64,
    /// Index of the record before this one. The log also holds raft's own entries, so indices have
    /// gaps; a follower whose copy is not at `previous` has missed something.
    pub previous: u64,
    pub term: u64,
    /// As encoded by [`cellwright_cell::encode::save_entry`].
    pub entry: Vec<u8>,
}

/// Answer to a [`LogRequest`](crate::client::internal_calls::LogRequest). Hangs until there is
/// something, or the wait is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogAnswer {
    Records(Vec<LogRecord>),
    /// The log no longer reaches back that far: start from this checkpoint.
    Snapshot {
        index: u64,
        term: u64,
        state: Vec<u8>,
    },
}

/// Commands that a trusted part proposes. Each gets its own verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    pub requests: Vec<Request>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposalAnswer {
    pub index: u64,
    pub verdicts: Vec<Verdict>,
}

/// A scheduler requests the lease of a scheduler shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    pub scheduler: String,
    /// The shard: jobs whose label `scheduler` has this value; empty: all jobs without that label.
    pub scheduler_shard: String,
    /// Statistics of the passes since the last request, for the metrics page.
    pub passes: PassStatistics,
    /// The scheduler's clock when the request was sent.
    pub wall: Time,
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
    pub rejected: u64,
    pub preempted: u64,
    pub pending: u64,
    /// Sum over the passes.
    pub micros: u64,
    pub longest_micros: u64,
    pub evaluations: u64,
}

impl PassStatistics {
    /// Adds a later report to this one.
    pub fn merge(&mut self, later: &PassStatistics) {
        self.passes += later.passes;
        self.placed += later.placed;
        self.rejected += later.rejected;
        self.preempted += later.preempted;
        self.pending = later.pending;
        self.micros += later.micros;
        self.longest_micros = self.longest_micros.max(later.longest_micros);
        self.evaluations += later.evaluations;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn report() -> Value {
        let amount = json!({ "cpu": 1, "ram": 2, "disk": 3, "disk_rate": 4 });
        json!({
            "machine": "m1", "incarnation": 5, "number": 6,
            "taken": { "era": 7, "index": 8 }, "hang": true, "orders_digest": 9,
            "spec": { "name": "m1", "capacity": amount },
            "tasks": [{ "task": 10, "attempt": 11, "saver": 12,
                "state": { "running": { "healthy": true } } }],
            "packages": [{ "name": "p", "digest": "ab", "bytes": 13 }],
            "usage": [{ "task": 10, "attempt": 11, "used": amount }],
            "shortages": [{ "dimension": "cpu", "lasted": 14, "asked": 15 }],
            "wall": 16,
        })
    }

    #[test]
    fn a_report_that_is_too_large_loses_what_can_wait_and_no_task() {
        let full: AgentReport = serde_json::from_value(report()).unwrap();
        let bytes = postcard::to_stdvec(&full).unwrap().len();
        let shrunk = |most| {
            let mut report = full.clone();
            report.shrink(most);
            assert_eq!(report.tasks, full.tasks);
            (report.usage.len(), report.packages.is_some(), report.spec.is_some())
        };
        assert_eq!(shrunk(bytes), (1, true, true));
        assert_eq!(shrunk(bytes - 1), (0, true, true));
        assert_eq!(shrunk(bytes - 10), (0, false, true));
        assert_eq!(shrunk(1), (0, false, false));
    }
}
