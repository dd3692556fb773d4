//! `apply`, the transition function of the state machine: applies one log entry to the state and
//! returns a verdict for each command and events for what changed.
//!
//! Total: every handler first decides, reading only, and then makes changes that cannot fail; the
//! one exception, a plan group, saves the rows it overwrites and restores them. So a rejected
//! command leaves no trace, and nothing panics on what a client sent.

mod apply_job;
pub mod authorize;
mod blobs;
mod bounds;
mod daemon;
mod default_disk;
mod drain;
mod evict;
mod expire;
#[cfg(test)]
pub(crate) mod fixture;
mod gang;
mod hasten;
mod holds;
mod jobs;
mod level;
mod machines;
mod plan;
mod reports;
mod reservations;
mod resize;
mod resource_pressure;
mod retained_disk;
mod revocation;
mod settle;
mod start;
mod stop_and_purge;
mod task_lifecycle;
mod tokens;
mod update;
mod users;
mod whole_cores;

pub(crate) use task_lifecycle::back_off;

use crate::bounds::SYSTEM_ANSWER_BYTES;
use crate::command::{Actor, Command, Done, Entry, Request, Verdict};
use crate::event::{Event, EventKind};
use crate::id::{JobId, MachineId, TaskId, UserId};
use crate::name::Name;
use crate::priority::Band;
use crate::reason::{Object, Reason, Rejection};
use crate::replay_windows::{self, RecordedAnswer, WindowLookup};
use crate::state::State;
use crate::time::Time;

/// One command being applied.
pub(crate) struct Context<'a> {
    pub state: &'a mut State,
    pub events: &'a mut Vec<Event>,
    /// The actor whose rights apply.
    pub by: &'a Actor,
    /// The sender, which differs when a controller acts in a user's name.
    pub sender: &'a Actor,
    pub now: Time,
    /// Machines whose sums or capacity changed, to be settled when the command is done.
    pub touched: Vec<MachineId>,
    /// Jobs with a task that died.
    pub maybe_ended: Vec<JobId>,
    /// Quotas whose charge or grant changed.
    pub charged: Vec<(UserId, Band)>,
}

impl State {
    /// Applies one log entry. Verdicts are in the order of the requests.
    pub fn apply(&mut self, entry: &Entry, events: &mut Vec<Event>) -> Vec<Verdict> {
        // Log time never runs backwards, whatever the proposer's clock does.
        self.now = self.now.max(entry.now);
        self.applied += 1;
        entry.requests.iter().map(|request| self.apply_request(request, events)).collect()
    }

    fn apply_request(&mut self, request: &Request, events: &mut Vec<Event>) -> Verdict {
        let Some(id) = request.id else { return self.apply_command(request, events) };
        let fingerprint = replay_windows::fingerprint(&request.command);
        match self.windows.look_up(&request.by, id, fingerprint) {
            WindowLookup::Answered(verdict) => verdict,
            WindowLookup::Rejected(rejection) => Err(rejection),
            WindowLookup::Unseen => {
                let verdict = self.apply_command(request, events);
                let now = self.now;
                let most = match &request.by {
                    Actor::User(_) | Actor::Agent(_) | Actor::Task { .. } => {
                        self.bounds.answer_bytes
                    }
                    Actor::Operator
                    | Actor::Scheduler(_)
                    | Actor::Controller(_)
                    | Actor::Replica(_) => SYSTEM_ANSWER_BYTES,
                };
                let answered = RecordedAnswer { fingerprint, verdict: verdict.clone() };
                self.windows.remember(&request.by, id, answered, now, most);
                verdict
            }
        }
    }

    fn apply_command(&mut self, request: &Request, events: &mut Vec<Event>) -> Verdict {
        let now = self.now;
        let mut context = Context {
            state: self,
            events,
            by: &request.by,
            sender: &request.by,
            now,
            touched: Vec::new(),
            maybe_ended: Vec::new(),
            charged: Vec::new(),
        };
        let allowed = context.authorize(&request.command);
        let verdict = allowed.and_then(|()| context.dispatch(&request.command));
        context.settle();
        // It is stored with the answer, and may quote what was sent.
        verdict.map_err(Rejection::truncated)
    }
}

impl Context<'_> {
    fn dispatch(&mut self, command: &Command) -> Verdict {
        use Command as C;
        match command {
            C::Component(command) => command.apply(self),
            C::AddMachine(spec) => self.add_machine(spec),
            C::UpdateMachine { spec, expect } => self.update_machine(spec, *expect),
            C::RemoveMachine { name, expect } => self.remove_machine(name, *expect),
            C::RemoveEmptyMachine { name, expect } => self.remove_empty_machine(name, *expect),
            C::MachineUp { machine, incarnation } => self.machine_up(*machine, *incarnation),
            C::MachineDown { machine } => self.machine_down(*machine),
            C::StartDrain { name, expect } => self.set_drain(name, true, *expect),
            C::StopDrain { name, expect } => self.set_drain(name, false, *expect),
            C::SetMachinePackages { .. }
            | C::TaskReports { .. }
            | C::ReleaseRetained { .. }
            | C::LogSaverFailed { .. }
            | C::SetResourcePressure { .. } => self.dispatch_of_agent(command),
            C::AddUser { name } => self.add_user(name),
            C::RemoveUser { name, expect } => self.remove_user(name, *expect),
            C::SetCapabilities { user, capabilities, expect } => {
                self.set_capabilities(user, capabilities, *expect)
            }
            C::SetQuota { user, band, quota, expect } => {
                self.set_quota(user, *band, *quota, *expect)
            }
            C::SubmitJob { owner, spec } => self.submit_job(owner, spec),
            C::UpdateJob { owner, spec, expect } => self.update_job(owner, spec, *expect),
            C::ResizeJob { job, size, expect } => self.resize_job(job, size, *expect),
            C::ResizeLimits { job, limits, expect } => self.resize_limits(job, *limits, *expect),
            C::StopJob { job, expect } => self.stop_job(job, *expect),
            C::StopTask { job, index, expect } => self.stop_single_task(job, *index, *expect),
            C::UndoUpdate { job, expect } => self.undo_update(job, *expect),
            C::CloseUpdate { job, expect } => self.close_update(job, *expect),
            C::StepUpdate { job, index } => self.step_update(job, *index),
            C::MatchMachines { job } => self.match_machines(job),
            C::PurgeJobs { ended_before } => self.purge_jobs(*ended_before),
            C::CommitPlan(plan) => self.commit_plan(plan),
            C::Evict { task, attempt, cause } => self.evict(*task, *attempt, *cause),
            C::Expire => self.expire(),
            C::SetReservations(changes) => self.set_reservations(changes),
            C::RaiseLevel { level } => self.raise_level(*level),
            C::AddToken { id, kind, secret_hash, valid_for, parent } => {
                self.add_token(id, kind, *secret_hash, *valid_for, parent.as_ref())
            }
            C::RevokeToken { id } => self.revoke_token(id),
            C::UseJoinToken { id, secret_hash, newcomer } => {
                self.use_join_token(id, secret_hash, newcomer.as_ref())
            }
            C::ConfirmReplica { name, key } => self.confirm_replica(name, *key),
            C::AddBlob { digest, bytes, limits } => self.add_blob(digest, *bytes, *limits),
            C::RemoveBlob { digest } => self.remove_blob(digest),
            C::RegisterMachine(spec) => self.register_machine(spec),
            C::RevokePart { part, name } => self.revoke_part(*part, name),
            C::SetBounds(bounds) => self.set_bounds(bounds),
            C::ReserveHold(target) => self.reserve_hold(target),
            C::ReleaseHold { task, attempt, machine: m } => self.release_hold(*task, *attempt, *m),
            C::ApplyJob { owner, spec, expect, again } => {
                self.apply_job(owner, spec, *expect, *again)
            }
            C::StopWithin { job, index, notice, expect } => {
                self.stop_within(job, *index, *notice, *expect)
            }
            C::GiveBack { job } => self.give_back(job),
            C::RestartTasks { job, index } => self.restart_tasks(job, *index),
            C::StepRestart { job, index } => self.step_restart(job, *index),
            C::StartTasks { job, which } => self.start_tasks(job, *which),
            C::DrainWithin { name, within, expect } => self.drain_within(name, *within, *expect),
        }
    }

    /// What agents say of their machines.
    fn dispatch_of_agent(&mut self, command: &Command) -> Verdict {
        use Command as C;
        match command {
            C::SetMachinePackages { machine, packages } => self.set_packages(*machine, packages),
            C::TaskReports { machine, incarnation, reports } => {
                self.task_reports(*machine, *incarnation, reports)
            }
            C::ReleaseRetained { machine, task, attempt } => {
                self.release_retained(*machine, *task, *attempt)
            }
            C::LogSaverFailed { machine, task, attempt, run, exit } => {
                self.saver_failed(*machine, (*task, *attempt, *run), *exit)
            }
            C::SetResourcePressure { machine, incarnation, resource_pressure } => {
                self.set_resource_pressure(*machine, *incarnation, resource_pressure)
            }
            // Agents say nothing else that is dispatched to here.
            _ => Ok(Done::Unchanged),
        }
    }

    pub(crate) fn emit(&mut self, what: impl Into<EventKind>, reason: Reason) {
        let by = self.sender.clone();
        self.events.push(Event { at: self.now, actor: by, kind: what.into(), reason });
    }

    /// Acts in the name of a user, with that user's rights and no others.
    pub(crate) fn as_user(
        &mut self,
        user: &Name,
        act: impl FnOnce(&mut Context<'_>) -> Verdict,
    ) -> Verdict {
        let by = Actor::User(user.clone());
        let mut context = Context {
            state: &mut *self.state,
            events: &mut *self.events,
            by: &by,
            sender: self.sender,
            now: self.now,
            touched: std::mem::take(&mut self.touched),
            maybe_ended: std::mem::take(&mut self.maybe_ended),
            charged: std::mem::take(&mut self.charged),
        };
        let verdict = act(&mut context);
        let Context { touched, maybe_ended, charged, .. } = context;
        (self.touched, self.maybe_ended, self.charged) = (touched, maybe_ended, charged);
        verdict
    }

    /// Compare-and-swap: rejected unless the client saw the present version. Checked only once it
    /// is known that something would change: a request for the present state is not rejected.
    pub(crate) fn check_expected(
        object: impl FnOnce() -> Object,
        found: u32,
        expect: Option<u32>,
    ) -> Result<(), Rejection> {
        match expect {
            Some(expected) if expected != found => {
                Err(Rejection::StaleVersion { object: object(), expected, found })
            }
            _ => Ok(()),
        }
    }

    /// The verdict of a command made of independent items.
    pub(crate) fn partial_verdict(refused: Vec<(u32, Rejection)>) -> Verdict {
        Ok(if refused.is_empty() { Done::Applied } else { Done::Partly(refused) })
    }

    /// The task row, checked against the attempt the sender knows.
    pub(crate) fn task_at_attempt(
        &self,
        task: TaskId,
        attempt: u32,
    ) -> Result<crate::task::Task, Rejection> {
        let Some(row) = self.state.tasks.get(task) else {
            return Err(Rejection::NoSuchRow(task.into()));
        };
        if row.attempt == attempt {
            Ok(row.clone())
        } else {
            Err(Rejection::StaleAttempt { task, expected: attempt, found: row.attempt })
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, job, key, machine, name};
    use crate::command::{Command, Done};
    use crate::priority::Band;
    use crate::quota::Capability;
    use std::collections::BTreeSet;

    type Asking = fn(Option<u32>) -> Command;

    /// Rejected with a version that is not the present one, done with the present one, and then, if
    /// it can be repeated, unchanged whatever version the client saw.
    fn check(ask: Asking, present: u32, again: bool) {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 1, 100));
        cell.run("jfoo", 0, "m1");
        let mut spec = job("jfoo", 1, 100);
        spec.priority.0 = 101;
        cell.ok(Command::UpdateJob { owner: name("ubar"), spec: Box::new(spec), expect: Some(1) });
        for stale in [present + 1, present - 1] {
            let message = cell.rejection_text(ask(Some(stale)));
            assert!(
                message.contains(&format!("is at version {present}, not {stale}")),
                "{message}"
            );
        }
        assert_ne!(cell.ok(ask(Some(present))), Done::Unchanged);
        if again {
            assert_eq!(cell.ok(ask(Some(present + 7))), Done::Unchanged);
        }
    }

    #[test]
    fn nobody_changes_what_has_changed_since_they_looked() {
        // The machine came up: generation 1. Two quotas were granted: version 3.
        check(|expect| Command::UpdateMachine { spec: machine("m1", 99), expect }, 1, true);
        check(|expect| Command::RemoveMachine { name: name("m1"), expect }, 1, false);
        check(|expect| Command::StartDrain { name: name("m1"), expect }, 1, true);
        check(
            |expect| {
                let capabilities = BTreeSet::from([Capability::ManageUsers]);
                Command::SetCapabilities { user: name("ubar"), capabilities, expect }
            },
            3,
            true,
        );
        check(
            |expect| {
                let (user, band) = (name("ubar"), Band::Production);
                Command::SetQuota { user, band, quota: None, expect }
            },
            3,
            true,
        );
        check(|expect| Command::StopJob { job: key("ubar/jfoo"), expect }, 2, true);
        check(|expect| Command::UndoUpdate { job: key("ubar/jfoo"), expect }, 2, true);
        check(|expect| Command::CloseUpdate { job: key("ubar/jfoo"), expect }, 2, true);
    }

    #[test]
    fn a_drain_and_a_user_are_given_up_only_as_they_were_seen() {
        let mut cell = Cell::with_machines(1);
        cell.ok(Command::StartDrain { name: name("m1"), expect: None });
        let stop = |expect| Command::StopDrain { name: name("m1"), expect };
        assert!(cell.rejection_text(stop(Some(1))).contains("machine m1 is at version 2, not 1"));
        assert_eq!(cell.ok(stop(Some(2))), Done::Applied);
        let remove = |expect| Command::RemoveUser { name: name("ubar"), expect };
        assert!(cell.rejection_text(remove(Some(2))).contains("user ubar is at version 3, not 2"));
        assert_eq!(cell.ok(remove(Some(3))), Done::Applied);
    }
}
