//! Questions about a packed cell and a job that is not there: how many more of it fit, and what
//! adding it would do to the others. The scheduler answers on a copy; the cell stays as it is.

use super::load::Units;
use super::pack::{PackResult, Packed, TraceProblems};
use cellwright_cell::id::UserId;
use cellwright_cell::reason::Refusal;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_sched::Options;
use cellwright_sched::executor::Executor;
use cellwright_sched::whatif::{self, Fits, Whatif, WhatifOptions, Whose};
use serde::Serialize;

/// The cell that is asked.
#[derive(Clone, Debug, Serialize)]
pub struct AskedCell {
    pub machines: usize,
    pub tasks: u64,
    pub placed: usize,
    pub pending: usize,
    pub seed: u64,
    pub units: Units,
    pub notes: Vec<String>,
    pub trace: TraceProblems,
}

/// The job that is asked about.
#[derive(Clone, Debug, Serialize)]
pub struct AskedJob {
    pub count: u32,
    pub priority: u16,
    pub band: &'static str,
    pub limits: Resources,
}

#[derive(Clone, Debug, Serialize)]
pub struct Answer<T> {
    pub cell: AskedCell,
    pub job: AskedJob,
    #[serde(flatten)]
    pub answer: T,
}

/// How many more tasks of the job fit, without evicting anybody.
///
/// # Errors
/// When no cell would admit the job.
pub fn fits(
    pack: &PackResult,
    packed: &Packed,
    spec: &JobSpec,
    scheduler: Options,
    executor: &dyn Executor,
) -> Result<Answer<Fits>, Refusal> {
    let options = options(pack, Options { preemption: false, ..scheduler });
    let whose = Whose::New { user: nobody(packed), spec, alloc_set: None };
    let answer = whatif::fits(&packed.board, whose, &packed.state, executor, &options)?;
    Ok(Answer { cell: asked_cell(pack), job: asked_job(spec), answer })
}

/// What adding the job would do; lower priorities may be evicted for it.
///
/// # Errors
/// When no cell would admit the job.
pub fn whatif(
    pack: &PackResult,
    packed: &Packed,
    spec: &JobSpec,
    scheduler: Options,
    executor: &dyn Executor,
) -> Result<Answer<Whatif>, Refusal> {
    let options = options(pack, Options { preemption: true, ..scheduler });
    let user = nobody(packed);
    let answer = whatif::add(&packed.board, user, spec, None, &packed.state, executor, &options)?;
    Ok(Answer { cell: asked_cell(pack), job: asked_job(spec), answer })
}

fn options(pack: &PackResult, solver: Options) -> WhatifOptions {
    WhatifOptions { solver, seed: pack.seed, ..WhatifOptions::default() }
}

/// A user that the cell does not have: the job is nobody's yet.
fn nobody(packed: &Packed) -> UserId {
    UserId(packed.state.users().slots() as u32)
}

fn asked_cell(pack: &PackResult) -> AskedCell {
    let mut notes = pack.notes.clone();
    notes.push("the job asked about reserves its limits, as every new task does".into());
    AskedCell {
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

fn asked_job(spec: &JobSpec) -> AskedJob {
    AskedJob {
        count: spec.count,
        priority: spec.priority.0,
        band: spec.priority.band().as_str(),
        limits: spec.task.limits,
    }
}
