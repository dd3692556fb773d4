//! Voluntary disruptions never have more tasks of a job down at once than the job allows, and stop
//! a running task only while the job can spare one. Tasks that are paired with one alloc leave it
//! together, and more than the job allows only while no other is down. Counted over the tasks'
//! rows. Tasks that a higher band preempts are not the cell's choice, whatever their job's budget
//! says.

use super::{Check, Step, violation};
use crate::alloc_pairing::AllocPairing;
use crate::event::EventKind;
use crate::id::{JobId, TaskId};
use crate::reason::Reason;
use crate::state::State;
use crate::task::TaskState;
use std::collections::BTreeSet;

const NAME: &str = "budgets";

pub(super) fn check(step: &Step<'_>) -> Check {
    if step.voluntary_command().is_none() {
        return Ok(());
    }
    for job in disrupted(step) {
        let Some(most) = step.before.jobs.get(job).and_then(|row| row.spec().max_down) else {
            continue;
        };
        let (before, after) = (down(step.before, job), down(step.after, job));
        let together = if before == 0 && most > 0 { in_one_alloc(step, job) } else { 0 };
        if after > most.max(together).saturating_add(taken(step, job)) {
            let name = step.after.job_key(job).map_or_else(String::new, |key| key.to_string());
            let detail = format!("{after} tasks down, {before} before; at most {most} allowed");
            return Err(violation(NAME, name, detail));
        }
    }
    Ok(())
}

/// Number of tasks of the job that the step stopped, if all were in one alloc with which they are
/// paired: they can leave it with one another alone.
fn in_one_alloc(step: &Step<'_>, job: JobId) -> u32 {
    let Some(row) = step.before.jobs.get(job) else { return 0 };
    let pairs = row.spec().alloc_set.is_some() && row.spec().alloc_pairing == AllocPairing::Index;
    let ran = |id: &TaskId| {
        let after = step.after.tasks.get(*id).map(|row| row.state);
        let before = step.before.tasks.get(*id)?;
        let stopped = before.state == TaskState::Running && after != Some(TaskState::Running);
        stopped.then_some(before.alloc())
    };
    let allocs: Vec<Option<TaskId>> = row.tasks.iter().filter_map(ran).collect();
    let same = allocs.windows(2).all(|pair| pair[0] == pair[1]);
    if pairs && same { allocs.len() as u32 } else { 0 }
}

/// Number of tasks of the job that the step took for a higher band.
fn taken(step: &Step<'_>, job: JobId) -> u32 {
    let tasks = step.before.jobs.get(job).map_or(&[][..], |row| &row.tasks);
    tasks.iter().filter(|task| taken_by_higher_band(step, **task)).count() as u32
}

/// Jobs with a running task that the step stopped by choice.
fn disrupted(step: &Step<'_>) -> BTreeSet<JobId> {
    let stopped = step.before.tasks.iter().filter(|(id, task)| {
        let now = step.after.tasks.get(*id).map(|row| row.state);
        task.state == TaskState::Running
            && now != Some(TaskState::Running)
            && !taken_by_higher_band(step, *id)
    });
    stopped.map(|(_, task)| task.job).collect()
}

/// Whether the step's events say that the task, or the alloc around it, is preempted by a task of a
/// higher band.
fn taken_by_higher_band(step: &Step<'_>, task: TaskId) -> bool {
    let band = |task| {
        let job = step.before.tasks.get(task)?.job;
        Some(step.before.jobs.get(job)?.spec().priority.band())
    };
    let Some(own) = band(task) else { return false };
    let around = step.before.tasks.get(task).and_then(|row| row.alloc());
    step.events.iter().any(|event| match (&event.kind, &event.reason) {
        (EventKind::Task { task: gone, .. }, Reason::Preempted { by }) => {
            (*gone == task || Some(*gone) == around) && band(*by) > Some(own)
        }
        _ => false,
    })
}

/// Number of tasks that should run and do not.
fn down(state: &State, job: JobId) -> u32 {
    let rows = state.jobs.get(job).map(|row| row.tasks.clone()).unwrap_or_default();
    let waiting = rows
        .iter()
        .filter_map(|task| state.tasks.get(*task))
        .filter(|task| !task.state.is_dead() && task.state != TaskState::Running);
    waiting.count() as u32
}
