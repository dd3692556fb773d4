//! Emptying machines that drain (B41): tasks leave as their jobs' disruption budgets allow, and no
//! more often than their jobs say, a bounded number at a time over the whole cell, machine by
//! machine in turn, so that every drain makes progress and none waits for the largest.
//!
//! An alloc leaves with all that is in it. Where that would break a budget of the jobs inside, its
//! tasks leave one by one first: otherwise an alloc with two tasks of a job that allows one to be
//! down would hold its machine for ever. They cannot come back into it, so only those leave early
//! for which another alloc of the set has room now. Sending the others away was rejected: they
//! would be down for as long as the drain lasts, and the drain no nearer to its end.

use super::sweep::Sweep;
use super::{Controller, Draft, Look};
use cellwright_cell::command::{Command, ControllerName, EvictCause};
use cellwright_cell::fit::{Candidate, misfit};
use cellwright_cell::id::{MachineId, TaskId};
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

    fn step(&mut self, look: &Look<'_>, draft: &mut Draft<'_>) {
        let (state, settings) = (look.state, look.settings);
        self.machines.look(state.machines(), settings.rows, |row| row.draining);
        let watched = self.machines.watched().iter();
        let leaving: usize = watched
            .filter_map(|id| state.machine_load(*id))
            .map(|load| load.leaving as usize)
            .sum();
        let mut round = Round {
            look,
            chosen: BTreeSet::new(),
            room: settings.draining_at_once.saturating_sub(leaving),
            looks: settings.rows,
        };
        let mut machines = self.machines.in_turn();
        // One task of each machine, then another of each that still had one to give.
        while !machines.is_empty() && round.goes_on(draft) {
            machines.retain(|machine| {
                if !round.goes_on(draft) {
                    return true;
                }
                self.machines.served(*machine);
                round.evict_one(*machine, draft)
            });
        }
    }
}

struct Round<'a> {
    look: &'a Look<'a>,
    chosen: BTreeSet<TaskId>,
    /// Tasks that may yet be told to leave.
    room: usize,
    /// Tasks that may yet be looked at.
    looks: usize,
}

impl Round<'_> {
    fn goes_on(&self, draft: &Draft<'_>) -> bool {
        self.room > 0 && self.looks > 0 && !draft.is_full()
    }

    /// Tells one more task of the machine to leave; false when none can.
    fn evict_one(&mut self, machine: MachineId, draft: &mut Draft<'_>) -> bool {
        let state = self.look.state;
        let Some(load) = state.machine_load(machine) else { return false };
        for task in &load.tasks {
            self.looks = self.looks.saturating_sub(1);
            let Some(row) = state.tasks().get(*task) else { continue };
            // What is inside an alloc goes with it.
            if row.alloc().is_some() {
                continue;
            }
            if self.evict(*task, row, draft) || self.evict_inner(*task, draft) {
                return true;
            }
        }
        false
    }

    fn evict_inner(&mut self, alloc: TaskId, draft: &mut Draft<'_>) -> bool {
        let state = self.look.state;
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
        let state = self.look.state;
        let Some(candidate) = Candidate::of(state, task) else { return false };
        let set = candidate.spec.alloc_set.as_ref().and_then(|set| state.job_named(set));
        let Some(set) = set.and_then(|set| state.jobs().get(set)) else { return false };
        set.tasks.iter().take(self.looks).any(|alloc| {
            self.looks = self.looks.saturating_sub(1);
            let machine = state.tasks().get(*alloc).and_then(|row| row.machine());
            machine.is_some_and(|at| misfit(state, &candidate, at, Some(*alloc)).is_none())
        })
    }

    fn evict(&mut self, task: TaskId, row: &Task, draft: &mut Draft<'_>) -> bool {
        if !row.state.holds_resources() || self.chosen.contains(&task) {
            return false;
        }
        let evict = Command::Evict { task, attempt: row.attempt, cause: EvictCause::Drain };
        let Look { state, now, .. } = *self.look;
        let goes = draft.takes(&evict) && draft.budgets.take_by_choice(state, task, now);
        if goes {
            self.chosen.insert(task);
            self.room -= 1;
            draft.push(evict);
        }
        goes
    }
}
