//! Packing a cell from scratch: everything pending, one pass, the plan applied.

use super::load::{LoadedCell, Units};
use super::pending::{
    Explain, ExplainedTask, NoSuchTask, PendingReport, explain_pending, explain_task, find_task,
};
use super::placement::{PlacementHash, placement_hash};
use super::process_metrics::{peak_rss_bytes, process_cpu, timed};
use super::progress::Progress;
use super::scheduler::{PlanRejected, Solved, Techniques, commit, solve};
use super::utilisation::{DimensionUse, device_shares, percent, utilisation};
use crate::trace::{ReadReport, RowProblem, total_problems};
use cellwright_cell::State;
use cellwright_sched::executor::Executor;
use cellwright_sched::{ClusterSnapshot, Options, Stats};
use serde::Serialize;

/// How many unusable rows of a trace are listed in full.
const MAX_LISTED_PROBLEMS: usize = 5;

/// How to pack.
#[derive(Clone, Copy)]
pub struct PackOptions<'a> {
    pub scheduler: Options,
    pub seed: u64,
    pub threads: usize,
    pub executor: &'a dyn Executor,
    pub explain: Explain<'a>,
}

/// Rows of the trace that could not be used.
#[derive(Clone, Debug, Serialize)]
pub struct TraceProblems {
    pub rows_read: u64,
    pub rows_unusable: u64,
    pub first: Vec<RowProblem>,
}

impl TraceProblems {
    #[must_use]
    pub fn of(reports: &[ReadReport]) -> TraceProblems {
        let problems = reports.iter().flat_map(|report| report.problems.iter().cloned());
        TraceProblems {
            rows_read: reports.iter().map(|report| report.rows).sum(),
            rows_unusable: total_problems(reports),
            first: problems.take(MAX_LISTED_PROBLEMS).collect(),
        }
    }
}

/// The result. Seconds are of the wall clock unless the name says otherwise.
#[derive(Clone, Debug, Serialize)]
pub struct PackResult {
    pub machines: usize,
    pub jobs: usize,
    pub tasks: u64,
    pub placed: usize,
    pub pending: usize,
    pub preempted: usize,
    /// Classes of equal tasks the scheduler saw.
    pub classes: usize,
    /// Reading the trace and submitting it by commands.
    pub load_seconds: f64,
    pub read_seconds: f64,
    pub submit_seconds: f64,
    /// Building the scheduler's snapshot of the state.
    pub snapshot_seconds: f64,
    /// The pass alone.
    pub solve_seconds: f64,
    /// Processor time of the pass alone, over all threads.
    pub solve_cpu_seconds: f64,
    /// Applying the plan, with every placement checked again.
    pub apply_seconds: f64,
    pub explain_seconds: f64,
    /// Processor time of the whole process up to here, over all threads.
    pub cpu_seconds: f64,
    pub peak_rss_bytes: Option<u64>,
    pub seed: u64,
    pub threads: usize,
    pub placement_hash: PlacementHash,
    pub techniques: Techniques,
    pub statistics: Stats,
    pub units: Units,
    pub utilisation: Vec<DimensionUse>,
    /// Allocated shares of all devices; missing when no machine has any.
    pub devices_percent: Option<f64>,
    pub pending_reasons: PendingReport,
    /// The task that was selected by name.
    pub explained_task: Option<ExplainedTask>,
    pub notes: Vec<String>,
    pub trace: TraceProblems,
}

/// A packed cell, for queries about it.
#[derive(Debug)]
pub struct PackedCell {
    pub state: State,
    pub snapshot: ClusterSnapshot,
}

/// Why a cell could not be packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    #[error(transparent)]
    PlanRejected(#[from] PlanRejected),
    #[error(transparent)]
    NoSuchTask(#[from] NoSuchTask),
}

/// Packs the cell.
///
/// # Errors
/// When the state rejects part of the plan, or the task to explain is not in the workload.
pub fn pack(
    loaded: LoadedCell,
    options: PackOptions<'_>,
    progress: &dyn Progress,
) -> Result<(PackResult, PackedCell), PackError> {
    let LoadedCell { workload, mut state, units, read_seconds, submit_seconds } = loaded;
    let (classes, task) = match options.explain {
        Explain::Classes(most) => (most, None),
        Explain::Task(name) => (0, Some(find_task(&state, name)?)),
    };
    let placed = placed_tasks(&state);
    progress.stage("placing tasks", 0);
    let Solved { snapshot, mut outcome, snapshot_seconds, solve_seconds, solve_cpu_seconds } =
        solve(&state, options.scheduler, options.seed, options.executor);
    progress.stage("applying the plan", 0);
    let plan = std::mem::take(&mut outcome.plan);
    let (applied, apply_seconds) = timed(|| commit(&mut state, plan));
    applied?;
    progress.stage("explaining what is pending", 0);
    let ((pending_reasons, explained_task), explain_seconds) = timed(|| {
        let PackOptions { seed, executor, .. } = options;
        let reasons = explain_pending(&state, &snapshot, &outcome, seed, classes, executor);
        (reasons, task.map(|task| explain_task(&state, &snapshot, task, seed, executor)))
    });
    let (allocated, all) = device_shares(&state);
    let result = PackResult {
        machines: state.machines().len(),
        jobs: workload.jobs.len(),
        tasks: workload.tasks(),
        placed: if placed == 0 { outcome.placed } else { placed_tasks(&state) },
        pending: outcome.pending.len() + outcome.not_yet,
        preempted: outcome.preempted,
        classes: snapshot.class_count(),
        load_seconds: read_seconds + submit_seconds,
        read_seconds,
        submit_seconds,
        snapshot_seconds,
        solve_seconds,
        solve_cpu_seconds,
        apply_seconds,
        explain_seconds,
        cpu_seconds: process_cpu().as_secs_f64(),
        peak_rss_bytes: peak_rss_bytes(),
        seed: options.seed,
        threads: options.threads,
        placement_hash: placement_hash(&state),
        techniques: Techniques::of(&options.scheduler),
        statistics: outcome.stats,
        units,
        utilisation: utilisation(&state),
        devices_percent: (all > 0).then(|| percent(allocated, all)),
        pending_reasons,
        explained_task,
        notes: workload.notes,
        trace: TraceProblems::of(&workload.reports),
    };
    Ok((result, PackedCell { state, snapshot }))
}

/// Number of tasks that are placed.
fn placed_tasks(state: &State) -> usize {
    state.tasks().iter().filter(|(_, task)| task.state.holds_resources()).count()
}
