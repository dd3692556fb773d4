//! What an owner asks of an update that stands still: to promote the version that canaries try, and
//! to finish what was skipped.

use super::super::Context;
use super::no_update;
use crate::actor::Actor;
use crate::command::{Done, Verdict};
use crate::id::JobId;
use crate::job::{Job, Update};
use crate::name::JobKey;
use crate::reason::{Conflict, Reason, Rejection};
use crate::rollout::{Event, RolloutChange};
use std::collections::BTreeSet;

impl Context<'_> {
    /// The tasks that waited for canaries get the version too. The controller's request is checked
    /// by log time: a canary may have failed since it looked.
    pub(crate) fn promote_update(&mut self, key: &JobKey, expect: Option<u32>) -> Verdict {
        let (id, job) = self.job_to_change(key)?;
        let Some(update) = &job.update else { return Err(no_update(key)) };
        // First: to go on with another version than one has seen is another request.
        self.check_expected_version(key, &job, expect)?;
        if !update.tries_canaries() {
            return Ok(Done::Unchanged);
        }
        let by_controller = matches!(self.by, Actor::Controller(_));
        if by_controller && self.state.promotion_due(&job).is_none_or(|due| due > self.now) {
            return Err(Rejection::WrongState(Conflict::CanariesTry(key.clone())));
        }
        self.end_trial(id);
        let change = RolloutChange::Promoted;
        let why = if by_controller { Reason::CanariesWell } else { Reason::Requested };
        self.emit(Event { job: id, version: job.version, change }, why);
        Ok(Done::Applied)
    }

    /// An update that nothing waits for tries nothing: there is no task that it could spare.
    pub(super) fn end_trial_of_none(&mut self, id: JobId) {
        let load = self.state.job_loads.get(id);
        let version = self.state.jobs.get(id).map(|job| job.version);
        if load.is_some_and(|load| load.at_version.keys().all(|at| Some(*at) == version)) {
            self.end_trial(id);
        }
    }

    fn end_trial(&mut self, id: JobId) {
        self.state.edit_job(id, |job| {
            if let Some(update) = &mut job.update {
                update.canaries = 0;
            }
        });
    }

    /// Tasks that an update skipped get the job's version after all, also when it was closed since.
    /// The bound that skipped them does not hold any more, every other does.
    pub(crate) fn finish_update(&mut self, key: &JobKey, expect: Option<u32>) -> Verdict {
        let (id, job) = self.job_to_change(key)?;
        self.check_expected_version(key, &job, expect)?;
        match &job.update {
            Some(update) if update.skipped.is_empty() => return Ok(Done::Unchanged),
            Some(_) => {
                self.state.edit_job(id, |job| {
                    if let Some(update) = &mut job.update {
                        (update.skipped, update.finishing) = (BTreeSet::new(), true);
                    }
                });
            }
            None => {
                let Some(from) = self.version_behind(&job) else { return Ok(Done::Unchanged) };
                let mut open = job.clone();
                let update = Update::opened(from, job.version, self.now);
                open.update = Some(Update { finishing: true, ..update });
                self.check_quota(Some(&job), &open)?;
                self.touch_quotas(id);
                self.state.edit_job(id, |job| *job = open);
                self.touch_quotas(id);
            }
        }
        let event = Event { job: id, version: job.version, change: RolloutChange::Finishing };
        self.emit(event, Reason::Requested);
        Ok(Done::Version(job.version))
    }

    /// The newest version that tasks run and that is not the job's.
    fn version_behind(&self, job: &Job) -> Option<u32> {
        let rows = job.tasks.iter().filter_map(|task| self.state.tasks.get(*task));
        rows.map(|row| row.version).filter(|version| *version != job.version).max()
    }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, job, key, name};
    use crate::command::{Command, Done, Observed};
    use crate::job::Job;
    use crate::rollout;
    use crate::spec::JobSpec;
    use crate::time::Span;

    fn foo() -> crate::name::JobKey {
        key("ubar/jfoo")
    }

    fn update(spec: &JobSpec) -> Command {
        Command::UpdateJob { owner: name("ubar"), spec: Box::new(spec.clone()), expect: None }
    }

    fn step(index: u32) -> Command {
        Command::StepUpdate { job: foo(), index }
    }

    fn finish() -> Command {
        rollout::Command::Finish { job: foo(), expect: None }.into()
    }

    fn promote() -> Command {
        rollout::Command::Promote { job: foo(), expect: None }.into()
    }

    fn row(cell: &Cell) -> Job {
        cell.state.jobs().get(cell.state.job_named(&foo()).unwrap()).unwrap().clone()
    }

    fn versions(cell: &Cell) -> Vec<u32> {
        let row = |task| cell.state.tasks().get(task).unwrap().version;
        self::row(cell).tasks.iter().map(|task| row(*task)).collect()
    }

    /// `jfoo` of two tasks that run, and an update to a new program.
    fn rolling(change: impl Fn(&mut JobSpec)) -> Cell {
        let mut spec = job("jfoo", 2, 100);
        spec.restart.max_failures = None;
        change(&mut spec);
        let mut cell = Cell::with_machines(2);
        cell.submit(&spec);
        (0..2).for_each(|index| cell.run("jfoo", index, "m1"));
        spec.task.command = vec!["new".into()];
        cell.ok(update(&spec));
        cell
    }

    fn restart(cell: &mut Cell, index: usize) {
        cell.report("jfoo", index, Observed::Stopped);
        cell.report("jfoo", index, Observed::Started);
    }

    #[test]
    fn what_was_skipped_is_finished_while_the_update_is_open() {
        let mut cell = rolling(|spec| spec.max_update_disruptions = Some(1));
        assert_eq!(cell.ok(finish()), Done::Unchanged, "nothing was skipped yet");
        cell.ok(step(0));
        restart(&mut cell, 0);
        cell.ok(step(1));
        assert_eq!(versions(&cell), [2, 1]);
        assert_eq!(cell.ok(finish()), Done::Version(2));
        let line = "ubar/jfoo update to version 2 goes on with 1 task: requested";
        assert_eq!(cell.event_lines, [line]);
        assert_eq!(cell.ok(step(1)), Done::Applied);
        assert_eq!(versions(&cell), [2, 2]);
        assert_eq!(row(&cell).update.unwrap().disruptions, 2);
    }

    #[test]
    fn what_was_skipped_is_finished_after_the_update_was_closed() {
        let mut cell = rolling(|spec| spec.max_update_disruptions = Some(0));
        cell.ok(step(0));
        cell.ok(step(1));
        cell.ok(Command::CloseUpdate { job: foo(), expect: None });
        assert_eq!(versions(&cell), [1, 1]);
        assert_eq!(cell.ok(finish()), Done::Version(2));
        cell.ok(step(0));
        restart(&mut cell, 0);
        cell.ok(step(1));
        restart(&mut cell, 1);
        assert_eq!(versions(&cell), [2, 2]);
        // It can be undone, as any update.
        assert_eq!(cell.ok(Command::UndoUpdate { job: foo(), expect: None }), Done::Version(1));
    }

    #[test]
    fn canaries_go_first_and_the_others_wait_for_promotion() {
        let mut cell = rolling(|spec| spec.update.canaries = 1);
        let waits = "not possible while canaries of job ubar/jfoo try the new version; \
                     it waits to be promoted";
        assert_eq!(cell.rejection_text(step(1)), waits);
        cell.ok(step(0));
        restart(&mut cell, 0);
        assert_eq!(cell.rejection_text(promote()), waits, "only its owner may, without a span");
        assert_eq!(cell.send_as("ubar", promote()), Ok(Done::Applied));
        assert_eq!(cell.event_lines, ["ubar/jfoo version 2 promoted to all tasks: requested"]);
        assert_eq!(cell.send_as("ubar", promote()), Ok(Done::Unchanged));
        assert_eq!(cell.ok(step(1)), Done::Applied);
    }

    #[test]
    fn canaries_that_stay_well_are_promoted_by_log_time() {
        let mut cell = rolling(|spec| {
            (spec.update.canaries, spec.update.promote_after) = (1, Some(Span(100)));
        });
        cell.ok(step(0));
        restart(&mut cell, 0);
        cell.now += 50;
        assert!(cell.rejection_text(promote()).contains("canaries"));
        cell.now += 100;
        assert_eq!(cell.ok(promote()), Done::Applied);
        assert_eq!(
            cell.event_lines,
            ["ubar/jfoo version 2 promoted to all tasks: its canaries stayed well"]
        );
    }

    #[test]
    fn the_first_canary_that_fails_brings_the_old_version_back() {
        let mut cell = rolling(|spec| spec.update.canaries = 1);
        cell.ok(step(0));
        restart(&mut cell, 0);
        cell.report("jfoo", 0, Observed::Unhealthy);
        let update = row(&cell).update.unwrap();
        assert!(update.undoing && update.rolled_back && !update.tries_canaries());
        assert_eq!(versions(&cell)[1], 1, "the others never left it");
    }

    #[test]
    fn a_change_without_a_restart_is_tried_by_nobody() {
        let mut spec = job("jfoo", 2, 100);
        spec.update.canaries = 1;
        let mut cell = Cell::with_machines(1);
        cell.submit(&spec);
        (0..2).for_each(|index| cell.run("jfoo", index, "m1"));
        spec.priority.0 = 101;
        cell.ok(update(&spec));
        assert_eq!((versions(&cell), row(&cell).update.unwrap().canaries), (vec![2, 2], 0));
    }
}
