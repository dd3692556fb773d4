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
use cellwright_cell::log_saver::LogSaverEnd;
use cellwright_cell::machine::{MachineSpec, ResourcePressureReport};
use cellwright_cell::name::Name;
use cellwright_cell::observed::ObservedTask;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::PackageRef;
use cellwright_cell::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Version of these messages. A peer of another major version is refused by name.
pub const PROTOCOL: u32 = 1;

/// Format of an agent's report and of the orders that answer it: the first number of a report, and
/// looked at before the rest, which another build may have made of other parts. Masters and agents
/// are not upgraded at once, so it is raised with every change of either, and of anything in them.
pub const REPORT_FORMAT: u32 = 3;

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
    /// [`REPORT_FORMAT`]. Invariant: the first field, so that it can be read without the others.
    pub format: u32,
    pub machine: Name,
    /// Number of this life of the agent's machine; grows with every boot. No clock gives it: the
    /// masters tell the newest they know ([`AgentOrders::incarnation`]), and a new life takes the
    /// next.
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
    pub shortages: Vec<ResourcePressureReport>,
    /// The machine's clock as the report left.
    pub wall: Time,
}

/// Why a report cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReport {
    #[error("the agent reports in format {found}, this master reads format {REPORT_FORMAT}")]
    Format { found: u32 },
    #[error("not the report of an agent: {0}")]
    Broken(String),
}

impl InvalidReport {
    /// What whoever runs the agent is to do.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            InvalidReport::Format { found } if *found < REPORT_FORMAT => {
                "put the masters' build on its machine and restart the agent; its tasks run on"
            }
            InvalidReport::Format { .. } => {
                "upgrade the masters first, one after another; agents come after them"
            }
            InvalidReport::Broken(_) => "run one build on masters and agents",
        }
    }
}

impl AgentReport {
    /// Leaves out what the masters can do without for a while, until the report takes no more than
    /// `max_bytes` bytes: an agent that is not heard at all loses its tasks. Which tasks there are is
    /// never left out.
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

    /// Reads what an agent of any build sent, if it is made as reports are here.
    ///
    /// # Errors
    /// When its build makes reports of another format, or it is no report.
    pub fn read(bytes: &[u8]) -> Result<AgentReport, InvalidReport> {
        let broken = |why: postcard::Error| InvalidReport::Broken(why.to_string());
        let (found, _) = postcard::take_from_bytes::<u32>(bytes).map_err(broken)?;
        match found {
            REPORT_FORMAT => postcard::from_bytes(bytes).map_err(broken),
            _ => Err(InvalidReport::Format { found }),
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
    /// The newest life of the machine that the log knows; 0 for none.
    pub incarnation: u64,
}

/// What a link shard tells the leader, at least once a second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkShardReport {
    pub shard: u64,
    /// Term the shard believes in; the leader of another term refuses.
    pub term: u64,
    /// Machines heard since the last forward that arrived.
    pub heard_machines: Vec<MachineId>,
    /// Differences found between full reports and the replicated state.
    pub differences: Vec<StateDifference>,
    /// The shard's clock as the forward left.
    pub wall: Time,
    /// By how many milliseconds the clocks of machines were ahead of the shard's when they were
    /// heard. The time a report was on its way makes them look behind.
    pub clock_offsets: Vec<(MachineId, i64)>,
}

/// What one agent's full state says that the replicated state does not know yet.
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
    pub scheduler_shard: String,
    /// Statistics of the passes since the last request, for the metrics page.
    pub passes: PassStatistics,
    /// The scheduler's clock as the request left; its link stamps it.
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
    use xxhash_rust::xxh3::xxh3_64;

    fn report() -> Value {
        let amount = json!({ "cpu": 1, "ram": 2, "disk": 3, "disk_rate": 4 });
        json!({
            "format": REPORT_FORMAT, "machine": "m1", "incarnation": 5, "number": 6,
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

    fn orders() -> Value {
        let amount = json!({ "cpu": 1, "ram": 2, "disk": 3, "disk_rate": 4 });
        let work = json!({
            "command": ["a"], "env": { "b": "c" }, "limits": amount, "reservation": amount,
            "ports": [5], "devices": [{ "device": 6, "milli": 7 }],
            "packages": [{ "name": "p", "digest": "ab", "bytes": 8 }], "notice": 9,
            "priority": 10, "appclass": "batch", "alloc": 11,
            "waits_for": [{ "task": 12, "attempt": 13 }], "delay": 14, "health": null,
            "max_run": 15, "files": { "d": "e" }, "user": "f", "logs": null,
        });
        let task = json!({ "task": 16, "attempt": 17, "saver": 18, "name": "u/j/0",
            "action": { "run": work }, "lease": 19 });
        json!({
            "epoch": { "era": 20, "index": 21 }, "tasks": [task], "orders_digest": 22,
            "poll": 23, "heard_ago": 24, "redial": "h", "is_dismissed": true, "incarnation": 25,
        })
    }

    /// Whoever changes a part of either raises the number, and then this.
    #[test]
    fn reports_and_orders_of_this_format_are_made_as_ever() {
        let report: AgentReport = serde_json::from_value(report()).unwrap();
        let orders: AgentOrders = serde_json::from_value(orders()).unwrap();
        let bytes = postcard::to_stdvec(&report).unwrap();
        assert_eq!(AgentReport::read(&bytes), Ok(report));
        let hash = xxh3_64(&[bytes, postcard::to_stdvec(&orders).unwrap()].concat());
        assert_eq!((REPORT_FORMAT, format!("{hash:016x}")), (3, "d354438a3c759ad2".to_owned()));
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

    #[test]
    fn a_report_of_another_format_is_told_by_its_number_whatever_follows() {
        let read_error = |bytes: &[u8]| AgentReport::read(bytes).unwrap_err();
        // What the rest of it means nobody here can know.
        for (found, hint) in [(1, "restart the agent"), (REPORT_FORMAT + 1, "the masters first")] {
            let error = read_error(&[found as u8, 0xff, 0xff]);
            assert_eq!(error, InvalidReport::Format { found });
            let (text, ours) = (error.to_string(), format!("reads format {REPORT_FORMAT}"));
            assert!(text.contains(&format!("in format {found}")) && text.contains(&ours), "{text}");
            assert!(error.hint().contains(hint), "{}", error.hint());
        }
        assert!(matches!(read_error(&[]), InvalidReport::Broken(_)));
        assert!(matches!(read_error(&[REPORT_FORMAT as u8]), InvalidReport::Broken(_)));
    }
}
