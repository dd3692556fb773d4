//! How well a task sits in the room of a machine. Three models:
//!
//! - worst fit (E-PVM): spread load, keep head room everywhere; strands resources;
//! - best fit: fill machines up; strands what the last tasks leave over;
//! - hybrid (the default): lose as little *room* as possible. Room is how much of the mix of tasks
//!   still to come a leftover could take: the minimum over the dimensions of what is left against
//!   what the mix asks for. A memory-heavy task costs nothing on a machine that is short of CPU.
//!   Ties go to the machine with the least room left.
//!
//! "Still to come" depends on the priority, because tasks are placed in its order: the mix of a
//! level is the demand of that priority and below. Prod is held to two ledgers, limits and
//! reservations, and loses room in both.
//!
//! Rejected: the distance of the leftover's shape from the mix. It punishes a full machine for the
//! shape of nothing, and needs a weight per dimension.
//!
//! Everything is fixed-point.

use crate::board::Board;
use crate::board::machines::{FRACTION_BITS, Shape};
use crate::class::{Class, Classes, SUMS};
use cellwright_cell::priority::MAX_PRIORITY;
use cellwright_cell::resource::DIMENSIONS;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Model {
    WorstFit,
    BestFit,
    #[default]
    Hybrid,
}

/// Room of the largest machine of the cell.
const ROOM_BITS: u32 = 24;
/// How much losing room counts against having much left. Two ledgers can lose all of it, so the
/// whole term stays below 2^32.
const LOSS_WEIGHT: u64 = 64;
/// Fraction bits of the factors.
const FACTOR_BITS: u32 = 16;
/// The mix is redrawn when the number of tasks has changed by more than this part.
const DRIFT: u64 = 8;

/// Turns leftovers into room by one ledger and one mix.
#[derive(Clone, Copy, Debug, Default)]
struct Ledger {
    /// Dimensions somebody asks for: the first `dimensions` of `asked`.
    asked: [usize; DIMENSIONS],
    dimensions: usize,
    factor: [u64; DIMENSIONS],
    /// Low bits dropped first, so that the product stays in 64 bits.
    shift: [u32; DIMENSIONS],
}

impl Ledger {
    /// `demand` is the mix; the largest room of any of `shapes` becomes 2^24.
    fn new(demand: &[u128; DIMENSIONS], shapes: &[Shape]) -> Ledger {
        let mut ledger = Ledger::default();
        // How often the whole mix would fit into a machine of that shape, in 2^-64.
        let times = |shape: &Shape| {
            let asked = (0..DIMENSIONS).filter(|d| demand[*d] > 0);
            asked.map(|d| (u128::from(shape.capacity[d]) << 64) / demand[d]).min()
        };
        let Some(largest) = shapes.iter().filter_map(times).max().filter(|n| *n > 0) else {
            return ledger;
        };
        for d in (0..DIMENSIONS).filter(|d| demand[*d] > 0) {
            // What the largest machine holds of this dimension when it is full of the mix.
            let full = (demand[d].min(1 << 63) * largest.min(1 << 64)) >> 64;
            let full = full.max(1) as u64;
            let shift = (64 - full.leading_zeros()).saturating_sub(ROOM_BITS);
            ledger.shift[d] = shift;
            ledger.factor[d] = (1 << (ROOM_BITS + FACTOR_BITS)) / (full >> shift).max(1);
            ledger.asked[ledger.dimensions] = d;
            ledger.dimensions += 1;
        }
        ledger
    }

    /// Room lost by taking `take` from `free`, and room left, in 2^-24 of the largest machine's;
    /// no more than that where the mix leaves a surplus.
    #[inline]
    fn lost_and_left(&self, free: &[i64], take: &[i64]) -> (u64, u64) {
        let (mut before, mut after) = (1 << ROOM_BITS, 1 << ROOM_BITS);
        for d in &self.asked[..self.dimensions] {
            let (factor, shift) = (self.factor[*d], self.shift[*d]);
            let by = |left: i64| {
                let amount = (left.max(0) as u64) >> shift;
                amount.saturating_mul(factor) >> FACTOR_BITS
            };
            before = by(free[*d]).min(before);
            after = by(free[*d] - take[*d]).min(after);
        }
        (before - after.min(before), after)
    }
}

/// The demand of one priority and all below it.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    limits: Ledger,
    reservations: Ledger,
}

/// The cell's demand, drawn from the tasks that wait or hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mix {
    /// Tasks it was drawn from.
    tasks: u64,
    shapes: usize,
    /// Dimensions anybody asks for.
    asked: [bool; DIMENSIONS],
    levels: Vec<Level>,
    /// Position in `levels` by priority.
    level_of: Vec<u16>,
    /// Grows with every redraw: keys made with an older mix are void.
    pub version: u64,
}

impl Mix {
    pub fn is_stale(&self, classes: &Classes, shapes: usize) -> bool {
        let drift = self.tasks.abs_diff(classes.total());
        self.level_of.is_empty() || self.shapes != shapes || drift > self.tasks / DRIFT
    }

    pub fn redraw(&mut self, classes: &Classes, shapes: &[Shape]) {
        let mut by_priority: Vec<_> = classes
            .demand()
            .filter(|(request, members)| request.alloc_set.is_none() && *members > 0)
            .collect();
        by_priority.sort_by_key(|(request, _)| request.priority);
        let (mut limits, mut reservations) = ([0u128; DIMENSIONS], [0u128; DIMENSIONS]);
        self.levels = vec![Level::default()];
        self.level_of = vec![0; usize::from(MAX_PRIORITY) + 1];
        let mut rest = by_priority.into_iter().peekable();
        for priority in 0..=MAX_PRIORITY {
            let mut new = false;
            while let Some((request, n)) = rest.next_if(|(r, _)| r.priority.0 <= priority) {
                new = true;
                add(&mut reservations, request.reservation.to_array(), n);
                if request.priority.is_prod() {
                    add(&mut limits, request.limits.to_array(), n);
                }
            }
            if new {
                self.levels.push(Level {
                    limits: Ledger::new(&limits, shapes),
                    reservations: Ledger::new(&reservations, shapes),
                });
            }
            self.level_of[usize::from(priority)] = self.levels.len() as u16 - 1;
        }
        self.asked = reservations.map(|d| d > 0);
        self.tasks = classes.total();
        self.shapes = shapes.len();
        self.version += 1;
    }

    #[inline]
    fn level(&self, class: &Class) -> &Level {
        let priority = usize::from(class.request.priority.0.min(MAX_PRIORITY));
        &self.levels[usize::from(self.level_of[priority])]
    }
}

fn add(sum: &mut [u128; DIMENSIONS], amounts: [u64; DIMENSIONS], times: u32) {
    for d in 0..DIMENSIONS {
        sum[d] += u128::from(amounts[d]) * u128::from(times);
    }
}

/// The packing term of a task of `class` on machine slot `m`.
#[inline]
pub(crate) fn on_machine(board: &Board, class: &Class, m: usize, model: Model) -> u32 {
    in_room(board, class, m, &board.machines.room[m].free, model)
}

/// Same, with other room than the machine's own: after preemption, or inside an alloc.
#[inline]
pub(crate) fn in_room(
    board: &Board,
    class: &Class,
    m: usize,
    free: &[i64; SUMS],
    model: Model,
) -> u32 {
    match model {
        Model::Hybrid => hybrid(&board.mix, class, free),
        Model::BestFit => loose(&board.mix, board.machines.shape_of(m), class, free),
        Model::WorstFit => {
            let loose = loose(&board.mix, board.machines.shape_of(m), class, free);
            ((DIMENSIONS as u32) << FRACTION_BITS).saturating_sub(loose)
        }
    }
}

/// Sum of the fractions left, by the tighter of the ledgers the task is held to.
#[inline]
fn loose(mix: &Mix, shape: &Shape, class: &Class, free: &[i64; SUMS]) -> u32 {
    let prod = class.request.priority.is_prod();
    (0..DIMENSIONS)
        .filter(|d| mix.asked[*d])
        .map(|d| {
            let by_reservation = free[d + DIMENSIONS] - class.take[d + DIMENSIONS];
            let by_limits = if prod { free[d] - class.take[d] } else { i64::MAX };
            shape.fraction(d, by_reservation.min(by_limits))
        })
        .sum()
}

#[inline]
fn hybrid(mix: &Mix, class: &Class, free: &[i64; SUMS]) -> u32 {
    let level = mix.level(class);
    let (limits, reservations) = free.split_at(DIMENSIONS);
    let (take_limits, take_reservations) = class.take.split_at(DIMENSIONS);
    let (mut lost, mut left) = level.reservations.lost_and_left(reservations, take_reservations);
    if class.request.priority.is_prod() {
        let by_limits = level.limits.lost_and_left(limits, take_limits);
        lost += by_limits.0;
        left = by_limits.1;
    }
    (LOSS_WEIGHT * lost + left).min(u64::from(u32::MAX)) as u32
}
