//! Tasks of a job inside an alloc set go into placed allocs of that set and nowhere else.

use super::Spot;
use crate::board::Board;
use crate::class::Class;
use cellwright_cell::reason::Misfit;

pub(super) fn misfits(board: &Board, class: &Class, spot: &Spot<'_>, out: &mut Vec<Misfit>) {
    let member = match (class.request.alloc_set, spot.alloc) {
        (None, None) => true,
        (Some(set), Some(alloc)) => board
            .allocs
            .get(&alloc)
            .is_some_and(|row| set.0 == Some(row.set) && row.machine == spot.machine),
        _ => false,
    };
    if !member {
        out.push(Misfit::NoAllocHere);
    }
}
