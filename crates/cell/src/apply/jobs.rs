//! Submit, resize, stop and forget jobs (B2, B5, B6, B9, B11, B25).
//!
//! Admission is here and nowhere else: rights, quota, the alloc set and the predecessor are looked
//! at once, when the owner asks. After that a job is the cell's business, and placement never asks
//! for permission again.
//!
//! Rows of tasks live as long as their job. A resize that shrinks kills the highest indices and
//! keeps their rows; one that grows wakes them before it makes new ones, so that a task keeps its
//! identity and its count of attempts, and a late report of its former life is told apart.

use super::Context;
use crate::admit;
use crate::command::{Done, Verdict};
use crate::event::{JobChange, TaskChange, What};
use crate::id::{JobId, TaskId, UserId};
use crate::job::{Job, JobOutcome, JobState};
use crate::name::{JobKey, Name};
use crate::priority::Band;
use crate::quota::Capability;
use crate::reason::{Reason, Refusal};
use crate::resource::{Dimension, Shortfall};
use crate::spec::{JobKind, JobSpec, MAX_TASKS};
use crate::task::{Fate, StopCause, Task, TaskState};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Context<'_> {
    pub(super) fn submit_job(&mut self, owner: &Name, spec: &JobSpec) -> Verdict {
        let verdict = self.try_submit(owner, spec);
        self.note_rejection(owner, &spec.name, &verdict);
        verdict
    }

    fn try_submit(&mut self, owner: &Name, spec: &JobSpec) -> Verdict {
        let user = self.user_by_name(owner)?;
        let key = JobKey { user: owner.clone(), job: spec.name.clone() };
        self.owner_or_admin(user, &key)?;
        admit::check_job(spec)?;
        if self.submitted_before(&key, spec)? {
            return Ok(Done::Unchanged);
        }
        self.restricted_features(None, spec)?;
        self.alloc_set_is_open(user, spec)?;
        self.not_below_inner(&key, spec)?;
        let predecessors = self.predecessors(&key, spec)?;
        if !self.state.jobs.has_room_for(1) {
            return Err(Refusal::Full("jobs".into()));
        }
        self.room_for_tasks(spec.count as usize)?;
        let job = new_job(user, spec, predecessors.keys().copied().collect(), self.now);
        self.within_quota(None, &job)?;
        // A lost task of the job that had this name may still run.
        let earliest = self.state.job_named(&key).map_or(Time::ZERO, |old| self.leases_over(old));
        let id = self.state.insert_job(job);
        self.job_event(id, JobChange::Submitted, Reason::Requested);
        self.job_event(id, JobChange::Accepted, Reason::Admitted);
        self.note_charges(id);
        self.follow_count(id, 0, earliest);
        for (predecessor, outcome) in predecessors {
            if let Some(outcome) = outcome {
                self.release(id, predecessor, outcome);
            }
        }
        Ok(Done::Version(FIRST_VERSION))
    }

    /// The owner learns of a refusal from the verdict, everybody else from the history.
    pub(super) fn note_rejection(&mut self, owner: &Name, job: &Name, verdict: &Verdict) {
        if let Err(refusal) = verdict {
            let (user, job, refusal) = (owner.clone(), job.clone(), refusal.clone());
            self.emit(What::JobRejected { user, job, refusal }, Reason::Requested);
        }
    }

    pub(super) fn job_event(&mut self, job: JobId, change: JobChange, reason: Reason) {
        self.emit(What::Job { job, change }, reason);
    }

    /// Whether the very same job lives already. Its name is free again once it is dead.
    fn submitted_before(&self, key: &JobKey, spec: &JobSpec) -> Result<bool, Refusal> {
        let old = self.state.job_named(key).and_then(|id| self.state.jobs.get(id));
        match old.map(|job| (job.state, job)) {
            None | Some((JobState::Dead(_), _)) => Ok(false),
            Some((JobState::Stopping, _)) => {
                Err(Refusal::WrongState { what: format!("job {key} is still stopping") })
            }
            Some((_, job)) if **job.spec() == *spec => Ok(true),
            Some(_) => Err(Refusal::Exists(format!("job {key} with another spec"))),
        }
    }

    /// Features that need a capability, where `spec` asks for them anew.
    pub(super) fn restricted_features(
        &self,
        old: Option<&JobSpec>,
        spec: &JobSpec,
    ) -> Result<(), Refusal> {
        let monitoring = |spec: &JobSpec| spec.priority.band() == Band::Monitoring;
        if monitoring(spec) && !old.is_some_and(monitoring) {
            self.require(Capability::UseMonitoringBand)?;
        }
        if !spec.reclaimable && old.is_none_or(|old| old.reclaimable) {
            self.require(Capability::DisableReclamation)?;
        }
        Ok(())
    }

    /// Tasks in an alloc set spend what its owner pays for.
    fn alloc_set_is_open(&self, user: UserId, spec: &JobSpec) -> Result<(), Refusal> {
        let Some(key) = &spec.alloc_set else { return Ok(()) };
        let set = self.state.job_named(key).and_then(|id| self.state.jobs.get(id));
        let Some(set) = set else { return Err(Refusal::NoSuchJob(key.clone())) };
        if set.user != user {
            self.owner_or_admin(set.user, key)?;
        }
        if set.spec().kind != JobKind::AllocSet {
            return Err(Refusal::BadField {
                field: "alloc_set".into(),
                value: key.to_string(),
                allowed: "an alloc set; this is a job of tasks".into(),
            });
        }
        match set.state {
            JobState::Deferred | JobState::Active => not_above_set(spec, key, set),
            _ => Err(Refusal::WrongState { what: format!("alloc set {key} has been stopped") }),
        }
    }

    /// The other side of [`not_above_set`]: a set, new or changed, may not fall below the jobs that
    /// live in it, or wait for a set of its name.
    pub(super) fn not_below_inner(&self, key: &JobKey, spec: &JobSpec) -> Result<(), Refusal> {
        if spec.kind != JobKind::AllocSet {
            return Ok(());
        }
        let inside = |job: &&Job| !job.is_dead() && job.spec().alloc_set.as_ref() == Some(key);
        let jobs = self.state.jobs.iter().map(|(_, job)| job).filter(inside);
        let asks = jobs.flat_map(|job| job.specs.values().map(|inner| (inner.priority, &job.name)));
        match asks.max() {
            Some((most, name)) if most > spec.priority => Err(Refusal::BadField {
                field: "priority".into(),
                value: spec.priority.0.to_string(),
                allowed: format!("{} or more, the priority of job {name} inside it", most.0),
            }),
            _ => Ok(()),
        }
    }

    /// A changed job inside an alloc set, looked at as when it was submitted.
    pub(super) fn still_not_above_set(&self, spec: &JobSpec) -> Result<(), Refusal> {
        let Some(key) = &spec.alloc_set else { return Ok(()) };
        let set = self.state.job_named(key).and_then(|id| self.state.jobs.get(id));
        match set.filter(|set| !set.is_dead() && set.spec().kind == JobKind::AllocSet) {
            Some(set) => not_above_set(spec, key, set),
            None => Ok(()),
        }
    }

    /// The jobs to wait for, with the outcome of those that have one already. All of them exist
    /// before the job does and none can be changed to wait for it, so nobody waits in a circle.
    fn predecessors(
        &self,
        key: &JobKey,
        spec: &JobSpec,
    ) -> Result<BTreeMap<JobId, Option<JobOutcome>>, Refusal> {
        let mut found = BTreeMap::new();
        for after in &spec.after {
            if after.job == *key {
                return Err(Refusal::BadField {
                    field: "after.job".into(),
                    value: key.to_string(),
                    allowed: "another job".into(),
                });
            }
            let id = self.state.job_named(&after.job);
            let row = id.and_then(|id| Some((id, self.state.jobs.get(id)?)));
            let Some((id, job)) = row else { return Err(Refusal::NoSuchJob(after.job.clone())) };
            let outcome = match job.state {
                JobState::Dead(outcome) => Some(outcome),
                _ => None,
            };
            found.insert(id, outcome);
        }
        Ok(found)
    }

    pub(super) fn room_for_tasks(&self, more: usize) -> Result<(), Refusal> {
        let new_rows = more.saturating_sub(self.state.vacant_tasks.len());
        match self.state.tasks.has_room_for(new_rows) {
            true => Ok(()),
            false => Err(Refusal::Full("tasks".into())),
        }
    }

    /// Refuses what would charge more than granted. Where the charge does not rise nothing is
    /// admitted, so a user in excess can still shrink.
    pub(super) fn within_quota(&self, before: Option<&Job>, after: &Job) -> Result<(), Refusal> {
        let tasks = &self.state.tasks;
        let had = before.map(|job| job.charges(tasks)).unwrap_or_default();
        let Some(user) = self.state.users.get(after.user) else { return Ok(()) };
        let load = self.state.user_load(after.user);
        for (band, asked) in after.charges(tasks) {
            let had = had.get(&band).copied().unwrap_or_default();
            let charged = load.and_then(|l| l.charged.get(&band).copied()).unwrap_or_default();
            let available = user.granted(band, self.now).minus(charged.minus(had));
            let short = Dimension::ALL
                .into_iter()
                .find(|d| asked.get(*d) > had.get(*d) && asked.get(*d) > available.get(*d));
            if let Some(dimension) = short {
                let (asked, available) = (asked.get(dimension), available.get(dimension));
                let shortfall = Shortfall { dimension, asked, available };
                return Err(Refusal::QuotaExceeded { user: user.name.clone(), band, shortfall });
            }
        }
        Ok(())
    }

    /// A job somebody names in order to change it: found, theirs, and alive.
    pub(super) fn job_to_change(&self, key: &JobKey) -> Result<(JobId, Job), Refusal> {
        let (id, job) = self.owned_job(key)?;
        match job.state {
            JobState::Deferred | JobState::Active => Ok((id, job)),
            JobState::Stopping => {
                Err(Refusal::WrongState { what: format!("job {key} is stopping") })
            }
            JobState::Dead(_) => Err(Refusal::WrongState { what: format!("job {key} is dead") }),
        }
    }

    fn owned_job(&self, key: &JobKey) -> Result<(JobId, Job), Refusal> {
        let owner = self.user_by_name(&key.user)?;
        self.owner_or_admin(owner, key)?;
        let id = self.state.job_named(key);
        let found = id.and_then(|id| Some((id, self.state.jobs.get(id)?.clone())));
        found.ok_or_else(|| Refusal::NoSuchJob(key.clone()))
    }

    /// Compare-and-swap: the version the client saw must be the one it changes.
    pub(super) fn expected_version(
        &self,
        key: &JobKey,
        job: &Job,
        expect: Option<u32>,
    ) -> Result<(), Refusal> {
        match expect {
            Some(expected) if expected != job.version => {
                let (object, found) = (format!("job {key}"), job.version);
                Err(Refusal::StaleVersion { object, expected, found })
            }
            _ => Ok(()),
        }
    }

    /// A new count is a new version that disturbs nobody who stays. What a shrink kills is the
    /// owner's wish, so no budget stands in its way.
    pub(super) fn resize_job(&mut self, key: &JobKey, count: u32, expect: Option<u32>) -> Verdict {
        let (id, job) = self.job_to_change(key)?;
        let old = job.spec().clone();
        check_count(&old, count)?;
        if count == old.count {
            return Ok(Done::Unchanged);
        }
        self.expected_version(key, &job, expect)?;
        if job.update.is_some() {
            return Err(Refusal::WrongState { what: format!("an update of job {key} is open") });
        }
        self.room_for_tasks((count as usize).saturating_sub(job.tasks.len()))?;
        let version = next_version(&job)?;
        let mut resized = job.clone();
        resized.version = version;
        resized.last_version = version;
        // Only the new count is charged: all tasks take the new version at once.
        let spec = Arc::new(JobSpec { count, ..(*old).clone() });
        resized.specs.insert(version, spec.clone());
        let mut target = resized.clone();
        target.specs.remove(&job.version);
        self.within_quota(Some(&job), &target)?;
        self.note_charges(id);
        self.state.edit_job(id, |job| *job = resized);
        self.note_charges(id);
        self.job_event(id, JobChange::Resized { count }, Reason::Requested);
        self.follow_count(id, old.count, Time::ZERO);
        self.adopt_where_free(id);
        self.forget_versions(id);
        Ok(Done::Version(version))
    }

    /// Brings the rows of tasks to the job's count; `old` is the count they followed so far, and
    /// new rows wait until `earliest`.
    pub(super) fn follow_count(&mut self, id: JobId, old: u32, earliest: Time) {
        let Some(job) = self.state.jobs.get(id) else { return };
        let (count, rows) = (job.spec().count, job.tasks.clone());
        for task in rows.iter().skip(count as usize) {
            self.stop_task(*task, StopCause::Killed, Reason::Requested);
        }
        for task in rows.iter().take(count as usize).skip(old as usize) {
            self.wake(*task);
        }
        if rows.len() >= count as usize {
            return;
        }
        let earliest = earliest.max(self.leases_over(id));
        let mut rows = (*rows).clone();
        for index in rows.len() as u32..count {
            rows.extend(self.new_task(id, index, earliest));
        }
        let rows = Arc::new(rows);
        self.state.edit_job(id, |job| job.tasks = rows);
    }

    /// When the leases of all tasks of the job are over, as far as it has any.
    fn leases_over(&self, id: JobId) -> Time {
        let Some(job) = self.state.jobs.get(id) else { return Time::ZERO };
        if job.specs.values().all(|spec| spec.at_most_one.is_none()) {
            return Time::ZERO;
        }
        let rows = job.tasks.iter().filter_map(|task| self.state.tasks.get(*task));
        let latest = rows.map(|task| task.not_before).max().unwrap_or(Time::ZERO);
        if latest > self.now { latest } else { Time::ZERO }
    }

    fn new_task(&mut self, id: JobId, index: u32, not_before: Time) -> Option<TaskId> {
        let job = self.state.jobs.get(id)?;
        let task = Task {
            job: id,
            index,
            state: waiting_state(job),
            healthy: true,
            attempt: self.state.attempt_floor,
            version: job.version,
            machine: None,
            alloc: None,
            grant: None,
            reservation: job.spec().limits_of(index),
            failures_in_row: 0,
            not_before,
            changed_at: self.now,
            crashed_on: Vec::new(),
            last_end: None,
            notice_max: None,
        };
        let task = self.state.insert_task(task);
        self.task_event(task, TaskChange::Submitted, Reason::Admitted);
        Some(task)
    }

    /// A task that an earlier shrink cut off is wanted again. What ended on its own stays ended. It
    /// still waits as long as it had to: its lease may not have run out where it was lost.
    fn wake(&mut self, id: TaskId) {
        let Some(task) = self.state.tasks.get(id).cloned() else { return };
        let Some(job) = self.state.jobs.get(task.job) else { return };
        let (state, version) = (waiting_state(job), job.version);
        let limits = job.spec().limits_of(task.index);
        match (task.state, task.machine) {
            (TaskState::Dead(Fate::Killed), _) => {
                self.set_task(id, |t| {
                    t.state = state;
                    t.version = version;
                    t.reservation = limits;
                    t.failures_in_row = 0;
                });
                self.task_event(id, TaskChange::Submitted, Reason::Admitted);
            }
            // Not gone yet: once it is, it goes back to the queue instead of dying.
            (TaskState::Stopping(StopCause::Killed), Some(machine)) => {
                self.set_task(id, |t| t.state = TaskState::Stopping(StopCause::UpdateMoves));
                self.task_event(id, TaskChange::Stopping { machine }, Reason::Requested);
            }
            _ => {}
        }
    }

    /// Stopping an alloc set sends the tasks of jobs inside it back to the queue, where they wait
    /// for an alloc set of that name.
    pub(super) fn stop_job(&mut self, key: &JobKey, expect: Option<u32>) -> Verdict {
        let (id, job) = self.owned_job(key)?;
        if matches!(job.state, JobState::Stopping | JobState::Dead(_)) {
            return Ok(Done::Unchanged);
        }
        self.expected_version(key, &job, expect)?;
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

    /// One task alone. It stays dead, also through updates: only a shrink below it and a growth
    /// back make it anew.
    pub(super) fn stop_one(&mut self, key: &JobKey, index: u32, expect: Option<u32>) -> Verdict {
        let (id, job) = self.owned_job(key)?;
        let wanted = job.tasks.get(index as usize).filter(|_| index < job.spec().count).copied();
        let Some(task) = wanted else {
            return Err(Refusal::NoSuchRow(format!("task {key}/{index}")));
        };
        let state = self.state.tasks.get(task).map(|row| row.state);
        let ends = matches!(
            state,
            None | Some(TaskState::Dead(_) | TaskState::Stopping(StopCause::Killed))
        );
        if ends {
            return Ok(Done::Unchanged);
        }
        self.expected_version(key, &job, expect)?;
        self.stop_task(task, StopCause::Killed, Reason::Requested);
        self.maybe_ended.push(id);
        Ok(Done::Applied)
    }

    /// Rows to which retained disk still refers stay, with the job that saves it. So do
    /// those whose leases run, which the next job of that name has to know, and a newer job of the
    /// same name, which would otherwise leave its name to the older one.
    pub(super) fn purge_jobs(&mut self, ended_before: Time) -> Verdict {
        self.system_only()?;
        let runs = self.state.crons.iter().flat_map(|(_, cron)| cron.runs.iter().copied());
        let kept: BTreeSet<JobId> = runs.collect();
        let over = |job: &Job| job.ended_at.is_some_and(|at| at < ended_before);
        Ok(self.purge(|id, job| over(job) && !kept.contains(&id)))
    }

    /// The dead jobs of a choice that nobody needs any more.
    pub(super) fn forgettable(
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
            retained.iter().filter_map(|task| self.state.saver_job(*task)).collect();
        let mut old: BTreeMap<JobId, Arc<Vec<TaskId>>> = BTreeMap::new();
        // A name belongs to its newest row, so rows of one name go oldest first.
        let mut older_stays: BTreeSet<(UserId, &Name)> = BTreeSet::new();
        for (id, job) in self.state.jobs.iter().filter(|(_, job)| job.is_dead()) {
            let name = (job.user, &job.name);
            let held = savers.contains(&id)
                || job.tasks.iter().any(|task| retained.contains(task))
                || self.leases_over(id) > self.now;
            if over(id, job) && !held && !older_stays.contains(&name) {
                old.insert(id, job.tasks.clone());
            } else {
                older_stays.insert(name);
            }
        }
        old
    }

    /// Forgets the dead jobs of a choice, as far as nobody needs them.
    pub(super) fn purge(&mut self, over: impl Fn(JobId, &Job) -> bool) -> Done {
        let old = self.forgettable(over);
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

/// Tasks in an alloc set stand and fall with their alloc, and its owner pays in the set's band: a
/// priority above the set's would be neither kept nor paid for. Every version the set may run at
/// counts, so that undoing an update never breaks this.
fn not_above_set(spec: &JobSpec, key: &JobKey, set: &Job) -> Result<(), Refusal> {
    let most = set.specs.values().map(|version| version.priority).min();
    match most {
        Some(most) if spec.priority > most => Err(Refusal::BadField {
            field: "priority".into(),
            value: spec.priority.0.to_string(),
            allowed: format!("at most {}, the priority of alloc set {key}", most.0),
        }),
        _ => Ok(()),
    }
}

/// Version of a job nobody has changed.
const FIRST_VERSION: u32 = 1;

/// Overrides describe tasks; a shrink that would leave some describing nobody is for an update.
fn check_count(spec: &JobSpec, count: u32) -> Result<(), Refusal> {
    let least = spec.overrides.last_key_value().map_or(1, |(index, _)| index + 1);
    if (least..=MAX_TASKS).contains(&count) {
        return Ok(());
    }
    let allowed = match least {
        1 => format!("1 to {MAX_TASKS}"),
        _ => format!("{least} to {MAX_TASKS}: task {} has overrides of its own", least - 1),
    };
    Err(Refusal::BadField { field: "count".into(), value: count.to_string(), allowed })
}

pub(super) fn next_version(job: &Job) -> Result<u32, Refusal> {
    let next = job.last_version.checked_add(1);
    next.ok_or_else(|| Refusal::Full(format!("versions of job {}", job.name)))
}

fn new_job(user: UserId, spec: &JobSpec, waits_for: BTreeSet<JobId>, now: Time) -> Job {
    Job {
        user,
        name: spec.name.clone(),
        state: if waits_for.is_empty() { JobState::Active } else { JobState::Deferred },
        version: FIRST_VERSION,
        last_version: FIRST_VERSION,
        specs: BTreeMap::from([(FIRST_VERSION, Arc::new(spec.clone()))]),
        update: None,
        tasks: Arc::default(),
        waits_for,
        submitted_at: now,
        ended_at: None,
    }
}

fn waiting_state(job: &Job) -> TaskState {
    match job.state {
        JobState::Deferred => TaskState::Deferred,
        _ => TaskState::Pending,
    }
}

#[cfg(test)]
mod tests {
    use crate::after::After;
    use crate::apply::fixture::{Cell, all, job, key, name};
    use crate::command::{Command, Done, Observed, TaskReport};
    use crate::id::MachineId;
    use crate::job::{JobOutcome, JobState};
    use crate::priority::Band;
    use crate::quota::Capability;
    use crate::reason::Reason;
    use crate::render;
    use crate::resource::Resources;
    use crate::spec::{JobKind, JobSpec, RetainDisk, TaskOverride};
    use crate::state::LEVEL;
    use crate::task::{ExitClass, Fate, StopCause, TaskState};
    use crate::time::{Span, Time};
    use TaskState::{Dead, Deferred, Pending, Running, Stopping};

    fn submit(spec: JobSpec) -> Command {
        Command::SubmitJob { owner: name("ubar"), spec }
    }

    fn resize(count: u32) -> Command {
        Command::ResizeJob { job: key("ubar/jfoo"), count, expect: None }
    }

    fn stop(job: &str) -> Command {
        Command::StopJob { job: key(job), expect: None }
    }

    fn charged(cell: &Cell, band: Band) -> Resources {
        let user = cell.state.user_named(&name("ubar")).unwrap();
        cell.state.user_load(user).unwrap().charged.get(&band).copied().unwrap_or_default()
    }

    /// Submits into a cell with a quota of 100 in which `jfoo` (3 tasks of 10, batch) lives.
    fn check_submit(spec: JobSpec, want: &str) {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 3, 100));
        let verdict = cell.by("ubar", submit(spec));
        assert_eq!(render::verdict(&cell.state, &verdict), want);
        if verdict.is_err() {
            assert!(
                cell.said.len() == 1 && cell.said[0].contains(" rejected: "),
                "{:?}",
                cell.said
            );
        }
    }

    fn with(count: u32, priority: u16, change: impl FnOnce(&mut JobSpec)) -> JobSpec {
        let mut spec = job("jnew", count, priority);
        change(&mut spec);
        spec
    }

    #[test]
    fn admission_says_what_is_short_and_what_is_missing() {
        let made = "done, now at version 1";
        check_submit(with(7, 100, |_| ()), made);
        check_submit(
            with(8, 100, |_| ()),
            "refused: quota of ubar in band batch does not suffice: \
             cpu: asked 80, available 70, short by 10",
        );
        check_submit(
            with(7, 100, |s| s.task.limits.ram = 11),
            "refused: quota of ubar in band batch does not suffice: \
             ram: asked 77, available 70, short by 7",
        );
        // Best effort above zero is charged, priority zero is free.
        let none = "refused: quota of ubar in band best-effort does not suffice: \
                    cpu: asked 10, available 0, short by 10";
        check_submit(with(1, 1, |_| ()), none);
        check_submit(with(1000, 0, |_| ()), made);
        let monitoring = "refused: user ubar lacks the capability use_monitoring_band";
        check_submit(with(1, 300, |_| ()), monitoring);
        let reclaim = "refused: user ubar lacks the capability disable_reclamation";
        check_submit(with(1, 100, |s| s.reclaimable = false), reclaim);
        let nowhere = "refused: there is no job ubar/nowhere";
        check_submit(with(1, 100, |s| s.alloc_set = Some(key("ubar/nowhere"))), nowhere);
        check_submit(
            with(1, 100, |s| s.alloc_set = Some(key("ubar/jfoo"))),
            "refused: field alloc_set: value ubar/jfoo is not valid; \
             allowed: an alloc set; this is a job of tasks",
        );
        let after = |other: &str| vec![After { job: key(other), require_success: true }];
        check_submit(with(1, 100, |s| s.after = after("ubar/nowhere")), nowhere);
        check_submit(
            with(1, 100, |s| s.after = after("ubar/jnew")),
            "refused: field after.job: value ubar/jnew is not valid; allowed: another job",
        );
        check_submit(job("jfoo", 3, 100), "nothing to do");
        let other = "refused: job ubar/jfoo with another spec exists already";
        check_submit(job("jfoo", 4, 100), other);
    }

    #[test]
    fn a_capability_opens_the_monitoring_band() {
        let mut cell = Cell::with_machines(2);
        let capabilities = [Capability::UseMonitoringBand].into();
        cell.ok(Command::SetCapabilities { user: name("ubar"), capabilities, expect: None });
        cell.grant("ubar", Band::Monitoring, 100);
        assert_eq!(cell.by("ubar", submit(job("probe", 1, 300))), Ok(Done::Version(1)));
    }

    #[test]
    fn a_name_is_free_again_once_its_job_is_dead() {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 1, 100));
        cell.run("jfoo", 0, "m1");
        cell.ok(stop("ubar/jfoo"));
        assert_eq!(cell.ok(stop("ubar/jfoo")), Done::Unchanged);
        let busy = "not possible while job ubar/jfoo is still stopping";
        assert_eq!(cell.refused(submit(job("jfoo", 1, 100))), busy);
        cell.report("jfoo", 0, Observed::Stopped);
        assert_eq!(charged(&cell, Band::Batch), Resources::ZERO);
        cell.submit(&job("jfoo", 2, 100));
        assert_eq!(cell.states("jfoo"), [Pending, Pending]);
        cell.ok(Command::PurgeJobs { ended_before: Time::NEVER });
        assert_eq!(cell.states("jfoo"), [Pending, Pending]);
    }

    #[test]
    fn a_shrink_kills_the_highest_and_a_growth_wakes_them() {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 4, 100));
        cell.run("jfoo", 0, "m1");
        cell.run("jfoo", 3, "m1");
        assert_eq!(cell.ok(resize(2)), Done::Version(2));
        let killed = Dead(Fate::Killed);
        let leaving = Stopping(StopCause::Killed);
        assert_eq!(cell.states("jfoo"), [Running, Pending, killed, leaving]);
        assert_eq!(charged(&cell, Band::Batch), all(20));
        assert_eq!(cell.ok(resize(2)), Done::Unchanged);
        assert_eq!(cell.ok(resize(5)), Done::Version(3));
        let back = Stopping(StopCause::UpdateMoves);
        assert_eq!(cell.states("jfoo"), [Running, Pending, Pending, back, Pending]);
        cell.report("jfoo", 3, Observed::Stopped);
        assert_eq!(cell.states("jfoo"), [Running, Pending, Pending, Pending, Pending]);
        assert_eq!(charged(&cell, Band::Batch), all(50));
        let short = "quota of ubar in band batch does not suffice: \
                     cpu: asked 110, available 100, short by 10";
        assert_eq!(cell.refused(resize(11)), short);
        let stale = Command::ResizeJob { job: key("ubar/jfoo"), count: 6, expect: Some(2) };
        let said = "job ubar/jfoo is at version 3, not 2; read it again and retry";
        assert_eq!(cell.refused(stale), said);
        // One spec is left: nothing runs an older count.
        let id = cell.state.job_named(&key("ubar/jfoo")).unwrap();
        assert_eq!(cell.state.jobs().get(id).unwrap().specs.len(), 1);
    }

    #[test]
    fn a_resize_keeps_overrides_and_what_ended_on_its_own() {
        let mut cell = Cell::with_machines(1);
        let mut spec = job("jfoo", 3, 100);
        spec.overrides.insert(1, TaskOverride { limits: Some(all(5)), ..Default::default() });
        cell.submit(&spec);
        let why = "field count: value 1 is not valid; \
                   allowed: 2 to 200000: task 1 has overrides of its own";
        assert_eq!(cell.refused(resize(1)), why);
        cell.run("jfoo", 2, "m1");
        cell.report("jfoo", 2, Observed::Finished);
        cell.ok(resize(2));
        cell.ok(resize(3));
        assert_eq!(cell.states("jfoo"), [Pending, Pending, Dead(Fate::Finished)]);
    }

    /// What becomes of a job that waits for `jfoo`, by how `jfoo` ends.
    fn check_after(require_success: bool, fails: bool, before: bool, want: TaskState) {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 1, 100));
        cell.run("jfoo", 0, "m1");
        let end = match fails {
            true => Observed::Failed(ExitClass::Code(1)),
            false => Observed::Finished,
        };
        let after = vec![After { job: key("ubar/jfoo"), require_success }];
        let next = with(2, 100, |s| s.after = after);
        if before {
            cell.submit(&next);
            assert_eq!(cell.states("jnew"), [Deferred, Deferred]);
            cell.ok(Command::ResizeJob { job: key("ubar/jnew"), count: 1, expect: None });
            cell.report("jfoo", 0, end);
        } else {
            cell.report("jfoo", 0, end);
            cell.submit(&next);
        }
        assert_eq!(cell.states("jnew")[0], want);
        if before {
            assert_eq!(cell.states("jnew")[1], Dead(Fate::Killed));
        }
    }

    #[test]
    fn a_deferred_job_follows_the_outcome_of_its_predecessor() {
        let never = Dead(Fate::DependencyFailed);
        for before in [true, false] {
            check_after(true, false, before, Pending);
            check_after(true, true, before, never);
            check_after(false, true, before, Pending);
        }
    }

    #[test]
    fn a_job_that_waits_for_several_starts_after_the_last_of_them() {
        let mut cell = Cell::with_machines(1);
        for first in ["left", "right"] {
            cell.submit(&job(first, 1, 100));
            cell.run(first, 0, "m1");
        }
        let on = |job: &str, require_success| After { job: key(job), require_success };
        let both = |strict| vec![on("ubar/left", false), on("ubar/right", strict)];
        cell.submit(&with(1, 100, |s| s.after = both(false)));
        let mut strict = with(1, 100, |s| s.after = both(true));
        strict.name = name("strict");
        cell.submit(&strict);
        cell.report("left", 0, Observed::Failed(ExitClass::Code(1)));
        assert_eq!((cell.states("jnew"), cell.states("strict")), (vec![Deferred], vec![Deferred]));
        cell.report("right", 0, Observed::Failed(ExitClass::Code(1)));
        assert_eq!(cell.states("jnew"), [Pending]);
        assert_eq!(cell.states("strict"), [Dead(Fate::DependencyFailed)]);
    }

    #[test]
    fn one_failed_predecessor_ends_the_wait_for_the_others() {
        let mut cell = Cell::with_machines(1);
        for first in ["left", "right"] {
            cell.submit(&job(first, 1, 100));
            cell.run(first, 0, "m1");
        }
        let on = |job: &str| After { job: key(job), require_success: true };
        cell.submit(&with(1, 100, |s| s.after = vec![on("ubar/left"), on("ubar/right")]));
        cell.report("left", 0, Observed::Failed(ExitClass::Code(1)));
        assert_eq!(cell.states("jnew"), [Dead(Fate::DependencyFailed)]);
        // Nothing stirs when the other ends, and whoever asks too late learns it at once.
        let mut late = with(1, 100, |s| s.after = vec![on("ubar/right"), on("ubar/left")]);
        late.name = name("late");
        cell.submit(&late);
        assert_eq!(cell.states("late"), [Dead(Fate::DependencyFailed)]);
        cell.report("right", 0, Observed::Finished);
        assert_eq!(cell.states("jnew"), [Dead(Fate::DependencyFailed)]);
    }

    #[test]
    fn stopping_an_alloc_set_sends_what_is_inside_back_to_the_queue() {
        let mut cell = Cell::with_machines(1);
        let mut set = job("set", 1, 200);
        set.kind = JobKind::AllocSet;
        cell.submit(&set);
        cell.run("set", 0, "m1");
        let inner = with(1, 200, |s| s.alloc_set = Some(key("ubar/set")));
        cell.submit(&inner);
        assert_eq!(charged(&cell, Band::Production), all(10));
        let alloc = cell.task_id("set", 0);
        cell.run_in("jnew", 0, "m1", Some(alloc));
        cell.ok(stop("ubar/set"));
        assert_eq!(cell.states("jnew"), [Stopping(StopCause::AllocMoved)]);
        cell.report("jnew", 0, Observed::Stopped);
        cell.report("set", 0, Observed::Stopped);
        assert_eq!(cell.states("jnew"), [Pending]);
        let closed = cell.refused(submit(with(1, 200, |s| {
            s.name = name("jlate");
            s.alloc_set = Some(key("ubar/set"));
        })));
        assert_eq!(closed, "not possible while alloc set ubar/set has been stopped");
    }

    #[test]
    fn a_purge_forgets_what_ended_but_not_what_a_log_saver_needs() {
        let mut cell = Cell::with_machines(1);
        let mut saved = job("jsaved", 1, 100);
        saved.retain_disk = Some(RetainDisk { bytes: 5, keep: Span::seconds(60), saver: None });
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
        let said = cell.apply(crate::Actor::System, late);
        let said = render::verdict(&cell.state, &said);
        assert!(said.contains("ubar/jnew/0 is at attempt 3, not 1"), "{said}");
        assert_eq!(cell.states("jnew"), [Running]);
        let saved = crate::encode::save(&cell.state);
        assert_eq!(crate::encode::load(&saved).unwrap().attempt_floor, 2);
    }

    #[test]
    fn a_job_in_an_alloc_set_never_outranks_it() {
        let update = |spec: &JobSpec| Command::UpdateJob {
            owner: name("ubar"),
            spec: spec.clone(),
            expect: None,
        };
        let mut cell = Cell::with_machines(1);
        let mut set = job("set", 1, 110);
        set.kind = JobKind::AllocSet;
        cell.submit(&set);
        let inside = |priority| with(1, priority, |s| s.alloc_set = Some(key("ubar/set")));
        let above = |value: u16| {
            format!(
                "field priority: value {value} is not valid; allowed: at most 110, the priority \
                 of alloc set ubar/set"
            )
        };
        assert_eq!(cell.refused(submit(inside(200))), above(200));
        cell.submit(&inside(105));
        assert_eq!(cell.refused(update(&inside(111))), above(111));
        let below = "field priority: value 100 is not valid; \
                     allowed: 105 or more, the priority of job jnew inside it";
        set.priority = crate::priority::Priority(100);
        assert_eq!(cell.refused(update(&set)), below);
        // While an update can be undone, both of its priorities bind.
        set.priority = crate::priority::Priority(119);
        cell.ok(update(&set));
        assert_eq!(cell.refused(update(&inside(111))), above(111));
        cell.ok(Command::CloseUpdate { job: key("ubar/set"), expect: None });
        cell.ok(update(&inside(111)));
        // A set that takes over the name meets the jobs that wait for it.
        cell.ok(stop("ubar/set"));
        set.priority = crate::priority::Priority(100);
        let said = cell.refused(submit(set));
        assert!(said.ends_with("allowed: 111 or more, the priority of job jnew inside it"));
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
        assert_eq!(cell.states("jfoo"), [Pending, Dead(Fate::Killed)]);
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
        cell.state.level = LEVEL;
        cell.submit(&job("jfoo", 2, 100));
        cell.run("jfoo", 0, "m1");
        cell.run("jfoo", 1, "m1");
        let stop = |index| Command::StopTask { job: key("ubar/jfoo"), index, expect: None };
        assert_eq!(cell.ok(stop(1)), Done::Applied);
        assert_eq!(cell.ok(stop(1)), Done::Unchanged);
        let end = cell.task("jfoo", 1).last_end.clone().unwrap();
        assert_eq!((end.attempt, end.why), (1, Reason::Requested));
        cell.report("jfoo", 1, Observed::Stopped);
        assert_eq!(cell.task("jfoo", 1).state, TaskState::Dead(Fate::Killed));
        assert_eq!(cell.task("jfoo", 0).state, TaskState::Running);
        assert_eq!(cell.refused(stop(2)), "there is no such row: task ubar/jfoo/2");
        assert!(cell.by("ufoo", stop(0)).is_err());
        cell.report("jfoo", 0, Observed::Finished);
        let id = cell.state.job_named(&key("ubar/jfoo")).unwrap();
        // Not all of it was done: what comes after it need not begin.
        let state = cell.state.jobs().get(id).unwrap().state;
        assert_eq!(state, JobState::Dead(JobOutcome::Killed));
    }

    #[test]
    fn a_row_says_how_its_last_attempt_ended() {
        let mut cell = Cell::with_machines(2);
        cell.state.level = LEVEL;
        cell.submit(&job("jfoo", 1, 100));
        cell.run("jfoo", 0, "m1");
        cell.report("jfoo", 0, Observed::Failed(ExitClass::Code(7)));
        let end = cell.task("jfoo", 0).last_end.clone().unwrap();
        assert_eq!((end.attempt, end.why), (1, Reason::Exited(ExitClass::Code(7))));
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
