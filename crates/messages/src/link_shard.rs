//! What a replica that polls agents tells the leader.
//!
//! A link shard compares an agent's report with the replicated state and forwards only differences;
//! the comparison is against the log, not against the last report, so a lost forward is simply
//! found again at the next poll.

use cellwright_cell::command::{ReservationChange, TaskReport};
use cellwright_cell::id::MachineId;
use cellwright_cell::log_saver::LogSaverEnd;
use cellwright_cell::machine::{MachineSpec, ResourcePressureReport};
use cellwright_cell::name::Name;
use cellwright_cell::spec::PackageRef;
use cellwright_cell::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

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
    Reservations(Vec<ReservationChange>),
    /// Log saver runs that have ended.
    LogSavers {
        machine: MachineId,
        ends: Vec<LogSaverEnd>,
    },
    ResourcePressure {
        machine: MachineId,
        incarnation: u64,
        resource_pressure: Vec<ResourcePressureReport>,
    },
}
