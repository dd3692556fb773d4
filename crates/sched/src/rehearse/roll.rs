//! An update rolled to its end on the copy, and what it did to each task: the state machine's own
//! steps decide, this only looks at the rows before and after.

use super::Rows;
use super::scene::Scene;
use cellwright_cell::change::{self, Effect};
use cellwright_cell::command::{Actor, Command, ControllerName};
use cellwright_cell::id::{JobId, TaskId};
use cellwright_cell::job::Job;
use cellwright_cell::name::JobKey;
use cellwright_cell::state::State;
use cellwright_cell::task::{StopCause, Task, TaskState};

/// Tasks whose step is really made. Beyond them the class of the change speaks for the rest: a
/// question must not take seconds because a job has a hundred thousand tasks.
const MOST_STEPS: usize = 10_000;

/// What a change does to one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// It is new, or was cut off by an earlier shrink and is wanted again.
    Added,
    /// It is beyond the new count.
    Removed,
    /// It takes the new spec without noticing, or waits and takes it when it starts.
    InPlace,
    /// It is stopped and started on the same machine.
    Restarted,
    /// It is stopped and has to find another place.
    Moved,
    /// It keeps the old spec: the update may disrupt no more.
    Skipped,
    /// It has ended and stays so.
    Ended,
}

/// What a change does to the tasks of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    /// By index, for every task of the job before or after.
    pub of: Vec<Fate>,
    /// Running tasks that are stopped: what `max_update_disruptions` bounds.
    pub disruptions: u32,
    /// Of so many tasks, from the highest index down, the fate was not tried but taken from the
    /// class of the change.
    pub taken_from_class: u32,
}

impl Fates {
    #[must_use]
    pub fn count(&self, fate: Fate) -> u32 {
        self.of.iter().filter(|of| **of == fate).count() as u32
    }

    /// Indices of the tasks with that fate.
    pub fn with(&self, fate: Fate) -> impl Iterator<Item = u32> + '_ {
        let all = self.of.iter().enumerate();
        all.filter(move |(_, of)| **of == fate).map(|(index, _)| index as u32)
    }
}

/// Rolls what is open of `id` to its end. `old` is the job before the change.
pub(super) fn roll(scene: &mut Scene, key: &JobKey, id: JobId, old: Option<&Rows>) -> Fates {
    let tasks = scene.state.jobs().get(id).map(|job| job.tasks.clone()).unwrap_or_default();
    let Some(old) = old else {
        let of = vec![Fate::Added; tasks.len()];
        return Fates { of, ..Fates::default() };
    };
    let behind: Vec<u32> = tasks.iter().filter_map(|task| behind(&scene.state, *task)).collect();
    let steps = behind.iter().take(MOST_STEPS);
    let commands =
        steps.map(|index| Command::StepUpdate { job: key.clone(), index: *index }).collect();
    scene.apply(&Actor::Controller(ControllerName::Update), commands);
    let untried = behind.get(MOST_STEPS..).unwrap_or_default();
    let Some(job) = scene.state.jobs().get(id) else { return Fates::default() };
    let mut fates = Fates::default();
    for (at, task) in tasks.iter().enumerate() {
        let before = old.job.tasks.get(at).and_then(|task| old.state.tasks().get(*task));
        let Some(after) = scene.state.tasks().get(*task) else { continue };
        let tried = untried.binary_search(&after.index).is_err();
        let fate = match tried {
            true => fate(job, before, after),
            false => by_class(job, before, after, &mut fates),
        };
        let ran = before.is_some_and(|row| row.state == TaskState::Running);
        if ran && matches!(fate, Fate::Restarted | Fate::Moved) {
            fates.disruptions += 1;
        }
        fates.of.push(fate);
    }
    let moves = |task: &&TaskId| {
        let row = scene.state.tasks().get(**task);
        row.is_some_and(|row| row.state == TaskState::Stopping(StopCause::UpdateMoves))
    };
    let moved: Vec<TaskId> = tasks.iter().filter(moves).copied().collect();
    scene.see_gone(&moved);
    fates
}

/// The index of a task that has still to take the job's version.
fn behind(state: &State, task: TaskId) -> Option<u32> {
    let row = state.tasks().get(task)?;
    let job = state.jobs().get(row.job)?;
    let behind = row.version != job.version && !row.state.is_dead();
    (behind && row.index < job.spec().count).then_some(row.index)
}

fn fate(job: &Job, before: Option<&Task>, after: &Task) -> Fate {
    let live = before.filter(|row| !row.state.is_dead());
    let skipped = |index: u32| job.update.as_ref().is_some_and(|u| u.skipped.contains(&index));
    match (live, after.state) {
        _ if after.index >= job.spec().count => match live {
            Some(_) => Fate::Removed,
            None => Fate::Ended,
        },
        (None, TaskState::Dead(_)) => Fate::Ended,
        (None, _) => Fate::Added,
        (Some(_), _) if skipped(after.index) => Fate::Skipped,
        (Some(row), state) if row.state == state => Fate::InPlace,
        (Some(_), TaskState::Stopping(StopCause::RestartInPlace)) => Fate::Restarted,
        (Some(_), TaskState::Stopping(StopCause::UpdateMoves)) => Fate::Moved,
        // One that had a machine and had not started gives it back without a stop.
        (Some(row), TaskState::Pending) if row.state == TaskState::Assigned => Fate::Moved,
        _ => Fate::InPlace,
    }
}

/// What is most likely of a task whose step was not made.
fn by_class(job: &Job, before: Option<&Task>, after: &Task, so_far: &mut Fates) -> Fate {
    so_far.taken_from_class += 1;
    let Some(row) = before else { return Fate::Added };
    let (_, effect) = change::for_task(job.spec_of(row.version), job.spec(), after.index);
    let most = job.spec().max_update_disruptions;
    match effect {
        Effect::InPlace => Fate::InPlace,
        _ if most.is_some_and(|most| so_far.disruptions >= most) => Fate::Skipped,
        Effect::Restart => Fate::Restarted,
        Effect::Replace => Fate::Moved,
    }
}
