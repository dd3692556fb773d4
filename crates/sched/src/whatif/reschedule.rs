//! Reschedules evicted tasks of a what-if question: they are pending again, and passes place them
//! elsewhere as a live cell would, evicting still lower priorities in turn. Tasks that were pending
//! before the question stay out of it: they could not be placed before any eviction.

use crate::cluster_snapshot::ClusterSnapshot;
use crate::solve::{PassOutcome, Solver};
use cellwright_cell::id::TaskId;
use cellwright_cell::time::Time;
use std::collections::BTreeSet;

/// All tasks that the plan evicts, tasks inside allocs and whole gangs included. `before` is the
/// snapshot before the pass.
pub(super) fn evicted_tasks(before: &ClusterSnapshot, outcome: &PassOutcome) -> Vec<TaskId> {
    let listed = outcome.plan.groups.iter().flat_map(|group| &group.victims);
    let listed: Vec<TaskId> = listed.map(|victim| victim.task).collect();
    let chosen = before.one_of_each_gang(&listed);
    chosen.iter().flat_map(|task| before.leaving_with(*task)).collect()
}

/// Places the first victims elsewhere on `snapshot`; returns the tasks evicted in turn.
///
/// A pass that places a task leaves more tasks placed at some priority and fewer only below it, so
/// the passes come to an end.
pub(super) fn reschedule(
    before: &ClusterSnapshot,
    snapshot: &mut ClusterSnapshot,
    first: &[TaskId],
    solver: &Solver,
    seed: u64,
) -> Vec<TaskId> {
    for task in snapshot.pending().to_vec() {
        snapshot.drop_task(task);
    }
    requeue(before, snapshot, first);
    let mut known: BTreeSet<TaskId> = first.iter().copied().collect();
    let mut in_turn = Vec::new();
    while !snapshot.pending().is_empty() {
        let earlier = snapshot.clone();
        let outcome = solver.pass(snapshot, Time::ZERO, seed);
        let next = evicted_tasks(&earlier, &outcome);
        in_turn.extend(next.iter().copied().filter(|task| known.insert(*task)));
        requeue(&earlier, snapshot, &next);
        if outcome.placed == 0 {
            break;
        }
    }
    in_turn
}

/// They keep the reservation they had.
fn requeue(before: &ClusterSnapshot, snapshot: &mut ClusterSnapshot, tasks: &[TaskId]) {
    for task in tasks {
        let reservation = before.placement_of(*task).map(|placement| placement.reservation());
        snapshot.requeue(*task, reservation.unwrap_or_default());
    }
}
