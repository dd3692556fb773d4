//! GPU pods that arrive one at a time (the protocol behind the published figures of the trace):
//! each is placed when it comes, in that order, or dropped; no pod moves, and none is retried.
//!
//! One pass in order of arrival is exactly that: the pass tries every task once, nothing becomes
//! free in between, and the state checks the plan afterwards. The scheduler's model of the usual
//! demand is drawn from the pods of the run, as the published policies draw theirs from the trace.

use super::pack::TraceProblems;
use super::placement::{PlacementHash, placement_hash};
use super::progress::Progress;
use super::scheduler::{PlanRejected, Techniques, commit, solve};
use super::threads::{Threads, ThreadsError};
use super::utilisation::{device_shares, percent};
use crate::convert::{ConvertError, OpenbCell, openb_cell};
use crate::trace::openb::{
    Arrivals, PUBLISHED_FILE, PublishedAllocation, find_pod_list, pod_lists, read_published,
    shuffled_load,
};
use crate::trace::{Input, TraceError};
use crate::workload::{RejectedCommand, ReservedShare, Workload, WorkloadJob};
use cellwright_cell::name::Name;
use cellwright_sched::Options;
use cellwright_sched::executor::Sequential;
use cellwright_sched::queue::QueueOrder;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// How pods arrive.
#[derive(Clone, Debug)]
pub struct ArrivalOptions {
    pub folder: PathBuf,
    /// A pod list by name, or `all`.
    pub pods: String,
    /// Thousandths of the GPU capacity that arrive.
    pub load_permille: u32,
    /// Run `i` uses `seed + i`.
    pub seed: u64,
    pub seeds: u32,
    pub scheduler: Options,
    pub threads: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum ArrivalError {
    #[error(transparent)]
    Convert(#[from] ConvertError),
    #[error(transparent)]
    Rejected(#[from] RejectedCommand),
    #[error(transparent)]
    PlanRejected(#[from] PlanRejected),
    #[error(transparent)]
    Threads(#[from] ThreadsError),
}

/// One order of arrivals.
#[derive(Clone, Debug, Serialize)]
pub struct ArrivalRun {
    pub seed: u64,
    pub machines: usize,
    pub tasks: usize,
    pub placed: usize,
    /// Pods that could not be placed when they came; they are not retried.
    pub pending: usize,
    pub preempted: usize,
    pub gpu_arrived_percent: f64,
    pub gpu_allocated_percent: f64,
    pub solve_seconds: f64,
    pub placement_hash: PlacementHash,
}

/// What published policies reached on the same pod list at 130 % load, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Published {
    pub random: f64,
    pub dot_product: f64,
    pub gpu_clustering: f64,
    pub gpu_packing: f64,
    pub best_fit: f64,
    pub fgd: f64,
}

/// All orders of arrivals of one pod list.
#[derive(Clone, Debug, Serialize)]
pub struct ArrivalResult {
    pub pods: String,
    pub load: f64,
    pub gpu_allocated_percent: Vec<f64>,
    pub gpu_allocated_percent_mean: f64,
    pub gpu_unallocated_percent_mean: f64,
    /// Unallocated GPU as a multiple of the best published policy's; below 1 is better.
    pub unallocated_vs_fgd: Option<f64>,
    /// Missing when the folder has no published figures for this list.
    pub published: Option<Published>,
    pub runs: Vec<ArrivalRun>,
    pub techniques: Techniques,
    pub notes: Vec<String>,
    pub trace: TraceProblems,
}

/// Runs every seed on every requested pod list.
///
/// # Errors
/// When a list cannot be read, the load cannot be made, or the state rejects a command.
pub fn arrivals(
    options: &ArrivalOptions,
    progress: &dyn Progress,
) -> Result<Vec<ArrivalResult>, ArrivalError> {
    let published = read_published_figures(&options.folder).map_err(ConvertError::from)?;
    let lists = pod_list_names(options).map_err(ConvertError::from)?;
    progress.stage("placing arrivals", lists.len() as u64 * u64::from(options.seeds));
    let pool = Threads::new(options.threads.max(1))?;
    lists.iter().map(|list| run_list(options, list, &published, &pool, progress)).collect()
}

/// Names of pod lists without extension.
fn pod_list_names(options: &ArrivalOptions) -> Result<Vec<String>, TraceError> {
    let paths = match options.pods.as_str() {
        "all" => pod_lists(&options.folder)?,
        given => vec![find_pod_list(&options.folder, given)?],
    };
    let stem = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        name.strip_suffix(".csv").unwrap_or(name).to_owned()
    };
    Ok(paths.iter().map(stem).collect())
}

/// None when the folder has no such file.
fn read_published_figures(folder: &Path) -> Result<Vec<PublishedAllocation>, TraceError> {
    let path = folder.join(PUBLISHED_FILE);
    if path.exists() { Ok(read_published(Input::open(&path)?)?.rows) } else { Ok(Vec::new()) }
}

fn run_list(
    options: &ArrivalOptions,
    list: &str,
    published: &[PublishedAllocation],
    pool: &Threads,
    progress: &dyn Progress,
) -> Result<ArrivalResult, ArrivalError> {
    let cell = openb_cell(&options.folder, list)?;
    let seeds: Vec<u64> = (0..options.seeds).map(|i| options.seed + u64::from(i)).collect();
    let runs = pool.map(&seeds, |seed| {
        let run = run_seed(options, &cell, *seed);
        progress.advance(1, list);
        run
    });
    let runs: Vec<ArrivalRun> = runs.into_iter().collect::<Result<_, _>>()?;
    let allocated: Vec<f64> = runs.iter().map(|run| run.gpu_allocated_percent).collect();
    let mean = allocated.iter().sum::<f64>() / allocated.len().max(1) as f64;
    let published = published.iter().find(|row| row.workload == list).map(in_percent);
    let fgd = published.map(|figures| 100.0 - figures.fgd).filter(|left| *left > 0.0);
    Ok(ArrivalResult {
        pods: list.to_owned(),
        load: f64::from(options.load_permille) / 1000.0,
        gpu_allocated_percent: allocated,
        gpu_allocated_percent_mean: mean,
        gpu_unallocated_percent_mean: 100.0 - mean,
        unallocated_vs_fgd: fgd.map(|left| (100.0 - mean) / left),
        published,
        runs,
        techniques: Techniques::of(&options.scheduler),
        notes: notes(),
        trace: TraceProblems::of(&cell.reports),
    })
}

fn notes() -> Vec<String> {
    [
        "pods arrive one at a time in shuffled order; one that does not fit is dropped",
        "the usual demand is drawn from the pods of the run; nothing is reclaimed",
        "published figures are means over other shuffles of the same list at load 1.3",
    ]
    .map(String::from)
    .to_vec()
}

fn run_seed(
    options: &ArrivalOptions,
    cell: &OpenbCell,
    seed: u64,
) -> Result<ArrivalRun, ArrivalError> {
    let load = options.load_permille;
    let arrivals = shuffled_load(&cell.pods, cell.gpu_capacity_milli, seed, load)
        .map_err(ConvertError::from)?;
    let workload = workload(cell, &arrivals)?;
    let mut state = workload.submit()?;
    let scheduler = Options { order: QueueOrder::Arrival, preemption: false, ..options.scheduler };
    let solved = solve(&state, scheduler, seed, &Sequential);
    let outcome = solved.outcome;
    commit(&mut state, outcome.plan)?;
    let (used, all) = device_shares(&state);
    Ok(ArrivalRun {
        seed,
        machines: cell.machines.len(),
        tasks: arrivals.order.len(),
        placed: outcome.placed,
        pending: outcome.pending.len(),
        preempted: outcome.preempted,
        gpu_arrived_percent: percent(arrivals.demand_milli, all),
        gpu_allocated_percent: percent(used, all),
        solve_seconds: solved.solve_seconds,
        placement_hash: placement_hash(&state),
    })
}

/// Every arrival is a job of its own; a pod drawn twice comes under two names.
fn workload(cell: &OpenbCell, arrivals: &Arrivals) -> Result<Workload, ConvertError> {
    let owner = Name::new("openb")?;
    let mut out = Workload { machines: cell.machines.clone(), ..Workload::default() };
    for (position, pod) in arrivals.order.iter().enumerate() {
        let mut spec = cell.jobs[pod.0 as usize].clone();
        spec.name = Name::new(&format!("a{position}-{}", spec.name))?;
        out.jobs.push(WorkloadJob { owner: owner.clone(), spec, reserved: ReservedShare::ALL });
    }
    Ok(out)
}

fn in_percent(row: &PublishedAllocation) -> Published {
    let percent = |thousandths: u32| f64::from(thousandths) / 1000.0;
    Published {
        random: percent(row.random),
        dot_product: percent(row.dot_product),
        gpu_clustering: percent(row.gpu_clustering),
        gpu_packing: percent(row.gpu_packing),
        best_fit: percent(row.best_fit),
        fgd: percent(row.fgd),
    }
}
