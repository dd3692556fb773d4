//! At the step that places a task, on a machine or into an alloc there, the machine is up, not
//! draining, not under pressure unless the task is prod, satisfies every hard constraint, offers
//! every volume, is in the alloc with its index if it pairs by index, is none the task keeps
//! crashing on, and has the devices the task asked for. The same holds for constraints and volumes
//! when a task takes a new version where it is, and for all of it when room is reserved for a task
//! on another machine.
//!
//! An invariant of the step, not of the state: a machine's attributes may change later, and its
//! tasks stay.

use super::{Check, Step, violation};
use crate::hold::Hold;
use crate::id::TaskId;
use crate::machine::{Machine, MachineStatus};
use crate::spec::JobSpec;
use crate::task::{CRASHES_TO_AVOID, Task, TaskState};

const NAME: &str = "placed_where_allowed";

pub(super) fn check(step: &Step<'_>) -> Check {
    if step.only_command().is_none() {
        return Ok(());
    }
    for (id, new) in step.after.tasks.iter() {
        let Some(old) = step.before.tasks.get(id).filter(|old| old.job == new.job) else {
            continue;
        };
        let machine = new.machine().and_then(|machine| step.after.machines.get(machine));
        let (Some(machine), Some(spec)) = (machine, step.after.spec_of(new)) else { continue };
        let placed = old.state == TaskState::Pending && new.state == TaskState::Assigned;
        let stays = old.state.holds_resources() && old.machine() == new.machine();
        if let (true, Some(hold)) = (placed, new.primary()) {
            check_place(step, id, old, hold, machine)?;
        }
        check_reserved(step, id, old, new)?;
        let changed = stays
            && new.state.holds_resources()
            && step.before.spec_of(old).is_some_and(|was| was.constraints != spec.constraints);
        if placed || changed {
            check_constraints(step, id, spec, machine)?;
        }
        let volumes_of = |spec: &JobSpec| spec.task.isolation.volumes.clone();
        let volumes_changed = stays
            && new.state.holds_resources()
            && step.before.spec_of(old).is_some_and(|was| volumes_of(was) != volumes_of(spec));
        if placed || volumes_changed {
            check_volumes(step, id, spec, machine)?;
        }
    }
    Ok(())
}

/// Room for a move is reserved where the task could be placed.
fn check_reserved(step: &Step<'_>, id: TaskId, old: &Task, new: &Task) -> Check {
    let reserved = new.holds.reserved().filter(|hold| old.holds.reserved() != Some(*hold));
    let Some(hold) = reserved else { return Ok(()) };
    let machine = step.after.machines.get(hold.machine);
    let (Some(machine), Some(spec)) = (machine, step.after.spec_of(new)) else { return Ok(()) };
    check_place(step, id, old, hold, machine)?;
    check_constraints(step, id, spec, machine)?;
    check_volumes(step, id, spec, machine)
}

fn check_volumes(step: &Step<'_>, id: TaskId, spec: &JobSpec, machine: &Machine) -> Check {
    let attributes = &machine.spec.attributes;
    let mut volumes = spec.task.isolation.volumes.iter();
    match volumes.find(|volume| !volume.host_volume().is_granted(attributes)) {
        Some(volume) => {
            let detail = format!("on {}, which does not lend {volume:?}", machine.spec.name);
            Err(violation(NAME, step.after.task_name(id), detail))
        }
        None => Ok(()),
    }
}

fn check_constraints(step: &Step<'_>, id: TaskId, spec: &JobSpec, machine: &Machine) -> Check {
    let mut hard = spec.constraints.iter().filter(|constraint| constraint.is_hard());
    match hard.find(|constraint| !constraint.holds_on(&machine.spec)) {
        Some(broken) => {
            let detail = format!("on {}, which breaks {broken:?}", machine.spec.name);
            Err(violation(NAME, step.after.task_name(id), detail))
        }
        None => Ok(()),
    }
}

fn check_place(step: &Step<'_>, id: TaskId, old: &Task, hold: &Hold, machine: &Machine) -> Check {
    let fail = |detail: String| Err(violation(NAME, step.after.task_name(id), detail));
    let name = &machine.spec.name;
    if machine.status != MachineStatus::Up || machine.draining {
        let (status, draining) = (machine.status, machine.draining);
        return fail(format!("placed on {name}: {status:?}, draining {draining}"));
    }
    let spec = step.after.tasks.get(id).and_then(|row| step.after.spec_of(row));
    let prod = spec.is_some_and(|spec| spec.priority.is_prod());
    let enters = |alloc| spec.is_some_and(|spec| spec.may_enter(step.after, old.index, alloc));
    if let Some(alloc) = hold.alloc.filter(|alloc| !enters(*alloc)) {
        return fail(format!("placed in {}, another's alloc", step.after.task_name(alloc)));
    }
    if machine.accepts_only_prod() && !prod {
        return fail(format!("placed on {name}, which is short: {:?}", machine.resource_pressure));
    }
    let avoided = old.crashed_on.iter().find(|pair| {
        let counts = pair.crashes >= CRASHES_TO_AVOID && pair.until > step.after.now;
        counts && pair.machine == hold.machine
    });
    if let Some(pair) = avoided {
        return fail(format!("placed on {name}, where it crashed {} times", pair.crashes));
    }
    let load = step.after.machine_load(hold.machine);
    if load.is_some_and(|load| load.wrong_devices.contains(&id)) {
        fail(format!("placed on {name} with devices it did not ask for"))
    } else {
        Ok(())
    }
}
