//! What passes remember per class: the best machines seen, as a heap of keys that is repaired from
//! the change log instead of being rebuilt.
//!
//! The memory lives in the board, because it means nothing without it. In exact mode it never
//! changes a choice, except through a mix that lags behind (see [`crate::score::packing`]). With
//! sampling on, a pass on a freshly built board depends on the snapshot and the seed alone; a pass
//! on a warm board also on the passes before it.

use super::options::Options;
use crate::score::Key;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What the keys of all pools were made with; anything else voids them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub options: Options,
    pub seed: u64,
    pub slots: usize,
    pub mix: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    pub tag: Option<Tag>,
    /// By class: places that are free.
    pub free: Vec<Pool>,
    /// By class: places that would be free after preemption.
    pub preempting: Vec<Pool>,
    /// Machines in the random order of the seed.
    pub order: Vec<u32>,
    /// Machines already seen in the current walk over the change log.
    pub marks: Vec<u32>,
    pub mark: u32,
    pub scratch: Vec<Key>,
}

/// The best machines of one class.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    /// Keys may be out of date; each is checked when it comes to the top.
    pub heap: BinaryHeap<Reverse<Key>>,
    /// Exact mode: every machine outside the heap has at least this key.
    pub bound: Key,
    /// Position in the change log up to which `heap` and `bound` are right.
    pub seen: u64,
    /// Whether every machine has been looked at, with the changes since `seen` to be added.
    pub complete: bool,
    /// Sampling: position in the change log up to which the latest changes have been looked at.
    pub latest: u64,
    /// Sampling: how far the walk over the random order has come.
    pub cursor: u32,
    /// Values of the counters that grow when unlogged machines may have become better.
    pub loosened: (u64, u64),
}

impl Default for Pool {
    fn default() -> Self {
        Pool {
            heap: BinaryHeap::new(),
            bound: Key::WORST,
            seen: 0,
            complete: false,
            latest: 0,
            cursor: u32::MAX,
            loosened: (0, 0),
        }
    }
}

impl Memory {
    /// Forgets everything unless it was made with the same `tag`, and makes room for new classes.
    pub fn prepare(&mut self, tag: Tag, classes: usize) {
        if self.tag != Some(tag) {
            *self = Memory { tag: Some(tag), ..Memory::default() };
            self.marks = vec![0; tag.slots];
            if tag.options.randomization.is_some() {
                self.order = crate::random::permutation(tag.slots, tag.seed);
            }
        }
        self.free.resize(classes, Pool::default());
        self.preempting.resize(classes, Pool::default());
    }

    /// Starts a walk in which [`Memory::first_time`] is true once per machine.
    pub fn start_walk(&mut self) {
        self.mark = self.mark.wrapping_add(1);
        if self.mark == 0 {
            self.marks.fill(0);
            self.mark = 1;
        }
    }

    #[inline]
    pub fn first_time(&mut self, machine: u32) -> bool {
        let mark = &mut self.marks[machine as usize];
        let first = *mark != self.mark;
        *mark = self.mark;
        first
    }
}
