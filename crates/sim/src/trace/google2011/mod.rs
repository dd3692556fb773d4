//! Google cluster data 2011-2: one Borg cell of 12,583 machines over 29 days.
//!
//! Every table of the published set has a streaming reader in its own file. Resources are given by
//! the trace as fractions of the largest machine; they are read as micro-units (1.0 is 1,000,000):
//! requests and usage rounded up, capacities rounded down. Times are microseconds; the trace starts
//! at 600 s, and everything from before has time 0.
//!
//! Most experiments want the cell at one moment. [`read_t0`] reads it from two small derived
//! tables; [`snapshot_at`] replays the events up to any moment and gives the same value at 0.

mod files;
pub mod job_events;
pub mod machine_attributes;
pub mod machine_events;
mod replay;
mod snapshot;
mod t0;
pub mod task_constraints;
pub mod task_events;
pub mod task_usage;

pub use files::{TraceTable, find_files};
pub use job_events::JobEvent;
pub use machine_attributes::MachineAttribute;
pub use machine_events::{MachineEvent, MachineEventKind};
pub use replay::snapshot_at;
pub use snapshot::{MachineRow, Platform, Snapshot, TaskRow, TaskState, UserId};
pub use t0::{read_machines_t0, read_t0, read_tasks_t0};
pub use task_constraints::{ConstraintOperator, TaskConstraint};
pub use task_events::{EventKind, MissingInfo, TaskEvent};
pub use task_usage::TaskUsage;

/// Microseconds at which the trace starts; earlier events carry time 0.
pub const TRACE_START_US: u64 = 600_000_000;

/// Highest priority in the trace.
pub const MAX_PRIORITY: u8 = 11;

/// Lowest priority that counts as production: 9 and 10 are production, 11 is monitoring.
pub const FIRST_PRODUCTION_PRIORITY: u8 = 9;

/// Most latency-sensitive scheduling class; 0 is the least.
pub const MAX_SCHEDULING_CLASS: u8 = 3;

/// A machine, by the number the trace gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MachineId(pub u64);

/// A job, by the number the trace gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// A task: its job and its index in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskKey {
    pub job: JobId,
    pub index: u32,
}
