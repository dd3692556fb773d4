//! A machine that is down or unknown takes nothing.

use super::Spot;
use crate::board::Board;
use crate::board::machines::Status;
use crate::class::Class;
use cellwright_cell::reason::Misfit;

pub(super) fn misfits(board: &Board, _: &Class, spot: &Spot<'_>, out: &mut Vec<Misfit>) {
    let status = board.machines.status.get(spot.machine.slot()).copied();
    if status.unwrap_or(Status::Gone) <= Status::Down {
        out.push(Misfit::MachineDown);
    }
}
