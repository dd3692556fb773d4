//! Invariants of the table of scaled jobs.

use crate::invariant::references::{NAME, unique};
use crate::invariant::{Check, sums_equal_parts, violation};
use crate::state::State;

/// Jobs may have been purged; each has one row.
pub(super) fn references(state: &State) -> Check {
    unique("scaled job", state.scalings().iter().map(|(_, row)| row.job.0))?;
    for (id, row) in state.scalings().iter() {
        if row.job.slot() >= state.jobs.slots() {
            let detail = format!("is of job row {}, which there never was", row.job.0);
            return Err(violation(NAME, format!("scaling row {}", id.0), detail));
        }
    }
    Ok(())
}

/// The index of jobs agrees with the rows.
pub(super) fn index(state: &State) -> Check {
    let rows = state.scalings().iter().map(|(id, row)| (row.job, id)).collect();
    let kept = state.components.scaling.by_job.iter().map(|(job, id)| (*job, *id)).collect();
    sums_equal_parts::equal_map("row of a scaled job", kept, &rows)
}
