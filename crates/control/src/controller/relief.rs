//! Machines that stay short although their agents hold back whoever they may (B39): one task leaves
//! each time such a machine asks. Who that is, and that it asked, `cell::relief` says, here as in
//! `apply`; the pause between two departures is the agent's, who looks whether the last one helped.

use super::sweep::Sweep;
use super::{Controller, Draft, Look};
use cellwright_cell::command::{Command, ControllerName, EvictCause};
use cellwright_cell::id::MachineId;
use cellwright_cell::machine::{Machine, Shortage};
use cellwright_cell::relief;

/// Finding the one weighs every task on a machine.
const ROWS_PER_MACHINE: usize = 64;

#[derive(Debug, Default)]
pub struct Relief {
    machines: Sweep<MachineId>,
}

impl Controller for Relief {
    fn name(&self) -> ControllerName {
        ControllerName::Relief
    }

    fn step(&mut self, look: &Look<'_>, draft: &mut Draft<'_>) {
        let state = look.state;
        let asks = |row: &Machine| row.shortages.iter().any(Shortage::is_open);
        self.machines.look(state.machines(), look.settings.rows, asks);
        let most = (look.settings.rows / ROWS_PER_MACHINE).max(1);
        for machine in self.machines.in_turn().into_iter().take(most) {
            if draft.is_full() {
                return;
            }
            self.machines.served(machine);
            let Some((task, dimension)) = relief::next(state, machine) else { continue };
            let Some(row) = state.tasks().get(task) else { continue };
            let cause = EvictCause::Relief(dimension);
            let evict = Command::Evict { task, attempt: row.attempt, cause };
            if draft.takes(&evict) {
                draft.budgets.spend(state, task);
                draft.push(evict);
            }
        }
    }
}
