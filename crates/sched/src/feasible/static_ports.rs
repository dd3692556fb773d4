//! Two tasks that insist on one port never share a machine. The reason names the holder.

use super::{Spot, is_gone};
use crate::board::Board;
use crate::class::Class;
use cellwright_cell::id::TaskId;
use cellwright_cell::reason::Misfit;

fn holder(board: &Board, m: usize, port: u16, without: &[TaskId]) -> Option<TaskId> {
    let used = &board.machines.ports[m].used;
    let from = used.partition_point(|(p, _)| *p < port);
    let mut holders = used[from..].iter().take_while(|(p, _)| *p == port).map(|(_, t)| *t);
    holders.find(|task| !is_gone(board, m, *task, without))
}

pub(super) fn misfits(board: &Board, class: &Class, spot: &Spot<'_>, out: &mut Vec<Misfit>) {
    for port in &class.request.static_ports {
        let holder = holder(board, spot.machine.slot(), *port, spot.without);
        if holder.is_some() {
            out.push(Misfit::StaticPort { port: *port, holder });
        }
    }
}

#[inline]
pub(super) fn holds(board: &Board, class: &Class, m: usize) -> bool {
    class.request.static_ports.iter().all(|port| holder(board, m, *port, &[]).is_none())
}
