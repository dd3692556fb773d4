//! Tasks that have ended run again because their owner says so (B5, X3): one that was stopped, or
//! those that failed for good. The rest of the job stays as it is: what finished has done its work.
//!
//! A job that is over comes back to life with the spec it had, and is admitted as if it were
//! submitted: its quota may be somebody else's by now. It stays the same job, with its history,
//! its name and the tasks that finished. Rejected: a new job with the indices that failed. Whoever
//! reads results by index would have to put them together again.

use super::Context;
use super::resize::waiting_state;
use crate::command::{Done, TasksToStart, Verdict};
use crate::event::{JobChange, TaskChange};
use crate::id::{JobId, TaskId};
use crate::job::{Job, JobState};
use crate::name::JobKey;
use crate::reason::{Conflict, Reason, Rejection, TaskAction};
use crate::spec::JobKind;
use crate::task::{StopCause, TaskOutcome, TaskState};

impl Context<'_> {
    pub(super) fn start_tasks(&mut self, key: &JobKey, which: TasksToStart) -> Verdict {
        let (id, job) = self.owned_job(key)?;
        if job.state == JobState::Stopping {
            return Err(Rejection::JobStopping(key.clone()));
        }
        if job.spec().kind == JobKind::AllocSet {
            return Err(Rejection::WrongState(Conflict::RunsNothing(key.clone())));
        }
        let tasks = self.tasks_to_start(key, &job, which)?;
        if tasks.is_empty() {
            return Ok(Done::Unchanged);
        }
        if job.is_dead() {
            self.reopen_job(id, &job)?;
        }
        tasks.into_iter().for_each(|task| self.run_again(task));
        Ok(Done::Applied)
    }

    fn tasks_to_start(
        &self,
        key: &JobKey,
        job: &Job,
        which: TasksToStart,
    ) -> Result<Vec<TaskId>, Rejection> {
        let index = match which {
            TasksToStart::One(index) => index,
            TasksToStart::Failed => {
                let has_failed = |id: &TaskId| {
                    let row = self.state.tasks.get(*id).filter(|row| job.wants(row.index));
                    matches!(
                        row.map(|row| row.state),
                        Some(TaskState::Dead(TaskOutcome::Failed(_)))
                    )
                };
                return Ok(job.tasks.iter().copied().filter(has_failed).collect());
            }
        };
        let (task, row) = self.wanted_task(key, job, index)?;
        match row.state {
            TaskState::Dead(TaskOutcome::DependencyFailed) => {
                let (state, action) = (row.state, TaskAction::Start);
                Err(Rejection::WrongTaskState { task, state, action })
            }
            TaskState::Dead(_) | TaskState::Stopping(StopCause::Killed) => Ok(vec![task]),
            _ => Ok(Vec::new()),
        }
    }

    /// A job that is over goes on, with what it was admitted with.
    fn reopen_job(&mut self, id: JobId, job: &Job) -> Result<(), Rejection> {
        let spec = job.spec().clone();
        self.check_restricted_features(None, &spec)?;
        self.check_alloc_set_open(job.user, &spec)?;
        let reopened = Job { state: JobState::Active, ended_at: None, ..job.clone() };
        self.check_quota(None, &reopened)?;
        self.state.edit_job(id, |job| *job = reopened);
        self.touch_quotas(id);
        self.job_event(id, JobChange::StartedAgain, Reason::Requested);
        Ok(())
    }

    /// It still waits as long as it had to: its lease may not have run out where it was lost.
    fn run_again(&mut self, id: TaskId) {
        let Some(task) = self.state.tasks.get(id).cloned() else { return };
        let Some(waiting) = self.state.jobs.get(task.job).map(waiting_state) else { return };
        match (task.state, task.machine()) {
            (TaskState::Dead(_), _) => {
                self.set_task(id, |row| {
                    row.state = waiting;
                    row.failures_in_row = 0;
                    row.apart = Vec::new();
                    row.crashed_on = Vec::new();
                });
                self.task_event(id, TaskChange::Submitted, Reason::Requested);
            }
            // Once it is gone, it goes back to pending instead of dying.
            (TaskState::Stopping(StopCause::Killed), Some(machine)) => {
                self.set_task(id, |row| row.state = TaskState::Stopping(StopCause::UpdateMoves));
                self.task_event(id, TaskChange::Stopping { machine }, Reason::Requested);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, job, key};
    use crate::command::{Command, Done, Observed, TasksToStart};
    use crate::job::{JobOutcome, JobState};
    use crate::priority::Band;
    use crate::task::{ExitClass, TaskOutcome, TaskState};
    use TaskState::{Dead, Pending, Running};

    const FINISHED: TaskState = Dead(TaskOutcome::Finished);
    const FAILED: TaskState = Dead(TaskOutcome::Failed(ExitClass::Code(3)));

    fn start(which: TasksToStart) -> Command {
        Command::StartTasks { job: key("ubar/jfoo"), which }
    }

    fn job_state(cell: &Cell) -> JobState {
        let id = cell.state.job_named(&key("ubar/jfoo")).unwrap();
        cell.state.jobs().get(id).unwrap().state
    }

    /// An array of three that is over: the second task failed.
    fn over() -> Cell {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 3, 100));
        (0..3).for_each(|index| cell.run("jfoo", index, "m1"));
        cell.report("jfoo", 0, Observed::Finished);
        cell.report("jfoo", 1, Observed::Failed(ExitClass::Code(3)));
        cell.report("jfoo", 2, Observed::Finished);
        assert_eq!(job_state(&cell), JobState::Dead(JobOutcome::Failed));
        cell
    }

    #[test]
    fn what_failed_runs_again_in_the_same_job_and_nothing_else_does() {
        let mut cell = over();
        assert_eq!(cell.charged(Band::Batch).cpu, 0);
        assert_eq!(cell.ok(start(TasksToStart::Failed)), Done::Applied);
        let lines = ["ubar/jfoo started again: requested", "ubar/jfoo/1 submitted: requested"];
        assert_eq!(cell.event_lines, lines);
        assert_eq!(cell.states("jfoo"), [FINISHED, Pending, FINISHED]);
        assert_eq!((job_state(&cell), cell.charged(Band::Batch).cpu), (JobState::Active, 30));
        assert_eq!(cell.ok(start(TasksToStart::Failed)), Done::Unchanged);
        cell.run("jfoo", 1, "m1");
        assert_eq!(cell.task("jfoo", 1).attempt, 2);
        cell.report("jfoo", 1, Observed::Finished);
        assert_eq!(job_state(&cell), JobState::Dead(JobOutcome::Succeeded));
        assert_eq!(cell.ok(start(TasksToStart::Failed)), Done::Unchanged);
    }

    #[test]
    fn a_job_that_is_over_is_admitted_like_any_other() {
        let mut cell = over();
        cell.grant("ubar", Band::Batch, 20);
        assert!(cell.rejection_text(start(TasksToStart::Failed)).contains("quota"));
        assert_eq!(cell.states("jfoo"), [FINISHED, FAILED, FINISHED]);
    }

    #[test]
    fn a_task_that_was_stopped_starts_again() {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 2, 100));
        (0..2).for_each(|index| cell.run("jfoo", index, "m1"));
        assert_eq!(cell.ok(start(TasksToStart::One(1))), Done::Unchanged, "it runs");
        let stop = Command::StopTask { job: key("ubar/jfoo"), index: 1, expect: None };
        cell.ok(stop.clone());
        // Before it is gone, too.
        assert_eq!(cell.ok(start(TasksToStart::One(1))), Done::Applied);
        cell.report("jfoo", 1, Observed::Stopped);
        assert_eq!(cell.states("jfoo"), [Running, Pending]);
        cell.run("jfoo", 1, "m1");
        cell.ok(stop);
        cell.report("jfoo", 1, Observed::Stopped);
        assert_eq!(cell.states("jfoo")[1], Dead(TaskOutcome::Killed));
        assert_eq!(cell.ok(start(TasksToStart::One(1))), Done::Applied);
        assert_eq!(cell.states("jfoo"), [Running, Pending]);
        assert!(cell.rejection_text(start(TasksToStart::One(2))).contains("task ubar/jfoo/2"));
        assert!(cell.send_as("ufoo", start(TasksToStart::One(0))).is_err());
    }
}
