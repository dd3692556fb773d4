//! Authorization (B12): one table of commands and actors, checked before anything else of a
//! command, so that a rejection does not tell unauthorized callers what exists. A command without a
//! row does not compile.
//!
//! A user owns jobs and holds capabilities. Each of the cell's own parts may do what its function
//! needs and nothing else: an agent acts for its own machine, a scheduler proposes plans, a
//! controller has its own commands, a replica sends the commands of masters; those that were sent
//! away may do nothing any more. A task that calls as itself has no row yet. Rights that depend on
//! the content of a command as well (a priority, the alloc set that a job goes into, whether a
//! namespace is free) are checked by its handler with the functions below.
//!
//! Rejected: roles. A role is a set of capabilities somebody has to keep in step with what people
//! do; sets of capabilities are granted directly. Rejected: a check at the start of each handler. A
//! handler without one would be open to everybody, and there would be no single place to read who
//! may do what.

use super::Context;
use crate::command::{Actor, Command, ControllerName};
use crate::credential::{PartKind, TokenKind};
use crate::ephemeral::{CapacityChange, NodeChoice, SYSTEM_NAMESPACE};
use crate::id::{MachineId, UserId};
use crate::name::{JobKey, Name, Token};
use crate::quota::{Capability, User};
use crate::reason::{Allowed, Given, Rejection, Sender};
use crate::spec::JobSpec;
use crate::state::State;

/// The actors that may send one command. Operators may send what some user may.
#[derive(Clone, Copy, Debug)]
pub struct Rights<'c> {
    pub user: UserRight<'c>,
    pub agent: AgentRight<'c>,
    pub scheduler: bool,
    /// None: no controller may.
    pub controller: Option<ControllerName>,
    pub replica: bool,
    /// A running task that calls as itself.
    pub task: bool,
}

/// The condition under which a user may send a command.
#[derive(Clone, Copy, Debug)]
pub enum UserRight<'c> {
    Never,
    /// Being a user of the cell.
    Known,
    Holder(Capability),
    /// Owning the job or the periodic job, or `administrate_jobs`.
    Job {
        user: &'c Name,
        job: &'c Name,
    },
    /// Owning the namespace, or finding it free.
    Namespace(&'c Token),
    /// Having added the package, or `administrate_jobs`.
    Package(&'c Token),
    /// Being the user of the token, or having the capability for its kind.
    TokenKind(&'c TokenKind),
    Token(&'c Name),
}

/// The condition under which an agent may send a command: it acts for its own machine.
#[derive(Clone, Copy, Debug)]
pub enum AgentRight<'c> {
    Never,
    Machine(MachineId),
    Named(&'c Name),
    /// Capacity of the cell's own resources.
    Capacity {
        namespace: &'c Token,
        changes: &'c [(NodeChoice, CapacityChange)],
    },
}

impl<'c> Rights<'c> {
    const NOBODY: Rights<'static> = Rights {
        user: UserRight::Never,
        agent: AgentRight::Never,
        scheduler: false,
        controller: None,
        replica: false,
        task: false,
    };

    #[must_use]
    pub const fn users(user: UserRight<'c>) -> Rights<'c> {
        Rights { user, ..Rights::NOBODY }
    }

    #[must_use]
    pub const fn agents(agent: AgentRight<'c>) -> Rights<'c> {
        Rights { agent, ..Rights::NOBODY }
    }

    #[must_use]
    pub const fn controller(name: ControllerName) -> Rights<'c> {
        Rights { controller: Some(name), ..Rights::NOBODY }
    }

    pub(crate) const REPLICA: Rights<'static> = Rights { replica: true, ..Rights::NOBODY };
    const SCHEDULER: Rights<'static> = Rights { scheduler: true, ..Rights::NOBODY };

    /// The table.
    #[must_use]
    pub fn of(command: &'c Command) -> Rights<'c> {
        use Capability::{ManageMachines, ManageUsers};
        use Command as C;
        use UserRight::Holder;
        let job =
            |key: &'c JobKey| Rights::users(UserRight::Job { user: &key.user, job: &key.job });
        match command {
            C::AddMachine(_)
            | C::RemoveMachine { .. }
            | C::RemoveEmptyMachine { .. }
            | C::StartDrain { .. }
            | C::DrainWithin { .. }
            | C::StopDrain { .. } => Rights::users(Holder(ManageMachines)),
            C::UpdateMachine { spec, .. } => Rights {
                agent: AgentRight::Named(&spec.name),
                ..Rights::users(Holder(ManageMachines))
            },
            C::RegisterMachine(spec) => Rights::agents(AgentRight::Named(&spec.name)),
            C::MachineUp { machine, .. }
            | C::SetMachinePackages { machine, .. }
            | C::TaskReports { machine, .. }
            | C::ReleaseRetained { machine, .. }
            | C::LogSaverFailed { machine, .. }
            | C::SetResourcePressure { machine, .. } => {
                Rights::agents(AgentRight::Machine(*machine))
            }
            C::MachineDown { .. } => Rights::controller(ControllerName::Liveness),
            C::AddUser { .. }
            | C::RemoveUser { .. }
            | C::SetCapabilities { .. }
            | C::SetQuota { .. }
            | C::ConfirmReplica { .. } => Rights::users(Holder(ManageUsers)),
            C::SubmitJob { owner, spec }
            | C::UpdateJob { owner, spec, .. }
            | C::ApplyJob { owner, spec, .. } => {
                Rights::users(UserRight::Job { user: owner, job: &spec.name })
            }
            C::ResizeJob { job: key, .. }
            | C::StopJob { job: key, .. }
            | C::StopTask { job: key, .. }
            | C::StopWithin { job: key, .. }
            | C::RestartTasks { job: key, .. }
            | C::StartTasks { job: key, .. }
            | C::UndoUpdate { job: key, .. } => job(key),
            C::ResizeLimits { job: key, .. } => job(key).or_controller(ControllerName::Scaling),
            C::CloseUpdate { job: key, .. } => job(key).or_controller(ControllerName::Update),
            C::StepUpdate { .. } => Rights::controller(ControllerName::Update),
            C::GiveBack { .. } => Rights::controller(ControllerName::Gang),
            C::StepRestart { .. } => Rights::controller(ControllerName::Restart),
            C::MatchMachines { .. } => Rights::controller(ControllerName::Daemon),
            C::PurgeJobs { .. } => Rights::controller(ControllerName::Purge),
            C::Evict { cause, .. } => Rights::controller(ControllerName::of_cause(*cause)),
            C::Expire => Rights::controller(ControllerName::Expire),
            C::SetReservations(_) => Rights::controller(ControllerName::Reclaim),
            C::ReserveHold(_) | C::ReleaseHold { .. } => {
                Rights::controller(ControllerName::Rebalance)
            }
            C::Component(command) => command.as_component().rights(),
            C::CommitPlan(_) => Rights::SCHEDULER,
            C::AddToken { kind, .. } => Rights::users(UserRight::TokenKind(kind)),
            C::RevokeToken { id } => Rights::users(UserRight::Token(id)),
            C::AddBlob { .. } => Rights::users(UserRight::Known),
            C::RemoveBlob { digest } => Rights::users(UserRight::Package(digest)),
            C::RaiseLevel { .. } | C::UseJoinToken { .. } | C::SetBounds(_) => Rights::REPLICA,
            C::RevokePart { part, .. } => Rights::of_revocation(*part),
        }
    }
}

impl Rights<'_> {
    /// The controller may send it too.
    fn or_controller(self, controller: ControllerName) -> Self {
        Rights { controller: Some(controller), ..self }
    }

    fn of_revocation(part: PartKind) -> Rights<'static> {
        use Capability::{ManageMachines, ManageUsers};
        match part {
            PartKind::Agent => Rights::users(UserRight::Holder(ManageMachines)),
            PartKind::Scheduler => Rights::users(UserRight::Holder(ManageUsers)),
            // A master reports a removed replica.
            PartKind::Replica => {
                Rights { replica: true, ..Rights::users(UserRight::Holder(ManageUsers)) }
            }
        }
    }

    /// All who may.
    fn senders(&self, state: &State) -> Vec<Sender> {
        let controller = self.controller.map(Sender::Controller);
        let parts = [
            self.user.sender(),
            self.agent.sender(state),
            self.scheduler.then_some(Sender::Schedulers),
            controller,
            self.replica.then_some(Sender::Masters),
            self.task.then_some(Sender::Tasks),
        ];
        parts.into_iter().flatten().collect()
    }
}

impl UserRight<'_> {
    /// `None` if no user may.
    #[must_use]
    pub fn sender(&self) -> Option<Sender> {
        Some(match self {
            UserRight::Never => return None,
            UserRight::Known => Sender::Users,
            UserRight::Holder(capability) => Sender::UsersWith(*capability),
            UserRight::Job { .. } => Sender::JobOwner,
            UserRight::Namespace(_) => Sender::NamespaceOwner,
            UserRight::Package(_) => Sender::PackageOwner,
            UserRight::TokenKind(_) | UserRight::Token(_) => Sender::TokenOwner,
        })
    }
}

impl AgentRight<'_> {
    /// Nothing where no agent may.
    fn sender(&self, state: &State) -> Option<Sender> {
        Some(match self {
            AgentRight::Never => return None,
            AgentRight::Machine(machine) => match state.machines.get(*machine) {
                Some(row) => Sender::Agent(row.spec.name.clone()),
                None => Sender::AgentOfRow(*machine),
            },
            AgentRight::Named(name) => Sender::Agent((*name).clone()),
            AgentRight::Capacity { .. } => Sender::AgentsOfTheirOwn,
        })
    }

    /// Whether the right is for the agent of `machine`.
    fn is_of(&self, machine: &Name, state: &State) -> bool {
        match self {
            AgentRight::Never => false,
            AgentRight::Machine(id) => state.machine_named(machine) == Some(*id),
            AgentRight::Named(name) => *name == machine,
            AgentRight::Capacity { namespace, changes } => {
                let own = |(nodes, _): &(NodeChoice, CapacityChange)| match nodes {
                    NodeChoice::Node(name) => name == machine,
                    NodeChoice::Available(_) => false,
                };
                namespace.as_str() == SYSTEM_NAMESPACE
                    && !changes.is_empty()
                    && changes.iter().all(own)
            }
        }
    }
}

impl Context<'_> {
    /// Checks whether the actor may send the command at all.
    pub(super) fn authorize(&self, command: &Command) -> Result<(), Rejection> {
        let rights = Rights::of(command);
        let may = match self.by {
            Actor::User(name) if !matches!(rights.user, UserRight::Never) => {
                return self.authorize_user(name, &rights.user);
            }
            Actor::User(name) => {
                self.user_by_name(name)?;
                false
            }
            Actor::Operator => !matches!(rights.user, UserRight::Never),
            Actor::Agent(machine) => rights.agent.is_of(machine, self.state),
            Actor::Scheduler(name) => {
                rights.scheduler && !self.state.is_revoked(PartKind::Scheduler, name)
            }
            Actor::Controller(name) => rights.controller == Some(*name),
            Actor::Replica(name) => {
                rights.replica && !self.state.is_revoked(PartKind::Replica, name)
            }
            Actor::Task { .. } => rights.task,
        };
        if may {
            return Ok(());
        }
        let allowed = rights.senders(self.state);
        let (actor, command) = (self.by.clone(), command.name().to_owned());
        Err(Rejection::WrongActor { actor, command, allowed })
    }

    fn authorize_user(&self, name: &Name, right: &UserRight<'_>) -> Result<(), Rejection> {
        self.user_by_name(name)?;
        match *right {
            UserRight::Never | UserRight::Known => Ok(()),
            UserRight::Holder(capability) => self.require(capability),
            UserRight::Job { user, .. } if user == name => Ok(()),
            UserRight::Job { user, job } => {
                let job = JobKey { user: user.clone(), job: job.clone() };
                self.require_job_access(&job)
            }
            UserRight::Namespace(namespace) => self.namespace_owner(namespace).map(drop),
            UserRight::Package(digest) => {
                let id = self.state.blob_named(digest);
                let row = id.and_then(|id| self.state.blobs.get(id));
                if row.is_some_and(|row| row.by == *self.by) {
                    Ok(())
                } else {
                    self.require(Capability::AdministrateJobs)
                }
            }
            UserRight::TokenKind(kind) => self.may_manage_token(kind),
            // Tokens of other users and tokens that do not exist get the same answer.
            UserRight::Token(id) => {
                let token = self.state.token_named(id);
                match token.and_then(|token| self.state.tokens.get(token)) {
                    Some(row) => self.may_manage_token(&row.kind),
                    None => self.require(Capability::ManageUsers),
                }
            }
        }
    }

    /// The right needed for each kind of token.
    fn may_manage_token(&self, kind: &TokenKind) -> Result<(), Rejection> {
        match kind {
            TokenKind::UserToken { user } if self.by.user() == Some(user) => Ok(()),
            TokenKind::JoinAgent { .. } | TokenKind::Revocation { part: PartKind::Agent, .. }
                if self.require(Capability::ManageMachines).is_ok() =>
            {
                Ok(())
            }
            _ => self.require(Capability::ManageUsers),
        }
    }

    /// The owner of the namespace, existing or new: the acting user, if the user has it or it is
    /// free, or the user an operator acts for; `None` for the system's own namespace.
    pub(crate) fn namespace_owner(&self, namespace: &Token) -> Result<Option<UserId>, Rejection> {
        if namespace.as_str().contains('/') {
            let allowed = Allowed::NamespaceWithoutSlash;
            return Err(Rejection::bad_field("namespace", Given::text(namespace), allowed));
        }
        let known =
            self.state.components.ephemeral.namespaces.get(namespace).map(|known| known.owner);
        let Actor::User(name) = self.by else { return Ok(known.flatten()) };
        let user = self.user_by_name(name)?;
        let (own, foreign) = (Ok(Some(user)), || {
            Err(Rejection::ForeignNamespace { user: name.clone(), namespace: namespace.clone() })
        });
        match known {
            _ if namespace.as_str() == SYSTEM_NAMESPACE => foreign(),
            None => own,
            Some(owner) if owner == Some(user) => own,
            Some(_) => foreign(),
        }
    }

    /// The acting user; `None` for other actors, which the table has authorized.
    fn acting_user(&self) -> Result<Option<&User>, Rejection> {
        let Some(name) = self.by.user() else { return Ok(None) };
        let id = self.user_by_name(name)?;
        Ok(self.state.users.get(id))
    }

    /// Requires a capability for something a command asks for besides its own right.
    pub(crate) fn require(&self, capability: Capability) -> Result<(), Rejection> {
        match self.acting_user()? {
            Some(user) if !user.capabilities.contains(&capability) => {
                Err(Rejection::NotAllowed { user: user.name.clone(), capability })
            }
            _ => Ok(()),
        }
    }

    /// Requires access to a job that another one is put into: as its owner, or as an administrator.
    pub(crate) fn require_job_access(&self, job: &JobKey) -> Result<(), Rejection> {
        match self.acting_user()? {
            Some(user)
                if user.name != job.user
                    && !user.capabilities.contains(&Capability::AdministrateJobs) =>
            {
                Err(Rejection::NotOwner { user: user.name.clone(), job: job.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Whether a requested spec equals the present one of a job of `owner`. Secrets are compared
    /// for their owner alone: for any other actor a secret that is written again counts as a
    /// different one, or a request could be used to find out whether it is the same.
    pub(crate) fn is_same_spec(&self, owner: UserId, old: &JobSpec, new: &JobSpec) -> bool {
        old == new && (new.task.secrets.is_empty() || self.compares_secrets(owner))
    }

    /// Whether the actor may find out that a secret of `owner` is the same as another.
    pub(crate) fn compares_secrets(&self, owner: UserId) -> bool {
        match self.by {
            Actor::User(name) => self.state.user_named(name) == Some(owner),
            Actor::Operator => true,
            _ => false,
        }
    }

    pub(crate) fn user_by_name(&self, name: &Name) -> Result<UserId, Rejection> {
        self.state.user_named(name).ok_or_else(|| Rejection::NoSuchUser(name.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Actor, CapacityChange, MachineId, NodeChoice, Rejection, SYSTEM_NAMESPACE};
    use crate::apply::fixture::{Cell, job, key, machine, name};
    use crate::bounds::Bounds;
    use crate::command::{Command, Done, Verdict};
    use crate::cron::schedule::Schedule;
    use crate::cron::{self, CronSpec, MissedRuns, Overlap};
    use crate::ephemeral;
    use crate::isolation::Secret;
    use crate::name::Token;
    use crate::quota::Capability;
    use crate::time::{Span, Time};
    use crate::words;
    use std::collections::{BTreeMap, BTreeSet};

    fn check(user: &str, holds: &[Capability], command: Command, want: &str) {
        let mut cell = Cell::with_machines(1);
        cell.ok(Command::AddUser { name: name("ufoo") });
        cell.submit(&job("jfoo", 1, 0));
        if !holds.is_empty() {
            let capabilities = holds.iter().copied().collect::<BTreeSet<_>>();
            cell.ok(Command::SetCapabilities { user: name(user), capabilities, expect: None });
        }
        let got: Verdict = cell.send_as(user, command);
        assert_eq!(words::verdict(&cell.state, &got), want);
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
        let system = "refused: purge_jobs is not for user:ufoo; allowed: controller:purge";
        check("ufoo", &Capability::ALL, purge(), system);
    }

    /// Resources on several machines expire only when the lease of the last agent ends.
    #[test]
    fn an_agent_shortens_no_lease_and_makes_no_more_rows_than_a_user_may() {
        let mut cell = Cell::with_machines(2);
        let bounds = Bounds { resources: 1, ..Bounds::default() };
        cell.ok(Command::SetBounds(bounds));
        let set = |what: &str, machine: &str, lease| ephemeral::Command::Set {
            namespace: Token::new(SYSTEM_NAMESPACE).unwrap(),
            name: Token::new(what).unwrap(),
            lease: Span(lease),
            changes: vec![(NodeChoice::Node(name(machine)), CapacityChange::Add(1))],
        };
        let agent = |machine: &str| Actor::Agent(name(machine));
        let until = |cell: &Cell| cell.state.resources().iter().next().unwrap().1.lease_until;
        cell.apply(agent("m1"), set("slot", "m1", 1000)).unwrap();
        let first = until(&cell);
        cell.apply(agent("m2"), set("slot", "m2", 1)).unwrap();
        assert_eq!(until(&cell), first);
        cell.apply(agent("m2"), set("slot", "m2", 2000)).unwrap();
        assert!(until(&cell) > first);
        let more = cell.apply(agent("m2"), set("more", "m2", 1));
        assert!(matches!(more, Err(Rejection::OverBound { .. })), "{more:?}");
    }

    /// A controller that acts in a user's name has that user's rights, and events name the
    /// controller.
    #[test]
    fn events_say_who_sent_the_command() {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 1, 0));
        assert_eq!(cell.senders, BTreeSet::from(["operator".to_owned()]));
        cell.run("jfoo", 0, "m1");
        assert_eq!(cell.senders, BTreeSet::from(["agent:m1".to_owned()]));
        cell.ok(Command::MachineDown { machine: MachineId(0) });
        assert_eq!(cell.senders, BTreeSet::from(["controller:liveness".to_owned()]));
        let spec = CronSpec {
            name: name("tick"),
            schedule: Schedule::new("*/5 * * * *").unwrap(),
            job: job("tick", 1, 0),
            missed: MissedRuns::Skip,
            overlap: Overlap::Allow,
            paused: false,
            keep_runs: 3,
        };
        cell.send_as(
            "ubar",
            cron::Command::Set { owner: name("ubar"), spec: Box::new(spec), expect: None },
        )
        .unwrap();
        assert_eq!(cell.senders, BTreeSet::from(["user:ubar".to_owned()]));
        cell.now = 300_000;
        cell.ok(cron::Command::Fire { cron: key("ubar/tick"), slot: Time(300_000) });
        assert!(
            cell.event_lines.iter().any(|line| line.contains("submitted")),
            "{:?}",
            cell.event_lines
        );
        assert_eq!(cell.senders, BTreeSet::from(["controller:cron".to_owned()]));
    }

    /// Answers to actors that submit the job with a right secret, and with a wrong one.
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
        let set = |value: &str, expect| {
            Command::from(crate::cron::Command::Set {
                owner: owner(),
                spec: Box::new(cron(value)),
                expect,
            })
        };
        cell.ok(set("right", None));
        let never = Some(77);
        let ask: [&dyn Fn(&str) -> Command; 3] = [
            &|value| Command::SubmitJob { owner: owner(), spec: Box::new(with(value)) },
            &|value| Command::UpdateJob {
                owner: owner(),
                spec: Box::new(with(value)),
                expect: never,
            },
            &|value| set(value, never),
        ];
        for ask in ask {
            assert_eq!(cell.send_as("ubar", ask("right")), Ok(Done::Unchanged));
            let right = cell.send_as("ufoo", ask("right"));
            assert!(right.is_err(), "{right:?}");
            assert_eq!(right, cell.send_as("ufoo", ask("wrong")));
        }
    }
}
