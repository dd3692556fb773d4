//! A task that is to be restarted runs, and its job is live: whatever else stops a task is a
//! restart, or leaves nothing to restart.

use super::{Check, violation};
use crate::job::JobState;
use crate::state::State;
use crate::task::TaskState;

const NAME: &str = "restarts_due";

pub(super) fn check(state: &State) -> Check {
    for (id, task) in state.tasks.iter().filter(|(_, task)| task.restart_due) {
        let job = state.jobs.get(task.job).map(|job| job.state);
        if task.state != TaskState::Running || job != Some(JobState::Active) {
            let detail = format!("to be restarted, and {:?} in a job that is {job:?}", task.state);
            return Err(violation(NAME, state.task_name(id), detail));
        }
    }
    Ok(())
}
