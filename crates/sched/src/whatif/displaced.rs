//! What becomes of evicted tasks: they wait again, and passes give them other places as a live cell
//! would, evicting still lower priorities in turn. Tasks that were waiting before the question stay
//! out of it: they had found no place before anybody was moved.

use crate::board::Board;
use crate::solve::{Outcome, Solver};
use cellwright_cell::id::TaskId;
use cellwright_cell::time::Time;
use std::collections::BTreeSet;

/// Everybody whom the plan evicts, tasks inside allocs included. `before` is the board before the
/// pass.
pub(super) fn evicted(before: &Board, outcome: &Outcome) -> Vec<TaskId> {
    let listed = outcome.plan.groups.iter().flat_map(|group| &group.victims);
    let everybody = listed.flat_map(|victim| {
        std::iter::once(victim.task).chain(before.members(victim.task).iter().copied())
    });
    everybody.collect()
}

/// Finds the first victims other places on `board`; returns who was evicted in turn.
///
/// A pass that places somebody leaves more tasks placed at some priority and fewer only below it,
/// so the passes come to an end.
pub(super) fn settle(
    before: &Board,
    board: &mut Board,
    first: &[TaskId],
    solver: &Solver,
    seed: u64,
) -> Vec<TaskId> {
    for task in board.pending().to_vec() {
        board.drop_task(task);
    }
    requeue(before, board, first);
    let mut known: BTreeSet<TaskId> = first.iter().copied().collect();
    let mut in_turn = Vec::new();
    while !board.pending().is_empty() {
        let earlier = board.clone();
        let outcome = solver.pass(board, Time::ZERO, seed);
        let next = evicted(&earlier, &outcome);
        in_turn.extend(next.iter().copied().filter(|task| known.insert(*task)));
        requeue(&earlier, board, &next);
        if outcome.placed == 0 {
            break;
        }
    }
    in_turn
}

/// They keep the reservation they had.
fn requeue(before: &Board, board: &mut Board, tasks: &[TaskId]) {
    for task in tasks {
        let reservation = before.place_of(*task).map(|place| place.reservation());
        board.requeue(*task, reservation.unwrap_or_default());
    }
}
