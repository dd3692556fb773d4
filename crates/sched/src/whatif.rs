//! What-if questions about a job that does not exist (yet): how many of its tasks would fit, and
//! how adding it would affect the others.
//!
//! The answer is the real scheduler's: the job is put on a copy of the snapshot and an ordinary
//! pass is run over it alone. Rejected: undoing the pass on the snapshot itself. The pass also
//! leaves classes, cached scores and log entries behind, and with sampling on those would influence
//! later passes; a copy leaves no trace and costs less than the pass.

mod hypothetical;
mod reschedule;

use crate::class::ClassId;
use crate::cluster_snapshot::ClusterSnapshot;
use crate::executor::Executor;
use crate::explain::Explainer;
use crate::explain::names::{self, NameResolver};
use crate::solve::options::Options;
use crate::solve::{PassOutcome, Solver};
use cellwright_cell::explanation::{Explanation, MachineRef, TaskRef};
use cellwright_cell::id::{JobId, MachineId, TaskId, UserId};
use cellwright_cell::priority::Priority;
use cellwright_cell::reason::Rejection;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::Time;
use hypothetical::HypotheticalJob;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The job with the hypothetical tasks.
#[derive(Clone, Copy, Debug)]
pub enum WhatifJob<'a> {
    /// A job that is not in the snapshot. `alloc_set` is the job that `spec.alloc_set` names.
    New { user: UserId, spec: &'a JobSpec, alloc_set: Option<JobId> },
    /// More tasks of an existing job; its spread limits count the tasks it has.
    More(JobId),
}

#[derive(Clone, Copy, Debug)]
pub struct WhatifOptions {
    /// Options of the pass; `preemption` says whether others may be evicted.
    pub solver: Options,
    pub seed: u64,
    /// The charge of each task in the sum of reservations once placed; `None`: its limits, as for a
    /// task that has not run yet.
    pub reservation: Option<Resources>,
    /// The most tasks that [`count_fits`] tries.
    pub max_tasks: u32,
    /// The most machines listed in an answer.
    pub max_listed: usize,
}

impl Default for WhatifOptions {
    fn default() -> Self {
        let solver = Options { preemption: false, ..Options::default() };
        WhatifOptions { solver, seed: 0, reservation: None, max_tasks: 1_000_000, max_listed: 20 }
    }
}

/// Tasks of the job on one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MachineTasks {
    pub machine: MachineRef,
    pub tasks: u32,
}

/// How many more tasks of a job fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FitCount {
    pub count: u32,
    /// The count stopped at the limit; more may fit.
    pub reached_max: bool,
    /// Machines they would be on.
    pub machines: u32,
    /// The machines with most of them.
    pub placements: Vec<MachineTasks>,
    /// Tasks of other jobs that would be evicted.
    pub evicted: u32,
    /// Why the next one does not fit.
    pub stopped_by: Option<Explanation>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evicted {
    pub task: TaskRef,
    pub job: JobId,
    pub index: u32,
    pub priority: Priority,
    pub machine: MachineRef,
    /// Where it would be placed next; `None`: it would stay pending.
    pub moves_to: Option<MachineRef>,
}

/// The losses of one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobLoss {
    /// `user/job`.
    pub job: String,
    pub priority: Priority,
    /// Tasks evicted, at once or in turn.
    pub evicted: u32,
    /// Of them, those that would be placed again.
    pub placed_again: u32,
    pub pending: u32,
}

/// The effects of adding a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Whatif {
    pub placed: u32,
    pub pending: u32,
    pub machines: u32,
    /// The machines with most of its tasks.
    pub placements: Vec<MachineTasks>,
    /// All tasks that would be evicted for it, lowest priority first.
    pub victims: Vec<Evicted>,
    /// All tasks that would be evicted next, to place the victims elsewhere.
    pub evicted_in_turn: Vec<Evicted>,
    /// Both lists by job, most tasks first.
    pub by_job: Vec<JobLoss>,
    /// Why the first of the pending ones stays pending.
    pub explanation: Option<Explanation>,
}

/// How many more tasks of the job fit, one by one: overrides of single tasks and gangs do not
/// matter here. The snapshot is not changed.
///
/// # Errors
/// [`Rejection::BadField`] for a spec that no cell would admit, [`Rejection::NoSuchRow`] for a job
/// that is not in the snapshot.
pub fn count_fits(
    snapshot: &ClusterSnapshot,
    job: WhatifJob<'_>,
    names: &dyn NameResolver,
    executor: &dyn Executor,
    options: &WhatifOptions,
) -> Result<FitCount, Rejection> {
    let mut hypothetical = HypotheticalJob::with_plain_tasks(snapshot, job)?;
    let solver = Solver::new(options.solver);
    let mut on: BTreeMap<MachineId, u32> = BTreeMap::new();
    let (mut count, mut evicted, mut stopped) = (0, 0, None);
    // Growing steps: a job that hardly fits should not pay for a million hypothetical tasks.
    let mut step = 256;
    while count < options.max_tasks && stopped.is_none() {
        let tasks = step.min(options.max_tasks - count);
        hypothetical.add_pending(tasks, options.reservation);
        let outcome = solver.pass(&mut hypothetical.snapshot, Time::ZERO, options.seed);
        count += outcome.placed as u32;
        evicted += outcome.preempted as u32;
        count_machines(&outcome, &mut on);
        stopped = outcome.pending.first().map(|pending| pending.class);
        step = step.saturating_mul(2);
    }
    Ok(FitCount {
        count,
        reached_max: stopped.is_none(),
        machines: on.len() as u32,
        placements: placements(&on, options.max_listed, names),
        evicted,
        stopped_by: stopped.map(|class| explain_class(&hypothetical, class, names, executor)),
    })
}

/// What a pass over the job alone would do: where tasks are placed, which tasks are evicted, which
/// stay pending. The snapshot is not changed.
///
/// # Errors
/// As [`count_fits`].
pub fn simulate_job(
    snapshot: &ClusterSnapshot,
    user: UserId,
    spec: &JobSpec,
    alloc_set: Option<JobId>,
    names: &dyn NameResolver,
    executor: &dyn Executor,
    options: &WhatifOptions,
) -> Result<Whatif, Rejection> {
    let mut hypothetical =
        HypotheticalJob::with_spec(snapshot, WhatifJob::New { user, spec, alloc_set })?;
    hypothetical.add_pending(spec.count, options.reservation);
    let solver = Solver::new(options.solver);
    let outcome = solver.pass(&mut hypothetical.snapshot, Time::ZERO, options.seed);
    let mut on: BTreeMap<MachineId, u32> = BTreeMap::new();
    count_machines(&outcome, &mut on);
    let first = outcome.pending.first().map(|pending| pending.class);
    let mut explanation = first.map(|class| explain_class(&hypothetical, class, names, executor));
    if let Some(explanation) = explanation.as_mut().filter(|_| spec.gang) {
        explanation.gang = Some(outcome.pending.len() as u32);
    }
    let first = reschedule::evicted_tasks(snapshot, &outcome);
    let next =
        reschedule::reschedule(snapshot, &mut hypothetical.snapshot, &first, &solver, options.seed);
    let victims = describe_evicted(snapshot, &hypothetical, &first, names);
    let evicted_in_turn = describe_evicted(snapshot, &hypothetical, &next, names);
    Ok(Whatif {
        placed: outcome.placed as u32,
        pending: outcome.pending.len() as u32,
        machines: on.len() as u32,
        placements: placements(&on, options.max_listed, names),
        by_job: losses_by_job(victims.iter().chain(&evicted_in_turn)),
        victims,
        evicted_in_turn,
        explanation,
    })
}

fn count_machines(outcome: &PassOutcome, on: &mut BTreeMap<MachineId, u32>) {
    for assignment in outcome.plan.groups.iter().flat_map(|group| &group.assignments) {
        *on.entry(assignment.machine).or_insert(0) += 1;
    }
}

fn placements(
    on: &BTreeMap<MachineId, u32>,
    listed: usize,
    names: &dyn NameResolver,
) -> Vec<MachineTasks> {
    let mut by_count: Vec<(MachineId, u32)> = on.iter().map(|(m, n)| (*m, *n)).collect();
    by_count.sort_unstable_by_key(|(machine, tasks)| (Reverse(*tasks), *machine));
    let top = by_count.into_iter().take(listed);
    top.map(|(m, tasks)| MachineTasks { machine: names::machine_ref(names, m), tasks }).collect()
}

fn explain_class(
    hypothetical: &HypotheticalJob,
    class: ClassId,
    names: &dyn NameResolver,
    executor: &dyn Executor,
) -> Explanation {
    let names = hypothetical.names(names);
    Explainer::new(&hypothetical.snapshot, &names, executor).class(class)
}

/// `before` is the snapshot before the pass, with the tasks where they were; the hypothetical job
/// has where they are now.
fn describe_evicted(
    before: &ClusterSnapshot,
    hypothetical: &HypotheticalJob,
    tasks: &[TaskId],
    names: &dyn NameResolver,
) -> Vec<Evicted> {
    let machine_on = |snapshot: &ClusterSnapshot, task: TaskId| {
        Some(names::machine_ref(names, snapshot.placement_of(task)?.machine()?))
    };
    let evicted = |task: &TaskId| {
        let (job, index) = before.identity_of(*task)?;
        Some(Evicted {
            task: names::task_ref(names, *task),
            job,
            index,
            priority: before.priority_of(*task)?,
            machine: machine_on(before, *task)?,
            moves_to: machine_on(&hypothetical.snapshot, *task),
        })
    };
    let mut evicted: Vec<Evicted> = tasks.iter().filter_map(evicted).collect();
    evicted.sort_by_key(|victim| (victim.priority, victim.job, victim.index));
    evicted
}

pub(crate) fn losses_by_job<'a>(evicted: impl Iterator<Item = &'a Evicted>) -> Vec<JobLoss> {
    let mut losses: BTreeMap<JobId, JobLoss> = BTreeMap::new();
    for victim in evicted {
        let name = &victim.task.name;
        let job = name.rsplit_once('/').map_or(name.as_str(), |(job, _)| job);
        let loss = losses.entry(victim.job).or_insert_with(|| JobLoss {
            job: job.to_owned(),
            priority: victim.priority,
            evicted: 0,
            placed_again: 0,
            pending: 0,
        });
        loss.evicted += 1;
        match victim.moves_to {
            Some(_) => loss.placed_again += 1,
            None => loss.pending += 1,
        }
    }
    let mut losses: Vec<(JobId, JobLoss)> = losses.into_iter().collect();
    losses.sort_by_key(|(job, loss)| (Reverse(loss.evicted), *job));
    losses.into_iter().map(|(_, loss)| loss).collect()
}
