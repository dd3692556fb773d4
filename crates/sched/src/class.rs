//! Equivalence classes: tasks that no decision can tell apart. Feasibility and score are computed
//! once per class and machine, not once per task (B33).
//!
//! The key is everything that decides where a task fits and how its placement scores. The job is
//! part of it only when its other tasks matter (spread); a task that crashed on machines carries
//! the machines it avoids. Rejected: hashing the whole spec, which would tell apart tasks that
//! differ in their command line only.

use crate::cluster_snapshot::intern::Interner;
use crate::cluster_snapshot::machines::SchedulableStatus;
use cellwright_cell::device::DeviceRequest;
use cellwright_cell::id::{JobId, MachineId};
use cellwright_cell::priority::{Band, Priority};
use cellwright_cell::resource::{DIMENSIONS, Resources};
use cellwright_cell::spec::SpreadLimit;
use serde::{Deserialize, Serialize};

/// Dimensions by limits, then by reservations.
pub(crate) const SUMS: usize = 2 * DIMENSIONS;

/// An equivalence class of one [`crate::ClusterSnapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClassId(pub u32);

impl ClassId {
    #[must_use]
    #[inline]
    pub fn slot(self) -> usize {
        self.0 as usize
    }
}

/// Which tasks of the same job count against a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Siblings {
    pub job: JobId,
    /// Tasks in the job: what one domain's share is measured against.
    pub count: u32,
    /// The job has spread limits; otherwise spreading is only preferred.
    pub strict: bool,
}

/// What a task requests of a machine; the identity of its class.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClassRequest {
    pub priority: Priority,
    /// Packed by its limits: latency-sensitive production.
    pub by_limits: bool,
    pub limits: Resources,
    /// Its charge in the sum of reservations once placed.
    pub reservation: Resources,
    /// Ports the system chooses.
    pub ports: u8,
    pub static_ports: Vec<u16>,
    /// Interned name and amount.
    pub named: Vec<(u32, u64)>,
    pub devices: Vec<DeviceRequest>,
    /// Interned constraints and volumes; `None` when there are none.
    pub constraints: Option<u32>,
    /// Interned packages, sorted.
    pub packages: Vec<u32>,
    /// Runs inside allocs of this set. A set that does not exist is a set without allocs.
    pub alloc_set: Option<AllocSet>,
    /// The task's index, where it decides which alloc of the set the task may enter.
    pub alloc_index: Option<u32>,
    /// Hard spread limits, in the job's order.
    pub spread: Vec<SpreadLimit>,
    pub siblings: Option<Siblings>,
    /// Machines the task crashed on too often, sorted.
    pub avoid: Vec<MachineId>,
    /// The only machine for it: each task of a daemon has its own.
    pub machine: Option<MachineId>,
}

/// The alloc set that a task runs in, if it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AllocSet(pub Option<JobId>);

#[derive(Clone, Debug)]
pub struct Class {
    pub request: ClassRequest,
    /// What must be free in each sum; `i64::MIN` where the sum does not matter.
    pub(crate) need: [i64; SUMS],
    /// What is taken from each sum.
    pub(crate) charge: [i64; SUMS],
    /// Nothing but the machine's status and room decides.
    pub(crate) is_plain: bool,
    /// Accepts machines of this status and above.
    pub(crate) min_status: SchedulableStatus,
}

impl Class {
    /// A class that need not belong to any task: for what-if questions.
    #[must_use]
    pub fn of(request: ClassRequest) -> Class {
        let is_plain = request.ports == 0
            && request.static_ports.is_empty()
            && request.named.is_empty()
            && request.devices.is_empty()
            && request.constraints.is_none()
            && request.packages.is_empty()
            && request.alloc_set.is_none()
            && request.siblings.is_none()
            && request.avoid.is_empty()
            && request.machine.is_none();
        let charge = charges(request.by_limits, request.limits, request.reservation);
        let need = charge.map(|charge| if charge == 0 { i64::MIN } else { charge });
        let min_status = if request.priority.is_prod() {
            SchedulableStatus::UnderPressure
        } else {
            SchedulableStatus::Ready
        };
        Class { request, need, charge, is_plain, min_status }
    }
}

/// What a task adds to the sums of its machine or alloc: some by limits, all by reservations.
#[inline]
pub(crate) fn charges(by_limits: bool, limits: Resources, reservation: Resources) -> [i64; SUMS] {
    let limits = if by_limits { limits } else { Resources::ZERO };
    let (l, r) = (limits.to_array(), reservation.to_array());
    // Quantities are at most 2^50, so nothing is lost.
    std::array::from_fn(|i| if i < DIMENSIONS { l[i] as i64 } else { r[i - DIMENSIONS] as i64 })
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Classes {
    ids: Interner<ClassRequest>,
    rows: Vec<Class>,
    /// Tasks of the class that are pending or placed: the cell's demand mix.
    task_counts: Vec<u32>,
    total: u64,
    /// Limits of all members outside alloc sets, by band: shows how far the mix has drifted.
    limits: [[u128; DIMENSIONS]; Band::ALL.len()],
}

impl Classes {
    pub fn intern(&mut self, request: ClassRequest) -> ClassId {
        let id = self.ids.intern(&request);
        if id as usize == self.rows.len() {
            self.rows.push(Class::of(request));
            self.task_counts.push(0);
        }
        ClassId(id)
    }

    /// Counts one task of the class that comes or goes.
    pub fn count_task(&mut self, id: ClassId, add: bool) {
        let members = &mut self.task_counts[id.slot()];
        if add {
            (*members, self.total) = (*members + 1, self.total + 1)
        } else {
            (*members, self.total) = (*members - 1, self.total - 1)
        }
        let request = &self.rows[id.slot()].request;
        if request.alloc_set.is_some() {
            return;
        }
        let sums = &mut self.limits[request.priority.band() as usize];
        for (sum, limit) in sums.iter_mut().zip(request.limits.to_array()) {
            if add { *sum += u128::from(limit) } else { *sum -= u128::from(limit) }
        }
    }

    pub fn limits_by_band(&self) -> &[[u128; DIMENSIONS]; Band::ALL.len()] {
        &self.limits
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// Classes with their number of tasks.
    pub fn demand(&self) -> impl Iterator<Item = (&ClassRequest, u32)> {
        self.rows.iter().map(|c| &c.request).zip(self.task_counts.iter().copied())
    }

    #[inline]
    pub fn get(&self, id: ClassId) -> &Class {
        &self.rows[id.slot()]
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }
}
