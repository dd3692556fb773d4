//! The lifecycle of a task: every transition from one state to the next, with its event. Handlers
//! decide *that* a transition happens; its effects on the row, the machine and the alloc are
//! defined here once.

use super::Context;
use crate::event::{EventKind, TaskChange};
use crate::fit;
use crate::hold::Holds;
use crate::id::{JobId, MachineId, TaskId};
use crate::job::JobState;
use crate::machine::Machine;
use crate::reason::Reason;
use crate::retry;
use crate::spec::{JobKind, JobSpec};
use crate::spec_change;
use crate::task::{
    CRASH_PAIR_RETENTION, CrashPair, ExitClass, LastAttemptEnd, MAX_CRASH_PAIRS, StopCause, Task,
    TaskOutcome, TaskState,
};
use crate::time::{Span, Time};
use std::sync::Arc;

impl Context<'_> {
    pub(super) fn task_event(&mut self, id: TaskId, change: TaskChange, reason: Reason) {
        if let Some(task) = self.state.tasks.get(id) {
            let (job, index, attempt) = (task.job, task.index, task.attempt);
            self.emit(EventKind::Task { task: id, job, index, attempt, change }, reason);
        }
    }

    /// Edits a row, stamps it, and records the machines whose sums may have changed.
    pub(super) fn set_task(&mut self, id: TaskId, change: impl FnOnce(&mut Task)) {
        let now = self.now;
        self.touch_machines(id);
        let mut released = None;
        self.state.edit_task(id, |task| {
            let held = task.holds.reserved().map(|hold| hold.machine);
            change(task);
            task.changed_at = now;
            // A reservation elsewhere needs a running task, whatever stopped it.
            if task.state != TaskState::Running {
                task.holds.release_reserved();
                released = held;
                task.restart_due = false;
            }
        });
        self.touch_machines(id);
        if let Some(machine) = released {
            self.task_event(id, TaskChange::HoldReleased { machine }, Reason::NoLongerRuns);
        }
    }

    /// Records the machines on which a task holds something: their sums may change.
    pub(super) fn touch_machines(&mut self, id: TaskId) {
        let Some(task) = self.state.tasks.get(id) else { return };
        for (_, hold) in task.holds.iter() {
            // Reports come machine by machine: one record serves many tasks.
            if self.touched.last() != Some(&hold.machine) {
                self.touched.push(hold.machine);
            }
        }
    }

    pub(super) fn task_spec(&self, task: &Task) -> Option<Arc<JobSpec>> {
        self.state.spec_of(task).cloned()
    }

    /// Orders a task to stop, and with an alloc the tasks inside it. A pending task dies at once
    /// when killed; a stopping task keeps its first cause, unless it is killed now.
    pub(super) fn stop_task(&mut self, id: TaskId, cause: StopCause, reason: Reason) {
        let Some(task) = self.state.tasks.get(id).cloned() else { return };
        match (task.state, task.machine()) {
            (TaskState::Assigned | TaskState::Running, Some(machine)) => {
                self.stop_inner(id, &task);
                self.begin_stop(id, &task, machine, cause);
                self.record_end(id, machine, reason.clone());
                self.task_event(id, TaskChange::Stopping { machine }, reason);
            }
            (TaskState::Stopping(old), Some(machine)) if supersedes(old, cause) => {
                self.begin_stop(id, &task, machine, cause);
                self.record_end(id, machine, reason.clone());
                self.task_event(id, TaskChange::Stopping { machine }, reason);
            }
            (TaskState::Pending | TaskState::Deferred, _) if cause == StopCause::Killed => {
                self.mark_dead(id, TaskOutcome::Killed, TaskChange::Killed, reason);
            }
            _ => {}
        }
    }

    /// Records on the row why its attempt ends.
    pub(super) fn record_end(&mut self, id: TaskId, machine: MachineId, why: Reason) {
        let Some(row) = self.state.machines.get(machine) else { return };
        let (at, machine) = (self.now, row.spec.name.clone());
        self.set_task(id, |t| {
            t.last_end =
                Some(LastAttemptEnd { attempt: t.attempt, at, machine, why, notice: None });
        });
    }

    /// Its room is released here, so disk that must be retained is charged in the same step.
    fn begin_stop(&mut self, id: TaskId, task: &Task, machine: MachineId, cause: StopCause) {
        let held = task.state.holds_resources();
        if !cause.restarts_in_place() {
            self.forget_limits_in_force(id);
        }
        self.set_task(id, |t| t.state = TaskState::Stopping(cause));
        if held && !cause.restarts_in_place() {
            self.retain_disk(id, task, machine);
        }
    }

    fn stop_inner(&mut self, id: TaskId, task: &Task) {
        let is_alloc = self.task_spec(task).is_some_and(|s| s.kind == JobKind::AllocSet);
        if !is_alloc {
            return;
        }
        self.release_reserved_in(id);
        let inner = self.state.alloc_load(id).map(|l| l.tasks.clone()).unwrap_or_default();
        for inner_task in inner {
            self.stop_task(inner_task, StopCause::AllocMoved, Reason::AllocMoved);
        }
    }

    /// A stopping task is gone: what follows depends on why it stopped.
    pub(super) fn task_stopped(&mut self, id: TaskId) {
        let Some(task) = self.state.tasks.get(id).cloned() else { return };
        let (TaskState::Stopping(cause), Some(machine)) = (task.state, task.machine()) else {
            return;
        };
        self.inner_tasks_stopped(id);
        let evicted = TaskChange::Evicted { machine };
        match cause {
            StopCause::Killed => {
                self.mark_dead(id, TaskOutcome::Killed, TaskChange::Killed, Reason::Requested)
            }
            StopCause::RestartInPlace => self.restart_in_place(id, machine, Reason::UpdateRestart),
            StopCause::Restart => self.restart_in_place(id, machine, Reason::RestartRequested),
            StopCause::Unhealthy => self.unhealthy_stopped(id, &task, machine),
            // The preemptor is on record in the event that stopped it.
            StopCause::Preempted => self.requeue(id, evicted, Reason::AgentReport, Time::ZERO),
            StopCause::Drained => self.requeue(id, evicted, Reason::Drained, Time::ZERO),
            StopCause::OverCommitted => {
                self.requeue(id, evicted, Reason::OverCommitted, Time::ZERO);
            }
            StopCause::AllocMoved => self.requeue(id, evicted, Reason::AllocMoved, Time::ZERO),
            StopCause::UpdateMoves => self.requeue(id, evicted, Reason::UpdateMove, Time::ZERO),
            StopCause::Rebalanced => self.requeue(id, evicted, Reason::Rebalanced, Time::ZERO),
            StopCause::GangBroken => self.requeue(id, evicted, Reason::GangBroken, Time::ZERO),
            StopCause::ResourcePressure => {
                let noted = task.last_end.filter(|end| end.attempt == task.attempt);
                let reason = noted.map_or(Reason::AgentReport, |end| end.why);
                self.requeue(id, evicted, reason, Time::ZERO);
            }
        }
    }

    /// No tasks are left inside an alloc that was seen empty.
    fn inner_tasks_stopped(&mut self, id: TaskId) {
        let inner = self.state.alloc_load(id).map(|l| l.tasks.clone()).unwrap_or_default();
        for inner_task in inner {
            self.stop_task(inner_task, StopCause::AllocMoved, Reason::AllocMoved);
            self.task_stopped(inner_task);
        }
    }

    /// A failure in a row like any other, except that the task restarts where it is.
    fn unhealthy_stopped(&mut self, id: TaskId, task: &Task, machine: MachineId) {
        let exit = ExitClass::Unhealthy;
        if let Some(end) = self.count_attempt_end(id, task, exit) {
            return self.give_up(id, machine, exit, end);
        }
        self.restart_in_place(id, machine, Reason::Unhealthy);
    }

    /// Counts one more end of a task; returns why it is not retried, if it is not.
    fn count_attempt_end(&mut self, id: TaskId, task: &Task, exit: ExitClass) -> Option<Reason> {
        let spec = self.task_spec(task)?;
        let decision = retry::decide_retry(&spec.restart, task, exit);
        if decision.failures_in_row != task.failures_in_row
            || decision.separate_counts != task.apart
        {
            self.set_task(id, |t| {
                t.failures_in_row = decision.failures_in_row;
                t.apart = decision.separate_counts;
            });
        }
        decision.final_reason
    }

    /// Records the retry rule that made an end final. The time when it was ordered to stop and the
    /// outcome of the notice stay as they were.
    fn record_final_reason(&mut self, id: TaskId, end: &Reason) {
        let row = self.state.tasks.get(id);
        let noted =
            row.is_some_and(|t| t.last_end.as_ref().is_some_and(|last| last.attempt == t.attempt));
        if noted && matches!(end, Reason::NotRetried { .. }) {
            self.set_task(id, |t| {
                if let Some(last) = &mut t.last_end {
                    last.why = end.clone();
                }
            });
        }
    }

    /// The end of an attempt that is final for the task.
    fn give_up(&mut self, id: TaskId, machine: MachineId, exit: ExitClass, end: Reason) {
        self.record_final_reason(id, &end);
        self.mark_dead(id, TaskOutcome::Failed(exit), TaskChange::GaveUp { machine, exit }, end);
    }

    fn restart_in_place(&mut self, id: TaskId, machine: MachineId, reason: Reason) {
        self.forget_limits_in_force(id);
        self.set_task(id, |t| {
            t.state = TaskState::Assigned;
            t.attempt += 1;
            t.healthy = true;
        });
        self.task_event(id, TaskChange::Restarted { machine }, reason);
    }

    /// Back to pending, with the spec that new placements use and without holds. A task of a job
    /// that is stopping, or that a resize removed, dies instead.
    pub(super) fn requeue(
        &mut self,
        id: TaskId,
        change: TaskChange,
        reason: Reason,
        not_before: Time,
    ) {
        self.forget_limits_in_force(id);
        let Some(task) = self.state.tasks.get(id).cloned() else { return };
        let Some(job) = self.state.jobs.get(task.job) else { return };
        let (version, limits) = (job.version, job.spec().limits_of(task.index));
        let new_program = spec_change::becomes_new_program(job, &task);
        // A failed attempt has surely ended, so there is no lease to wait for.
        let backs_off = matches!(change, TaskChange::Failed { .. });
        let unwanted = job.state != JobState::Active || !job.wants(task.index);
        if unwanted {
            return self.mark_dead(id, TaskOutcome::Killed, TaskChange::Killed, reason);
        }
        if let Some((machine, exit)) = external_end(change, &reason)
            && let Some(end) = self.count_attempt_end(id, &task, exit)
        {
            return self.give_up(id, machine, exit, end);
        }
        self.vacate(id, &task);
        self.set_task(id, |t| {
            t.state = TaskState::Pending;
            t.healthy = true;
            t.holds = Holds::default();
            t.version = version;
            t.reservation = limits;
            t.not_before = not_before;
            if new_program {
                t.crashed_on = Vec::new();
            }
            if new_program {
                (t.failures_in_row, t.apart) = (0, Vec::new());
            }
            if new_program && backs_off {
                t.not_before = Time::ZERO;
            }
        });
        self.task_event(id, change, reason);
        self.mark_maybe_ended(task.job);
    }

    /// A holder leaves its machine without having been ordered to stop. A task that holds nothing
    /// for others and leaves nothing behind needs no such step.
    fn vacate(&mut self, id: TaskId, task: &Task) {
        let (true, Some(machine)) = (task.state.holds_resources(), task.machine()) else { return };
        let plain = |s: &Arc<JobSpec>| s.kind != JobKind::AllocSet && s.retain_disk.is_none();
        if self.state.spec_of(task).is_some_and(plain) {
            return;
        }
        self.release_reserved_in(id);
        let inner = self.state.alloc_load(id).map(|l| l.tasks.clone()).unwrap_or_default();
        for inner_task in inner {
            self.stop_task(inner_task, StopCause::AllocMoved, Reason::AllocMoved);
            self.task_stopped(inner_task);
        }
        self.set_task(id, |t| t.state = TaskState::Stopping(StopCause::Killed));
        self.retain_disk(id, task, machine);
    }

    pub(super) fn mark_dead(
        &mut self,
        id: TaskId,
        fate: TaskOutcome,
        change: TaskChange,
        reason: Reason,
    ) {
        self.forget_limits_in_force(id);
        let Some(task) = self.state.tasks.get(id).cloned() else { return };
        self.vacate(id, &task);
        let Some(job) = self.state.jobs.get(task.job) else { return };
        let (version, limits) = (job.version, job.spec().limits_of(task.index));
        self.set_task(id, |t| {
            t.state = TaskState::Dead(fate);
            t.holds = Holds::default();
            // Only holders may be behind the job's version: a dead row keeps no old spec in use.
            t.version = version;
            t.reservation = limits;
        });
        self.task_event(id, change, reason);
        self.mark_maybe_ended(task.job);
    }

    fn mark_maybe_ended(&mut self, job: JobId) {
        if self.maybe_ended.last() != Some(&job) {
            self.maybe_ended.push(job);
        }
    }

    /// An attempt failed on `machine`: remember the pairing, back off, or give up.
    pub(super) fn attempt_failed(&mut self, id: TaskId, machine: MachineId, exit: ExitClass) {
        let Some(task) = self.state.tasks.get(id).cloned() else { return };
        let Some(spec) = self.task_spec(&task) else { return };
        let end = self.count_attempt_end(id, &task, exit);
        let mut tried = task;
        remember_crash(&mut tried.crashed_on, machine, self.now);
        // A task that crashed wherever it may run is at fault itself: it is retried, with its
        // back-off.
        let has_more = tried.crashed_on.is_empty() || self.has_untried_machine(&tried);
        let crashed_on = if has_more { tried.crashed_on } else { Vec::new() };
        self.set_task(id, |t| t.crashed_on = crashed_on);
        self.record_end(id, machine, Reason::Exited(exit));
        if let Some(end) = end {
            return self.give_up(id, machine, exit, end);
        }
        let failures = self.state.tasks.get(id).map_or(0, |row| row.failures_in_row);
        let wait = back_off(spec.restart.backoff, spec.restart.backoff_max, failures);
        let not_before = self.now.plus(wait);
        self.requeue(id, TaskChange::Failed { machine }, Reason::Exited(exit), not_before);
    }

    /// Whether the task may run on some machine that accepts tasks and that it does not avoid: for
    /// a task inside an alloc set, on one that has an alloc of the set; for one of a daemon, on its
    /// own.
    fn has_untried_machine(&self, task: &Task) -> bool {
        let Some(spec) = self.task_spec(task) else { return true };
        let only = self.state.jobs.get(task.job).and_then(|job| job.machine_for(task.index));
        let may_go = |machine: MachineId| {
            if only.is_some_and(|only| only != machine) {
                return false;
            }
            let row = self.state.machines.get(machine).filter(|row| row.is_schedulable());
            let allows = |row: &Machine| {
                spec.constraints.iter().all(|c| !c.is_hard() || c.holds_on(&row.spec))
            };
            let lends = |row| fit::missing_host_volume(&spec, row).is_none();
            row.is_some_and(|row| allows(row) && lends(row)) && !task.avoids(machine, self.now)
        };
        let Some(set) = &spec.alloc_set else {
            return self.state.machines.iter().any(|(machine, _)| may_go(machine));
        };
        let set = self.state.job_named(set).and_then(|set| self.state.jobs.get(set));
        let allocs = set.map_or(&[][..], |set| &set.tasks);
        let place = |alloc: &TaskId| self.state.tasks.get(*alloc).and_then(|row| row.machine());
        allocs.iter().filter_map(place).any(may_go)
    }
}

/// A pending task that is to run another program has not failed yet: it starts without the back-off
/// of the one before. Only a wait caused by its own failure is a back-off; any other wait may be
/// for a lease, as is every wait of a job that has leases (`leased`).
pub(super) fn reset_failures(task: &mut Task, leased: bool) {
    (task.failures_in_row, task.apart) = (0, Vec::new());
    let failed = task
        .last_end
        .as_ref()
        .is_some_and(|last| last.attempt == task.attempt && matches!(last.why, Reason::Exited(_)));
    if failed && !leased {
        task.not_before = Time::ZERO;
    }
}

/// A kill is final, and a move or preemption takes precedence over a restart in place.
fn supersedes(old: StopCause, new: StopCause) -> bool {
    (new == StopCause::Killed && old != StopCause::Killed)
        || (old.restarts_in_place() && !new.restarts_in_place())
}

/// The kind of end for a task that goes back to pending because of the cell. A move for a new spec
/// is its owner's request.
fn external_end(change: TaskChange, reason: &Reason) -> Option<(MachineId, ExitClass)> {
    match change {
        TaskChange::Lost { machine } => Some((machine, ExitClass::Lost)),
        TaskChange::Evicted { machine } if *reason != Reason::UpdateMove => {
            Some((machine, ExitClass::Evicted))
        }
        _ => None,
    }
}

fn remember_crash(pairs: &mut Vec<CrashPair>, machine: MachineId, now: Time) {
    let until = now.plus(CRASH_PAIR_RETENTION);
    pairs.retain(|pair| now < pair.until);
    if let Some(pair) = pairs.iter_mut().find(|p| p.machine == machine) {
        pair.crashes = pair.crashes.saturating_add(1);
        pair.until = until;
        return;
    }
    if pairs.len() == MAX_CRASH_PAIRS {
        pairs.remove(0);
    }
    pairs.push(CrashPair { machine, crashes: 1, until });
}

/// Back-off: doubles with each failure in a row after the first.
pub(crate) fn back_off(first: Span, most: Span, failures: u32) -> Span {
    let doublings = failures.saturating_sub(1).min(32);
    Span(first.0.saturating_mul(1 << doublings).min(most.0))
}
