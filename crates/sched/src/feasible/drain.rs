//! A draining machine takes nothing new, neither by itself nor into an alloc.

use super::Spot;
use crate::board::Board;
use crate::board::machines::Status;
use crate::class::Class;
use cellwright_cell::reason::Misfit;

pub(super) fn misfits(board: &Board, _: &Class, spot: &Spot<'_>, out: &mut Vec<Misfit>) {
    if board.machines.status[spot.machine.slot()] == Status::Draining {
        out.push(Misfit::MachineDraining);
    }
}
