//! Finding the best machine of a class.
//!
//! Exact: one scan keeps the best few hundred keys and a bound that all other machines lie above.
//! Machines that changed since are looked at again, once each; a key at the top that is out of date
//! is replaced by what it is now. When the heap runs dry below the bound, it is scanned again. So
//! the n-th equal task costs a look at what changed and a heap step, and the choice is the same as
//! that of a scan over everything.
//!
//! Sampled: the heap holds the first `enough` feasible machines of a random order; changes
//! elsewhere are ignored, except the latest few, which are good candidates because something was
//! just packed or freed there. When it runs low the walk goes on; when it has been all around, the
//! class is known not to fit until something changes.

use super::Stats;
use super::memory::{Memory, Pool};
use crate::board::Board;
use crate::class::ClassId;
use crate::executor::{self, Executor};
use crate::random;
use crate::score::{Key, Ranking};
use std::cmp::Reverse;

/// Keys kept by a scan: enough to place many tasks before the next, few enough to stay small.
fn keep(machines: usize) -> usize {
    (machines / 8).clamp(4, 256)
}

/// Machines in one part of a scan that an executor may run beside others.
const PART: usize = 4096;
/// Sampling: changes looked at per visit although the heap is not empty.
const LATEST: u64 = 8;

/// Which machines are good for a class; implemented for free places and for preemption.
pub(crate) trait Judge: Sync {
    /// The key of machine slot `m`; `None` when it does not do.
    fn key(&self, board: &Board, m: usize) -> Option<Key>;
    /// Counters that grow when machines that are not in the log may have become better.
    fn loosened(&self, board: &Board) -> (u64, u64);
}

pub(crate) struct Search<'a> {
    pub memory: &'a mut Memory,
    pub ranking: Ranking,
    pub seed: u64,
    /// `None`: exact.
    pub enough: Option<usize>,
    pub stats: &'a mut Stats,
    pub executor: &'a dyn Executor,
}

impl Search<'_> {
    /// The best machine for the class, by its pool.
    pub fn best(
        &mut self,
        board: &Board,
        judge: &impl Judge,
        pool: &mut Pool,
        class: ClassId,
    ) -> Option<(usize, Key)> {
        let loosened = judge.loosened(board);
        if pool.loosened != loosened {
            pool.loosened = loosened;
            pool.complete = false;
            pool.heap.clear();
        }
        match self.enough {
            None => self.best_exact(board, judge, pool),
            Some(enough) => self.best_sampled(board, judge, pool, class, enough),
        }
    }

    fn best_exact(
        &mut self,
        board: &Board,
        judge: &impl Judge,
        pool: &mut Pool,
    ) -> Option<(usize, Key)> {
        let small = pool.heap.len() <= 8 * keep(board.machine_slots());
        let fresh = pool.complete && small && self.repair(board, judge, pool);
        if !fresh {
            self.scan(board, judge, pool);
        }
        loop {
            if let Some(found) = self.top(board, judge, pool) {
                return Some(found);
            }
            if pool.bound == Key::WORST {
                return None;
            }
            self.scan(board, judge, pool);
        }
    }

    /// The key at the top that is still true, replacing those that are not.
    fn top(&mut self, board: &Board, judge: &impl Judge, pool: &mut Pool) -> Option<(usize, Key)> {
        while let Some(Reverse(key)) = pool.heap.peek().copied() {
            let m = self.ranking.machine(key.rank());
            let now = judge.key(board, m);
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

    /// Adds the machines that changed since the pool last looked. False when there were so many
    /// that a scan is cheaper.
    fn repair(&mut self, board: &Board, judge: &impl Judge, pool: &mut Pool) -> bool {
        let Some(changes) = board.log.since(pool.seen) else { return false };
        if changes.len() > board.machine_slots() / 2 + 16 {
            return false;
        }
        self.look_again(board, judge, pool, changes);
        pool.seen = board.log.end();
        true
    }

    fn look_again(&mut self, board: &Board, judge: &impl Judge, pool: &mut Pool, changes: &[u32]) {
        self.memory.start_walk();
        for machine in changes.iter().rev() {
            if self.memory.first_time(*machine) {
                self.stats.evaluations += 1;
                let key = judge.key(board, *machine as usize);
                if let Some(key) = key.filter(|key| *key < pool.bound) {
                    pool.heap.push(Reverse(key));
                }
            }
        }
    }

    fn scan(&mut self, board: &Board, judge: &impl Judge, pool: &mut Pool) {
        self.stats.scans += 1;
        self.stats.evaluations += board.machine_slots() as u64;
        let mut keys = std::mem::take(&mut self.memory.scratch);
        keys.clear();
        let slots = board.machine_slots();
        let part = |n: usize| n * PART..slots.min((n + 1) * PART);
        match slots.div_ceil(PART) {
            0 | 1 => keys.extend((0..slots).filter_map(|m| judge.key(board, m))),
            parts => {
                let judged = executor::map(self.executor, parts, |n| -> Vec<Key> {
                    part(n).filter_map(|m| judge.key(board, m)).collect()
                });
                judged.iter().for_each(|part| keys.extend_from_slice(part));
            }
        }
        pool.bound = Key::WORST;
        let keep = keep(slots);
        if keys.len() > keep {
            let (_, bound, _) = keys.select_nth_unstable(keep);
            pool.bound = *bound;
            keys.truncate(keep);
        }
        pool.heap = keys.iter().map(|key| Reverse(*key)).collect();
        pool.seen = board.log.end();
        pool.complete = true;
        self.memory.scratch = keys;
    }

    fn best_sampled(
        &mut self,
        board: &Board,
        judge: &impl Judge,
        pool: &mut Pool,
        class: ClassId,
        enough: usize,
    ) -> Option<(usize, Key)> {
        if pool.complete && pool.heap.is_empty() {
            if !self.repair(board, judge, pool) {
                pool.complete = false;
            }
        } else if !pool.heap.is_empty() {
            let from = pool.latest.max(board.log.end().saturating_sub(LATEST));
            if let Some(changes) = board.log.since(from) {
                self.look_again(board, judge, pool, changes);
            }
        }
        pool.latest = board.log.end();
        if !pool.complete && pool.heap.len() < enough / 4 {
            self.walk(board, judge, pool, class, enough);
        }
        loop {
            if let Some(found) = self.top(board, judge, pool) {
                return Some(found);
            }
            if pool.complete {
                // Everything was looked at once; what changed since then has the last word.
                let current = pool.seen == board.log.end();
                if current || !self.repair(board, judge, pool) {
                    if current {
                        return None;
                    }
                    self.walk(board, judge, pool, class, enough);
                }
            } else {
                self.walk(board, judge, pool, class, enough);
            }
        }
    }

    /// Goes on in the random order until the heap holds `enough`, once around at most.
    fn walk(
        &mut self,
        board: &Board,
        judge: &impl Judge,
        pool: &mut Pool,
        class: ClassId,
        enough: usize,
    ) {
        self.stats.walks += 1;
        let order = &self.memory.order;
        if pool.cursor == u32::MAX {
            pool.cursor = random::below(self.seed, u64::from(class.0), order.len()) as u32;
        }
        let start = board.log.end();
        let mut cursor = pool.cursor as usize;
        let mut looked = 0;
        while looked < order.len() && pool.heap.len() < enough {
            if let Some(key) = judge.key(board, order[cursor] as usize) {
                pool.heap.push(Reverse(key));
            }
            cursor = if cursor + 1 == order.len() { 0 } else { cursor + 1 };
            looked += 1;
        }
        self.stats.evaluations += looked as u64;
        pool.cursor = cursor as u32;
        pool.complete = looked == order.len();
        pool.seen = start;
    }
}
