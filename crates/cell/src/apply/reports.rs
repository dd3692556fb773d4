//! Task reports of agents (B5, B24). A report is about one attempt on one machine in one
//! incarnation of its agent; a report about anything else is rejected, which makes the link order
//! the container killed. Repeating a report changes nothing: links resend what they are not sure
//! about.
//!
//! Failures in a row count attempts that failed since the last one that finished. A start does not
//! reset them: a task that crashes an hour after every start has not recovered.
//!
//! A task that the agent lost, while its machine is fine, is treated as on a lost machine: it was
//! not seen to fail, so it counts as no failure and no crash on that machine, and if it is of an
//! `at_most_one` job its lease must run out first, also when it was stopping.
//!
//! A task that finishes before an order to stop reaches it has done its work: it does not run again
//! only to be stopped. A task that its owner killed is recorded as killed.

use super::Context;
use crate::command::{Done, Observed, TaskReport, Verdict};
use crate::event::TaskChange;
use crate::id::{JobId, MachineId, TaskId};
use crate::reason::{Reason, Rejection, TaskAction};
use crate::resource::Resources;
use crate::spec::{JobKind, JobSpec};
use crate::task::{ExitClass, Grant, NoticeOutcome, StopCause, TaskOutcome, TaskState};
use std::sync::Arc;

/// The effect of a report on a task in its present state.
enum ReportEffect {
    /// Known already.
    Nothing,
    Start,
    Finish,
    Fail(ExitClass),
    /// The stopping task's container was seen empty, however it ended.
    Gone(Option<NoticeOutcome>),
    /// It finished before it could be stopped.
    DoneInTime,
    /// Gone, and its end was not seen.
    Lost,
    Unhealthy,
    /// After so many changes of its limits, these are in force.
    Resized(u32, Resources),
    Refuse(TaskAction),
}

impl Context<'_> {
    pub(super) fn task_reports(
        &mut self,
        machine: MachineId,
        incarnation: u64,
        reports: &[TaskReport],
    ) -> Verdict {
        let row = self.machine_row(machine)?;
        let found = row.incarnation;
        if found != incarnation {
            let machine = row.spec.name.clone();
            return Err(Rejection::StaleIncarnation { machine, reported: incarnation, found });
        }
        let mut refused = Vec::new();
        let mut changed = false;
        for (position, report) in reports.iter().enumerate() {
            match self.report(machine, report) {
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

    /// Whether the report changed anything.
    fn report(&mut self, machine: MachineId, report: &TaskReport) -> Result<bool, Rejection> {
        let TaskReport { task, attempt, what } = *report;
        let Some(row) = self.state.tasks.get(task) else {
            return Err(Rejection::NoSuchRow(task.into()));
        };
        if row.attempt != attempt {
            return Err(Rejection::StaleAttempt { task, expected: attempt, found: row.attempt });
        }
        let state = row.state;
        let effect = match row.machine() {
            Some(on) if on == machine => report_effect(state, what),
            Some(_) => ReportEffect::Refuse(TaskAction::ForeignReport),
            None => late_report_effect(state, what),
        };
        match effect {
            ReportEffect::Nothing => return Ok(false),
            ReportEffect::Start => self.started(task, machine),
            ReportEffect::Finish | ReportEffect::Unhealthy if self.is_alloc(task) => {
                return Err(refuse(task, state, TaskAction::ReportOfProgram));
            }
            ReportEffect::Finish => self.finished(task, machine, state),
            ReportEffect::Fail(exit) => self.failed(task, machine, state, exit),
            ReportEffect::Gone(notice) => self.stopped_with_notice(task, machine, notice),
            ReportEffect::DoneInTime => self.finished_before_stop(task),
            ReportEffect::Lost => self.lost(task, machine),
            ReportEffect::Unhealthy => self.unhealthy(task),
            ReportEffect::Resized(resizes, in_force) => {
                return Ok(self.limits_reported(task, resizes, in_force));
            }
            ReportEffect::Refuse(action) => return Err(refuse(task, state, action)),
        }
        Ok(true)
    }

    fn is_alloc(&self, task: TaskId) -> bool {
        let row = self.state.tasks.get(task);
        let spec = row.and_then(|row| self.state.spec_of(row));
        spec.is_some_and(|spec| spec.kind == JobKind::AllocSet)
    }

    fn started(&mut self, task: TaskId, machine: MachineId) {
        self.set_task(task, |t| {
            t.state = TaskState::Running;
            t.healthy = true;
            if let Some(hold) = t.holds.primary_mut() {
                clear_waits(&mut hold.grant);
            }
        });
        self.task_event(task, TaskChange::Started { machine }, Reason::AgentReport);
        if let Some(job) = self.state.tasks.get(task).map(|row| row.job) {
            self.note_update_progress(job);
        }
    }

    /// A task that started and ended between two reports did start.
    fn finished(&mut self, task: TaskId, machine: MachineId, state: TaskState) {
        if state == TaskState::Assigned {
            self.started(task, machine);
        }
        let Some(row) = self.state.tasks.get(task) else { return };
        let again = self.state.spec_of(row).filter(|spec| spec.restart.restart_on_success);
        let wait = again.map(|spec| spec.restart.backoff);
        self.record_end(task, machine, Reason::Succeeded);
        match wait {
            Some(wait) => {
                self.set_task(task, |t| {
                    t.failures_in_row = 0;
                    t.apart = Vec::new();
                    t.crashed_on = Vec::new();
                });
                let (change, reason) = (TaskChange::Completed { machine }, Reason::Succeeded);
                self.requeue(task, change, reason, self.now.plus(wait));
            }
            None => {
                self.mark_dead(task, TaskOutcome::Finished, TaskChange::Finished, Reason::Succeeded)
            }
        }
    }

    /// The row and the history record the outcome of its notice.
    fn stopped_with_notice(
        &mut self,
        task: TaskId,
        machine: MachineId,
        notice: Option<NoticeOutcome>,
    ) {
        if let Some(notice) = notice {
            self.set_task(task, |t| {
                if let Some(end) = &mut t.last_end {
                    end.notice = Some(notice);
                }
            });
            self.task_event(task, TaskChange::Left { machine, notice }, Reason::AgentReport);
        }
        self.task_stopped(task);
    }

    /// A task that would restart after a success goes where the order to stop sends it.
    fn finished_before_stop(&mut self, task: TaskId) {
        let spec = self.state.tasks.get(task).and_then(|row| self.state.spec_of(row));
        let over =
            |spec: &Arc<JobSpec>| spec.kind.runs_programs() && !spec.restart.restart_on_success;
        if spec.is_some_and(over) {
            self.mark_dead(task, TaskOutcome::Finished, TaskChange::Finished, Reason::Succeeded)
        } else {
            self.task_stopped(task)
        }
    }

    /// With an alloc, the tasks inside it are lost too. Inner tasks first, as when a machine is
    /// lost.
    fn lost(&mut self, task: TaskId, machine: MachineId) {
        self.release_reserved_in(task);
        let mut all = self.state.alloc_load(task).map_or_else(Vec::new, |load| load.tasks.clone());
        all.push(task);
        for lost in all {
            self.lose_task(lost, machine, &Reason::AgentReport);
        }
    }

    fn failed(&mut self, task: TaskId, machine: MachineId, state: TaskState, exit: ExitClass) {
        if state == TaskState::Assigned && exit != ExitClass::CouldNotStart {
            self.started(task, machine);
        }
        let ran = self.job_and_version(task);
        self.attempt_failed(task, machine, exit);
        self.count_update_failure(ran);
    }

    fn job_and_version(&self, task: TaskId) -> Option<(JobId, u32)> {
        self.state.tasks.get(task).map(|row| (row.job, row.version))
    }

    /// Stopped and restarted where it is; the event of the stop says why.
    fn unhealthy(&mut self, task: TaskId) {
        self.set_task(task, |t| t.healthy = false);
        self.stop_task(task, StopCause::Unhealthy, Reason::Unhealthy);
        self.count_update_failure(self.job_and_version(task));
    }
}

/// A running task waits for no others.
pub(super) fn clear_waits(grant: &mut Option<Arc<Grant>>) {
    if let Some(held) = grant.as_mut().filter(|held| !held.waits_for.is_empty()) {
        let held = Arc::make_mut(held);
        held.waits_for = Vec::new();
        if *held == Grant::default() {
            *grant = None;
        }
    }
}

/// A report from the machine the task is on.
fn report_effect(state: TaskState, what: Observed) -> ReportEffect {
    use Observed as O;
    match (state, what) {
        (TaskState::Assigned | TaskState::Running | TaskState::Stopping(_), O::Lost) => {
            ReportEffect::Lost
        }
        (TaskState::Stopping(cause), O::Finished) if cause != StopCause::Killed => {
            ReportEffect::DoneInTime
        }
        (TaskState::Stopping(_), O::Finished | O::Failed(_) | O::Stopped) => {
            ReportEffect::Gone(None)
        }
        (TaskState::Stopping(_), O::Left(notice)) => ReportEffect::Gone(Some(notice)),
        // Sent before the order to stop arrived.
        (
            TaskState::Stopping(_),
            O::Started | O::Unhealthy | O::Healthy | O::LimitsInForce { .. },
        ) => ReportEffect::Nothing,
        (TaskState::Assigned | TaskState::Running, O::LimitsInForce { resizes, limits }) => {
            ReportEffect::Resized(resizes, limits)
        }
        (TaskState::Assigned, O::Started) => ReportEffect::Start,
        (TaskState::Running, O::Started | O::Healthy) => ReportEffect::Nothing,
        (TaskState::Assigned | TaskState::Running, O::Finished) => ReportEffect::Finish,
        (TaskState::Assigned | TaskState::Running, O::Failed(exit)) => ReportEffect::Fail(exit),
        (TaskState::Running, O::Unhealthy) => ReportEffect::Unhealthy,
        (_, O::Stopped | O::Left(_)) => ReportEffect::Refuse(TaskAction::ReportOfStop),
        _ => ReportEffect::Refuse(TaskAction::ReportOfHealth),
    }
}

/// A report about a task that is on no machine: the end of its last attempt is known already,
/// whatever it was; a report that it runs is about a container that should not be there.
fn late_report_effect(state: TaskState, what: Observed) -> ReportEffect {
    use Observed as O;
    let ended = matches!(state, TaskState::Pending | TaskState::Dead(_));
    match what {
        O::Finished
        | O::Failed(_)
        | O::Stopped
        | O::Left(_)
        | O::Lost
        | O::LimitsInForce { .. }
            if ended =>
        {
            ReportEffect::Nothing
        }
        _ => ReportEffect::Refuse(TaskAction::LateReport),
    }
}

fn refuse(task: TaskId, state: TaskState, action: TaskAction) -> Rejection {
    Rejection::WrongTaskState { task, state, action }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, job, key, name};
    use crate::command::{Command, EvictCause, Observed, TaskReport};
    use crate::id::MachineId;
    use crate::spec::{JobKind, JobSpec};
    use crate::task::{ExitClass, NoticeOutcome, StopCause, TaskOutcome, TaskState};
    use crate::time::{Span, Time};
    use crate::words;

    const PENDING: TaskState = TaskState::Pending;

    fn report(cell: &mut Cell, machine: u32, attempt: u32, what: Observed) -> String {
        let reports = vec![TaskReport { task: cell.task_id("jfoo", 0), attempt, what }];
        let machine = MachineId(machine);
        let command = Command::TaskReports { machine, incarnation: 1, reports };
        let verdict = cell.send(command);
        words::verdict(&cell.state, &verdict)
    }

    /// Places `jfoo/0` on `m1` without starting it.
    fn assigned(shape: fn(&mut JobSpec)) -> Cell {
        let mut cell = Cell::with_machines(2);
        let mut spec = job("jfoo", 1, 100);
        spec.restart.max_failures = Some(1);
        shape(&mut spec);
        cell.submit(&spec);
        let machine = cell.state.machine_named(&name("m1")).unwrap();
        let assignment = crate::plan::Assignment {
            task: cell.task_id("jfoo", 0),
            attempt: 0,
            machine,
            alloc: None,
            ports: vec![],
            devices: vec![],
        };
        let group = crate::plan::Group { victims: vec![], assignments: vec![assignment] };
        cell.ok(Command::CommitPlan(crate::plan::Plan { made_at: 0, groups: vec![group] }));
        cell
    }

    /// Sends these reports about the first attempt on `m1`, then compares the events of the last
    /// one and the task's state.
    fn check_as(shape: fn(&mut JobSpec), reports: &[Observed], want: &str, state: TaskState) {
        let mut cell = assigned(shape);
        let mut message = String::new();
        for what in reports {
            message = report(&mut cell, 0, 1, *what);
        }
        assert!(message.contains(want), "{reports:?}: {message}");
        assert_eq!(cell.states("jfoo"), [state], "{reports:?}");
    }

    fn check(reports: &[Observed], want: &str, state: TaskState) {
        check_as(|_| {}, reports, want, state);
    }

    /// The end of a stop, as the row and the history keep it.
    fn check_notice(what: Observed, notice: Option<NoticeOutcome>, said: &str) {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 1, 100));
        cell.run("jfoo", 0, "m1");
        cell.ok(Command::StopJob { job: key("ubar/jfoo"), expect: None });
        cell.report("jfoo", 0, what);
        let end = cell.task("jfoo", 0).last_end.clone().unwrap();
        assert_eq!((end.attempt, end.notice), (1, notice));
        let about = |line: &&String| line.contains(" left m1");
        let found = cell.event_lines.iter().find(about).map_or("", String::as_str);
        assert_eq!(found, said);
        assert_eq!(cell.states("jfoo"), [TaskState::Dead(TaskOutcome::Killed)]);
        // A repeated report changes nothing.
        assert!(report(&mut cell, 0, 1, what).contains("nothing to do"));
    }

    #[test]
    fn the_end_of_a_stop_says_what_became_of_the_warning() {
        let left = |notice| (Observed::Left(notice), Some(notice));
        let check = |(what, notice): (Observed, Option<NoticeOutcome>), said: &str| {
            check_notice(what, notice, said);
        };
        check((Observed::Stopped, None), "");
        let seen = "seen by the machine's agent";
        let event_line = |words: &str| format!("ubar/jfoo/0 left m1, {words}: {seen}");
        check(left(NoticeOutcome::LeftInTime), &event_line("warned, left within its notice"));
        check(left(NoticeOutcome::Overrun), &event_line("warned, killed when its notice was over"));
        check(left(NoticeOutcome::NotGiven), &event_line("killed without notice"));
    }

    #[test]
    fn what_a_report_means_depends_on_the_state_it_meets() {
        use Observed::{Failed, Finished, Healthy, Lost, Started, Stopped, Unhealthy};
        use TaskState::{Assigned, Dead, Pending, Running, Stopping};
        let crash = Failed(ExitClass::Code(1));
        let finished = Dead(TaskOutcome::Finished);
        check(&[Started], "done", Running);
        check(&[Started, Started], "nothing to do", Running);
        check(&[Started, Healthy], "nothing to do", Running);
        check(&[Started, Finished], "done", finished);
        check(&[Started, Finished, Finished], "nothing to do", finished);
        check(&[Started, Finished, Started], "a machine it is not on", finished);
        check(&[Finished], "done", finished);
        check(&[Started, crash], "done", Pending);
        check(&[Started, crash, crash], "nothing to do", Pending);
        check(&[Failed(ExitClass::CouldNotStart)], "done", Pending);
        check(&[Started, Unhealthy], "done", Stopping(StopCause::Unhealthy));
        check(&[Started, Unhealthy, Unhealthy], "nothing to do", Stopping(StopCause::Unhealthy));
        check(&[Started, Unhealthy, Healthy], "nothing to do", Stopping(StopCause::Unhealthy));
        check(&[Started, Unhealthy, Stopped], "done", Assigned);
        check(&[Started, Unhealthy, crash], "done", Assigned);
        check(&[Started, Unhealthy, Stopped, Stopped], "is at attempt 2, not 1", Assigned);
        check(&[Unhealthy], "before the start", Assigned);
        check(&[Healthy], "before the start", Assigned);
        check(&[Stopped], "nobody asked for", Assigned);
        check(&[Started, Stopped], "nobody asked for", Running);
        check(&[Started, Unhealthy, Finished], "done", finished);
        check(&[Lost], "done", Pending);
        check(&[Started, Lost], "done", Pending);
        check(&[Started, Lost, Lost], "nothing to do", Pending);
        check(&[Started, Unhealthy, Lost], "done", Pending);
        check(&[Started, Finished, Lost], "nothing to do", finished);
        let alloc = |spec: &mut JobSpec| spec.kind = JobKind::AllocSet;
        check_as(alloc, &[Started], "done", Running);
        check_as(alloc, &[Started, Finished], "an alloc runs none", Running);
        check_as(alloc, &[Started, Unhealthy], "an alloc runs none", Running);
        check_as(alloc, &[Started, crash], "done", Pending);
        check_as(alloc, &[Started, Lost], "done", Pending);
        let service = |spec: &mut JobSpec| spec.restart.restart_on_success = true;
        check_as(service, &[Started, Unhealthy, Finished], "done", Assigned);
    }

    /// Outcomes for a task that finishes after it was ordered to stop.
    fn check_done_in_time(stop: fn(&mut Cell), want: TaskState) {
        let mut cell = assigned(|_| {});
        cell.report("jfoo", 0, Observed::Started);
        stop(&mut cell);
        assert!(matches!(cell.states("jfoo")[0], TaskState::Stopping(_)));
        cell.report("jfoo", 0, Observed::Finished);
        assert_eq!(cell.states("jfoo"), [want]);
    }

    #[test]
    fn what_finishes_before_it_could_be_stopped_does_not_run_again() {
        let finished = TaskState::Dead(TaskOutcome::Finished);
        check_done_in_time(
            |cell| {
                let (task, cause) = (cell.task_id("jfoo", 0), EvictCause::Rebalance);
                cell.ok(Command::Evict { task, attempt: 1, cause });
            },
            finished,
        );
        check_done_in_time(
            |cell| {
                cell.ok(Command::StartDrain { name: name("m1"), expect: None });
                let (task, cause) = (cell.task_id("jfoo", 0), EvictCause::Drain);
                cell.ok(Command::Evict { task, attempt: 1, cause });
            },
            finished,
        );
        check_done_in_time(
            |cell| {
                cell.ok(Command::StopJob { job: key("ubar/jfoo"), expect: None });
            },
            TaskState::Dead(TaskOutcome::Killed),
        );
    }

    #[test]
    fn what_the_agent_lost_has_not_failed_and_its_lease_runs_out_first() {
        let mut cell = assigned(|spec| {
            spec.restart.max_failures = Some(0);
            spec.at_most_one = Some(Span::seconds(30));
        });
        cell.report("jfoo", 0, Observed::Started);
        for attempt in [1, 2] {
            assert_eq!(report(&mut cell, 0, attempt, Observed::Lost), "done");
            assert_eq!(
                cell.event_lines,
                ["ubar/jfoo/0 lost with m1, pending again: seen by the machine's agent"]
            );
            let task = cell.task("jfoo", 0);
            assert_eq!((task.state, task.failures_in_row), (TaskState::Pending, 0));
            assert!(task.not_before > Time(cell.now).plus(Span::seconds(30)));
            assert_eq!(task.crashed_on, []);
            cell.now = cell.task("jfoo", 0).not_before.0;
            cell.run("jfoo", 0, "m1");
        }
    }

    #[test]
    fn a_lost_alloc_is_lost_with_its_tasks() {
        let mut cell = assigned(|spec| spec.kind = JobKind::AllocSet);
        cell.report("jfoo", 0, Observed::Started);
        let mut inner = job("jin", 1, 100);
        inner.alloc_set = Some(key("ubar/jfoo"));
        cell.submit(&inner);
        let alloc = cell.task_id("jfoo", 0);
        cell.run_in("jin", 0, "m1", Some(alloc));
        cell.report("jfoo", 0, Observed::Lost);
        assert_eq!((cell.states("jfoo"), cell.states("jin")), (vec![PENDING], vec![PENDING]));
    }

    #[test]
    fn a_report_of_another_life_place_or_attempt_is_refused() {
        let mut cell = assigned(|_| {});
        let started = Observed::Started;
        assert!(report(&mut cell, 1, 1, started).contains("another machine"));
        assert!(report(&mut cell, 0, 2, started).contains("is at attempt 1, not 2"));
        assert!(report(&mut cell, 9, 1, started).contains("the agent of machine #9"));
        let (machine, incarnation) = (MachineId(0), 2);
        let life = Command::TaskReports { machine, incarnation, reports: vec![] };
        assert_eq!(cell.rejection_text(life), "machine m1 is at incarnation 1, the report is of 2");
        assert_eq!(cell.states("jfoo"), [TaskState::Assigned]);
    }

    #[test]
    fn a_service_that_finishes_starts_again_and_failures_count_since_then() {
        let mut cell = assigned(|spec| spec.restart.restart_on_success = true);
        let crash = Observed::Failed(ExitClass::Code(1));
        assert_eq!(report(&mut cell, 0, 1, crash), "done");
        assert_eq!(cell.task("jfoo", 0).failures_in_row, 1);
        let not_before = cell.task("jfoo", 0).not_before;
        assert_eq!(not_before, Time(cell.now).plus(Span::seconds(1)));
        cell.now = not_before.0;
        cell.run("jfoo", 0, "m2");
        assert_eq!(cell.task("jfoo", 0).failures_in_row, 1, "a start alone forgives nothing");
        assert_eq!(report(&mut cell, 1, 2, Observed::Finished), "done");
        let task = cell.task("jfoo", 0);
        assert_eq!((task.state, task.failures_in_row), (TaskState::Pending, 0));
        assert_eq!(task.not_before, Time(cell.now).plus(Span::seconds(1)));
        // Two failures in a row are more than its policy allows.
        for attempt in [3, 4] {
            cell.now = cell.task("jfoo", 0).not_before.0;
            cell.run("jfoo", 0, "m2");
            assert_eq!(report(&mut cell, 1, attempt, crash), "done");
        }
        let fate = TaskOutcome::Failed(ExitClass::Code(1));
        assert_eq!(cell.states("jfoo"), [TaskState::Dead(fate)]);
    }

    #[test]
    fn failed_health_checks_count_like_crashes() {
        let mut cell = assigned(|spec| spec.restart.max_failures = Some(1));
        cell.report("jfoo", 0, Observed::Started);
        cell.report("jfoo", 0, Observed::Unhealthy);
        cell.report("jfoo", 0, Observed::Stopped);
        assert_eq!(cell.states("jfoo"), [TaskState::Assigned]);
        assert_eq!(cell.task("jfoo", 0).failures_in_row, 1);
        cell.report("jfoo", 0, Observed::Started);
        cell.report("jfoo", 0, Observed::Unhealthy);
        cell.report("jfoo", 0, Observed::Stopped);
        let fate = TaskOutcome::Failed(ExitClass::Unhealthy);
        assert_eq!(cell.states("jfoo"), [TaskState::Dead(fate)]);
    }

    #[test]
    fn crashes_on_a_machine_are_forgotten_in_time_and_with_the_program() {
        for new_program in [false, true] {
            let mut cell = assigned(|spec| spec.restart.max_failures = None);
            for _ in 0..2 {
                cell.report("jfoo", 0, Observed::Failed(ExitClass::Code(1)));
                cell.now = cell.task("jfoo", 0).not_before.0;
                if cell.task("jfoo", 0).attempt == 1 {
                    cell.run("jfoo", 0, "m1");
                }
            }
            let (now, m1) = (Time(cell.now), MachineId(0));
            assert!(cell.task("jfoo", 0).avoids(m1, now));
            if new_program {
                let task = cell.task("jfoo", 0);
                let mut spec = (**cell.state.spec_of(task).unwrap()).clone();
                spec.task.command = vec!["repaired".into()];
                cell.ok(Command::UpdateJob {
                    owner: name("ubar"),
                    spec: Box::new(spec),
                    expect: None,
                });
            } else {
                cell.now += crate::task::CRASH_PAIR_RETENTION.0;
            }
            assert!(!cell.task("jfoo", 0).avoids(m1, Time(cell.now)));
            cell.run("jfoo", 0, "m1");
        }
    }

    #[test]
    fn one_that_crashed_wherever_it_may_run_is_tried_there_again() {
        let mut cell = assigned(|spec| spec.restart.max_failures = None);
        let crash = |cell: &mut Cell| {
            cell.report("jfoo", 0, Observed::Failed(ExitClass::Code(1)));
            cell.now = cell.task("jfoo", 0).not_before.0;
        };
        crash(&mut cell);
        cell.run("jfoo", 0, "m1");
        crash(&mut cell);
        assert!(cell.task("jfoo", 0).avoids(MachineId(0), Time(cell.now)));
        for _ in 0..2 {
            cell.run("jfoo", 0, "m2");
            crash(&mut cell);
        }
        // The program is at fault, not the machines; its back-off goes on.
        assert_eq!(cell.task("jfoo", 0).crashed_on, []);
        assert_eq!(cell.task("jfoo", 0).failures_in_row, 4);
        cell.run("jfoo", 0, "m1");
    }
}
