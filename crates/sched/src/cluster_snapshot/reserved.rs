//! Room that tasks hold on machines on which they do not run: reservations on the targets of moves.
//!
//! It is counted like any other hold. It is not among the holders of a machine or the members of an
//! alloc, because a task cannot be evicted from a machine where it does not run: the room is freed
//! when the task itself leaves, or the alloc that the room is in.

use super::ClusterSnapshot;
use super::rows::{Hold, PlacementState, Undo};
use cellwright_cell::id::{MachineId, TaskId};

impl ClusterSnapshot {
    /// Puts what a placed task holds on a machine where it does not run. Its machine, and its
    /// alloc, must have been put; otherwise nothing is held.
    pub fn put_reserved(&mut self, task: TaskId, hold: Option<Hold>) {
        if self.reserved_of(task) == hold.as_ref() {
            return;
        }
        self.unreserve(task);
        if let Some(hold) = hold {
            self.reserve(task, hold);
        }
    }

    /// What the task holds on a machine where it does not run.
    #[must_use]
    pub fn reserved_of(&self, task: TaskId) -> Option<&Hold> {
        self.tasks.get(task.slot()).and_then(|row| row.reserved.as_deref())
    }

    /// The tasks that hold room on the machine without running there.
    pub(crate) fn reserved_on(&self, machine: MachineId) -> Vec<TaskId> {
        let all = (machine, TaskId(0))..=(machine, TaskId(u32::MAX));
        self.reserved.range(all).map(|(_, task)| *task).collect()
    }

    /// The tasks that hold room in the alloc without running there.
    pub(crate) fn reserved_in(&self, alloc: TaskId) -> Vec<TaskId> {
        let Some(row) = self.allocs.get(&alloc).filter(|_| !self.reserved.is_empty()) else {
            return Vec::new();
        };
        let inside =
            |task: &TaskId| self.reserved_of(*task).is_some_and(|hold| hold.alloc == Some(alloc));
        self.reserved_on(row.machine).into_iter().filter(inside).collect()
    }

    pub(super) fn reserve(&mut self, task: TaskId, hold: Hold) {
        let placed = self.placement_of(task).is_some_and(|placement| placement.machine().is_some());
        let alloc_exists = hold.alloc.is_none_or(|alloc| self.allocs.contains_key(&alloc));
        if !placed || !alloc_exists || !self.machines.exists(hold.machine.slot()) {
            return;
        }
        self.reserved.insert((hold.machine, task));
        self.change_log.push(hold.machine.0);
        self.tasks[task.slot()].reserved = Some(Box::new(hold));
        self.update_reserved_sums(task, true);
    }

    /// Removes from the sums what a task holds on a machine where it does not run.
    pub(super) fn unreserve(&mut self, task: TaskId) -> Option<Hold> {
        self.reserved_of(task)?;
        self.update_reserved_sums(task, false);
        let hold = *self.tasks[task.slot()].reserved.take()?;
        self.reserved.remove(&(hold.machine, task));
        self.change_log.push(hold.machine.0);
        Some(hold)
    }

    pub(super) fn update_reserved_sums(&mut self, task: TaskId, add: bool) {
        if let Some(hold) = self.reserved_of(task).cloned() {
            self.update_hold_sums(task, &PlacementState::from_hold(hold), true, add);
        }
    }

    /// A task that is evicted gives up what it holds elsewhere, an alloc what others hold in it.
    pub(super) fn release_reserved(&mut self, task: TaskId) {
        let inside = self.reserved_in(task);
        for task in inside.into_iter().chain([task]) {
            let Some(hold) = self.unreserve(task) else { continue };
            if let Some(assumed) = &mut self.assumed {
                assumed.tasks.push(task);
            }
            if let Some(undo_log) = &mut self.undo_log {
                undo_log.push(Undo::Reserve { task, hold });
            }
        }
    }
}
