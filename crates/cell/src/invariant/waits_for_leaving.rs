//! A task that gets room waits for the tasks that are leaving it: a task that is placed, or grows
//! where it is, has in its grant every task that was stopping on that machine or in that alloc, or
//! that its own group stopped. An alloc that grows keeps them for tasks that are placed in it
//! later.

use super::{Check, Step, violation};
use crate::command::Command;
use crate::id::TaskId;
use crate::plan::Victim;
use crate::state::State;
use crate::task::{Task, TaskState};

const NAME: &str = "waits_for_leaving";

pub(super) fn check(step: &Step<'_>) -> Check {
    let places = |command: &Command| {
        matches!(
            command,
            Command::CommitPlan(_) | Command::StepUpdate { .. } | Command::StepRestart { .. }
        )
    };
    if !step.only_command().is_some_and(|(command, _)| places(command)) {
        return Ok(());
    }
    for (id, new) in step.after.tasks.iter() {
        let Some(old) = step.before.tasks.get(id).filter(|old| old.job == new.job) else {
            continue;
        };
        let placed = old.state == TaskState::Pending && new.state == TaskState::Assigned;
        if placed || grew(step, old, new) {
            check_task(step, id, new)?;
        }
    }
    Ok(())
}

fn grew(step: &Step<'_>, old: &Task, new: &Task) -> bool {
    let limits = |state: &State, task: &Task| {
        state.spec_of(task).map(|spec| spec.limits_of(task.index)).unwrap_or_default()
    };
    let stays = old.state.holds_resources() && new.state.holds_resources();
    stays && !limits(step.after, new).within(limits(step.before, old))
}

fn check_task(step: &Step<'_>, id: TaskId, task: &Task) -> Check {
    let waits_for = task.grant().map_or(&[][..], |grant| &grant.waits_for);
    let outer = task.alloc().and_then(|alloc| step.after.tasks.get(alloc)?.grant());
    // In a plan with several groups it cannot be known afterwards whose victim it was.
    let own = matches!(
        step.only_command(),
        Some((Command::CommitPlan(plan), _)) if plan.groups.len() == 1
    );
    for (other, row) in step.after.tasks.iter() {
        let left = step.before.tasks.get(other).is_some_and(|row| row.state.holds_resources());
        if left && !own {
            continue;
        }
        let leaves = row.machine() == task.machine() && !row.state.holds_resources();
        let victim = Victim { task: other, attempt: row.attempt };
        let awaited = outer.as_ref().is_some_and(|grant| grant.waits_for.contains(&victim));
        if leaves && (row.alloc() == task.alloc() || awaited) && !waits_for.contains(&victim) {
            let detail = format!("does not wait for {}", step.after.task_name(other));
            return Err(violation(NAME, step.after.task_name(id), detail));
        }
    }
    Ok(())
}
