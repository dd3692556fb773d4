//! Machines that hold more than they have (B39, B40): whoever the rules name must leave, at once
//! and whatever the budgets say. Who that is, `cell::obligation` decides, here as in `apply`.

use super::sweep::Sweep;
use super::{Controller, Draft, Look};
use cellwright_cell::command::{Command, ControllerName, EvictCause};
use cellwright_cell::id::MachineId;
use cellwright_cell::obligation;

/// Finding victims weighs every holder on a machine against the others.
const ROWS_PER_MACHINE: usize = 64;

#[derive(Debug, Default)]
pub struct Overcommit {
    machines: Sweep<MachineId>,
}

impl Controller for Overcommit {
    fn name(&self) -> ControllerName {
        ControllerName::Overcommit
    }

    fn step(&mut self, look: &Look<'_>, draft: &mut Draft<'_>) {
        let state = look.state;
        self.machines.look(state.machines(), look.settings.rows, |row| row.over_committed);
        let most = (look.settings.rows / ROWS_PER_MACHINE).max(1);
        for machine in self.machines.in_turn().into_iter().take(most) {
            if draft.is_full() {
                return;
            }
            self.machines.served(machine);
            for task in obligation::victims(state, machine) {
                let Some(row) = state.tasks().get(task) else { continue };
                let cause = EvictCause::OverCommit;
                let evict = Command::Evict { task, attempt: row.attempt, cause };
                if draft.takes(&evict) {
                    draft.budgets.spend(state, task);
                    draft.push(evict);
                }
            }
        }
    }
}
