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
use crate::spec::JobSpec;

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

    /// Whether the spec of a job of `owner` is asked for just as it is. Secrets are compared for
    /// their owner alone: to anybody else, whatever rights they hold, one that is written again is
    /// another one, or asking whether it is this one would find it out.
    pub(super) fn is_same_spec(&self, owner: UserId, old: &JobSpec, new: &JobSpec) -> bool {
        let compares = match self.by {
            Actor::System => true,
            Actor::User(name) => self.state.user_named(name) == Some(owner),
        };
        old == new && (compares || new.task.secrets.is_empty())
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
    use crate::command::{Command, Done, Verdict};
    use crate::cron::schedule::Schedule;
    use crate::cron::{CronSpec, MissedRuns, Overlap};
    use crate::isolation::Secret;
    use crate::name::Token;
    use crate::quota::Capability;
    use crate::render;
    use crate::time::Time;
    use std::collections::{BTreeMap, BTreeSet};

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

    /// What is answered to whoever sends a job with a right secret, and with a wrong one.
    #[test]
    fn secrets_are_compared_for_their_owner_alone() {
        let with = |value: &str| {
            let mut spec = job("jfoo", 1, 0);
            spec.task.secrets =
                BTreeMap::from([(Token::new("key").unwrap(), Secret(value.into()))]);
            spec
        };
        let cron = |value: &str| CronSpec {
            name: name("jfoo"),
            schedule: Schedule::new("0 3 * * *").unwrap(),
            job: with(value),
            missed: MissedRuns::Skip,
            overlap: Overlap::Allow,
            paused: false,
            keep_runs: 3,
        };
        let owner = || name("ubar");
        let mut cell = Cell::with_machines(1);
        cell.ok(Command::AddUser { name: name("ufoo") });
        let capabilities = BTreeSet::from([Capability::AdministrateJobs]);
        cell.ok(Command::SetCapabilities { user: name("ufoo"), capabilities, expect: None });
        cell.submit(&with("right"));
        cell.ok(Command::SetCron { owner: owner(), spec: cron("right"), expect: None });
        let never = Some(77);
        let ask: [&dyn Fn(&str) -> Command; 3] = [
            &|value| Command::SubmitJob { owner: owner(), spec: with(value) },
            &|value| Command::UpdateJob { owner: owner(), spec: with(value), expect: never },
            &|value| Command::SetCron { owner: owner(), spec: cron(value), expect: never },
        ];
        for ask in ask {
            assert_eq!(cell.by("ubar", ask("right")), Ok(Done::Unchanged));
            let right = cell.by("ufoo", ask("right"));
            assert!(right.is_err(), "{right:?}");
            assert_eq!(right, cell.by("ufoo", ask("wrong")));
        }
    }
}
