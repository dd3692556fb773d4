//! A task stays away from machines it crashed on too often.

use super::PlacementTarget;
use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;
use cellwright_cell::id::MachineId;
use cellwright_cell::reason::InfeasibleReason;

pub(super) fn infeasible_reasons(
    _: &ClusterSnapshot,
    class: &Class,
    target: &PlacementTarget<'_>,
    out: &mut Vec<InfeasibleReason>,
) {
    if class.request.avoid.contains(&target.machine) {
        out.push(InfeasibleReason::CrashedHere);
    }
}

#[inline]
pub(super) fn is_met(class: &Class, m: usize) -> bool {
    class.request.avoid.is_empty() || !class.request.avoid.contains(&MachineId(m as u32))
}
