//! Room (B40): prod by limits, everything by reservations, on the machine or inside the alloc.

use super::Spot;
use crate::board::Board;
use crate::board::machines::{RESERVED_DISK, Room};
use crate::class::{Class, SUMS, charges};
use cellwright_cell::id::TaskId;
use cellwright_cell::reason::Misfit;
use cellwright_cell::resource::{DIMENSIONS, Dimension, Shortfall};

/// Room at the spot once the tasks imagined gone have left.
pub(crate) fn room(board: &Board, spot: &Spot<'_>) -> Room {
    let mut room = match spot.alloc {
        None => board.machines.room[spot.machine.slot()],
        Some(alloc) => board.allocs.get(&alloc).map_or(Room::default(), |row| row.room),
    };
    for task in spot.without {
        let row = &board.tasks[task.slot()];
        if row.place.alloc() == spot.alloc {
            room.give(&held(board, *task));
        }
    }
    room
}

/// What a placed task gives back when it is evicted: its charges without the disk it leaves.
pub(crate) fn held(board: &Board, task: TaskId) -> [i64; SUMS] {
    let row = &board.tasks[task.slot()];
    let request = &board.class(row.class).request;
    let mut held = charges(request.priority, request.limits, row.place.reservation());
    held[RESERVED_DISK] -= row.leaves_disk as i64;
    held
}

pub(super) fn misfits(board: &Board, class: &Class, spot: &Spot<'_>, out: &mut Vec<Misfit>) {
    let room = room(board, spot);
    for (d, dimension) in Dimension::ALL.into_iter().enumerate() {
        // Where both sums fall short, the one that counts for everybody is reported.
        let short = [d + DIMENSIONS, d].into_iter().find(|i| class.need[*i] > room.free[*i]);
        if let Some(i) = short {
            let (asked, available) = (class.take[i] as u64, room.free[i].max(0) as u64);
            out.push(Misfit::Resource(Shortfall { dimension, asked, available }));
        }
    }
}
