//! Rolls an update out to its end on the copy, and determines its effect on each task: the state
//! machine's own steps decide, this module only compares the rows before and after.

use super::JobRows;
use super::scratch_cell::ScratchCell;
use cellwright_cell::command::{Actor, Command, ControllerName};
use cellwright_cell::id::{JobId, TaskId};
use cellwright_cell::job::Job;
use cellwright_cell::name::JobKey;
use cellwright_cell::rollout;
use cellwright_cell::spec_change::{self, Effect};
use cellwright_cell::state::State;
use cellwright_cell::task::{StopCause, Task, TaskState};

/// Tasks whose step is actually executed. Beyond them the effect is extrapolated from the class of
/// the change: a question must not take seconds because a job has a hundred thousand tasks.
const MAX_STEPS: usize = 10_000;

/// The effect of a change on one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskEffect {
    /// It is new, or was cut off by an earlier shrink and is wanted again.
    Added,
    /// It is beyond the new count, or its machine is no longer one of a daemon's.
    Removed,
    /// It takes the new spec without a restart, or is pending and takes it when it starts.
    InPlace,
    /// It runs on with other limits where it is.
    Resized,
    /// It is stopped and started on the same machine.
    Restarted,
    /// It is stopped and has to be placed again.
    Moved,
    /// It keeps the old spec: the update may cause no more disruptions.
    Skipped,
    /// It has ended and stays ended.
    Ended,
}

/// The effects of a change on the tasks of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskEffects {
    /// By index, for every task of the job before or after.
    pub by_index: Vec<TaskEffect>,
    /// Running tasks that are stopped: what `max_update_disruptions` bounds.
    pub disruptions: u32,
    /// For so many tasks, from the highest index down, the effect was not tried but extrapolated
    /// from the class of the change.
    pub extrapolated: u32,
}

impl TaskEffects {
    #[must_use]
    pub fn count(&self, effect: TaskEffect) -> u32 {
        self.by_index.iter().filter(|of| **of == effect).count() as u32
    }

    /// Indices of the tasks with that effect.
    pub fn with(&self, effect: TaskEffect) -> impl Iterator<Item = u32> + '_ {
        let all = self.by_index.iter().enumerate();
        all.filter(move |(_, of)| **of == effect).map(|(index, _)| index as u32)
    }
}

/// Rolls the open update of `id` out to its end. `old` is the job before the change.
pub(super) fn roll_out(
    scratch: &mut ScratchCell,
    key: &JobKey,
    id: JobId,
    old: Option<&JobRows>,
) -> TaskEffects {
    let tasks = scratch.state.jobs().get(id).map(|job| job.tasks.clone()).unwrap_or_default();
    let Some(old) = old else {
        let of = vec![TaskEffect::Added; tasks.len()];
        return TaskEffects { by_index: of, ..TaskEffects::default() };
    };
    let outdated: Vec<u32> =
        tasks.iter().filter_map(|task| outdated_index(&scratch.state, *task)).collect();
    // Canaries only put off what the others will see.
    let promote = rollout::Command::Promote { job: key.clone(), expect: None };
    scratch.apply(&Actor::Operator, vec![promote.into()]);
    let steps = outdated.iter().take(MAX_STEPS);
    let commands =
        steps.map(|index| Command::StepUpdate { job: key.clone(), index: *index }).collect();
    scratch.apply(&Actor::Controller(ControllerName::Update), commands);
    let untried = outdated.get(MAX_STEPS..).unwrap_or_default();
    let Some(job) = scratch.state.jobs().get(id) else { return TaskEffects::default() };
    let mut effects = TaskEffects::default();
    for (at, task) in tasks.iter().enumerate() {
        let before = old.job.tasks.get(at).and_then(|task| old.state.tasks().get(*task));
        let Some(after) = scratch.state.tasks().get(*task) else { continue };
        let tried = untried.binary_search(&after.index).is_err();
        let effect = if tried {
            task_effect(job, before, after)
        } else {
            extrapolated_effect(job, before, after, &mut effects)
        };
        let was_running = before.is_some_and(|row| row.state == TaskState::Running);
        if was_running && matches!(effect, TaskEffect::Restarted | TaskEffect::Moved) {
            effects.disruptions += 1;
        }
        effects.by_index.push(effect);
    }
    let moves = |task: &&TaskId| {
        let row = scratch.state.tasks().get(**task);
        row.is_some_and(|row| row.state == TaskState::Stopping(StopCause::UpdateMoves))
    };
    let moved: Vec<TaskId> = tasks.iter().filter(moves).copied().collect();
    scratch.report_stopped(&moved);
    effects
}

/// The index of a task that has yet to take the job's version.
fn outdated_index(state: &State, task: TaskId) -> Option<u32> {
    let row = state.tasks().get(task)?;
    let job = state.jobs().get(row.job)?;
    let outdated = row.version != job.version && !row.state.is_dead();
    (outdated && job.wants(row.index)).then_some(row.index)
}

fn task_effect(job: &Job, before: Option<&Task>, after: &Task) -> TaskEffect {
    let live = before.filter(|row| !row.state.is_dead());
    let skipped = |index: u32| job.update.as_ref().is_some_and(|u| u.skipped.contains(&index));
    match (live, after.state) {
        _ if !job.wants(after.index) => match live {
            Some(_) => TaskEffect::Removed,
            None => TaskEffect::Ended,
        },
        (None, TaskState::Dead(_)) => TaskEffect::Ended,
        (None, _) => TaskEffect::Added,
        (Some(_), _) if skipped(after.index) => TaskEffect::Skipped,
        (Some(row), state) if row.state == state && row.resizes != after.resizes => {
            TaskEffect::Resized
        }
        (Some(row), state) if row.state == state => TaskEffect::InPlace,
        (Some(_), TaskState::Stopping(StopCause::RestartInPlace)) => TaskEffect::Restarted,
        (Some(_), TaskState::Stopping(StopCause::UpdateMoves)) => TaskEffect::Moved,
        // A task that had a machine and had not started releases it without a stop.
        (Some(row), TaskState::Pending) if row.state == TaskState::Assigned => TaskEffect::Moved,
        _ => TaskEffect::InPlace,
    }
}

/// The most likely effect on a task whose step was not executed.
fn extrapolated_effect(
    job: &Job,
    before: Option<&Task>,
    after: &Task,
    so_far: &mut TaskEffects,
) -> TaskEffect {
    so_far.extrapolated += 1;
    let Some(row) = before else { return TaskEffect::Added };
    let (old, new) = (job.spec_of(row.version), job.spec());
    let (_, effect) = spec_change::task_change(old, new, after.index);
    let is_resized =
        row.state.holds_resources() && old.limits_of(after.index) != new.limits_of(after.index);
    let limit = job.update_bound();
    match effect {
        Effect::InPlace if is_resized => TaskEffect::Resized,
        Effect::InPlace => TaskEffect::InPlace,
        _ if limit.is_some_and(|most| so_far.disruptions >= most) => TaskEffect::Skipped,
        Effect::Restart => TaskEffect::Restarted,
        Effect::Replace => TaskEffect::Moved,
    }
}
