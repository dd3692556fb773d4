//! Why a task is placed where it is: the machines it could be on as things are now, best first by
//! the scheduler's own score, computed as if the task itself were gone. It is an evaluation of
//! today's state: the state of the cell when the task was placed is gone.

use super::names::{self, NameResolver};
use crate::cluster_snapshot::ClusterSnapshot;
use crate::feasible;
use crate::score::{self, Ranking, Score};
use crate::solve::options::Options;
use cellwright_cell::explanation::MachineRef;
use cellwright_cell::id::{MachineId, TaskId};
use serde::Serialize;

/// Machines listed, besides the task's own.
const MAX_LISTED: usize = 5;

/// The terms of a score, most important first; lower is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ScoreTerms {
    /// Weights of soft constraints that do not hold.
    pub preference: u16,
    /// Shares of the job that would be lost with the machine, its rack or its power domain, in
    /// sixteenths each.
    pub spread: u8,
    /// Seconds that fetching the missing packages is expected to take, of 255.
    pub locality: u8,
    /// Worth of the devices that the machine loses.
    pub devices: u32,
    /// The machine would be left with less than a quarter of its CPU for the other kind of task,
    /// production or not.
    pub one_sided: bool,
    /// How badly the rest of the machine would fit the tasks of the cell.
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
    /// Machines that would accept the task now.
    pub fitting: u32,
    /// The best of them, and the task's own at any rank.
    pub candidates: Vec<RankedMachine>,
}

/// `None` for a task that is on no machine, or inside an alloc, where its set decides. The snapshot
/// is unchanged once this returns.
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
            spread: score.spread,
            locality: score.locality,
            devices: score.devices,
            one_sided: score.one_sided,
            packing: score.packing,
        },
    });
    Some(PlacementRanking { fitting: scored.len() as u32, candidates: candidates.collect() })
}
