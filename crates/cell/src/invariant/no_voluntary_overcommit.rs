//! No voluntary command makes a machine or an alloc hold more beyond what it has: prod counted by
//! limits, everything by logged reservations, devices share by share, named resources by amount.
//! Nor does a change of a job: its tasks grow where they are only as far as there is room.
//! Shrinking an excess is always allowed.

use super::{Check, Step, violation};
use crate::command::Command;
use crate::device::WHOLE_DEVICE;
use crate::id::MachineId;
use crate::load::MachineLoad;
use crate::machine::Machine;
use crate::named::ResourceName;
use crate::resource::Dimension;
use crate::state::State;
use std::collections::BTreeMap;

const NAME: &str = "no_voluntary_overcommit";

pub(super) fn check(step: &Step<'_>) -> Check {
    if step.voluntary_command().is_none() && !changes_job(step) {
        return Ok(());
    }
    for (id, machine) in step.after.machines.iter() {
        let Some(after) = step.after.machine_load(id) else { continue };
        let (old_excess, new_excess) =
            (excess(step.before, id), excess_of_load(step.after, id, machine, after));
        for (what, now) in &new_excess {
            let then = old_excess.get(what).copied().unwrap_or(0);
            if *now > then {
                let detail = format!("{what} beyond what there is grew from {then} to {now}");
                return Err(violation(NAME, &machine.spec.name, detail));
            }
        }
    }
    Ok(())
}

/// Whether the step gives a job another spec.
fn changes_job(step: &Step<'_>) -> bool {
    let command = step.only_command().map(|(command, _)| command);
    matches!(
        command,
        Some(
            Command::UpdateJob { .. }
                | Command::ApplyJob { .. }
                | Command::ResizeJob { .. }
                | Command::ResizeLimits { .. }
                | Command::UndoUpdate { .. }
                | Command::CloseUpdate { .. }
        )
    )
}

fn excess(state: &State, machine: MachineId) -> BTreeMap<String, u64> {
    match (state.machines.get(machine), state.machine_load(machine)) {
        (Some(row), Some(load)) => excess_of_load(state, machine, row, load),
        _ => BTreeMap::new(),
    }
}

/// Excess over capacity, by kind.
fn excess_of_load(
    state: &State,
    id: MachineId,
    row: &Machine,
    load: &MachineLoad,
) -> BTreeMap<String, u64> {
    let capacity = row.spec.capacity;
    let mut excess = BTreeMap::new();
    let mut note = |what: String, held: u64, room: u64| {
        if held > room {
            excess.insert(what, held - room);
        }
    };
    for dimension in Dimension::ALL {
        let room = capacity.get(dimension);
        note(format!("prod limits of {dimension}"), load.prod_limits.get(dimension), room);
        note(format!("reserved {dimension}"), load.reserved.get(dimension), room);
    }
    for (at, used) in load.devices.iter().enumerate() {
        let room = if at < row.spec.devices.len() { WHOLE_DEVICE } else { 0 };
        note(format!("device {at}"), u64::from(*used), u64::from(room));
    }
    for (name, used) in &load.named {
        note(format!("resource {name}"), *used, named_room(state, id, row, name));
    }
    excess
}

fn named_room(state: &State, id: MachineId, row: &Machine, name: &ResourceName) -> u64 {
    let list = match name.namespace {
        Some(_) => state.ephemeral_on(id),
        None => row.spec.named_capacities().into_owned(),
    };
    list.iter().find(|held| held.name == *name).map_or(0, |held| held.amount)
}
