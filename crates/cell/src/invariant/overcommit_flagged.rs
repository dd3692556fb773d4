//! A machine is flagged exactly when more is held than there is, of the machine or inside an alloc
//! on it, or when somebody holds a device other than it asked for; and then somebody must leave:
//! the obligation names holders there whose going ends the excess. Disk retained for log
//! savers is the one thing no eviction gives back: where it alone is what is too much, nobody need
//! be named, and the flag stays until it is fetched or out of time. Prod is named for prod's limits
//! or for devices, never for that, and inside an alloc never. Whoever is named is there: room held
//! for a task that runs elsewhere is given up before anybody has to leave.

use super::{Check, violation};
use crate::device::WHOLE_DEVICE;
use crate::hold::Hold;
use crate::id::{MachineId, TaskId};
use crate::load::MachineLoad;
use crate::machine::Machine;
use crate::overcommit_eviction;
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
            || holders(state, id).any(|(_, task, hold)| wrong_devices(state, machine, task, hold))
            || holders(state, id)
                .any(|(alloc, row, _)| is_overfull_alloc(state, alloc, row, id, &[]));
        if exceeds != machine.over_committed {
            let detail = format!("exceeds {exceeds}, flagged {}", machine.over_committed);
            return Err(violation(NAME, &machine.spec.name, detail));
        }
        if exceeds {
            check_victims_end_excess(state, id, machine, load)?;
        }
    }
    Ok(())
}

fn exceeds(machine: &Machine, load: &MachineLoad, capacity: Resources) -> bool {
    let devices = lacks_devices(machine, load);
    !load.prod_limits.within(capacity) || !load.reserved.within(capacity) || devices
}

fn lacks_devices(machine: &Machine, load: &MachineLoad) -> bool {
    let room = |at: usize| if at < machine.spec.devices.len() { WHOLE_DEVICE } else { 0 };
    load.devices.iter().enumerate().any(|(at, used)| *used > room(at))
}

/// Who holds room on the machine, for itself or for a move, with what it holds there.
fn holders(state: &State, machine: MachineId) -> impl Iterator<Item = (TaskId, &Task, &Hold)> {
    let loads = state.machine_load(machine).into_iter();
    let listed = loads.flat_map(|load| load.tasks.iter().chain(&load.held_for));
    let rows = listed.filter_map(move |id| {
        let task = state.tasks.get(*id)?;
        Some((*id, task, task.holds.on(machine)?.1))
    });
    rows.filter(|(_, task, _)| task.state.holds_resources())
}

/// Whether a device it holds is gone, or of another kind or model than it asked for.
fn wrong_devices(state: &State, machine: &Machine, task: &Task, hold: &Hold) -> bool {
    let Some(spec) = state.spec_of(task) else { return false };
    let asks = spec.task.devices.iter().flat_map(|ask| (0..ask.count).map(move |_| ask));
    hold.devices().iter().zip(asks).any(|(grant, ask)| {
        let device = machine.spec.devices.get(usize::from(grant.device));
        let fits = device.filter(|d| d.kind == ask.kind);
        fits.is_none_or(|d| !ask.models.is_empty() && !ask.models.contains(&d.model))
    })
}

/// Whether `id` is an alloc inside which more is held than it has, `gone` aside.
fn is_overfull_alloc(
    state: &State,
    id: TaskId,
    task: &Task,
    on: MachineId,
    gone: &[TaskId],
) -> bool {
    let Some(spec) = state.spec_of(task).filter(|spec| spec.kind == JobKind::AllocSet) else {
        return false;
    };
    let inside = holders(state, on).filter(|(.., hold)| hold.alloc == Some(id));
    let held = inside.filter(|(inner, ..)| !gone.contains(inner));
    let reserved = held.fold(Resources::ZERO, |sum, (_, inner, _)| sum.plus(inner.reservation));
    !reserved.within(spec.limits_of(task.index))
}

/// Those named inside allocs are not prod, and end what is too much there. An alloc that is named
/// itself takes its tasks along.
fn check_alloc_victims(
    state: &State,
    on: MachineId,
    machine: &Machine,
    victims: &[TaskId],
) -> Check {
    let fail = |detail: String| Err(violation(NAME, &machine.spec.name, detail));
    for (id, task, hold) in holders(state, on) {
        let named = victims.contains(&id);
        let prod = state.spec_of(task).is_some_and(|spec| spec.priority.is_prod());
        if let (true, Some(alloc)) = (named, hold.alloc)
            && (prod || victims.contains(&alloc))
        {
            return fail(format!("{} must leave its alloc", state.task_name(id)));
        }
        if !named && is_overfull_alloc(state, id, task, on, victims) {
            return fail(format!("{} stays too full without {victims:?}", state.task_name(id)));
        }
        if !named && wrong_devices(state, machine, task, hold) {
            return fail(format!("{} keeps a device it did not ask for", state.task_name(id)));
        }
    }
    Ok(())
}

/// Takes the obliged out of the sums and looks again.
fn check_victims_end_excess(
    state: &State,
    id: MachineId,
    machine: &Machine,
    load: &MachineLoad,
) -> Check {
    let kept = machine.retained.iter().fold(0u64, |sum, r| sum.saturating_add(r.bytes));
    let capacity = machine.spec.capacity;
    let prod_pays = !load.prod_limits.within(capacity) || lacks_devices(machine, load);
    let victims = overcommit_eviction::victims(state, id);
    check_alloc_victims(state, id, machine, &victims)?;
    let mut rest = load.clone();
    for victim in &victims {
        let holder = state
            .tasks
            .get(*victim)
            .filter(|task| task.machine() == Some(id) && task.state.holds_resources())
            .and_then(|task| Some((task, task.primary()?, state.spec_of(task)?)));
        let Some((task, hold, spec)) = holder else {
            let detail = format!("{} must leave, but holds nothing", state.task_name(*victim));
            return Err(violation(NAME, &machine.spec.name, detail));
        };
        if hold.alloc.is_some() {
            continue;
        }
        rest.reserved = rest.reserved.minus(task.reservation);
        if spec.priority.is_prod() {
            if !prod_pays && !wrong_devices(state, machine, task, hold) {
                let detail = format!("{} must leave for others", state.task_name(*victim));
                return Err(violation(NAME, &machine.spec.name, detail));
            }
            rest.prod_limits = rest.prod_limits.minus(spec.limits_of(task.index));
        }
        for grant in hold.devices() {
            if let Some(used) = rest.devices.get_mut(usize::from(grant.device)) {
                *used = used.saturating_sub(grant.milli);
            }
        }
    }
    rest.reserved.disk = rest.reserved.disk.saturating_sub(kept);
    match exceeds(machine, &rest, capacity) {
        false => Ok(()),
        true => {
            let detail = format!("still too full once {victims:?} have left: {rest:?}");
            Err(violation(NAME, &machine.spec.name, detail))
        }
    }
}
