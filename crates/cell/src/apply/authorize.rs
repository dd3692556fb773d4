//! Who may do what (B12): one table of commands and actors, read before a command is looked at any
//! further, so that a refusal does not tell a stranger what exists. A command without a row does
//! not compile.
//!
//! A person owns jobs and holds capabilities. Each of the cell's own parts has what it is for and
//! nothing else: an agent speaks for its own machine, a scheduler proposes plans, a controller has
//! its own commands, a replica says what masters say. A task that calls as itself has no row yet.
//! What depends on the content of a command as well (a priority, the alloc set that a job goes
//! into, where a namespace is free) is asked by its handler, of the functions below.
//!
//! Rejected: roles. A role is a set of capabilities somebody has to keep in step with what people
//! do; sets of capabilities are granted directly. Rejected: a check at the head of each handler. A
//! handler without one was open to everybody, and nobody could read who may do what.

use super::Context;
use crate::command::{Actor, Command, ControllerName};
use crate::credential::{PartKind, TokenKind};
use crate::ephemeral::{CapacityChange, NodeChoice, SYSTEM_NAMESPACE};
use crate::id::{MachineId, UserId};
use crate::name::{JobKey, Name, Token};
use crate::quota::{Capability, User};
use crate::reason::Rejection;
use crate::spec::JobSpec;
use crate::state::State;
use std::fmt;

/// Who may send one command. Operators may send what some user may.
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

/// What lets a user send a command.
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
    /// Having brought the package, or `administrate_jobs`.
    Package(&'c Token),
    /// Being whom the token is for, or what its kind takes.
    TokenKind(&'c TokenKind),
    Token(&'c Name),
}

/// For what an agent may send a command: its own machine.
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

    const REPLICA: Rights<'static> = Rights { replica: true, ..Rights::NOBODY };
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
            | C::StopDrain { .. } => Rights::users(Holder(ManageMachines)),
            C::UpdateMachine { spec, .. } => Rights {
                agent: AgentRight::Named(&spec.name),
                ..Rights::users(Holder(ManageMachines))
            },
            C::Enlist(spec) => Rights::agents(AgentRight::Named(&spec.name)),
            C::MachineUp { machine, .. }
            | C::SetMachinePackages { machine, .. }
            | C::TaskReports { machine, .. }
            | C::ReleaseRetained { machine, .. }
            | C::SaverFailed { machine, .. }
            | C::SetShortages { machine, .. } => Rights::agents(AgentRight::Machine(*machine)),
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
            | C::UndoUpdate { job: key, .. } => job(key),
            C::CloseUpdate { job: key, .. } => {
                Rights { controller: Some(ControllerName::Update), ..job(key) }
            }
            C::StepUpdate { .. } => Rights::controller(ControllerName::Update),
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
            C::Dismiss { part: PartKind::Agent, .. } => Rights::users(Holder(ManageMachines)),
            C::Dismiss { part: PartKind::Scheduler, .. } => Rights::users(Holder(ManageUsers)),
            // A master tells of one that was removed.
            C::Dismiss { part: PartKind::Replica, .. } => {
                Rights { replica: true, ..Rights::users(Holder(ManageUsers)) }
            }
        }
    }
}

/// Who may, in words: `users with manage_machines, the agent of machine n1`.
struct Allowed<'a> {
    rights: &'a Rights<'a>,
    state: &'a State,
}

impl fmt::Display for Allowed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rights { user, agent, scheduler, controller, replica, task } = self.rights;
        let mut words = Vec::new();
        words.extend(user.describe());
        words.extend(agent.describe(self.state));
        words.extend(scheduler.then(|| "schedulers".to_owned()));
        words.extend(controller.map(|name| Actor::Controller(name).to_string()));
        words.extend(replica.then(|| "masters".to_owned()));
        words.extend(task.then(|| "running tasks".to_owned()));
        f.write_str(&words.join(", "))
    }
}

impl UserRight<'_> {
    /// Nothing where no user may.
    #[must_use]
    pub fn describe(&self) -> Option<String> {
        Some(match self {
            UserRight::Never => return None,
            UserRight::Known => "users".to_owned(),
            UserRight::Holder(capability) => format!("users with {capability}"),
            UserRight::Job { .. } => "the owner, users with administrate_jobs".to_owned(),
            UserRight::Namespace(_) => "the user whose namespace it is".to_owned(),
            UserRight::Package(_) => {
                "the user who brought it, users with administrate_jobs".to_owned()
            }
            UserRight::TokenKind(_) | UserRight::Token(_) => {
                "the user it is for, users with manage_users (of machines: manage_machines)"
                    .to_owned()
            }
        })
    }
}

impl AgentRight<'_> {
    /// Nothing where no agent may.
    fn describe(&self, state: &State) -> Option<String> {
        match self {
            AgentRight::Never => None,
            AgentRight::Machine(machine) => {
                let row = state.machines.get(*machine);
                let name =
                    row.map_or_else(|| format!("#{}", machine.0), |r| r.spec.name.to_string());
                Some(format!("the agent of machine {name}"))
            }
            AgentRight::Named(name) => Some(format!("the agent of machine {name}")),
            AgentRight::Capacity { .. } => {
                Some(format!("agents for their own machine, in namespace {SYSTEM_NAMESPACE}"))
            }
        }
    }

    /// Whether it is the agent of `machine` who may.
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
    /// Whether whoever acts may send the command at all.
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
            Actor::Scheduler(_) => rights.scheduler,
            Actor::Controller(name) => rights.controller == Some(*name),
            Actor::Replica(_) => rights.replica,
            Actor::Task { .. } => rights.task,
        };
        if may {
            return Ok(());
        }
        let allowed = Allowed { rights: &rights, state: self.state }.to_string();
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
                match row.is_some_and(|row| row.by == *self.by) {
                    true => Ok(()),
                    false => self.require(Capability::AdministrateJobs),
                }
            }
            UserRight::TokenKind(kind) => self.may_manage_token(kind),
            // What is somebody else's and what does not exist look the same.
            UserRight::Token(id) => {
                let token = self.state.token_named(id);
                match token.and_then(|token| self.state.tokens.get(token)) {
                    Some(row) => self.may_manage_token(&row.kind),
                    None => self.require(Capability::ManageUsers),
                }
            }
        }
    }

    /// What needs which right.
    fn may_manage_token(&self, kind: &TokenKind) -> Result<(), Rejection> {
        match kind {
            TokenKind::UserToken { user } if self.by.user() == Some(user) => Ok(()),
            TokenKind::JoinAgent { .. } | TokenKind::Dismissed { part: PartKind::Agent, .. }
                if self.require(Capability::ManageMachines).is_ok() =>
            {
                Ok(())
            }
            _ => self.require(Capability::ManageUsers),
        }
    }

    /// Whose the namespace is, or becomes: the acting user's, who has it or finds it free, or that
    /// of the user an operator acts for; `None` for what is nobody's.
    pub(crate) fn namespace_owner(&self, namespace: &Token) -> Result<Option<UserId>, Rejection> {
        if namespace.as_str().contains('/') {
            return Err(Rejection::BadField {
                field: "namespace".into(),
                value: namespace.to_string(),
                allowed: "a token without /".into(),
            });
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

    /// The user who acts, `None` for whoever is not one: the table has let it through.
    fn acting_user(&self) -> Result<Option<&User>, Rejection> {
        let Some(name) = self.by.user() else { return Ok(None) };
        let id = self.user_by_name(name)?;
        Ok(self.state.users.get(id))
    }

    /// For what a command asks for beside itself.
    pub(crate) fn require(&self, capability: Capability) -> Result<(), Rejection> {
        match self.acting_user()? {
            Some(user) if !user.capabilities.contains(&capability) => {
                Err(Rejection::NotAllowed { user: user.name.clone(), capability })
            }
            _ => Ok(()),
        }
    }

    /// For a job that another one is put into: its owner's, or an administrator's to open.
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

    /// Whether the spec of a job of `owner` is asked for just as it is. Secrets are compared for
    /// their owner alone: to anybody else, whatever rights they hold, one that is written again is
    /// another one, or asking whether it is this one would find it out.
    pub(crate) fn is_same_spec(&self, owner: UserId, old: &JobSpec, new: &JobSpec) -> bool {
        let compares = match self.by {
            Actor::User(name) => self.state.user_named(name) == Some(owner),
            Actor::Operator => true,
            _ => false,
        };
        old == new && (compares || new.task.secrets.is_empty())
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
    use crate::render;
    use crate::time::{Span, Time};
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
        let system = "refused: purge_jobs is not for user:ufoo; allowed: controller:purge";
        check("ufoo", &Capability::ALL, purge(), system);
    }

    /// What several machines have ends when the last of their agents says so.
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

    /// A controller that acts in a user's name has that user's rights, and stands in the events.
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
        cell.send_as("ubar", cron::Command::Set { owner: name("ubar"), spec, expect: None })
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
        let set = |value: &str, expect| {
            Command::from(crate::cron::Command::Set { owner: owner(), spec: cron(value), expect })
        };
        cell.ok(set("right", None));
        let never = Some(77);
        let ask: [&dyn Fn(&str) -> Command; 3] = [
            &|value| Command::SubmitJob { owner: owner(), spec: with(value) },
            &|value| Command::UpdateJob { owner: owner(), spec: with(value), expect: never },
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
