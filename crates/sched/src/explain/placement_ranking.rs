//! Why a task is where it is: the machines it could be on as things are now, best first by the
//! scheduler's own score, with the task itself imagined away. It is a judgement of today: what the
//! cell looked like when the task was placed is gone.

use super::names::{self, MachineRef, NameResolver};
use crate::cluster_snapshot::ClusterSnapshot;
use crate::feasible;
use crate::score::{self, Ranking, Score};
use crate::solve::options::Options;
use cellwright_cell::id::{MachineId, TaskId};
use serde::Serialize;

/// Machines listed, the task's own apart.
const MAX_LISTED: usize = 5;

/// The terms of a score, most important first; lower is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ScoreTerms {
    /// Weights of soft constraints that do not hold.
    pub preference: u16,
    /// Share of package bytes that would have to be fetched, of 255.
    pub locality: u8,
    /// Share of the job that would be lost with the machine, its rack or its power domain, of 255.
    pub spread: u8,
    /// Worth of the devices the machine loses.
    pub devices: u32,
    /// How badly the rest of the machine would fit what the cell runs.
    pub packing: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RankedMachine {
    pub machine: MachineRef,
    /// One is the best.
    pub rank: u32,
    /// The task is on it.
    pub here: bool,
    pub terms: ScoreTerms,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlacementRanking {
    /// Machines that would take the task now.
    pub fitting: u32,
    /// The best of them, and the task's own wherever it stands.
    pub candidates: Vec<RankedMachine>,
}

/// `None` for a task that is on no machine, or inside an alloc, where its set decides. The board is
/// as before once this returns.
#[must_use]
pub fn rank_placements(
    snapshot: &mut ClusterSnapshot,
    task: TaskId,
    names: &dyn NameResolver,
    options: Options,
    seed: u64,
) -> Option<PlacementRanking> {
    let placement = snapshot.placement_of(task)?;
    let machine = placement.machine()?;
    if placement.alloc().is_some() {
        return None;
    }
    let class = snapshot.class_of(task)?;
    snapshot.redraw_mix();
    snapshot.begin_transaction();
    for member in snapshot.members(task).to_vec() {
        snapshot.evict(member);
    }
    snapshot.evict(task);
    let ranking = Ranking::new(options.model, seed, snapshot.machine_slots());
    let row = snapshot.class(class);
    let fitting =
        (0..snapshot.machine_slots()).filter(|m| feasible::is_feasible(snapshot, row, *m));
    let mut scored: Vec<(Score, usize)> =
        fitting.map(|m| (score::score(snapshot, row, m, ranking), m)).collect();
    scored.sort_unstable();
    snapshot.roll_back();
    let listed = scored.iter().enumerate();
    let listed = listed.filter(|(at, (_, m))| *at < MAX_LISTED || *m == machine.slot());
    let candidates = listed.map(|(at, (score, m))| RankedMachine {
        machine: names::machine_ref(names, MachineId(*m as u32)),
        rank: at as u32 + 1,
        here: *m == machine.slot(),
        terms: ScoreTerms {
            preference: score.preference,
            locality: score.locality,
            spread: score.spread,
            devices: score.devices,
            packing: score.packing,
        },
    });
    Some(PlacementRanking { fitting: scored.len() as u32, candidates: candidates.collect() })
}
