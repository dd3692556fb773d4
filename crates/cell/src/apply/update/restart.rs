//! Restarts that an owner asks for (B7): tasks that run stop and start again where they are, with
//! the spec they have, as a rolling update does it and as far as budgets allow at a time.
//!
//! The wish is a mark on each task, which is gone as soon as the task does not run as it did: so
//! whatever leads, and whatever else happens to a task meanwhile, each is restarted once and none
//! twice. Rejected: a number of the job's restarts, with which each task would have to be compared.
//! A task does not know when its attempt began, and one that crashed and came back needs no more.
//!
//! A task that is behind its job's spec, because an update skipped it, gets the new one with its
//! restart; one that an open update has yet to reach is left to the update.

use super::Context;
use crate::command::{Done, Verdict};
use crate::event::TaskChange;
use crate::id::TaskId;
use crate::job::Job;
use crate::name::JobKey;
use crate::reason::{Conflict, Reason, Rejection, TaskAction};
use crate::spec::JobKind;
use crate::spec_change::{self, Effect};
use crate::task::{StopCause, Task, TaskState};

impl Context<'_> {
    /// Marks the tasks of a job that run, or one of them.
    pub(in crate::apply) fn restart_tasks(&mut self, key: &JobKey, index: Option<u32>) -> Verdict {
        let (_, job) = self.job_to_change(key)?;
        if job.spec().kind == JobKind::AllocSet {
            return Err(Rejection::WrongState(Conflict::RunsNothing(key.clone())));
        }
        let tasks = self.tasks_to_restart(key, &job, index)?;
        if tasks.is_empty() {
            return Ok(Done::Unchanged);
        }
        for task in tasks {
            self.state.edit_task(task, |row| row.restart_due = true);
            self.task_event(task, TaskChange::RestartDue, Reason::Requested);
        }
        Ok(Done::Applied)
    }

    /// Those that run and are not marked yet. What does not run yet starts anew anyway.
    fn tasks_to_restart(
        &self,
        key: &JobKey,
        job: &Job,
        index: Option<u32>,
    ) -> Result<Vec<TaskId>, Rejection> {
        let is_to_mark = |id: &TaskId| {
            let row = self.state.tasks.get(*id);
            row.is_some_and(|row| row.state == TaskState::Running && !row.restart_due)
        };
        let Some(index) = index else {
            return Ok(job.tasks.iter().copied().filter(is_to_mark).collect());
        };
        let (task, row) = self.wanted_task(key, job, index)?;
        match row.state {
            TaskState::Dead(_) | TaskState::Stopping(StopCause::Killed) => {
                let (state, action) = (row.state, TaskAction::Restart);
                Err(Rejection::WrongTaskState { task, state, action })
            }
            _ => Ok([task].into_iter().filter(is_to_mark).collect()),
        }
    }

    /// The task of that index that the job should have.
    pub(in crate::apply) fn wanted_task(
        &self,
        key: &JobKey,
        job: &Job,
        index: u32,
    ) -> Result<(TaskId, &Task), Rejection> {
        let found = job.tasks.get(index as usize).filter(|_| job.wants(index));
        let found = found.and_then(|task| Some((*task, self.state.tasks.get(*task)?)));
        found.ok_or_else(|| Rejection::NoSuchTask { job: key.clone(), index })
    }

    /// Restarts one marked task.
    pub(in crate::apply) fn step_restart(&mut self, key: &JobKey, index: u32) -> Verdict {
        let (id, job) = self.job_to_change(key)?;
        let (task, row) = self.wanted_task(key, &job, index)?;
        let row = row.clone();
        if !row.restart_due {
            return Ok(Done::Unchanged);
        }
        let is_behind = row.version != job.version;
        let update = job.update.as_ref();
        if is_behind && update.is_some_and(|update| !update.skipped.contains(&index)) {
            return self.step_update(key, index);
        }
        self.check_disruption_budget(task)?;
        let (_, effect) = spec_change::task_change(job.spec_of(row.version), job.spec(), index);
        if is_behind && update.is_none() && effect == Effect::Restart {
            self.disrupt(task, &row, effect);
        } else {
            self.stop_task(task, StopCause::Restart, Reason::RestartRequested);
        }
        self.maybe_ended.push(id);
        Ok(Done::Applied)
    }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, job, key, name};
    use crate::command::{Command, Done, Observed};
    use crate::spec::{JobKind, JobSpec};
    use crate::task::{ExitClass, StopCause, TaskOutcome, TaskState};
    use TaskState::{Assigned, Dead, Pending, Running, Stopping};

    const RESTARTS: TaskState = Stopping(StopCause::Restart);

    fn restart(index: Option<u32>) -> Command {
        Command::RestartTasks { job: key("ubar/jfoo"), index }
    }

    fn step(index: u32) -> Command {
        Command::StepRestart { job: key("ubar/jfoo"), index }
    }

    /// Tasks of `jfoo` that are still to be restarted.
    fn left(cell: &Cell) -> u32 {
        let id = cell.state.job_named(&key("ubar/jfoo")).unwrap();
        cell.state.job_load(id).unwrap().to_restart
    }

    /// `jfoo` of three tasks: the first two run on `m1`, the last waits.
    fn running(shape: impl FnOnce(&mut JobSpec)) -> Cell {
        let mut cell = Cell::with_machines(1);
        let mut spec = job("jfoo", 3, 100);
        shape(&mut spec);
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        cell.run("jfoo", 1, "m1");
        cell
    }

    #[test]
    fn tasks_restart_in_place_one_by_one_and_each_once() {
        let mut cell = running(|_| {});
        assert_eq!(cell.ok(restart(None)), Done::Applied);
        let due = ["ubar/jfoo/0 is to be restarted", "ubar/jfoo/1 is to be restarted"];
        assert_eq!(cell.event_lines, due.map(|line| format!("{line}: requested")));
        assert_eq!((left(&cell), cell.ok(restart(None))), (2, Done::Unchanged));
        assert_eq!(cell.ok(step(2)), Done::Unchanged, "it does not run yet");
        assert_eq!(cell.ok(step(0)), Done::Applied);
        let told = "ubar/jfoo/0 told to stop on m1: a restart was requested";
        assert_eq!(cell.event_lines, [told]);
        assert_eq!((left(&cell), cell.states("jfoo")), (1, vec![RESTARTS, Running, Pending]));
        cell.report("jfoo", 0, Observed::Stopped);
        let again = "ubar/jfoo/0 starts again on m1: a restart was requested";
        assert_eq!(cell.event_lines, [again]);
        assert_eq!(cell.states("jfoo"), [Assigned, Running, Pending]);
        cell.report("jfoo", 0, Observed::Started);
        let row = cell.task("jfoo", 0);
        assert_eq!((row.attempt, row.failures_in_row), (2, 0));
        assert_eq!(cell.ok(step(0)), Done::Unchanged);
    }

    #[test]
    fn a_task_that_comes_back_by_itself_is_restarted_already() {
        let mut cell = running(|spec| spec.restart.max_failures = Some(5));
        cell.ok(restart(Some(1)));
        assert_eq!(left(&cell), 1);
        cell.report("jfoo", 1, Observed::Failed(ExitClass::Code(1)));
        assert_eq!((left(&cell), cell.ok(step(1))), (0, Done::Unchanged));
    }

    #[test]
    fn a_budget_bounds_a_restart() {
        let mut cell = running(|spec| (spec.count, spec.max_down) = (2, Some(1)));
        cell.ok(restart(None));
        cell.ok(step(0));
        let message = cell.rejection_text(step(1));
        assert!(message.contains("1 task down already, at most 1 allowed"), "{message}");
        cell.report("jfoo", 0, Observed::Stopped);
        cell.report("jfoo", 0, Observed::Started);
        assert_eq!(cell.ok(step(1)), Done::Applied);
    }

    #[test]
    fn a_task_that_ends_before_it_is_told_has_done_its_work() {
        let mut cell = running(|_| {});
        cell.ok(restart(Some(0)));
        cell.ok(step(0));
        cell.report("jfoo", 0, Observed::Finished);
        assert_eq!(cell.states("jfoo")[0], Dead(TaskOutcome::Finished));
        let over = "ubar/jfoo/0 is dead, which does not allow a restart: it is over";
        assert_eq!(cell.rejection_text(restart(Some(0))), over);
    }

    #[test]
    fn a_task_behind_its_job_gets_the_new_spec_with_its_restart() {
        let mut cell = running(|_| {});
        let mut spec = job("jfoo", 3, 100);
        spec.task.command = vec!["new".into()];
        spec.max_update_disruptions = Some(0);
        cell.ok(Command::UpdateJob { owner: name("ubar"), spec: Box::new(spec), expect: None });
        for index in 0..2 {
            cell.ok(Command::StepUpdate { job: key("ubar/jfoo"), index });
        }
        // Skipped, and the update is open: as it was.
        cell.ok(restart(None));
        cell.ok(step(0));
        cell.report("jfoo", 0, Observed::Stopped);
        assert_eq!(cell.task("jfoo", 0).version, 1);
        cell.ok(Command::CloseUpdate { job: key("ubar/jfoo"), expect: None });
        cell.ok(step(1));
        cell.report("jfoo", 1, Observed::Stopped);
        assert_eq!((cell.task("jfoo", 1).version, left(&cell)), (2, 0));
    }

    #[test]
    fn what_runs_nothing_or_is_over_is_refused_in_words() {
        let mut cell = running(|spec| spec.kind = JobKind::AllocSet);
        let refused = "not possible while ubar/jfoo is an alloc set, which runs no program";
        assert_eq!(cell.rejection_text(restart(None)), refused);
        let mut cell = running(|_| {});
        assert!(cell.rejection_text(restart(Some(7))).contains("task ubar/jfoo/7"));
        assert!(cell.send_as("ufoo", restart(None)).is_err());
        cell.ok(Command::StopJob { job: key("ubar/jfoo"), expect: None });
        assert!(cell.rejection_text(restart(None)).contains("ubar/jfoo"));
        cell.report("jfoo", 0, Observed::Stopped);
        cell.report("jfoo", 1, Observed::Stopped);
        let dead = "not possible while job ubar/jfoo is dead";
        assert_eq!(cell.rejection_text(restart(None)), dead);
    }
}
