//! Draining (B41): a draining machine takes nothing new. Evicting its tasks is the work of a
//! controller, one budgeted [`crate::Command::Evict`] at a time; a command that emptied the machine
//! at once was rejected, because it could not honour disruption budgets. Room that is only reserved
//! there, for tasks that run elsewhere, is released at once: that disrupts no task.

use super::Context;
use crate::command::{Done, Verdict};
use crate::event::MachineChange;
use crate::name::Name;
use crate::reason::{Object, Reason};

impl Context<'_> {
    pub(super) fn set_drain(
        &mut self,
        name: &Name,
        draining: bool,
        expect: Option<u32>,
    ) -> Verdict {
        let (machine, row) = self.machine_by_name(name)?;
        if row.draining == draining {
            return Ok(Done::Unchanged);
        }
        Self::check_expected(|| Object::Machine(name.clone()), row.generation, expect)?;
        self.state.edit_machine(machine, |m| {
            m.draining = draining;
            m.drain_by = None;
            m.generation = m.generation.saturating_add(1);
        });
        let change =
            if draining { MachineChange::DrainStarted } else { MachineChange::DrainStopped };
        self.machine_event(machine, change, Reason::Requested);
        if draining {
            self.release_reserved_on(machine, &Reason::Drained);
        }
        Ok(Done::Applied)
    }
}
