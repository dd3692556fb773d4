//! Voluntary disruptions never have more tasks of a job down at once than the job allows, and stop
//! a running task only while the job can spare one. Counted over the tasks' rows.

use super::{Check, Step, violation};
use crate::id::JobId;
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
        if after > most {
            let name = step.after.job_key(job).map_or_else(String::new, |key| key.to_string());
            let detail = format!("{after} tasks down, {before} before; at most {most} allowed");
            return Err(violation(NAME, name, detail));
        }
    }
    Ok(())
}

/// Jobs with a running task that the step stopped.
fn disrupted(step: &Step<'_>) -> BTreeSet<JobId> {
    let stopped = step.before.tasks.iter().filter(|(id, task)| {
        let now = step.after.tasks.get(*id).map(|row| row.state);
        task.state == TaskState::Running && now != Some(TaskState::Running)
    });
    stopped.map(|(_, task)| task.job).collect()
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
