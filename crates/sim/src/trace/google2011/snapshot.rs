//! The cell at one moment: which machines are up, which tasks run where, which wait.
//!
//! Users and platforms are opaque hashes in the trace; here they are small numbers given in the
//! order in which the events first name them, which is also how the derived tables number them.

use std::collections::HashSet;

use crate::trace::ReadReport;

use super::{JobId, MachineId, TaskKey};

/// A machine type, numbered from 0 (`A` in the derived table).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Platform(pub u16);

/// A user, numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(pub u32);

/// A machine that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineRow {
    pub machine: MachineId,
    pub platform: Platform,
    pub cpu_micro: u64,
    pub memory_micro: u64,
}

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    Pending,
    /// On a machine, which is not always one of the snapshot's: the trace knows a few tasks on
    /// machines it never lists.
    Running(MachineId),
}

/// A task that runs or waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRow {
    pub task: TaskKey,
    pub state: TaskState,
    pub user: UserId,
    /// 0 (not latency-sensitive) to 3 (most).
    pub scheduling_class: u8,
    /// 0 to 11; production from 9.
    pub priority: u8,
    pub cpu_micro: u64,
    pub memory_micro: u64,
    pub disk_micro: u64,
    /// Whether the task must be on another machine than all other tasks of its job.
    pub different_machines: bool,
}

/// The cell at one moment, in the order in which the events first name things.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub time_us: u64,
    pub machines: Vec<MachineRow>,
    pub tasks: Vec<TaskRow>,
    /// Machines that are up, but of which the trace never gives the capacity; not in `machines`.
    pub machines_without_capacity: Vec<MachineId>,
    /// Tasks that run or wait, but of which the trace never gives the user, the class, a request
    /// or, when they run, the machine; not in `tasks`.
    pub incomplete_tasks: Vec<TaskKey>,
    pub reports: Vec<ReadReport>,
}

impl Snapshot {
    pub fn running(&self) -> usize {
        self.tasks.iter().filter(|task| matches!(task.state, TaskState::Running(_))).count()
    }

    pub fn pending(&self) -> usize {
        self.tasks.len() - self.running()
    }

    /// Jobs with at least one task.
    pub fn jobs(&self) -> usize {
        self.tasks.iter().map(|task| task.task.job).collect::<HashSet<JobId>>().len()
    }

    /// Sum of CPU and of memory over the machines, in micro-units.
    pub fn capacity_micro(&self) -> (u64, u64) {
        self.machines.iter().fold((0, 0), |(cpu, memory), machine| {
            (cpu + machine.cpu_micro, memory + machine.memory_micro)
        })
    }

    /// Running tasks whose machine is not in `machines`.
    pub fn running_on_unlisted_machines(&self) -> usize {
        let listed: HashSet<MachineId> = self.machines.iter().map(|row| row.machine).collect();
        let is_unlisted = |task: &&TaskRow| match task.state {
            TaskState::Running(machine) => !listed.contains(&machine),
            TaskState::Pending => false,
        };
        self.tasks.iter().filter(is_unlisted).count()
    }
}
