//! Dry run: what submitting or changing a job would do, tried on a copy of the cell.
//!
//! Nothing here knows the rules of admission, quota or updates: the command that would be sent is
//! applied to the copy by the state machine itself, an update is rolled out on it step by step, and
//! an ordinary pass places the tasks that are pending then. So the preview cannot disagree with the
//! cell; it can only be outdated by changes of the cell. A copy of a state is a handful of
//! reference counts, and a dry run pays only for the rows that it touches.
//!
//! Two things are simpler than in a live cell. All tasks of an update are rolled at once, whatever
//! the job's `max_down` says of how many may be down together: which tasks restart and which move
//! is the same, when they do is not. And pending tasks of other jobs are left pending: they could
//! not be placed before.
//!
//! Rejected: computing the difference of the specs and guessing its consequences. That is a second
//! set of rules, and the two diverge at the first new field.

mod reschedule;
mod rollout;
mod scratch_cell;

use crate::cluster_snapshot::ClusterSnapshot;
use crate::executor::Executor;
use crate::explain::Explainer;
use crate::explain::names;
use crate::queue::Queue;
use crate::solve::options::Options;
use crate::solve::{PassOutcome, Solver};
use crate::whatif::{Evicted, JobLoss, losses_by_job};
use cellwright_cell::command::{Actor, ApplyOutcome, Command, Done, Verdict};
use cellwright_cell::explanation::{Explanation, MachineRef};
use cellwright_cell::id::{JobId, TaskId, UserId};
use cellwright_cell::job::{Job, JobState};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::priority::Band;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
pub use rollout::{TaskEffect, TaskEffects};
use scratch_cell::ScratchCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The job as it was at the time of the dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentJob {
    pub version: u32,
    pub submitted_at: Time,
    pub spec: Arc<JobSpec>,
}

/// The change of the owner's charge in one band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaDelta {
    pub band: Band,
    pub before: Resources,
    pub after: Resources,
    pub granted: Resources,
}

/// Where a task would be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedTask {
    pub index: u32,
    pub machine: MachineRef,
}

/// Everything one change would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DryRunResult {
    pub job_key: JobKey,
    /// `None`: there is no live job of that name.
    pub current: Option<CurrentJob>,
    /// Version of an update that has completed its rollout and is closed first.
    pub closes_update_to: Option<u32>,
    /// The cell's answer.
    pub verdict: Verdict,
    pub effects: TaskEffects,
    /// By index.
    pub placed: Vec<PlacedTask>,
    /// Tasks that could not be placed.
    pub pending: Vec<u32>,
    /// Tasks that start after another job.
    pub deferred: u32,
    /// All tasks that would be evicted for it, lowest priority first.
    pub victims: Vec<Evicted>,
    /// All tasks that would be evicted next, to place the victims elsewhere.
    pub evicted_in_turn: Vec<Evicted>,
    /// Both lists by job, most tasks first.
    pub by_job: Vec<JobLoss>,
    /// Why the first of the pending ones would stay pending.
    pub explanation: Option<Explanation>,
    /// Bands in which the owner is charged, before or after.
    pub quota: Vec<QuotaDelta>,
}

/// A copy of the cell on which changes are tried one after the other.
pub struct DryRun<'a> {
    scratch: ScratchCell,
    solver: Solver,
    executor: &'a dyn Executor,
    seed: u64,
}

impl<'a> DryRun<'a> {
    /// `snapshot` is the snapshot of `state`; `options` are those of the scheduler that would plan
    /// it.
    #[must_use]
    pub fn new(
        state: State,
        snapshot: ClusterSnapshot,
        options: Options,
        seed: u64,
        executor: &'a dyn Executor,
    ) -> DryRun<'a> {
        let scratch = ScratchCell { state, snapshot };
        DryRun { scratch, solver: Solver::new(options), executor, seed }
    }

    /// The cell after all changes tried so far.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.scratch.state
    }

    /// Applies the job as `by`: submits it, or updates the live one of its name, after closing an
    /// open update that is complete.
    pub fn apply_job(&mut self, by: &Actor, owner: &Name, spec: &JobSpec) -> DryRunResult {
        let key = JobKey { user: owner.clone(), job: spec.name.clone() };
        let old = self.live_job(&key);
        let before = old.as_ref().map(|JobRows { job, .. }| CurrentJob {
            version: job.version,
            submitted_at: job.submitted_at,
            spec: job.spec().clone(),
        });
        let command = |spec: JobSpec, again| Command::ApplyJob {
            owner: owner.clone(),
            spec: Box::new(spec),
            expect: None,
            again,
        };
        // Verdict and quota are computed for the spec as given, its disruption bound included.
        let mut checked = self.scratch.state.clone();
        let verdict = scratch_cell::apply_one(
            &mut checked,
            by,
            command(spec.clone(), false),
            &mut Vec::new(),
        );
        let quota = self.quota_deltas(&checked, owner);
        let mut result = DryRunResult::without_effect(key.clone(), before, verdict, quota);
        match result.verdict {
            Ok(Done::Job {
                became: ApplyOutcome::Created | ApplyOutcome::Updated, closed, ..
            }) => {
                result.closes_update_to = closed;
            }
            _ => return result,
        }
        let at_once = JobSpec { max_down: None, ..spec.clone() };
        self.scratch.apply(by, vec![command(at_once, true)]);
        let Some(id) = self.scratch.state.job_named(&key) else { return result };
        result.effects = rollout::roll_out(&mut self.scratch, &key, id, old.as_ref());
        self.place_pending(id, &mut result);
        result
    }

    /// The live job of that name, unless a new one could take its name.
    fn live_job(&self, key: &JobKey) -> Option<JobRows> {
        let state = &self.scratch.state;
        let job = state.jobs().get(state.job_named(key)?)?;
        let live = matches!(job.state, JobState::Deferred | JobState::Active);
        live.then(|| JobRows { state: state.clone(), job: job.clone() })
    }

    fn quota_deltas(&self, after: &State, owner: &Name) -> Vec<QuotaDelta> {
        let before = &self.scratch.state;
        let Some(user) = before.user_named(owner) else { return Vec::new() };
        let charged = |state: &State, user: UserId| {
            state.user_load(user).map(|load| load.charged.clone()).unwrap_or_default()
        };
        let (old, new) = (charged(before, user), charged(after, user));
        let row = before.users().get(user);
        let bands: BTreeSet<Band> = old.keys().chain(new.keys()).copied().collect();
        let shift = |band: Band| QuotaDelta {
            band,
            before: old.get(&band).copied().unwrap_or_default(),
            after: new.get(&band).copied().unwrap_or_default(),
            granted: row.map(|row| row.granted(band, before.now())).unwrap_or_default(),
        };
        let shifts = bands.into_iter().map(shift);
        shifts
            .filter(|shift| shift.before != Resources::ZERO || shift.after != Resources::ZERO)
            .collect()
    }

    /// Runs a pass over the job's pending tasks only, committed to the copy as a scheduler would.
    fn place_pending(&mut self, id: JobId, result: &mut DryRunResult) {
        let ScratchCell { state, snapshot } = &mut self.scratch;
        result.deferred = state.job_load(id).map_or(0, |load| load.deferred);
        let of_this_job =
            |task: TaskId| snapshot.identity_of(task).is_some_and(|(job, _)| job == id);
        let queue = Queue::of_tasks(
            snapshot,
            self.solver.options.order,
            Time::NEVER,
            self.seed,
            of_this_job,
        );
        let outcome = self.solver.pass_with_executor(snapshot, queue, self.seed, self.executor);
        let before = state.clone();
        self.scratch.commit(&outcome);
        let ScratchCell { state, snapshot } = &self.scratch;
        let assignments = outcome.plan.groups.iter().flat_map(|group| &group.assignments);
        result.placed = assignments
            .filter_map(|a| {
                let index = state.tasks().get(a.task)?.index;
                Some(PlacedTask { index, machine: names::machine_ref(state, a.machine) })
            })
            .collect();
        result.placed.sort_unstable_by_key(|placed| placed.index);
        let waiting = outcome.pending.iter().filter_map(|p| state.tasks().get(p.task));
        result.pending = waiting.map(|row| row.index).collect();
        result.pending.sort_unstable();
        if let Some(first) = outcome.pending.first() {
            let mut why = Explainer::new(snapshot, state, self.executor).class(first.class);
            let gang = snapshot.job_spec(id).is_some_and(|spec| spec.gang);
            why.gang = gang.then_some(outcome.pending.len() as u32);
            result.explanation = Some(why);
        }
        self.record_evictions(&before, &outcome, result);
    }

    /// Records the tasks that the plan evicts, and where they end up.
    fn record_evictions(&self, before: &State, outcome: &PassOutcome, result: &mut DryRunResult) {
        let first = reschedule::evicted_tasks(before, outcome);
        if first.is_empty() {
            return;
        }
        let rescheduled = reschedule::reschedule(&self.scratch, &first, &self.solver, self.seed);
        result.victims = reschedule::describe_evicted(before, &first, &rescheduled.moves_to);
        result.evicted_in_turn = reschedule::describe_evicted(
            before,
            &rescheduled.evicted_in_turn,
            &rescheduled.moves_to,
        );
        result.by_job = losses_by_job(result.victims.iter().chain(&result.evicted_in_turn));
    }
}

impl DryRunResult {
    fn without_effect(
        job_key: JobKey,
        current: Option<CurrentJob>,
        verdict: Verdict,
        quota: Vec<QuotaDelta>,
    ) -> DryRunResult {
        DryRunResult {
            job_key,
            current,
            closes_update_to: None,
            verdict,
            effects: TaskEffects::default(),
            placed: Vec::new(),
            pending: Vec::new(),
            deferred: 0,
            victims: Vec::new(),
            evicted_in_turn: Vec::new(),
            by_job: Vec::new(),
            explanation: None,
            quota,
        }
    }

    /// How many of its tasks would be on which machine, most first.
    #[must_use]
    pub fn by_machine(&self) -> Vec<(MachineRef, u32)> {
        let mut on: BTreeMap<&str, (MachineRef, u32)> = BTreeMap::new();
        for placed in &self.placed {
            let entry = on.entry(&placed.machine.name);
            entry.or_insert_with(|| (placed.machine.clone(), 0)).1 += 1;
        }
        let mut by_count: Vec<(MachineRef, u32)> = on.into_values().collect();
        by_count.sort_by_key(|(machine, tasks)| (std::cmp::Reverse(*tasks), machine.id));
        by_count
    }
}

/// A job with the rows of its tasks, before any change.
struct JobRows {
    state: State,
    job: Job,
}
