//! The score cache, which passes keep per class: the best machines seen, as a heap of keys that is
//! repaired from the change log instead of being rebuilt.
//!
//! The cache lives in the snapshot, because it means nothing without it. In exact mode it never
//! changes a choice, except through a mix that lags behind (see [`crate::score::packing`]). With
//! sampling on, a pass on a freshly built snapshot depends on its content and the seed alone; a
//! pass on a warm snapshot also on the passes before it.

use super::options::Options;
use crate::score::ScoreKey;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The inputs of the keys of all pools; any other inputs invalidate them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheKey {
    pub options: Options,
    pub seed: u64,
    pub slots: usize,
    pub mix: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ScoreCache {
    pub key: Option<CacheKey>,
    /// By class: machines with free room.
    pub free: Vec<CandidatePool>,
    /// By class: machines with room after preemption.
    pub preempting: Vec<CandidatePool>,
    /// Machines in the random order of the seed.
    pub random_order: Vec<u32>,
    /// Machines already seen in the current walk over the change log.
    pub seen_in_walk: Vec<u32>,
    pub walk: u32,
    pub scratch: Vec<ScoreKey>,
}

/// The best machines of one class.
#[derive(Clone, Debug)]
pub(crate) struct CandidatePool {
    /// Keys may be outdated; each is checked when it comes to the top.
    pub heap: BinaryHeap<Reverse<ScoreKey>>,
    /// Exact mode: every machine outside the heap has at least this key.
    pub bound: ScoreKey,
    /// Position in the change log up to which `heap` and `bound` are correct.
    pub synced_to: u64,
    /// Whether every machine has been evaluated; the changes since `synced_to` are still to be
    /// added.
    pub complete: bool,
    /// Sampling: position in the change log up to which the latest changes have been evaluated.
    pub latest_seen: u64,
    /// Sampling: how far the walk over the random order has come.
    pub cursor: u32,
    /// Values of the counters that grow when unlogged machines may have become better.
    pub improvement_counters: (u64, u64),
}

impl Default for CandidatePool {
    fn default() -> Self {
        CandidatePool {
            heap: BinaryHeap::new(),
            bound: ScoreKey::WORST,
            synced_to: 0,
            complete: false,
            latest_seen: 0,
            cursor: u32::MAX,
            improvement_counters: (0, 0),
        }
    }
}

impl ScoreCache {
    /// Clears the cache unless it was made with the same `key`, and makes room for new classes.
    pub fn prepare(&mut self, key: CacheKey, classes: usize) {
        if self.key != Some(key) {
            *self = ScoreCache { key: Some(key), ..ScoreCache::default() };
            self.seen_in_walk = vec![0; key.slots];
            if key.options.randomization.is_some() {
                self.random_order = crate::random::permutation(key.slots, key.seed);
            }
        }
        self.free.resize(classes, CandidatePool::default());
        self.preempting.resize(classes, CandidatePool::default());
    }

    /// Starts a walk in which [`ScoreCache::first_time`] is true once per machine.
    pub fn start_walk(&mut self) {
        self.walk = self.walk.wrapping_add(1);
        if self.walk == 0 {
            self.seen_in_walk.fill(0);
            self.walk = 1;
        }
    }

    #[inline]
    pub fn first_time(&mut self, machine: u32) -> bool {
        let seen = &mut self.seen_in_walk[machine as usize];
        let first = *seen != self.walk;
        *seen = self.walk;
        first
    }
}
