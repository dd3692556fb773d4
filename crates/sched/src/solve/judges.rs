//! What makes a machine good for a class: as it is, or after preemption.

use super::preempt;
use super::search::Judge;
use crate::board::Board;
use crate::class::Class;
use crate::feasible;
use crate::score::{self, Key, Ranking};

/// Counters of the board that grow when machines outside the log may have become better.
fn domains_loosened(board: &Board, class: &Class) -> u64 {
    let job = class.request.siblings.and_then(|siblings| board.job(siblings.job));
    job.map_or(0, |job| job.loosened)
}

/// Free places.
pub(crate) struct Free<'a> {
    pub class: &'a Class,
    pub ranking: Ranking,
}

impl Judge for Free<'_> {
    #[inline]
    fn key(&self, board: &Board, m: usize) -> Option<Key> {
        feasible::holds(board, self.class, m)
            .then(|| score::key(board, self.class, m, self.ranking))
    }

    fn loosened(&self, board: &Board) -> (u64, u64) {
        (domains_loosened(board, self.class), 0)
    }
}

/// Places that are free once some tasks of lower priority are gone.
pub(crate) struct Preempting<'a> {
    pub class: &'a Class,
    pub ranking: Ranking,
}

impl Judge for Preempting<'_> {
    fn key(&self, board: &Board, m: usize) -> Option<Key> {
        if !preempt::possible(board, self.class, m) {
            return None;
        }
        let found = preempt::on_machine(board, self.class, m, self.ranking)?;
        Some(found.score.key())
    }

    fn loosened(&self, board: &Board) -> (u64, u64) {
        (domains_loosened(board, self.class), board.budgets_changed)
    }
}
