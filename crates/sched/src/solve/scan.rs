//! Searches without memory: the plain reference, and scans for when classes or cached scores are
//! switched off.

use super::preempt::{self, Eviction};
use super::search::Judge;
use crate::board::Board;
use crate::class::Class;
use crate::feasible::{self, Spot};
use crate::score::{self, Key, Ranking};
use cellwright_cell::id::{MachineId, TaskId};

/// The best free machine by the predicates' reasons and the whole score: no key, no shortcut.
pub(crate) fn reference(board: &Board, class: &Class, ranking: Ranking) -> Option<usize> {
    let fitting = (0..board.machine_slots())
        .filter(|m| feasible::first(board, class, &Spot::on(MachineId(*m as u32))).is_none());
    fitting.min_by_key(|m| score::score(board, class, *m, ranking))
}

/// The best machine to make room on, looking at every machine in full.
pub(crate) fn reference_preempting(
    board: &Board,
    class: &Class,
    ranking: Ranking,
) -> Option<usize> {
    let found = (0..board.machine_slots()).filter_map(|m| {
        let open = feasible::first(board, class, &Spot::on(MachineId(m as u32)));
        open?;
        Some((preempt::on_machine(board, class, m, ranking)?.score, m))
    });
    found.min_by_key(|(score, _)| *score).map(|(_, m)| m)
}

/// The best machine of all.
pub(crate) fn whole(board: &Board, judge: &impl Judge) -> Option<usize> {
    let keyed = (0..board.machine_slots()).filter_map(|m| Some((judge.key(board, m)?, m)));
    keyed.min().map(|(_, m)| m)
}

/// The best of the first `enough` machines that do, in the random order from `start`.
pub(crate) fn sample(
    board: &Board,
    judge: &impl Judge,
    order: &[u32],
    start: usize,
    enough: usize,
) -> Option<usize> {
    let (before, after) = order.split_at(start.min(order.len()));
    let walk = after.iter().chain(before).map(|m| *m as usize);
    let keyed = walk.filter_map(|m| Some((judge.key(board, m)?, m))).take(enough);
    keyed.min().map(|(_, m)| m)
}

/// The best alloc of the class's set, as it is. Sets are small next to cells and their machines
/// are few, so every alloc is looked at in every mode.
pub(crate) fn alloc(board: &Board, class: &Class, ranking: Ranking) -> Option<TaskId> {
    let keyed = allocs(board, class).filter(|alloc| feasible::holds_in(board, class, *alloc));
    keyed.min_by_key(|alloc| (alloc_key(board, class, *alloc, ranking), *alloc))
}

/// The best alloc to make room in.
pub(crate) fn alloc_preempting(
    board: &Board,
    class: &Class,
    ranking: Ranking,
) -> Option<(TaskId, Eviction)> {
    let found = allocs(board, class)
        .filter_map(|alloc| Some((alloc, preempt::in_alloc(board, class, alloc, ranking)?)));
    found.min_by_key(|(alloc, eviction)| (eviction.score, *alloc))
}

fn allocs<'a>(board: &'a Board, class: &Class) -> impl Iterator<Item = TaskId> + 'a {
    let set = class.request.alloc_set.and_then(|set| set.0);
    set.map_or(&[][..], |set| board.allocs_of(set)).iter().copied()
}

fn alloc_key(board: &Board, class: &Class, alloc: TaskId, ranking: Ranking) -> Key {
    let Some(row) = board.allocs.get(&alloc) else { return Key::WORST };
    let m = row.machine.slot();
    let mut score = score::score(board, class, m, ranking);
    score.packing = score::packing::in_room(board, class, m, &row.room.free, ranking.model);
    score.key()
}
