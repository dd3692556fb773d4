//! A refused command, and one that found everything done already, changes no row; the only event is
//! the rejection of a submission or update. A request repeated by id is answered, not done again.

use super::{Check, Step, violation};
use crate::command::{Command, Done};
use crate::event::What;
use crate::state::State;
use crate::table::{Key, Table};
use std::fmt::Debug;

const NAME: &str = "refused_leaves_no_trace";

pub(super) fn check(step: &Step<'_>) -> Check {
    let Some((command, verdict)) = step.only() else { return Ok(()) };
    if step.repeated() {
        if let Some(event) = step.events.first() {
            return Err(violation(NAME, "event", format!("{event:?} of a repeated request")));
        }
        return same_rows(step.before, step.after);
    }
    let may_reject = match verdict {
        Err(_) => matches!(command, Command::SubmitJob { .. } | Command::UpdateJob { .. }),
        Ok(Done::Unchanged) => false,
        Ok(_) => return Ok(()),
    };
    let stray = step
        .events
        .iter()
        .find(|event| !(may_reject && matches!(event.what, What::JobRejected { .. })));
    if let Some(event) = stray {
        return Err(violation(NAME, "event", format!("{event:?} after {verdict:?}")));
    }
    same_rows(step.before, step.after)
}

fn same_rows(before: &State, after: &State) -> Check {
    if before.level != after.level {
        return Err(violation(NAME, "level", format!("{} -> {}", before.level, after.level)));
    }
    same("user", &before.users, &after.users)?;
    same("machine", &before.machines, &after.machines)?;
    same("resource", &before.resources, &after.resources)?;
    same("job", &before.jobs, &after.jobs)?;
    same("task", &before.tasks, &after.tasks)
}

fn same<K: Key, V: Clone + PartialEq + Debug>(
    what: &str,
    before: &Table<K, V>,
    after: &Table<K, V>,
) -> Check {
    if before.slots() != after.slots() {
        let detail = format!("{} slots before, {} after", before.slots(), after.slots());
        return Err(violation(NAME, format!("table of {what} rows"), detail));
    }
    for slot in 0..before.slots() {
        let (old, new) = (before.get(K::from_slot(slot)), after.get(K::from_slot(slot)));
        if old != new {
            let detail = format!("was {old:?}, is {new:?}");
            return Err(violation(NAME, format!("{what} row {slot}"), detail));
        }
    }
    Ok(())
}
