//! A draining machine accepts no new tasks, neither directly nor into an alloc.

use super::PlacementTarget;
use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;
use crate::cluster_snapshot::machines::SchedulableStatus;
use cellwright_cell::reason::InfeasibleReason;

pub(super) fn infeasible_reasons(
    snapshot: &ClusterSnapshot,
    _: &Class,
    target: &PlacementTarget<'_>,
    out: &mut Vec<InfeasibleReason>,
) {
    if snapshot.machines.status[target.machine.slot()] == SchedulableStatus::Draining {
        out.push(InfeasibleReason::MachineDraining);
    }
}
