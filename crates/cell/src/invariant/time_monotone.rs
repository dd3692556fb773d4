//! Log time never runs backwards, whatever the proposer's clock does; each entry counts once, gets
//! a verdict for each request, and its events have its time.

use super::{Check, Step, violation};

const NAME: &str = "time_monotone";

pub(super) fn check(step: &Step<'_>) -> Check {
    let (before, after) = (step.before.now, step.after.now);
    let want = before.max(step.entry.now);
    if after != want {
        let detail =
            format!("from {} with an entry of {} to {}", before.0, step.entry.now.0, after.0);
        return Err(violation(NAME, "log time", detail));
    }
    if step.after.applied != step.before.applied + 1 {
        let detail = format!("from {} to {}", step.before.applied, step.after.applied);
        return Err(violation(NAME, "entries applied", detail));
    }
    let (requested, answered) = (step.entry.requests.len(), step.verdicts.len());
    if requested != answered {
        return Err(violation(NAME, "verdicts", format!("{answered} for {requested} requests")));
    }
    if let Some(event) = step.events.iter().find(|event| event.at != after) {
        return Err(violation(NAME, "event", format!("{event:?} in an entry of {}", after.0)));
    }
    let late = step.after.tasks.iter().find(|(_, task)| task.changed_at > after);
    match late {
        Some((id, task)) => {
            let detail = format!("changed at {}, after now = {}", task.changed_at.0, after.0);
            Err(violation(NAME, step.after.task_name(id), detail))
        }
        None => Ok(()),
    }
}
