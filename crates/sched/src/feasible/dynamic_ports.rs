//! Enough free ports in the machine's range for those that the system chooses.

use super::{PlacementTarget, is_excluded};
use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;
use cellwright_cell::id::TaskId;
use cellwright_cell::reason::InfeasibleReason;

fn available(snapshot: &ClusterSnapshot, class: &Class, m: usize, without: &[TaskId]) -> u32 {
    let ports = &snapshot.machines.ports[m];
    let static_in_range =
        class.request.static_ports.iter().filter(|p| ports.range.contains(**p)).count();
    let freed = match without {
        [] => 0,
        gone => {
            let freed = |(port, task): &&(u16, TaskId)| {
                ports.range.contains(*port) && is_excluded(snapshot, m, *task, gone)
            };
            ports.used.iter().filter(freed).count()
        }
    };
    let used = ports.used_in_range.saturating_sub(freed as u32);
    ports.range.count().saturating_sub(static_in_range as u32 + used)
}

pub(super) fn infeasible_reasons(
    snapshot: &ClusterSnapshot,
    class: &Class,
    target: &PlacementTarget<'_>,
    out: &mut Vec<InfeasibleReason>,
) {
    let requested = u32::from(class.request.ports);
    if requested == 0 {
        return;
    }
    let available = available(snapshot, class, target.machine.slot(), target.without);
    if requested > available {
        out.push(InfeasibleReason::DynamicPorts { requested, available });
    }
}

#[inline]
pub(super) fn is_met(snapshot: &ClusterSnapshot, class: &Class, m: usize) -> bool {
    let requested = u32::from(class.request.ports);
    requested == 0 || requested <= available(snapshot, class, m, &[])
}
