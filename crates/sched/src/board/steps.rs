//! What a pass does to the board, with one step back: placements and evictions are recorded when
//! asked for, so that a gang that does not fit, or a question of the kind "what if", leaves no
//! trace.

use super::machines::RESERVED_DISK;
use super::rows::{Held, Holding, Place, TaskRow, Undo};
use super::{Board, PendingFacts};
use crate::class::{SUMS, charges};
use crate::feasible;
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::named::UNBOUNDED;
use cellwright_cell::resource::Resources;
use cellwright_cell::time::Time;
use std::collections::BTreeMap;

/// What a pass does, with one step back.
impl Board {
    /// Places a pending task.
    pub fn assign(&mut self, task: TaskId, held: Held) {
        let Some(Place::Pending { not_before }) = self.place_of(task).cloned() else { return };
        self.leave_queue(task);
        if let Some(written) = &mut self.written {
            written.tasks.push(task);
        }
        let row = &mut self.tasks[task.slot()];
        row.attempt += 1;
        row.holding = Holding::Assigned;
        row.leaves_disk = 0;
        self.settle(task, held);
        if let Some(journal) = &mut self.journal {
            journal.push(Undo::Vacate { task, not_before });
        }
    }

    /// Takes a placement of this pass back: the task waits again, as it did.
    pub(crate) fn unassign(&mut self, task: TaskId, not_before: Time) -> Option<Held> {
        let held = self.unsettle(task)?;
        self.tasks[task.slot()].attempt -= 1;
        self.wait(task, not_before);
        Some(held)
    }

    /// Takes a placed task away, spending its job's disruption budget. It is gone from the board
    /// until the state says what became of it. Members of an alloc must have been evicted before.
    pub fn evict(&mut self, task: TaskId) {
        if self.place_of(task).and_then(Place::machine).is_none() {
            return;
        }
        self.give_up_reserved(task);
        let Some(held) = self.unsettle(task) else { return };
        self.leave(task);
        let TaskRow { job, holding, leaves_disk, .. } = self.tasks[task.slot()];
        if let Some(written) = &mut self.written {
            written.tasks.push(task);
            written.jobs.push(job);
            if leaves_disk > 0 {
                written.machines.push(held.machine);
            }
        }
        self.retain_disk(held.machine, leaves_disk as i64);
        self.change_absent(job, 1);
        if holding == Holding::Running {
            self.change_budget(job, |budget| budget.saturating_sub(1));
        }
        if let Some(journal) = &mut self.journal {
            journal.push(Undo::Occupy { task, held, holding, leaves_disk });
        }
    }

    /// An evicted task waits again, charged `reservation` once placed.
    pub(crate) fn requeue(&mut self, task: TaskId, reservation: Resources) {
        let TaskRow { job, index, attempt, .. } = self.tasks[task.slot()];
        let facts = PendingFacts {
            job,
            index,
            attempt,
            not_before: Time::ZERO,
            reservation: Some(reservation),
            avoid: &[],
        };
        self.put_pending(task, &facts);
        self.change_absent(job, -1);
    }

    pub(crate) fn retain_disk(&mut self, machine: MachineId, bytes: i64) {
        let m = machine.slot();
        self.machines.retained[m] = self.machines.retained[m].saturating_add_signed(bytes);
        self.machines.room[m].free[RESERVED_DISK] -= bytes;
    }

    /// An evicted task is on its way out: a gang cannot be whole until it is back in the queue.
    fn change_absent(&mut self, job: JobId, by: i32) {
        if let Some(Some(row)) = self.jobs.get_mut(job.slot()) {
            row.absent = row.absent.saturating_add_signed(by);
        }
    }

    fn change_budget(&mut self, job: JobId, change: impl Fn(u32) -> u32) {
        if let Some(Some(row)) = self.jobs.get_mut(job.slot())
            && let Some(budget) = &mut row.budget
        {
            *budget = change(*budget);
            self.budgets_changed += 1;
        }
    }

    /// From here on steps are recorded, until [`Board::keep`] or [`Board::roll_back`].
    pub fn record(&mut self) {
        self.journal = Some(Vec::new());
    }

    /// Makes the recorded steps final.
    pub fn keep(&mut self) {
        self.journal = None;
    }

    /// Takes the recorded steps back, last first.
    pub fn roll_back(&mut self) {
        for undo in self.journal.take().unwrap_or_default().into_iter().rev() {
            match undo {
                Undo::Vacate { task, not_before } => {
                    self.unsettle(task);
                    self.tasks[task.slot()].attempt -= 1;
                    self.wait(task, not_before);
                }
                Undo::Occupy { task, held, holding, leaves_disk } => {
                    self.put_back(task, held, holding, leaves_disk);
                }
                Undo::Reserve { task, held } => self.reserve(task, held),
            }
        }
    }

    fn put_back(&mut self, task: TaskId, held: Held, holding: Holding, leaves_disk: u64) {
        let job = self.tasks[task.slot()].job;
        self.retain_disk(held.machine, -(leaves_disk as i64));
        self.change_absent(job, -1);
        if holding == Holding::Running {
            self.change_budget(job, |budget| budget + 1);
        }
        self.enter(task);
        self.settle(task, held);
        let row = &mut self.tasks[task.slot()];
        (row.holding, row.leaves_disk) = (holding, leaves_disk);
    }

    /// Puts one evicted task back if those who took its room fit beside it after all, with the
    /// tasks that were inside it; says how many came back. Only while steps are recorded.
    pub(crate) fn spare(&mut self, victim: TaskId, takers: &[TaskId]) -> usize {
        let Some(journal) = self.journal.take() else { return 0 };
        let leaves = |undo: &Undo| match undo {
            Undo::Occupy { task, held, .. } => {
                (*task == victim || held.alloc == Some(victim)).then_some(*task)
            }
            _ => None,
        };
        let back: Vec<TaskId> = journal.iter().filter_map(leaves).collect();
        let involved = |undo: &Undo| match undo {
            Undo::Occupy { task, .. } => back.contains(task),
            // What they held elsewhere, and what those who stay held in an alloc among them.
            Undo::Reserve { task, held } => {
                let stays = self.place_of(*task).is_some_and(|place| place.machine().is_some());
                back.contains(task) || (stays && held.alloc == Some(victim))
            }
            Undo::Vacate { .. } => false,
        };
        let (mine, others): (Vec<Undo>, Vec<Undo>) = journal.into_iter().partition(involved);
        let fits = self.has_places_for(&mine)
            && mine.iter().all(|undo| match undo {
                Undo::Occupy { task, held, leaves_disk, .. } => {
                    self.fits_back(*task, held, *leaves_disk, takers)
                }
                Undo::Reserve { task, held } => self.fits_back(*task, held, 0, takers),
                Undo::Vacate { .. } => false,
            });
        if !fits {
            self.journal = Some(others.into_iter().chain(mine).collect());
            return 0;
        }
        self.journal = None;
        // Members were evicted before their alloc, so they come back after it; what was held
        // elsewhere was given up before.
        for undo in mine.into_iter().rev() {
            match undo {
                Undo::Occupy { task, held, holding, leaves_disk } => {
                    self.put_back(task, held, holding, leaves_disk);
                }
                Undo::Reserve { task, held } => self.reserve(task, held),
                Undo::Vacate { .. } => {}
            }
        }
        self.journal = Some(others);
        back.len()
    }

    /// Whether machines may hold as many tasks as these beside those that are there.
    fn has_places_for(&self, back: &[Undo]) -> bool {
        let mut more: BTreeMap<MachineId, u64> = BTreeMap::new();
        for undo in back {
            if let Undo::Occupy { held, .. } | Undo::Reserve { held, .. } = undo {
                *more.entry(held.machine).or_default() += 1;
            }
        }
        more.into_iter().all(|(m, more)| more <= feasible::places(self, m.slot()))
    }

    /// Only what the takers ask for counts: an excess that was there before is nobody's fault.
    fn fits_back(&self, task: TaskId, held: &Held, leaves_disk: u64, takers: &[TaskId]) -> bool {
        let m = held.machine.slot();
        let ports = &self.machines.ports[m].used;
        if held.ports.iter().any(|p| ports.binary_search_by_key(p, |(port, _)| *port).is_ok()) {
            return false;
        }
        if held.alloc.is_some() && !self.allocs.contains_key(&held.alloc.unwrap_or(task)) {
            // Its alloc comes back with it, with the room it had.
            return true;
        }
        let request = |t: TaskId| &self.classes.get(self.tasks[t.slot()].class).request;
        let mine = request(task);
        let mut charge = charges(mine.priority, mine.limits, held.reservation);
        charge[RESERVED_DISK] -= leaves_disk as i64;
        let room = match held.alloc.and_then(|alloc| self.allocs.get(&alloc)) {
            Some(alloc) => alloc.room,
            None => self.machines.room[m],
        };
        let beside = |t: &&TaskId| {
            let place = &self.tasks[t.slot()].place;
            place.machine() == Some(held.machine) && place.alloc() == held.alloc
        };
        let takers: Vec<TaskId> = takers.iter().filter(beside).copied().collect();
        let asked = |i: usize| {
            takers.iter().any(|t| self.classes.get(self.tasks[t.slot()].class).take[i] > 0)
        };
        let enough = (0..SUMS).all(|i| charge[i] <= room.free[i] || charge[i] == 0 || !asked(i));
        let devices = held.devices.iter().all(|grant| {
            let slot = self.machines.devices[m].get(usize::from(grant.device));
            slot.is_none_or(|slot| slot.free() >= grant.milli)
        });
        let named = mine.named.iter().all(|(name, amount)| {
            let room = self.machines.named_room(m, *name);
            room.capacity == UNBOUNDED || room.used.saturating_add(*amount) <= room.capacity
        });
        enough && devices && named
    }
}
