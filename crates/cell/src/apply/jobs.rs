//! Admission of jobs (B2, B6, B9, B11, B25).
//!
//! All admission is here: rights, quota, the alloc set and the dependencies are checked once, when
//! the owner submits. After that placement never asks for permission again. Task rows follow the
//! count of the job in `resize.rs`, and are removed in `stop_and_purge.rs`.

use super::Context;
use crate::admit;
use crate::bounds::Growth;
use crate::command::{Done, Verdict};
use crate::event::{EventKind, JobChange};
use crate::field::FieldPath;
use crate::id::{JobId, UserId};
use crate::job::{Job, JobOutcome, JobState};
use crate::name::{JobKey, Name};
use crate::priority::Band;
use crate::quota::Capability;
use crate::reason::{Allowed, Conflict, Given, Object, Reason, Rejection, Storage};
use crate::resource::{Dimension, Shortfall};
use crate::rollout::VersionOrigin;
use crate::spec::{JobKind, JobSpec};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Context<'_> {
    pub(crate) fn submit_job(&mut self, owner: &Name, spec: &JobSpec) -> Verdict {
        let verdict = self.try_submit(owner, spec);
        self.emit_rejection(owner, &spec.name, &verdict);
        verdict
    }

    pub(crate) fn try_submit(&mut self, owner: &Name, spec: &JobSpec) -> Verdict {
        let user = self.user_by_name(owner)?;
        let key = JobKey { user: owner.clone(), job: spec.name.clone() };
        let spec = &*self.with_default_disk(spec);
        admit::check_job(spec)?;
        if self.is_submitted_already(&key, spec)? {
            return Ok(Done::Unchanged);
        }
        self.check_restricted_features(None, spec)?;
        self.check_whole_cores(spec)?;
        self.check_alloc_set_open(user, spec)?;
        self.check_not_below_inner(&key, spec)?;
        let predecessors = self.predecessors(&key, spec)?;
        if !self.state.jobs.has_room_for(1) {
            return Err(Rejection::Full(Storage::Jobs));
        }
        let job = new_job(user, spec, predecessors.keys().copied().collect(), self.now);
        // A daemon is admitted if it could run on every machine there is for it now.
        let wanted = {
            let whole = self.on_all_machines(&job);
            self.check_room_for_tasks(whole.wanted() as usize)?;
            self.check_quota(None, &whole)?;
            whole.wanted()
        };
        let growth = Growth { tasks: u64::from(wanted), ..Self::growth(None, spec) };
        let going = self.jobs_to_purge(user, growth, |id| predecessors.contains_key(&id))?;
        self.purge_selected(&going);
        // A lost task of the job that had this name may still run.
        let earliest = self.state.job_named(&key).map_or(Time::ZERO, |old| self.leases_end(old));
        let id = self.state.insert_job(job);
        self.job_event(id, JobChange::Submitted, Reason::Requested);
        self.job_event(id, JobChange::Accepted, Reason::Admitted);
        self.touch_quotas(id);
        self.record_version(id, VersionOrigin::Submitted, None);
        self.resize_task_rows(id, 0, earliest);
        for (predecessor, outcome) in predecessors {
            if let Some(outcome) = outcome {
                self.release_dependent(id, predecessor, outcome);
            }
        }
        Ok(Done::Version(FIRST_VERSION))
    }

    /// The owner sees a rejection in the verdict, everybody else in the history.
    pub(super) fn emit_rejection(&mut self, owner: &Name, job: &Name, verdict: &Verdict) {
        if let Err(rejection) = verdict {
            let rejection = Box::new(rejection.redacted().truncated());
            let (user, job) = (owner.clone(), job.clone());
            self.emit(EventKind::JobRejected { user, job, rejection }, Reason::Requested);
        }
    }

    pub(super) fn job_event(&mut self, job: JobId, change: JobChange, reason: Reason) {
        self.emit(EventKind::Job { job, change }, reason);
    }

    /// Whether an identical job is live already. Its name is free again once it is dead.
    fn is_submitted_already(&self, key: &JobKey, spec: &JobSpec) -> Result<bool, Rejection> {
        let old = self.state.job_named(key).and_then(|id| self.state.jobs.get(id));
        match old.map(|job| (job.state, job)) {
            None | Some((JobState::Dead(_), _)) => Ok(false),
            Some((JobState::Stopping, _)) => Err(Rejection::JobStopping(key.clone())),
            Some((_, job)) if self.is_same_spec(job.user, job.spec(), spec) => Ok(true),
            Some(_) => Err(Rejection::Exists(Object::Job(key.clone()))),
        }
    }

    /// Checks capabilities for restricted features that `spec` newly uses.
    pub(super) fn check_restricted_features(
        &self,
        old: Option<&JobSpec>,
        spec: &JobSpec,
    ) -> Result<(), Rejection> {
        let monitoring = |spec: &JobSpec| spec.priority.band() == Band::Monitoring;
        if monitoring(spec) && !old.is_some_and(monitoring) {
            self.require(Capability::UseMonitoringBand)?;
        }
        if !spec.reclaimable && old.is_none_or(|old| old.reclaimable) {
            self.require(Capability::DisableReclamation)?;
        }
        Ok(())
    }

    /// Tasks in an alloc set use resources that the set's owner pays for.
    pub(super) fn check_alloc_set_open(
        &self,
        user: UserId,
        spec: &JobSpec,
    ) -> Result<(), Rejection> {
        let Some(key) = &spec.alloc_set else { return Ok(()) };
        let set = self.state.job_named(key).and_then(|id| self.state.jobs.get(id));
        let Some(set) = set else { return Err(Rejection::NoSuchJob(key.clone())) };
        if set.user != user {
            self.require_job_access(key)?;
        }
        if set.spec().kind != JobKind::AllocSet {
            return Err(Rejection::bad_field("alloc_set", Given::text(key), Allowed::AnAllocSet));
        }
        match set.state {
            JobState::Deferred | JobState::Active => check_not_above_set(spec, key, set),
            _ => Err(Rejection::WrongState(Conflict::AllocSetStopped(key.clone()))),
        }
    }

    /// The counterpart of [`check_not_above_set`]: a set, new or changed, may not fall below the
    /// live jobs inside it, or waiting for a set of its name.
    pub(super) fn check_not_below_inner(
        &self,
        key: &JobKey,
        spec: &JobSpec,
    ) -> Result<(), Rejection> {
        if spec.kind != JobKind::AllocSet {
            return Ok(());
        }
        let inside = |job: &&Job| !job.is_dead() && job.spec().alloc_set.as_ref() == Some(key);
        let jobs = self.state.jobs.iter().map(|(_, job)| job).filter(inside);
        let asks = jobs.flat_map(|job| job.specs.values().map(|inner| (inner.priority, &job.name)));
        match asks.max() {
            Some((least, job)) if least > spec.priority => Err(Rejection::bad_field(
                "priority",
                Given::text(spec.priority.0),
                Allowed::PriorityOfInside { least, job: job.clone() },
            )),
            _ => Ok(()),
        }
    }

    /// Checks a changed job inside an alloc set as when it was submitted.
    pub(super) fn check_still_not_above_set(&self, spec: &JobSpec) -> Result<(), Rejection> {
        let Some(key) = &spec.alloc_set else { return Ok(()) };
        let set = self.state.job_named(key).and_then(|id| self.state.jobs.get(id));
        match set.filter(|set| !set.is_dead() && set.spec().kind == JobKind::AllocSet) {
            Some(set) => check_not_above_set(spec, key, set),
            None => Ok(()),
        }
    }

    /// The jobs to wait for, with the outcome of those that have one already. All of them exist
    /// before the job does and none can be changed to wait for it, so there are no cycles.
    fn predecessors(
        &self,
        key: &JobKey,
        spec: &JobSpec,
    ) -> Result<BTreeMap<JobId, Option<JobOutcome>>, Rejection> {
        let mut found = BTreeMap::new();
        for (position, after) in spec.after.iter().enumerate() {
            if after.job == *key {
                let field = FieldPath::from("after").index(position).field("job");
                let value = Given::text(key);
                return Err(Rejection::bad_field(field.to_string(), value, Allowed::AnotherJob));
            }
            let id = self.state.job_named(&after.job);
            let row = id.and_then(|id| Some((id, self.state.jobs.get(id)?)));
            let Some((id, job)) = row else { return Err(Rejection::NoSuchJob(after.job.clone())) };
            let outcome = match job.state {
                JobState::Dead(outcome) => Some(outcome),
                _ => None,
            };
            found.insert(id, outcome);
        }
        Ok(found)
    }

    pub(super) fn check_room_for_tasks(&self, more: usize) -> Result<(), Rejection> {
        let new_rows = more.saturating_sub(self.state.vacant_tasks.len());
        if self.state.tasks.has_room_for(new_rows) {
            Ok(())
        } else {
            Err(Rejection::Full(Storage::Tasks))
        }
    }

    /// Rejects a charge beyond the grant. If the charge does not rise nothing is admitted, so a
    /// user in excess can still shrink.
    pub(super) fn check_quota(&self, before: Option<&Job>, after: &Job) -> Result<(), Rejection> {
        let (tasks, least) = (&self.state.tasks, self.state.bounds.least_charge);
        let had = before.map(|job| job.charges(tasks, least)).unwrap_or_default();
        let Some(user) = self.state.users.get(after.user) else { return Ok(()) };
        let load = self.state.user_load(after.user);
        for (band, requested) in after.charges(tasks, least) {
            let had = had.get(&band).copied().unwrap_or_default();
            let charged = load.and_then(|l| l.charged.get(&band).copied()).unwrap_or_default();
            let available = user.granted(band, self.now).minus(charged.minus(had));
            let short = Dimension::ALL
                .into_iter()
                .find(|d| requested.get(*d) > had.get(*d) && requested.get(*d) > available.get(*d));
            if let Some(dimension) = short {
                let (requested, available) = (requested.get(dimension), available.get(dimension));
                let shortfall = Shortfall { dimension, requested, available };
                return Err(Rejection::QuotaExceeded { user: user.name.clone(), band, shortfall });
            }
        }
        Ok(())
    }

    /// A job named in order to change it: found and live.
    pub(crate) fn job_to_change(&self, key: &JobKey) -> Result<(JobId, Job), Rejection> {
        let (id, job) = self.owned_job(key)?;
        match job.state {
            JobState::Deferred | JobState::Active => Ok((id, job)),
            JobState::Stopping => Err(Rejection::JobStopping(key.clone())),
            JobState::Dead(_) => Err(Rejection::WrongState(Conflict::JobDead(key.clone()))),
        }
    }

    pub(super) fn owned_job(&self, key: &JobKey) -> Result<(JobId, Job), Rejection> {
        self.user_by_name(&key.user)?;
        let id = self.state.job_named(key);
        let found = id.and_then(|id| Some((id, self.state.jobs.get(id)?.clone())));
        found.ok_or_else(|| Rejection::NoSuchJob(key.clone()))
    }

    /// Compare-and-swap: rejected unless the client saw the present version.
    pub(crate) fn check_expected_version(
        &self,
        key: &JobKey,
        job: &Job,
        expect: Option<u32>,
    ) -> Result<(), Rejection> {
        match expect {
            Some(expected) if expected != job.version => {
                let (object, found) = (Object::Job(key.clone()), job.version);
                Err(Rejection::StaleVersion { object, expected, found })
            }
            _ => Ok(()),
        }
    }
}

/// Tasks in an alloc set are evicted with their alloc, and its owner pays in the set's band: a
/// priority above the set's would be neither honoured nor paid for. Every version the set may run
/// at counts, so that undoing an update never breaks this.
fn check_not_above_set(spec: &JobSpec, key: &JobKey, set: &Job) -> Result<(), Rejection> {
    let most = set.specs.values().map(|version| version.priority).min();
    match most {
        Some(most) if spec.priority > most => Err(Rejection::bad_field(
            "priority",
            Given::text(spec.priority.0),
            Allowed::PriorityOfSet { most, set: key.clone() },
        )),
        _ => Ok(()),
    }
}

/// Version of a job that was never updated.
const FIRST_VERSION: u32 = 1;

pub(super) fn next_version(job: &Job) -> Result<u32, Rejection> {
    let next = job.last_version.checked_add(1);
    next.ok_or_else(|| Rejection::Full(Storage::VersionsOf(job.name.clone())))
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
        machines: Arc::default(),
        machines_left_out: 0,
        waits_for,
        submitted_at: now,
        ended_at: None,
        disrupted_at: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, job, key, name};
    use crate::command::{Command, Done, Observed};
    use crate::dependency::JobDependency;
    use crate::device::{DeviceRequest, REMOVED_DEVICE};
    use crate::isolation::Volume;
    use crate::job_size::JobSize;
    use crate::name::Token;
    use crate::priority::{Band, Priority};
    use crate::quota::Capability;
    use crate::resource::Resources;
    use crate::spec::{JobKind, JobSpec};
    use crate::task::{ExitClass, TaskOutcome, TaskState};
    use crate::time::{Span, Time};
    use crate::words;
    use TaskState::{Dead, Deferred, Pending};

    fn submit(spec: JobSpec) -> Command {
        Command::SubmitJob { owner: name("ubar"), spec: Box::new(spec) }
    }

    fn stop(job: &str) -> Command {
        Command::StopJob { job: key(job), expect: None }
    }

    #[test]
    fn only_prod_jobs_bound_the_notice_of_others() {
        let mut cell = Cell::with_machines(1);
        let mut spec = job("jfoo", 1, 100);
        cell.submit(&spec);
        spec.preemption_notice_max = Some(Span::ZERO);
        let update = |spec| Command::UpdateJob { owner: name("ubar"), spec, expect: None };
        let mut other = spec.clone();
        other.name = name("jbar");
        for command in [submit(other.clone()), update(Box::new(spec))] {
            let message = cell.rejection_text(command);
            assert!(message.contains("preemption_notice_max"), "{message}");
        }
        other.priority = Priority(200);
        cell.submit(&other);
    }

    #[test]
    fn nobody_asks_for_the_gap_that_a_device_left() {
        let mut cell = Cell::with_machines(1);
        let mut spec = job("jfoo", 1, 100);
        let (kind, models) = (Token::new(REMOVED_DEVICE).unwrap(), Vec::new());
        spec.task.devices = vec![DeviceRequest { kind, models, count: 1, milli: 1000 }];
        let message = cell.rejection_text(submit(spec));
        assert!(
            message.contains("task.devices[0].kind") && message.contains(REMOVED_DEVICE),
            "{message}"
        );
    }

    #[test]
    fn a_volume_that_no_task_could_see_is_refused() {
        let mut cell = Cell::with_machines(1);
        let mut spec = job("jfoo", 1, 100);
        let (source, target) = ("/srv".into(), "/proc/sys".into());
        spec.task.isolation.volumes = vec![Volume { source, target, writable: false }];
        let message = cell.rejection_text(submit(spec));
        assert!(
            message.contains("task.isolation.volumes[0].target: value \"/proc/sys\""),
            "{message}"
        );
    }

    /// Submits into a cell with a quota of 100 in which `jfoo` (3 tasks of 10, batch) lives.
    fn check_submit(spec: JobSpec, want: &str) {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 3, 100));
        let verdict = cell.send_as("ubar", submit(spec));
        assert_eq!(words::verdict(&cell.state, &verdict), want);
        if verdict.is_err() {
            assert!(
                cell.event_lines.len() == 1 && cell.event_lines[0].contains(" rejected: "),
                "{:?}",
                cell.event_lines
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
             cpu: asked 0.08 cores, available 0.07 cores, short by 0.01 cores",
        );
        check_submit(
            with(7, 100, |s| s.task.limits.ram = 11),
            "refused: quota of ubar in band batch does not suffice: \
             ram: asked 77 B, available 70 B, short by 7 B",
        );
        // Best effort above zero is charged, priority zero is free.
        let none = "refused: quota of ubar in band best-effort does not suffice: \
                    cpu: asked 0.01 cores, available 0 cores, short by 0.01 cores";
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
        let after = |other: &str| vec![JobDependency { job: key(other), require_success: true }];
        check_submit(with(1, 100, |s| s.after = after("ubar/nowhere")), nowhere);
        check_submit(
            with(1, 100, |s| s.after = after("ubar/jnew")),
            "refused: field after[0].job: value ubar/jnew is not valid; allowed: another job",
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
        assert_eq!(cell.send_as("ubar", submit(job("probe", 1, 300))), Ok(Done::Version(1)));
    }

    #[test]
    fn a_name_is_free_again_once_its_job_is_dead() {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 1, 100));
        cell.run("jfoo", 0, "m1");
        cell.ok(stop("ubar/jfoo"));
        assert_eq!(cell.ok(stop("ubar/jfoo")), Done::Unchanged);
        let busy = "not possible while job ubar/jfoo is stopping";
        assert_eq!(cell.rejection_text(submit(job("jfoo", 1, 100))), busy);
        cell.report("jfoo", 0, Observed::Stopped);
        assert_eq!(cell.charged(Band::Batch), Resources::ZERO);
        cell.submit(&job("jfoo", 2, 100));
        assert_eq!(cell.states("jfoo"), [Pending, Pending]);
        cell.ok(Command::PurgeJobs { ended_before: Time::NEVER });
        assert_eq!(cell.states("jfoo"), [Pending, Pending]);
    }

    /// Outcomes of a job that waits for `jfoo`, by how `jfoo` ends.
    fn check_after(require_success: bool, fails: bool, before: bool, want: TaskState) {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 1, 100));
        cell.run("jfoo", 0, "m1");
        let end = if fails { Observed::Failed(ExitClass::Code(1)) } else { Observed::Finished };
        let after = vec![JobDependency { job: key("ubar/jfoo"), require_success }];
        let next = with(2, 100, |s| s.after = after);
        if before {
            cell.submit(&next);
            assert_eq!(cell.states("jnew"), [Deferred, Deferred]);
            cell.ok(Command::ResizeJob {
                job: key("ubar/jnew"),
                size: JobSize::tasks(1),
                expect: None,
            });
            cell.report("jfoo", 0, end);
        } else {
            cell.report("jfoo", 0, end);
            cell.submit(&next);
        }
        assert_eq!(cell.states("jnew")[0], want);
        if before {
            assert_eq!(cell.states("jnew")[1], Dead(TaskOutcome::Killed));
        }
    }

    #[test]
    fn a_deferred_job_follows_the_outcome_of_its_predecessor() {
        let never = Dead(TaskOutcome::DependencyFailed);
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
        let on = |job: &str, require_success| JobDependency { job: key(job), require_success };
        let both = |strict| vec![on("ubar/left", false), on("ubar/right", strict)];
        cell.submit(&with(1, 100, |s| s.after = both(false)));
        let mut strict = with(1, 100, |s| s.after = both(true));
        strict.name = name("strict");
        cell.submit(&strict);
        cell.report("left", 0, Observed::Failed(ExitClass::Code(1)));
        assert_eq!((cell.states("jnew"), cell.states("strict")), (vec![Deferred], vec![Deferred]));
        cell.report("right", 0, Observed::Failed(ExitClass::Code(1)));
        assert_eq!(cell.states("jnew"), [Pending]);
        assert_eq!(cell.states("strict"), [Dead(TaskOutcome::DependencyFailed)]);
    }

    #[test]
    fn one_failed_predecessor_ends_the_wait_for_the_others() {
        let mut cell = Cell::with_machines(1);
        for first in ["left", "right"] {
            cell.submit(&job(first, 1, 100));
            cell.run(first, 0, "m1");
        }
        let on = |job: &str| JobDependency { job: key(job), require_success: true };
        cell.submit(&with(1, 100, |s| s.after = vec![on("ubar/left"), on("ubar/right")]));
        cell.report("left", 0, Observed::Failed(ExitClass::Code(1)));
        assert_eq!(cell.states("jnew"), [Dead(TaskOutcome::DependencyFailed)]);
        // The end of the other job changes nothing then, and a later submission is rejected at
        // once.
        let mut late = with(1, 100, |s| s.after = vec![on("ubar/right"), on("ubar/left")]);
        late.name = name("late");
        cell.submit(&late);
        assert_eq!(cell.states("late"), [Dead(TaskOutcome::DependencyFailed)]);
        cell.report("right", 0, Observed::Finished);
        assert_eq!(cell.states("jnew"), [Dead(TaskOutcome::DependencyFailed)]);
    }

    #[test]
    fn a_job_in_an_alloc_set_never_outranks_it() {
        let update = |spec: &JobSpec| Command::UpdateJob {
            owner: name("ubar"),
            spec: Box::new(spec.clone()),
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
        assert_eq!(cell.rejection_text(submit(inside(200))), above(200));
        cell.submit(&inside(105));
        assert_eq!(cell.rejection_text(update(&inside(111))), above(111));
        let below = "field priority: value 100 is not valid; \
                     allowed: 105 or more, the priority of job jnew inside it";
        set.priority = crate::priority::Priority(100);
        assert_eq!(cell.rejection_text(update(&set)), below);
        // While an update can be undone, both of its priorities bind.
        set.priority = crate::priority::Priority(119);
        cell.ok(update(&set));
        assert_eq!(cell.rejection_text(update(&inside(111))), above(111));
        cell.ok(Command::CloseUpdate { job: key("ubar/set"), expect: None });
        cell.ok(update(&inside(111)));
        // A set that takes over the name meets the jobs that wait for it.
        cell.ok(stop("ubar/set"));
        set.priority = crate::priority::Priority(100);
        let message = cell.rejection_text(submit(set));
        assert!(message.ends_with("allowed: 111 or more, the priority of job jnew inside it"));
    }
}
