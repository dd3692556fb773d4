//! A plan: what the scheduler wants done, as groups that are accepted or refused whole (B28).
//! An immutable value that names what it was made against; it has no choices left in it.

use crate::device::DeviceGrant;
use crate::id::{MachineId, TaskId};
use serde::{Deserialize, Serialize};

/// One task put on one machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Assignment {
    pub task: TaskId,
    /// The attempt the scheduler saw; a task that moved on meanwhile is not placed twice.
    pub attempt: u32,
    pub machine: MachineId,
    /// For tasks of a job inside an alloc set.
    pub alloc: Option<TaskId>,
    /// Static ports first in spec order, then the chosen ones.
    pub ports: Vec<u16>,
    pub devices: Vec<DeviceGrant>,
}

/// A running task that gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Victim {
    pub task: TaskId,
    pub attempt: u32,
}

/// All or nothing: one task; a preemptor with its victims; a gang; an alloc with its tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Group {
    pub victims: Vec<Victim>,
    pub assignments: Vec<Assignment>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Log index of the snapshot the plan was made from; for the record, not for refusal: each
    /// group is rechecked against the state it meets.
    pub made_at: u64,
    pub groups: Vec<Group>,
}
