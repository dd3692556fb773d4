//! The scheduling queue: the order in which pending tasks are tried (B29). Priority high to low;
//! inside a priority round-robin across users, one placed task per turn; inside a user by job
//! submission, then index.
//!
//! A task that cannot be placed does not use up its user's turn, so it blocks no other task. The
//! pending tasks of a gang are one item.

use crate::cluster_snapshot::{ClusterSnapshot, PlacementState};
use crate::random;
use cellwright_cell::id::TaskId;
use cellwright_cell::priority::MAX_PRIORITY;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::Time;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueueOrder {
    #[default]
    Fair,
    /// By submission alone: every task is tried when it arrives, whatever its priority.
    Arrival,
}

/// Odd, so that no two passes draw with the same seed.
const PASS_STRIDE: u64 = 0xd6e8_feb8_6659_fd93;

/// A run of tasks in the sorted list: one task, or all pending tasks of a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QueueItem {
    first: u32,
    count: u32,
}

/// The pending items of one user at one priority: a range of items.
#[derive(Clone, Copy, Debug)]
struct UserQueue {
    next: u32,
    end: u32,
}

#[derive(Clone, Debug, Default)]
pub struct Queue {
    tasks: Vec<TaskId>,
    items: Vec<QueueItem>,
    user_queues: Vec<UserQueue>,
    /// Ends of the priorities, as positions in `user_queues`.
    priority_ends: Vec<u32>,
    priority: usize,
    /// User queues of the current priority that have items left, in turn.
    active_users: Vec<UserQueue>,
    turn: usize,
    /// Seed of the turns of this pass.
    seed: u64,
    /// Tasks that may not start yet.
    pub not_due: usize,
}

impl Queue {
    /// All pending tasks of the snapshot that may start at `now`. The first user inside a priority
    /// is drawn from the seed and the number of passes made on the snapshot, so that turns change
    /// under one seed too: a new seed per pass would invalidate every score in the cache.
    #[must_use]
    pub fn new(snapshot: &ClusterSnapshot, order: QueueOrder, now: Time, seed: u64) -> Queue {
        Queue::filtered(snapshot, order, now, seed, |_, _| true)
    }

    /// The same, of the tasks for which `includes` holds: a question is about some of them.
    #[must_use]
    pub fn of_tasks(
        snapshot: &ClusterSnapshot,
        order: QueueOrder,
        now: Time,
        seed: u64,
        includes: impl Fn(TaskId) -> bool,
    ) -> Queue {
        Queue::filtered(snapshot, order, now, seed, |task, _| includes(task))
    }

    /// The same, of the jobs for which `includes` holds: schedulers share the work by job.
    #[must_use]
    pub fn of_jobs(
        snapshot: &ClusterSnapshot,
        order: QueueOrder,
        now: Time,
        seed: u64,
        includes: impl Fn(&JobSpec) -> bool,
    ) -> Queue {
        Queue::filtered(snapshot, order, now, seed, |_, spec| includes(spec))
    }

    fn filtered(
        snapshot: &ClusterSnapshot,
        order: QueueOrder,
        now: Time,
        seed: u64,
        includes: impl Fn(TaskId, &JobSpec) -> bool,
    ) -> Queue {
        // Not a plain rotation by one: passes and freed room often come in step, and a step of two
        // between two users would always serve the same one.
        let seed = seed ^ snapshot.passes.wrapping_mul(PASS_STRIDE);
        let mut queue = Queue { seed, ..Queue::default() };
        let mut keyed: Vec<(u128, TaskId)> = Vec::with_capacity(snapshot.pending.len());
        for task in &snapshot.pending {
            let row = &snapshot.tasks[task.slot()];
            let job = snapshot.job(row.job).filter(|job| includes(*task, &job.spec));
            let Some(job) = job else { continue };
            let ready = |task: &TaskId| match snapshot.tasks[task.slot()].placement {
                PlacementState::Pending { not_before } => not_before <= now,
                _ => true,
            };
            if !ready(task) && !job.spec.gang {
                queue.not_due += 1;
                continue;
            }
            let down = u128::from(MAX_PRIORITY.saturating_sub(job.spec.priority.0));
            let arrival = u128::from(row.job.0) << 32 | u128::from(row.index);
            let key = match order {
                QueueOrder::Fair => down << 96 | u128::from(job.user.0) << 64 | arrival,
                QueueOrder::Arrival => arrival,
            };
            keyed.push((key, *task));
        }
        keyed.sort_unstable();
        queue.fill(snapshot, order, &keyed);
        queue.drop_incomplete_gangs(snapshot, now);
        queue.open_priority();
        queue
    }

    fn fill(&mut self, snapshot: &ClusterSnapshot, order: QueueOrder, keyed: &[(u128, TaskId)]) {
        let (mut level, mut user_queue, mut gang) = (None, None, None);
        for (key, task) in keyed {
            let row = &snapshot.tasks[task.slot()];
            let is_gang = snapshot.job(row.job).is_some_and(|job| job.spec.gang);
            let (this_priority, this_user) = match order {
                QueueOrder::Fair => (key >> 96, key >> 64),
                QueueOrder::Arrival => (0, 0),
            };
            if user_queue != Some(this_user) {
                if level.is_some_and(|l| l != this_priority) {
                    self.priority_ends.push(self.user_queues.len() as u32);
                }
                let at = self.items.len() as u32;
                self.user_queues.push(UserQueue { next: at, end: at });
                (level, user_queue, gang) = (Some(this_priority), Some(this_user), None);
            }
            let first = self.tasks.len() as u32;
            self.tasks.push(*task);
            match (self.items.last_mut(), gang == Some(row.job)) {
                (Some(item), true) => item.count += 1,
                _ => {
                    self.items.push(QueueItem { first, count: 1 });
                    if let Some(user_queue) = self.user_queues.last_mut() {
                        user_queue.end += 1;
                    }
                }
            }
            gang = is_gang.then_some(row.job);
        }
        if !self.user_queues.is_empty() {
            self.priority_ends.push(self.user_queues.len() as u32);
        }
    }

    /// A gang waits until its last member waits with it and may start.
    fn drop_incomplete_gangs(&mut self, snapshot: &ClusterSnapshot, now: Time) {
        let tasks = &self.tasks;
        for item in &mut self.items {
            let members = &tasks[item.first as usize..(item.first + item.count) as usize];
            let early = |task: &TaskId| {
                let row = &snapshot.tasks[task.slot()];
                let gang = snapshot.job(row.job).filter(|job| job.spec.gang);
                let later = match row.placement {
                    PlacementState::Pending { not_before } => not_before > now,
                    _ => false,
                };
                gang.is_some_and(|job| later || job.in_transition > 0)
            };
            if members.iter().any(early) {
                self.not_due += members.len();
                item.count = 0;
            }
        }
    }

    fn open_priority(&mut self) {
        let from =
            if self.priority == 0 { 0 } else { self.priority_ends[self.priority - 1] as usize };
        let Some(end) = self.priority_ends.get(self.priority) else { return };
        self.active_users = self.user_queues[from..*end as usize].to_vec();
        // The first user differs from pass to pass, so that no user is always first.
        let first =
            random::below(self.seed, 0x9_0e0e + self.priority as u64, self.active_users.len());
        self.active_users.rotate_left(first);
        self.turn = 0;
    }

    /// The next tasks to try together. `placed` is whether the last ones were placed, which ends
    /// their user's turn.
    pub fn next(&mut self, placed: bool) -> Option<&[TaskId]> {
        if placed {
            self.turn += 1;
        }
        loop {
            while self.turn >= self.active_users.len() {
                if self.active_users.is_empty() {
                    self.priority += 1;
                    if self.priority >= self.priority_ends.len() {
                        return None;
                    }
                    self.open_priority();
                }
                self.turn = 0;
            }
            let user_queue = &mut self.active_users[self.turn];
            if user_queue.next == user_queue.end {
                self.active_users.remove(self.turn);
                continue;
            }
            let item = self.items[user_queue.next as usize];
            user_queue.next += 1;
            if item.count > 0 {
                return Some(&self.tasks[item.first as usize..(item.first + item.count) as usize]);
            }
        }
    }

    /// Tasks in the queue, those of incomplete gangs included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}
