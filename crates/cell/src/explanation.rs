//! Why a task waits, as data: what the scheduler answers, programs read, and
//! [`crate::words::explanation`] puts into sentences.
//!
//! It stands here, with the other nouns, and not in the scheduler that makes it: then whoever words
//! it needs no scheduler, and the scheduler needs no words.

use crate::id::{MachineId, TaskId};
use crate::isolation::HostVolume;
use crate::name::Token;
use crate::named::ResourceName;
use crate::priority::{Band, Priority};
use crate::resource::{Dimension, Resources};
use crate::spec::Domain;
use crate::time::{Span, Time};
use serde::Serialize;

/// Code of the machines on which the task fits as things are; the other codes are those of
/// [`crate::reason::InfeasibleReason`].
pub const FITS: &str = "fits";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Explanation {
    pub priority: Priority,
    pub limits: Resources,
    /// What a placement would be charged by reservation.
    pub reservation: Resources,
    pub machines_total: u32,
    /// Most machines first; the numbers add up to `machines_total`.
    pub reasons: Vec<ReasonCount>,
    /// The nearest change with which it would fit somewhere; `None` when it fits as it is or when
    /// no change of one thing, or of two limits, helps.
    pub counterfactual: Option<Counterfactual>,
    /// The other changes of one thing that would help, nearest first.
    pub alternatives: Vec<Counterfactual>,
    /// Machines that would take it if nothing were on them, tasks of its own job included.
    pub when_empty: u32,
    /// Of them, those on which the job's spread limits stand against it now.
    pub kept_apart: u32,
    /// Machines that drain or are down and would take it, open again, if nothing were on them.
    pub once_open: u32,
    /// Limits beyond the largest machine there is.
    pub too_large: Vec<TooLarge>,
    /// The machine that comes nearest to taking it; `None` when it fits somewhere.
    pub nearest: Option<NearestMachine>,
    /// Whom it would have to evict; `None` when it fits or when no eviction helps.
    pub victims: Option<Victims>,
    /// Tasks that must find a place together, for a gang.
    pub gang: Option<u32>,
    /// Only for a task, not for a class.
    pub queue_position: Option<QueuePosition>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReasonCount {
    /// A code of [`crate::reason::InfeasibleReason`], or [`FITS`].
    pub code: &'static str,
    pub machines: u32,
    pub detail: Detail,
}

/// What a reason is about. `machine` is the one that comes nearest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Detail {
    /// The code says it all.
    Nothing,
    Constraint {
        position: u32,
        constraint: String,
    },
    /// A folder that the machines do not lend, or not for writing.
    Volume(HostVolume),
    Spread {
        domain: Domain,
        limit: u32,
    },
    /// The first few holders of the port.
    StaticPort {
        port: u16,
        holders: Vec<PortHolder>,
    },
    DynamicPorts {
        requested: u64,
        available: u64,
        machine: Option<MachineRef>,
    },
    Device {
        kind: Token,
        /// Any of these; empty: any at all.
        models: Vec<Token>,
        requested: u32,
        milli: u16,
        available: u64,
        machine: Option<MachineRef>,
    },
    Named {
        name: ResourceName,
        requested: u64,
        available: u64,
        machine: Option<MachineRef>,
    },
    Resource {
        dimension: Dimension,
        requested: u64,
        available: u64,
        machine: Option<MachineRef>,
    },
    /// As many as a machine may hold.
    Tasks {
        most: u64,
    },
}

/// The machine with the fewest obstacles, and all of them: open machines come first, and of those
/// with as many obstacles the one that lacks least.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NearestMachine {
    pub machine: MachineRef,
    /// The alloc on it, for tasks inside an alloc set.
    pub alloc: Option<TaskRef>,
    /// In order of precedence, each as the reason of one machine.
    pub obstacles: Vec<ReasonCount>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortHolder {
    pub task: TaskRef,
    pub machine: MachineRef,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TooLarge {
    pub dimension: Dimension,
    pub requested: u64,
    /// The largest capacity of any machine.
    pub largest: u64,
}

impl Explanation {
    /// Machines on which the task fits as things are.
    #[must_use]
    pub fn fitting(&self) -> u32 {
        self.reasons.iter().filter(|r| r.code == FITS).map(|r| r.machines).sum()
    }
}

/// Relative change, in thousandths, of what the owner of the task cannot change.
pub const NOT_OURS: u32 = 1001;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Change {
    /// A lower limit.
    Resource {
        dimension: Dimension,
        requested: u64,
        at_most: u64,
    },
    /// Two lower limits together; only given when no single change helps.
    TwoResources([Lowered; 2]),
    Ports {
        requested: u64,
        at_most: u64,
    },
    /// `at_most` 0 means without it.
    Named {
        name: ResourceName,
        requested: u64,
        at_most: u64,
    },
    /// `at_most` 0 means without it. `position` is that in the list of device requests.
    DeviceCount {
        position: u32,
        kind: Token,
        requested: u64,
        at_most: u64,
    },
    DeviceShares {
        position: u32,
        kind: Token,
        requested: u64,
        at_most: u64,
    },
    /// A higher spread limit.
    Spread {
        domain: Domain,
        limit: u32,
        at_least: u64,
    },
    DropConstraint {
        position: u32,
        constraint: String,
    },
    /// The folder not borrowed.
    DropVolume(HostVolume),
    DropStaticPort {
        port: u16,
    },
    /// Draining machines opened again.
    DrainEnded,
    /// Machines that are down come back, and are not draining then.
    MachineBack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Lowered {
    pub dimension: Dimension,
    pub requested: u64,
    pub at_most: u64,
}

/// A change with which the task would fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Counterfactual {
    pub change: Change,
    /// Machines that would take it then.
    pub machines: u32,
    /// The first of them.
    pub machine: MachineRef,
    /// The alloc on it, for tasks inside an alloc set.
    pub alloc: Option<TaskRef>,
    /// Size of the change in thousandths of what was asked.
    pub permille: u32,
}

impl Counterfactual {
    /// Whether the owner of the task can make the change.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.permille < NOT_OURS
    }
}

/// Where a waiting task stands in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QueuePosition {
    /// One is next. `None`: not in the queue yet, because of `not_before`.
    pub position: Option<u32>,
    /// Tasks in the queue.
    pub waiting: u32,
    /// Of them, those with a higher priority than this one.
    pub higher_priority: u32,
    /// Back-off or lease: not tried before this time.
    pub not_before: Option<Time>,
    /// How long that is from now.
    pub tried_in: Option<Span>,
}

/// Why a victim may not be taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Obstacle {
    /// Its priority is equal or higher.
    NotLower,
    /// Inside a prod band nobody preempts anybody.
    SameProdBand(Band),
    /// Its job may not lose that many more tasks now.
    Budget { left: u32 },
    /// It is stopping to start again in place, and cannot be stopped twice.
    Restarting,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RequiredVictim {
    pub task: TaskRef,
    pub priority: Priority,
    /// `None`: it may be taken.
    pub obstacle: Option<Obstacle>,
}

/// The victims that would make room on one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Victims {
    pub machine: MachineRef,
    pub alloc: Option<TaskRef>,
    pub tasks: Vec<RequiredVictim>,
    /// Whether all of them may be taken.
    pub allowed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MachineRef {
    pub id: MachineId,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TaskRef {
    pub id: TaskId,
    pub name: String,
}
