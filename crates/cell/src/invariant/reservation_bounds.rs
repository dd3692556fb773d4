//! A reservation is at most what the task's limits count for: reclamation lends out what is unused,
//! it never adds. It is at least the disk that must outlive the task, which becomes retained disk
//! when the task leaves.

use super::{Check, violation};
use crate::state::State;

const NAME: &str = "reservation_bounds";

pub(super) fn check(state: &State) -> Check {
    for (id, task) in state.tasks.iter() {
        let Some(spec) = state.spec_of(task) else { continue };
        let limits = task.counted_limits(spec.limits_of(task.index));
        if let Some(excess) = task.reservation.first_excess(limits) {
            let detail = format!("reserves more than its limits: {excess}");
            return Err(violation(NAME, state.task_name(id), detail));
        }
        let floor = spec.retain_disk.as_ref().map_or(0, |retain| retain.bytes);
        // Also while it is pending: the reservation is not recomputed when it is placed.
        if !task.state.is_dead() && task.reservation.disk < floor {
            let detail = format!("reserves {} of disk, must retain {floor}", task.reservation.disk);
            return Err(violation(NAME, state.task_name(id), detail));
        }
    }
    Ok(())
}
