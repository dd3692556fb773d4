//! Each task of a daemon has a machine of its own and goes nowhere else. It comes before all other
//! reasons: what is wrong with a machine that is not the task's own is of no interest.

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
    if class.request.machine.is_some_and(|own| own != target.machine) {
        out.push(InfeasibleReason::OtherMachine);
    }
}

/// Jobs inside alloc sets are no daemons, so the fast form for allocs does not ask.
#[inline]
pub(super) fn is_met(class: &Class, m: usize) -> bool {
    class.request.machine.is_none_or(|own| own == MachineId(m as u32))
}
