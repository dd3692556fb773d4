//! Resource pressure: a machine that is short although its agent has throttled all the tasks it may
//! accepts production tasks only.

use super::PlacementTarget;
use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;
use crate::cluster_snapshot::machines::SchedulableStatus;
use cellwright_cell::reason::InfeasibleReason;

pub(super) fn infeasible_reasons(
    snapshot: &ClusterSnapshot,
    class: &Class,
    target: &PlacementTarget<'_>,
    out: &mut Vec<InfeasibleReason>,
) {
    let under_pressure =
        snapshot.machines.under_pressure.get(target.machine.slot()).is_some_and(|short| *short);
    if under_pressure && class.min_status > SchedulableStatus::UnderPressure {
        out.push(InfeasibleReason::ResourcePressure);
    }
}
