//! Shapes that find a place (B17): what a task may ask for so that the cell, as it is now, takes it
//! at once, and how many of them it takes.
//!
//! The shapes are the cell's own: of every machine that takes such work what is free is looked at,
//! and the steps of the ladder are what nine machines in ten have, half of them, one in ten and
//! one in a hundred, of CPU and of memory. A list of round multiples would say nothing of a cell
//! whose machines all have 1.3 cores left. Each shape is then counted by the scheduler's own
//! feasibility, on every machine; nobody is evicted for it.
//!
//! A shape asks for room alone, so what one machine takes of it is a division, and the sum over the
//! machines is what a pass over so many tasks would place. Rejected: such a pass for every shape,
//! which in a large cell is a hundred thousand placements to learn one number.

use crate::board::Board;
use crate::board::constraints::Demands;
use crate::board::machines::Room;
use crate::class::{Class, ClassId, Request};
use crate::explain::names::{self, MachineRef, Names};
use crate::feasible;
use cellwright_cell::constraint::Constraint;
use cellwright_cell::id::MachineId;
use cellwright_cell::isolation::Loan;
use cellwright_cell::priority::Priority;
use cellwright_cell::resource::{DIMENSIONS, Dimension, Resources};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Percent of the machines that take such work, from which on a shape is easy.
pub const EASY_PERCENT: u32 = 25;

/// Percent of machines that have the amount of a step free.
const STEPS: [u32; 4] = [90, 50, 10, 1];

/// What is asked of the cell.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// Decides what counts as free: prod by limits too, everything by reservations.
    pub priority: Priority,
    /// Hard ones decide which machines count.
    pub constraints: &'a [Constraint],
    /// Folders that such tasks borrow, each once.
    pub loans: &'a [Loan],
    /// Machines that count at all.
    pub among: &'a dyn Fn(MachineId) -> bool,
    /// See [`EASY_PERCENT`].
    pub easy_percent: u32,
    /// One more shape to count.
    pub limits: Option<Resources>,
}

/// Tasks alike, and how the cell would take them if it were filled with nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub limits: Resources,
    /// How many find a place at once.
    pub tasks: u64,
    /// Machines that take one or more.
    pub machines: u32,
    pub easy: bool,
}

/// The most that one task may ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Largest {
    pub limits: Resources,
    pub machine: MachineRef,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shapes {
    /// Machines that take such work at all, full ones included.
    pub machines: u32,
    /// Machines that must take a shape for it to be easy.
    pub easy_from: u32,
    /// With most CPU and with most memory; one where a machine has both, none in a full cell.
    pub largest: Vec<Largest>,
    /// By CPU, then by memory; only what fits somewhere.
    pub ladder: Vec<Shape>,
    /// The shape that was asked for.
    pub asked: Option<Shape>,
}

/// Which shapes find a place, and how many of each. The board is not changed.
#[must_use]
pub fn shapes(board: &Board, names: &dyn Names, question: &Question<'_>) -> Shapes {
    let own;
    let (board, constraints) = match (question.constraints, question.loans) {
        ([], []) => (board, None),
        // To judge demands leaves them behind on the board; that of the asker stays as it was.
        (constraints, loans) => {
            let mut copy = board.clone();
            let demands = Demands { constraints: constraints.to_vec(), loans: loans.to_vec() };
            let list = copy.constraints.list(&demands);
            own = copy;
            (&own, Some(list))
        }
    };
    let floor = Floor::new(board, blank(question.priority, constraints), question.among);
    let easy_from = share(floor.open.len(), question.easy_percent);
    let room: Vec<Resources> = floor.open.iter().map(|m| floor.free(*m)).collect();
    let count = |limits: Resources| floor.count(limits, easy_from);
    let ladder = ladder(&room).into_iter().map(count).filter(|shape| shape.tasks > 0);
    Shapes {
        machines: floor.open.len() as u32,
        easy_from,
        largest: floor.largest(&room, names),
        ladder: ladder.collect(),
        asked: question.limits.map(count),
    }
}

/// So many machines are that many percent of all; one at least.
fn share(machines: usize, percent: u32) -> u32 {
    let share = (machines as u64 * u64::from(percent)).div_ceil(100);
    u32::try_from(share).unwrap_or(u32::MAX).max(1)
}

/// A request for nothing but the right to be there.
fn blank(priority: Priority, constraints: Option<u32>) -> Request {
    Request {
        priority,
        limits: Resources::ZERO,
        reservation: Resources::ZERO,
        ports: 0,
        static_ports: Vec::new(),
        named: Vec::new(),
        devices: Vec::new(),
        constraints,
        packages: Vec::new(),
        alloc_set: None,
        spread: Vec::new(),
        siblings: None,
        avoid: Vec::new(),
    }
}

/// The machines that take a request when they have room.
struct Floor<'a> {
    board: &'a Board,
    request: Request,
    /// Slots of machines.
    open: Vec<usize>,
}

impl<'a> Floor<'a> {
    /// `request` is taken without its room.
    fn new(board: &'a Board, request: Request, among: impl Fn(MachineId) -> bool) -> Floor<'a> {
        let limits = Resources::ZERO;
        let request = Request { limits, reservation: limits, ..request };
        let bare = Class::of(request.clone());
        let takes = |m: &usize| feasible::holds(board, &bare, *m) && among(MachineId(*m as u32));
        let open = (0..board.machine_slots()).filter(takes).collect();
        Floor { board, request, open }
    }

    /// What a new task may ask for on the machine: it reserves its limits.
    fn free(&self, m: usize) -> Resources {
        let room = &self.board.machines.room[m];
        let most = |d: usize| most_of(self.request.priority, u64::MAX, room, d);
        Resources::from_array(std::array::from_fn(most))
    }

    fn count(&self, limits: Resources, easy_from: u32) -> Shape {
        let request = Request { limits, reservation: limits, ..self.request.clone() };
        let class = Class::of(request);
        let mut shape = Shape { limits, tasks: 0, machines: 0, easy: false };
        for m in &self.open {
            if feasible::holds(self.board, &class, *m) {
                shape.machines += 1;
                let places = feasible::places(self.board, *m);
                shape.tasks += times(&class, &self.board.machines.room[*m]).min(places);
            }
        }
        shape.easy = shape.machines >= easy_from;
        shape
    }

    fn largest(&self, room: &[Resources], names: &dyn Names) -> Vec<Largest> {
        let has_both = |i: &usize| room[*i].cpu > 0 && room[*i].ram > 0;
        let with_most = |key: fn(Resources) -> (u64, u64)| {
            // Of equals the first, as everywhere.
            (0..room.len()).filter(has_both).max_by_key(|i| (key(room[*i]), Reverse(*i)))
        };
        let mut found: Vec<usize> = with_most(|r| (r.cpu, r.ram)).into_iter().collect();
        found.extend(with_most(|r| (r.ram, r.cpu)));
        found.dedup();
        let largest = found.into_iter().map(|i| Largest {
            limits: Resources::new(room[i].cpu, room[i].ram, 0, 0),
            machine: names::machine(names, MachineId(self.open[i] as u32)),
        });
        largest.collect()
    }
}

/// The most of dimension `d` that a task may ask for there: of prod, limits and reservation both
/// count. A smaller limit takes the reservation down with it, which is `reserved` now.
fn most_of(priority: Priority, reserved: u64, room: &Room, d: usize) -> u64 {
    let free = |i: usize| room.free[i].max(0) as u64;
    let by_limits = if priority.is_prod() { free(d) } else { u64::MAX };
    let by_reservation = match reserved > free(d + DIMENSIONS) {
        true => free(d + DIMENSIONS),
        false => u64::MAX,
    };
    by_limits.min(by_reservation)
}

/// How often the class goes into the room; nought for a class that asks for no room at all, of
/// which there is no number.
fn times(class: &Class, room: &Room) -> u64 {
    let asked = class.take.iter().zip(&room.free).filter(|(take, _)| **take > 0);
    asked.map(|(take, free)| (free.max(&0) / take) as u64).min().unwrap_or(0)
}

/// Every step of CPU with every step of memory.
fn ladder(room: &[Resources]) -> Vec<Resources> {
    let ram = steps(room, Dimension::Ram);
    let with_ram = |cpu: u64| ram.iter().map(move |ram| Resources::new(cpu, *ram, 0, 0));
    steps(room, Dimension::Cpu).into_iter().flat_map(with_ram).collect()
}

/// What so many percent of the machines have free, rounded to what people write; smallest first.
fn steps(room: &[Resources], dimension: Dimension) -> Vec<u64> {
    let mut free: Vec<u64> = room.iter().map(|room| room.get(dimension)).collect();
    free.sort_unstable_by_key(|amount| Reverse(*amount));
    let at = |percent: &u32| free.get(share(free.len(), *percent) as usize - 1);
    let round = |amount: &u64| rounded(dimension, *amount);
    let mut steps: Vec<u64> = STEPS.iter().filter_map(at).map(round).collect();
    steps.retain(|amount| *amount > 0);
    steps.dedup();
    steps
}

/// Rounded down, so that it fits where the amount fits: cores in steps of about a tenth, bytes in
/// quarters of a power of two.
fn rounded(dimension: Dimension, amount: u64) -> u64 {
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
pub struct Easier {
    pub limits: Resources,
    /// Machines that would take it then.
    pub machines: u32,
    /// Machines that take it when they have room.
    pub of: u32,
    /// What is given up of CPU and memory together, in thousandths of what was asked.
    pub permille: u32,
}

/// The nearest request of less CPU, less memory or less of both with which tasks of the class would
/// fit on `easy_percent` of the machines that take them; `None` when they do as they are, when no
/// such request helps, and for tasks inside an alloc set, whose room is their owner's.
#[must_use]
pub fn easier(board: &Board, class: ClassId, easy_percent: u32) -> Option<Easier> {
    let class = board.class(class);
    let (request, asked) = (&class.request, class.request.limits);
    if request.alloc_set.is_some() {
        return None;
    }
    let floor = Floor::new(board, request.clone(), |_| true);
    let enough = share(floor.open.len(), easy_percent) as usize;
    let reserved = request.reservation.to_array();
    let most = |m: &usize| {
        let room = &board.machines.room[*m];
        let most = |d: Dimension| {
            let d = d as usize;
            most_of(request.priority, reserved[d], room, d).min(asked.to_array()[d])
        };
        let has_all = |d: Dimension| most(d) >= asked.get(d);
        let rest = has_all(Dimension::Disk) && has_all(Dimension::DiskRate);
        rest.then(|| (most(Dimension::Cpu), most(Dimension::Ram)))
    };
    let mut room: Vec<(u64, u64)> = floor.open.iter().filter_map(most).collect();
    let (cpu, ram) = nearest(&mut room, enough, asked)?;
    let kept = |dimension: Dimension, most: u64| match most == asked.get(dimension) {
        true => most,
        false => rounded(dimension, most),
    };
    let (cpu, ram) = (kept(Dimension::Cpu, cpu), kept(Dimension::Ram, ram));
    let limits = Resources { cpu, ram, ..asked };
    let is_empty = |d: Dimension| limits.get(d) == 0 && asked.get(d) > 0;
    if limits == asked || is_empty(Dimension::Cpu) || is_empty(Dimension::Ram) {
        return None;
    }
    let reservation = request.reservation.min(limits);
    let smaller = Class::of(Request { limits, reservation, ..request.clone() });
    let takes = |m: &&usize| feasible::holds(board, &smaller, **m);
    Some(Easier {
        limits,
        machines: floor.open.iter().filter(takes).count() as u32,
        of: floor.open.len() as u32,
        permille: given_up(asked.cpu, cpu) + given_up(asked.ram, ram),
    })
}

/// CPU and memory that `enough` of the machines have, of which least is given up. For each amount
/// of CPU, from the largest down, the heap holds the most memory that so many machines have beside.
fn nearest(room: &mut [(u64, u64)], enough: usize, asked: Resources) -> Option<(u64, u64)> {
    room.sort_unstable_by(|a, b| b.cmp(a));
    let mut heap: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
    let mut best: Option<(u32, (u64, u64))> = None;
    for (cpu, ram) in room.iter().copied() {
        heap.push(Reverse(ram));
        if heap.len() > enough {
            heap.pop();
        }
        let Some(Reverse(least)) = heap.peek().copied().filter(|_| heap.len() == enough) else {
            continue;
        };
        let cost = given_up(asked.cpu, cpu) + given_up(asked.ram, least);
        if best.is_none_or(|(known, _)| cost < known) {
            best = Some((cost, (cpu, least)));
        }
    }
    best.map(|(_, shape)| shape)
}

/// In thousandths of what was asked, rounded up.
fn given_up(asked: u64, left: u64) -> u32 {
    let given = u128::from(asked.saturating_sub(left)) * 1000;
    let permille = given.div_ceil(u128::from(asked.max(1)));
    u32::try_from(permille).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_rounded_down_to_what_people_write() {
        let check = |dimension, amount, want| assert_eq!(rounded(dimension, amount), want);
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
        let asked = Resources::new(1000, 1000, 0, 0);
        let check = |room: &[(u64, u64)], enough, want| {
            assert_eq!(nearest(&mut room.to_vec(), enough, asked), want, "{room:?} {enough}");
        };
        check(&[], 1, None);
        check(&[(900, 500), (400, 1000)], 1, Some((900, 500)));
        check(&[(900, 500), (400, 1000)], 2, Some((400, 500)));
        check(&[(900, 100), (800, 900), (700, 900)], 2, Some((700, 900)));
        check(&[(900, 100), (800, 900), (700, 900)], 3, Some((700, 100)));
        check(&[(900, 100)], 2, None);
    }
}
