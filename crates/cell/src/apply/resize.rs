//! Resizes, and how rows of tasks follow the count of their job (B2, B5).
//!
//! A resize is the other half of [`super::apply_job`]: it says what of the size becomes different,
//! and is decided on the job as it is when the command is applied. Like an apply it closes an
//! update that is complete, for the change that follows or not at all.
//!
//! Rows live as long as their job. A resize that shrinks kills the highest indices and keeps their
//! rows; one that grows revives them before it creates new ones, so that a task keeps its identity
//! and its count of attempts, and a late report about an earlier attempt is recognized.

use super::Context;
use super::apply_job::job_outcome;
use super::jobs::next_version;
use crate::bounds::{Growth, encoded_bytes};
use crate::command::{Actor, ApplyOutcome, ControllerName, Done, Verdict};
use crate::event::{JobChange, TaskChange};
use crate::hold::Holds;
use crate::id::{JobId, TaskId};
use crate::job::{Job, JobState};
use crate::job_size::JobSize;
use crate::name::JobKey;
use crate::reason::{Allowed, Conflict, Given, Reason, Rejection};
use crate::rollout::VersionOrigin;
use crate::spec::{JobKind, JobSpec, MAX_TASKS};
use crate::task::{StopCause, Task, TaskOutcome, TaskState};
use crate::time::Time;
use std::sync::Arc;

impl Context<'_> {
    /// A new count takes effect at once, and so do new limits where they fit.
    pub(crate) fn resize_job(
        &mut self,
        key: &JobKey,
        size: &JobSize,
        expect: Option<u32>,
    ) -> Verdict {
        let (id, job) = self.job_to_change(key)?;
        let (old, version) = (job.spec(), job.version);
        let spec = size.applied_to(old);
        check_count(old, spec.count)?;
        if spec == **old {
            return Ok(Done::Job { became: ApplyOutcome::Unchanged, version, closed: None });
        }
        self.check_expected_version(key, &job, expect)?;
        if spec.task.limits != old.task.limits {
            return self.change_size(key, &spec);
        }
        let change = |context: &mut Context<'_>| context.set_count(key, spec.count);
        let (done, closed) = self.after_complete_update(key, change)?;
        self.note_sized_by_hand(id);
        Ok(job_outcome(done, ApplyOutcome::Resized, closed))
    }

    /// Whoever chooses a size takes it from the job's scaling.
    pub(super) fn note_sized_by_hand(&mut self, id: JobId) {
        if self.size_reason() == Reason::Requested {
            self.sized_by_hand(id);
        }
    }

    /// Why a size is another one: who scales says so, all others asked for it.
    pub(super) fn size_reason(&self) -> Reason {
        match self.sender {
            Actor::Controller(ControllerName::Scaling) => Reason::Scaled,
            _ => Reason::Requested,
        }
    }

    /// A new count is a new version that does not disturb tasks that stay. A shrink is the owner's
    /// request, so budgets do not apply to it.
    fn set_count(&mut self, key: &JobKey, count: u32) -> Verdict {
        let (id, job) = self.job_to_change(key)?;
        let old = job.spec().clone();
        if job.update.is_some() {
            return Err(Rejection::WrongState(Conflict::UpdateOpen(key.clone())));
        }
        self.check_room_for_tasks((count as usize).saturating_sub(job.tasks.len()))?;
        let version = next_version(&job)?;
        let mut resized = job.clone();
        resized.version = version;
        resized.last_version = version;
        // Only the new count is charged: all tasks take the new version at once.
        let spec = Arc::new(JobSpec { count, ..(*old).clone() });
        resized.specs.insert(version, spec.clone());
        let mut target = resized.clone();
        target.specs.remove(&job.version);
        self.check_quota(Some(&job), &target)?;
        // It replaces the previous spec.
        let more = encoded_bytes(&*spec).saturating_sub(encoded_bytes(&*old));
        let growth = Growth { spec_bytes: more, ..Self::growth(Some(&job), &spec) };
        let going = self.jobs_to_purge(job.user, growth, |_| false)?;
        self.purge_selected(&going);
        self.touch_quotas(id);
        self.state.edit_job(id, |job| *job = resized);
        self.record_version(id, VersionOrigin::Resized { from: job.version }, Some(&*old));
        self.touch_quotas(id);
        self.job_event(id, JobChange::Resized { count }, self.size_reason());
        self.resize_task_rows(id, old.count, Time::ZERO);
        self.update_all_in_place(id);
        self.drop_unused_versions(id);
        Ok(Done::Version(version))
    }

    /// Brings the rows of tasks to the job's count, or those of a daemon to its machines; `old` is
    /// the count they followed so far, and new rows wait until `earliest`.
    pub(super) fn resize_task_rows(&mut self, id: JobId, old: u32, earliest: Time) {
        let Some(job) = self.state.jobs.get(id) else { return };
        if job.is_daemon() {
            self.follow_machines(id, earliest);
            return;
        }
        let (count, rows) = (job.spec().count, job.tasks.clone());
        for task in rows.iter().skip(count as usize) {
            self.stop_task(*task, StopCause::Killed, Reason::Requested);
        }
        for task in rows.iter().take(count as usize).skip(old as usize) {
            self.revive_task(*task);
        }
        if rows.len() >= count as usize {
            return;
        }
        let earliest = earliest.max(self.leases_end(id));
        let mut rows = (*rows).clone();
        for index in rows.len() as u32..count {
            rows.extend(self.new_task(id, index, earliest));
        }
        let rows = Arc::new(rows);
        self.state.edit_job(id, |job| job.tasks = rows);
    }

    /// When the last lease of the job's tasks ends, if it has leases.
    pub(super) fn leases_end(&self, id: JobId) -> Time {
        let Some(job) = self.state.jobs.get(id) else { return Time::ZERO };
        if job.specs.values().all(|spec| spec.at_most_one.is_none()) {
            return Time::ZERO;
        }
        let rows = job.tasks.iter().filter_map(|task| self.state.tasks.get(*task));
        let latest = rows.map(|task| task.not_before).max().unwrap_or(Time::ZERO);
        if latest > self.now { latest } else { Time::ZERO }
    }

    pub(super) fn new_task(&mut self, id: JobId, index: u32, not_before: Time) -> Option<TaskId> {
        let job = self.state.jobs.get(id)?;
        let task = Task {
            job: id,
            index,
            state: waiting_state(job),
            healthy: true,
            attempt: self.state.attempt_floor,
            version: job.version,
            holds: Holds::default(),
            reservation: job.spec().limits_of(index),
            failures_in_row: 0,
            apart: Vec::new(),
            not_before,
            changed_at: self.now,
            crashed_on: Vec::new(),
            last_end: None,
            notice_max: None,
            restart_due: false,
            resizes: 0,
            limits_in_force: None,
        };
        let task = self.state.insert_task(task);
        self.task_event(task, TaskChange::Submitted, Reason::Admitted);
        Some(task)
    }

    /// Revives a task that an earlier shrink killed. A task that ended on its own stays ended.
    fn revive_task(&mut self, id: TaskId) {
        let has_ended =
            |row: &Task| matches!(row.state, TaskState::Dead(how) if how != TaskOutcome::Killed);
        if !self.state.tasks.get(id).is_some_and(has_ended) {
            self.start_again(id);
        }
    }

    /// Has a dead task, or one that is being killed, start again. It still waits as long as it had
    /// to: its lease may not have run out where it was lost.
    pub(super) fn start_again(&mut self, id: TaskId) {
        let Some(task) = self.state.tasks.get(id).cloned() else { return };
        let Some(job) = self.state.jobs.get(task.job) else { return };
        let (state, version) = (waiting_state(job), job.version);
        let limits = job.spec().limits_of(task.index);
        match (task.state, task.machine()) {
            (TaskState::Dead(_), _) => {
                self.set_task(id, |t| {
                    t.state = state;
                    t.version = version;
                    t.reservation = limits;
                    t.failures_in_row = 0;
                    t.apart = Vec::new();
                });
                self.task_event(id, TaskChange::Submitted, Reason::Admitted);
            }
            // Still stopping: once it is gone, it goes back to pending instead of dying.
            (TaskState::Stopping(StopCause::Killed), Some(machine)) => {
                self.set_task(id, |t| t.state = TaskState::Stopping(StopCause::UpdateMoves));
                self.task_event(id, TaskChange::Stopping { machine }, Reason::Requested);
            }
            _ => {}
        }
    }
}

/// Overrides are by task; a shrink that would leave some without a task needs an update.
fn check_count(spec: &JobSpec, count: u32) -> Result<(), Rejection> {
    if spec.kind == JobKind::Daemon && count != spec.count {
        return Err(Rejection::bad_field("count", Given::text(count), Allowed::NotOfDaemons));
    }
    let least = spec.overrides.last_key_value().map_or(1, |(index, _)| index + 1);
    if (least..=MAX_TASKS).contains(&count) {
        return Ok(());
    }
    let allowed = match least {
        1 => Allowed::range(1u64, MAX_TASKS),
        _ => Allowed::CountWithOverrides { least },
    };
    Err(Rejection::bad_field("count", Given::text(count), allowed))
}

pub(super) fn waiting_state(job: &Job) -> TaskState {
    match job.state {
        JobState::Deferred => TaskState::Deferred,
        _ => TaskState::Pending,
    }
}

#[cfg(test)]
mod tests {
    use crate::admit::MIN_RAM;
    use crate::apply::fixture::{Cell, all, job, key, machine, name};
    use crate::command::{Actor, ApplyOutcome, Command, Done, Entry, Observed, Request};
    use crate::id::MachineId;
    use crate::isolation::Secret;
    use crate::job::{JobOutcome, JobState};
    use crate::job_size::JobSize;
    use crate::name::Token;
    use crate::priority::Band;
    use crate::spec::{JobSpec, TaskOverride};
    use crate::task::{ExitClass, StopCause, TaskOutcome, TaskState};
    use crate::time::Time;
    use ApplyOutcome::{Resized, Unchanged};
    use TaskState::{Dead, Pending, Running, Stopping};

    fn resize(count: u32) -> Command {
        sized(JobSize::tasks(count), None)
    }

    fn sized(size: JobSize, expect: Option<u32>) -> Command {
        Command::ResizeJob { job: key("ubar/jfoo"), size, expect }
    }

    fn done(became: ApplyOutcome, version: u32, closed: Option<u32>) -> Done {
        Done::Job { became, version, closed }
    }

    #[test]
    fn a_shrink_kills_the_highest_and_a_growth_wakes_them() {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 4, 100));
        cell.run("jfoo", 0, "m1");
        cell.run("jfoo", 3, "m1");
        assert_eq!(cell.ok(resize(2)), done(Resized, 2, None));
        let killed = Dead(TaskOutcome::Killed);
        let leaving = Stopping(StopCause::Killed);
        assert_eq!(cell.states("jfoo"), [Running, Pending, killed, leaving]);
        assert_eq!(cell.charged(Band::Batch), all(20));
        assert_eq!(cell.ok(resize(2)), done(Unchanged, 2, None));
        assert_eq!(cell.ok(resize(5)), done(Resized, 3, None));
        let back = Stopping(StopCause::UpdateMoves);
        assert_eq!(cell.states("jfoo"), [Running, Pending, Pending, back, Pending]);
        cell.report("jfoo", 3, Observed::Stopped);
        assert_eq!(cell.states("jfoo"), [Running, Pending, Pending, Pending, Pending]);
        assert_eq!(cell.charged(Band::Batch), all(50));
        let short = "quota of ubar in band batch does not suffice: \
                     cpu: asked 0.11 cores, available 0.1 cores, short by 0.01 cores";
        assert_eq!(cell.rejection_text(resize(11)), short);
        let stale = "job ubar/jfoo is at version 3, not 2; read it again and retry";
        assert_eq!(cell.rejection_text(sized(JobSize::tasks(6), Some(2))), stale);
        // One spec is left: nothing runs an older count.
        let id = cell.state.job_named(&key("ubar/jfoo")).unwrap();
        assert_eq!(cell.state.jobs().get(id).unwrap().specs.len(), 1);
    }

    /// `jfoo` of one task that runs, with a secret and memory to start.
    fn running() -> Cell {
        let mut spec = job("jfoo", 1, 100);
        spec.task.limits.ram = MIN_RAM;
        spec.task.secrets.insert(Token::new("key").unwrap(), Secret("c2VjcmV0".into()));
        let mut cell = Cell::with_machines(0);
        cell.grant("ubar", Band::Batch, 10 * MIN_RAM);
        cell.ok(Command::AddMachine(machine("m1", 10 * MIN_RAM)));
        cell.ok(Command::MachineUp { machine: MachineId(0), incarnation: 1 });
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        cell
    }

    fn spec_of(cell: &Cell) -> JobSpec {
        let id = cell.state.job_named(&key("ubar/jfoo")).unwrap();
        (**cell.state.jobs().get(id).unwrap().spec()).clone()
    }

    #[test]
    fn new_limits_take_effect_where_they_fit_and_leave_the_rest_of_the_spec() {
        let mut cell = running();
        let before = spec_of(&cell);
        let more = JobSize { ram: Some(2 * MIN_RAM), ..JobSize::default() };
        assert_eq!(cell.ok(sized(more, Some(1))), done(Resized, 2, None));
        let mut wanted = before.clone();
        wanted.task.limits.ram = 2 * MIN_RAM;
        assert_eq!(spec_of(&cell), wanted, "its secret is still there");
        assert_eq!(cell.states("jfoo"), [Running]);
        // It is so already, whatever version was seen.
        assert_eq!(cell.ok(sized(more, Some(1))), done(Unchanged, 2, None));
        assert_eq!(cell.ok(sized(JobSize::default(), None)), done(Unchanged, 2, None));
        let both = JobSize { ram: Some(3 * MIN_RAM), ..JobSize::tasks(2) };
        assert_eq!(cell.ok(sized(both, None)), done(Resized, 3, None));
        assert_eq!(cell.states("jfoo"), [Running, Pending]);
        let mut cell = running();
        let none = JobSize { ram: Some(1), ..JobSize::default() };
        let why = "field task.limits.ram: value 1 is not valid; allowed: 2097152 (2 MiB) or more";
        let text = cell.rejection_text(sized(none, None));
        assert!(text.starts_with(why), "{text}");
        assert_eq!(spec_of(&cell), before);
    }

    #[test]
    fn a_complete_update_is_closed_for_a_resize_that_is_admitted_and_for_no_other() {
        let mut cell = running();
        let mut urgent = spec_of(&cell);
        urgent.priority.0 = 101;
        cell.ok(Command::UpdateJob { owner: name("ubar"), spec: Box::new(urgent), expect: None });
        let far = cell.rejection_text(resize(11));
        assert!(far.starts_with("quota of ubar in band batch does not suffice"), "{far}");
        let stale = "job ubar/jfoo is at version 2, not 1; read it again and retry";
        assert_eq!(cell.rejection_text(sized(JobSize::tasks(2), Some(1))), stale);
        // Both were refused, and the update can still be undone.
        let undo = Command::UndoUpdate { job: key("ubar/jfoo"), expect: Some(2) };
        let mut copy = cell.state.clone();
        let by = Actor::User(name("ubar"));
        let requests = vec![Request { by, id: None, command: undo }];
        let entry = Entry { now: Time(cell.now), requests };
        assert_eq!(copy.apply(&entry, &mut Vec::new()), [Ok(Done::Version(1))]);
        assert_eq!(cell.ok(sized(JobSize::tasks(2), Some(2))), done(Resized, 3, Some(2)));
        assert_eq!(
            cell.event_lines,
            [
                "ubar/jfoo update closed at version 2: requested",
                "ubar/jfoo resized to 2 tasks: requested",
                "ubar/jfoo/1 submitted: well formed and within quota",
                "ubar/jfoo/0 updated: new spec, no restart needed",
            ]
        );
    }

    #[test]
    fn a_resize_keeps_overrides_and_what_ended_on_its_own() {
        let mut cell = Cell::with_machines(1);
        let mut spec = job("jfoo", 3, 100);
        spec.overrides
            .insert(1, TaskOverride { limits: Some(all(5).into()), ..Default::default() });
        cell.submit(&spec);
        let why = "field count: value 1 is not valid; \
                   allowed: 2 to 200000: task 1 has overrides of its own";
        assert_eq!(cell.rejection_text(resize(1)), why);
        cell.run("jfoo", 2, "m1");
        cell.report("jfoo", 2, Observed::Finished);
        cell.ok(resize(2));
        cell.ok(resize(3));
        assert_eq!(cell.states("jfoo"), [Pending, Pending, Dead(TaskOutcome::Finished)]);
    }

    #[test]
    fn a_failure_that_a_shrink_cut_off_does_not_fail_the_job() {
        for (count, want) in [(2, JobOutcome::Failed), (1, JobOutcome::Succeeded)] {
            let mut cell = Cell::with_machines(1);
            cell.submit(&job("jfoo", 2, 100));
            cell.run("jfoo", 1, "m1");
            cell.report("jfoo", 1, Observed::Failed(ExitClass::Code(1)));
            cell.ok(resize(count));
            cell.run("jfoo", 0, "m1");
            cell.report("jfoo", 0, Observed::Finished);
            let id = cell.state.job_named(&key("ubar/jfoo")).unwrap();
            assert_eq!(cell.state.jobs().get(id).unwrap().state, JobState::Dead(want));
        }
    }
}
