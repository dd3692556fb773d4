//! Daemons: jobs with one task on every machine they may run on, as machines come and go (B2, B9).
//! Kubernetes calls this a `DaemonSet`, Nomad a system job.
//!
//! The job's row says which machine each task is for ([`Job::machines`]), so a task has the same
//! index for as long as its machine is one of the job's, through restarts, updates and preemption.
//! Placement is ordinary: the task of a machine is pending like any other, preempts like any other,
//! and fits on its machine alone. What is decided here is which machines are the job's: those that
//! are up and satisfy its hard constraints. A machine that drains takes no new daemon; the daemons
//! that it has leave after everything else, and hold up no drain.
//!
//! Rejected: a count that somebody else keeps equal to the number of machines, with a spread limit
//! of one for each. Then the tasks have no machines of their own: an update moves them about, a
//! machine that is full is somebody else's to fill, and nobody can say which machine lacks its
//! task. Rejected: agents that start daemons by themselves. They would be in no sum that placement
//! is decided by.

use crate::id::MachineId;
use crate::job::{Job, JobState};
use crate::machine::{Machine, MachineStatus};
use crate::reason::Reason;
use crate::spec::{JobKind, JobSpec};
use crate::state::State;
use crate::{constraint::Constraint, fit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What has to change for a daemon to have a task for each of its machines and for no other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineChanges {
    /// Machines without a task, in order.
    pub join: Vec<MachineId>,
    /// Tasks whose machine is no longer one of the job's, and why.
    pub leave: Vec<(u32, Reason)>,
}

/// A daemon among the machines of its cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DaemonMachines {
    /// Machines that it may run on, whatever their state.
    pub matching: u32,
    /// Those of them with a task, running or not.
    pub with_task: u32,
    /// Those without one that are down.
    pub down: u32,
    /// Those without one that drain.
    pub draining: u32,
    /// Those without one because the owner's quota, or a limit for each user, does not suffice.
    pub without_quota: u32,
}

impl Job {
    #[must_use]
    pub fn is_daemon(&self) -> bool {
        self.spec().kind == JobKind::Daemon
    }

    /// The only machine for the task at `index`; `None` for tasks of other jobs.
    #[must_use]
    pub fn machine_for(&self, index: u32) -> Option<MachineId> {
        self.machines.get(&index).copied()
    }

    /// Whether the job wants a task at `index`, now.
    #[must_use]
    pub fn wants(&self, index: u32) -> bool {
        self.wants_by(self.spec(), index)
    }

    /// Whether a version of the job wants a task at `index`. The machines of a daemon are those of
    /// all its versions.
    pub(crate) fn wants_by(&self, spec: &JobSpec, index: u32) -> bool {
        match spec.kind {
            JobKind::Daemon => self.machines.contains_key(&index),
            JobKind::Tasks | JobKind::AllocSet => index < spec.count,
        }
    }

    /// How many tasks it wants.
    #[must_use]
    pub fn wanted(&self) -> u32 {
        if self.is_daemon() { self.machines.len() as u32 } else { self.spec().count }
    }

    /// Rows that its tasks have or had: the indices of all of them are below this.
    #[must_use]
    pub fn index_end(&self) -> u32 {
        if self.is_daemon() { self.tasks.len() as u32 } else { self.spec().count }
    }
}

/// Whether tasks of the spec may run on the machine, whatever its state and its room.
fn may_run(spec: &JobSpec, row: &Machine) -> bool {
    let holds = |c: &Constraint| !c.is_hard() || c.holds_on(&row.spec);
    spec.constraints.iter().all(holds) && fit::missing_host_volume(spec, row).is_none()
}

/// Why the task for `machine` has to leave; `None`: it stays.
fn reason_to_leave(state: &State, spec: &JobSpec, machine: MachineId) -> Option<Reason> {
    let Some(row) = state.machines().get(machine) else { return Some(Reason::MachineRemoved) };
    if row.status != MachineStatus::Up {
        Some(Reason::MachineDown)
    } else if row.draining && !has_other_tasks(state, machine) {
        Some(Reason::Drained)
    } else {
        (!may_run(spec, row)).then_some(Reason::MachinesChanged)
    }
}

/// Whether anything but daemons is still on the machine.
fn has_other_tasks(state: &State, machine: MachineId) -> bool {
    let tasks = state.machine_load(machine).map_or(&[][..], |load| &load.tasks);
    tasks.iter().any(|id| {
        let job = state.tasks().get(*id).and_then(|row| state.jobs().get(row.job));
        job.is_none_or(|job| !job.is_daemon())
    })
}

/// What has to change; nothing for other jobs, and for daemons that were stopped.
#[must_use]
pub fn machine_changes(state: &State, job: &Job) -> MachineChanges {
    if !job.is_daemon() || job.state != JobState::Active {
        return MachineChanges::default();
    }
    let spec = job.spec();
    let served: BTreeSet<MachineId> = job.machines.values().copied().collect();
    let lacks = |(id, row): &(MachineId, &Machine)| {
        row.is_schedulable() && !served.contains(id) && may_run(spec, row)
    };
    let leave = |(index, machine): (&u32, &MachineId)| {
        Some((*index, reason_to_leave(state, spec, *machine)?))
    };
    MachineChanges {
        join: state.machines().iter().filter(lacks).map(|(id, _)| id).collect(),
        leave: job.machines.iter().filter_map(leave).collect(),
    }
}

/// Whether the daemon has to follow its machines. One that lacks quota for some of them is tried
/// again whenever this is asked: what would suffice is decided by `apply`.
#[must_use]
pub fn is_behind(state: &State, job: &Job) -> bool {
    let changes = machine_changes(state, job);
    !changes.join.is_empty() || !changes.leave.is_empty() || job.machines_left_out > 0
}

/// The daemon among the machines of its cell; `None` for other jobs.
#[must_use]
pub fn machines_of(state: &State, job: &Job) -> Option<DaemonMachines> {
    if !job.is_daemon() {
        return None;
    }
    let spec = job.spec();
    let served: BTreeSet<MachineId> = job.machines.values().copied().collect();
    let mut found =
        DaemonMachines { without_quota: job.machines_left_out, ..DaemonMachines::default() };
    for (id, row) in state.machines().iter().filter(|(_, row)| may_run(spec, row)) {
        found.matching += 1;
        if served.contains(&id) {
            found.with_task += 1;
        } else if row.status != MachineStatus::Up {
            found.down += 1;
        } else if row.draining {
            found.draining += 1;
        }
    }
    Some(found)
}
