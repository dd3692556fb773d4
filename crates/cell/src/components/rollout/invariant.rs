//! Invariants of the versions of jobs.

use super::JobVersionId;
use crate::bounds::encoded_bytes;
use crate::id::{JobId, UserId};
use crate::invariant::references::NAME as REFERENCES;
use crate::invariant::{Check, sums_equal_parts, violation};
use crate::state::State;
use crate::table::Key;
use std::collections::{BTreeMap, BTreeSet};

const NAME: &str = "versions_on_record";

/// Versions are of jobs that there are, each once, and no newer than the job's newest.
pub(super) fn references(state: &State) -> Check {
    let mut seen = BTreeSet::new();
    for (id, row) in state.versions().iter() {
        let title = format!("job version row {}", id.0);
        let Some(job) = state.jobs.get(row.job) else {
            let detail = format!("its job, row {}, does not exist", row.job.0);
            return Err(violation(REFERENCES, title, detail));
        };
        if row.version == 0 || row.version > job.last_version {
            let detail = format!("{} has versions up to {}", job.name, job.last_version);
            return Err(violation(REFERENCES, title, detail));
        }
        if !seen.insert((row.job, row.version)) {
            let detail = format!("version {} of {} is there twice", row.version, job.name);
            return Err(violation(REFERENCES, title, detail));
        }
    }
    Ok(())
}

/// Every version whose spec its job has is on record, and has none itself; every other has its own.
pub(super) fn versions_on_record(state: &State) -> Check {
    let mut known: BTreeMap<JobId, BTreeSet<u32>> = BTreeMap::new();
    for (id, row) in state.versions().iter() {
        let Some(job) = state.jobs.get(row.job) else { continue };
        known.entry(row.job).or_default().insert(row.version);
        if row.spec.is_some() == job.specs.contains_key(&row.version) {
            let title = format!("job version row {} ({})", id.0, job.name);
            let detail = format!("version {} has its spec twice or not at all", row.version);
            return Err(violation(NAME, title, detail));
        }
    }
    for (id, job) in state.jobs.iter() {
        let on_record = known.remove(&id).unwrap_or_default();
        if let Some(missing) = job.specs.keys().find(|version| !on_record.contains(version)) {
            let title = format!("job row {} ({})", id.0, job.name);
            return Err(violation(NAME, title, format!("version {missing} is not on record")));
        }
    }
    Ok(())
}

/// What is derived equals what the rows add up to.
pub(super) fn sums(state: &State) -> Check {
    let tables = &state.components.rollout;
    let (mut order, mut bytes) = (BTreeMap::new(), BTreeMap::<UserId, u64>::new());
    for (id, row) in tables.versions.iter() {
        order.insert((row.job, row.version), id);
        if let (Some(spec), Some(job)) = (&row.spec, state.jobs.get(row.job)) {
            *bytes.entry(job.user).or_default() += encoded_bytes(&**spec);
        }
    }
    let mut by_job: BTreeMap<JobId, Vec<JobVersionId>> = BTreeMap::new();
    for ((job, _), id) in order {
        by_job.entry(job).or_default().push(id);
    }
    let kept = tables.by_job.iter().map(|(job, ids)| (*job, (**ids).clone())).collect();
    sums_equal_parts::equal_map("versions of a job", kept, &by_job)?;
    let kept = tables.spec_bytes.iter().map(|(user, bytes)| (*user, *bytes)).collect();
    sums_equal_parts::equal_map("bytes of versions", kept, &bytes)?;
    let slots = (0..tables.versions.slots()).map(JobVersionId::from_slot);
    let vacant: BTreeMap<JobVersionId, ()> =
        slots.filter(|id| tables.versions.get(*id).is_none()).map(|id| (id, ())).collect();
    let kept = tables.vacant.iter().map(|(id, ())| (*id, ())).collect();
    sums_equal_parts::equal_map("vacant row of job versions", kept, &vacant)
}
