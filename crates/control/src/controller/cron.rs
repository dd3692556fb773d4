//! The cron controller: fires periodic jobs (B42). Which slots are due, and which of the missed
//! ones still get a run, is decided by `cell::cron::due_slots`; that none fires twice is a rule of
//! `apply`, which remembers the last slot it dealt with.

use super::sweep::Cursor;
use super::{CommandDraft, Controller, ControllerView};
use cellwright_cell::command::{Command, ControllerName};
use cellwright_cell::cron::{self, due_slots};

/// Finding what is due takes some arithmetic of calendars.
const ROWS_PER_CRON: usize = 4;

#[derive(Debug, Default)]
pub struct Cron {
    cursor: Cursor,
}

impl Controller for Cron {
    fn name(&self) -> ControllerName {
        ControllerName::Cron
    }

    fn step(&mut self, view: &ControllerView<'_>, draft: &mut CommandDraft<'_>) {
        let max = (view.settings.rows_per_step / ROWS_PER_CRON).max(1).min(draft.room().max(1));
        let (found, _) = self.cursor.advance(view.state.crons(), max);
        for (id, row) in found {
            let slots = due_slots(row, view.now);
            let Some(cron) = view.state.cron_key(id).filter(|_| !slots.is_empty()) else {
                continue;
            };
            // Oldest first: dealing with a later slot deals with those before it.
            for slot in slots {
                let fire = Command::from(cron::Command::Fire { cron: cron.clone(), slot });
                if !draft.accepts(&fire) {
                    break;
                }
                draft.push(fire);
            }
        }
    }
}
