//! Devices, each on its own (X1): half a card free on each of two cards is not one free card.

use super::PlacementTarget;
use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;
use cellwright_cell::device::{Device, DeviceGrant, WHOLE_DEVICE};
use cellwright_cell::fit;
use cellwright_cell::id::TaskId;
use cellwright_cell::load::MachineLoad;
use cellwright_cell::reason::InfeasibleReason;

fn used_shares(snapshot: &ClusterSnapshot, m: usize, without: &[TaskId]) -> Vec<u16> {
    let mut used: Vec<u16> = snapshot.machines.devices[m].iter().map(|d| d.used).collect();
    // Members of allocs are not charged for devices, so they release none.
    let charged = |task: &&TaskId| snapshot.tasks[task.slot()].placement.alloc().is_none();
    for task in without.iter().filter(charged) {
        for grant in snapshot.tasks[task.slot()].placement.devices() {
            if let Some(used) = used.get_mut(usize::from(grant.device)) {
                *used = used.saturating_sub(grant.milli);
            }
        }
    }
    used
}

/// Picks devices for all requests in order: for each the fullest that still have the shares, so
/// that whole devices stay whole. Where that leaves a later request without devices, the cell's own
/// search for another division decides.
pub(crate) fn choose(
    snapshot: &ClusterSnapshot,
    class: &Class,
    m: usize,
    without: &[TaskId],
) -> Result<Vec<DeviceGrant>, InfeasibleReason> {
    if class.request.devices.is_empty() {
        return Ok(Vec::new());
    }
    let used = used_shares(snapshot, m, without);
    let in_turn = choose_in_order(snapshot, class, m, &used);
    if in_turn.is_ok() || class.request.devices.len() == 1 {
        return in_turn;
    }
    let kinds = &snapshot.machines.device_kinds;
    let slots = snapshot.machines.devices[m].iter();
    let devices: Vec<Device> = slots.filter_map(|s| kinds.get(s.kind).cloned()).collect();
    let load = MachineLoad { devices: used, ..MachineLoad::default() };
    fit::choose_devices(&devices, &load, &class.request.devices)
}

fn choose_in_order(
    snapshot: &ClusterSnapshot,
    class: &Class,
    m: usize,
    used: &[u16],
) -> Result<Vec<DeviceGrant>, InfeasibleReason> {
    let mut grants = Vec::new();
    let slots = &snapshot.machines.devices[m];
    let mut free: Vec<u16> = used.iter().map(|used| WHOLE_DEVICE.saturating_sub(*used)).collect();
    for request in &class.request.devices {
        let accepted = |i: usize| {
            let device = snapshot.machines.device_kinds.get(slots[i].kind);
            device.is_some_and(|d| request.accepts(d))
        };
        let mut fitting: Vec<usize> =
            (0..slots.len()).filter(|i| free[*i] >= request.milli && accepted(*i)).collect();
        let (requested, available) = (u32::from(request.count), fitting.len() as u32);
        if requested > available {
            let kind = request.kind.clone();
            return Err(InfeasibleReason::Device {
                kind,
                requested,
                milli: request.milli,
                available,
            });
        }
        fitting.sort_unstable_by_key(|i| (free[*i], *i));
        for i in fitting.into_iter().take(requested as usize) {
            free[i] -= request.milli;
            grants.push(DeviceGrant { device: i as u8, milli: request.milli });
        }
    }
    Ok(grants)
}

pub(super) fn infeasible_reasons(
    snapshot: &ClusterSnapshot,
    class: &Class,
    target: &PlacementTarget<'_>,
    out: &mut Vec<InfeasibleReason>,
) {
    if let Err(infeasible_reason) = choose(snapshot, class, target.machine.slot(), target.without) {
        out.push(infeasible_reason);
    }
}

#[inline]
pub(super) fn is_met(snapshot: &ClusterSnapshot, class: &Class, m: usize) -> bool {
    class.request.devices.is_empty() || choose(snapshot, class, m, &[]).is_ok()
}
