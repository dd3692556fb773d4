//! A machine that is down or unknown accepts no tasks.

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
    let status = snapshot.machines.status.get(target.machine.slot()).copied();
    if status.unwrap_or(SchedulableStatus::Gone) <= SchedulableStatus::Down {
        out.push(InfeasibleReason::MachineDown);
    }
}
