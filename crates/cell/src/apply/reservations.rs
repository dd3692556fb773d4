//! Reservations (B40): the estimator's batch of expected usage. The batch is a fact about usage, so
//! a rise is accepted even when the machine is over-committed by it: that is flagged, and non-prod
//! is evicted. A pending task keeps the figure for its next placement.
//!
//! Allocs have none: their owner may fill what is unused inside, and a charge below what its tasks
//! reserve would sell the same room twice.
//!
//! `changed_at` is left alone: it is the time since which the task is in its state, which the
//! estimator itself reads.

use super::Context;
use crate::command::{Done, ReservationChange, Verdict};
use crate::event::TaskChange;
use crate::reason::{Allowed, Conflict, Given, Reason, Rejection, TaskAction};
use crate::resource::{Dimension, Resources};
use crate::spec::{JobKind, JobSpec};
use crate::task::{Task, TaskState};

impl Context<'_> {
    pub(super) fn set_reservations(&mut self, changes: &[ReservationChange]) -> Verdict {
        let mut refused = Vec::new();
        let mut changed = false;
        for (position, change) in changes.iter().enumerate() {
            match self.set_reservation(change) {
                Ok(some) => changed |= some,
                Err(rejection) => refused.push((position as u32, rejection)),
            }
        }
        if changed || !refused.is_empty() {
            Self::partial_verdict(refused)
        } else {
            Ok(Done::Unchanged)
        }
    }

    /// Whether it differs from what was reserved.
    fn set_reservation(&mut self, change: &ReservationChange) -> Result<bool, Rejection> {
        let ReservationChange { task, attempt, reservation } = *change;
        let Some(row) = self.state.tasks.get(task) else {
            return Err(Rejection::NoSuchRow(task.into()));
        };
        if row.attempt != attempt {
            return Err(Rejection::StaleAttempt { task, expected: attempt, found: row.attempt });
        }
        let job = self.state.jobs.get(row.job);
        let spec = match row.state {
            state if state.holds_resources() => self.state.spec_of(row),
            TaskState::Pending => job.map(|job| job.spec()),
            state => {
                let action = TaskAction::Reservation;
                return Err(Rejection::WrongTaskState { task, state, action });
            }
        };
        let Some(spec) = spec else {
            return Err(Rejection::NoSuchRow(row.job.into()));
        };
        check_reservation(spec, row, reservation)?;
        if row.reservation == reservation {
            return Ok(false);
        }
        self.touch_machines(task);
        self.state.edit_task(task, |t| t.reservation = reservation);
        self.task_event(task, TaskChange::ReservationChanged, Reason::Reservation);
        Ok(true)
    }
}

/// Reservations lie between the disk a task must retain and its counted limits.
fn check_reservation(spec: &JobSpec, row: &Task, reservation: Resources) -> Result<(), Rejection> {
    if spec.kind == JobKind::AllocSet {
        return Err(Rejection::WrongState(Conflict::AllocAtLimits));
    }
    if !spec.reclaimable {
        return Err(Rejection::WrongState(Conflict::NotReclaimable));
    }
    let limits = row.counted_limits(spec.limits_of(row.index));
    let kept = spec.retain_disk.as_ref().map_or(0, |retain| retain.bytes);
    let least = Resources { disk: kept, ..Resources::ZERO };
    let outside = |d: &Dimension| {
        let value = reservation.get(*d);
        value < least.get(*d) || value > limits.get(*d)
    };
    match Dimension::ALL.into_iter().find(outside) {
        None => Ok(()),
        Some(d) => Err(Rejection::bad_field(
            format!("reservation.{d}"),
            Given::text(reservation.get(d)),
            Allowed::range(least.get(d), limits.get(d)),
        )),
    }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, all, job, key};
    use crate::command::{Command, ReservationChange};
    use crate::id::MachineId;
    use crate::resource::Resources;
    use crate::spec::{JobSpec, RetainDisk};
    use crate::time::Span;
    use crate::words;

    fn set(cell: &mut Cell, attempt: u32, reservation: Resources) -> String {
        let task = cell.task_id("jfoo", 0);
        let changes = vec![ReservationChange { task, attempt, reservation }];
        let verdict = cell.send(Command::SetReservations(changes));
        words::verdict(&cell.state, &verdict)
    }

    /// On a running task with limits of 10 each.
    fn check(shape: fn(&mut JobSpec), reservation: Resources, want: &str) {
        let mut cell = Cell::with_machines(1);
        let mut spec = job("jfoo", 1, 100);
        shape(&mut spec);
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        let message = set(&mut cell, 1, reservation);
        assert!(message.ends_with(want), "{reservation:?}: {message}");
        let reserved = cell.state.machine_load(MachineId(0)).unwrap().reserved;
        let held = if want == "done" { reservation } else { all(10) };
        assert_eq!(reserved, held);
    }

    #[test]
    fn a_reservation_lies_between_what_is_retained_and_the_limits() {
        check(|_| {}, all(3), "done");
        check(|_| {}, all(0), "done");
        check(|_| {}, all(10), "nothing to do");
        let high = "field reservation.ram: value 11 is not valid; allowed: 0 to 10";
        check(|_| {}, Resources { ram: 11, ..all(3) }, high);
        let keep = |spec: &mut JobSpec| {
            spec.retain_disk =
                Some(RetainDisk { bytes: 4, keep: Span::seconds(1), log_saver: None });
        };
        check(keep, all(4), "done");
        let low = "field reservation.disk: value 3 is not valid; allowed: 4 to 10";
        check(keep, all(3), low);
        check(|spec| spec.reclaimable = false, all(3), "not reclaimable");
        let alloc = |spec: &mut JobSpec| spec.kind = crate::spec::JobKind::AllocSet;
        check(alloc, all(3), "counted against them");
    }

    #[test]
    fn a_pending_task_keeps_it_for_its_next_place_and_others_have_none() {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 1, 100));
        assert_eq!(set(&mut cell, 0, all(4)), "done");
        assert!(set(&mut cell, 1, all(4)).contains("is at attempt 0, not 1"));
        cell.run("jfoo", 0, "m1");
        let changed_at = cell.task("jfoo", 0).changed_at;
        assert_eq!(cell.state.machine_load(MachineId(0)).unwrap().reserved, all(4));
        assert_eq!(set(&mut cell, 1, all(5)), "done");
        assert_eq!(cell.task("jfoo", 0).changed_at, changed_at);
        cell.ok(Command::StopJob { job: key("ubar/jfoo"), expect: None });
        assert!(set(&mut cell, 1, all(5)).contains("neither holds nor waits"));
    }

    #[test]
    fn a_rise_beyond_the_machine_is_taken_and_flagged() {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 1, 100));
        cell.run("jfoo", 0, "m1");
        set(&mut cell, 1, all(1));
        let mut big = job("jbar", 1, 200);
        big.task.limits = all(99);
        cell.submit(&big);
        cell.run("jbar", 0, "m1");
        assert_eq!(set(&mut cell, 1, all(2)), "done");
        assert!(cell.state.machines().get(MachineId(0)).unwrap().over_committed);
        assert_eq!(cell.event_lines.len(), 2, "{:?}", cell.event_lines);
        assert_eq!(set(&mut cell, 1, all(1)), "done");
        assert!(!cell.state.machines().get(MachineId(0)).unwrap().over_committed);
    }
}
