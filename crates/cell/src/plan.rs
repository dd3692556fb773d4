//! A plan: the scheduler's decisions, as groups that are accepted or rejected whole (B28). An
//! immutable value that names the state it was made against; it leaves no choices to `apply`.

use crate::device::DeviceGrant;
use crate::id::{MachineId, TaskId};
use serde::{Deserialize, Serialize};

/// One task put on one machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Assignment {
    pub task: TaskId,
    /// The attempt the scheduler saw; a task that changed meanwhile is not placed twice.
    pub attempt: u32,
    pub machine: MachineId,
    /// For tasks of a job inside an alloc set.
    pub alloc: Option<TaskId>,
    /// Static ports first in spec order, then the chosen ones.
    pub ports: Vec<u16>,
    pub devices: Vec<DeviceGrant>,
}

/// A running task that is preempted.
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
    /// Log index of the snapshot the plan was made from; for the record, not for rejection: each
    /// group is rechecked against the state it meets.
    pub made_at: u64,
    pub groups: Vec<Group>,
}
