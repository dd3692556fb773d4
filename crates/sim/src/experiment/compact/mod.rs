//! Cell compaction (Borg 5.1): how few machines would do for this workload? Machines are removed in
//! a random order until the workload no longer fits, packing from scratch each time, so that no
//! unlucky leftover decides. Many trials with different orders give a distribution; what can be
//! promised is its 90th percentile.
//!
//! The rules of the method: a small share of the tasks may pend, because some are picky; jobs
//! larger than half the cell have their hard constraints and spread limits made soft, because they
//! could not be met on half of it; a workload that does not fit in the whole cell gets the cell
//! several times over.

mod bound;
mod relax;
mod search;
mod trial;

pub use bound::Bound;
pub use trial::Trial;

use super::load::Units;
use super::pack::TraceProblems;
use super::progress::Progress;
use super::scheduler::{PlanRejected, Techniques};
use super::threads::{Threads, ThreadsError};
use crate::workload::{RejectedCommand, Workload};
use cellwright_cell::units::pluralize_as;
use cellwright_sched::Options;
use serde::Serialize;
use trial::CompactionCell;

/// How to compact.
#[derive(Clone, Copy, Debug)]
pub struct CompactOptions {
    pub trials: u32,
    /// Trial `i` uses `seed + i`.
    pub seed: u64,
    /// Thousandths of the tasks that may pend.
    pub pending_permille: u32,
    pub scheduler: Options,
    pub threads: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum CompactError {
    #[error(transparent)]
    Rejected(#[from] RejectedCommand),
    #[error(transparent)]
    PlanRejected(#[from] PlanRejected),
    #[error(transparent)]
    Threads(#[from] ThreadsError),
    #[error(
        "{pending} of {tasks} tasks pend even with the cell {MAX_CLONES} times over; allowed: \
         {may_pend} (--pending-permille). See why: cell sim pack --explain 5"
    )]
    DoesNotFit { pending: usize, tasks: u64, may_pend: usize },
}

/// Most times the cell is cloned before the workload is given up.
const MAX_CLONES: u32 = 4;

/// The result. Fractions are of the machines of the original cell.
#[derive(Clone, Debug, Serialize)]
pub struct CompactResult {
    pub machines: usize,
    pub tasks: u64,
    pub techniques: Techniques,
    /// Tasks that may pend in a packing that counts as fitting.
    pub may_pend: usize,
    /// 1, or how many times over the cell had to be taken for the workload to fit.
    pub cell_clones: u32,
    pub machines_fraction_p90: f64,
    pub machines_fraction_min: f64,
    pub machines_fraction_median: f64,
    pub machines_fraction_max: f64,
    /// 90th percentile of the trials' lower bounds.
    pub lower_bound_fraction: f64,
    /// The same when no task may pend: demand over capacity.
    pub lower_bound_all_placed_fraction: f64,
    pub lower_bound_meaning: &'static str,
    pub trials: Vec<Trial>,
    pub seconds: f64,
    pub softened_jobs: usize,
    pub units: Units,
    pub notes: Vec<String>,
    pub trace: TraceProblems,
}

const LOWER_BOUND_MEANING: &str = "machines kept in the trial's order until, dimension by \
     dimension, their capacity covers what must be placed (prod by limits, all by reservations), \
     without the largest tasks where some may pend; no packing can be smaller, and one as small \
     need not exist";

/// Runs all trials.
///
/// # Errors
/// When the workload cannot be submitted, does not fit on several cells, or a plan is rejected.
pub fn compact(
    workload: Workload,
    units: Units,
    options: CompactOptions,
    progress: &dyn Progress,
) -> Result<CompactResult, CompactError> {
    let start = std::time::Instant::now();
    let machines = workload.machines.len();
    let workload = mark_all_up(workload);
    let (mut workload, softened_jobs) = relax::relax_large_jobs(workload, machines);
    let tasks = workload.tasks();
    let may_pend = (tasks * u64::from(options.pending_permille) / 1000) as usize;
    let cell = CompactionCell::sized_to_fit(&mut workload, options, may_pend, progress)?;
    if softened_jobs > 0 {
        workload.notes.push(format!(
            "jobs with more tasks than half the machines: {softened_jobs}; their constraints are \
             wishes, their spread limits and static ports are off"
        ));
    }
    let trials = run_trials(&cell, options, progress)?;
    let fraction = |machines: usize| machines as f64 / cell.original_machines as f64;
    let mut sizes: Vec<usize> = trials.iter().map(|trial| trial.machines).collect();
    let bounds = trials.iter().map(|trial| trial.lower_bound.machines).collect();
    let placed_bounds = trials.iter().map(|trial| trial.lower_bound_all_placed).collect();
    sizes.sort_unstable();
    let at = |permille: u32| fraction(percentile(&sizes, permille));
    Ok(CompactResult {
        machines,
        tasks,
        techniques: Techniques::of(&options.scheduler),
        may_pend,
        cell_clones: cell.clones,
        machines_fraction_p90: at(900),
        machines_fraction_min: at(0),
        machines_fraction_median: at(500),
        machines_fraction_max: at(1000),
        lower_bound_fraction: fraction(sorted_percentile(bounds, 900)),
        lower_bound_all_placed_fraction: fraction(sorted_percentile(placed_bounds, 900)),
        lower_bound_meaning: LOWER_BOUND_MEANING,
        trials,
        seconds: start.elapsed().as_secs_f64(),
        softened_jobs,
        units,
        notes: workload.notes,
        trace: TraceProblems::of(&workload.reports),
    })
}

/// All machines are candidates for removal, whatever state they are in now.
fn mark_all_up(mut workload: Workload) -> Workload {
    let down = workload.machines.iter_mut().filter(|machine| !machine.is_up);
    let count = down.map(|machine| machine.is_up = true).count();
    if count > 0 {
        let one = "machine that is not up is counted as if it were";
        let many = "machines that are not up are counted as if they were";
        workload.notes.push(pluralize_as(count as u64, one, many));
    }
    workload
}

fn run_trials(
    cell: &CompactionCell,
    options: CompactOptions,
    progress: &dyn Progress,
) -> Result<Vec<Trial>, CompactError> {
    progress.stage("compacting", u64::from(options.trials));
    let seeds: Vec<u64> = (0..options.trials).map(|i| options.seed + u64::from(i)).collect();
    let run = |seed: &u64| {
        let trial = cell.trial(*seed);
        if let Ok(trial) = &trial {
            let percent = 100.0 * trial.fraction;
            progress.advance(1, &format!("seed {seed}: {percent:.2} % of the machines"));
        }
        trial
    };
    let trials: Vec<Result<Trial, CompactError>> = match options.threads {
        0 | 1 => seeds.iter().map(run).collect(),
        threads => Threads::new(threads)?.map(&seeds, run),
    };
    trials.into_iter().collect()
}

fn sorted_percentile(mut values: Vec<usize>, permille: u32) -> usize {
    values.sort_unstable();
    percentile(&values, permille)
}

/// Nearest rank: the smallest value that at least so many of the values do not exceed.
fn percentile(sorted: &[usize], permille: u32) -> usize {
    let rank = (sorted.len() as u64 * u64::from(permille)).div_ceil(1000).max(1) as usize;
    sorted.get(rank - 1).or(sorted.last()).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let eleven: Vec<usize> = (1..=11).collect();
        assert_eq!(percentile(&eleven, 900), 10);
        assert_eq!(percentile(&eleven, 500), 6);
        assert_eq!((percentile(&eleven, 0), percentile(&eleven, 1000)), (1, 11));
        assert_eq!((percentile(&[7], 900), percentile(&[], 900)), (7, 0));
    }
}
