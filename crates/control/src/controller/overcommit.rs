//! The overcommit controller: machines that hold more than their capacity (B39, B40). The victims
//! are evicted at once, whatever the budgets say; they are chosen by `cell::overcommit_eviction`,
//! here as in `apply`.

use super::sweep::Sweep;
use super::{CommandDraft, Controller, ControllerView};
use cellwright_cell::command::{Command, ControllerName, EvictCause};
use cellwright_cell::id::MachineId;
use cellwright_cell::overcommit_eviction;

/// Finding victims compares every holder on a machine with the others.
const ROWS_PER_MACHINE: usize = 64;

#[derive(Debug, Default)]
pub struct Overcommit {
    machines: Sweep<MachineId>,
}

impl Controller for Overcommit {
    fn name(&self) -> ControllerName {
        ControllerName::Overcommit
    }

    fn step(&mut self, view: &ControllerView<'_>, draft: &mut CommandDraft<'_>) {
        let state = view.state;
        self.machines.scan(state.machines(), view.settings.rows_per_step, |row| row.over_committed);
        let max = (view.settings.rows_per_step / ROWS_PER_MACHINE).max(1);
        for machine in self.machines.in_turn().into_iter().take(max) {
            if draft.is_full() {
                return;
            }
            self.machines.last_served(machine);
            for task in overcommit_eviction::victims(state, machine) {
                let Some(row) = state.tasks().get(task) else { continue };
                let cause = EvictCause::OverCommit;
                let evict = Command::Evict { task, attempt: row.attempt, cause };
                if draft.accepts(&evict) {
                    draft.budgets.spend(state, task);
                    draft.push(evict);
                }
            }
        }
    }
}
