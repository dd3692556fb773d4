//! Room that tasks hold on machines on which they do not run: reservations on the targets of moves.
//!
//! It is counted like what any task holds. It is not among the holders of a machine or the members
//! of an alloc, because nobody is evicted from a place where it is not: the room comes back when
//! the task itself leaves, or the alloc that the room is in.

use super::Board;
use super::rows::{Held, Place, Undo};
use cellwright_cell::id::{MachineId, TaskId};

impl Board {
    /// What a placed task holds beside where it runs. Its machine, and its alloc, must have been
    /// put; otherwise nothing is held.
    pub fn put_reserved(&mut self, task: TaskId, held: Option<Held>) {
        if self.reserved_of(task) == held.as_ref() {
            return;
        }
        self.unreserve(task);
        if let Some(held) = held {
            self.reserve(task, held);
        }
    }

    /// What the task holds beside where it runs.
    #[must_use]
    pub fn reserved_of(&self, task: TaskId) -> Option<&Held> {
        self.tasks.get(task.slot()).and_then(|row| row.reserved.as_deref())
    }

    /// Who holds room on the machine without running there.
    pub(crate) fn reserved_on(&self, machine: MachineId) -> Vec<TaskId> {
        let all = (machine, TaskId(0))..=(machine, TaskId(u32::MAX));
        self.reserved.range(all).map(|(_, task)| *task).collect()
    }

    /// Who holds room in the alloc without running there.
    pub(crate) fn reserved_in(&self, alloc: TaskId) -> Vec<TaskId> {
        let Some(row) = self.allocs.get(&alloc).filter(|_| !self.reserved.is_empty()) else {
            return Vec::new();
        };
        let inside =
            |task: &TaskId| self.reserved_of(*task).is_some_and(|held| held.alloc == Some(alloc));
        self.reserved_on(row.machine).into_iter().filter(inside).collect()
    }

    pub(super) fn reserve(&mut self, task: TaskId, held: Held) {
        let placed = self.place_of(task).is_some_and(|place| place.machine().is_some());
        let there = held.alloc.is_none_or(|alloc| self.allocs.contains_key(&alloc));
        if !placed || !there || !self.machines.exists(held.machine.slot()) {
            return;
        }
        self.reserved.insert((held.machine, task));
        self.log.push(held.machine.0);
        self.tasks[task.slot()].reserved = Some(Box::new(held));
        self.count_reserved(task, true);
    }

    /// Takes what a task holds beside where it runs out of the sums.
    pub(super) fn unreserve(&mut self, task: TaskId) -> Option<Held> {
        self.reserved_of(task)?;
        self.count_reserved(task, false);
        let held = *self.tasks[task.slot()].reserved.take()?;
        self.reserved.remove(&(held.machine, task));
        self.log.push(held.machine.0);
        Some(held)
    }

    pub(super) fn count_reserved(&mut self, task: TaskId, add: bool) {
        if let Some(held) = self.reserved_of(task).cloned() {
            self.count_place(task, &Place::held(held), true, add);
        }
    }

    /// A task that is evicted gives up what it holds elsewhere, an alloc what others hold in it.
    pub(super) fn give_up_reserved(&mut self, task: TaskId) {
        let inside = self.reserved_in(task);
        for task in inside.into_iter().chain([task]) {
            let Some(held) = self.unreserve(task) else { continue };
            if let Some(written) = &mut self.written {
                written.tasks.push(task);
            }
            if let Some(journal) = &mut self.journal {
                journal.push(Undo::Reserve { task, held });
            }
        }
    }
}
