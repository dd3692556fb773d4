//! A machine holds so many tasks and no more, whatever they ask for: its agent pays for each. Tasks
//! inside allocs count, or an alloc without room of its own would be a way around it.

use super::Spot;
use crate::board::Board;
use crate::class::Class;
use cellwright_cell::id::TaskId;
use cellwright_cell::reason::Misfit;

pub(super) fn misfits(board: &Board, _: &Class, spot: &Spot<'_>, out: &mut Vec<Misfit>) {
    out.extend(misfit(board, spot));
}

/// Those imagined gone have left, allocs with the tasks inside them.
pub(crate) fn misfit(board: &Board, spot: &Spot<'_>) -> Option<Misfit> {
    let most = board.machine_tasks?;
    let leaves =
        |task: &TaskId| (1 + board.members(*task).len() + board.reserved_in(*task).len()) as u64;
    let left: u64 = spot.without.iter().map(leaves).sum();
    let held = board.machines.tasks.get(spot.machine.slot()).map_or(0, |held| u64::from(*held));
    (held.saturating_sub(left) >= most).then_some(Misfit::MachineFull { most })
}

/// How many more the machine takes.
#[inline]
pub(crate) fn places(board: &Board, m: usize) -> u64 {
    let held = u64::from(board.machines.tasks[m]);
    board.machine_tasks.map_or(u64::MAX, |most| most.saturating_sub(held))
}
