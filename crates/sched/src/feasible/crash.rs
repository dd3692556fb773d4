//! A task stays away from machines it crashed on too often.

use super::Spot;
use crate::board::Board;
use crate::class::Class;
use cellwright_cell::id::MachineId;
use cellwright_cell::reason::Misfit;

pub(super) fn misfits(_: &Board, class: &Class, spot: &Spot<'_>, out: &mut Vec<Misfit>) {
    if class.request.avoid.contains(&spot.machine) {
        out.push(Misfit::CrashedHere);
    }
}

#[inline]
pub(super) fn holds(class: &Class, m: usize) -> bool {
    class.request.avoid.is_empty() || !class.request.avoid.contains(&MachineId(m as u32))
}
