//! The order in which waiting tasks are tried (B29): priority high to low; inside a priority
//! round-robin across users, one placed task per turn; inside a user by job submission, then index.
//!
//! A task that cannot be placed does not use up its user's turn, so nobody waits behind it. The
//! pending tasks of a gang are one item.

use crate::board::{Board, Place};
use crate::random;
use cellwright_cell::id::TaskId;
use cellwright_cell::priority::MAX_PRIORITY;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::Time;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    #[default]
    Fair,
    /// By submission alone: every task is tried when it arrives, whatever its priority.
    Arrival,
}

/// Odd, so that no two passes draw with the same seed.
const PASS_STRIDE: u64 = 0xd6e8_feb8_6659_fd93;

/// A run of tasks in the sorted list: one task, or all pending tasks of a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Item {
    first: u32,
    count: u32,
}

/// What one user waits for at one priority: a range of items.
#[derive(Clone, Copy, Debug)]
struct Lane {
    next: u32,
    end: u32,
}

#[derive(Clone, Debug, Default)]
pub struct Queue {
    tasks: Vec<TaskId>,
    items: Vec<Item>,
    lanes: Vec<Lane>,
    /// Ends of the priorities, as positions in `lanes`.
    levels: Vec<u32>,
    level: usize,
    /// Lanes of the current priority that have something left, in turn.
    active: Vec<Lane>,
    turn: usize,
    /// Seed of the turns of this pass.
    seed: u64,
    /// Tasks that wait for their time.
    pub not_yet: usize,
}

impl Queue {
    /// All pending tasks of the board that may start at `now`. Who is first inside a priority is
    /// drawn from the seed and the number of passes the board has seen, so that turns change under
    /// one seed too: a new seed per pass would void everything the board remembers.
    #[must_use]
    pub fn new(board: &Board, order: Order, now: Time, seed: u64) -> Queue {
        Queue::filtered(board, order, now, seed, |_, _| true)
    }

    /// Same, of those tasks alone that `mine` says yes to: a question is about some of them.
    #[must_use]
    pub fn of(
        board: &Board,
        order: Order,
        now: Time,
        seed: u64,
        mine: impl Fn(TaskId) -> bool,
    ) -> Queue {
        Queue::filtered(board, order, now, seed, |task, _| mine(task))
    }

    /// Same, of those jobs alone that `mine` says yes to: schedulers share the work by job.
    #[must_use]
    pub fn only(
        board: &Board,
        order: Order,
        now: Time,
        seed: u64,
        mine: impl Fn(&JobSpec) -> bool,
    ) -> Queue {
        Queue::filtered(board, order, now, seed, |_, spec| mine(spec))
    }

    fn filtered(
        board: &Board,
        order: Order,
        now: Time,
        seed: u64,
        mine: impl Fn(TaskId, &JobSpec) -> bool,
    ) -> Queue {
        // Not a plain rotation by one: passes and free places often come in step, and a step of
        // two between two users would always serve the same one.
        let seed = seed ^ board.passes.wrapping_mul(PASS_STRIDE);
        let mut queue = Queue { seed, ..Queue::default() };
        let mut keyed: Vec<(u128, TaskId)> = Vec::with_capacity(board.pending.len());
        for task in &board.pending {
            let row = &board.tasks[task.slot()];
            let job = board.job(row.job).filter(|job| mine(*task, &job.spec));
            let Some(job) = job else { continue };
            let ready = |task: &TaskId| match board.tasks[task.slot()].place {
                Place::Pending { not_before } => not_before <= now,
                _ => true,
            };
            if !ready(task) && !job.spec.gang {
                queue.not_yet += 1;
                continue;
            }
            let down = u128::from(MAX_PRIORITY.saturating_sub(job.spec.priority.0));
            let place = u128::from(row.job.0) << 32 | u128::from(row.index);
            let key = match order {
                Order::Fair => down << 96 | u128::from(job.user.0) << 64 | place,
                Order::Arrival => place,
            };
            keyed.push((key, *task));
        }
        keyed.sort_unstable();
        queue.fill(board, order, &keyed);
        queue.drop_early_gangs(board, now);
        queue.open_level();
        queue
    }

    fn fill(&mut self, board: &Board, order: Order, keyed: &[(u128, TaskId)]) {
        let (mut level, mut lane, mut gang) = (None, None, None);
        for (key, task) in keyed {
            let row = &board.tasks[task.slot()];
            let is_gang = board.job(row.job).is_some_and(|job| job.spec.gang);
            let (this_level, this_lane) = match order {
                Order::Fair => (key >> 96, key >> 64),
                Order::Arrival => (0, 0),
            };
            if lane != Some(this_lane) {
                if level.is_some_and(|l| l != this_level) {
                    self.levels.push(self.lanes.len() as u32);
                }
                let at = self.items.len() as u32;
                self.lanes.push(Lane { next: at, end: at });
                (level, lane, gang) = (Some(this_level), Some(this_lane), None);
            }
            let first = self.tasks.len() as u32;
            self.tasks.push(*task);
            match (self.items.last_mut(), gang == Some(row.job)) {
                (Some(item), true) => item.count += 1,
                _ => {
                    self.items.push(Item { first, count: 1 });
                    if let Some(lane) = self.lanes.last_mut() {
                        lane.end += 1;
                    }
                }
            }
            gang = is_gang.then_some(row.job);
        }
        if !self.lanes.is_empty() {
            self.levels.push(self.lanes.len() as u32);
        }
    }

    /// A gang waits until its last member waits with it and may start.
    fn drop_early_gangs(&mut self, board: &Board, now: Time) {
        let tasks = &self.tasks;
        for item in &mut self.items {
            let members = &tasks[item.first as usize..(item.first + item.count) as usize];
            let early = |task: &TaskId| {
                let row = &board.tasks[task.slot()];
                let gang = board.job(row.job).filter(|job| job.spec.gang);
                let later = match row.place {
                    Place::Pending { not_before } => not_before > now,
                    _ => false,
                };
                gang.is_some_and(|job| later || job.absent > 0)
            };
            if members.iter().any(early) {
                self.not_yet += members.len();
                item.count = 0;
            }
        }
    }

    fn open_level(&mut self) {
        let from = if self.level == 0 { 0 } else { self.levels[self.level - 1] as usize };
        let Some(to) = self.levels.get(self.level) else { return };
        self.active = self.lanes[from..*to as usize].to_vec();
        // Whose turn is first differs from pass to pass, so that no user is always first.
        let first = random::below(self.seed, 0x9_0e0e + self.level as u64, self.active.len());
        self.active.rotate_left(first);
        self.turn = 0;
    }

    /// The next tasks to try together. `placed` says whether the last ones found a place, which
    /// ends their user's turn.
    pub fn next(&mut self, placed: bool) -> Option<&[TaskId]> {
        if placed {
            self.turn += 1;
        }
        loop {
            while self.turn >= self.active.len() {
                if self.active.is_empty() {
                    self.level += 1;
                    if self.level >= self.levels.len() {
                        return None;
                    }
                    self.open_level();
                }
                self.turn = 0;
            }
            let lane = &mut self.active[self.turn];
            if lane.next == lane.end {
                self.active.remove(self.turn);
                continue;
            }
            let item = self.items[lane.next as usize];
            lane.next += 1;
            if item.count > 0 {
                return Some(&self.tasks[item.first as usize..(item.first + item.count) as usize]);
            }
        }
    }

    /// Tasks in the queue, those of early gangs included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}
