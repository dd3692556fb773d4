//! Why a task is where it is: the machines it could be on as things are now, best first by the
//! scheduler's own score, with the task itself imagined away. It is a judgement of today: what the
//! cell looked like when the task was placed is gone.

use super::names::{self, MachineRef, Names};
use crate::board::Board;
use crate::feasible;
use crate::score::{self, Ranking, Score};
use crate::solve::options::Options;
use cellwright_cell::id::{MachineId, TaskId};
use serde::Serialize;

/// Machines listed, the task's own apart.
const LISTED: usize = 5;

/// The terms of a score, most important first; lower is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Terms {
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
pub struct Candidate {
    pub machine: MachineRef,
    /// One is the best.
    pub rank: u32,
    /// The task is on it.
    pub here: bool,
    pub terms: Terms,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WhyHere {
    /// Machines that would take the task now.
    pub fitting: u32,
    /// The best of them, and the task's own wherever it stands.
    pub candidates: Vec<Candidate>,
}

/// `None` for a task that is on no machine, or inside an alloc, where its set decides. The board is
/// as before once this returns.
#[must_use]
pub fn why_here(
    board: &mut Board,
    task: TaskId,
    names: &dyn Names,
    options: Options,
    seed: u64,
) -> Option<WhyHere> {
    let place = board.place_of(task)?;
    let machine = place.machine()?;
    if place.alloc().is_some() {
        return None;
    }
    let class = board.class_of(task)?;
    board.redraw_mix();
    board.record();
    for member in board.members(task).to_vec() {
        board.evict(member);
    }
    board.evict(task);
    let ranking = Ranking::new(options.model, seed, board.machine_slots());
    let row = board.class(class);
    let fitting = (0..board.machine_slots()).filter(|m| feasible::holds(board, row, *m));
    let mut scored: Vec<(Score, usize)> =
        fitting.map(|m| (score::score(board, row, m, ranking), m)).collect();
    scored.sort_unstable();
    board.roll_back();
    let shown = scored.iter().enumerate();
    let shown = shown.filter(|(at, (_, m))| *at < LISTED || *m == machine.slot());
    let candidates = shown.map(|(at, (score, m))| Candidate {
        machine: names::machine(names, MachineId(*m as u32)),
        rank: at as u32 + 1,
        here: *m == machine.slot(),
        terms: Terms {
            preference: score.preference,
            locality: score.locality,
            spread: score.spread,
            devices: score.devices,
            packing: score.packing,
        },
    });
    Some(WhyHere { fitting: scored.len() as u32, candidates: candidates.collect() })
}
