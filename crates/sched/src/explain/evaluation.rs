//! Evaluates one class against one target: everything that fails there, in a form that is cheap to
//! count.
//!
//! [`crate::feasible::all_reasons`] gives the same result as data, but evaluates every constraint
//! against every machine. Here constraints are evaluated once per attribute profile, and classes
//! that request only room never leave the arrays, because an explanation evaluates every machine of
//! the cell.

use super::victims::HolderIndex;
use crate::class::{Class, ClassRequest};
use crate::cluster_snapshot::ClusterSnapshot;
use crate::cluster_snapshot::constraints::NONE_FAILING;
use crate::cluster_snapshot::machines::{Room, SchedulableStatus};
use crate::feasible::{self, PlacementTarget};
use cellwright_cell::constraint::AttributeValue;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::isolation::HostVolume;
use cellwright_cell::named::UNBOUNDED;
use cellwright_cell::reason::InfeasibleReason;
use cellwright_cell::resource::{DIMENSIONS, Resources};
use std::collections::BTreeMap;

/// A class prepared for a walk over all machines.
pub(super) struct PreparedClass<'a> {
    pub snapshot: &'a ClusterSnapshot,
    pub class: &'a Class,
    pub holders: &'a HolderIndex,
    /// The class without its constraints and without room, which are evaluated faster here.
    bare_class: Class,
    /// By attribute profile, or by machine slot where a constraint names machines: the hard
    /// constraints that fail, then the volumes that are not granted, as bits by position.
    masks: Vec<u128>,
    masks_by_machine: bool,
    /// Constraints of the class, hard and soft: where the positions of volumes begin.
    constraints: u32,
    /// For classes inside an alloc set: its allocs by machine, sorted.
    allocs: Vec<(MachineId, TaskId)>,
}

/// One of the requirements of a class on a machine's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Requirement {
    /// Position among the constraints.
    Constraint(u32),
    /// Position among the host volumes.
    Volume(u32),
}

/// Everything that fails at one target.
#[derive(Clone, Debug, Default)]
pub(super) struct TargetEvaluation {
    /// Hard constraints and volumes, as bits by position.
    pub constraints: u128,
    /// Dimensions of room, as bits.
    pub room_dimensions: u8,
    /// The rest, in precedence order.
    pub others: Vec<InfeasibleReason>,
}

impl TargetEvaluation {
    /// How many separate things fail.
    pub fn failures(&self) -> usize {
        self.constraints.count_ones() as usize
            + self.room_dimensions.count_ones() as usize
            + self.others.len()
    }

    /// Whether only room, ports, devices or named resources fail: what an eviction resolves.
    pub fn is_resolvable(&self) -> bool {
        self.constraints == 0 && self.others.iter().all(is_resolvable)
    }

    /// Whether spread limits are exceeded and otherwise only things fail that an eviction resolves.
    pub fn is_resolvable_but_for_spread(&self) -> bool {
        let is_spread = |m: &InfeasibleReason| matches!(m, InfeasibleReason::Spread { .. });
        self.constraints == 0
            && self.others.iter().any(is_spread)
            && self.others.iter().all(|m| is_spread(m) || is_resolvable(m))
    }

    /// Whether the machine accepts no tasks at present and otherwise only things fail that an
    /// eviction resolves, evictions of its own job's tasks included.
    pub fn is_resolvable_once_open(&self) -> bool {
        let closed = |m: &InfeasibleReason| {
            matches!(m, InfeasibleReason::MachineDown | InfeasibleReason::MachineDraining)
        };
        let resolved = |m: &InfeasibleReason| {
            matches!(m, InfeasibleReason::Spread { .. }) || *m >= FIRST_RESOLVABLE
        };
        self.constraints == 0
            && self.others.iter().any(closed)
            && self.others.iter().all(|m| closed(m) || resolved(m))
    }

    /// What takes precedence over the machine's constraints here: its state, or that the task is
    /// for another machine.
    pub fn unavailable_reason(&self) -> Option<&InfeasibleReason> {
        self.others.first().filter(|m| **m <= InfeasibleReason::MachineDraining)
    }
}

const FIRST_RESOLVABLE: InfeasibleReason = InfeasibleReason::StaticPort { port: 0, holder: None };

/// A machine under pressure accepts no more tasks, whichever leave.
fn is_resolvable(infeasible_reason: &InfeasibleReason) -> bool {
    *infeasible_reason >= FIRST_RESOLVABLE
        && *infeasible_reason != InfeasibleReason::ResourcePressure
}

impl<'a> PreparedClass<'a> {
    pub fn new(
        snapshot: &'a ClusterSnapshot,
        holders: &'a HolderIndex,
        class: &'a Class,
    ) -> PreparedClass<'a> {
        let bare_class = Class::of(ClassRequest {
            constraints: None,
            limits: Resources::ZERO,
            reservation: Resources::ZERO,
            ..class.request.clone()
        });
        let list = class.request.constraints;
        let masks = list.map_or(vec![], |list| failing_masks(snapshot, list));
        let masks_by_machine = list.is_some_and(|list| snapshot.constraints.names_machine(list));
        let constraints =
            list.map_or(0, |list| snapshot.constraints.constraints(list).len()) as u32;
        let set = class.request.alloc_set.and_then(|set| set.0);
        let placed = set.map_or(&[][..], |set| snapshot.allocs_of(set));
        let mut allocs: Vec<(MachineId, TaskId)> =
            placed.iter().filter_map(|a| Some((snapshot.allocs.get(a)?.machine, *a))).collect();
        allocs.sort_unstable();
        PreparedClass {
            snapshot,
            class,
            holders,
            bare_class,
            masks,
            masks_by_machine,
            constraints,
            allocs,
        }
    }

    /// What a bit of [`TargetEvaluation::constraints`] stands for.
    pub fn requirement(&self, position: u32) -> Requirement {
        match position.checked_sub(self.constraints) {
            None => Requirement::Constraint(position),
            Some(at) => Requirement::Volume(at),
        }
    }

    /// The host volumes of the class.
    pub fn host_volumes(&self) -> &'a [HostVolume] {
        self.class
            .request
            .constraints
            .map_or(&[], |list| self.snapshot.constraints.host_volumes(list))
    }

    /// Calls `visit` for every target on the machine: the allocs of the set, or the machine itself.
    pub fn for_each_target(
        &self,
        machine: MachineId,
        mut visit: impl FnMut(PlacementTarget<'static>),
    ) {
        let from = self.allocs.partition_point(|(m, _)| *m < machine);
        let on_machine = self.allocs[from..].iter().take_while(|(m, _)| *m == machine);
        let mut any = false;
        for (_, alloc) in on_machine {
            any = true;
            visit(PlacementTarget { machine, alloc: Some(*alloc), without: &[] });
        }
        if !any {
            visit(PlacementTarget::on_machine(machine));
        }
    }

    pub fn room(&self, target: &PlacementTarget<'_>) -> Room {
        match target.alloc {
            None => self.snapshot.machines.room[target.machine.slot()],
            Some(alloc) => self.snapshot.allocs.get(&alloc).map_or(Room::default(), |row| row.room),
        }
    }

    pub fn evaluate(&self, target: &PlacementTarget<'_>) -> TargetEvaluation {
        let m = target.machine.slot();
        let room = self.room(target);
        let need = &self.class.need;
        let mut evaluation = TargetEvaluation::default();
        for d in 0..DIMENSIONS {
            let is_short =
                need[d] > room.free[d] || need[d + DIMENSIONS] > room.free[d + DIMENSIONS];
            evaluation.room_dimensions |= u8::from(is_short) << d;
        }
        if !self.masks.is_empty() {
            let profile = self.snapshot.machines.profile[m] as usize;
            evaluation.constraints = self.masks[if self.masks_by_machine { m } else { profile }];
        }
        if self.bare_class.is_plain {
            match self.snapshot.machines.status[m] {
                SchedulableStatus::Ready | SchedulableStatus::UnderPressure => {}
                SchedulableStatus::Draining => {
                    evaluation.others.push(InfeasibleReason::MachineDraining)
                }
                SchedulableStatus::Down | SchedulableStatus::Gone => {
                    evaluation.others.push(InfeasibleReason::MachineDown)
                }
            }
            evaluation.others.extend(feasible::full(self.snapshot, target));
            if self.snapshot.machines.under_pressure[m]
                && self.class.min_status > SchedulableStatus::UnderPressure
            {
                evaluation.others.push(InfeasibleReason::ResourcePressure);
            }
        } else {
            evaluation.others = feasible::all_reasons(self.snapshot, &self.bare_class, target);
        }
        evaluation
    }

    /// The most that the task could request of dimension `d` at a target where it falls short. A
    /// smaller limit takes the reservation down with it, never below what it is already.
    pub fn max_requestable(&self, room: &Room, d: usize) -> u64 {
        let request = &self.class.request;
        let (limit, reserved) = (request.limits.to_array()[d], request.reservation.to_array()[d]);
        let free = |i: usize| room.free[i].max(0) as u64;
        let mut max_request = limit;
        if request.by_limits {
            max_request = max_request.min(free(d));
        }
        if reserved > free(d + DIMENSIONS) {
            max_request = max_request.min(free(d + DIMENSIONS));
        }
        max_request
    }

    /// Whether the task would fit there if the machine or the alloc were otherwise empty. Meant for
    /// targets where only resolvable things fail.
    pub fn fits_empty(&self, target: &PlacementTarget<'_>) -> bool {
        let (snapshot, request) = (self.snapshot, &self.class.request);
        let m = target.machine.slot();
        let mut room = match target.alloc {
            None => Room::of(snapshot.machines.shape_of(m).capacity),
            Some(alloc) => {
                let capacity = snapshot.allocs.get(&alloc).map(|row| row.capacity);
                Room::of(capacity.unwrap_or_default().to_array())
            }
        };
        if target.alloc.is_none() {
            // Retained disk stays when all tasks have left.
            room.free[2 * DIMENSIONS - 2] -= snapshot.machines.retained_disk[m] as i64;
        }
        room.fits(&self.class.need)
            && (self.bare_class.is_plain
                || ports_fit_empty(snapshot, request, m)
                    && named_fit_empty(snapshot, request, m)
                    && self.devices_fit_empty(m))
    }

    /// Whether the job's own tasks elsewhere would leave room for one more on the empty machine.
    pub fn spread_fits_empty(&self, target: &PlacementTarget<'_>) -> bool {
        feasible::spread_holds_when_empty(self.snapshot, self.class, target.machine.slot())
    }

    fn devices_fit_empty(&self, m: usize) -> bool {
        let machines = &self.snapshot.machines;
        self.class.request.devices.is_empty()
            || !machines.devices[m].is_empty()
                && feasible::choose_devices(self.snapshot, self.class, m, &machines.holders[m])
                    .is_ok()
    }
}

fn ports_fit_empty(snapshot: &ClusterSnapshot, request: &ClassRequest, m: usize) -> bool {
    let range = snapshot.machines.ports[m].range;
    let in_range = request.static_ports.iter().filter(|p| range.contains(**p)).count();
    request.ports == 0 || in_range as u32 + u32::from(request.ports) <= range.count()
}

fn named_fit_empty(snapshot: &ClusterSnapshot, request: &ClassRequest, m: usize) -> bool {
    request.named.iter().all(|(name, amount)| {
        let capacity = snapshot.machines.named_usage(m, *name).capacity;
        capacity == UNBOUNDED || (capacity > 0 && *amount <= capacity)
    })
}

/// For every attribute profile, or every machine slot where a constraint names machines, which
/// hard constraints of the requirements fail, and which volumes are not granted: at most
/// [`MAX_LIST`](cellwright_cell::spec::MAX_LIST) of each, so there are bits for all. Each
/// constraint is evaluated once per distinct value of its attribute.
fn failing_masks(snapshot: &ClusterSnapshot, list: u32) -> Vec<u128> {
    let constraints = snapshot.constraints.constraints(list);
    let host_volumes = snapshot.constraints.host_volumes(list);
    let mut known: Vec<BTreeMap<Option<&AttributeValue>, bool>> =
        vec![BTreeMap::new(); constraints.len()];
    let mut mask_of = |profile: u32, m: usize| {
        if snapshot.constraints.result(list, profile, m).first_failing == NONE_FAILING {
            return 0;
        }
        let Some(attributes) = snapshot.constraints.attributes(profile) else { return 0 };
        let mut mask = 0u128;
        for (position, constraint) in constraints.iter().enumerate() {
            if constraint.is_hard() {
                let value = snapshot.constraints.value(constraint, m);
                let holds =
                    *known[position].entry(value).or_insert_with(|| constraint.holds(value));
                mask |= u128::from(!holds) << position;
            }
        }
        for (at, host_volume) in host_volumes.iter().enumerate() {
            mask |= u128::from(!host_volume.is_granted(attributes)) << (constraints.len() + at);
        }
        mask
    };
    let profiles = &snapshot.machines.profile;
    if snapshot.constraints.names_machine(list) {
        return profiles.iter().enumerate().map(|(m, profile)| mask_of(*profile, m)).collect();
    }
    // Any machine with the profile stands for all of them; profiles without one are never asked
    // for.
    let last = profiles.iter().max().map_or(0, |last| last + 1);
    let mut masks: Vec<Option<u128>> = vec![None; last as usize];
    for (m, profile) in profiles.iter().enumerate() {
        masks[*profile as usize].get_or_insert_with(|| mask_of(*profile, m));
    }
    masks.into_iter().map(Option::unwrap_or_default).collect()
}
