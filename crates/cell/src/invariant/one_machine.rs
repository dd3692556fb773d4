//! A task is on one machine exactly when its state says so, on a machine that is up, and what was
//! handed to it there (ports, device shares) is what its spec asks for and nobody else's. A device
//! replaced by one of another kind leaves its holders with something else: only on a flagged
//! machine.

use super::{Check, violation};
use crate::device::WHOLE;
use crate::id::{MachineId, TaskId};
use crate::machine::MachineStatus;
use crate::spec::JobKind;
use crate::state::State;
use crate::task::{Task, TaskState};
use std::collections::BTreeMap;

const NAME: &str = "one_machine";

pub(super) fn check(state: &State) -> Check {
    let mut ports: BTreeMap<(MachineId, u16), TaskId> = BTreeMap::new();
    let mut shares: BTreeMap<(MachineId, u8), u32> = BTreeMap::new();
    for (id, task) in state.tasks.iter() {
        let fail = |detail: String| Err(violation(NAME, state.task_name(id), detail));
        if task.state.on_machine() != task.machine.is_some() {
            return fail(format!("is {:?} with machine {:?}", task.state, task.machine));
        }
        let Some(machine) = task.machine else {
            match (task.alloc, &task.grant) {
                (None, None) => continue,
                held => return fail(format!("is {:?}, yet holds {held:?}", task.state)),
            }
        };
        if state.machines.get(machine).is_none_or(|m| m.status != MachineStatus::Up) {
            return fail(format!(
                "is {:?} on machine row {}, which is down",
                task.state, machine.0
            ));
        }
        let waits = task.grant.as_ref().is_some_and(|grant| !grant.waits_for.is_empty());
        // An alloc that grew keeps in mind whose room it grew into, for what starts inside it.
        let alloc = state.spec_of(task).is_some_and(|spec| spec.kind == JobKind::AllocSet);
        if task.state == TaskState::Running && waits && !alloc {
            return fail("runs and waits for others to leave".to_owned());
        }
        if !task.state.holds_resources() {
            continue;
        }
        granted_as_asked(state, id, task)?;
        for port in task.ports() {
            if let Some(other) = ports.insert((machine, *port), id) {
                return fail(format!("holds port {port}, which {} has", state.task_name(other)));
            }
        }
        for grant in task.devices() {
            *shares.entry((machine, grant.device)).or_default() += u32::from(grant.milli);
        }
    }
    devices_whole(state, &shares)
}

fn granted_as_asked(state: &State, id: TaskId, task: &Task) -> Check {
    let Some(spec) = state.spec_of(task) else { return Ok(()) };
    let fail = |detail: String| Err(violation(NAME, state.task_name(id), detail));
    let fixed = &spec.task.static_ports[..];
    let wanted = fixed.len() + usize::from(spec.task.ports);
    let ports = task.ports();
    if ports.len() != wanted || ports[..fixed.len()] != *fixed {
        return fail(format!("asks for {wanted} ports, {fixed:?} among them; has {ports:?}"));
    }
    let asked: Vec<u16> = spec
        .task
        .devices
        .iter()
        .flat_map(|request| (0..request.count).map(|_| request.milli))
        .collect();
    let held: Vec<u16> = task.devices().iter().map(|grant| grant.milli).collect();
    let flagged = |m: MachineId| state.machines.get(m).is_none_or(|row| row.over_committed);
    let kinds = spec.task.devices.iter().flat_map(|r| (0..r.count).map(move |_| &r.kind));
    let devices = task.machine.and_then(|m| state.machines.get(m)).map(|row| &row.spec.devices);
    let other = task.devices().iter().zip(kinds).find(|(grant, kind)| {
        let found = devices.and_then(|list| list.get(usize::from(grant.device)));
        found.is_none_or(|device| device.kind != **kind)
    });
    if let (Some((grant, kind)), false) = (other, task.machine.is_none_or(flagged)) {
        return fail(format!("asks for a {kind}, has device {}", grant.device));
    }
    match asked == held {
        true => Ok(()),
        false => fail(format!("asks for device shares {asked:?}, has {held:?}")),
    }
}

/// More shares than a device has, or shares of a device that is gone: only on a flagged machine.
fn devices_whole(state: &State, shares: &BTreeMap<(MachineId, u8), u32>) -> Check {
    for ((machine, device), milli) in shares {
        let Some(row) = state.machines.get(*machine) else { continue };
        let known = usize::from(*device) < row.spec.devices.len();
        if (*milli > u32::from(WHOLE) || !known) && !row.over_committed {
            let detail = format!("device {device} gives {milli} of {WHOLE} shares, not flagged");
            return Err(violation(NAME, &row.spec.name, detail));
        }
    }
    Ok(())
}
