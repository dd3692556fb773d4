//! What counts as the limits of a running attempt falls by the word of its agent alone: room is
//! never sold again that its machine may still allow it. Growth needs no rule of its own, because
//! it counts from the step that allows it.
//!
//! Limits in force are known of attempts that hold resources. The system chooses none of this; what
//! is said by an agent that is wrong is found by the witness of simulated agents.

use super::{Check, Step, violation};
use crate::command::Command;
use crate::resource::Resources;
use crate::state::State;
use crate::task::Task;

const NAME: &str = "limits_in_force";

pub(super) fn check(state: &State) -> Check {
    for (id, task) in state.tasks.iter() {
        if task.limits_in_force.is_some() && !task.state.holds_resources() {
            let detail = format!("is {:?} with limits in force", task.state);
            return Err(violation(NAME, state.task_name(id), detail));
        }
    }
    Ok(())
}

/// The limits of its version, or the limits in force where those are more.
fn counted(state: &State, task: &Task) -> Resources {
    let limits = state.spec_of(task).map(|spec| spec.limits_of(task.index)).unwrap_or_default();
    let in_force = task.limits_in_force.as_deref().copied().unwrap_or_default();
    Resources::max(limits, in_force)
}

pub(super) fn check_step(step: &Step<'_>) -> Check {
    let reported =
        |request: &crate::command::Request| matches!(request.command, Command::TaskReports { .. });
    if step.entry.requests.iter().any(reported) {
        return Ok(());
    }
    for (id, after) in step.after.tasks.iter() {
        let same = |before: &&Task| {
            (before.job, before.attempt) == (after.job, after.attempt)
                && before.state.holds_resources()
                && after.state.holds_resources()
        };
        let Some(before) = step.before.tasks.get(id).filter(same) else { continue };
        let (was, is) = (counted(step.before, before), counted(step.after, after));
        if let Some(lost) = was.first_excess(is) {
            let detail = format!("counts for less without a report: {lost}");
            return Err(violation(NAME, step.after.task_name(id), detail));
        }
    }
    Ok(())
}
