//! No slot of a periodic job is handled twice, and none before its time: the last handled slot in a
//! row only grows, and a run is of a slot beyond it whose time has come.

use super::{CronChange, Event};
use crate::components;
use crate::event::EventKind;
use crate::invariant::{Check, Step, violation};

const NAME: &str = "slots_fire_once";

pub(super) fn check(step: &Step<'_>) -> Check {
    for (id, old) in step.before.crons().iter() {
        let Some(new) = step.after.crons().get(id) else { continue };
        if new.last_slot < old.last_slot {
            let detail = format!("from slot {} back to {}", old.last_slot.0, new.last_slot.0);
            return Err(violation(NAME, format!("periodic job row {}", id.0), detail));
        }
    }
    for event in step.events {
        let EventKind::Component(components::Event::Cron(event)) = &event.kind else { continue };
        let Event { cron, change } = event;
        let (CronChange::Fired { slot, .. }
        | CronChange::Skipped { slot }
        | CronChange::Rejected { slot }) = change
        else {
            continue;
        };
        let done = step.before.crons().get(*cron).map(|row| row.last_slot);
        if done.is_some_and(|done| *slot <= done) || *slot > step.after.now {
            let detail = format!("slot {} at {}, after {done:?}", slot.0, step.after.now.0);
            return Err(violation(NAME, format!("periodic job row {}", cron.0), detail));
        }
    }
    Ok(())
}
