//! A job waits for others exactly while it is deferred, each of them is live and is in its spec's
//! dependencies, and its tasks wait with it.

use super::{Check, violation};
use crate::id::JobId;
use crate::job::JobState;
use crate::state::State;
use crate::task::TaskState;

const NAME: &str = "deferred";

pub(super) fn check(state: &State) -> Check {
    for (id, job) in state.jobs.iter() {
        let row = format!("job row {} ({})", id.0, job.name);
        let deferred = job.state == JobState::Deferred;
        if deferred == job.waits_for.is_empty() {
            let detail = format!("is {:?} and waits for {:?}", job.state, job.waits_for);
            return Err(violation(NAME, row, detail));
        }
        let over = |on: &&JobId| state.jobs.get(**on).is_none_or(|other| other.is_dead());
        if let Some(on) = job.waits_for.iter().find(over) {
            return Err(violation(NAME, row, format!("waits for job row {}, which is over", on.0)));
        }
        let named = |on: JobId| {
            let key = state.job_key(on);
            job.spec().after.iter().any(|after| Some(&after.job) == key.as_ref())
        };
        if let Some(on) = job.waits_for.iter().find(|on| !named(**on)) {
            let detail = format!("waits for job row {}, which its spec does not name", on.0);
            return Err(violation(NAME, row, detail));
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
