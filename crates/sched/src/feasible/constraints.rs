//! Hard constraints over machine attributes (B4) and folders that machines lend (X9), judged once
//! per list and attribute profile.

use super::Spot;
use crate::board::Board;
use crate::board::constraints::OK;
use crate::class::Class;
use cellwright_cell::reason::Misfit;

pub(super) fn misfits(board: &Board, class: &Class, spot: &Spot<'_>, out: &mut Vec<Misfit>) {
    let Some(list) = class.request.constraints else { return };
    let Some(attributes) = board.attributes(spot.machine) else { return };
    let constraints = board.constraints.constraints(list).iter().enumerate();
    for (position, constraint) in constraints {
        if constraint.is_hard() && !constraint.holds(attributes) {
            out.push(Misfit::Constraint { position: position as u32 });
        }
    }
    let not_lent = board.constraints.loans(list).iter().filter(|loan| !loan.is_granted(attributes));
    out.extend(not_lent.cloned().map(Misfit::Volume));
}

#[inline]
pub(super) fn holds(board: &Board, class: &Class, m: usize) -> bool {
    class.request.constraints.is_none_or(|list| {
        board.constraints.judgement(list, board.machines.profile[m]).failing == OK
    })
}
