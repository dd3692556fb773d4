//! The specs of a job are those its tasks run, its present one, and both ends of an open update; an
//! update leads to the job's version. Only tasks on a machine run an older one.

use super::{Check, violation};
use crate::state::State;
use crate::task::Task;
use std::collections::BTreeSet;

const NAME: &str = "versions_in_use_kept";

pub(super) fn check(state: &State) -> Check {
    for (id, job) in state.jobs.iter() {
        let row = format!("job row {} ({})", id.0, job.name);
        let fail = |detail: String| Err(violation(NAME, &row, detail));
        if job.last_version < *job.specs.keys().max().unwrap_or(&0) {
            return fail(format!("counts versions up to {} only", job.last_version));
        }
        let tasks = job.tasks.iter().filter_map(|task| state.tasks.get(*task));
        let mut needed: BTreeSet<u32> = tasks.map(|task| task.version).collect();
        needed.insert(job.version);
        if let Some(update) = &job.update {
            needed.extend([update.from, update.to]);
            if job.version != update.to {
                return fail(format!("is at version {} during {update:?}", job.version));
            }
            let bound = job.update_bound();
            if bound.is_some_and(|most| update.disruptions > most) {
                return fail(format!("{} disruptions, at most {bound:?}", update.disruptions));
            }
            if update.undoing && update.tries_canaries() {
                return fail(format!("tries canaries and is undone: {update:?}"));
            }
            let in_order = update.failed_at.is_sorted();
            if !in_order || update.failed_at.last().is_some_and(|last| *last > state.now()) {
                return fail(format!("failures at {:?}, now {:?}", update.failed_at, state.now()));
            }
        }
        let kept: BTreeSet<u32> = job.specs.keys().copied().collect();
        if needed != kept {
            return fail(format!("needs versions {needed:?}, keeps {kept:?}"));
        }
        let placed = |task: &&Task| task.state.is_on_machine() || task.version == job.version;
        let mut tasks = job.tasks.iter().filter_map(|task| state.tasks.get(*task));
        if let Some(task) = tasks.find(|task| !placed(task)) {
            return fail(format!("task {} is {:?} at {}", task.index, task.state, task.version));
        }
    }
    Ok(())
}
