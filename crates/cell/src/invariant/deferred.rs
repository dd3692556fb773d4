//! A job waits for another exactly while it is deferred, the other one still lives, and its tasks
//! wait with it.

use super::{Check, violation};
use crate::job::JobState;
use crate::state::State;
use crate::task::TaskState;

const NAME: &str = "deferred";

pub(super) fn check(state: &State) -> Check {
    for (id, job) in state.jobs.iter() {
        let row = format!("job row {} ({})", id.0, job.name);
        let deferred = job.state == JobState::Deferred;
        if deferred != job.waits_for.is_some() {
            let detail = format!("is {:?} and waits for {:?}", job.state, job.waits_for);
            return Err(violation(NAME, row, detail));
        }
        if let Some(on) = job.waits_for
            && state.jobs.get(on).is_none_or(|other| other.is_dead())
        {
            return Err(violation(NAME, row, format!("waits for job row {}, which is over", on.0)));
        }
        for task in job.tasks.iter().filter_map(|task| state.tasks.get(*task)) {
            let waits = task.state == TaskState::Deferred;
            if waits != deferred && !task.state.is_dead() {
                let detail =
                    format!("is {:?}, its task {} {:?}", job.state, task.index, task.state);
                return Err(violation(NAME, row, detail));
            }
        }
    }
    Ok(())
}
