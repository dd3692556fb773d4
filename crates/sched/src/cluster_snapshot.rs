//! The cluster snapshot: the dense mirror of a cell's state that the scheduler works on. One row
//! per machine, indexed by its id, in arrays that a scan walks from end to end.
//!
//! [`cellwright_cell::fit`] defines what fits; the snapshot answers the same question faster. It is
//! built from a state ([`ClusterSnapshot::from_state`]) and follows it by its events
//! ([`ClusterSnapshot::sync`]: changed rows are read again from the state, so the mirror cannot
//! drift), or it is filled by hand (`put_*`), as a simulator does. A pass writes its own placements
//! into the snapshot at once, so that the next task sees them. Rows written by a pass are
//! remembered until the next sync, which reads them again from the state: a group that was
//! rejected, or never proposed, left no event and would stay in the mirror for ever.
//!
//! The free amounts of a machine are one cache line: a scan streams through them, and a rescore of
//! a single machine is one memory access. Rejected: one array per dimension, which costs eight
//! cache misses per rescored machine and gains nothing without 64-bit vector compares.

pub(crate) mod change_log;
mod compare;
pub(crate) mod constraints;
pub(crate) mod counts;
mod gangs;
pub(crate) mod intern;
pub(crate) mod machines;
mod mirror;
mod reserved;
mod task_updates;

pub(crate) mod rows;
mod transaction;

use crate::class::{Class, ClassId, Classes, SUMS};
use crate::score::devices::DeviceDemand;
use crate::score::packing::DemandMix;
use crate::solve::score_cache::ScoreCache;
use cellwright_cell::constraint::{Attributes, Constraint};
use cellwright_cell::device::{Device, DeviceGrant};
use cellwright_cell::id::{JobId, MachineId, TaskId, UserId};
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::named::{NamedAmount, ResourceName};
use cellwright_cell::priority::Priority;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::{JobSpec, PackageRef};
use cellwright_cell::time::Time;
use change_log::ChangeLog;
use constraints::ConstraintTable;
use intern::Interner;
use machines::Machines;
use rows::{AllocRow, JobRow, TaskRow};
pub use rows::{Hold, PlacementState, TaskPhase};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the snapshot needs to know of a machine.
#[derive(Clone, Copy, Debug)]
pub struct MachineInfo<'a> {
    pub spec: &'a MachineSpec,
    pub up: bool,
    pub draining: bool,
    /// Accepts no non-production tasks for now.
    pub under_pressure: bool,
    /// Disk kept for log savers, charged by reservation.
    pub retained_disk: u64,
    pub ephemeral: &'a [NamedAmount],
    pub packages: &'a [PackageRef],
}

/// What the snapshot needs to know of a job. Jobs are in order of submission by their ids.
#[derive(Clone, Copy, Debug)]
pub struct JobInfo<'a> {
    pub user: UserId,
    pub spec: &'a Arc<JobSpec>,
    pub version: u32,
    /// The job named by `spec.alloc_set`, if there is one.
    pub alloc_set: Option<JobId>,
    /// Of a daemon: the machine of each task, by index. Empty for other jobs.
    pub machines: &'a Arc<BTreeMap<u32, MachineId>>,
    /// How many more of its tasks may be taken down; `None`: any number.
    pub budget: Option<u32>,
    /// Live tasks that are neither pending nor placed (stopping, deferred): a gang waits for them.
    pub in_transition: u32,
}

/// What the snapshot needs to know of a pending task.
#[derive(Clone, Copy, Debug)]
pub struct PendingTaskInfo<'a> {
    pub job: JobId,
    pub index: u32,
    pub attempt: u32,
    pub not_before: Time,
    /// Its charge in the sum of reservations once placed; `None`: its limits.
    pub reservation: Option<Resources>,
    /// Machines that it must not be placed on.
    pub avoid: &'a [MachineId],
}

/// What the snapshot needs to know of a task that holds resources.
#[derive(Clone, Copy, Debug)]
pub struct PlacedTaskInfo<'a> {
    pub job: JobId,
    pub index: u32,
    pub attempt: u32,
    /// The spec it runs under, which may be older than the job's.
    pub spec: &'a Arc<JobSpec>,
    pub version: u32,
    /// What counts as its limits: more than its spec says while its machine may still allow more.
    pub limits: Resources,
    pub phase: TaskPhase,
    pub machine: MachineId,
    pub alloc: Option<TaskId>,
    pub reservation: Resources,
    pub ports: &'a [u16],
    pub devices: &'a [DeviceGrant],
}

#[derive(Clone, Debug, Default)]
pub struct ClusterSnapshot {
    pub(crate) machines: Machines,
    /// By task slot.
    pub(crate) tasks: Vec<TaskRow>,
    pub(crate) pending: Vec<TaskId>,
    /// By job slot.
    pub(crate) jobs: Vec<Option<JobRow>>,
    /// Placed allocs.
    pub(crate) allocs: BTreeMap<TaskId, AllocRow>,
    /// Placed allocs of each set, sorted.
    pub(crate) alloc_sets: BTreeMap<JobId, Vec<TaskId>>,
    /// Tasks that hold room on a machine on which they do not run; see [`TaskRow::reserved`].
    pub(crate) reserved: BTreeSet<(MachineId, TaskId)>,
    pub(crate) classes: Classes,
    pub(crate) constraints: ConstraintTable,
    pub(crate) resource_names: Interner<ResourceName>,
    pub(crate) packages: Interner<PackageRef>,
    pub(crate) change_log: ChangeLog,
    /// Tasks of each gang that hold a place.
    pub(crate) gangs: BTreeMap<JobId, BTreeSet<TaskId>>,
    /// Grows when a task of a gang leaves its place: to preempt the others costs less.
    pub(crate) gang_departures: u64,
    /// Grows when a job's disruption budget changes: other tasks may become evictable.
    pub(crate) budget_changes: u64,
    pub(crate) undo_log: Option<Vec<rows::Undo>>,
    pub(crate) score_cache: ScoreCache,
    pub(crate) demand_mix: DemandMix,
    pub(crate) device_demand: DeviceDemand,
    pub(crate) made_at: u64,
    /// What passes wrote since the last sync; `None` when no state is followed, because then the
    /// snapshot itself is the source of truth.
    pub(crate) assumed: Option<AssumedChanges>,
    /// When a machine that a pending task avoids may be tried again.
    pub(crate) crash_avoidance_ends: BTreeSet<(Time, TaskId)>,
    /// Passes made on this snapshot; decides which user comes first.
    pub(crate) passes: u64,
    /// Tasks that one machine may hold; `None`: any number.
    pub(crate) max_tasks_per_machine: Option<u64>,
}

/// Rows written by a pass that the state may not have.
#[derive(Clone, Debug, Default)]
pub(crate) struct AssumedChanges {
    pub tasks: Vec<TaskId>,
    /// Jobs with an evicted task: their disruption budget was spent.
    pub jobs: Vec<JobId>,
    /// Machines on which an evicted task left disk. All other sums follow from the tasks.
    pub machines: Vec<MachineId>,
}

/// Reading.
impl ClusterSnapshot {
    #[must_use]
    pub fn new() -> ClusterSnapshot {
        ClusterSnapshot::default()
    }

    /// Slots for machines: every machine's id is below this.
    #[must_use]
    pub fn machine_slots(&self) -> usize {
        self.machines.len()
    }

    /// Machines that exist, whatever their status.
    pub fn machine_ids(&self) -> impl Iterator<Item = MachineId> + '_ {
        (0..self.machines.len()).filter(|m| self.machines.exists(*m)).map(|m| MachineId(m as u32))
    }

    /// Number of machines that exist.
    #[must_use]
    pub fn machine_count(&self) -> usize {
        self.machines.count
    }

    #[must_use]
    pub fn pending(&self) -> &[TaskId] {
        &self.pending
    }

    #[must_use]
    pub fn class(&self, id: ClassId) -> &Class {
        self.classes.get(id)
    }

    #[must_use]
    pub fn class_count(&self) -> usize {
        self.classes.len()
    }

    /// Where the task is placed; `None` for a task that is not in the snapshot.
    #[must_use]
    pub fn placement_of(&self, task: TaskId) -> Option<&PlacementState> {
        self.tasks
            .get(task.slot())
            .map(|row| &row.placement)
            .filter(|p| !matches!(p, PlacementState::Gone))
    }

    #[must_use]
    pub fn class_of(&self, task: TaskId) -> Option<ClassId> {
        self.placement_of(task)?;
        Some(self.tasks[task.slot()].class)
    }

    /// Job and index of a task.
    #[must_use]
    pub fn identity_of(&self, task: TaskId) -> Option<(JobId, u32)> {
        self.placement_of(task)?;
        let row = &self.tasks[task.slot()];
        Some((row.job, row.index))
    }

    #[must_use]
    pub fn attempt_of(&self, task: TaskId) -> Option<u32> {
        self.placement_of(task)?;
        Some(self.tasks[task.slot()].attempt)
    }

    #[must_use]
    pub fn job_spec(&self, job: JobId) -> Option<&Arc<JobSpec>> {
        self.job(job).map(|row| &row.spec)
    }

    #[must_use]
    pub fn user_of(&self, job: JobId) -> Option<UserId> {
        self.job(job).map(|row| row.user)
    }

    /// How many more tasks of this job may be taken down; `None`: any number.
    #[must_use]
    pub fn budget_of(&self, job: JobId) -> Option<u32> {
        self.job(job).and_then(|row| row.budget)
    }

    #[must_use]
    pub fn priority_of(&self, task: TaskId) -> Option<Priority> {
        self.class_of(task).map(|class| self.class(class).request.priority)
    }

    /// Top-level tasks and allocs that hold resources on the machine, in no particular order.
    #[must_use]
    pub fn holders(&self, machine: MachineId) -> &[TaskId] {
        self.machines.holders.get(machine.slot()).map_or(&[], |h| h)
    }

    /// Tasks inside a placed alloc.
    #[must_use]
    pub fn members(&self, alloc: TaskId) -> &[TaskId] {
        self.allocs.get(&alloc).map_or(&[], |row| &row.members)
    }

    /// Placed allocs of a set, sorted.
    #[must_use]
    pub fn allocs_of(&self, set: JobId) -> &[TaskId] {
        self.alloc_sets.get(&set).map_or(&[], |s| s)
    }

    #[must_use]
    pub fn capacity(&self, machine: MachineId) -> Resources {
        Resources::from_array(self.machines.shape_of(machine.slot()).capacity)
    }

    /// What is free for prod (by limits) and for all (by reservations); zero where over-committed.
    #[must_use]
    pub fn free(&self, machine: MachineId) -> (Resources, Resources) {
        split_sums(&self.machines.room[machine.slot()].free)
    }

    /// Same as [`ClusterSnapshot::free`], inside a placed alloc.
    #[must_use]
    pub fn free_in(&self, alloc: TaskId) -> Option<(Resources, Resources)> {
        self.allocs.get(&alloc).map(|row| split_sums(&row.room.free))
    }

    /// Hard and soft constraints of a class, in the job's order.
    #[must_use]
    pub fn constraints_of(&self, class: ClassId) -> &[Constraint] {
        let list = self.class(class).request.constraints;
        list.map_or(&[], |list| self.constraints.constraints(list))
    }

    /// What constraints see of the machine, apart from its name.
    #[must_use]
    pub fn attributes(&self, machine: MachineId) -> Option<&Attributes> {
        self.constraints.attributes(self.machines.profile[machine.slot()])
    }

    /// Devices of a machine with their free milli-shares, by position.
    #[must_use]
    pub fn devices(&self, machine: MachineId) -> Vec<(&Device, u16)> {
        let slots = &self.machines.devices[machine.slot()];
        let kinds = &self.machines.device_kinds;
        slots.iter().filter_map(|s| Some((kinds.get(s.kind)?, s.free()))).collect()
    }

    /// The name behind an interned named resource of a [`crate::class::ClassRequest`].
    #[must_use]
    pub fn resource_name(&self, id: u32) -> Option<&ResourceName> {
        self.resource_names.get(id)
    }

    pub(crate) fn job(&self, job: JobId) -> Option<&JobRow> {
        self.jobs.get(job.slot()).and_then(Option::as_ref)
    }
}

fn split_sums(free: &[i64; SUMS]) -> (Resources, Resources) {
    let at = |i: usize| free[i].max(0) as u64;
    let half = |from: usize| Resources::new(at(from), at(from + 1), at(from + 2), at(from + 3));
    (half(0), half(SUMS / 2))
}
