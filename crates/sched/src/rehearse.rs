//! What submitting or changing a job would do, tried on a copy of the cell.
//!
//! Nothing here knows the rules of admission, quota or updates: the command that would be sent is
//! applied to the copy by the state machine itself, an update is rolled on it step by step, and an
//! ordinary pass finds places for what waits then. So the preview cannot disagree with the cell; it
//! can only be overtaken by it. A copy of a state is a handful of reference counts, and what the
//! rehearsal touches is all it pays for.
//!
//! Two things are simpler than life. All tasks of an update are rolled at once, whatever the job's
//! `max_down` says of how many may be down together: who restarts and who moves is the same, when
//! is not. And tasks of other jobs that wait already are left waiting: they found no place before.
//!
//! Rejected: working out the difference of the specs and guessing its consequences. That is a
//! second set of rules, and the two part company at the first new field.

mod roll;
mod scene;
mod settle;

use crate::board::Board;
use crate::executor::Executor;
use crate::explain::names::{self, MachineRef};
use crate::explain::{Explainer, Explanation};
use crate::queue::Queue;
use crate::solve::options::Options;
use crate::solve::{Outcome, Solver};
use crate::whatif::{Evicted, JobLoss, by_job};
use cellwright_cell::command::{Actor, Became, Command, Done, Verdict};
use cellwright_cell::id::{JobId, TaskId, UserId};
use cellwright_cell::job::{Job, JobState};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::priority::Band;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
pub use roll::{Fate, Fates};
use scene::Scene;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The job as it stood when it was rehearsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    pub version: u32,
    pub submitted_at: Time,
    pub spec: Arc<JobSpec>,
}

/// What the owner is charged in one band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaShift {
    pub band: Band,
    pub before: Resources,
    pub after: Resources,
    pub granted: Resources,
}

/// Where a task would go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    pub index: u32,
    pub machine: MachineRef,
}

/// Everything one change would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rehearsed {
    pub job: JobKey,
    /// `None`: no job of that name lives.
    pub before: Option<Standing>,
    /// Version to which an update rolled that was complete and is closed first.
    pub closes: Option<u32>,
    /// What the cell would answer.
    pub verdict: Verdict,
    pub fates: Fates,
    /// By index.
    pub placed: Vec<Placed>,
    /// Tasks that would find no place.
    pub pending: Vec<u32>,
    /// Tasks that start after another job.
    pub deferred: u32,
    /// Everybody who would have to go for it, lowest priority first.
    pub victims: Vec<Evicted>,
    /// Everybody who would have to go next, for the victims to find another place.
    pub evicted_in_turn: Vec<Evicted>,
    /// Both lists by job, most tasks first.
    pub by_job: Vec<JobLoss>,
    /// Why the first of the pending ones would wait.
    pub explanation: Option<Explanation>,
    /// Bands in which the owner is charged something, before or after.
    pub quota: Vec<QuotaShift>,
}

/// A copy of the cell on which one change after the other is tried.
pub struct Rehearsal<'a> {
    scene: Scene,
    solver: Solver,
    executor: &'a dyn Executor,
    seed: u64,
}

impl<'a> Rehearsal<'a> {
    /// `board` is the board of `state`; `options` are those of the scheduler that would plan it.
    #[must_use]
    pub fn new(
        state: State,
        board: Board,
        options: Options,
        seed: u64,
        executor: &'a dyn Executor,
    ) -> Rehearsal<'a> {
        let scene = Scene { state, board };
        Rehearsal { scene, solver: Solver::new(options), executor, seed }
    }

    /// The cell after everything rehearsed so far.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.scene.state
    }

    /// Makes the job so, as `by`: submits it, or updates the one of its name that lives, with an
    /// open update that is complete closed first.
    pub fn job(&mut self, by: &Actor, owner: &Name, spec: &JobSpec) -> Rehearsed {
        let key = JobKey { user: owner.clone(), job: spec.name.clone() };
        let old = self.alive(&key);
        let before = old.as_ref().map(|Rows { job, .. }| Standing {
            version: job.version,
            submitted_at: job.submitted_at,
            spec: job.spec().clone(),
        });
        let command =
            |spec: JobSpec| Command::ApplyJob { owner: owner.clone(), spec, expect: None };
        // The verdict and the quota are those of the very spec, its disruption bound included.
        let mut checked = self.scene.state.clone();
        let verdict = scene::apply_one(&mut checked, by, command(spec.clone()), &mut Vec::new());
        let quota = self.quota(&checked, owner);
        let mut rehearsed = Rehearsed::nothing(key.clone(), before, verdict, quota);
        match rehearsed.verdict {
            Ok(Done::Job { became: Became::Created | Became::Updated, closed, .. }) => {
                rehearsed.closes = closed;
            }
            _ => return rehearsed,
        }
        let at_once = JobSpec { max_down: None, ..spec.clone() };
        self.scene.apply(by, vec![command(at_once)]);
        let Some(id) = self.scene.state.job_named(&key) else { return rehearsed };
        rehearsed.fates = roll::roll(&mut self.scene, &key, id, old.as_ref());
        self.place(id, &mut rehearsed);
        rehearsed
    }

    /// The job of that name, unless a new one could take its name.
    fn alive(&self, key: &JobKey) -> Option<Rows> {
        let state = &self.scene.state;
        let job = state.jobs().get(state.job_named(key)?)?;
        let live = matches!(job.state, JobState::Deferred | JobState::Active);
        live.then(|| Rows { state: state.clone(), job: job.clone() })
    }

    fn quota(&self, after: &State, owner: &Name) -> Vec<QuotaShift> {
        let before = &self.scene.state;
        let Some(user) = before.user_named(owner) else { return Vec::new() };
        let charged = |state: &State, user: UserId| {
            state.user_load(user).map(|load| load.charged.clone()).unwrap_or_default()
        };
        let (old, new) = (charged(before, user), charged(after, user));
        let row = before.users().get(user);
        let bands: BTreeSet<Band> = old.keys().chain(new.keys()).copied().collect();
        let shift = |band: Band| QuotaShift {
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

    /// A pass over the job's waiting tasks alone, committed to the copy as a scheduler would.
    fn place(&mut self, id: JobId, rehearsed: &mut Rehearsed) {
        let Scene { state, board } = &mut self.scene;
        rehearsed.deferred = state.job_load(id).map_or(0, |load| load.deferred);
        let mine = |task: TaskId| board.identity_of(task).is_some_and(|(job, _)| job == id);
        let queue = Queue::of(board, self.solver.options.order, Time::NEVER, self.seed, mine);
        let outcome = self.solver.pass_with(board, queue, self.seed, self.executor);
        let before = state.clone();
        self.scene.commit(&outcome);
        let Scene { state, board } = &self.scene;
        let assignments = outcome.plan.groups.iter().flat_map(|group| &group.assignments);
        rehearsed.placed = assignments
            .filter_map(|a| {
                let index = state.tasks().get(a.task)?.index;
                Some(Placed { index, machine: names::machine(state, a.machine) })
            })
            .collect();
        rehearsed.placed.sort_unstable_by_key(|placed| placed.index);
        let waiting = outcome.pending.iter().filter_map(|p| state.tasks().get(p.task));
        rehearsed.pending = waiting.map(|row| row.index).collect();
        rehearsed.pending.sort_unstable();
        if let Some(first) = outcome.pending.first() {
            let mut why = Explainer::new(board, state, self.executor).class(first.class);
            let gang = board.job_spec(id).is_some_and(|spec| spec.gang);
            why.gang = gang.then_some(outcome.pending.len() as u32);
            rehearsed.explanation = Some(why);
        }
        self.displaced(&before, &outcome, rehearsed);
    }

    /// Whom the plan evicts, and what becomes of them.
    fn displaced(&self, before: &State, outcome: &Outcome, rehearsed: &mut Rehearsed) {
        let first = settle::evicted(before, outcome);
        if first.is_empty() {
            return;
        }
        let settled = settle::settle(&self.scene, &first, &self.solver, self.seed);
        rehearsed.victims = settle::describe(before, &first, &settled.lands_on);
        rehearsed.evicted_in_turn = settle::describe(before, &settled.in_turn, &settled.lands_on);
        rehearsed.by_job = by_job(rehearsed.victims.iter().chain(&rehearsed.evicted_in_turn));
    }
}

impl Rehearsed {
    fn nothing(
        job: JobKey,
        before: Option<Standing>,
        verdict: Verdict,
        quota: Vec<QuotaShift>,
    ) -> Rehearsed {
        Rehearsed {
            job,
            before,
            closes: None,
            verdict,
            fates: Fates::default(),
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
        let mut most: Vec<(MachineRef, u32)> = on.into_values().collect();
        most.sort_by_key(|(machine, tasks)| (std::cmp::Reverse(*tasks), machine.id));
        most
    }
}

/// A job with the rows of its tasks, before anything was changed.
struct Rows {
    state: State,
    job: Job,
}
