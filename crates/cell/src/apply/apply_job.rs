//! Declarative apply of a job (B2, B7): one command that submits, updates or leaves alone,
//! whichever it takes for the job of a name to be as a spec says.
//!
//! It is decided here because no other command can come in between: a client that reads first and
//! then sends the right command has to handle whatever changed meanwhile, and each client would do
//! it in its own way. The rules are those of the commands it combines, which it calls.
//!
//! An update that has nothing left to do does not delay the next one: it is closed first. The cell
//! leaves it open until then, because until then it can be undone; a request for a newer spec means
//! that it will not be. Nothing is closed for an update that is rejected.

use super::Context;
use crate::admit;
use crate::command::{ApplyOutcome, Done, Verdict};
use crate::id::JobId;
use crate::job::{Job, JobOutcome, JobState};
use crate::name::{JobKey, Name};
use crate::reason::{Object, Rejection};
use crate::spec::{JobKind, JobSpec};
use crate::task::{StopCause, TaskState};

impl Context<'_> {
    pub(super) fn apply_job(
        &mut self,
        owner: &Name,
        spec: &JobSpec,
        expect: Option<u32>,
        again: bool,
    ) -> Verdict {
        let verdict = self.try_apply(owner, spec, expect, again);
        // Clients that wait for a job to end repeat the request; such rejections need no event.
        if !matches!(verdict, Err(Rejection::JobStopping(_))) {
            self.emit_rejection(owner, &spec.name, &verdict);
        }
        verdict
    }

    fn try_apply(
        &mut self,
        owner: &Name,
        spec: &JobSpec,
        expect: Option<u32>,
        again: bool,
    ) -> Verdict {
        let key = JobKey { user: owner.clone(), job: spec.name.clone() };
        self.user_by_name(owner)?;
        let spec = &*self.with_default_disk(spec);
        admit::check_job(spec)?;
        let named = self.state.job_named(&key);
        let row = named.and_then(|id| Some((id, self.state.jobs.get(id)?)));
        if let Some((_, job)) = row.filter(|(_, job)| !again && has_ended_by_itself(job))
            && self.is_same_spec(job.user, job.spec(), &spec.with_size_of(job.spec()))
        {
            let version = job.version;
            return Ok(Done::Job { became: ApplyOutcome::Ended, version, closed: None });
        }
        let Some((id, job)) = row.filter(|(_, job)| !job.is_dead()) else {
            Self::check_expected(|| Object::Job(key.clone()), 0, expect)?;
            return Ok(job_outcome(self.try_submit(owner, spec)?, ApplyOutcome::Created, None));
        };
        if self.is_ending(id, job) {
            return Err(Rejection::JobStopping(key));
        }
        let version = job.version;
        let sized = spec.with_size_of(job.spec());
        let spec = &*sized;
        if self.is_same_spec(job.user, job.spec(), spec) {
            return Ok(Done::Job { became: ApplyOutcome::Unchanged, version, closed: None });
        }
        self.check_expected_version(&key, job, expect)?;
        let (done, closed) =
            self.after_complete_update(&key, |context| context.try_update(owner, spec, None))?;
        Ok(job_outcome(done, ApplyOutcome::Updated, closed))
    }

    /// Whether the job only waits for its tasks to be gone: it was stopped, or each of its tasks
    /// was. An update would have no tasks, and a new job of its name has to wait.
    fn is_ending(&self, id: JobId, job: &Job) -> bool {
        if job.state == JobState::Stopping {
            return true;
        }
        // One whose machines all left waits for others.
        if job.is_daemon() {
            return false;
        }
        // The sums first: for nearly every job they show that it is not ending.
        let load = self.state.job_loads.get(id);
        if load.is_none_or(|load| load.stopping == 0 || load.stopping < load.live()) {
            return false;
        }
        let mut rows = job.tasks.iter().filter_map(|task| self.state.tasks.get(*task));
        let killed = TaskState::Stopping(StopCause::Killed);
        rows.all(|task| task.state.is_dead() || task.state == killed)
    }

    /// Makes a change of a live job; if an update of the job is open and complete, it is closed
    /// first, and its version is returned. Both or neither: they are applied to a copy, which
    /// shares its rows with the state and replaces it, so the change is checked as it is when the
    /// update is closed.
    pub(crate) fn after_complete_update(
        &mut self,
        key: &JobKey,
        change: impl FnOnce(&mut Context<'_>) -> Verdict,
    ) -> Result<(Done, Option<u32>), Rejection> {
        let named = self.state.job_named(key);
        let complete = named.and_then(|id| {
            let (job, load) = (self.state.jobs.get(id)?, self.state.job_loads.get(id)?);
            job.update_is_complete(load).then_some(job.version)
        });
        let Some(version) = complete else { return Ok((change(self)?, None)) };
        let (mut state, mut events) = (self.state.clone(), Vec::new());
        let mut copy = Context {
            state: &mut state,
            events: &mut events,
            by: self.by,
            sender: self.sender,
            now: self.now,
            touched: Vec::new(),
            maybe_ended: Vec::new(),
            charged: Vec::new(),
        };
        copy.close_update(key, None)?;
        let done = change(&mut copy)?;
        let Context { touched, maybe_ended, charged, .. } = copy;
        self.touched.extend(touched);
        self.maybe_ended.extend(maybe_ended);
        self.charged.extend(charged);
        self.events.append(&mut events);
        *self.state = state;
        Ok((done, Some(version)))
    }
}

/// Whether it is a batch job that ran to its end, well or not: a file that is sent once more is no
/// wish to do its work once more. One that its owner stopped is.
fn has_ended_by_itself(job: &Job) -> bool {
    let ended = JobState::Dead(JobOutcome::Succeeded) == job.state
        || JobState::Dead(JobOutcome::Failed) == job.state;
    let spec = job.spec();
    ended && spec.kind == JobKind::Tasks && !spec.restart.restart_on_success
}

/// Converts the result of a submission, an update or a resize that made a version.
pub(super) fn job_outcome(done: Done, became: ApplyOutcome, closed: Option<u32>) -> Done {
    match done {
        Done::Version(version) => Done::Job { became, version, closed },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, all, job, key, name};
    use crate::command::{Actor, ApplyOutcome, Command, Done, Entry, Observed, Request, RequestId};
    use crate::isolation::Secret;
    use crate::job::{JobOutcome, JobState};
    use crate::name::Token;
    use crate::priority::Band;
    use crate::quota::Capability;
    use crate::reason::{Object, Rejection};
    use crate::spec::JobSpec;
    use crate::time::Time;
    use std::collections::BTreeSet;

    fn apply(spec: &JobSpec, expect: Option<u32>) -> Command {
        Command::ApplyJob {
            owner: name("ubar"),
            spec: Box::new(spec.clone()),
            expect,
            again: false,
        }
    }

    fn done(became: ApplyOutcome, version: u32) -> Done {
        Done::Job { became, version, closed: None }
    }

    /// A priority is changed without a restart, so an update of it is complete at once.
    fn with_priority(spec: &JobSpec, priority: u16) -> JobSpec {
        let mut new = spec.clone();
        new.priority.0 = priority;
        new
    }

    fn version(cell: &Cell) -> u32 {
        let id = cell.state.job_named(&key("ubar/jfoo")).unwrap();
        cell.state.jobs().get(id).unwrap().version
    }

    fn job_state(cell: &Cell) -> JobState {
        let id = cell.state.job_named(&key("ubar/jfoo")).unwrap();
        cell.state.jobs().get(id).unwrap().state
    }

    /// `jfoo` of one task that runs.
    fn running() -> (Cell, JobSpec) {
        let spec = job("jfoo", 1, 100);
        let mut cell = Cell::with_machines(1);
        assert_eq!(cell.ok(apply(&spec, None)), done(ApplyOutcome::Created, 1));
        cell.run("jfoo", 0, "m1");
        (cell, spec)
    }

    #[test]
    fn a_job_is_created_left_alone_updated_and_its_complete_update_closed() {
        let (mut cell, spec) = running();
        assert_eq!(cell.ok(apply(&spec, None)), done(ApplyOutcome::Unchanged, 1));
        assert_eq!(cell.event_lines, [""; 0]);
        let second = with_priority(&spec, 101);
        assert_eq!(cell.ok(apply(&second, None)), done(ApplyOutcome::Updated, 2));
        let third = with_priority(&spec, 102);
        let closed = Done::Job { became: ApplyOutcome::Updated, version: 3, closed: Some(2) };
        assert_eq!(cell.ok(apply(&third, None)), closed);
        assert_eq!(
            cell.event_lines,
            [
                "ubar/jfoo update closed at version 2: requested",
                "ubar/jfoo update to version 3 opened: requested",
                "ubar/jfoo/0 updated: new spec, no restart needed",
            ]
        );
        // Requested again, the update stays open: it can still be undone.
        assert_eq!(cell.ok(apply(&third, None)), done(ApplyOutcome::Unchanged, 3));
        let undo = Command::UndoUpdate { job: key("ubar/jfoo"), expect: Some(3) };
        assert_eq!(cell.ok(undo), Done::Version(2));
    }

    #[test]
    fn an_update_that_goes_on_is_in_the_way_and_a_refused_one_closes_nothing() {
        let (mut cell, spec) = running();
        let mut new = spec.clone();
        new.task.command = vec!["new".into()];
        assert_eq!(cell.ok(apply(&new, None)), done(ApplyOutcome::Updated, 2));
        let open = "not possible while an update of job ubar/jfoo is open; \
                    close it or undo it first";
        assert_eq!(cell.rejection_text(apply(&spec, None)), open);

        let (mut cell, spec) = running();
        cell.ok(apply(&with_priority(&spec, 101), None));
        let mut large = with_priority(&spec, 101);
        large.task.limits = all(1000);
        let short = cell.rejection_text(apply(&large, None));
        assert!(short.starts_with("quota of ubar in band batch does not suffice"), "{short}");
        // The update is still there, and can be undone.
        assert_eq!(version(&cell), 2);
        let undo = Command::UndoUpdate { job: key("ubar/jfoo"), expect: Some(2) };
        assert_eq!(cell.ok(undo), Done::Version(1));
    }

    #[test]
    fn an_update_that_took_restarts_is_closed_once_all_have_come() {
        let mut spec = job("jfoo", 1, 100);
        spec.task.limits = all(90);
        let mut cell = Cell::with_machines(1);
        cell.ok(apply(&spec, None));
        cell.run("jfoo", 0, "m1");
        let mut small = spec.clone();
        (small.task.limits, small.task.command) = (all(40), vec!["new".into()]);
        assert_eq!(cell.ok(apply(&small, None)), done(ApplyOutcome::Updated, 2));
        cell.ok(Command::StepUpdate { job: key("ubar/jfoo"), index: 0 });
        cell.report("jfoo", 0, Observed::Stopped);
        cell.report("jfoo", 0, Observed::Started);
        // The old end is charged until then, and not any more beside the new one.
        assert_eq!(cell.charged(Band::Batch), all(90));
        small.task.limits = all(30);
        let closed = Done::Job { became: ApplyOutcome::Updated, version: 3, closed: Some(2) };
        assert_eq!(cell.ok(apply(&small, None)), closed);
        assert_eq!(cell.charged(Band::Batch), all(40));
    }

    #[test]
    fn only_what_was_seen_is_changed_and_the_present_version_is_said() {
        let (mut cell, spec) = running();
        let new = with_priority(&spec, 101);
        let check = |cell: &mut Cell, expect: u32, found: u32| {
            let rejection = cell.send(apply(&new, Some(expect))).unwrap_err();
            let object = Object::Job(key("ubar/jfoo"));
            assert_eq!(rejection, Rejection::StaleVersion { object, expected: expect, found });
        };
        check(&mut cell, 0, 1);
        check(&mut cell, 7, 1);
        // A request for the present spec is not rejected.
        assert_eq!(cell.ok(apply(&spec, Some(7))), done(ApplyOutcome::Unchanged, 1));
        assert_eq!(cell.ok(apply(&new, Some(1))), done(ApplyOutcome::Updated, 2));
        cell.ok(Command::StopJob { job: key("ubar/jfoo"), expect: None });
        cell.report("jfoo", 0, Observed::Stopped);
        check(&mut cell, 2, 0);
        assert_eq!(cell.ok(apply(&new, Some(0))), done(ApplyOutcome::Created, 1));
    }

    #[test]
    fn a_job_that_ends_is_waited_for_however_it_was_stopped() {
        let stops: [Command; 2] = [
            Command::StopJob { job: key("ubar/jfoo"), expect: None },
            Command::StopTask { job: key("ubar/jfoo"), index: 0, expect: None },
        ];
        for stop in stops {
            let (mut cell, spec) = running();
            cell.ok(stop);
            for requested in [&spec, &with_priority(&spec, 101)] {
                let verdict = cell.send(apply(requested, None));
                assert_eq!(verdict, Err(Rejection::JobStopping(key("ubar/jfoo"))));
                assert_eq!(cell.event_lines, [""; 0], "it is asked for again");
            }
            cell.report("jfoo", 0, Observed::Stopped);
            assert_eq!(job_state(&cell), JobState::Dead(JobOutcome::Killed));
            assert_eq!(cell.ok(apply(&spec, None)), done(ApplyOutcome::Created, 1));
        }
        // One of two: the job goes on without it.
        let spec = job("jfoo", 2, 100);
        let mut cell = Cell::with_machines(1);
        cell.ok(apply(&spec, None));
        cell.run("jfoo", 0, "m1");
        cell.run("jfoo", 1, "m1");
        cell.ok(Command::StopTask { job: key("ubar/jfoo"), index: 0, expect: None });
        assert_eq!(cell.ok(apply(&spec, None)), done(ApplyOutcome::Unchanged, 1));
    }

    #[test]
    fn rights_admission_and_quota_are_those_of_submissions_and_updates() {
        let (mut cell, spec) = running();
        cell.ok(Command::AddUser { name: name("ufoo") });
        let not_owner = Rejection::NotOwner { user: name("ufoo"), job: key("ubar/jfoo") };
        assert_eq!(cell.send_as("ufoo", apply(&spec, None)), Err(not_owner));
        assert!(cell.send_as("nobody", apply(&spec, None)).is_err());
        let none = cell.rejection_text(apply(&job("jfoo", 0, 100), None));
        assert!(none.starts_with("field count: value 0"), "{none}");
        let mut large = job("jbar", 1, 100);
        large.task.limits = all(1000);
        assert!(cell.rejection_text(apply(&large, None)).starts_with("quota of ubar"));
        assert_eq!(cell.event_lines.len(), 1, "it is on record: {:?}", cell.event_lines);
        let mut fixed = spec.clone();
        fixed.gang = true;
        assert!(cell.rejection_text(apply(&fixed, None)).starts_with("field gang"));
    }

    /// To an administrator a secret that is written again is another one, as in an update.
    #[test]
    fn secrets_are_compared_for_their_owner_alone() {
        let (mut cell, mut spec) = running();
        cell.ok(Command::AddUser { name: name("ufoo") });
        let capabilities = BTreeSet::from([Capability::AdministrateJobs]);
        cell.ok(Command::SetCapabilities { user: name("ufoo"), capabilities, expect: None });
        let with = |spec: &mut JobSpec, value: &str| {
            spec.task.secrets.insert(Token::new("key").unwrap(), Secret(value.into()));
        };
        with(&mut spec, "right");
        spec.name = name("jbar");
        cell.ok(apply(&spec, None));
        assert_eq!(
            cell.send_as("ubar", apply(&spec, Some(9))),
            Ok(done(ApplyOutcome::Unchanged, 1))
        );
        let right = cell.send_as("ufoo", apply(&spec, Some(9)));
        with(&mut spec, "wrong");
        assert_eq!(right, cell.send_as("ufoo", apply(&spec, Some(9))));
        assert!(right.is_err(), "{right:?}");
    }

    #[test]
    fn the_same_request_is_answered_as_before_whatever_happened_since() {
        let mut cell = Cell::with_machines(1);
        let spec = job("jfoo", 1, 100);
        let id = Some(RequestId { client: 7, sequence: 1 });
        let request = Request { by: Actor::User(name("ubar")), id, command: apply(&spec, None) };
        let send = |cell: &mut Cell| {
            let entry = Entry { now: Time(cell.now), requests: vec![request.clone()] };
            cell.state.apply(&entry, &mut Vec::new())
        };
        let created = vec![Ok(done(ApplyOutcome::Created, 1))];
        assert_eq!(send(&mut cell), created);
        cell.ok(apply(&with_priority(&spec, 101), None));
        assert_eq!(send(&mut cell), created);
        assert_eq!(version(&cell), 2, "nothing was done twice");
    }
}
