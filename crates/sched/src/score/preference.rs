//! Soft constraints: the sum of the weights of those that do not hold.

use crate::board::Board;
use crate::class::Class;

#[inline]
pub(crate) fn missed(board: &Board, class: &Class, m: usize) -> u16 {
    class
        .request
        .constraints
        .map_or(0, |list| board.constraints.judgement(list, board.machines.profile[m]).missed)
}
