//! Invariants of the table of periodic jobs.

use super::Cron;
use crate::id::{CronId, JobId};
use crate::invariant::references::{NAME, unique};
use crate::invariant::{Check, sums_equal_parts, violation};
use crate::state::State;

/// Runs may have been purged; the jobs with ids of runs, present or future, belong to the owner.
pub(super) fn references(state: &State) -> Check {
    let names = state.crons().iter().map(|(_, c)| format!("{}/{}", c.user.0, c.spec.name));
    unique("periodic job", names)?;
    state.crons().iter().try_for_each(|(id, cron)| check_row(state, id, cron))
}

fn check_row(state: &State, id: CronId, cron: &Cron) -> Check {
    let row = || format!("periodic job row {} ({})", id.0, cron.spec.name);
    if state.users.get(cron.user).is_none() {
        let detail = format!("its owner, user row {}, does not exist", cron.user.0);
        return Err(violation(NAME, row(), detail));
    }
    let foreign = |job: &&JobId| match state.jobs.get(**job) {
        Some(found) => found.user != cron.user,
        None => job.slot() >= state.jobs.slots(),
    };
    match cron.runs.iter().find(foreign) {
        Some(job) => {
            let detail = format!("job row {} is no run of its owner", job.0);
            Err(violation(NAME, row(), detail))
        }
        None => Ok(()),
    }
}

/// The index of names agrees with the rows.
pub(super) fn names(state: &State) -> Check {
    let rows = state.crons().iter();
    let names = rows.map(|(id, cron)| ((cron.user, cron.spec.name.clone()), id)).collect();
    let kept = state.components.cron.names.iter().map(|(key, id)| (key.clone(), *id)).collect();
    sums_equal_parts::equal_map("name of a periodic job", kept, &names)
}

/// Encoded length of a spec in a checkpoint, found by encoding it.
pub(super) fn bytes_of(spec: &impl serde::Serialize) -> u64 {
    postcard::to_stdvec(spec).map_or(0, |bytes| bytes.len() as u64)
}
