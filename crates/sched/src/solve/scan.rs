//! Scans without a cache: the plain reference, and the scans used when classes or cached scores are
//! switched off.

use super::preempt::{self, Eviction};
use super::search::MachineScorer;
use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;
use crate::feasible::{self, PlacementTarget};
use crate::score::{self, Ranking, ScoreKey};
use cellwright_cell::id::{MachineId, TaskId};

/// The best free machine by the predicates' reasons and the full score: no key, no shortcut.
pub(crate) fn best_by_reference(
    snapshot: &ClusterSnapshot,
    class: &Class,
    ranking: Ranking,
) -> Option<usize> {
    let fitting = (0..snapshot.machine_slots()).filter(|m| {
        feasible::first_reason(snapshot, class, &PlacementTarget::on_machine(MachineId(*m as u32)))
            .is_none()
    });
    fitting.min_by_key(|m| score::score(snapshot, class, *m, ranking))
}

/// The best machine to make room on, evaluating every machine in full.
pub(crate) fn best_preempting_by_reference(
    snapshot: &ClusterSnapshot,
    class: &Class,
    ranking: Ranking,
) -> Option<usize> {
    let found = (0..snapshot.machine_slots()).filter_map(|m| {
        let open = feasible::first_reason(
            snapshot,
            class,
            &PlacementTarget::on_machine(MachineId(m as u32)),
        );
        open?;
        Some((preempt::on_machine(snapshot, class, m, ranking)?.score, m))
    });
    found.min_by_key(|(score, _)| *score).map(|(_, m)| m)
}

/// The best machine of all.
pub(crate) fn best_of_all(
    snapshot: &ClusterSnapshot,
    scorer: &impl MachineScorer,
) -> Option<usize> {
    let keyed = (0..snapshot.machine_slots()).filter_map(|m| Some((scorer.key(snapshot, m)?, m)));
    keyed.min().map(|(_, m)| m)
}

/// The best of the first `sample_size` feasible machines in the random order from `start`.
pub(crate) fn best_of_sample(
    snapshot: &ClusterSnapshot,
    scorer: &impl MachineScorer,
    order: &[u32],
    start: usize,
    sample_size: usize,
) -> Option<usize> {
    let (before, after) = order.split_at(start.min(order.len()));
    let walk = after.iter().chain(before).map(|m| *m as usize);
    let keyed = walk.filter_map(|m| Some((scorer.key(snapshot, m)?, m))).take(sample_size);
    keyed.min().map(|(_, m)| m)
}

/// The best alloc of the class's set, as things are. Sets are small next to cells and their
/// machines are few, so every alloc is evaluated in every mode.
pub(crate) fn best_alloc(
    snapshot: &ClusterSnapshot,
    class: &Class,
    ranking: Ranking,
) -> Option<TaskId> {
    let keyed =
        allocs(snapshot, class).filter(|alloc| feasible::is_feasible_in(snapshot, class, *alloc));
    keyed.min_by_key(|alloc| (alloc_key(snapshot, class, *alloc, ranking), *alloc))
}

/// The best alloc to make room in.
pub(crate) fn best_alloc_preempting(
    snapshot: &ClusterSnapshot,
    class: &Class,
    ranking: Ranking,
) -> Option<(TaskId, Eviction)> {
    let found = allocs(snapshot, class)
        .filter_map(|alloc| Some((alloc, preempt::in_alloc(snapshot, class, alloc, ranking)?)));
    found.min_by_key(|(alloc, eviction)| (eviction.score, *alloc))
}

fn allocs<'a>(snapshot: &'a ClusterSnapshot, class: &Class) -> impl Iterator<Item = TaskId> + 'a {
    let set = class.request.alloc_set.and_then(|set| set.0);
    set.map_or(&[][..], |set| snapshot.allocs_of(set)).iter().copied()
}

fn alloc_key(
    snapshot: &ClusterSnapshot,
    class: &Class,
    alloc: TaskId,
    ranking: Ranking,
) -> ScoreKey {
    let Some(row) = snapshot.allocs.get(&alloc) else { return ScoreKey::WORST };
    let m = row.machine.slot();
    let mut score = score::score(snapshot, class, m, ranking);
    score.packing = score::packing::room_term(snapshot, class, m, &row.room.free, ranking.model);
    score.key()
}
