//! A preemptor has a higher priority than its victim, and inside a prod band no task preempts
//! another. The victim is stopping and the preemptor is placed.

use super::{Check, Step, violation};
use crate::event::EventKind;
use crate::id::TaskId;
use crate::priority::Priority;
use crate::reason::Reason;
use crate::state::State;
use crate::task::{StopCause, TaskState};

const NAME: &str = "prod_never_preempts_prod";

pub(super) fn check(step: &Step<'_>) -> Check {
    for event in step.events {
        let (EventKind::Task { task: victim, .. }, Reason::Preempted { by }) =
            (&event.kind, &event.reason)
        else {
            continue;
        };
        let row = step.before.task_name(*victim);
        let (Some(low), Some(high)) = (priority(step.before, *victim), priority(step.after, *by))
        else {
            return Err(violation(NAME, row, format!("preempted by {by:?}; one has no row")));
        };
        let same_prod_band = high.is_prod() && high.band() == low.band();
        if high <= low || same_prod_band {
            let detail = format!("priority {} gave way to priority {}", low.0, high.0);
            return Err(violation(NAME, row, detail));
        }
        if step.only_command().is_some() {
            check_states(step, *victim, *by)?;
        }
    }
    Ok(())
}

fn priority(state: &State, task: TaskId) -> Option<Priority> {
    let task = state.tasks.get(task)?;
    Some(state.spec_of(task)?.priority)
}

fn check_states(step: &Step<'_>, victim: TaskId, by: TaskId) -> Check {
    let state = |task| step.after.tasks.get(task).map(|row| row.state);
    let (out, placed) = (state(victim), state(by));
    let goes = out == Some(TaskState::Stopping(StopCause::Preempted));
    if !goes || placed != Some(TaskState::Assigned) {
        let detail = format!("victim is {out:?}, {} is {placed:?}", step.after.task_name(by));
        return Err(violation(NAME, step.after.task_name(victim), detail));
    }
    Ok(())
}
