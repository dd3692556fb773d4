//! Searches the best machine for a class.
//!
//! Exact: one scan keeps the best few hundred keys and a lower bound for all other machines.
//! Machines that changed since are scored again, once each; an outdated key at the top is replaced
//! by the current one. When the heap runs dry below the bound, all machines are scanned again. So
//! the n-th equal task costs the scores of the changed machines and a heap step, and the choice is
//! the same as that of a full scan.
//!
//! Sampled: the heap holds the first `sample_size` feasible machines of a random order; changes
//! elsewhere are ignored, except the latest few, which are good candidates because something was
//! just packed or freed there. When it runs low the walk continues; when it has been all around,
//! the class is known not to fit until something changes.

use super::Stats;
use super::score_cache::{CandidatePool, ScoreCache};
use crate::class::ClassId;
use crate::cluster_snapshot::ClusterSnapshot;
use crate::executor::{self, Executor};
use crate::random;
use crate::score::{Ranking, ScoreKey};
use std::cmp::Reverse;

/// Keys kept by a scan: enough to place many tasks before the next, few enough to stay small.
fn heap_size(machines: usize) -> usize {
    (machines / 8).clamp(4, 256)
}

/// Machines in one part of a scan; an executor may run parts in parallel.
const MACHINES_PER_PART: usize = 4096;
/// Sampling: changes evaluated per visit although the heap is not empty.
const MAX_LATEST_CHANGES: u64 = 8;

/// Scores machines for a class; implemented for free room and for preemption.
pub(crate) trait MachineScorer: Sync {
    /// The key of machine slot `m`; `None` when it is not feasible.
    fn key(&self, snapshot: &ClusterSnapshot, m: usize) -> Option<ScoreKey>;
    /// Counters that grow when machines that are not in the log may have become better.
    fn improvement_counters(&self, snapshot: &ClusterSnapshot) -> (u64, u64);
}

pub(crate) struct Search<'a> {
    pub cache: &'a mut ScoreCache,
    pub ranking: Ranking,
    pub seed: u64,
    /// `None`: exact.
    pub sample_size: Option<usize>,
    pub stats: &'a mut Stats,
    pub executor: &'a dyn Executor,
}

impl Search<'_> {
    /// The best machine for the class, from its pool.
    pub fn best(
        &mut self,
        snapshot: &ClusterSnapshot,
        scorer: &impl MachineScorer,
        pool: &mut CandidatePool,
        class: ClassId,
    ) -> Option<(usize, ScoreKey)> {
        let counters = scorer.improvement_counters(snapshot);
        if pool.improvement_counters != counters {
            pool.improvement_counters = counters;
            pool.complete = false;
            pool.heap.clear();
        }
        match self.sample_size {
            None => self.best_exact(snapshot, scorer, pool),
            Some(sample_size) => self.best_sampled(snapshot, scorer, pool, class, sample_size),
        }
    }

    fn best_exact(
        &mut self,
        snapshot: &ClusterSnapshot,
        scorer: &impl MachineScorer,
        pool: &mut CandidatePool,
    ) -> Option<(usize, ScoreKey)> {
        let small = pool.heap.len() <= 8 * heap_size(snapshot.machine_slots());
        let fresh = pool.complete && small && self.apply_changes(snapshot, scorer, pool);
        if !fresh {
            self.scan(snapshot, scorer, pool);
        }
        loop {
            if let Some(found) = self.top(snapshot, scorer, pool) {
                return Some(found);
            }
            if pool.bound == ScoreKey::WORST {
                return None;
            }
            self.scan(snapshot, scorer, pool);
        }
    }

    /// The key at the top that is still current, replacing outdated ones.
    fn top(
        &mut self,
        snapshot: &ClusterSnapshot,
        scorer: &impl MachineScorer,
        pool: &mut CandidatePool,
    ) -> Option<(usize, ScoreKey)> {
        while let Some(Reverse(key)) = pool.heap.peek().copied() {
            let m = self.ranking.machine(key.rank());
            let now = scorer.key(snapshot, m);
            self.stats.evaluations += 1;
            if now == Some(key) {
                return Some((m, key));
            }
            pool.heap.pop();
            if let Some(now) = now.filter(|now| *now < pool.bound) {
                pool.heap.push(Reverse(now));
            }
        }
        None
    }

    /// Adds the machines that changed since the pool was last synced. False when there were so many
    /// that a scan is cheaper.
    fn apply_changes(
        &mut self,
        snapshot: &ClusterSnapshot,
        scorer: &impl MachineScorer,
        pool: &mut CandidatePool,
    ) -> bool {
        let Some(changes) = snapshot.change_log.since(pool.synced_to) else { return false };
        if changes.len() > snapshot.machine_slots() / 2 + 16 {
            return false;
        }
        self.rescore(snapshot, scorer, pool, changes);
        pool.synced_to = snapshot.change_log.end();
        true
    }

    fn rescore(
        &mut self,
        snapshot: &ClusterSnapshot,
        scorer: &impl MachineScorer,
        pool: &mut CandidatePool,
        changes: &[u32],
    ) {
        self.cache.start_walk();
        for machine in changes.iter().rev() {
            if self.cache.first_time(*machine) {
                self.stats.evaluations += 1;
                let key = scorer.key(snapshot, *machine as usize);
                if let Some(key) = key.filter(|key| *key < pool.bound) {
                    pool.heap.push(Reverse(key));
                }
            }
        }
    }

    fn scan(
        &mut self,
        snapshot: &ClusterSnapshot,
        scorer: &impl MachineScorer,
        pool: &mut CandidatePool,
    ) {
        self.stats.scans += 1;
        self.stats.evaluations += snapshot.machine_slots() as u64;
        let mut keys = std::mem::take(&mut self.cache.scratch);
        keys.clear();
        let slots = snapshot.machine_slots();
        let part = |n: usize| n * MACHINES_PER_PART..slots.min((n + 1) * MACHINES_PER_PART);
        match slots.div_ceil(MACHINES_PER_PART) {
            0 | 1 => keys.extend((0..slots).filter_map(|m| scorer.key(snapshot, m))),
            parts => {
                let scored = executor::map(self.executor, parts, |n| -> Vec<ScoreKey> {
                    part(n).filter_map(|m| scorer.key(snapshot, m)).collect()
                });
                scored.iter().for_each(|part| keys.extend_from_slice(part));
            }
        }
        pool.bound = ScoreKey::WORST;
        let keep = heap_size(slots);
        if keys.len() > keep {
            let (_, bound, _) = keys.select_nth_unstable(keep);
            pool.bound = *bound;
            keys.truncate(keep);
        }
        pool.heap = keys.iter().map(|key| Reverse(*key)).collect();
        pool.synced_to = snapshot.change_log.end();
        pool.complete = true;
        self.cache.scratch = keys;
    }

    fn best_sampled(
        &mut self,
        snapshot: &ClusterSnapshot,
        scorer: &impl MachineScorer,
        pool: &mut CandidatePool,
        class: ClassId,
        sample_size: usize,
    ) -> Option<(usize, ScoreKey)> {
        if pool.complete && pool.heap.is_empty() {
            if !self.apply_changes(snapshot, scorer, pool) {
                pool.complete = false;
            }
        } else if !pool.heap.is_empty() {
            let from =
                pool.latest_seen.max(snapshot.change_log.end().saturating_sub(MAX_LATEST_CHANGES));
            if let Some(changes) = snapshot.change_log.since(from) {
                self.rescore(snapshot, scorer, pool, changes);
            }
        }
        pool.latest_seen = snapshot.change_log.end();
        if !pool.complete && pool.heap.len() < sample_size / 4 {
            self.continue_walk(snapshot, scorer, pool, class, sample_size);
        }
        loop {
            if let Some(found) = self.top(snapshot, scorer, pool) {
                return Some(found);
            }
            if pool.complete {
                // Every machine was evaluated once; changes since then are applied last.
                let current = pool.synced_to == snapshot.change_log.end();
                if current || !self.apply_changes(snapshot, scorer, pool) {
                    if current {
                        return None;
                    }
                    self.continue_walk(snapshot, scorer, pool, class, sample_size);
                }
            } else {
                self.continue_walk(snapshot, scorer, pool, class, sample_size);
            }
        }
    }

    /// Continues in the random order until the heap holds `sample_size`, once around at most.
    fn continue_walk(
        &mut self,
        snapshot: &ClusterSnapshot,
        scorer: &impl MachineScorer,
        pool: &mut CandidatePool,
        class: ClassId,
        sample_size: usize,
    ) {
        self.stats.walks += 1;
        let order = &self.cache.random_order;
        if pool.cursor == u32::MAX {
            pool.cursor = random::below(self.seed, u64::from(class.0), order.len()) as u32;
        }
        let start = snapshot.change_log.end();
        let mut cursor = pool.cursor as usize;
        let mut examined = 0;
        while examined < order.len() && pool.heap.len() < sample_size {
            if let Some(key) = scorer.key(snapshot, order[cursor] as usize) {
                pool.heap.push(Reverse(key));
            }
            cursor = if cursor + 1 == order.len() { 0 } else { cursor + 1 };
            examined += 1;
        }
        self.stats.evaluations += examined as u64;
        pool.cursor = cursor as u32;
        pool.complete = examined == order.len();
        pool.synced_to = start;
    }
}
