//! A machine is flagged exactly when it holds more than it has, and then somebody must leave: the
//! obligation names holders on that machine whose going ends the excess. Disk retained for log
//! savers is the one thing no eviction gives back: where it alone is what is too much, nobody need
//! be named, and the flag stays until it is fetched or out of time. Prod is named for prod's limits
//! or for devices, never for that.

use super::{Check, violation};
use crate::device::WHOLE;
use crate::id::MachineId;
use crate::load::MachineLoad;
use crate::machine::Machine;
use crate::obligation;
use crate::resource::Resources;
use crate::state::State;

const NAME: &str = "overcommit_flagged";

pub(super) fn check(state: &State) -> Check {
    for (id, machine) in state.machines.iter() {
        let Some(load) = state.machine_load(id) else { continue };
        let exceeds = exceeds(machine, load, machine.spec.capacity);
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
    let mut rest = load.clone();
    for victim in &obliged {
        let holder = state.tasks.get(*victim).filter(|task| {
            task.machine == Some(id) && task.state.holds_resources() && task.alloc.is_none()
        });
        let (Some(task), Some(spec)) = (holder, holder.and_then(|task| state.spec_of(task))) else {
            let detail = format!("{} must leave, but holds nothing", state.task_name(*victim));
            return Err(violation(NAME, &machine.spec.name, detail));
        };
        rest.reserved = rest.reserved.minus(task.reservation);
        if spec.priority.is_prod() {
            if !prod_pays {
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
