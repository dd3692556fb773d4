//! What-if queries about a packed cell and a hypothetical job: how many more of it fit, and what
//! adding it would do to the others. The scheduler answers on a copy; the cell stays as it is.

use super::load::Units;
use super::pack::{PackResult, PackedCell, TraceProblems};
use cellwright_cell::id::UserId;
use cellwright_cell::reason::Rejection;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_sched::Options;
use cellwright_sched::executor::Executor;
use cellwright_sched::whatif::{self, FitCount, Whatif, WhatifJob, WhatifOptions};
use serde::Serialize;

/// The cell of the query.
#[derive(Clone, Debug, Serialize)]
pub struct CellSummary {
    pub machines: usize,
    pub tasks: u64,
    pub placed: usize,
    pub pending: usize,
    pub seed: u64,
    pub units: Units,
    pub notes: Vec<String>,
    pub trace: TraceProblems,
}

/// The job of the query.
#[derive(Clone, Debug, Serialize)]
pub struct JobSummary {
    pub count: u32,
    pub priority: u16,
    pub band: &'static str,
    pub limits: Resources,
}

#[derive(Clone, Debug, Serialize)]
pub struct WhatIfAnswer<T> {
    pub cell: CellSummary,
    pub job: JobSummary,
    #[serde(flatten)]
    pub answer: T,
}

/// How many more tasks of the job fit, without evicting any other.
///
/// # Errors
/// When no cell would admit the job.
pub fn fits(
    pack: &PackResult,
    packed: &PackedCell,
    spec: &JobSpec,
    scheduler: Options,
    executor: &dyn Executor,
) -> Result<WhatIfAnswer<FitCount>, Rejection> {
    let options = whatif_options(pack, Options { preemption: false, ..scheduler });
    let owner = WhatifJob::New { user: unknown_user(packed), spec, alloc_set: None };
    let answer = whatif::count_fits(&packed.snapshot, owner, &packed.state, executor, &options)?;
    Ok(WhatIfAnswer { cell: cell_summary(pack), job: job_summary(spec), answer })
}

/// What adding the job would do; lower priorities may be evicted for it.
///
/// # Errors
/// When no cell would admit the job.
pub fn whatif(
    pack: &PackResult,
    packed: &PackedCell,
    spec: &JobSpec,
    scheduler: Options,
    executor: &dyn Executor,
) -> Result<WhatIfAnswer<Whatif>, Rejection> {
    let options = whatif_options(pack, Options { preemption: true, ..scheduler });
    let user = unknown_user(packed);
    let answer = whatif::simulate_job(
        &packed.snapshot,
        user,
        spec,
        None,
        &packed.state,
        executor,
        &options,
    )?;
    Ok(WhatIfAnswer { cell: cell_summary(pack), job: job_summary(spec), answer })
}

fn whatif_options(pack: &PackResult, solver: Options) -> WhatifOptions {
    WhatifOptions { solver, seed: pack.seed, ..WhatifOptions::default() }
}

/// A user that the cell does not have, because the job belongs to no user yet.
fn unknown_user(packed: &PackedCell) -> UserId {
    UserId(packed.state.users().slots() as u32)
}

fn cell_summary(pack: &PackResult) -> CellSummary {
    let mut notes = pack.notes.clone();
    notes.push("the job asked about reserves its limits, as every new task does".into());
    CellSummary {
        machines: pack.machines,
        tasks: pack.tasks,
        placed: pack.placed,
        pending: pack.pending,
        seed: pack.seed,
        units: pack.units,
        notes,
        trace: pack.trace.clone(),
    }
}

fn job_summary(spec: &JobSpec) -> JobSummary {
    JobSummary {
        count: spec.count,
        priority: spec.priority.0,
        band: spec.priority.band().as_str(),
        limits: spec.task.limits,
    }
}
