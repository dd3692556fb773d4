//! Options of a pass. The three techniques of B33 can be switched off one by one; with all of them
//! off, a pass is the plain reference that the fast one is tested against.

use crate::queue::QueueOrder;
use crate::score::packing::PackingModel;
use serde::{Deserialize, Serialize};

/// Feasible machines evaluated per class before the best of them is taken.
pub const DEFAULT_SAMPLE: u32 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Equal tasks share feasibility and scores.
    pub classes: bool,
    /// Scores are kept until the machine changes. Needs `classes`; see [`Options::effective`].
    pub score_cache: bool,
    /// Enough feasible machines in a random order are evaluated, instead of all. A cell with no
    /// more machines than this is scanned in full. `None`: the best of all machines, exactly.
    pub randomization: Option<u32>,
    pub model: PackingModel,
    pub order: QueueOrder,
    /// Whether lower priorities may be evicted for higher ones.
    pub preemption: bool,
    /// Whether a task planned in this pass may be planned elsewhere to make room for another. Not
    /// in arrival order, where every task is decided as it comes.
    pub repair: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            classes: true,
            score_cache: true,
            randomization: Some(DEFAULT_SAMPLE),
            model: PackingModel::Hybrid,
            order: QueueOrder::Fair,
            preemption: true,
            repair: true,
        }
    }
}

impl Options {
    /// Caches on, no sampling: the same choices as [`Options::reference`], fast.
    #[must_use]
    pub fn exact() -> Options {
        Options { randomization: None, ..Options::default() }
    }

    /// The options that take effect, for reports: scores are kept per class, so without classes
    /// there is nothing to keep them in; and nothing is planned again in arrival order. (Sampling
    /// also depends on the cell: one with no more machines than the sample is scanned in full.)
    #[must_use]
    pub fn effective(self) -> Options {
        Options {
            score_cache: self.score_cache && self.classes,
            repair: self.repair && self.order == QueueOrder::Fair,
            ..self
        }
    }

    /// Every machine for every task, from scratch.
    #[must_use]
    pub fn reference() -> Options {
        Options { classes: false, score_cache: false, randomization: None, ..Options::default() }
    }
}
