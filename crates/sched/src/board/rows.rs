//! Rows of the board that are not machines: tasks, jobs, placed allocs, and the undo journal.

use super::counts::Counts;
use super::machines::Room;
use crate::class::ClassId;
use cellwright_cell::device::DeviceGrant;
use cellwright_cell::id::{JobId, MachineId, TaskId, UserId};
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::Time;
use std::sync::Arc;

/// Where a task stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Unknown, dead, stopping or deferred: it neither waits nor holds.
    #[default]
    Gone,
    Pending {
        not_before: Time,
    },
    Held(Box<Held>),
    /// [`Place::Held`] without alloc, ports and devices: nearly all tasks, so they cost no heap.
    HeldPlain {
        machine: MachineId,
        reservation: Resources,
    },
}

/// How far a task that holds resources has come, which decides what its eviction means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Holding {
    /// Does not run yet: its eviction disrupts nobody.
    #[default]
    Assigned,
    Running,
    /// Stops to start again in place: cannot be evicted.
    Restarting,
}

/// What a task holds in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub machine: MachineId,
    pub alloc: Option<TaskId>,
    pub reservation: Resources,
    pub ports: Vec<u16>,
    pub devices: Vec<DeviceGrant>,
}

impl Place {
    pub(crate) fn held(held: Held) -> Place {
        let plain = held.alloc.is_none() && held.ports.is_empty() && held.devices.is_empty();
        match plain {
            true => Place::HeldPlain { machine: held.machine, reservation: held.reservation },
            false => Place::Held(Box::new(held)),
        }
    }

    /// What is held, if anything is.
    #[must_use]
    pub fn to_held(&self) -> Option<Held> {
        match self {
            Place::Held(held) => Some(held.as_ref().clone()),
            Place::HeldPlain { machine, reservation } => Some(Held {
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
            Place::Held(held) => Some(held.machine),
            Place::HeldPlain { machine, .. } => Some(*machine),
            _ => None,
        }
    }

    #[must_use]
    pub fn alloc(&self) -> Option<TaskId> {
        match self {
            Place::Held(held) => held.alloc,
            _ => None,
        }
    }

    #[must_use]
    pub fn reservation(&self) -> Resources {
        match self {
            Place::Held(held) => held.reservation,
            Place::HeldPlain { reservation, .. } => *reservation,
            _ => Resources::ZERO,
        }
    }

    #[must_use]
    pub fn ports(&self) -> &[u16] {
        match self {
            Place::Held(held) => &held.ports,
            _ => &[],
        }
    }

    #[must_use]
    pub fn devices(&self) -> &[DeviceGrant] {
        match self {
            Place::Held(held) => &held.devices,
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
    pub at: u32,
    pub holding: Holding,
    /// Disk that stays charged on its machine when it is evicted.
    pub leaves_disk: u64,
    pub place: Place,
    /// Room it holds on another machine while it runs where it is. Nearly nobody has some.
    pub reserved: Option<Box<Held>>,
}

impl Default for TaskRow {
    fn default() -> Self {
        TaskRow {
            job: JobId(0),
            index: 0,
            attempt: 0,
            class: ClassId(0),
            at: 0,
            holding: Holding::Assigned,
            leaves_disk: 0,
            place: Place::Gone,
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
}

#[derive(Clone, Debug)]
pub(crate) struct JobRow {
    pub user: UserId,
    pub spec: Arc<JobSpec>,
    pub version: u32,
    pub alloc_set: Option<JobId>,
    pub budget: Option<u32>,
    pub absent: u32,
    /// Classes of tasks without override, avoided machine or own reservation, by version.
    pub plain_classes: Vec<(u32, ClassId)>,
    /// Tasks whose spec has spread limits.
    pub strict: Option<Box<DomainCounts>>,
    /// Tasks of a service that is better spread.
    pub soft: Option<Box<DomainCounts>>,
    /// Grows when a task leaves a domain: machines nobody touched have become better.
    pub loosened: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct AllocRow {
    pub machine: MachineId,
    pub set: JobId,
    pub room: Room,
    pub members: Vec<TaskId>,
}

/// One step back.
#[derive(Clone, Debug)]
pub(crate) enum Undo {
    /// The task was placed: make it pending again.
    Vacate { task: TaskId, not_before: Time },
    /// The task was evicted: put it back.
    Occupy { task: TaskId, held: Held, holding: Holding, leaves_disk: u64 },
    /// The task gave up room that it held elsewhere: hold it again.
    Reserve { task: TaskId, held: Held },
}
