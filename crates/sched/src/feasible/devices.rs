//! Devices, each on its own (X1): half a card free on each of two cards is not one free card.

use super::Spot;
use crate::board::Board;
use crate::class::Class;
use cellwright_cell::device::{Device, DeviceGrant, WHOLE};
use cellwright_cell::fit;
use cellwright_cell::id::TaskId;
use cellwright_cell::load::MachineLoad;
use cellwright_cell::reason::Misfit;

fn used_shares(board: &Board, m: usize, without: &[TaskId]) -> Vec<u16> {
    let mut used: Vec<u16> = board.machines.devices[m].iter().map(|d| d.used).collect();
    // Members of allocs are not charged for devices, so they give none back.
    let charged = |task: &&TaskId| board.tasks[task.slot()].place.alloc().is_none();
    for task in without.iter().filter(charged) {
        for grant in board.tasks[task.slot()].place.devices() {
            if let Some(used) = used.get_mut(usize::from(grant.device)) {
                *used = used.saturating_sub(grant.milli);
            }
        }
    }
    used
}

/// Picks devices for all requests in order: for each the fullest that still have the shares, so
/// that whole devices stay whole. Where that leaves a later request without, the cell's own search
/// for another division decides.
pub(crate) fn choose(
    board: &Board,
    class: &Class,
    m: usize,
    without: &[TaskId],
) -> Result<Vec<DeviceGrant>, Misfit> {
    if class.request.devices.is_empty() {
        return Ok(Vec::new());
    }
    let used = used_shares(board, m, without);
    let in_turn = choose_in_turn(board, class, m, &used);
    if in_turn.is_ok() || class.request.devices.len() == 1 {
        return in_turn;
    }
    let kinds = &board.machines.device_kinds;
    let slots = board.machines.devices[m].iter();
    let devices: Vec<Device> = slots.filter_map(|s| kinds.get(s.kind).cloned()).collect();
    let load = MachineLoad { devices: used, ..MachineLoad::default() };
    fit::choose_devices(&devices, &load, &class.request.devices)
}

fn choose_in_turn(
    board: &Board,
    class: &Class,
    m: usize,
    used: &[u16],
) -> Result<Vec<DeviceGrant>, Misfit> {
    let mut grants = Vec::new();
    let slots = &board.machines.devices[m];
    let mut free: Vec<u16> = used.iter().map(|used| WHOLE.saturating_sub(*used)).collect();
    for request in &class.request.devices {
        let accepted = |i: usize| {
            let device = board.machines.device_kinds.get(slots[i].kind);
            device.is_some_and(|d| request.accepts(d))
        };
        let mut fitting: Vec<usize> =
            (0..slots.len()).filter(|i| free[*i] >= request.milli && accepted(*i)).collect();
        let (asked, available) = (u32::from(request.count), fitting.len() as u32);
        if asked > available {
            let kind = request.kind.clone();
            return Err(Misfit::Device { kind, asked, milli: request.milli, available });
        }
        fitting.sort_unstable_by_key(|i| (free[*i], *i));
        for i in fitting.into_iter().take(asked as usize) {
            free[i] -= request.milli;
            grants.push(DeviceGrant { device: i as u8, milli: request.milli });
        }
    }
    Ok(grants)
}

pub(super) fn misfits(board: &Board, class: &Class, spot: &Spot<'_>, out: &mut Vec<Misfit>) {
    if let Err(misfit) = choose(board, class, spot.machine.slot(), spot.without) {
        out.push(misfit);
    }
}

#[inline]
pub(super) fn holds(board: &Board, class: &Class, m: usize) -> bool {
    class.request.devices.is_empty() || choose(board, class, m, &[]).is_ok()
}
