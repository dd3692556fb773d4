//! Tasks of a job inside an alloc set are in an alloc of that set, in each hold, on its machine,
//! and only while the alloc has its hold. What they hold, prod by limits, is within what the alloc
//! holds.
//!
//! The sum of reservations inside an alloc may rise beyond the alloc, as on a machine; more cannot
//! be held inside than the alloc has in any other way: placements, updates inside and an alloc that
//! shrinks are checked first. Nothing the system chooses to do makes such an excess worse, and
//! [`super::overcommit_flagged`] checks that it is flagged and that tasks inside must leave. An
//! alloc itself is never reclaimed: it is charged at its limits, and waits with them.

use super::{Check, Step, violation};
use crate::hold::Hold;
use crate::id::TaskId;
use crate::resource::Resources;
use crate::spec::{JobKind, JobSpec};
use crate::state::State;
use crate::task::{Task, TaskState};

const NAME: &str = "alloc_rules";

pub(super) fn check(state: &State) -> Check {
    for (id, task) in state.tasks.iter() {
        let Some(spec) = state.spec_of(task) else { continue };
        let fail = |detail: String| Err(violation(NAME, state.task_name(id), detail));
        for (_, hold) in task.holds.iter() {
            if spec.alloc_set.is_some() != hold.alloc.is_some() {
                return fail(format!("of {:?}, in alloc {:?}", spec.alloc_set, hold.alloc));
            }
        }
        let whole = task.reservation == task.counted_limits(spec.limits_of(task.index));
        let due = task.state.holds_resources() || task.state == TaskState::Pending;
        if spec.kind == JobKind::AllocSet && due && !whole {
            return fail(format!("is an alloc and reserves {:?}", task.reservation));
        }
        for (_, hold) in task.holds.iter() {
            if let Some(alloc) = hold.alloc {
                check_inner(state, (id, task), hold, spec, alloc)?;
            }
        }
    }
    state.alloc_loads.iter().try_for_each(|(alloc, load)| {
        match load.prod_limits.first_excess(limits(state, *alloc)) {
            Some(excess) => Err(violation(
                NAME,
                state.task_name(*alloc),
                format!("inner prod limits: {excess}"),
            )),
            None => Ok(()),
        }
    })
}

fn check_inner(
    state: &State,
    (id, task): (TaskId, &Task),
    hold: &Hold,
    spec: &JobSpec,
    alloc: TaskId,
) -> Check {
    let fail = |detail: String| Err(violation(NAME, state.task_name(id), detail));
    let Some(outer) = state.tasks.get(alloc) else {
        return fail(format!("its alloc, row {}, does not exist", alloc.0));
    };
    let name = state.task_name(alloc);
    if state.spec_of(outer).is_none_or(|spec| spec.kind != JobKind::AllocSet) {
        return fail(format!("is inside {name}, which is no alloc"));
    }
    if state.job_key(outer.job) != spec.alloc_set {
        return fail(format!("belongs into {:?}, is in {name}", spec.alloc_set));
    }
    if outer.machine() != Some(hold.machine) {
        let (here, there) = (hold.machine, outer.machine());
        return fail(format!("is on {here:?}, its alloc {name} on {there:?}"));
    }
    if task.state.holds_resources() && !outer.state.holds_resources() {
        return fail(format!("is {:?}, its alloc {name} {:?}", task.state, outer.state));
    }
    if hold.devices().is_empty() && spec.task.named.is_empty() {
        Ok(())
    } else {
        fail("has devices or named resources of its own".to_owned())
    }
}

fn limits(state: &State, alloc: TaskId) -> Resources {
    let row = state.tasks.get(alloc);
    let found = row.and_then(|task| Some(state.spec_of(task)?.limits_of(task.index)));
    found.unwrap_or_default()
}

pub(super) fn check_step(step: &Step<'_>) -> Check {
    if step.voluntary_command().is_none() {
        return Ok(());
    }
    let beyond = |state: &State, alloc: TaskId| {
        let held = state.alloc_load(alloc).map(|load| load.reserved).unwrap_or_default();
        held.minus(limits(state, alloc))
    };
    for (alloc, _) in step.after.alloc_loads.iter() {
        let (before, after) = (beyond(step.before, *alloc), beyond(step.after, *alloc));
        if let Some(grown) = after.first_excess(before) {
            let detail = format!("reserved inside beyond its limits: {grown}");
            return Err(violation(NAME, step.after.task_name(*alloc), detail));
        }
    }
    Ok(())
}
