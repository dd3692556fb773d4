//! One trial: an order of machines, a search for how many of them are needed, and a final check by
//! `apply` of the packing found, with all other machines down.
//!
//! The workload is submitted once and its snapshot is built once; every packing starts from a copy
//! of that snapshot with the machines beyond the first `n` removed. Rejected: a new state per size,
//! which would spend most of the time on submitting the same jobs.

use super::bound::{Bound, Demand};
use super::search::smallest_fitting;
use super::{CompactError, CompactOptions, MAX_CLONES};
use crate::experiment::placement::{PlacementHash, placement_hash};
use crate::experiment::progress::Progress;
use crate::experiment::scheduler::commit;
use crate::trace::stable_rng::StableRng;
use crate::workload::{RejectedCommand, Workload, apply_command};
use cellwright_cell::State;
use cellwright_cell::command::Command;
use cellwright_cell::id::MachineId;
use cellwright_cell::resource::Resources;
use cellwright_sched::feasible::{self, PlacementTarget};
use cellwright_sched::{ClusterSnapshot, Options, PassOutcome, Solver};
use serde::Serialize;

/// The result for one order of machines.
#[derive(Clone, Debug, Serialize)]
pub struct Trial {
    pub seed: u64,
    pub machines: usize,
    /// Fraction of the original cell.
    pub fraction: f64,
    pub pending: usize,
    pub lower_bound: Bound,
    pub lower_bound_all_placed: usize,
    /// Packings tried.
    pub packings: u32,
    pub seconds: f64,
    pub placement_hash: PlacementHash,
}

/// A cell on which the workload fits, ready to be packed many times.
#[derive(Debug)]
pub struct CompactionCell {
    state: State,
    snapshot: ClusterSnapshot,
    demand: Demand,
    scheduler: Options,
    may_pend: usize,
    /// Machines before cloning.
    pub original_machines: usize,
    pub clones: u32,
}

/// The random stream that orders the machines.
const MACHINE_ORDER_PURPOSE: u64 = 3;

impl CompactionCell {
    /// The cell, cloned until the workload fits.
    ///
    /// # Errors
    /// When it does not fit on several clones, or cannot be submitted.
    pub fn sized_to_fit(
        workload: &mut Workload,
        options: CompactOptions,
        may_pend: usize,
        progress: &dyn Progress,
    ) -> Result<CompactionCell, CompactError> {
        let original = workload.machines.len();
        let mut pending = 0;
        for clones in 1..=MAX_CLONES {
            progress.stage(&format!("packing the cell {clones} times over"), 0);
            if clones > 1 {
                workload.add_machine_copies(original, clones - 1);
            }
            let state = workload.submit()?;
            let snapshot = ClusterSnapshot::from_state(&state);
            let scheduler = options.scheduler;
            let demand = demand_of(&state, &snapshot);
            let mut cell = CompactionCell {
                state,
                snapshot,
                demand,
                scheduler,
                may_pend,
                original_machines: original,
                clones,
            };
            let order: Vec<MachineId> = cell.snapshot.machine_ids().collect();
            let outcome = cell.pack(&order, order.len(), options.seed);
            let left_out = cell.exclude_infeasible(&outcome);
            pending = unplaced(&outcome) - left_out;
            if pending <= may_pend {
                workload.notes.extend(cell.notes(left_out));
                return Ok(cell);
            }
        }
        Err(CompactError::DoesNotFit { pending, tasks: workload.tasks(), may_pend })
    }

    /// Excludes pending tasks whose class fits on no machine even when all are empty: they say
    /// nothing about how few machines would do. Returns how many were excluded.
    fn exclude_infeasible(&mut self, outcome: &PassOutcome) -> usize {
        let mut left_out = 0;
        for (class, tasks) in outcome.pending_by_class() {
            let class = self.snapshot.class(class);
            // Tasks inside allocs need the allocs placed first, so an empty cell proves nothing.
            let is_infeasible = class.request.alloc_set.is_none()
                && self.snapshot.machine_ids().all(|machine| {
                    feasible::first_reason(
                        &self.snapshot,
                        class,
                        &PlacementTarget::on_machine(machine),
                    )
                    .is_some()
                });
            if is_infeasible {
                left_out += tasks.len();
                tasks.into_iter().for_each(|task| self.snapshot.drop_task(task));
            }
        }
        if left_out > 0 {
            self.demand = demand_of(&self.state, &self.snapshot);
        }
        left_out
    }

    fn notes(&self, left_out: usize) -> Vec<String> {
        let mut notes = Vec::new();
        if left_out > 0 {
            notes.push(format!(
                "tasks left out because they fit on no machine of the empty cell: {left_out}"
            ));
        }
        if self.clones > 1 {
            notes.push(format!(
                "the workload does not fit in the cell; machines were taken {} times over, \
                 fractions are of the original cell",
                self.clones
            ));
        }
        notes
    }

    /// Packs everything onto the first `kept` machines of the order, from scratch.
    fn pack(&self, order: &[MachineId], kept: usize, seed: u64) -> PassOutcome {
        let mut snapshot = self.snapshot.clone();
        for machine in &order[kept..] {
            snapshot.remove_machine(*machine);
        }
        Solver::new(self.scheduler).pass(&mut snapshot, self.state.now(), seed)
    }

    /// The submitted cell with these machines down: a plan that used one of them is rejected.
    fn state_without(&self, machines: &[MachineId]) -> Result<State, RejectedCommand> {
        let mut state = self.state.clone();
        let mut events = Vec::new();
        for machine in machines {
            let command = Command::MachineDown { machine: *machine };
            apply_command(&mut state, &mut events, command)?;
        }
        Ok(state)
    }

    /// # Errors
    /// When the state rejects a placement of the packing found.
    pub fn trial(&self, seed: u64) -> Result<Trial, CompactError> {
        let start = std::time::Instant::now();
        let mut order: Vec<MachineId> = self.snapshot.machine_ids().collect();
        StableRng::from_seed(seed, MACHINE_ORDER_PURPOSE).shuffle(&mut order);
        let capacities: Vec<Resources> =
            order.iter().map(|machine| self.snapshot.capacity(*machine)).collect();
        let all = Bound { machines: order.len(), dimension: "none", by: "none" };
        let lower_bound = self.demand.bound(&capacities, self.may_pend).unwrap_or(all);
        let all_placed = self.demand.bound(&capacities, 0).unwrap_or(all);
        let mut best: Option<(usize, PassOutcome)> = None;
        let found = smallest_fitting(lower_bound.machines, order.len(), |kept| {
            let outcome = self.pack(&order, kept, seed);
            let fits = unplaced(&outcome) <= self.may_pend;
            if fits && best.as_ref().is_none_or(|(size, _)| kept < *size) {
                best = Some((kept, outcome));
            }
            fits
        });
        // A seed other than the first may, rarely, fail where the first fitted: then every machine
        // is needed, and the result of the trial shows that.
        let packings = found.map_or(1, |found| found.probes);
        let (machines, outcome) =
            best.unwrap_or_else(|| (order.len(), self.pack(&order, order.len(), seed)));
        let pending = unplaced(&outcome);
        let mut state = self.state_without(&order[machines..])?;
        commit(&mut state, outcome.plan)?;
        Ok(Trial {
            seed,
            machines,
            fraction: machines as f64 / self.original_machines as f64,
            pending,
            lower_bound,
            lower_bound_all_placed: all_placed.machines,
            packings,
            seconds: start.elapsed().as_secs_f64(),
            placement_hash: placement_hash(&state),
        })
    }
}

/// All tasks without a machine at the end: those that were not placed and those that were evicted
/// again.
fn unplaced(outcome: &PassOutcome) -> usize {
    outcome.pending.len() + outcome.not_yet + outcome.preempted
}

/// What every task outside allocs requests; inside, the alloc requests it for them.
fn demand_of(state: &State, snapshot: &ClusterSnapshot) -> Demand {
    Demand::new(snapshot.pending().iter().filter_map(|id| {
        let task = state.tasks().get(*id)?;
        let spec = state.spec_of(task)?;
        let is_top_level = spec.alloc_set.is_none();
        let limits = spec.limits_of(task.index);
        is_top_level.then_some((limits, task.reservation, spec.is_packed_by_limits()))
    }))
}
