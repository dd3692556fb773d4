//! Available task shapes (B17): the requests that the cell can place at once as it is now, and how
//! many tasks of each.
//!
//! The shapes are the cell's own: computed from the free resources of every eligible machine. The
//! steps of the ladder are what nine machines in ten have free, half of them, one in ten and one in
//! a hundred, of CPU and of memory. A list of round multiples would say nothing of a cell whose
//! machines all have 1.3 cores left. Each shape is then counted by the scheduler's own feasibility,
//! on every machine; no task is evicted for it.
//!
//! A shape requests only room, so the number that fits on one machine is a division, and the sum
//! over the machines is what a pass over so many tasks would place. Rejected: such a pass for every
//! shape, which in a large cell is a hundred thousand placements for one number.

use crate::class::{Class, ClassId, ClassRequest};
use crate::cluster_snapshot::ClusterSnapshot;
use crate::cluster_snapshot::constraints::MachineRequirements;
use crate::cluster_snapshot::machines::Room;
use crate::explain::names::{self, NameResolver};
use crate::feasible;
use cellwright_cell::constraint::Constraint;
use cellwright_cell::explanation::MachineRef;
use cellwright_cell::id::MachineId;
use cellwright_cell::isolation::HostVolume;
use cellwright_cell::priority::Priority;
use cellwright_cell::resource::{DIMENSIONS, Dimension, Resources};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A shape is easy from this percentage of the eligible machines on.
pub const EASY_PERCENT: u32 = 25;

/// Percent of machines that have the amount of a step free.
const STEP_PERCENTS: [u32; 4] = [90, 50, 10, 1];

/// A query for available shapes.
#[derive(Clone, Copy)]
pub struct ShapeQuery<'a> {
    /// Decides what counts as free: for prod by limits too, for all by reservations.
    pub priority: Priority,
    /// Hard ones decide which machines count.
    pub constraints: &'a [Constraint],
    /// Host volumes that such tasks use, each once.
    pub host_volumes: &'a [HostVolume],
    /// Machines that count at all.
    pub includes: &'a dyn Fn(MachineId) -> bool,
    /// See [`EASY_PERCENT`].
    pub easy_percent: u32,
    /// One more shape to count.
    pub limits: Option<Resources>,
}

/// Tasks of one shape, and how many the cell would take if it were filled with nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskShape {
    pub limits: Resources,
    /// How many are placed at once.
    pub tasks: u64,
    /// Machines that accept one or more.
    pub machines: u32,
    pub easy: bool,
}

/// The most that one task may request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargestShape {
    pub limits: Resources,
    pub machine: MachineRef,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AvailableShapes {
    /// Eligible machines, full ones included.
    pub machines: u32,
    /// Machines that must accept a shape for it to be easy.
    pub easy_threshold: u32,
    /// With most CPU and with most memory; one where a machine has both, none in a full cell.
    pub largest: Vec<LargestShape>,
    /// By CPU, then by memory; only what fits somewhere.
    pub ladder: Vec<TaskShape>,
    /// The shape in the query's `limits`.
    pub requested: Option<TaskShape>,
}

/// The shapes that can be placed, and how many of each. The snapshot is not changed.
#[must_use]
pub fn available_shapes(
    snapshot: &ClusterSnapshot,
    names: &dyn NameResolver,
    query: &ShapeQuery<'_>,
) -> AvailableShapes {
    let extended;
    let (snapshot, constraints) = match (query.constraints, query.host_volumes) {
        ([], []) => (snapshot, None),
        // Evaluating requirements interns them in the snapshot; the caller's stays as it was.
        (constraints, host_volumes) => {
            let mut copy = snapshot.clone();
            let requirements = MachineRequirements {
                constraints: constraints.to_vec(),
                host_volumes: host_volumes.to_vec(),
            };
            let list = copy.constraints.intern_requirements(&requirements);
            extended = copy;
            (&extended, Some(list))
        }
    };
    let eligible =
        EligibleMachines::new(snapshot, empty_request(query.priority, constraints), query.includes);
    let easy_from = percent_of(eligible.slots.len(), query.easy_percent);
    let room: Vec<Resources> = eligible.slots.iter().map(|m| eligible.free(*m)).collect();
    let count = |limits: Resources| eligible.count(limits, easy_from);
    let ladder = ladder(&room).into_iter().map(count).filter(|shape| shape.tasks > 0);
    AvailableShapes {
        machines: eligible.slots.len() as u32,
        easy_threshold: easy_from,
        largest: eligible.largest(&room, names),
        ladder: ladder.collect(),
        requested: query.limits.map(count),
    }
}

/// `percent` of so many machines; one at least.
fn percent_of(machines: usize, percent: u32) -> u32 {
    let share = (machines as u64 * u64::from(percent)).div_ceil(100);
    u32::try_from(share).unwrap_or(u32::MAX).max(1)
}

/// A request without resources.
fn empty_request(priority: Priority, constraints: Option<u32>) -> ClassRequest {
    ClassRequest {
        priority,
        // A task that says nothing of its appclass.
        by_limits: priority.is_prod(),
        limits: Resources::ZERO,
        reservation: Resources::ZERO,
        ports: 0,
        static_ports: Vec::new(),
        named: Vec::new(),
        devices: Vec::new(),
        constraints,
        packages: Vec::new(),
        alloc_set: None,
        alloc_index: None,
        spread: Vec::new(),
        siblings: None,
        avoid: Vec::new(),
        machine: None,
    }
}

/// The machines that accept a request when they have room.
struct EligibleMachines<'a> {
    snapshot: &'a ClusterSnapshot,
    request: ClassRequest,
    /// Slots of machines.
    slots: Vec<usize>,
}

impl<'a> EligibleMachines<'a> {
    /// Machines that accept `request`, apart from its room.
    fn new(
        snapshot: &'a ClusterSnapshot,
        request: ClassRequest,
        includes: impl Fn(MachineId) -> bool,
    ) -> EligibleMachines<'a> {
        let limits = Resources::ZERO;
        let request = ClassRequest { limits, reservation: limits, ..request };
        let bare = Class::of(request.clone());
        let takes = |m: &usize| {
            feasible::is_feasible(snapshot, &bare, *m) && includes(MachineId(*m as u32))
        };
        let slots = (0..snapshot.machine_slots()).filter(takes).collect();
        EligibleMachines { snapshot, request, slots }
    }

    /// What a new task may request on the machine: it reserves its limits.
    fn free(&self, m: usize) -> Resources {
        let room = &self.snapshot.machines.room[m];
        let max_of = |d: usize| max_requestable(self.request.by_limits, u64::MAX, room, d);
        Resources::from_array(std::array::from_fn(max_of))
    }

    fn count(&self, limits: Resources, easy_from: u32) -> TaskShape {
        let request = ClassRequest { limits, reservation: limits, ..self.request.clone() };
        let class = Class::of(request);
        let mut shape = TaskShape { limits, tasks: 0, machines: 0, easy: false };
        for m in &self.slots {
            if feasible::is_feasible(self.snapshot, &class, *m) {
                shape.machines += 1;
                let slots = feasible::free_task_slots(self.snapshot, *m);
                shape.tasks += fit_count(&class, &self.snapshot.machines.room[*m]).min(slots);
            }
        }
        shape.easy = shape.machines >= easy_from;
        shape
    }

    fn largest(&self, room: &[Resources], names: &dyn NameResolver) -> Vec<LargestShape> {
        let has_both = |i: &usize| room[*i].cpu > 0 && room[*i].ram > 0;
        let with_most = |key: fn(Resources) -> (u64, u64)| {
            // The first of equals, as everywhere.
            (0..room.len()).filter(has_both).max_by_key(|i| (key(room[*i]), Reverse(*i)))
        };
        let mut found: Vec<usize> = with_most(|r| (r.cpu, r.ram)).into_iter().collect();
        found.extend(with_most(|r| (r.ram, r.cpu)));
        found.dedup();
        let largest = found.into_iter().map(|i| LargestShape {
            limits: Resources::new(room[i].cpu, room[i].ram, 0, 0),
            machine: names::machine_ref(names, MachineId(self.slots[i] as u32)),
        });
        largest.collect()
    }
}

/// The most of dimension `d` that a task may request there: packed by limits, its limits and its
/// reservation both count. A smaller limit takes the reservation down with it, which is `reserved`
/// now.
fn max_requestable(is_by_limits: bool, reserved: u64, room: &Room, d: usize) -> u64 {
    let free = |i: usize| room.free[i].max(0) as u64;
    let by_limits = if is_by_limits { free(d) } else { u64::MAX };
    let by_reservation =
        if reserved > free(d + DIMENSIONS) { free(d + DIMENSIONS) } else { u64::MAX };
    by_limits.min(by_reservation)
}

/// How often the class fits into the room; zero for a class without resources, which would fit any
/// number of times.
fn fit_count(class: &Class, room: &Room) -> u64 {
    let constrained = class.charge.iter().zip(&room.free).filter(|(take, _)| **take > 0);
    constrained.map(|(take, free)| (free.max(&0) / take) as u64).min().unwrap_or(0)
}

/// Every step of CPU with every step of memory.
fn ladder(room: &[Resources]) -> Vec<Resources> {
    let ram = amount_steps(room, Dimension::Ram);
    let with_ram = |cpu: u64| ram.iter().map(move |ram| Resources::new(cpu, *ram, 0, 0));
    amount_steps(room, Dimension::Cpu).into_iter().flat_map(with_ram).collect()
}

/// The amounts that the step percentages of the machines have free, rounded to figures that people
/// write; smallest first.
fn amount_steps(room: &[Resources], dimension: Dimension) -> Vec<u64> {
    let mut free: Vec<u64> = room.iter().map(|room| room.get(dimension)).collect();
    free.sort_unstable_by_key(|amount| Reverse(*amount));
    let at = |percent: &u32| free.get(percent_of(free.len(), *percent) as usize - 1);
    let round = |amount: &u64| round_down(dimension, *amount);
    let mut steps: Vec<u64> = STEP_PERCENTS.iter().filter_map(at).map(round).collect();
    steps.retain(|amount| *amount > 0);
    steps.dedup();
    steps
}

/// Rounds down, so that it fits where the amount fits: cores in steps of about a tenth, bytes in
/// quarters of a power of two.
fn round_down(dimension: Dimension, amount: u64) -> u64 {
    let step = match (dimension, amount) {
        (Dimension::Cpu, ..100) => 10,
        (Dimension::Cpu, ..1000) => 50,
        (Dimension::Cpu, ..4000) => 250,
        (Dimension::Cpu, ..16_000) => 500,
        (Dimension::Cpu, _) => 1000,
        _ => 1 << amount.max(4).ilog2().saturating_sub(2),
    };
    amount - amount % step
}

/// A smaller request with which a task would fit on many machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EasierShape {
    pub limits: Resources,
    /// Machines that would accept it then.
    pub machines: u32,
    /// Machines that accept it when they have room.
    pub eligible: u32,
    /// The reduction of CPU and memory together, in thousandths of the request.
    pub permille: u32,
}

/// The nearest request of less CPU, less memory or less of both with which tasks of the class would
/// fit on `easy_percent` of the eligible machines; `None` when they do as they are, when no such
/// request helps, and for tasks inside an alloc set, whose room is their owner's.
#[must_use]
pub fn easier_shape(
    snapshot: &ClusterSnapshot,
    class: ClassId,
    easy_percent: u32,
) -> Option<EasierShape> {
    let class = snapshot.class(class);
    let (request, requested) = (&class.request, class.request.limits);
    if request.alloc_set.is_some() {
        return None;
    }
    let eligible = EligibleMachines::new(snapshot, request.clone(), |_| true);
    let enough = percent_of(eligible.slots.len(), easy_percent) as usize;
    let reserved = request.reservation.to_array();
    let max_room = |m: &usize| {
        let room = &snapshot.machines.room[*m];
        let max_of = |d: Dimension| {
            let d = d as usize;
            max_requestable(request.by_limits, reserved[d], room, d).min(requested.to_array()[d])
        };
        let has_all = |d: Dimension| max_of(d) >= requested.get(d);
        let rest = has_all(Dimension::Disk) && has_all(Dimension::DiskRate);
        rest.then(|| (max_of(Dimension::Cpu), max_of(Dimension::Ram)))
    };
    let mut room: Vec<(u64, u64)> = eligible.slots.iter().filter_map(max_room).collect();
    let (cpu, ram) = nearest_shape(&mut room, enough, requested)?;
    let kept = |dimension: Dimension, max: u64| {
        if max == requested.get(dimension) { max } else { round_down(dimension, max) }
    };
    let (cpu, ram) = (kept(Dimension::Cpu, cpu), kept(Dimension::Ram, ram));
    let limits = Resources { cpu, ram, ..requested };
    let is_empty = |d: Dimension| limits.get(d) == 0 && requested.get(d) > 0;
    if limits == requested || is_empty(Dimension::Cpu) || is_empty(Dimension::Ram) {
        return None;
    }
    let reservation = request.reservation.min(limits);
    let smaller = Class::of(ClassRequest { limits, reservation, ..request.clone() });
    let takes = |m: &&usize| feasible::is_feasible(snapshot, &smaller, **m);
    Some(EasierShape {
        limits,
        machines: eligible.slots.iter().filter(takes).count() as u32,
        eligible: eligible.slots.len() as u32,
        permille: reduction_permille(requested.cpu, cpu) + reduction_permille(requested.ram, ram),
    })
}

/// The CPU and memory that `enough` of the machines have, with the smallest reduction. For each
/// amount of CPU, from the largest down, the heap holds the most memory that so many machines have
/// beside.
fn nearest_shape(
    room: &mut [(u64, u64)],
    enough: usize,
    requested: Resources,
) -> Option<(u64, u64)> {
    room.sort_unstable_by(|a, b| b.cmp(a));
    let mut heap: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
    let mut best: Option<(u32, (u64, u64))> = None;
    for (cpu, ram) in room.iter().copied() {
        heap.push(Reverse(ram));
        if heap.len() > enough {
            heap.pop();
        }
        let Some(Reverse(smallest)) = heap.peek().copied().filter(|_| heap.len() == enough) else {
            continue;
        };
        let cost =
            reduction_permille(requested.cpu, cpu) + reduction_permille(requested.ram, smallest);
        if best.is_none_or(|(known, _)| cost < known) {
            best = Some((cost, (cpu, smallest)));
        }
    }
    best.map(|(_, shape)| shape)
}

/// In thousandths of the request, rounded up.
fn reduction_permille(requested: u64, left: u64) -> u32 {
    let reduced = u128::from(requested.saturating_sub(left)) * 1000;
    let permille = reduced.div_ceil(u128::from(requested.max(1)));
    u32::try_from(permille).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_rounded_down_to_what_people_write() {
        let check = |dimension, amount, want| assert_eq!(round_down(dimension, amount), want);
        let gib = 1u64 << 30;
        for (amount, want) in [(7, 0), (57, 50), (999, 950), (1333, 1250), (4700, 4500)] {
            check(Dimension::Cpu, amount, want);
        }
        check(Dimension::Cpu, 31_900, 31_000);
        check(Dimension::Ram, 0, 0);
        check(Dimension::Ram, 3, 3);
        check(Dimension::Ram, 4 * gib - 1, 7 * gib / 2);
        check(Dimension::Ram, 4 * gib, 4 * gib);
        check(Dimension::Ram, 5 * gib + 1, 5 * gib);
    }

    #[test]
    fn the_nearest_shape_is_the_least_that_enough_machines_have() {
        let requested = Resources::new(1000, 1000, 0, 0);
        let check = |room: &[(u64, u64)], enough, want| {
            assert_eq!(
                nearest_shape(&mut room.to_vec(), enough, requested),
                want,
                "{room:?} {enough}"
            );
        };
        check(&[], 1, None);
        check(&[(900, 500), (400, 1000)], 1, Some((900, 500)));
        check(&[(900, 500), (400, 1000)], 2, Some((400, 500)));
        check(&[(900, 100), (800, 900), (700, 900)], 2, Some((700, 900)));
        check(&[(900, 100), (800, 900), (700, 900)], 3, Some((700, 100)));
        check(&[(900, 100)], 2, None);
    }
}
