//! Tasks of a job inside an alloc set go into placed allocs of that set and nowhere else, and where
//! they pair by index, into the one alloc with theirs.

use super::PlacementTarget;
use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;
use cellwright_cell::id::TaskId;
use cellwright_cell::reason::InfeasibleReason;

/// Whether the task's index allows it into this alloc of its set.
#[inline]
pub(super) fn is_met(snapshot: &ClusterSnapshot, class: &Class, alloc: TaskId) -> bool {
    class.request.alloc_index.is_none_or(|index| {
        let row = &snapshot.tasks[alloc.slot()];
        let set = snapshot.job(row.job);
        set.is_some_and(|set| set.spec.alloc_for(index) == row.index)
    })
}

pub(super) fn infeasible_reasons(
    snapshot: &ClusterSnapshot,
    class: &Class,
    target: &PlacementTarget<'_>,
    out: &mut Vec<InfeasibleReason>,
) {
    let member = match (class.request.alloc_set, target.alloc) {
        (None, None) => true,
        (Some(set), Some(alloc)) => {
            snapshot
                .allocs
                .get(&alloc)
                .is_some_and(|row| set.0 == Some(row.set) && row.machine == target.machine)
                && is_met(snapshot, class, alloc)
        }
        _ => false,
    };
    if !member {
        out.push(InfeasibleReason::NoAllocHere);
    }
}
