//! How well a task fits into the room of a machine. Three models:
//!
//! - worst fit (E-PVM): spread load, keep head room everywhere; strands resources;
//! - best fit: fill machines up; strands what the last tasks leave over;
//! - hybrid (the default): lose as little *room* as possible. Room is how much of the mix of future
//!   tasks a leftover could take: the minimum over the dimensions of what is left against what the
//!   mix requests. A memory-heavy task costs nothing on a machine that is short of CPU. Ties go to
//!   the machine with the least room left.
//!
//! Which tasks are future ones depends on the priority, because tasks are placed in its order: the
//! mix of a priority is the demand of that priority and below. Prod is charged by limits and by
//! reservations, and loses room in both sums.
//!
//! Rejected: the distance of the leftover's shape from the mix. It punishes a full machine for the
//! shape of nothing, and needs a weight per dimension.
//!
//! The mix is drawn when a pass starts, from the tasks pending and placed at that moment, and kept
//! until the cell has changed by an eighth: a redraw invalidates every score in the cache. So a
//! warm snapshot may lag behind a fresh one of the same state, by less than an eighth of the tasks
//! and, band by band, of the demand in any dimension; reservations that change under the same
//! limits wait for the next redraw.
//!
//! Everything is fixed-point.

use crate::class::{Class, Classes, SUMS};
use crate::cluster_snapshot::ClusterSnapshot;
use crate::cluster_snapshot::machines::{FRACTION_BITS, MachineShape};
use crate::cluster_snapshot::rows::{PlacementState, TaskRow};
use cellwright_cell::priority::{Band, MAX_PRIORITY};
use cellwright_cell::resource::{DIMENSIONS, Dimension};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PackingModel {
    WorstFit,
    BestFit,
    #[default]
    Hybrid,
}

/// Room of the largest machine of the cell.
const ROOM_BITS: u32 = 24;
/// How much losing room counts against having much left. Both sums can lose all of it, so the whole
/// term stays below 2^32.
const LOSS_WEIGHT: u64 = 64;
/// Fraction bits of the factors.
const FACTOR_BITS: u32 = 16;
/// The mix is redrawn when the number of tasks, or the demand of a band in a dimension as part of
/// the whole demand there, has changed by more than this part.
const DRIFT_DIVISOR: u64 = 8;

/// Turns leftovers into room by one sum (limits or reservations) and one mix.
#[derive(Clone, Copy, Debug, Default)]
struct RoomScale {
    /// Dimensions that are in demand: the first `dimensions` of `demanded`.
    demanded: [usize; DIMENSIONS],
    dimensions: usize,
    factor: [u64; DIMENSIONS],
    /// Low bits dropped first, so that the product stays in 64 bits.
    shift: [u32; DIMENSIONS],
}

impl RoomScale {
    /// `demand` is the mix; the largest room of any of `shapes` becomes 2^24.
    fn new(demand: &[u128; DIMENSIONS], shapes: &[MachineShape]) -> RoomScale {
        let mut scale = RoomScale::default();
        // How often the whole mix would fit into a machine of that shape, in 2^-64.
        let times = |shape: &MachineShape| {
            let demanded = (0..DIMENSIONS).filter(|d| demand[*d] > 0);
            demanded.map(|d| (u128::from(shape.capacity[d]) << 64) / demand[d]).min()
        };
        let Some(largest) = shapes.iter().filter_map(times).max().filter(|n| *n > 0) else {
            return scale;
        };
        for d in (0..DIMENSIONS).filter(|d| demand[*d] > 0) {
            // What the largest machine holds of this dimension when it is full of the mix.
            let full = (demand[d].min(1 << 63) * largest.min(1 << 64)) >> 64;
            let full = full.max(1) as u64;
            let shift = (64 - full.leading_zeros()).saturating_sub(ROOM_BITS);
            scale.shift[d] = shift;
            scale.factor[d] = (1 << (ROOM_BITS + FACTOR_BITS)) / (full >> shift).max(1);
            scale.demanded[scale.dimensions] = d;
            scale.dimensions += 1;
        }
        scale
    }

    /// Room lost by taking `charge` from `free`, and room left, in 2^-24 of the largest machine's;
    /// no more than that where the mix leaves a surplus.
    #[inline]
    fn lost_and_left(&self, free: &[i64], take: &[i64]) -> (u64, u64) {
        let (mut before, mut after) = (1 << ROOM_BITS, 1 << ROOM_BITS);
        for d in &self.demanded[..self.dimensions] {
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
struct PriorityDemand {
    limits: RoomScale,
    reservations: RoomScale,
}

/// The cell's demand, from the tasks that are pending or placed.
#[derive(Clone, Debug, Default)]
pub(crate) struct DemandMix {
    /// Tasks it was drawn from.
    tasks: u64,
    /// Their limits by band.
    limits: [[u128; DIMENSIONS]; Band::ALL.len()],
    shapes: usize,
    /// Dimensions in demand.
    demanded: [bool; DIMENSIONS],
    /// Whether production and the rest each ask for a part of the CPU that is worth mixing.
    pub has_both_kinds: bool,
    levels: Vec<PriorityDemand>,
    /// Position in `levels` by priority.
    level_of: Vec<u16>,
    /// Grows with every redraw: score keys made with an older mix are invalid.
    pub version: u64,
}

impl DemandMix {
    pub fn is_stale(&self, classes: &Classes, shapes: usize) -> bool {
        let drift = self.tasks.abs_diff(classes.total());
        self.level_of.is_empty()
            || self.shapes != shapes
            || drift > self.tasks / DRIFT_DIVISOR
            || self.demand_drifted(classes.limits_by_band())
    }

    fn demand_drifted(&self, now: &[[u128; DIMENSIONS]; Band::ALL.len()]) -> bool {
        (0..DIMENSIONS).any(|d| {
            let drawn: u128 = self.limits.iter().map(|band| band[d]).sum();
            let changed = |band: usize| now[band][d].abs_diff(self.limits[band][d]);
            (0..now.len()).any(|band| changed(band) > drawn / u128::from(DRIFT_DIVISOR))
        })
    }

    /// Walks over all tasks, not classes: each task has a reservation of its own.
    pub fn redraw(&mut self, classes: &Classes, tasks: &[TaskRow], shapes: &[MachineShape]) {
        let mut by_priority = vec![DemandSums::default(); usize::from(MAX_PRIORITY) + 1];
        for task in tasks.iter().filter(|task| task.placement != PlacementState::Gone) {
            let request = &classes.get(task.class).request;
            if request.alloc_set.is_some() {
                continue;
            }
            let demand = &mut by_priority[usize::from(request.priority.0.min(MAX_PRIORITY))];
            demand.tasks += 1;
            let reservation = match task.placement {
                PlacementState::Pending { .. } => request.reservation,
                _ => task.placement.reservation(),
            };
            add_amounts(&mut demand.reservations, reservation.to_array());
            if request.by_limits {
                add_amounts(&mut demand.limits, request.limits.to_array());
            }
        }
        let (mut limits, mut reservations) = ([0u128; DIMENSIONS], [0u128; DIMENSIONS]);
        self.levels = vec![PriorityDemand::default()];
        self.level_of = vec![0; usize::from(MAX_PRIORITY) + 1];
        for (priority, demand) in by_priority.iter().enumerate() {
            for d in 0..DIMENSIONS {
                limits[d] += demand.limits[d];
                reservations[d] += demand.reservations[d];
            }
            if demand.tasks > 0 {
                self.levels.push(PriorityDemand {
                    limits: RoomScale::new(&limits, shapes),
                    reservations: RoomScale::new(&reservations, shapes),
                });
            }
            self.level_of[priority] = self.levels.len() as u16 - 1;
        }
        self.demanded = reservations.map(|d| d > 0);
        self.tasks = classes.total();
        self.limits = *classes.limits_by_band();
        self.has_both_kinds = has_both_kinds(&self.limits);
        self.shapes = shapes.len();
        self.version += 1;
    }

    #[inline]
    fn level(&self, class: &Class) -> &PriorityDemand {
        let priority = usize::from(class.request.priority.0.min(MAX_PRIORITY));
        &self.levels[usize::from(self.level_of[priority])]
    }
}

/// What the tasks of one priority request.
#[derive(Clone, Copy, Debug, Default)]
struct DemandSums {
    tasks: u64,
    limits: [u128; DIMENSIONS],
    reservations: [u128; DIMENSIONS],
}

/// Whether neither kind asks for less CPU than the drift that the mix tolerates.
fn has_both_kinds(limits: &[[u128; DIMENSIONS]; Band::ALL.len()]) -> bool {
    let cpu = |prod: bool| -> u128 {
        let bands = Band::ALL.into_iter().filter(|band| band.is_prod() == prod);
        bands.map(|band| limits[band as usize][Dimension::Cpu as usize]).sum()
    };
    let (prod, rest) = (cpu(true), cpu(false));
    prod.min(rest) > (prod + rest) / u128::from(DRIFT_DIVISOR)
}

fn add_amounts(sum: &mut [u128; DIMENSIONS], amounts: [u64; DIMENSIONS]) {
    sum.iter_mut().zip(amounts).for_each(|(sum, amount)| *sum += u128::from(amount));
}

/// The packing term of a task of `class` on machine slot `m`.
#[inline]
pub(crate) fn machine_term(
    snapshot: &ClusterSnapshot,
    class: &Class,
    m: usize,
    model: PackingModel,
) -> u32 {
    room_term(snapshot, class, m, &snapshot.machines.room[m].free, model)
}

/// The same, with other room than the machine's own: after preemption, or inside an alloc.
#[inline]
pub(crate) fn room_term(
    snapshot: &ClusterSnapshot,
    class: &Class,
    m: usize,
    free: &[i64; SUMS],
    model: PackingModel,
) -> u32 {
    match model {
        PackingModel::Hybrid => hybrid_term(&snapshot.demand_mix, class, free),
        PackingModel::BestFit => {
            leftover_term(&snapshot.demand_mix, snapshot.machines.shape_of(m), class, free)
        }
        PackingModel::WorstFit => {
            let loose =
                leftover_term(&snapshot.demand_mix, snapshot.machines.shape_of(m), class, free);
            ((DIMENSIONS as u32) << FRACTION_BITS).saturating_sub(loose)
        }
    }
}

/// Sum of the fractions left, by the tighter of the sums that the task is charged to.
#[inline]
fn leftover_term(mix: &DemandMix, shape: &MachineShape, class: &Class, free: &[i64; SUMS]) -> u32 {
    let is_by_limits = class.request.by_limits;
    (0..DIMENSIONS)
        .filter(|d| mix.demanded[*d])
        .map(|d| {
            let by_reservation = free[d + DIMENSIONS] - class.charge[d + DIMENSIONS];
            let by_limits = if is_by_limits { free[d] - class.charge[d] } else { i64::MAX };
            shape.fraction(d, by_reservation.min(by_limits))
        })
        .sum()
}

#[inline]
fn hybrid_term(mix: &DemandMix, class: &Class, free: &[i64; SUMS]) -> u32 {
    let level = mix.level(class);
    let (limits, reservations) = free.split_at(DIMENSIONS);
    let (take_limits, take_reservations) = class.charge.split_at(DIMENSIONS);
    let (mut lost, mut left) = level.reservations.lost_and_left(reservations, take_reservations);
    if class.request.by_limits {
        let by_limits = level.limits.lost_and_left(limits, take_limits);
        lost += by_limits.0;
        left = by_limits.1;
    }
    (LOSS_WEIGHT * lost + left).min(u64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::{ClassId, ClassRequest};
    use cellwright_cell::id::MachineId;
    use cellwright_cell::priority::Priority;
    use cellwright_cell::resource::Resources;
    use cellwright_cell::time::Time;

    fn request(limits: Resources, reservation: Resources) -> ClassRequest {
        ClassRequest {
            priority: Priority(100),
            by_limits: false,
            limits,
            reservation,
            ports: 0,
            static_ports: Vec::new(),
            named: Vec::new(),
            devices: Vec::new(),
            constraints: None,
            packages: Vec::new(),
            alloc_set: None,
            alloc_index: None,
            spread: Vec::new(),
            siblings: None,
            avoid: Vec::new(),
            machine: None,
        }
    }

    fn drawn(classes: &Classes, class: ClassId, placement: PlacementState) -> DemandMix {
        let task = TaskRow { class, placement, ..TaskRow::default() };
        let mut mix = DemandMix::default();
        mix.redraw(classes, &[task], &[MachineShape::new([100, 100, 100, 100])]);
        mix
    }

    #[test]
    fn what_is_held_counts_by_its_own_reservation() {
        let (limits, used) = (Resources::new(10, 10, 0, 0), Resources::new(10, 2, 0, 0));
        let mut classes = Classes::default();
        let by_limits = classes.intern(request(limits, limits));
        let by_use = classes.intern(request(limits, used));
        let waiting = PlacementState::Pending { not_before: Time::ZERO };
        let held_state = PlacementState::PlainHeld { machine: MachineId(0), reservation: used };
        let mix = |class, placement: &PlacementState| drawn(&classes, class, placement.clone());
        let levels = |mix: &DemandMix| format!("{:?}", mix.levels);
        // A placed task is interned by its limits, a pending one by its future charge.
        assert_eq!(levels(&mix(by_limits, &held_state)), levels(&mix(by_use, &waiting)));
        assert_ne!(levels(&mix(by_limits, &held_state)), levels(&mix(by_limits, &waiting)));
    }

    #[test]
    fn other_demand_of_as_many_tasks_makes_the_mix_stale() {
        let mut classes = Classes::default();
        let amounts = [Resources::new(10, 1, 0, 0), Resources::new(1, 10, 0, 0)];
        let [cpu, memory] = amounts.map(|amount| classes.intern(request(amount, amount)));
        (0..80).for_each(|_| classes.count_task(cpu, true));
        let mut mix = DemandMix::default();
        mix.redraw(&classes, &[], &[]);
        let exchange = |classes: &mut Classes, n: u32| {
            (0..n).for_each(|_| classes.count_task(cpu, false));
            (0..n).for_each(|_| classes.count_task(memory, true));
        };
        exchange(&mut classes, 1);
        assert!(!mix.is_stale(&classes, 0), "memory grew by 9 of 80");
        exchange(&mut classes, 1);
        assert!(mix.is_stale(&classes, 0), "memory grew by 18 of 80");
    }
}
