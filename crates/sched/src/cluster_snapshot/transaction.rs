//! What a pass does to the snapshot, as a transaction that can be rolled back: placements and
//! evictions are recorded on request, so that a gang that does not fit, or a what-if question,
//! leaves no trace.

use super::machines::RESERVED_DISK;
use super::rows::{Hold, PlacementState, TaskPhase, TaskRow, Undo};
use super::{ClusterSnapshot, PendingTaskInfo};
use crate::class::{SUMS, charges};
use crate::feasible;
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::named::UNBOUNDED;
use cellwright_cell::resource::Resources;
use cellwright_cell::time::Time;
use std::collections::BTreeMap;

/// Placements and evictions, which can be rolled back.
impl ClusterSnapshot {
    /// Places a pending task.
    pub fn assign(&mut self, task: TaskId, hold: Hold) {
        let Some(PlacementState::Pending { not_before }) = self.placement_of(task).cloned() else {
            return;
        };
        self.dequeue(task);
        if let Some(assumed) = &mut self.assumed {
            assumed.tasks.push(task);
        }
        let row = &mut self.tasks[task.slot()];
        row.attempt += 1;
        row.phase = TaskPhase::Assigned;
        row.retained_on_exit = 0;
        self.occupy(task, hold);
        if let Some(undo_log) = &mut self.undo_log {
            undo_log.push(Undo::Unassign { task, not_before });
        }
    }

    /// Undoes a placement of this pass: the task is pending again, as before.
    pub(crate) fn unassign(&mut self, task: TaskId, not_before: Time) -> Option<Hold> {
        let hold = self.vacate(task)?;
        self.tasks[task.slot()].attempt -= 1;
        self.enqueue(task, not_before);
        Some(hold)
    }

    /// Evicts a placed task, spending its job's disruption budget. It is not in the snapshot again
    /// until the state has it. Members of an alloc must have been evicted before.
    pub fn evict(&mut self, task: TaskId) {
        if self.placement_of(task).and_then(PlacementState::machine).is_none() {
            return;
        }
        self.release_reserved(task);
        let Some(hold) = self.vacate(task) else { return };
        self.uncount_class_member(task);
        let TaskRow { job, phase, retained_on_exit, .. } = self.tasks[task.slot()];
        if let Some(assumed) = &mut self.assumed {
            assumed.tasks.push(task);
            assumed.jobs.push(job);
            if retained_on_exit > 0 {
                assumed.machines.push(hold.machine);
            }
        }
        self.retain_disk(hold.machine, retained_on_exit as i64);
        self.adjust_in_transition(job, 1);
        let budget = self.budget_of(job).filter(|_| phase == TaskPhase::Running);
        let spent = budget.unwrap_or(0).min(1);
        if spent > 0 {
            self.adjust_budget(job, |budget| budget - spent);
        }
        if let Some(undo_log) = &mut self.undo_log {
            undo_log.push(Undo::Restore { task, hold, phase, retained_on_exit, spent });
        }
    }

    /// Makes an evicted task pending again, charged `reservation` once placed.
    pub(crate) fn requeue(&mut self, task: TaskId, reservation: Resources) {
        let TaskRow { job, index, attempt, .. } = self.tasks[task.slot()];
        let info = PendingTaskInfo {
            job,
            index,
            attempt,
            not_before: Time::ZERO,
            reservation: Some(reservation),
            avoid: &[],
        };
        self.put_pending(task, &info);
        self.adjust_in_transition(job, -1);
    }

    pub(crate) fn retain_disk(&mut self, machine: MachineId, bytes: i64) {
        let m = machine.slot();
        self.machines.retained_disk[m] =
            self.machines.retained_disk[m].saturating_add_signed(bytes);
        self.machines.room[m].free[RESERVED_DISK] -= bytes;
    }

    /// An evicted task is stopping: a gang cannot be complete until it is back in the queue.
    fn adjust_in_transition(&mut self, job: JobId, by: i32) {
        if let Some(Some(row)) = self.jobs.get_mut(job.slot()) {
            row.in_transition = row.in_transition.saturating_add_signed(by);
        }
    }

    fn adjust_budget(&mut self, job: JobId, change: impl Fn(u32) -> u32) {
        if let Some(Some(row)) = self.jobs.get_mut(job.slot())
            && let Some(budget) = &mut row.budget
        {
            *budget = change(*budget);
            self.budget_changes += 1;
        }
    }

    /// Records all steps from now on, until [`ClusterSnapshot::commit_transaction`] or
    /// [`ClusterSnapshot::roll_back`].
    pub fn begin_transaction(&mut self) {
        self.undo_log = Some(Vec::new());
    }

    /// Makes the recorded steps final.
    pub fn commit_transaction(&mut self) {
        self.undo_log = None;
    }

    /// Undoes the recorded steps, last first.
    pub fn roll_back(&mut self) {
        for undo in self.undo_log.take().unwrap_or_default().into_iter().rev() {
            match undo {
                Undo::Unassign { task, not_before } => {
                    self.vacate(task);
                    self.tasks[task.slot()].attempt -= 1;
                    self.enqueue(task, not_before);
                }
                Undo::Restore { task, hold, phase, retained_on_exit, spent } => {
                    self.restore_evicted(task, hold, phase, retained_on_exit, spent);
                }
                Undo::Reserve { task, hold } => self.reserve(task, hold),
            }
        }
    }

    pub(super) fn restore_evicted(
        &mut self,
        task: TaskId,
        hold: Hold,
        phase: TaskPhase,
        retained_on_exit: u64,
        spent: u32,
    ) {
        let job = self.tasks[task.slot()].job;
        self.retain_disk(hold.machine, -(retained_on_exit as i64));
        self.adjust_in_transition(job, -1);
        if spent > 0 {
            self.adjust_budget(job, |budget| budget + spent);
        }
        self.count_class_member(task);
        self.occupy(task, hold);
        let row = &mut self.tasks[task.slot()];
        (row.phase, row.retained_on_exit) = (phase, retained_on_exit);
    }

    /// Puts one evicted task back, with the tasks that were inside it, if the preemptors that took
    /// its room fit beside it after all; returns how many tasks came back. Only while steps are
    /// recorded.
    pub(crate) fn reprieve(&mut self, victim: TaskId, preemptors: &[TaskId]) -> usize {
        let Some(undo_log) = self.undo_log.take() else { return 0 };
        let leaves = |undo: &Undo| match undo {
            Undo::Restore { task, hold, .. } => {
                (*task == victim || hold.alloc == Some(victim)).then_some(*task)
            }
            _ => None,
        };
        let back: Vec<TaskId> = undo_log.iter().filter_map(leaves).collect();
        let involved = |undo: &Undo| match undo {
            Undo::Restore { task, .. } => back.contains(task),
            // What these tasks held elsewhere, and what other tasks held in an alloc among them.
            Undo::Reserve { task, hold } => {
                let stays =
                    self.placement_of(*task).is_some_and(|placement| placement.machine().is_some());
                back.contains(task) || (stays && hold.alloc == Some(victim))
            }
            Undo::Unassign { .. } => false,
        };
        let (own, others): (Vec<Undo>, Vec<Undo>) = undo_log.into_iter().partition(involved);
        let fits = self.has_task_slots_for(&own)
            && own.iter().all(|undo| match undo {
                Undo::Restore { task, hold, retained_on_exit, .. } => {
                    self.still_fits(*task, hold, *retained_on_exit, preemptors)
                }
                Undo::Reserve { task, hold } => self.still_fits(*task, hold, 0, preemptors),
                Undo::Unassign { .. } => false,
            });
        if !fits {
            self.undo_log = Some(others.into_iter().chain(own).collect());
            return 0;
        }
        self.undo_log = None;
        // Members were evicted before their alloc, so they come back after it; what was held
        // elsewhere was released before.
        for undo in own.into_iter().rev() {
            match undo {
                Undo::Restore { task, hold, phase, retained_on_exit, spent } => {
                    self.restore_evicted(task, hold, phase, retained_on_exit, spent);
                }
                Undo::Reserve { task, hold } => self.reserve(task, hold),
                Undo::Unassign { .. } => {}
            }
        }
        self.undo_log = Some(others);
        back.len()
    }

    /// Whether the task limits of the machines admit these tasks beside those already there.
    pub(super) fn has_task_slots_for(&self, back: &[Undo]) -> bool {
        let mut more: BTreeMap<MachineId, u64> = BTreeMap::new();
        for undo in back {
            if let Undo::Restore { hold, .. } | Undo::Reserve { hold, .. } = undo {
                *more.entry(hold.machine).or_default() += 1;
            }
        }
        more.into_iter().all(|(m, more)| more <= feasible::free_task_slots(self, m.slot()))
    }

    /// Only what the preemptors request counts: an excess that was there before is not their fault.
    pub(super) fn still_fits(
        &self,
        task: TaskId,
        hold: &Hold,
        retained_on_exit: u64,
        preemptors: &[TaskId],
    ) -> bool {
        let m = hold.machine.slot();
        let ports = &self.machines.ports[m].used;
        if hold.ports.iter().any(|p| ports.binary_search_by_key(p, |(port, _)| *port).is_ok()) {
            return false;
        }
        if hold.alloc.is_some() && !self.allocs.contains_key(&hold.alloc.unwrap_or(task)) {
            // Its alloc comes back with it, with its former room.
            return true;
        }
        let request = |t: TaskId| &self.classes.get(self.tasks[t.slot()].class).request;
        let own = request(task);
        let mut charge = charges(own.by_limits, own.limits, hold.reservation);
        charge[RESERVED_DISK] -= retained_on_exit as i64;
        let room = match hold.alloc.and_then(|alloc| self.allocs.get(&alloc)) {
            Some(alloc) => alloc.room,
            None => self.machines.room[m],
        };
        let beside = |t: &&TaskId| {
            let placement = &self.tasks[t.slot()].placement;
            placement.machine() == Some(hold.machine) && placement.alloc() == hold.alloc
        };
        let preemptors: Vec<TaskId> = preemptors.iter().filter(beside).copied().collect();
        let is_requested = |i: usize| {
            preemptors.iter().any(|t| self.classes.get(self.tasks[t.slot()].class).charge[i] > 0)
        };
        let enough =
            (0..SUMS).all(|i| charge[i] <= room.free[i] || charge[i] == 0 || !is_requested(i));
        let devices = hold.devices.iter().all(|grant| {
            let slot = self.machines.devices[m].get(usize::from(grant.device));
            slot.is_none_or(|slot| slot.free() >= grant.milli)
        });
        let named = own.named.iter().all(|(name, amount)| {
            let room = self.machines.named_usage(m, *name);
            room.capacity == UNBOUNDED || room.used.saturating_add(*amount) <= room.capacity
        });
        enough && devices && named
    }
}
