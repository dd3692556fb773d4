//! Rows of the cluster snapshot other than machines: tasks, jobs, placed allocs, and the undo log.

use super::counts::Counts;
use super::machines::Room;
use crate::class::ClassId;
use cellwright_cell::device::DeviceGrant;
use cellwright_cell::id::{JobId, MachineId, TaskId, UserId};
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where a task is placed, if it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PlacementState {
    /// Unknown, dead, stopping or deferred: neither pending nor placed.
    #[default]
    Gone,
    Pending {
        not_before: Time,
    },
    Held(Box<Hold>),
    /// [`PlacementState::Held`] without alloc, ports and devices: nearly all tasks, so they cost no
    /// heap.
    PlainHeld {
        machine: MachineId,
        reservation: Resources,
    },
}

/// The phase of a task that holds resources, which decides what its eviction means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskPhase {
    /// Does not run yet: its eviction disrupts nothing.
    #[default]
    Assigned,
    Running,
    /// Stops and starts again in place: cannot be evicted.
    Restarting,
}

/// What a task holds on one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub machine: MachineId,
    pub alloc: Option<TaskId>,
    pub reservation: Resources,
    pub ports: Vec<u16>,
    pub devices: Vec<DeviceGrant>,
}

impl PlacementState {
    pub(crate) fn from_hold(held: Hold) -> PlacementState {
        let plain = held.alloc.is_none() && held.ports.is_empty() && held.devices.is_empty();
        if plain {
            PlacementState::PlainHeld { machine: held.machine, reservation: held.reservation }
        } else {
            PlacementState::Held(Box::new(held))
        }
    }

    /// What is held, if anything is.
    #[must_use]
    pub fn to_hold(&self) -> Option<Hold> {
        match self {
            PlacementState::Held(hold) => Some(hold.as_ref().clone()),
            PlacementState::PlainHeld { machine, reservation } => Some(Hold {
                machine: *machine,
                alloc: None,
                reservation: *reservation,
                ports: Vec::new(),
                devices: Vec::new(),
            }),
            _ => None,
        }
    }

    #[must_use]
    pub fn machine(&self) -> Option<MachineId> {
        match self {
            PlacementState::Held(hold) => Some(hold.machine),
            PlacementState::PlainHeld { machine, .. } => Some(*machine),
            _ => None,
        }
    }

    #[must_use]
    pub fn alloc(&self) -> Option<TaskId> {
        match self {
            PlacementState::Held(hold) => hold.alloc,
            _ => None,
        }
    }

    #[must_use]
    pub fn reservation(&self) -> Resources {
        match self {
            PlacementState::Held(hold) => hold.reservation,
            PlacementState::PlainHeld { reservation, .. } => *reservation,
            _ => Resources::ZERO,
        }
    }

    #[must_use]
    pub fn ports(&self) -> &[u16] {
        match self {
            PlacementState::Held(hold) => &hold.ports,
            _ => &[],
        }
    }

    #[must_use]
    pub fn devices(&self) -> &[DeviceGrant] {
        match self {
            PlacementState::Held(hold) => &hold.devices,
            _ => &[],
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct TaskRow {
    pub job: JobId,
    pub index: u32,
    pub attempt: u32,
    pub class: ClassId,
    /// Position in the list of the pending, of its machine's holders or of its alloc's members.
    pub list_position: u32,
    pub phase: TaskPhase,
    /// Disk that stays charged on its machine when it is evicted.
    pub retained_on_exit: u64,
    pub placement: PlacementState,
    /// Room it holds on another machine while it runs where it is. Few tasks have any.
    pub reserved: Option<Box<Hold>>,
}

impl Default for TaskRow {
    fn default() -> Self {
        TaskRow {
            job: JobId(0),
            index: 0,
            attempt: 0,
            class: ClassId(0),
            list_position: 0,
            phase: TaskPhase::Assigned,
            retained_on_exit: 0,
            placement: PlacementState::Gone,
            reserved: None,
        }
    }
}

/// Placed tasks of one job by domain.
#[derive(Clone, Debug, Default)]
pub(crate) struct DomainCounts {
    pub machine: Counts,
    pub rack: Counts,
    pub power: Counts,
    pub cell: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct JobRow {
    pub user: UserId,
    pub spec: Arc<JobSpec>,
    pub version: u32,
    pub alloc_set: Option<JobId>,
    /// Of a daemon: the machine of each task, by index.
    pub machines: Arc<BTreeMap<u32, MachineId>>,
    pub budget: Option<u32>,
    pub in_transition: u32,
    /// Classes of tasks without override, avoided machine or own reservation, by version.
    pub plain_classes: Vec<(u32, ClassId)>,
    /// Tasks whose spec has spread limits.
    pub hard_spread_counts: Option<Box<DomainCounts>>,
    /// Tasks of a service that is preferably spread.
    pub soft_spread_counts: Option<Box<DomainCounts>>,
    /// Grows when a task leaves a domain: machines without a change of their own have become
    /// better.
    pub domain_departures: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct AllocRow {
    pub machine: MachineId,
    pub set: JobId,
    /// What tasks inside may hold in all: less than it counts for on its machine, where it is about
    /// to become smaller.
    pub capacity: Resources,
    pub room: Room,
    pub members: Vec<TaskId>,
}

/// One step to undo.
#[derive(Clone, Debug)]
pub(crate) enum Undo {
    /// The task was placed: make it pending again.
    Unassign { task: TaskId, not_before: Time },
    /// The task was evicted: put it back.
    /// `spent`: of its job's disruption budget, which can be exhausted: a higher band needs none.
    Restore { task: TaskId, hold: Hold, phase: TaskPhase, retained_on_exit: u64, spent: u32 },
    /// The task released room that it held elsewhere: hold it again.
    Reserve { task: TaskId, hold: Hold },
}
