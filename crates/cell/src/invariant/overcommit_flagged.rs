//! A machine is flagged exactly when more is held than there is, of the machine or inside an alloc
//! on it, or when somebody holds a device other than it asked for; and then somebody must leave:
//! the obligation names holders there whose going ends the excess. Disk retained for log
//! savers is the one thing no eviction gives back: where it alone is what is too much, nobody need
//! be named, and the flag stays until it is fetched or out of time. Prod is named for prod's limits
//! or for devices, never for that, and inside an alloc never.

use super::{Check, violation};
use crate::device::WHOLE;
use crate::id::{MachineId, TaskId};
use crate::load::MachineLoad;
use crate::machine::Machine;
use crate::obligation;
use crate::resource::Resources;
use crate::spec::JobKind;
use crate::state::State;
use crate::task::Task;

const NAME: &str = "overcommit_flagged";

pub(super) fn check(state: &State) -> Check {
    for (id, machine) in state.machines.iter() {
        let Some(load) = state.machine_load(id) else { continue };
        let beyond_allocs = exceeds(machine, load, machine.spec.capacity);
        let exceeds = beyond_allocs
            || holders(state, load).any(|(_, task)| wrong_devices(state, machine, task))
            || holders(state, load).any(|(id, task)| too_full(state, id, task, load, &[]));
        if exceeds != machine.over_committed {
            let detail = format!("exceeds {exceeds}, flagged {}", machine.over_committed);
            return Err(violation(NAME, &machine.spec.name, detail));
        }
        if exceeds {
            ends_with_obligation(state, id, machine, load)?;
        }
    }
    Ok(())
}

fn exceeds(machine: &Machine, load: &MachineLoad, capacity: Resources) -> bool {
    let devices = lacks_devices(machine, load);
    !load.prod_limits.within(capacity) || !load.reserved.within(capacity) || devices
}

fn lacks_devices(machine: &Machine, load: &MachineLoad) -> bool {
    let room = |at: usize| if at < machine.spec.devices.len() { WHOLE } else { 0 };
    load.devices.iter().enumerate().any(|(at, used)| *used > room(at))
}

fn holders<'a>(
    state: &'a State,
    load: &'a MachineLoad,
) -> impl Iterator<Item = (TaskId, &'a Task)> {
    let rows = load.tasks.iter().filter_map(|id| Some((*id, state.tasks.get(*id)?)));
    rows.filter(|(_, task)| task.state.holds_resources())
}

/// Whether a device it holds is gone, or of another kind or model than it asked for.
fn wrong_devices(state: &State, machine: &Machine, task: &Task) -> bool {
    let Some(spec) = state.spec_of(task) else { return false };
    let asks = spec.task.devices.iter().flat_map(|ask| (0..ask.count).map(move |_| ask));
    task.devices().iter().zip(asks).any(|(grant, ask)| {
        let device = machine.spec.devices.get(usize::from(grant.device));
        let fits = device.filter(|d| d.kind == ask.kind);
        fits.is_none_or(|d| !ask.models.is_empty() && !ask.models.contains(&d.model))
    })
}

/// Whether `id` is an alloc inside which more is held than it has, `gone` aside.
fn too_full(state: &State, id: TaskId, task: &Task, load: &MachineLoad, gone: &[TaskId]) -> bool {
    let Some(spec) = state.spec_of(task).filter(|spec| spec.kind == JobKind::AllocSet) else {
        return false;
    };
    let inside = holders(state, load).filter(|(_, inner)| inner.alloc == Some(id));
    let held = inside.filter(|(inner, _)| !gone.contains(inner));
    let reserved = held.fold(Resources::ZERO, |sum, (_, inner)| sum.plus(inner.reservation));
    !reserved.within(spec.limits_of(task.index))
}

/// Those named inside allocs are not prod, and end what is too much there. An alloc that is named
/// itself takes its tasks along.
fn ends_inside(state: &State, machine: &Machine, load: &MachineLoad, obliged: &[TaskId]) -> Check {
    let fail = |detail: String| Err(violation(NAME, &machine.spec.name, detail));
    for (id, task) in holders(state, load) {
        let named = obliged.contains(&id);
        let prod = state.spec_of(task).is_some_and(|spec| spec.priority.is_prod());
        if let (true, Some(alloc)) = (named, task.alloc)
            && (prod || obliged.contains(&alloc))
        {
            return fail(format!("{} must leave its alloc", state.task_name(id)));
        }
        if !named && too_full(state, id, task, load, obliged) {
            return fail(format!("{} stays too full without {obliged:?}", state.task_name(id)));
        }
        if !named && wrong_devices(state, machine, task) {
            return fail(format!("{} keeps a device it did not ask for", state.task_name(id)));
        }
    }
    Ok(())
}

/// Takes the obliged out of the sums and looks again.
fn ends_with_obligation(
    state: &State,
    id: MachineId,
    machine: &Machine,
    load: &MachineLoad,
) -> Check {
    let kept = machine.retained.iter().fold(0u64, |sum, r| sum.saturating_add(r.bytes));
    let capacity = machine.spec.capacity;
    let prod_pays = !load.prod_limits.within(capacity) || lacks_devices(machine, load);
    let obliged = obligation::victims(state, id);
    ends_inside(state, machine, load, &obliged)?;
    let mut rest = load.clone();
    for victim in &obliged {
        let holder = state
            .tasks
            .get(*victim)
            .filter(|task| task.machine == Some(id) && task.state.holds_resources());
        let (Some(task), Some(spec)) = (holder, holder.and_then(|task| state.spec_of(task))) else {
            let detail = format!("{} must leave, but holds nothing", state.task_name(*victim));
            return Err(violation(NAME, &machine.spec.name, detail));
        };
        if task.alloc.is_some() {
            continue;
        }
        rest.reserved = rest.reserved.minus(task.reservation);
        if spec.priority.is_prod() {
            if !prod_pays && !wrong_devices(state, machine, task) {
                let detail = format!("{} must leave for others", state.task_name(*victim));
                return Err(violation(NAME, &machine.spec.name, detail));
            }
            rest.prod_limits = rest.prod_limits.minus(spec.limits_of(task.index));
        }
        for grant in task.devices() {
            if let Some(used) = rest.devices.get_mut(usize::from(grant.device)) {
                *used = used.saturating_sub(grant.milli);
            }
        }
    }
    rest.reserved.disk = rest.reserved.disk.saturating_sub(kept);
    match exceeds(machine, &rest, capacity) {
        false => Ok(()),
        true => {
            let detail = format!("still too full once {obliged:?} have left: {rest:?}");
            Err(violation(NAME, &machine.spec.name, detail))
        }
    }
}
