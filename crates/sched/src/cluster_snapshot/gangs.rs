//! Gangs in the snapshot: which tasks of each hold a place. Who preempts one of them preempts all,
//! whether the plan names them or not, so each choice of victims counts them all, and a pass takes
//! all of their room.

use super::ClusterSnapshot;
use super::rows::Undo;
use cellwright_cell::id::{JobId, TaskId};

impl ClusterSnapshot {
    /// The job of the task, if it is a gang; also for a task that was evicted.
    pub(crate) fn gang_of(&self, task: TaskId) -> Option<JobId> {
        let job = self.tasks.get(task.slot())?.job;
        self.job(job).is_some_and(|row| row.spec.gang).then_some(job)
    }

    pub(crate) fn are_of_one_gang(&self, task: TaskId, other: TaskId) -> bool {
        self.gang_of(task).is_some_and(|gang| self.gang_of(other) == Some(gang))
    }

    /// How many tasks of the task's gang hold places; 0 for a task of no gang.
    pub(crate) fn placed_of_gang(&self, task: TaskId) -> usize {
        let gang = self.gang_of(task).and_then(|gang| self.gangs.get(&gang));
        gang.map_or(0, |tasks| tasks.len())
    }

    /// The other tasks of the task's gang that hold places, in order.
    pub(crate) fn rest_of_gang(&self, task: TaskId) -> impl Iterator<Item = TaskId> + '_ {
        let gang = self.gang_of(task).and_then(|gang| self.gangs.get(&gang));
        gang.into_iter().flatten().copied().filter(move |other| *other != task)
    }

    /// The task and all that leave with it: those inside an alloc, and the rest of a gang.
    pub(crate) fn leaving_with(&self, task: TaskId) -> impl Iterator<Item = TaskId> + '_ {
        let outer = std::iter::once(task).chain(self.rest_of_gang(task));
        outer.flat_map(move |task| std::iter::once(task).chain(self.members(task).iter().copied()))
    }

    /// These tasks, without those that leave with one before them because they are of its gang.
    pub(crate) fn one_of_each_gang(&self, tasks: &[TaskId]) -> Vec<TaskId> {
        let mut gangs: Vec<JobId> = Vec::new();
        let mut first = |task: &TaskId| match self.gang_of(*task) {
            Some(gang) if gangs.contains(&gang) => false,
            Some(gang) => {
                gangs.push(gang);
                true
            }
            None => true,
        };
        tasks.iter().copied().filter(|task| first(task)).collect()
    }

    /// A task got a place.
    pub(super) fn join_gang(&mut self, task: TaskId) {
        if let Some(gang) = self.gang_of(task) {
            self.gangs.entry(gang).or_default().insert(task);
        }
    }

    /// A task left its place, or a task inside an alloc left it: who preempts the others of the
    /// gang preempts fewer.
    pub(super) fn leave_gang(&mut self, task: TaskId, alloc: Option<TaskId>) {
        if alloc.is_some_and(|alloc| self.gang_of(alloc).is_some()) {
            self.gang_departures += 1;
        }
        let Some(gang) = self.gang_of(task) else { return };
        self.gang_departures += 1;
        if let Some(tasks) = self.gangs.get_mut(&gang) {
            tasks.remove(&task);
            if tasks.is_empty() {
                self.gangs.remove(&gang);
            }
        }
    }

    /// As [`ClusterSnapshot::reprieve`], for all of a gang at once: its tasks are put back one by
    /// one, and leave again if one of them does not fit beside the preemptors.
    pub(crate) fn reprieve_gang(&mut self, gang: JobId, preemptors: &[TaskId]) -> usize {
        let Some(undo_log) = self.undo_log.take() else { return 0 };
        let is_member = |task: TaskId| self.tasks[task.slot()].job == gang;
        let is_of_gang = |undo: &Undo| match undo {
            Undo::Restore { task, hold, .. } => {
                is_member(*task) || hold.alloc.is_some_and(is_member)
            }
            // What its tasks held elsewhere, and what stays and held room in one of its allocs.
            Undo::Reserve { task, hold } => {
                let inside = self.tasks[task.slot()].placement.alloc();
                is_member(*task)
                    || inside.is_some_and(is_member)
                    || hold.alloc.is_some_and(is_member)
            }
            Undo::Unassign { .. } => false,
        };
        let (own, others): (Vec<Undo>, Vec<Undo>) = undo_log.into_iter().partition(is_of_gang);
        let mut back = Vec::new();
        // Members were evicted before their alloc, so they come back after it.
        let fits = self.has_task_slots_for(&own)
            && own.iter().rev().all(|undo| self.put_back(undo, preemptors, &mut back));
        if fits {
            self.undo_log = Some(others);
            return back.len();
        }
        back.into_iter().rev().for_each(|task| self.evict(task));
        self.undo_log = Some(others.into_iter().chain(own).collect());
        0
    }

    /// Whether the step could be undone; `back` lists the tasks that came back.
    fn put_back(&mut self, undo: &Undo, preemptors: &[TaskId], back: &mut Vec<TaskId>) -> bool {
        let (task, hold, retained) = match undo {
            Undo::Restore { task, hold, retained_on_exit, .. } => (*task, hold, *retained_on_exit),
            Undo::Reserve { task, hold } => (*task, hold, 0),
            Undo::Unassign { .. } => return false,
        };
        if !self.still_fits(task, hold, retained, preemptors) {
            return false;
        }
        match undo {
            Undo::Restore { phase, spent, .. } => {
                self.restore_evicted(task, hold.clone(), *phase, retained, *spent);
                back.push(task);
            }
            _ => self.reserve(task, hold.clone()),
        }
        true
    }
}
