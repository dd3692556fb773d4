//! Enough free ports in the machine's range for those the system shall choose.

use super::{Spot, is_gone};
use crate::board::Board;
use crate::class::Class;
use cellwright_cell::id::TaskId;
use cellwright_cell::reason::Misfit;

fn available(board: &Board, class: &Class, m: usize, without: &[TaskId]) -> u32 {
    let ports = &board.machines.ports[m];
    let own = class.request.static_ports.iter().filter(|p| ports.range.contains(**p)).count();
    let freed = match without {
        [] => 0,
        gone => {
            let freed = |(port, task): &&(u16, TaskId)| {
                ports.range.contains(*port) && is_gone(board, m, *task, gone)
            };
            ports.used.iter().filter(freed).count()
        }
    };
    let used = ports.used_in_range.saturating_sub(freed as u32);
    ports.range.count().saturating_sub(own as u32 + used)
}

pub(super) fn misfits(board: &Board, class: &Class, spot: &Spot<'_>, out: &mut Vec<Misfit>) {
    let asked = u32::from(class.request.ports);
    if asked == 0 {
        return;
    }
    let available = available(board, class, spot.machine.slot(), spot.without);
    if asked > available {
        out.push(Misfit::DynamicPorts { asked, available });
    }
}

#[inline]
pub(super) fn holds(board: &Board, class: &Class, m: usize) -> bool {
    let asked = u32::from(class.request.ports);
    asked == 0 || asked <= available(board, class, m, &[])
}
