//! A machine is flagged as over-committed exactly when more is held than there is, of the machine
//! or inside an alloc on it, or when a task holds a device other than it asked for; then there must
//! be victims: [`crate::overcommit_eviction`] names holders there whose eviction ends the excess.
//! Disk retained for log savers is the one thing no eviction gives back: if it alone is too much,
//! there need be no victims, and the flag stays until the disk is released. Prod tasks that are
//! packed by their limits are victims because of prod's limits or of devices, never because of that
//! disk, and inside an alloc never. Every victim runs there: room held for a task that runs
//! elsewhere is released before any task has to leave.

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

/// Tasks that hold room on the machine, for themselves or for a move, with their hold there.
fn holders(state: &State, machine: MachineId) -> impl Iterator<Item = (TaskId, &Task, &Hold)> {
    let loads = state.machine_load(machine).into_iter();
    let listed = loads.flat_map(|load| load.tasks.iter().chain(&load.held_for));
    let rows = listed.filter_map(move |id| {
        let task = state.tasks.get(*id)?;
        Some((*id, task, task.holds.on(machine)?.1))
    });
    rows.filter(|(_, task, _)| task.state.holds_resources())
}

/// Whether a device it holds was removed, or is of another kind or model than it asked for.
fn wrong_devices(state: &State, machine: &Machine, task: &Task, hold: &Hold) -> bool {
    let Some(spec) = state.spec_of(task) else { return false };
    let requests =
        spec.task.devices.iter().flat_map(|request| (0..request.count).map(move |_| request));
    hold.devices().iter().zip(requests).any(|(grant, request)| {
        let device = machine.spec.devices.get(usize::from(grant.device));
        let fits = device.filter(|d| d.kind == request.kind);
        fits.is_none_or(|d| !request.models.is_empty() && !request.models.contains(&d.model))
    })
}

/// Whether `id` is an alloc inside which more is held than it has, not counting `gone`.
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

/// Victims inside allocs are not prod, and end the excess there. An alloc that is a victim itself
/// takes its tasks along.
fn check_alloc_victims(
    state: &State,
    on: MachineId,
    machine: &Machine,
    victims: &[TaskId],
) -> Check {
    let fail = |detail: String| Err(violation(NAME, &machine.spec.name, detail));
    for (id, task, hold) in holders(state, on) {
        let named = victims.contains(&id);
        let prod = state.spec_of(task).is_some_and(|spec| spec.is_packed_by_limits());
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

/// Takes the victims out of the sums and checks again.
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
        if spec.is_packed_by_limits() {
            if !prod_pays && !wrong_devices(state, machine, task, hold) {
                let detail = format!("{} must leave for others", state.task_name(*victim));
                return Err(violation(NAME, &machine.spec.name, detail));
            }
            let limits = task.counted_limits(spec.limits_of(task.index));
            rest.prod_limits = rest.prod_limits.minus(limits);
        }
        for grant in hold.devices() {
            if let Some(used) = rest.devices.get_mut(usize::from(grant.device)) {
                *used = used.saturating_sub(grant.milli);
            }
        }
    }
    rest.reserved.disk = rest.reserved.disk.saturating_sub(kept);
    if exceeds(machine, &rest, capacity) {
        let detail = format!("still too full once {victims:?} have left: {rest:?}");
        Err(violation(NAME, &machine.spec.name, detail))
    } else {
        Ok(())
    }
}
