//! A machine that is short although its agent holds back whoever it may takes production alone.

use super::Spot;
use crate::board::Board;
use crate::board::machines::Status;
use crate::class::Class;
use cellwright_cell::reason::Misfit;

pub(super) fn misfits(board: &Board, class: &Class, spot: &Spot<'_>, out: &mut Vec<Misfit>) {
    let short = board.machines.short.get(spot.machine.slot()).is_some_and(|short| *short);
    if short && class.least > Status::Short {
        out.push(Misfit::MachineShort);
    }
}
