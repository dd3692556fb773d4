//! A job in an alloc set never has a higher priority than the set: at none of the versions it may
//! run at is its priority above any the set may have. The set's owner pays in the set's band, and
//! tasks that are evicted with an alloc cannot be worth more than the alloc.

use super::{Check, violation};
use crate::spec::JobKind;
use crate::state::State;

const NAME: &str = "inner_not_above_set";

pub(super) fn check(state: &State) -> Check {
    for (id, job) in state.jobs.iter().filter(|(_, job)| !job.is_dead()) {
        for (version, spec) in &job.specs {
            let Some(key) = &spec.alloc_set else { continue };
            let set = state.job_named(key).and_then(|id| state.jobs.get(id));
            let Some(set) = set.filter(|set| !set.is_dead()) else { continue };
            // The name may now belong to a job of tasks; nothing is placed into those.
            let versions = set.specs.values().filter(|spec| spec.kind == JobKind::AllocSet);
            let lowest = versions.map(|spec| spec.priority).min();
            if lowest.is_some_and(|lowest| spec.priority > lowest) {
                let row = format!("job row {} ({}) at version {version}", id.0, job.name);
                let detail = format!("is of {:?}, its set {key} of {lowest:?}", spec.priority);
                return Err(violation(NAME, row, detail));
            }
        }
    }
    Ok(())
}
