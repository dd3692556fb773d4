//! A draining machine takes nothing new, except into allocs that are still there.

use super::Spot;
use crate::board::Board;
use crate::board::machines::Status;
use crate::class::Class;
use cellwright_cell::reason::Misfit;

pub(super) fn misfits(board: &Board, _: &Class, spot: &Spot<'_>, out: &mut Vec<Misfit>) {
    let draining = board.machines.status[spot.machine.slot()] == Status::Draining;
    if draining && spot.alloc.is_none() {
        out.push(Misfit::MachineDraining);
    }
}
