//! Rolling updates (B7): a job rolls from one spec to another, task by task, and can be rolled back
//! until the owner closes the update.
//!
//! Changes that need neither a restart nor a move take effect at once, limits among them. The rest
//! waits for a controller, one [`crate::Command::StepUpdate`] at a time, so that disruption budgets
//! are honoured in the present state; a command that rolled all tasks at once could not know what
//! else goes down meanwhile. Undoing is the same roll with the ends exchanged.

mod finish;
mod in_place;
mod limits;
mod restart;
mod rollback;

use super::Context;
use super::jobs::next_version;
use crate::admit;
use crate::command::{Done, Verdict};
use crate::event::{JobChange, TaskChange};
use crate::id::{JobId, TaskId};
use crate::job::{Job, Update};
use crate::name::{JobKey, Name};
use crate::reason::{Allowed, Conflict, Given, Reason, Rejection};
use crate::rollout::VersionOrigin;
use crate::spec::JobSpec;
use crate::spec_change::{self, Effect};
use crate::task::{StopCause, Task, TaskState};
use std::borrow::Cow;
use std::sync::Arc;

impl Context<'_> {
    pub(super) fn update_job(
        &mut self,
        owner: &Name,
        spec: &JobSpec,
        expect: Option<u32>,
    ) -> Verdict {
        let key = JobKey { user: owner.clone(), job: spec.name.clone() };
        let known = self.state.job_named(&key).and_then(|id| self.state.jobs.get(id));
        let sized = known.map_or(Cow::Borrowed(spec), |job| spec.with_size_of(job.spec()));
        let verdict = self.try_update(owner, &sized, expect);
        self.emit_rejection(owner, &spec.name, &verdict);
        verdict
    }

    /// A request for a spec, which one that failed and was rolled back does not get by being
    /// repeated: its version is still there, and one goes back to it by its number.
    pub(super) fn try_update(
        &mut self,
        owner: &Name,
        spec: &JobSpec,
        expect: Option<u32>,
    ) -> Verdict {
        let key = JobKey { user: owner.clone(), job: spec.name.clone() };
        let (id, job) = self.job_to_change(&key)?;
        if !self.is_same_spec(job.user, job.spec(), spec) {
            self.check_not_rolled_back(&key, id, spec)?;
        }
        self.open_update(owner, spec, expect, VersionOrigin::Updated { from: job.version })
    }

    fn check_not_rolled_back(
        &self,
        key: &JobKey,
        id: JobId,
        spec: &JobSpec,
    ) -> Result<(), Rejection> {
        let owner = self.state.jobs.get(id).map(|job| job.user);
        match owner.and_then(|owner| self.rolled_back_alike(id, owner, spec)) {
            Some(version) => {
                let job = key.clone();
                Err(Rejection::WrongState(Conflict::RolledBack { job, version }))
            }
            None => Ok(()),
        }
    }

    /// The same spec again is no update, whatever version the client saw.
    pub(crate) fn open_update(
        &mut self,
        owner: &Name,
        spec: &JobSpec,
        expect: Option<u32>,
        origin: VersionOrigin,
    ) -> Verdict {
        let key = JobKey { user: owner.clone(), job: spec.name.clone() };
        let (id, job) = self.job_to_change(&key)?;
        let spec = &*self.with_default_disk(spec);
        admit::check_job(spec)?;
        let old = job.spec().clone();
        if self.is_same_spec(job.user, &old, spec) {
            return Ok(Done::Unchanged);
        }
        self.check_expected_version(&key, &job, expect)?;
        if job.update.is_some() {
            return Err(Rejection::WrongState(Conflict::UpdateOpen(key)));
        }
        if let Some(field) = spec_change::immutable_field(&old, spec) {
            let allowed = Allowed::AsInVersion(job.version);
            return Err(Rejection::bad_field(field, Given::Another, allowed));
        }
        self.check_restricted_features(Some(&old), spec)?;
        if spec.task.isolation.whole_cores > old.task.isolation.whole_cores {
            self.check_whole_cores(spec)?;
        }
        self.check_still_not_above_set(spec)?;
        self.check_not_below_inner(&key, spec)?;
        self.check_room_for_tasks((spec.count as usize).saturating_sub(job.tasks.len()))?;
        let version = next_version(&job)?;
        let updated = with_update(&job, spec, version, self.now);
        self.check_quota(Some(&job), &updated)?;
        let growth = Self::growth(Some(&job), spec);
        let going = self.jobs_to_purge(job.user, growth, |_| false)?;
        self.purge_selected(&going);
        self.touch_quotas(id);
        self.state.edit_job(id, |job| *job = updated);
        self.record_version(id, origin, Some(&*old));
        self.roll_to(id, old.count, JobChange::UpdateOpened { version }, Reason::Requested);
        self.end_trial_of_none(id);
        Ok(Done::Version(version))
    }

    /// The job has a new target: reports it, adjusts the rows to its count, and applies it where
    /// that disturbs no task.
    fn roll_to(&mut self, id: JobId, old_count: u32, change: JobChange, why: Reason) {
        self.touch_quotas(id);
        self.job_event(id, change, why.clone());
        let count = self.state.jobs.get(id).map_or(old_count, |job| job.spec().count);
        if count != old_count {
            self.job_event(id, JobChange::Resized { count }, why);
            self.resize_task_rows(id, old_count, crate::time::Time::ZERO);
        }
        // The new spec may be for other machines.
        if self.state.jobs.get(id).is_some_and(Job::is_daemon) {
            self.follow_machines(id, crate::time::Time::ZERO);
        }
        self.update_all_in_place(id);
        self.drop_unused_versions(id);
        self.note_update_progress(id);
    }

    /// Rolls back to where the update came from. Tasks it skipped are there already.
    pub(crate) fn undo_update(&mut self, key: &JobKey, expect: Option<u32>) -> Verdict {
        let (id, job) = self.job_to_change(key)?;
        let Some(update) = &job.update else { return Err(no_update(key)) };
        if update.undoing {
            return Ok(Done::Unchanged);
        }
        self.check_expected_version(key, &job, expect)?;
        Ok(Done::Version(self.turn_back(id, &job, update, Reason::Requested)))
    }

    /// Exchanges the ends of an open update; returns the version it leads to now.
    fn turn_back(&mut self, id: JobId, job: &Job, update: &Update, why: Reason) -> u32 {
        let version = update.from;
        let undone = Update {
            undoing: true,
            // What was finished is undone as far as it went.
            finishing: update.finishing,
            rolled_back: why != Reason::Requested,
            limits_only: update.limits_only,
            ..Update::opened(update.to, version, update.opened_at)
        };
        let old_count = job.spec().count;
        self.state.edit_job(id, |job| {
            job.version = version;
            job.update = Some(undone);
        });
        self.roll_to(id, old_count, JobChange::UpdateUndone { version }, why);
        version
    }

    /// From here on the update cannot be undone. Tasks that were skipped run their old spec until
    /// something else replaces them.
    pub(super) fn close_update(&mut self, key: &JobKey, expect: Option<u32>) -> Verdict {
        let (id, job) = self.job_to_change(key)?;
        let Some(update) = &job.update else { return Ok(Done::Unchanged) };
        self.check_expected_version(key, &job, expect)?;
        let behind = |task: &Task| {
            task.version != job.version
                && task.state.holds_resources()
                && !update.skipped.contains(&task.index)
        };
        let rows = job.tasks.iter().filter_map(|task| self.state.tasks.get(*task));
        let left = rows.filter(|task| behind(task)).count();
        if left > 0 {
            let (job, left) = (key.clone(), left as u32);
            return Err(Rejection::WrongState(Conflict::UpdateGoesOn { job, left }));
        }
        self.update_all_in_place(id);
        self.touch_quotas(id);
        self.state.edit_job(id, |job| job.update = None);
        self.drop_unused_versions(id);
        let change = JobChange::UpdateClosed { version: job.version };
        self.job_event(id, change, Reason::Requested);
        Ok(Done::Applied)
    }

    /// Rolls one task of an open update.
    pub(super) fn step_update(&mut self, key: &JobKey, index: u32) -> Verdict {
        let (id, job) = self.job_to_change(key)?;
        let Some(update) = &job.update else { return Err(no_update(key)) };
        let row = job.tasks.get(index as usize);
        let found = row.and_then(|task| Some((*task, self.state.tasks.get(*task)?.clone())));
        let Some((task_id, task)) = found else {
            let allowed = Allowed::range(0u64, job.tasks.len().saturating_sub(1) as u64);
            return Err(Rejection::bad_field("index", Given::text(index), allowed));
        };
        if task.version == job.version {
            return Ok(Done::Unchanged);
        }
        let (_, effect) = spec_change::task_change(job.spec_of(task.version), job.spec(), index);
        if update.waits_for_promotion(index) {
            return Err(Rejection::WrongState(Conflict::CanariesTry(key.clone())));
        }
        let free = !task.state.holds_resources() || effect == Effect::InPlace;
        if free && self.try_update_in_place(task_id) {
            self.task_event(task_id, TaskChange::Updated, Reason::UpdateInPlace);
            self.note_update_progress(id);
            self.maybe_ended.push(id);
            return Ok(Done::Applied);
        }
        let running = task.state == TaskState::Running;
        let most = job.update_bound();
        if running && most.is_some_and(|most| update.disruptions >= most) {
            return Ok(self.skip(id, update, task_id, index));
        }
        self.check_disruption_budget(task_id)?;
        self.disrupt(task_id, &task, effect);
        self.state.edit_job(id, |job| {
            if let Some(update) = &mut job.update {
                update.disruptions = update.disruptions.saturating_add(u32::from(running));
            }
        });
        self.maybe_ended.push(id);
        Ok(Done::Applied)
    }

    fn skip(&mut self, job: JobId, update: &Update, task: TaskId, index: u32) -> Done {
        if update.skipped.contains(&index) {
            return Done::Unchanged;
        }
        self.state.edit_job(job, |job| {
            if let Some(update) = &mut job.update {
                update.skipped.insert(index);
            }
        });
        self.task_event(task, TaskChange::UpdateSkipped, Reason::UpdateSkipped);
        Done::Applied
    }

    /// Stops a task to restart it: where it is, if the new spec fits there; else elsewhere.
    fn disrupt(&mut self, id: TaskId, task: &Task, effect: Effect) {
        if effect == Effect::Restart && self.try_update_in_place(id) {
            match task.state {
                // It restarts anyway, and then with the new spec.
                TaskState::Stopping(_) => {
                    self.task_event(id, TaskChange::Updated, Reason::UpdateRestart);
                }
                _ => self.stop_task(id, StopCause::RestartInPlace, Reason::UpdateRestart),
            }
            return;
        }
        self.stop_task(id, StopCause::UpdateMoves, Reason::UpdateMove);
        self.try_update_in_place(id);
    }
}

fn no_update(key: &JobKey) -> Rejection {
    Rejection::WrongState(Conflict::NoUpdate(key.clone()))
}

fn with_update(job: &Job, spec: &JobSpec, version: u32, now: crate::time::Time) -> Job {
    let mut updated = job.clone();
    let canaries = canary_index_end(job, spec.update.canaries);
    updated.update = Some(Update { canaries, ..Update::opened(job.version, version, now) });
    updated.version = version;
    updated.last_version = version;
    updated.specs.insert(version, Arc::new(spec.clone()));
    updated
}

/// The canaries are the tasks with the lowest indices, below this one. A daemon has gaps.
fn canary_index_end(job: &Job, canaries: u32) -> u32 {
    match canaries.checked_sub(1) {
        Some(last) if job.is_daemon() => {
            job.machines.keys().nth(last as usize).map_or_else(|| job.index_end(), |at| at + 1)
        }
        _ => canaries,
    }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, all, job, key, machine, name};
    use crate::command::{Command, Done, Observed};
    use crate::constraint::{AttributeValue, Constraint, Operator, Strength};
    use crate::isolation::{HOST_VOLUME_WRITABLE, Volume, host_volume_attribute};
    use crate::job_size::JobSize;
    use crate::name::Token;
    use crate::plan::{Assignment, Group, Plan, Victim};
    use crate::priority::{Band, Priority};
    use crate::resource::Resources;
    use crate::spec::{JobKind, JobSpec};
    use crate::task::{ExitClass, StopCause, Task, TaskState};
    use crate::time::{Span, Time};
    use TaskState::{Pending, Running, Stopping};

    fn update(spec: &JobSpec, expect: Option<u32>) -> Command {
        Command::UpdateJob { owner: name("ubar"), spec: Box::new(spec.clone()), expect }
    }

    fn step(index: u32) -> Command {
        Command::StepUpdate { job: key("ubar/jfoo"), index }
    }

    fn close() -> Command {
        Command::CloseUpdate { job: key("ubar/jfoo"), expect: None }
    }

    fn undo() -> Command {
        Command::UndoUpdate { job: key("ubar/jfoo"), expect: None }
    }

    fn versions(cell: &Cell) -> Vec<u32> {
        let id = cell.state.job_named(&key("ubar/jfoo")).unwrap();
        let job = cell.state.jobs().get(id).unwrap();
        job.tasks.iter().map(|task| cell.state.tasks().get(*task).unwrap().version).collect()
    }

    fn kept(cell: &Cell) -> Vec<u32> {
        let id = cell.state.job_named(&key("ubar/jfoo")).unwrap();
        cell.state.jobs().get(id).unwrap().specs.keys().copied().collect()
    }

    fn charged(cell: &Cell, band: Band) -> Resources {
        let user = cell.state.user_named(&name("ubar")).unwrap();
        cell.state.user_load(user).unwrap().charged.get(&band).copied().unwrap_or_default()
    }

    /// `jfoo` with 3 tasks: the first two run on `m1`, the last waits.
    fn rolling(spec: &JobSpec) -> Cell {
        let mut cell = Cell::with_machines(2);
        cell.submit(spec);
        cell.run("jfoo", 0, "m1");
        cell.run("jfoo", 1, "m1");
        cell
    }

    fn changed(spec: &JobSpec, change: impl FnOnce(&mut JobSpec)) -> JobSpec {
        let mut new = spec.clone();
        change(&mut new);
        new
    }

    fn new_program(spec: &JobSpec) -> JobSpec {
        changed(spec, |s| s.task.command = vec!["new".into()])
    }

    #[test]
    fn a_new_program_rolls_task_by_task_and_closes() {
        let spec = job("jfoo", 3, 100);
        let mut cell = rolling(&spec);
        let new = new_program(&spec);
        assert_eq!(cell.ok(update(&new, Some(1))), Done::Version(2));
        assert_eq!(versions(&cell), [1, 1, 2]);
        assert_eq!(cell.ok(update(&new, Some(1))), Done::Unchanged);
        let open = "not possible while an update of job ubar/jfoo is open; \
                    close it or undo it first";
        assert_eq!(cell.rejection_text(update(&changed(&new, |s| s.count = 2), None)), open);
        let left = "not possible while 2 tasks of job ubar/jfoo still have to be updated";
        assert_eq!(cell.rejection_text(close()), left);
        assert_eq!(cell.ok(step(0)), Done::Applied);
        assert_eq!(cell.event_lines, ["ubar/jfoo/0 told to stop on m1: new spec needs a restart"]);
        assert_eq!(cell.ok(step(0)), Done::Unchanged);
        cell.report("jfoo", 0, Observed::Stopped);
        assert_eq!(cell.event_lines, ["ubar/jfoo/0 starts again on m1: new spec needs a restart"]);
        cell.ok(step(1));
        assert_eq!(cell.ok(close()), Done::Applied);
        assert_eq!(cell.ok(close()), Done::Unchanged);
        assert_eq!((versions(&cell), kept(&cell)), (vec![2, 2, 2], vec![2]));
        assert_eq!(
            cell.rejection_text(undo()),
            "not possible while no update of job ubar/jfoo is open"
        );
    }

    /// Whether the open update of `jfoo` is complete.
    fn is_complete(cell: &Cell) -> bool {
        let id = cell.state.job_named(&key("ubar/jfoo")).unwrap();
        let job = cell.state.jobs().get(id).unwrap();
        job.update_is_complete(cell.state.job_load(id).unwrap())
    }

    #[test]
    fn an_update_is_complete_when_every_task_runs_the_new_version() {
        let spec = job("jfoo", 2, 100);
        let mut cell = rolling(&spec);
        assert!(!is_complete(&cell), "none is open");
        cell.ok(update(&new_program(&spec), None));
        for index in 0..2u8 {
            cell.ok(step(index.into()));
            assert!(!is_complete(&cell), "it stops");
            cell.report("jfoo", index.into(), Observed::Stopped);
            assert!(!is_complete(&cell), "it starts");
            cell.report("jfoo", index.into(), Observed::Started);
        }
        assert!(is_complete(&cell));
        cell.ok(undo());
        assert!(!is_complete(&cell), "it goes back, and ends by itself");
    }

    #[test]
    fn an_update_that_skipped_a_task_is_not_complete() {
        let spec = job("jfoo", 2, 100);
        let mut cell = rolling(&spec);
        let bounded = changed(&new_program(&spec), |s| s.max_update_disruptions = Some(0));
        cell.ok(update(&bounded, None));
        cell.ok(step(0));
        cell.ok(step(1));
        assert!(!is_complete(&cell));
    }

    #[test]
    fn an_undone_update_rolls_back_and_its_number_is_never_used_again() {
        let spec = job("jfoo", 3, 100);
        let mut cell = rolling(&spec);
        cell.ok(update(&changed(&new_program(&spec), |s| s.count = 4), None));
        cell.ok(step(0));
        assert_eq!(versions(&cell), [2, 1, 2, 2]);
        assert_eq!(cell.ok(undo()), Done::Version(1));
        assert_eq!(cell.ok(undo()), Done::Unchanged);
        // Task 0 is still stopping for the restart: it takes the old spec without another stop.
        assert_eq!(versions(&cell), [2, 1, 1, 1]);
        cell.ok(step(0));
        assert_eq!(cell.event_lines, ["ubar/jfoo/0 updated: new spec needs a restart"]);
        cell.ok(close());
        assert_eq!(kept(&cell), [1]);
        assert_eq!(charged(&cell, Band::Batch), all(30));
        assert_eq!(cell.ok(update(&new_program(&spec), None)), Done::Version(3));
    }

    /// The only task failed, waits for its next try, and then the update is undone.
    fn undone_while_waiting(shape: impl Fn(&mut JobSpec), ends: Observed) -> Task {
        let mut cell = Cell::with_machines(1);
        let spec = changed(&job("jfoo", 1, 100), |s| {
            (s.restart.max_failures, s.restart.backoff) = (Some(9), Span::seconds(50));
            shape(s);
        });
        cell.submit(&spec);
        cell.ok(update(&new_program(&spec), None));
        cell.run("jfoo", 0, "m1");
        cell.report("jfoo", 0, ends);
        assert!(cell.task("jfoo", 0).not_before > Time(cell.now));
        cell.ok(undo());
        cell.task("jfoo", 0).clone()
    }

    #[test]
    fn another_program_starts_without_the_back_off_of_the_one_before() {
        let failed = Observed::Failed(ExitClass::CouldNotStart);
        let task = undone_while_waiting(|_| (), failed);
        assert_eq!((task.version, task.state), (1, Pending));
        assert_eq!((task.failures_in_row, task.not_before), (0, Time::ZERO));
        let once = |s: &mut JobSpec| s.restart.retry.could_not_start = Some(1);
        assert!(undone_while_waiting(once, failed).apart.is_empty());
        // A lost task of a job with leases may still run somewhere.
        let leased = |s: &mut JobSpec| s.at_most_one = Some(Span::seconds(30));
        let task = undone_while_waiting(leased, Observed::Lost);
        assert!(task.version == 1 && task.not_before >= Time(30_000), "{task:?}");
    }

    #[test]
    fn a_failure_under_the_old_program_does_not_hold_up_the_new_one() {
        let spec = changed(&job("jfoo", 3, 100), |s| s.restart.max_failures = Some(9));
        let mut cell = rolling(&spec);
        cell.ok(update(&new_program(&spec), None));
        cell.report("jfoo", 0, Observed::Failed(ExitClass::Code(1)));
        let task = cell.task("jfoo", 0);
        assert_eq!((task.version, task.state), (2, Pending));
        assert_eq!((task.failures_in_row, task.not_before), (0, Time::ZERO));
    }

    #[test]
    fn what_needs_no_restart_takes_effect_at_once() {
        let spec = job("jfoo", 3, 100);
        let mut cell = rolling(&spec);
        cell.ok(update(&changed(&spec, |s| s.priority = Priority(110)), None));
        assert_eq!((versions(&cell), cell.states("jfoo")[0]), (vec![2, 2, 2], Running));
        let updated_lines =
            cell.event_lines.iter().filter(|s| s.ends_with("updated: new spec, no restart needed"));
        assert_eq!(updated_lines.count(), 3);
        cell.ok(close());
        // A constraint that holds where the tasks run disturbs none; one that fails moves them.
        let mut flash = Constraint {
            attribute: Token::new("flash").unwrap(),
            operator: Operator::Absent,
            strength: Strength::Hard,
        };
        cell.ok(update(&changed(&spec, |s| s.constraints = vec![flash.clone()]), None));
        assert_eq!(versions(&cell), [3, 3, 3]);
        cell.ok(close());
        flash.operator = Operator::Exists;
        cell.ok(update(&changed(&spec, |s| s.constraints = vec![flash]), None));
        assert_eq!(versions(&cell), [3, 3, 4]);
        cell.ok(step(1));
        assert_eq!(
            cell.event_lines,
            ["ubar/jfoo/1 told to stop on m1: new spec needs another place"]
        );
        cell.report("jfoo", 1, Observed::Stopped);
        assert_eq!(cell.states("jfoo"), [Running, Pending, Pending]);
    }

    /// A volume that the task's machine offers costs a restart, any other a move.
    #[test]
    fn a_task_that_is_to_borrow_what_its_machine_does_not_lend_moves() {
        for (path, want) in [("/srv", StopCause::RestartInPlace), ("/opt", StopCause::UpdateMoves)]
        {
            let spec = job("jfoo", 3, 100);
            let mut cell = rolling(&spec);
            let mut lender = machine("m1", 100);
            let how = AttributeValue::Text(HOST_VOLUME_WRITABLE.into());
            lender.attributes.insert(host_volume_attribute("/srv").unwrap(), how);
            cell.ok(Command::UpdateMachine { spec: lender, expect: None });
            let volume = Volume { source: path.into(), target: "/data".into(), writable: true };
            cell.ok(update(&changed(&spec, |s| s.task.isolation.volumes = vec![volume]), None));
            cell.ok(step(0));
            assert_eq!(cell.states("jfoo")[0], Stopping(want), "{path}");
        }
    }

    /// Task 0 of `jfoo` (2 x 10 on `m1`, of which others hold 75) steps to new limits.
    fn check_limits(priority: u16, limits: u64, want: TaskState) {
        let spec = job("jfoo", 2, priority);
        let mut cell = Cell::with_machines(2);
        cell.grant("ubar", Band::Batch, 1000);
        let other = changed(&job("jother", 1, priority), |s| s.task.limits = all(75));
        if priority >= 200 {
            cell.grant("ubar", Band::Production, 200);
        }
        cell.submit(&other);
        cell.run("jother", 0, "m1");
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        cell.run("jfoo", 1, "m1");
        cell.ok(update(&changed(&spec, |s| s.task.limits = all(limits)), None));
        cell.ok(step(0));
        assert_eq!(cell.states("jfoo")[0], want, "{priority} {limits}");
        assert_eq!(cell.task("jfoo", 0).attempt, 1);
    }

    #[test]
    fn larger_limits_stay_where_they_fit() {
        for priority in [100, 200] {
            check_limits(priority, 5, Running);
            check_limits(priority, 15, Running);
            check_limits(priority, 16, Stopping(StopCause::UpdateMoves));
        }
    }

    #[test]
    fn a_priority_that_does_not_fit_moves_and_both_ends_are_charged() {
        let spec = changed(&job("jfoo", 1, 100), |s| s.task.limits = all(30));
        let mut cell = Cell::with_machines(2);
        let prod = changed(&job("jprod", 1, 200), |s| s.task.limits = all(70));
        cell.submit(&prod);
        cell.run("jprod", 0, "m1");
        // The estimator lends out what jprod does not use, so that jfoo fits beside it.
        let (task, attempt) = (cell.task_id("jprod", 0), cell.task("jprod", 0).attempt);
        let change = crate::command::ReservationChange { task, attempt, reservation: all(20) };
        cell.ok(Command::SetReservations(vec![change]));
        let wide = changed(&spec, |s| s.task.limits = all(40));
        cell.submit(&wide);
        cell.run("jfoo", 0, "m1");
        cell.grant("ubar", Band::Production, 110);
        cell.ok(update(&changed(&wide, |s| s.priority = Priority(200)), None));
        assert_eq!(versions(&cell), [1]);
        assert_eq!(charged(&cell, Band::Production), all(110));
        assert_eq!(charged(&cell, Band::Batch), all(40));
        cell.ok(step(0));
        assert_eq!(cell.states("jfoo"), [Stopping(StopCause::UpdateMoves)]);
        cell.ok(close());
        assert_eq!(charged(&cell, Band::Batch), Resources::ZERO);
    }

    #[test]
    fn budgets_hold_and_what_would_disrupt_too_much_is_skipped() {
        let spec = changed(&job("jfoo", 2, 100), |s| {
            s.max_down = Some(1);
            s.max_update_disruptions = Some(1);
        });
        let mut cell = rolling(&spec);
        cell.ok(update(&new_program(&spec), None));
        cell.ok(step(0));
        // Beyond its own bound the update skips, even while the budget would reject the step.
        assert_eq!(cell.ok(step(1)), Done::Applied);
        let why = "the update has caused as many disruptions as it may";
        assert_eq!(cell.event_lines, [format!("ubar/jfoo/1 not updated: {why}")]);
        assert_eq!(cell.ok(step(1)), Done::Unchanged);
        cell.ok(close());
        // The skipped task keeps its spec, and its charge, until it is replaced.
        assert_eq!((versions(&cell), kept(&cell)), (vec![2, 1], vec![1, 2]));
        cell.report("jfoo", 1, Observed::Finished);
        assert_eq!(kept(&cell), [2]);

        let spec = changed(&spec, |s| s.max_update_disruptions = None);
        let mut cell = rolling(&spec);
        cell.ok(update(&new_program(&spec), None));
        cell.ok(step(0));
        let full = "ubar/jfoo has 1 task down already, at most 1 allowed";
        assert_eq!(cell.rejection_text(step(1)), full);
        cell.report("jfoo", 0, Observed::Stopped);
        assert_eq!(cell.rejection_text(step(1)), full);
        cell.report("jfoo", 0, Observed::Started);
        assert_eq!(cell.ok(step(1)), Done::Applied);
    }

    #[test]
    fn an_update_is_charged_for_the_larger_end_until_it_is_closed() {
        let spec = job("jfoo", 3, 100);
        let mut cell = rolling(&spec);
        cell.ok(update(&changed(&spec, |s| s.task.limits.ram = 5), None));
        assert_eq!(charged(&cell, Band::Batch), all(30));
        cell.ok(close());
        // Two run, and may still use what they had.
        assert_eq!(charged(&cell, Band::Batch), Resources { ram: 25, ..all(30) });
        for index in [0, 1] {
            let limits = Resources { ram: 5, ..all(10) };
            cell.report("jfoo", index, Observed::LimitsInForce { resizes: 1, limits });
        }
        assert_eq!(charged(&cell, Band::Batch), Resources { ram: 15, ..all(30) });
        let short = "quota of ubar in band batch does not suffice: \
                     disk: asked 120 B, available 100 B, short by 20 B";
        let wide = changed(&spec, |s| s.task.limits.disk = 40);
        assert_eq!(cell.rejection_text(update(&wide, None)), short);
        assert_eq!(cell.event_lines, [format!("ubar/jfoo rejected: {short}")]);
    }

    /// Version 1 of `jfoo` (4 tasks) is kept alive by one task that an update to 2 tasks skipped.
    #[test]
    fn an_old_version_charges_only_for_tasks_that_still_run_it() {
        let spec = changed(&job("jfoo", 4, 100), |s| s.max_update_disruptions = Some(0));
        let mut cell = rolling(&spec);
        let less = changed(&new_program(&spec), |s| {
            s.count = 2;
            s.task.limits = all(3);
        });
        cell.ok(update(&less, None));
        assert_eq!(charged(&cell, Band::Batch), all(40));
        cell.ok(step(0));
        cell.ok(step(1));
        cell.ok(close());
        assert_eq!((versions(&cell)[..2].to_vec(), kept(&cell)), (vec![1, 1], vec![1, 2]));
        assert_eq!(charged(&cell, Band::Batch), all(20));
        // One of the two leaves the old version; the other still runs it.
        cell.report("jfoo", 1, Observed::Finished);
        assert_eq!((kept(&cell), charged(&cell, Band::Batch)), (vec![1, 2], all(13)));
        // In another band the old version is charged beside the new one.
        cell.ok(update(&changed(&less, |s| s.priority = Priority(200)), None));
        assert_eq!(charged(&cell, Band::Batch), all(13));
        cell.ok(step(0));
        cell.ok(close());
        assert_eq!(charged(&cell, Band::Batch), all(10));
        assert_eq!(charged(&cell, Band::Production), all(6));
        cell.report("jfoo", 0, Observed::Finished);
        assert_eq!(charged(&cell, Band::Batch), Resources::ZERO);
    }

    /// A task over quota since a cut is flagged until the old version is dropped.
    #[test]
    fn leaving_an_old_version_ends_an_excess() {
        let spec = changed(&job("jfoo", 2, 100), |s| s.max_update_disruptions = Some(0));
        let mut cell = rolling(&spec);
        cell.ok(update(&changed(&new_program(&spec), |s| s.task.limits = all(1)), None));
        cell.ok(step(0));
        cell.ok(step(1));
        cell.ok(close());
        cell.grant("ubar", Band::Batch, 15);
        assert!(
            cell.event_lines.iter().any(|line| line.contains("exceeds")),
            "{:?}",
            cell.event_lines
        );
        cell.report("jfoo", 0, Observed::Finished);
        assert_eq!((kept(&cell), charged(&cell, Band::Batch)), (vec![1, 2], all(11)));
        assert!(
            cell.event_lines.iter().any(|line| line.contains("within the batch quota again")),
            "{:?}",
            cell.event_lines
        );
    }

    /// The last 20 of `m1` are free only once `jother` has left.
    #[test]
    fn what_grows_in_place_waits_for_those_whose_room_it_gets() {
        let mut cell = Cell::with_machines(1);
        cell.submit(&changed(&job("jother", 1, 100), |s| s.task.limits = all(80)));
        cell.run("jother", 0, "m1");
        let spec = job("jfoo", 1, 100);
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        cell.ok(Command::StopJob { job: key("ubar/jother"), expect: None });
        let other = Victim { task: cell.task_id("jother", 0), attempt: 1 };
        let waits_for = |cell: &Cell| match cell.task("jfoo", 0).grant() {
            Some(grant) => grant.waits_for.clone(),
            None => Vec::new(),
        };
        // No larger, so nothing to wait for.
        cell.ok(update(&new_program(&spec), None));
        cell.ok(step(0));
        cell.report("jfoo", 0, Observed::Stopped);
        assert_eq!((cell.states("jfoo"), waits_for(&cell)), (vec![TaskState::Assigned], vec![]));
        cell.report("jfoo", 0, Observed::Started);
        cell.ok(close());
        cell.grant("ubar", Band::Batch, 200);
        cell.ok(update(&changed(&spec, |s| s.task.limits = all(30)), None));
        cell.ok(step(0));
        cell.report("jfoo", 0, Observed::Stopped);
        assert_eq!(
            (cell.states("jfoo"), waits_for(&cell)),
            (vec![TaskState::Assigned], vec![other])
        );
        cell.report("jother", 0, Observed::Stopped);
        cell.report("jfoo", 0, Observed::Started);
        assert_eq!(waits_for(&cell), []);
    }

    #[test]
    fn what_grows_while_it_runs_may_do_so_when_those_are_gone_whose_room_it_is() {
        let mut cell = Cell::with_machines(1);
        cell.grant("ubar", Band::Batch, 200);
        cell.submit(&changed(&job("jother", 1, 100), |s| s.task.limits = all(80)));
        cell.run("jother", 0, "m1");
        let spec = job("jfoo", 1, 100);
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        cell.ok(Command::StopJob { job: key("ubar/jother"), expect: None });
        cell.ok(update(&changed(&spec, |s| s.task.limits = all(30)), None));
        let other = Victim { task: cell.task_id("jother", 0), attempt: 1 };
        let orders = crate::desired::desired_tasks(&cell.state, crate::id::MachineId(0));
        let waits_for = orders.iter().find_map(|order| match &order.action {
            crate::desired::Action::Run(work) => Some(work.waits_for.clone()),
            _ => None,
        });
        assert_eq!((cell.states("jfoo"), waits_for), (vec![Running], Some(vec![other])));
        cell.report("jother", 0, Observed::Stopped);
        let limits = all(30);
        cell.report("jfoo", 0, Observed::LimitsInForce { resizes: 1, limits });
        assert_eq!(cell.task("jfoo", 0).grant(), None);
    }

    /// An alloc grows into room that `jother` is leaving: what is put into it waits.
    #[test]
    fn what_is_put_into_an_alloc_that_grew_waits_for_those_whose_room_it_got() {
        let mut set = job("jfoo", 1, 100);
        set.kind = JobKind::AllocSet;
        let mut cell = Cell::with_machines(1);
        cell.submit(&set);
        cell.run("jfoo", 0, "m1");
        cell.submit(&changed(&job("jother", 1, 100), |s| s.task.limits = all(80)));
        cell.run("jother", 0, "m1");
        cell.submit(&changed(&job("inner", 1, 100), |s| {
            s.alloc_set = Some(key("ubar/jfoo"));
            s.task.limits = all(20);
        }));
        cell.ok(Command::StopJob { job: key("ubar/jother"), expect: None });
        cell.grant("ubar", Band::Batch, 200);
        cell.ok(update(&changed(&set, |s| s.task.limits = all(30)), None));
        let other = Victim { task: cell.task_id("jother", 0), attempt: 1 };
        let (task, alloc) = (cell.task_id("inner", 0), Some(cell.task_id("jfoo", 0)));
        let (machine, ports, devices) = (crate::id::MachineId(0), vec![], vec![]);
        let assignment = Assignment { task, attempt: 0, machine, alloc, ports, devices };
        let group = Group { victims: vec![], assignments: vec![assignment] };
        cell.ok(Command::CommitPlan(Plan { made_at: 0, groups: vec![group] }));
        assert_eq!(cell.task("inner", 0).grant().unwrap().waits_for, [other]);
    }

    #[test]
    fn an_alloc_grows_around_its_tasks_and_moves_only_when_it_must() {
        let mut set = job("jfoo", 1, 200);
        set.kind = JobKind::AllocSet;
        let mut cell = Cell::with_machines(1);
        cell.submit(&set);
        cell.run("jfoo", 0, "m1");
        let inner = changed(&job("inner", 1, 200), |s| {
            s.alloc_set = Some(key("ubar/jfoo"));
            s.task.limits = all(8);
        });
        cell.submit(&inner);
        let alloc = cell.task_id("jfoo", 0);
        cell.run_in("inner", 0, "m1", Some(alloc));
        cell.ok(update(&changed(&set, |s| s.task.limits = all(20)), None));
        assert_eq!((versions(&cell), cell.states("inner")), (vec![2], vec![Running]));
        cell.ok(close());
        cell.ok(update(&changed(&set, |s| s.task.limits = all(7)), None));
        assert_eq!(versions(&cell), [2]);
        cell.ok(step(0));
        assert_eq!(cell.states("jfoo"), [Stopping(StopCause::UpdateMoves)]);
        assert_eq!(cell.states("inner"), [Stopping(StopCause::AllocMoved)]);
    }

    #[test]
    fn some_changes_and_some_times_are_refused() {
        let spec = job("jfoo", 2, 100);
        let mut cell = rolling(&spec);
        let gang = "field gang: value another one is not valid; \
                    allowed: as in version 1; submit a new job instead";
        assert_eq!(cell.rejection_text(update(&changed(&spec, |s| s.gang = true), None)), gang);
        let stale = "job ubar/jfoo is at version 1, not 7; read it again and retry";
        assert_eq!(cell.rejection_text(update(&new_program(&spec), Some(7))), stale);
        let none = "not possible while no update of job ubar/jfoo is open";
        assert_eq!(cell.rejection_text(step(0)), none);
        cell.ok(update(&new_program(&spec), None));
        let index = "field index: value 2 is not valid; allowed: 0 to 1";
        assert_eq!(cell.rejection_text(step(2)), index);
        let resize =
            Command::ResizeJob { job: key("ubar/jfoo"), size: JobSize::tasks(3), expect: None };
        let open = "not possible while an update of job ubar/jfoo is open; \
                    close it or undo it first";
        assert_eq!(cell.rejection_text(resize), open);
        cell.ok(Command::StopJob { job: key("ubar/jfoo"), expect: None });
        assert_eq!(cell.rejection_text(step(0)), "not possible while job ubar/jfoo is stopping");
    }
}
