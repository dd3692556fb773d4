//! The drain controller: empties draining machines (B41). Tasks are evicted as their jobs'
//! disruption budgets allow, and no more often than their jobs allow, a bounded number at a time
//! over the whole cell, machine by machine in turn, so that every drain makes progress and none
//! waits for the largest.
//!
//! An alloc is evicted with all that is in it. Where that would break a budget of the jobs inside,
//! its tasks are evicted one by one first: otherwise an alloc with two tasks of a job that allows
//! one to be down would hold its machine for ever. They cannot come back into it, so only those
//! leave early for which another alloc of the set has room now. Evicting the others too was
//! rejected: they would be down for as long as the drain lasts, and the drain no nearer to its end.
//!
//! Tasks of daemons are left alone: their machine is theirs, they have nowhere to go, and the
//! others may need them until the end. They leave last, see [`super::daemon`].
//!
//! A drain may have a deadline. Once it has passed, everything that is still there ends at once.

use super::sweep::Sweep;
use super::{CommandDraft, Controller, ControllerView};
use cellwright_cell::command::{Command, ControllerName, EvictCause};
use cellwright_cell::fit::{Candidate, infeasible_reason};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::job::Job;
use cellwright_cell::notice::killed_at;
use cellwright_cell::task::Task;
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub struct Drain {
    machines: Sweep<MachineId>,
}

impl Controller for Drain {
    fn name(&self) -> ControllerName {
        ControllerName::Drain
    }

    fn step(&mut self, view: &ControllerView<'_>, draft: &mut CommandDraft<'_>) {
        let (state, settings) = (view.state, view.settings);
        self.machines.scan(state.machines(), settings.rows_per_step, |row| row.draining);
        let watched = self.machines.watched().iter();
        let leaving: usize = watched
            .filter_map(|id| state.machine_load(*id))
            .map(|load| load.stopping as usize)
            .sum();
        let mut drain_step = DrainStep {
            view,
            chosen: BTreeSet::new(),
            evictions_left: settings.max_draining.saturating_sub(leaving),
            rows_left: settings.rows_per_step,
        };
        let mut machines = self.machines.in_turn();
        let is_overdue = |machine: &MachineId| {
            let by = state.machines().get(*machine).and_then(|row| row.drain_by);
            by.is_some_and(|by| by <= view.now)
        };
        for machine in machines.iter().copied().filter(is_overdue) {
            while !draft.is_full() && drain_step.evict_overdue(machine, draft) {}
        }
        machines.retain(|machine| !is_overdue(machine));
        // One task of each machine, then another of each that still had one to evict.
        while !machines.is_empty() && drain_step.has_capacity(draft) {
            machines.retain(|machine| {
                if !drain_step.has_capacity(draft) {
                    return true;
                }
                self.machines.last_served(*machine);
                drain_step.evict_one(*machine, draft)
            });
        }
    }
}

struct DrainStep<'a> {
    view: &'a ControllerView<'a>,
    chosen: BTreeSet<TaskId>,
    /// Tasks that may still be evicted.
    evictions_left: usize,
    /// Tasks that may still be checked.
    rows_left: usize,
}

impl DrainStep<'_> {
    fn has_capacity(&self, draft: &CommandDraft<'_>) -> bool {
        self.evictions_left > 0 && self.rows_left > 0 && !draft.is_full()
    }

    /// Evicts one more task of the machine; false when none can be.
    fn evict_one(&mut self, machine: MachineId, draft: &mut CommandDraft<'_>) -> bool {
        let state = self.view.state;
        let Some(load) = state.machine_load(machine) else { return false };
        for task in &load.tasks {
            self.rows_left = self.rows_left.saturating_sub(1);
            let Some(row) = state.tasks().get(*task) else { continue };
            // Tasks inside an alloc are evicted with it. A daemon serves the others until they have
            // left, and then its own controller takes it.
            let is_daemon = || state.jobs().get(row.job).is_some_and(Job::is_daemon);
            if row.alloc().is_some() || is_daemon() {
                continue;
            }
            if self.evict(*task, row, draft) || self.evict_alloc_member(*task, draft) {
                return true;
            }
        }
        false
    }

    fn evict_alloc_member(&mut self, alloc: TaskId, draft: &mut CommandDraft<'_>) -> bool {
        let state = self.view.state;
        if self.chosen.contains(&alloc) {
            return false;
        }
        let inner = state.alloc_load(alloc).map_or(&[][..], |load| &load.tasks);
        inner.iter().any(|task| {
            let Some(row) = state.tasks().get(*task) else { return false };
            self.has_room_elsewhere(*task) && self.evict(*task, row, draft)
        })
    }

    /// Whether another alloc of its set could take the task as things are.
    fn has_room_elsewhere(&mut self, task: TaskId) -> bool {
        let state = self.view.state;
        let Some(candidate) = Candidate::of(state, task) else { return false };
        let set = candidate.spec.alloc_set.as_ref().and_then(|set| state.job_named(set));
        let Some(set) = set.and_then(|set| state.jobs().get(set)) else { return false };
        set.tasks.iter().take(self.rows_left).any(|alloc| {
            self.rows_left = self.rows_left.saturating_sub(1);
            let machine = state.tasks().get(*alloc).and_then(|row| row.machine());
            machine
                .is_some_and(|at| infeasible_reason(state, &candidate, at, Some(*alloc)).is_none())
        })
    }

    /// Evicts one task of a machine whose drain has passed its deadline, or ends the notice of one
    /// that is told to stop: budgets and how many leave at once no longer matter.
    fn evict_overdue(&mut self, machine: MachineId, draft: &mut CommandDraft<'_>) -> bool {
        let ControllerView { state, now, .. } = *self.view;
        let Some(load) = state.machine_load(machine) else { return false };
        for task in load.tasks.iter().filter(|task| !self.chosen.contains(task)) {
            let Some(row) = state.tasks().get(*task) else { continue };
            let lives_on = killed_at(state, *task).is_none_or(|at| at > now);
            let evict =
                Command::Evict { task: *task, attempt: row.attempt, cause: EvictCause::Drain };
            if row.alloc().is_none() && lives_on && draft.accepts(&evict) {
                self.chosen.insert(*task);
                draft.budgets.spend(state, *task);
                draft.push(evict);
                return true;
            }
        }
        false
    }

    fn evict(&mut self, task: TaskId, row: &Task, draft: &mut CommandDraft<'_>) -> bool {
        if !row.state.holds_resources() || self.chosen.contains(&task) {
            return false;
        }
        let evict = Command::Evict { task, attempt: row.attempt, cause: EvictCause::Drain };
        let ControllerView { state, now, .. } = *self.view;
        let is_evicted = draft.accepts(&evict) && draft.budgets.take_voluntarily(state, task, now);
        if is_evicted {
            self.chosen.insert(task);
            self.evictions_left -= 1;
            draft.push(evict);
        }
        is_evicted
    }
}
