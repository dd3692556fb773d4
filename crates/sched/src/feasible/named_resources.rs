//! Named countable resources, operator-given or ephemeral (E1).

use super::PlacementTarget;
use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;
use cellwright_cell::id::TaskId;
use cellwright_cell::named::UNBOUNDED;
use cellwright_cell::reason::InfeasibleReason;

/// The available amount of the named resource; `None` when it never runs out.
fn available(snapshot: &ClusterSnapshot, m: usize, name: u32, without: &[TaskId]) -> Option<u64> {
    let room = snapshot.machines.named_usage(m, name);
    if room.capacity == UNBOUNDED {
        return None;
    }
    let held = |task: &TaskId| {
        let row = &snapshot.tasks[task.slot()];
        if row.placement.alloc().is_some() {
            return 0;
        }
        let named = &snapshot.class(row.class).request.named;
        named.iter().filter(|(n, _)| *n == name).map(|(_, amount)| *amount).sum()
    };
    let freed: u64 = without.iter().map(held).sum();
    Some(room.capacity.saturating_sub(room.used.saturating_sub(freed)))
}

fn available_if_short(
    snapshot: &ClusterSnapshot,
    m: usize,
    ask: (u32, u64),
    without: &[TaskId],
) -> Option<u64> {
    let available = available(snapshot, m, ask.0, without)?;
    let nothing_here = snapshot.machines.named_usage(m, ask.0).capacity == 0;
    (ask.1 > available || nothing_here).then_some(available)
}

pub(super) fn infeasible_reasons(
    snapshot: &ClusterSnapshot,
    class: &Class,
    target: &PlacementTarget<'_>,
    out: &mut Vec<InfeasibleReason>,
) {
    for ask in &class.request.named {
        let Some(available) =
            available_if_short(snapshot, target.machine.slot(), *ask, target.without)
        else {
            continue;
        };
        if let Some(name) = snapshot.resource_name(ask.0) {
            out.push(InfeasibleReason::Named { name: name.clone(), requested: ask.1, available });
        }
    }
}

#[inline]
pub(super) fn is_met(snapshot: &ClusterSnapshot, class: &Class, m: usize) -> bool {
    class.request.named.iter().all(|ask| available_if_short(snapshot, m, *ask, &[]).is_none())
}
