//! The position of a pending task in the queue. The order is the scheduler's own: the queue is
//! walked as a pass would walk it if every task were placed, which is the order in which freed room
//! is assigned.

use crate::cluster_snapshot::{ClusterSnapshot, PlacementState};
use crate::queue::{Queue, QueueOrder};
use cellwright_cell::explanation::QueuePosition;
use cellwright_cell::id::TaskId;
use cellwright_cell::priority::MAX_PRIORITY;
use cellwright_cell::time::Time;

/// The queue position of every pending task at one time; made once for many explanations.
#[derive(Clone, Debug)]
pub struct QueuePositions {
    now: Time,
    /// By task slot; zero when not in the queue.
    positions: Vec<u32>,
    waiting: u32,
    /// By priority: pending tasks above it.
    above: Vec<u32>,
}

impl QueuePositions {
    #[must_use]
    pub fn new(
        snapshot: &ClusterSnapshot,
        order: QueueOrder,
        now: Time,
        seed: u64,
    ) -> QueuePositions {
        let levels = usize::from(MAX_PRIORITY) + 1;
        let mut at_level = vec![0u32; levels];
        let mut positions = Vec::new();
        let mut waiting = 0;
        let mut queue = Queue::new(snapshot, order, now, seed);
        while let Some(tasks) = queue.next(true) {
            for task in tasks {
                waiting += 1;
                if positions.len() <= task.slot() {
                    positions.resize(task.slot() + 1, 0);
                }
                positions[task.slot()] = waiting;
                if let Some(priority) = snapshot.priority_of(*task) {
                    at_level[usize::from(priority.0).min(levels - 1)] += 1;
                }
            }
        }
        let mut above = vec![0u32; levels];
        for level in (0..levels - 1).rev() {
            above[level] = above[level + 1] + at_level[level + 1];
        }
        QueuePositions { now, positions, waiting, above }
    }

    /// `None` for a task that is not pending.
    #[must_use]
    pub fn of(&self, snapshot: &ClusterSnapshot, task: TaskId) -> Option<QueuePosition> {
        let Some(PlacementState::Pending { not_before }) = snapshot.placement_of(task) else {
            return None;
        };
        let priority = snapshot.priority_of(task)?;
        let position = self.positions.get(task.slot()).copied().filter(|p| *p > 0);
        let level = usize::from(priority.0).min(self.above.len() - 1);
        Some(QueuePosition {
            position,
            waiting: self.waiting,
            higher_priority: self.above[level],
            not_before: (*not_before > self.now).then_some(*not_before),
            tried_in: (*not_before > self.now).then(|| not_before.since(self.now)),
        })
    }
}
