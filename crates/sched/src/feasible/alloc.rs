//! Tasks of a job inside an alloc set go into placed allocs of that set and nowhere else.

use super::PlacementTarget;
use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;
use cellwright_cell::reason::InfeasibleReason;

pub(super) fn infeasible_reasons(
    snapshot: &ClusterSnapshot,
    class: &Class,
    target: &PlacementTarget<'_>,
    out: &mut Vec<InfeasibleReason>,
) {
    let member = match (class.request.alloc_set, target.alloc) {
        (None, None) => true,
        (Some(set), Some(alloc)) => snapshot
            .allocs
            .get(&alloc)
            .is_some_and(|row| set.0 == Some(row.set) && row.machine == target.machine),
        _ => false,
    };
    if !member {
        out.push(InfeasibleReason::NoAllocHere);
    }
}
