//! Ends with a retry number of their own are listed in order, each kind once and none with zero,
//! and the failures among them are among the failures in a row: `max_failures` bounds the rest.

use super::{Check, violation};
use crate::retry;
use crate::state::State;

const NAME: &str = "counted_apart";

pub(super) fn check(state: &State) -> Check {
    for (id, task) in state.tasks.iter().filter(|(_, task)| !task.apart.is_empty()) {
        let fail = |detail: String| Err(violation(NAME, state.task_name(id), detail));
        if let Some(pair) = task.apart.windows(2).find(|pair| pair[0].kind >= pair[1].kind) {
            return fail(format!("lists {:?} before {:?}", pair[0].kind, pair[1].kind));
        }
        if let Some(none) = task.apart.iter().find(|entry| entry.count == 0) {
            return fail(format!("lists {:?}, which never happened", none.kind));
        }
        let (apart, all) = (retry::counted_failures(&task.apart), task.failures_in_row);
        if apart > all {
            return fail(format!("{apart} failures are counted apart, of {all} in a row"));
        }
    }
    Ok(())
}
