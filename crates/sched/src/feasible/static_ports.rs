//! Two tasks with the same static port never share a machine. The reason names the holder.

use super::{PlacementTarget, is_excluded};
use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;
use cellwright_cell::id::TaskId;
use cellwright_cell::reason::InfeasibleReason;

fn holder(snapshot: &ClusterSnapshot, m: usize, port: u16, without: &[TaskId]) -> Option<TaskId> {
    let used = &snapshot.machines.ports[m].used;
    let from = used.partition_point(|(p, _)| *p < port);
    let mut holders = used[from..].iter().take_while(|(p, _)| *p == port).map(|(_, t)| *t);
    holders.find(|task| !is_excluded(snapshot, m, *task, without))
}

pub(super) fn infeasible_reasons(
    snapshot: &ClusterSnapshot,
    class: &Class,
    target: &PlacementTarget<'_>,
    out: &mut Vec<InfeasibleReason>,
) {
    for port in &class.request.static_ports {
        let holder = holder(snapshot, target.machine.slot(), *port, target.without);
        if holder.is_some() {
            out.push(InfeasibleReason::StaticPort { port: *port, holder });
        }
    }
}

#[inline]
pub(super) fn is_met(snapshot: &ClusterSnapshot, class: &Class, m: usize) -> bool {
    class.request.static_ports.iter().all(|port| holder(snapshot, m, *port, &[]).is_none())
}
