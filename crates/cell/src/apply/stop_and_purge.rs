//! Jobs end: stopped by their owner, then purged (B5, B9).

use super::Context;
use crate::command::{Done, Verdict};
use crate::event::{JobChange, TaskChange};
use crate::id::{JobId, TaskId, UserId};
use crate::job::{Job, JobState};
use crate::name::{JobKey, Name};
use crate::reason::{Reason, Rejection};
use crate::task::{StopCause, TaskState};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Context<'_> {
    /// Stopping an alloc set sends the tasks of jobs inside it back to pending, where they wait for
    /// an alloc set of that name.
    pub(crate) fn stop_job(&mut self, key: &JobKey, expect: Option<u32>) -> Verdict {
        let (id, job) = self.owned_job(key)?;
        if matches!(job.state, JobState::Stopping | JobState::Dead(_)) {
            return Ok(Done::Unchanged);
        }
        self.check_expected_version(key, &job, expect)?;
        self.state.edit_job(id, |job| {
            job.state = JobState::Stopping;
            job.waits_for.clear();
        });
        self.job_event(id, JobChange::Stopping, Reason::Requested);
        for task in job.tasks.iter() {
            self.stop_task(*task, StopCause::Killed, Reason::Requested);
        }
        self.maybe_ended.push(id);
        Ok(Done::Applied)
    }

    /// Stops one task alone. It stays dead, also through updates, until its owner starts it again,
    /// or a shrink below it is followed by a growth, or a daemon's machine leaves and comes back.
    pub(super) fn stop_single_task(
        &mut self,
        key: &JobKey,
        index: u32,
        expect: Option<u32>,
    ) -> Verdict {
        let (id, job) = self.owned_job(key)?;
        let wanted = job.tasks.get(index as usize).filter(|_| job.wants(index)).copied();
        let Some(task) = wanted else {
            return Err(Rejection::NoSuchTask { job: key.clone(), index });
        };
        let state = self.state.tasks.get(task).map(|row| row.state);
        let ends = matches!(
            state,
            None | Some(TaskState::Dead(_) | TaskState::Stopping(StopCause::Killed))
        );
        if ends {
            return Ok(Done::Unchanged);
        }
        self.check_expected_version(key, &job, expect)?;
        self.stop_task(task, StopCause::Killed, Reason::Requested);
        self.maybe_ended.push(id);
        Ok(Done::Applied)
    }

    /// Rows to which retained disk still refers stay, with the job that saves it. So do those with
    /// leases that have not ended, which the next job of that name has to respect, and a newer job
    /// of the same name, which would otherwise leave its name to the older one.
    pub(super) fn purge_jobs(&mut self, ended_before: Time) -> Verdict {
        let runs = self.state.crons().iter().flat_map(|(_, cron)| cron.runs.iter().copied());
        let kept: BTreeSet<JobId> = runs.collect();
        let over = |job: &Job| job.ended_at.is_some_and(|at| at < ended_before);
        Ok(self.purge(|id, job| over(job) && !kept.contains(&id)))
    }

    /// The selected dead jobs that nothing needs any more.
    pub(super) fn purgeable_jobs(
        &self,
        over: impl Fn(JobId, &Job) -> bool,
    ) -> BTreeMap<JobId, Arc<Vec<TaskId>>> {
        let retained: BTreeSet<TaskId> = self
            .state
            .machines
            .iter()
            .flat_map(|(_, machine)| machine.retained.iter().map(|entry| entry.task))
            .collect();
        let savers: BTreeSet<JobId> =
            retained.iter().filter_map(|task| self.state.log_saver_job(*task)).collect();
        let mut old: BTreeMap<JobId, Arc<Vec<TaskId>>> = BTreeMap::new();
        // A name belongs to its newest row, so rows of one name go oldest first.
        let mut older_stays: BTreeSet<(UserId, &Name)> = BTreeSet::new();
        for (id, job) in self.state.jobs.iter().filter(|(_, job)| job.is_dead()) {
            let name = (job.user, &job.name);
            let held = savers.contains(&id)
                || job.tasks.iter().any(|task| retained.contains(task))
                || self.leases_end(id) > self.now;
            if over(id, job) && !held && !older_stays.contains(&name) {
                old.insert(id, job.tasks.clone());
            } else {
                older_stays.insert(name);
            }
        }
        old
    }

    /// Purges the selected dead jobs that nothing needs any more.
    pub(crate) fn purge(&mut self, over: impl Fn(JobId, &Job) -> bool) -> Done {
        let old = self.purgeable_jobs(over);
        for (id, tasks) in &old {
            for task in tasks.iter() {
                self.task_event(*task, TaskChange::Purged, Reason::Requested);
                self.state.remove_task(*task);
            }
            self.job_event(*id, JobChange::Purged, Reason::Requested);
            self.state.remove_job(*id);
        }
        if old.is_empty() { Done::Unchanged } else { Done::Applied }
    }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, all, job, key, name};
    use crate::command::{Command, Done, Observed, TaskReport};
    use crate::id::MachineId;
    use crate::job::{JobOutcome, JobState};
    use crate::job_size::JobSize;
    use crate::priority::Band;
    use crate::reason::Reason;
    use crate::spec::{JobKind, JobSpec, RetainDisk};
    use crate::task::{ExitClass, StopCause, TaskOutcome, TaskState};
    use crate::time::{Span, Time};
    use crate::words;
    use TaskState::{Dead, Pending, Running, Stopping};

    fn submit(spec: JobSpec) -> Command {
        Command::SubmitJob { owner: name("ubar"), spec: Box::new(spec) }
    }

    /// A production job of one task.
    fn with(change: impl FnOnce(&mut JobSpec)) -> JobSpec {
        let mut spec = job("jnew", 1, 200);
        change(&mut spec);
        spec
    }

    fn resize(count: u32) -> Command {
        Command::ResizeJob { job: key("ubar/jfoo"), size: JobSize::tasks(count), expect: None }
    }

    fn stop(job: &str) -> Command {
        Command::StopJob { job: key(job), expect: None }
    }

    #[test]
    fn stopping_an_alloc_set_sends_what_is_inside_back_to_the_queue() {
        let mut cell = Cell::with_machines(1);
        let mut set = job("set", 1, 200);
        set.kind = JobKind::AllocSet;
        cell.submit(&set);
        cell.run("set", 0, "m1");
        let inner = with(|s| s.alloc_set = Some(key("ubar/set")));
        cell.submit(&inner);
        assert_eq!(cell.charged(Band::Production), all(10));
        let alloc = cell.task_id("set", 0);
        cell.run_in("jnew", 0, "m1", Some(alloc));
        cell.ok(stop("ubar/set"));
        assert_eq!(cell.states("jnew"), [Stopping(StopCause::AllocMoved)]);
        cell.report("jnew", 0, Observed::Stopped);
        cell.report("set", 0, Observed::Stopped);
        assert_eq!(cell.states("jnew"), [Pending]);
        let closed = cell.rejection_text(submit(with(|s| {
            s.name = name("jlate");
            s.alloc_set = Some(key("ubar/set"));
        })));
        assert_eq!(closed, "not possible while alloc set ubar/set has been stopped");
    }

    #[test]
    fn a_purge_forgets_what_ended_but_not_what_a_log_saver_needs() {
        let mut cell = Cell::with_machines(1);
        let mut saved = job("jsaved", 1, 100);
        saved.retain_disk = Some(RetainDisk { bytes: 5, keep: Span::seconds(60), log_saver: None });
        cell.submit(&saved);
        cell.submit(&job("jfoo", 1, 100));
        cell.run("jsaved", 0, "m1");
        cell.run("jfoo", 0, "m1");
        cell.report("jsaved", 0, Observed::Finished);
        cell.report("jfoo", 0, Observed::Finished);
        let ended = Time(cell.now);
        assert_eq!(cell.ok(Command::PurgeJobs { ended_before: ended }), Done::Unchanged);
        assert_eq!(cell.ok(Command::PurgeJobs { ended_before: Time::NEVER }), Done::Applied);
        assert!(cell.state.job_named(&key("ubar/jfoo")).is_none());
        let (task, row) = (cell.task_id("jsaved", 0), cell.task("jsaved", 0).clone());
        let machine = cell.state.machine_named(&name("m1")).unwrap();
        cell.ok(Command::ReleaseRetained { machine, task, attempt: row.attempt });
        assert_eq!(cell.ok(Command::PurgeJobs { ended_before: Time::NEVER }), Done::Applied);
        assert!(cell.state.tasks().is_empty());
    }

    #[test]
    fn a_row_used_again_is_past_every_attempt_it_had() {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 1, 100));
        cell.run("jfoo", 0, "m1");
        let (row, attempt) = (cell.task_id("jfoo", 0), cell.task("jfoo", 0).attempt);
        cell.report("jfoo", 0, Observed::Finished);
        cell.ok(Command::PurgeJobs { ended_before: Time::NEVER });
        cell.submit(&job("jnew", 1, 100));
        assert_eq!(cell.task_id("jnew", 0), row);
        cell.run("jnew", 0, "m1");
        let reports = vec![TaskReport { task: row, attempt, what: Observed::Finished }];
        let late = Command::TaskReports { machine: MachineId(0), incarnation: 1, reports };
        let verdict = cell.send(late);
        let said = words::verdict(&cell.state, &verdict);
        assert!(said.contains("ubar/jnew/0 is at attempt 3, not 1"), "{said}");
        assert_eq!(cell.states("jnew"), [Running]);
        let saved = crate::encode::save(&cell.state);
        assert_eq!(crate::encode::load(&saved).unwrap().attempt_floor, 2);
    }

    #[test]
    fn what_was_killed_on_a_lost_machine_may_still_run() {
        let mut cell = Cell::with_machines(1);
        let mut spec = job("jfoo", 2, 100);
        spec.at_most_one = Some(Span::seconds(30));
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        cell.run("jfoo", 1, "m1");
        cell.ok(resize(1));
        cell.ok(Command::MachineDown { machine: MachineId(0) });
        assert_eq!(cell.states("jfoo"), [Pending, Dead(TaskOutcome::Killed)]);
        let over = cell.task("jfoo", 0).not_before;
        assert!(over > Time(cell.now).plus(Span::seconds(30)));
        cell.ok(resize(3));
        let waits = |cell: &Cell, index| cell.task("jfoo", index).not_before;
        assert_eq!([0, 1, 2].map(|index| waits(&cell, index)), [over; 3]);
        // Neither another job of that name nor a purge cuts the wait short.
        cell.ok(stop("ubar/jfoo"));
        cell.ok(Command::PurgeJobs { ended_before: Time::NEVER });
        cell.submit(&spec);
        assert_eq!([0, 1].map(|index| waits(&cell, index)), [over; 2]);
        cell.ok(stop("ubar/jfoo"));
        cell.now = over.0;
        cell.submit(&spec);
        assert_eq!(waits(&cell, 0), Time::ZERO);
    }

    #[test]
    fn one_task_is_stopped_for_good_and_its_job_goes_on() {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 2, 100));
        cell.run("jfoo", 0, "m1");
        cell.run("jfoo", 1, "m1");
        let stop = |index| Command::StopTask { job: key("ubar/jfoo"), index, expect: None };
        assert_eq!(cell.ok(stop(1)), Done::Applied);
        assert_eq!(cell.ok(stop(1)), Done::Unchanged);
        let end = cell.task("jfoo", 1).last_end.clone().unwrap();
        assert_eq!((end.attempt, end.why), (1, Reason::Requested));
        cell.report("jfoo", 1, Observed::Stopped);
        assert_eq!(cell.task("jfoo", 1).state, TaskState::Dead(TaskOutcome::Killed));
        assert_eq!(cell.task("jfoo", 0).state, TaskState::Running);
        assert_eq!(cell.rejection_text(stop(2)), "there is no such row: task ubar/jfoo/2");
        assert!(cell.send_as("ufoo", stop(0)).is_err());
        cell.report("jfoo", 0, Observed::Finished);
        let id = cell.state.job_named(&key("ubar/jfoo")).unwrap();
        // Not all of it was done: dependent jobs need not begin.
        let state = cell.state.jobs().get(id).unwrap().state;
        assert_eq!(state, JobState::Dead(JobOutcome::Killed));
    }

    #[test]
    fn a_row_says_how_its_last_attempt_ended() {
        let mut cell = Cell::with_machines(2);
        cell.submit(&job("jfoo", 1, 100));
        cell.run("jfoo", 0, "m1");
        cell.report("jfoo", 0, Observed::Failed(ExitClass::Code(7)));
        let end = cell.task("jfoo", 0).last_end.clone().unwrap();
        assert_eq!((end.attempt, end.why), (1, Reason::Exited(ExitClass::Code(7))));
        // The event comes when that machine is gone, too.
        cell.ok(Command::RemoveMachine { name: name("m1"), expect: None });
        assert_eq!(cell.task("jfoo", 0).last_end.clone().unwrap().machine, name("m1"));
    }
}
