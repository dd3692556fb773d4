//! Named countable resources, operator-given or ephemeral (E1).

use super::Spot;
use crate::board::Board;
use crate::class::Class;
use cellwright_cell::id::TaskId;
use cellwright_cell::named::UNBOUNDED;
use cellwright_cell::reason::Misfit;

/// What is available of the name; `None` when it never runs out.
fn available(board: &Board, m: usize, name: u32, without: &[TaskId]) -> Option<u64> {
    let room = board.machines.named_room(m, name);
    if room.capacity == UNBOUNDED {
        return None;
    }
    let held = |task: &TaskId| {
        let row = &board.tasks[task.slot()];
        if row.place.alloc().is_some() {
            return 0;
        }
        let named = &board.class(row.class).request.named;
        named.iter().filter(|(n, _)| *n == name).map(|(_, amount)| *amount).sum()
    };
    let freed: u64 = without.iter().map(held).sum();
    Some(room.capacity.saturating_sub(room.used.saturating_sub(freed)))
}

fn short(board: &Board, m: usize, ask: (u32, u64), without: &[TaskId]) -> Option<u64> {
    let available = available(board, m, ask.0, without)?;
    let nothing_here = board.machines.named_room(m, ask.0).capacity == 0;
    (ask.1 > available || nothing_here).then_some(available)
}

pub(super) fn misfits(board: &Board, class: &Class, spot: &Spot<'_>, out: &mut Vec<Misfit>) {
    for ask in &class.request.named {
        let Some(available) = short(board, spot.machine.slot(), *ask, spot.without) else {
            continue;
        };
        if let Some(name) = board.resource_name(ask.0) {
            out.push(Misfit::Named { name: name.clone(), asked: ask.1, available });
        }
    }
}

#[inline]
pub(super) fn holds(board: &Board, class: &Class, m: usize) -> bool {
    class.request.named.iter().all(|ask| short(board, m, *ask, &[]).is_none())
}
