//! Disk that must outlive a task is charged to its machine from the moment the task releases it,
//! until it is saved, out of time, or gone with the machine. [`super::sums_equal_parts`] checks the
//! charge; this invariant checks that the disk is recorded.

use super::{Check, Step, violation};
use crate::command::Command;
use crate::machine::RetainedDisk;
use crate::resource::MAX_QUANTITY;
use crate::state::State;
use crate::task::{Task, TaskState};

const NAME: &str = "retained_disk_charged";

pub(super) fn check(state: &State) -> Check {
    for (_, machine) in state.machines.iter() {
        let kept = &machine.retained;
        for (at, entry) in kept.iter().enumerate() {
            let key = |other: &RetainedDisk| (other.task, other.attempt);
            let twice = kept[..at].iter().any(|other| key(other) == key(entry));
            if twice || entry.bytes > MAX_QUANTITY || !is_attempt_over(state, entry) {
                let detail = format!("{entry:?} is too large, there twice, or still in use");
                return Err(violation(NAME, &machine.spec.name, detail));
            }
        }
    }
    Ok(())
}

/// The row stays, so that the log saver can name it, and its attempt is over.
fn is_attempt_over(state: &State, entry: &RetainedDisk) -> bool {
    state.tasks.get(entry.task).is_some_and(|task| {
        let over = task.attempt == entry.attempt && !task.state.holds_resources();
        task.attempt > entry.attempt || over
    })
}

pub(super) fn check_step(step: &Step<'_>) -> Check {
    let Some((command, _)) = step.only_command() else { return Ok(()) };
    check_left_behind(step)?;
    check_kept(step, command)
}

/// A task that ran here and holds nothing here any more has left its disk.
fn check_left_behind(step: &Step<'_>) -> Check {
    for (id, task) in step.before.tasks.iter() {
        let Some(retain) = step.before.spec_of(task).and_then(|spec| spec.retain_disk.as_ref())
        else {
            continue;
        };
        let ran = task.state.holds_resources() && task.state != TaskState::Assigned;
        let stays = |now: &Task| now.state.holds_resources() && now.machine() == task.machine();
        if !ran || step.after.tasks.get(id).is_some_and(stays) {
            continue;
        }
        let machine = task.machine().and_then(|machine| step.after.machines.get(machine));
        let Some(machine) = machine else { continue };
        // One batch of reports can contain a restart in place and the end of the restarted task.
        let mut kept = machine.retained.iter();
        let found = kept.find(|r| r.task == id && r.attempt >= task.attempt);
        if found.is_none_or(|entry| entry.bytes != retain.bytes) {
            let detail = format!("should leave {} bytes, left {found:?}", retain.bytes);
            return Err(violation(NAME, step.before.task_name(id), detail));
        }
    }
    Ok(())
}

/// Retained disk is still recorded, or there is a reason why not.
fn check_kept(step: &Step<'_>, command: &Command) -> Check {
    for (id, machine) in step.before.machines.iter() {
        let Some(after) = step.after.machines.get(id) else { continue };
        let stays = |entry: &RetainedDisk| {
            let same =
                |other: &RetainedDisk| RetainedDisk { run: entry.run, ..other.clone() } == *entry;
            after.retained.iter().any(same)
        };
        for entry in machine.retained.iter().filter(|entry| !stays(entry)) {
            let fetched = matches!(command, Command::ReleaseRetained { machine, task, attempt }
                if (*machine, *task, *attempt) == (id, entry.task, entry.attempt));
            if !fetched && entry.until > step.after.now {
                let detail = format!("{entry:?} vanished before its time");
                return Err(violation(NAME, &machine.spec.name, detail));
            }
        }
    }
    Ok(())
}
