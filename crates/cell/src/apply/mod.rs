//! `apply`: one entry of the log against the state, a verdict for each command, events for what
//! changed.
//!
//! Total: every handler first decides, reading only, and then writes what can no longer fail; the
//! one exception, a plan group, keeps the rows it overwrote and puts them back. So a refused
//! command leaves no trace, and nothing panics on what a client sent.

mod authorize;
mod drain;
mod evict;
mod expire;
#[cfg(test)]
pub(crate) mod fixture;
mod jobs;
mod level;
mod life;
mod machines;
mod plan;
mod reports;
mod reservations;
mod resources;
mod settle;
mod update;
mod users;

use crate::command::{Actor, Command, Done, Entry, Request, Verdict};
use crate::event::{Event, What};
use crate::id::{JobId, MachineId, TaskId, UserId};
use crate::priority::Band;
use crate::reason::{Reason, Refusal};
use crate::replay::{self, Seen};
use crate::state::State;
use crate::time::Time;

/// One command being applied.
pub(crate) struct Context<'a> {
    pub state: &'a mut State,
    pub events: &'a mut Vec<Event>,
    pub by: &'a Actor,
    pub now: Time,
    /// Machines whose sums or capacity changed: looked at once more when the command is done.
    pub touched: Vec<MachineId>,
    /// Jobs of which a task died.
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
        let fingerprint = replay::fingerprint(&request.command);
        match replay::look_up(&self.windows, &request.by, id, fingerprint) {
            Seen::Before(verdict) => verdict,
            Seen::Refused(refusal) => Err(refusal),
            Seen::New => {
                let verdict = self.apply_command(request, events);
                let now = self.now;
                let (windows, by) = (&mut self.windows, &request.by);
                replay::remember(windows, by, id, fingerprint, verdict.clone(), now);
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
            now,
            touched: Vec::new(),
            maybe_ended: Vec::new(),
            charged: Vec::new(),
        };
        let verdict = context.dispatch(&request.command);
        context.settle();
        verdict
    }
}

impl Context<'_> {
    fn dispatch(&mut self, command: &Command) -> Verdict {
        use Command as C;
        match command {
            C::AddMachine(spec) => self.add_machine(spec),
            C::UpdateMachine { spec } => self.update_machine(spec),
            C::RemoveMachine { name } => self.remove_machine(name),
            C::MachineUp { machine, incarnation } => self.machine_up(*machine, *incarnation),
            C::MachineDown { machine } => self.machine_down(*machine),
            C::StartDrain { name } => self.set_drain(name, true),
            C::StopDrain { name } => self.set_drain(name, false),
            C::SetMachinePackages { machine, packages } => self.set_packages(*machine, packages),
            C::AddUser { name } => self.add_user(name),
            C::RemoveUser { name } => self.remove_user(name),
            C::SetCapabilities { user, capabilities } => self.set_capabilities(user, capabilities),
            C::SetQuota { user, band, quota } => self.set_quota(user, *band, *quota),
            C::SubmitJob { owner, spec } => self.submit_job(owner, spec),
            C::UpdateJob { owner, spec, expect } => self.update_job(owner, spec, *expect),
            C::ResizeJob { job, count, expect } => self.resize_job(job, *count, *expect),
            C::StopJob { job } => self.stop_job(job),
            C::UndoUpdate { job } => self.undo_update(job),
            C::CloseUpdate { job } => self.close_update(job),
            C::StepUpdate { job, index } => self.step_update(job, *index),
            C::PurgeJobs { ended_before } => self.purge_jobs(*ended_before),
            C::CommitPlan(plan) => self.commit_plan(plan),
            C::Evict { task, attempt, cause } => self.evict(*task, *attempt, *cause),
            C::TaskReports { machine, incarnation, reports } => {
                self.task_reports(*machine, *incarnation, reports)
            }
            C::ReleaseRetained { machine, task, attempt } => {
                self.release_retained(*machine, *task, *attempt)
            }
            C::Expire => self.expire(),
            C::SetResource { namespace, name, lease_until, changes } => {
                self.set_resource(namespace, name, *lease_until, changes)
            }
            C::DeleteResource { namespace, name } => self.delete_resource(namespace, name),
            C::SetReservations(changes) => self.set_reservations(changes),
            C::RaiseLevel { level } => self.raise_level(*level),
        }
    }

    pub(crate) fn emit(&mut self, what: What, reason: Reason) {
        self.events.push(Event { at: self.now, what, reason });
    }

    /// The verdict of a command made of independent items.
    pub(crate) fn partly(refused: Vec<(u32, Refusal)>) -> Verdict {
        Ok(if refused.is_empty() { Done::Applied } else { Done::Partly(refused) })
    }

    /// The task row, checked against the attempt the sender knows.
    pub(crate) fn task_at(&self, task: TaskId, attempt: u32) -> Result<crate::task::Task, Refusal> {
        let Some(row) = self.state.tasks.get(task) else {
            return Err(Refusal::NoSuchRow(format!("task {}", task.0)));
        };
        match row.attempt == attempt {
            true => Ok(row.clone()),
            false => Err(Refusal::StaleAttempt { task, expected: attempt, found: row.attempt }),
        }
    }
}
