//! Hard constraints over machine attributes (B4) and host volumes that machines grant (X9),
//! evaluated once per requirements and attribute profile.

use super::PlacementTarget;
use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;
use crate::cluster_snapshot::constraints::NONE_FAILING;
use cellwright_cell::reason::InfeasibleReason;

pub(super) fn infeasible_reasons(
    snapshot: &ClusterSnapshot,
    class: &Class,
    target: &PlacementTarget<'_>,
    out: &mut Vec<InfeasibleReason>,
) {
    let Some(list) = class.request.constraints else { return };
    let Some(attributes) = snapshot.attributes(target.machine) else { return };
    let constraints = snapshot.constraints.constraints(list).iter().enumerate();
    for (position, constraint) in constraints {
        let value = snapshot.constraints.value(constraint, target.machine.slot());
        if constraint.is_hard() && !constraint.holds(value) {
            out.push(InfeasibleReason::Constraint { position: position as u32 });
        }
    }
    let not_granted = snapshot
        .constraints
        .host_volumes(list)
        .iter()
        .filter(|host_volume| !host_volume.is_granted(attributes));
    out.extend(not_granted.cloned().map(InfeasibleReason::Volume));
}

#[inline]
pub(super) fn is_met(snapshot: &ClusterSnapshot, class: &Class, m: usize) -> bool {
    class.request.constraints.is_none_or(|list| {
        snapshot.constraints.result(list, snapshot.machines.profile[m], m).first_failing
            == NONE_FAILING
    })
}
