//! A task runs in at most one place: it has holds exactly when its state says that it is on a
//! machine, the first is where it runs, and another, a reservation, exists only while it runs.
//! Holds of one task are on different machines, which are up; a reservation is on none that drains
//! or is over-committed. The grants of each hold (ports, device shares) are what the spec asks for
//! and nobody else's. A device replaced by one of another kind leaves its holders with a wrong
//! device: only on a flagged machine.

use super::{Check, violation};
use crate::device::WHOLE_DEVICE;
use crate::hold::{Hold, HoldRole};
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
        check_roles(state, id, task)?;
        for (role, hold) in task.holds.iter() {
            check_place(state, id, task, role, hold)?;
            if !task.state.holds_resources() {
                continue;
            }
            check_grant(state, id, task, hold)?;
            for port in hold.ports() {
                if let Some(other) = ports.insert((hold.machine, *port), id) {
                    let detail = format!("holds port {port}, which {} has", state.task_name(other));
                    return Err(violation(NAME, state.task_name(id), detail));
                }
            }
            for grant in hold.devices() {
                *shares.entry((hold.machine, grant.device)).or_default() += u32::from(grant.milli);
            }
        }
    }
    check_device_shares(state, &shares)
}

/// Checks the number of holds, and their machines.
fn check_roles(state: &State, id: TaskId, task: &Task) -> Check {
    let fail = |detail: String| Err(violation(NAME, state.task_name(id), detail));
    let machines: Vec<MachineId> = task.holds.iter().map(|(_, hold)| hold.machine).collect();
    if task.state.is_on_machine() == machines.is_empty() {
        return fail(format!("is {:?} with holds on {machines:?}", task.state));
    }
    if machines.len() > 1 && task.state != TaskState::Running {
        return fail(format!("is {:?} and holds room on {machines:?}", task.state));
    }
    let is_alloc = state.spec_of(task).is_some_and(|spec| spec.kind == JobKind::AllocSet);
    if machines.len() > 1 && is_alloc {
        return fail(format!("is an alloc and holds room on {machines:?}"));
    }
    let twice = (1..machines.len()).any(|at| machines[..at].contains(&machines[at]));
    if twice { fail(format!("holds room twice on one machine: {machines:?}")) } else { Ok(()) }
}

fn check_place(state: &State, id: TaskId, task: &Task, role: HoldRole, hold: &Hold) -> Check {
    let fail = |detail: String| Err(violation(NAME, state.task_name(id), detail));
    let up = state.machines.get(hold.machine).filter(|row| row.status == MachineStatus::Up);
    let Some(machine) = up else {
        let row = hold.machine.0;
        return fail(format!("is {:?} on machine row {row}, which is down", task.state));
    };
    if role == HoldRole::Reserved && (machine.draining || machine.over_committed) {
        let name = &machine.spec.name;
        return fail(format!("holds room on {name}, which drains or has none to keep"));
    }
    let waits = hold.grant.as_ref().is_some_and(|grant| !grant.waits_for.is_empty());
    // The grant of an alloc that grew lists the tasks whose room it grew into, for tasks that start
    // inside it; that of a task that grows, until its limits are in force.
    let alloc = state.spec_of(task).is_some_and(|spec| spec.kind == JobKind::AllocSet);
    let grows = task.limits_in_force.is_some();
    if task.state == TaskState::Running && waits && !alloc && !grows {
        return fail("runs and waits for others to leave".to_owned());
    }
    Ok(())
}

fn check_grant(state: &State, id: TaskId, task: &Task, hold: &Hold) -> Check {
    let Some(spec) = state.spec_of(task) else { return Ok(()) };
    let fail = |detail: String| Err(violation(NAME, state.task_name(id), detail));
    let fixed = &spec.task.static_ports[..];
    let wanted = fixed.len() + usize::from(spec.task.ports);
    let ports = hold.ports();
    if ports.len() != wanted || ports[..fixed.len()] != *fixed {
        return fail(format!("asks for {wanted} ports, {fixed:?} among them; has {ports:?}"));
    }
    let requested: Vec<u16> = spec
        .task
        .devices
        .iter()
        .flat_map(|request| (0..request.count).map(|_| request.milli))
        .collect();
    let held: Vec<u16> = hold.devices().iter().map(|grant| grant.milli).collect();
    let machine = state.machines.get(hold.machine);
    let kinds = spec.task.devices.iter().flat_map(|r| (0..r.count).map(move |_| &r.kind));
    let other = hold.devices().iter().zip(kinds).find(|(grant, kind)| {
        let found = machine.and_then(|row| row.spec.devices.get(usize::from(grant.device)));
        found.is_none_or(|device| device.kind != **kind)
    });
    if let (Some((grant, kind)), false) = (other, machine.is_none_or(|row| row.over_committed)) {
        return fail(format!("asks for a {kind}, has device {}", grant.device));
    }
    if requested == held {
        Ok(())
    } else {
        fail(format!("asks for device shares {requested:?}, has {held:?}"))
    }
}

/// More shares than a device has, or shares of a removed device: only on a flagged machine.
fn check_device_shares(state: &State, shares: &BTreeMap<(MachineId, u8), u32>) -> Check {
    for ((machine, device), milli) in shares {
        let Some(row) = state.machines.get(*machine) else { continue };
        let known = usize::from(*device) < row.spec.devices.len();
        if (*milli > u32::from(WHOLE_DEVICE) || !known) && !row.over_committed {
            let detail =
                format!("device {device} gives {milli} of {WHOLE_DEVICE} shares, not flagged");
            return Err(violation(NAME, &row.spec.name, detail));
        }
    }
    Ok(())
}
