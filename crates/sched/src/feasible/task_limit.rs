//! A machine holds a limited number of tasks, whatever they request: each is a cost to its agent.
//! Tasks inside allocs count, or an alloc without room of its own would be a way around it.

use super::PlacementTarget;
use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;
use cellwright_cell::id::TaskId;
use cellwright_cell::reason::InfeasibleReason;

pub(super) fn infeasible_reasons(
    snapshot: &ClusterSnapshot,
    _: &Class,
    target: &PlacementTarget<'_>,
    out: &mut Vec<InfeasibleReason>,
) {
    out.extend(infeasible_reason(snapshot, target));
}

/// Tasks assumed to be gone are not counted, nor are those inside an alloc assumed to be gone.
pub(crate) fn infeasible_reason(
    snapshot: &ClusterSnapshot,
    target: &PlacementTarget<'_>,
) -> Option<InfeasibleReason> {
    let limit = snapshot.max_tasks_per_machine?;
    let leaves = |task: &TaskId| {
        (1 + snapshot.members(*task).len() + snapshot.reserved_in(*task).len()) as u64
    };
    let left: u64 = target.without.iter().map(leaves).sum();
    let held =
        snapshot.machines.task_counts.get(target.machine.slot()).map_or(0, |held| u64::from(*held));
    (held.saturating_sub(left) >= limit).then_some(InfeasibleReason::MachineFull { most: limit })
}

/// How many more tasks the machine accepts.
#[inline]
pub(crate) fn free_task_slots(snapshot: &ClusterSnapshot, m: usize) -> u64 {
    let held = u64::from(snapshot.machines.task_counts[m]);
    snapshot.max_tasks_per_machine.map_or(u64::MAX, |limit| limit.saturating_sub(held))
}
