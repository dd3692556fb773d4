//! The pressure eviction controller: machines that stay short although their agents throttle all
//! the tasks they may (B39). One task is evicted each time such a machine requests it. The victim,
//! and whether there is a request, is determined by `cell::pressure_eviction`, here as in `apply`;
//! the pause between two evictions is up to the agent, which checks whether the last one helped.

use super::sweep::Sweep;
use super::{CommandDraft, Controller, ControllerView};
use cellwright_cell::command::{Command, ControllerName, EvictCause};
use cellwright_cell::id::MachineId;
use cellwright_cell::machine::{Machine, ResourcePressure};
use cellwright_cell::pressure_eviction;

/// Finding the victim compares all tasks on a machine.
const ROWS_PER_MACHINE: usize = 64;

#[derive(Debug, Default)]
pub struct PressureEviction {
    machines: Sweep<MachineId>,
}

impl Controller for PressureEviction {
    fn name(&self) -> ControllerName {
        ControllerName::PressureEviction
    }

    fn step(&mut self, view: &ControllerView<'_>, draft: &mut CommandDraft<'_>) {
        let state = view.state;
        let has_request =
            |row: &Machine| row.resource_pressure.iter().any(ResourcePressure::is_open);
        self.machines.scan(state.machines(), view.settings.rows_per_step, has_request);
        let max = (view.settings.rows_per_step / ROWS_PER_MACHINE).max(1);
        for machine in self.machines.in_turn().into_iter().take(max) {
            if draft.is_full() {
                return;
            }
            self.machines.last_served(machine);
            let Some((task, dimension)) = pressure_eviction::next_victim(state, machine) else {
                continue;
            };
            let Some(row) = state.tasks().get(task) else { continue };
            let cause = EvictCause::ResourcePressure(dimension);
            let evict = Command::Evict { task, attempt: row.attempt, cause };
            if draft.accepts(&evict) {
                draft.budgets.spend(state, task);
                draft.push(evict);
            }
        }
    }
}
