//! Who may do what (B12). The cell's own parts may do everything; a person owns jobs and holds
//! capabilities. Handlers ask here before they look at anything else, so that a refusal does not
//! tell a stranger what exists.
//!
//! Rejected: roles. A role is a set of capabilities somebody has to keep in step with what people
//! do; sets of capabilities are granted directly.

use super::Context;
use crate::command::Actor;
use crate::id::UserId;
use crate::name::{JobKey, Name};
use crate::quota::{Capability, User};
use crate::reason::Refusal;

impl Context<'_> {
    /// The user who acts, `None` for the system.
    fn acting(&self) -> Result<Option<(UserId, &User)>, Refusal> {
        let Actor::User(name) = self.by else { return Ok(None) };
        let id = self.state.user_named(name);
        let found = id.and_then(|id| Some((id, self.state.users.get(id)?)));
        found.map(Some).ok_or_else(|| Refusal::NoSuchUser(name.clone()))
    }

    pub(super) fn require(&self, capability: Capability) -> Result<(), Refusal> {
        match self.acting()? {
            Some((_, user)) if !user.capabilities.contains(&capability) => {
                Err(Refusal::NotAllowed { user: user.name.clone(), capability })
            }
            _ => Ok(()),
        }
    }

    /// For what changes a job of `owner`.
    pub(super) fn owner_or_admin(&self, owner: UserId, job: &JobKey) -> Result<(), Refusal> {
        let Some((id, user)) = self.acting()? else { return Ok(()) };
        if id == owner || user.capabilities.contains(&Capability::AdministrateJobs) {
            return Ok(());
        }
        Err(Refusal::NotOwner { user: user.name.clone(), job: job.clone() })
    }

    /// For what schedulers, controllers and agents say: no capability lets a person say it.
    pub(super) fn system_only(&self) -> Result<(), Refusal> {
        match self.by {
            Actor::System => Ok(()),
            Actor::User(name) => Err(Refusal::SystemOnly(name.clone())),
        }
    }

    pub(super) fn user_by_name(&self, name: &Name) -> Result<UserId, Refusal> {
        self.state.user_named(name).ok_or_else(|| Refusal::NoSuchUser(name.clone()))
    }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, job, key, machine, name};
    use crate::command::{Command, Verdict};
    use crate::quota::Capability;
    use crate::render;
    use crate::time::Time;
    use std::collections::BTreeSet;

    fn check(user: &str, holds: &[Capability], command: Command, want: &str) {
        let mut cell = Cell::with_machines(1);
        cell.ok(Command::AddUser { name: name("ufoo") });
        cell.submit(&job("jfoo", 1, 0));
        if !holds.is_empty() {
            let capabilities = holds.iter().copied().collect::<BTreeSet<_>>();
            cell.ok(Command::SetCapabilities { user: name(user), capabilities, expect: None });
        }
        let got: Verdict = cell.by(user, command);
        assert_eq!(render::verdict(&cell.state, &got), want);
    }

    #[test]
    fn owners_administrators_and_the_system() {
        let stop = || Command::StopJob { job: key("ubar/jfoo"), expect: None };
        let add = || Command::AddMachine(machine("m9", 10));
        let purge = || Command::PurgeJobs { ended_before: Time(5) };
        let nobody = "refused: there is no user nobody";
        check("ubar", &[], stop(), "done");
        check(
            "ufoo",
            &[],
            stop(),
            "refused: user ufoo does not own ubar/jfoo and lacks the capability administrate_jobs",
        );
        check("ufoo", &[Capability::AdministrateJobs], stop(), "done");
        check("nobody", &[], stop(), nobody);
        check("nobody", &[], add(), nobody);
        let lacks = "refused: user ufoo lacks the capability manage_machines";
        check("ufoo", &[Capability::AdministrateJobs], add(), lacks);
        check("ufoo", &[Capability::ManageMachines], add(), "done");
        let system = "refused: only the cell's own parts may do this; ufoo is a user";
        check("ufoo", &Capability::ALL, purge(), system);
    }
}
