//! What an agent and the master that it polls tell each other.
//!
//! Agents send their *full* state and are answered with their full orders, so no message depends on
//! an earlier one having arrived.
//!
//! Rejected: sequence-numbered deltas from agents. They save bytes that a poll every few seconds
//! does not need, and a gap in them is a bug that hides for months.

use crate::usage::{UsageMark, UsageReport};
use cellwright_cell::credential::PartKind;
use cellwright_cell::desired::DesiredTask;
use cellwright_cell::id::TaskId;
use cellwright_cell::machine::{MachineSpec, ResourcePressureReport};
use cellwright_cell::name::{Name, Token};
use cellwright_cell::observed::ObservedTask;
use cellwright_cell::resource::Resources;
use cellwright_cell::scale::MetricSeries;
use cellwright_cell::spec::PackageRef;
use cellwright_cell::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

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
    pub log_epoch: u64,
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
    pub resource_pressure: Vec<ResourcePressureReport>,
    /// The machine's clock when the report was sent.
    pub wall: Time,
    /// What its tasks used, for history. Only reports whose answer may wait have it.
    #[serde(default)]
    pub book: UsageReport,
    /// Numbers that its tasks tell, of jobs that are scaled by them. Only reports whose answer may
    /// wait have them.
    #[serde(default)]
    pub numbers: Vec<TaskNumbers>,
}

impl AgentReport {
    /// Drops what the masters can do without for a while, until the report takes no more than
    /// `max_bytes` bytes: an agent that is not heard at all loses its tasks. The list of tasks is
    /// never dropped.
    pub fn shrink(&mut self, max_bytes: usize) {
        let fits = |report: &AgentReport| {
            postcard::experimental::serialized_size(report).is_ok_and(|bytes| bytes <= max_bytes)
        };
        let parts: [fn(&mut AgentReport); 6] = [
            |report| report.book.open = None,
            |report| report.numbers.clear(),
            |report| report.usage.clear(),
            // They are sent again, with a report that has room for them.
            |report| report.book.closed.clear(),
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

/// Numbers that one task told when it was last read. One that is not listed was not told, or was
/// refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskNumbers {
    pub task: TaskId,
    pub attempt: u32,
    /// In thousandths.
    pub told: Vec<(MetricSeries, u64)>,
    /// Readings that were refused since it started, whole or in part.
    pub refused: u64,
}

impl TaskNumbers {
    /// Thousandths of one number.
    #[must_use]
    pub fn of(&self, series: &MetricSeries) -> Option<u64> {
        self.told.iter().find(|(known, _)| known == series).map(|(_, number)| *number)
    }
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
    pub last_contact_age: Option<Span>,
    /// Another replica now owns this agent's polls: dial there.
    pub redirect: Option<String>,
    /// The machine was removed from the cell. Its agent is accepted again after it joined with a
    /// new token.
    pub is_revoked: bool,
    /// The newest incarnation of the machine in the log; 0 for none.
    pub incarnation: u64,
    /// The entries of its book that need not be sent again.
    pub usage_recorded: Option<UsageMark>,
    /// The time of the cell when this was answered.
    pub time: Time,
}

/// Request of an agent for other machines that have a package.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldersRequest {
    /// The requesting machine.
    pub machine: Name,
    pub digest: Token,
    /// The task that needs the package: others of its job fetch it too.
    pub task: Option<TaskId>,
}

/// A machine, and the address its agent published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageHolder {
    pub machine: Name,
    pub address: String,
}

/// Request of an agent: is the part that has dialled it still a member of the cell? A certificate
/// stays valid for the rest of its day, whatever became of its holder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MembershipCheckRequest {
    /// The requesting machine.
    pub machine: Name,
    pub part: PartKind,
    pub name: Name,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn report() -> Value {
        let amount = json!({ "cpu": 1, "ram": 2, "disk": 3, "disk_rate": 4 });
        json!({
            "machine": "m1", "incarnation": 5, "number": 6,
            "taken": { "log_epoch": 7, "index": 8 }, "hang": true, "orders_digest": 9,
            "spec": { "name": "m1", "capacity": amount },
            "tasks": [{ "task": 10, "attempt": 11, "log_saver_run": 12,
                "state": { "running": { "healthy": true } } }],
            "packages": [{ "name": "p", "digest": "ab", "bytes": 13 }],
            "usage": [{ "task": 10, "attempt": 11, "used": amount }],
            "resource_pressure": [{ "dimension": "cpu", "lasted": 14, "requested": 15 }],
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
