//! Room (B40): prod by limits, everything by reservations, on the machine or inside the alloc.

use super::PlacementTarget;
use crate::class::{Class, SUMS, charges};
use crate::cluster_snapshot::ClusterSnapshot;
use crate::cluster_snapshot::machines::{RESERVED_DISK, Room};
use cellwright_cell::id::TaskId;
use cellwright_cell::reason::InfeasibleReason;
use cellwright_cell::resource::{DIMENSIONS, Dimension, Shortfall};

/// Room at the target once the tasks assumed to be gone have left.
pub(crate) fn room(snapshot: &ClusterSnapshot, target: &PlacementTarget<'_>) -> Room {
    let mut room = match target.alloc {
        None => snapshot.machines.room[target.machine.slot()],
        Some(alloc) => snapshot.allocs.get(&alloc).map_or(Room::default(), |row| row.room),
    };
    for task in target.without {
        let row = &snapshot.tasks[task.slot()];
        if row.placement.alloc() == target.alloc {
            room.give(&released_by(snapshot, *task));
        }
    }
    room
}

/// What a placed task releases when it is evicted: its charges without the disk it leaves.
pub(crate) fn released_by(snapshot: &ClusterSnapshot, task: TaskId) -> [i64; SUMS] {
    let row = &snapshot.tasks[task.slot()];
    let request = &snapshot.class(row.class).request;
    let mut held = charges(request.by_limits, request.limits, row.placement.reservation());
    held[RESERVED_DISK] -= row.retained_on_exit as i64;
    held
}

pub(super) fn infeasible_reasons(
    snapshot: &ClusterSnapshot,
    class: &Class,
    target: &PlacementTarget<'_>,
    out: &mut Vec<InfeasibleReason>,
) {
    let room = room(snapshot, target);
    for (d, dimension) in Dimension::ALL.into_iter().enumerate() {
        // Where both sums fall short, the one that counts for all tasks is reported.
        let first_short = [d + DIMENSIONS, d].into_iter().find(|i| class.need[*i] > room.free[*i]);
        if let Some(i) = first_short {
            let (requested, available) = (class.charge[i] as u64, room.free[i].max(0) as u64);
            out.push(InfeasibleReason::Resource(Shortfall { dimension, requested, available }));
        }
    }
}
