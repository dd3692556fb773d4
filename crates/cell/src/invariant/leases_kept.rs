//! A task is not placed before its time: not during its back-off, and, for an `at_most_one` job,
//! not before its lease has surely run out where it was lost. A wait for a lease is never
//! shortened.

use super::{Check, Step, violation};
use crate::command::Command;
use crate::event::{EventKind, TaskChange};
use crate::id::TaskId;
use crate::task::{Task, TaskState};
use std::collections::BTreeSet;

const NAME: &str = "leases_kept";

pub(super) fn check(step: &Step<'_>) -> Check {
    if step.only_command().is_none() {
        return Ok(());
    }
    let now = step.after.now;
    let gone = lost(step);
    for (id, old) in step.before.tasks.iter() {
        let Some(new) = step.after.tasks.get(id).filter(|new| new.job == old.job) else { continue };
        let fail = |detail: String| Err(violation(NAME, step.after.task_name(id), detail));
        let waited = old.state == TaskState::Pending;
        if waited && new.state == TaskState::Assigned && old.not_before > now {
            return fail(format!("placed at {}, not before {}", now.0, old.not_before.0));
        }
        let lease = step.before.spec_of(old).and_then(|spec| spec.at_most_one);
        let Some(lease) = lease else { continue };
        let waits = waited && new.state == TaskState::Pending && old.not_before > now;
        if waits && new.not_before < old.not_before {
            let (from, to) = (old.not_before.0, new.not_before.0);
            return fail(format!("its wait for a lease was cut from {from} to {to}"));
        }
        if gone.contains(&id) && new.machine().is_none() && new.not_before < now.plus(lease) {
            let detail = format!("lost at {}, may start at {}", now.0, new.not_before.0);
            return fail(detail);
        }
    }
    Ok(())
}

/// Tasks on a machine that was lost, and tasks that an agent lost.
fn lost(step: &Step<'_>) -> BTreeSet<TaskId> {
    let machine = match step.only_command() {
        Some((Command::MachineDown { machine } | Command::MachineUp { machine, .. }, Ok(_))) => {
            Some(*machine)
        }
        Some((
            Command::RemoveMachine { name, .. } | Command::RemoveEmptyMachine { name, .. },
            Ok(_),
        )) => step.before.machine_named(name),
        _ => None,
    };
    let there = |task: &Task| machine.is_some() && task.machine() == machine;
    let rows = step.before.tasks.iter().filter(|(_, task)| there(task)).map(|(id, _)| id);
    let lost_by_agent = step.events.iter().filter_map(|event| match &event.kind {
        EventKind::Task { task, change: TaskChange::Lost { .. }, .. } => Some(*task),
        _ => None,
    });
    rows.chain(lost_by_agent).collect()
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, job};
    use crate::command::{Command, Entry, Request};
    use crate::id::MachineId;
    use crate::invariant::check_step;
    use crate::time::{Span, Time};

    /// A lost task of an `at_most_one` job, whose row says that it may start after `wait`.
    fn check(wait: Span, want: bool) {
        let mut cell = Cell::with_machines(1);
        let mut spec = job("jfoo", 1, 100);
        spec.at_most_one = Some(Span::seconds(30));
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        let before = cell.state.clone();
        let command = Command::MachineDown { machine: MachineId(0) };
        let requests = vec![Request::from_default_sender(command, &before)];
        let entry = Entry { now: Time(cell.now), requests };
        let mut events = Vec::new();
        let verdicts = cell.state.apply(&entry, &mut events);
        let task = cell.task_id("jfoo", 0);
        let not_before = entry.now.plus(wait);
        cell.state.edit_task(task, |t| t.not_before = not_before);
        let found = check_step(&before, &entry, &verdicts, &cell.state, &events);
        assert_eq!(found.is_ok(), want, "{wait:?}: {found:?}");
    }

    #[test]
    fn a_lost_task_that_could_start_within_its_lease_is_found() {
        check(Span::seconds(30), true);
        check(Span::seconds(29), false);
        check(Span(0), false);
    }
}
