//! Going back by itself (X4): failures of the new version are counted where they are reported, and
//! too many of them undo the update, by log time and in the same step.
//!
//! Rejected: a controller that looks at how tasks stand. A task that fails and starts again within
//! a second looks well nearly always, and two leaders would count differently.

use super::super::Context;
use crate::id::JobId;
use crate::job::{JobState, Update};
use crate::reason::Reason;
use crate::rollout::RolledBack;

impl Context<'_> {
    /// An attempt at this version of the job failed or turned unhealthy.
    pub(in crate::apply) fn count_update_failure(&mut self, ran: Option<(JobId, u32)>) {
        let Some((id, version)) = ran else { return };
        let Some(job) = self.state.jobs.get(id) else { return };
        // Other limits are no version to come back from.
        let of_version = |update: &&Update| update.to == version && !update.limits_only;
        let Some(update) = job.update.as_ref().filter(of_version) else { return };
        let Some(limit) = job.spec().rollback_limit(update.tries_canaries()) else { return };
        if job.state != JobState::Active || !update.counts_failures(limit, self.now) {
            return;
        }
        let (failed_at, too_many) = update.after_failure(limit, self.now);
        if !too_many {
            self.state.edit_job(id, |job| {
                if let Some(update) = &mut job.update {
                    update.failed_at = failed_at;
                }
            });
            return;
        }
        let (job, update) = (job.clone(), update.clone());
        let failures = failed_at.len() as u32;
        let mark = RolledBack { at: self.now, failures, retried: false };
        self.state.mark_rolled_back(id, version, mark);
        let why = Reason::UpdateFailed { failures, within: limit.within };
        self.turn_back(id, &job, &update, why);
    }

    /// Records when every task ran the new version first: what fails long after that is not counted
    /// against it.
    pub(in crate::apply) fn note_update_progress(&mut self, id: JobId) {
        let Some(job) = self.state.jobs.get(id) else { return };
        let goes_on = job.update.as_ref().is_some_and(|u| u.completed_at.is_none() && !u.undoing);
        if !goes_on || !self.all_run_version(id) {
            return;
        }
        let now = self.now;
        self.state.edit_job(id, |job| {
            if let Some(update) = &mut job.update {
                update.completed_at = Some(now);
            }
        });
    }

    fn all_run_version(&self, id: JobId) -> bool {
        let (Some(job), Some(load)) = (self.state.jobs.get(id), self.state.job_loads.get(id))
        else {
            return false;
        };
        load.down() == 0 && load.at_version.keys().all(|version| *version == job.version)
    }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, job, key, name};
    use crate::command::{Command, Observed};
    use crate::job::Update;
    use crate::spec::JobSpec;
    use crate::task::{ExitClass, TaskState};
    use crate::time::Span;
    use crate::update_policy::RollbackLimit;

    const CRASH: Observed = Observed::Failed(ExitClass::Code(1));

    /// `jfoo` of three tasks that run version 1, and an update to version 2 that was opened.
    fn rolling(failures: u32, within: u64) -> Cell {
        let mut spec = job("jfoo", 3, 100);
        spec.restart.max_failures = None;
        spec.update.rollback = Some(RollbackLimit { failures, within: Span(within) });
        let mut cell = Cell::with_machines(2);
        cell.submit(&spec);
        (0..3).for_each(|index| cell.run("jfoo", index, "m1"));
        spec.task.command = vec!["new".into()];
        cell.ok(update(&spec));
        cell
    }

    fn update(spec: &JobSpec) -> Command {
        Command::UpdateJob { owner: name("ubar"), spec: Box::new(spec.clone()), expect: None }
    }

    /// The task takes the new version and runs it.
    fn step(cell: &mut Cell, index: usize) {
        cell.ok(Command::StepUpdate { job: key("ubar/jfoo"), index: index as u32 });
        cell.report("jfoo", index, Observed::Stopped);
        cell.report("jfoo", index, Observed::Started);
    }

    fn open(cell: &Cell) -> Update {
        let id = cell.state.job_named(&key("ubar/jfoo")).unwrap();
        cell.state.jobs().get(id).unwrap().update.clone().unwrap()
    }

    #[test]
    fn too_many_failures_bring_the_old_version_back() {
        let mut cell = rolling(2, 60_000);
        step(&mut cell, 0);
        step(&mut cell, 1);
        // One of the old version says nothing about the new one.
        cell.report("jfoo", 2, CRASH);
        assert!(open(&cell).failed_at.is_empty());
        cell.report("jfoo", 0, CRASH);
        assert_eq!((open(&cell).failed_at.len(), open(&cell).undoing), (1, false));
        cell.report("jfoo", 1, Observed::Unhealthy);
        let undone = open(&cell);
        assert_eq!((undone.from, undone.to), (2, 1));
        assert!(undone.undoing && undone.rolled_back);
        let why = "ubar/jfoo update undone, back to version 1: \
                   2 attempts at the new version failed within 1 min";
        assert!(cell.event_lines.iter().any(|line| line == why), "{:?}", cell.event_lines);
        assert_eq!(cell.states("jfoo")[0], TaskState::Pending);
        assert_eq!(cell.task("jfoo", 0).version, 1, "it starts again with the old one");
    }

    #[test]
    fn failures_far_from_each_other_do_not_add_up() {
        let mut cell = rolling(2, 100);
        step(&mut cell, 0);
        step(&mut cell, 1);
        cell.report("jfoo", 0, CRASH);
        cell.now += 200;
        cell.report("jfoo", 1, CRASH);
        assert!(!open(&cell).undoing);
    }

    #[test]
    fn what_fails_long_after_the_update_does_not_undo_it() {
        for (later, undoing) in [(50, true), (200, false)] {
            let mut cell = rolling(1, 100);
            (0..3).for_each(|index| step(&mut cell, index));
            assert!(open(&cell).completed_at.is_some());
            cell.now += later;
            cell.report("jfoo", 0, CRASH);
            assert_eq!(open(&cell).undoing, undoing, "{later}");
        }
    }

    #[test]
    fn without_a_limit_nothing_rolls_back_by_itself() {
        let mut spec = job("jfoo", 1, 100);
        spec.restart.max_failures = None;
        let mut cell = Cell::with_machines(1);
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        spec.task.command = vec!["new".into()];
        cell.ok(update(&spec));
        step(&mut cell, 0);
        cell.report("jfoo", 0, CRASH);
        assert!(!open(&cell).undoing);
    }
}
