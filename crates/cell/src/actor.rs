//! Actors: who sends a request. Every request in the log has one, `apply` authorizes by it
//! (`apply/authorize.rs`), and events and the audit log contain it.
//!
//! The cell's own parts are separate actors: an agent, a scheduler or a controller that misbehaves,
//! or is compromised, can do what that one part may and nothing else. Rejected: one actor for all
//! of them that may do everything. Then each check of what a part may do would be at another
//! listener, and whatever got past one of them would have the whole cell.

use crate::command::{Command, EvictCause};
use crate::id::{MachineId, TaskId};
use crate::name::Name;
use crate::state::State;
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Actor {
    /// Whoever holds the cell itself and is no user: the account that runs `cell dev`, and the one
    /// that creates a cell and its first users. May do what some user may, for any user.
    Operator,
    User(Name),
    /// The agent of this machine.
    Agent(Name),
    Scheduler(Name),
    Controller(ControllerName),
    /// A master, for requests that masters make themselves.
    Replica(Name),
    /// A running attempt of a task that calls the API as itself.
    Task {
        task: TaskId,
        attempt: u32,
    },
}

/// The cell's controllers, each under its own name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ControllerName {
    Overcommit,
    PressureEviction,
    Cron,
    Drain,
    Update,
    Expire,
    Purge,
    /// Declares machines down.
    Liveness,
    /// Estimates reservations, next to the links to the agents.
    Reclaim,
    /// Moves tasks to better places. The command has that cause; no build runs this controller yet.
    Rebalance,
    /// Takes back what broken gangs hold.
    Gang,
    /// Restarts tasks whose owner wants that.
    Restart,
    /// Gives each machine its task of every daemon.
    Daemon,
    /// Chooses the sizes of jobs.
    Scaling,
}

impl ControllerName {
    pub const ALL: [ControllerName; 14] = [
        ControllerName::Overcommit,
        ControllerName::PressureEviction,
        ControllerName::Cron,
        ControllerName::Drain,
        ControllerName::Update,
        ControllerName::Expire,
        ControllerName::Purge,
        ControllerName::Liveness,
        ControllerName::Reclaim,
        ControllerName::Rebalance,
        ControllerName::Gang,
        ControllerName::Restart,
        ControllerName::Daemon,
        ControllerName::Scaling,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            ControllerName::Overcommit => "overcommit",
            ControllerName::PressureEviction => "pressure_eviction",
            ControllerName::Cron => "cron",
            ControllerName::Drain => "drain",
            ControllerName::Update => "update",
            ControllerName::Expire => "expire",
            ControllerName::Purge => "purge",
            ControllerName::Liveness => "liveness",
            ControllerName::Reclaim => "reclaim",
            ControllerName::Rebalance => "rebalance",
            ControllerName::Gang => "gang",
            ControllerName::Restart => "restart",
            ControllerName::Daemon => "daemon",
            ControllerName::Scaling => "scaling",
        }
    }

    /// The controller that evicts for this cause.
    #[must_use]
    pub const fn of_cause(cause: EvictCause) -> ControllerName {
        match cause {
            EvictCause::Drain => ControllerName::Drain,
            EvictCause::OverCommit => ControllerName::Overcommit,
            EvictCause::Rebalance => ControllerName::Rebalance,
            EvictCause::ResourcePressure(_) => ControllerName::PressureEviction,
        }
    }
}

impl fmt::Display for ControllerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text form for people and programs: `user:ann`, `agent:n1`, `controller:drain`.
impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Actor::Operator => f.write_str("operator"),
            Actor::User(name) => write!(f, "user:{name}"),
            Actor::Agent(machine) => write!(f, "agent:{machine}"),
            Actor::Scheduler(name) => write!(f, "scheduler:{name}"),
            Actor::Controller(name) => write!(f, "controller:{name}"),
            Actor::Replica(name) => write!(f, "replica:{name}"),
            Actor::Task { task, attempt } => write!(f, "task:{}.{attempt}", task.0),
        }
    }
}

impl Actor {
    /// The acting user, if the actor is one.
    #[must_use]
    pub fn user(&self) -> Option<&Name> {
        match self {
            Actor::User(name) => Some(name),
            _ => None,
        }
    }

    /// The usual sender of such a command in a live cell; the operator for commands of users. For
    /// dry runs, experiments, benchmarks and tests, which act for all parts of a cell.
    #[must_use]
    pub fn default_sender(command: &Command, state: &State) -> Actor {
        use Command as C;
        let controller = Actor::Controller;
        match command {
            C::MachineUp { machine, .. }
            | C::SetMachinePackages { machine, .. }
            | C::TaskReports { machine, .. }
            | C::ReleaseRetained { machine, .. }
            | C::LogSaverFailed { machine, .. }
            | C::SetResourcePressure { machine, .. } => Actor::agent_of(*machine, state),
            C::RegisterMachine(spec) => Actor::Agent(spec.name.clone()),
            C::CommitPlan(_) => Actor::Scheduler(Name::of_number(1)),
            C::MachineDown { .. } => controller(ControllerName::Liveness),
            C::StepUpdate { .. } => controller(ControllerName::Update),
            C::GiveBack { .. } => controller(ControllerName::Gang),
            C::StepRestart { .. } => controller(ControllerName::Restart),
            C::MatchMachines { .. } => controller(ControllerName::Daemon),
            C::PurgeJobs { .. } => controller(ControllerName::Purge),
            C::Evict { cause, .. } => controller(ControllerName::of_cause(*cause)),
            C::Expire => controller(ControllerName::Expire),
            C::SetReservations(_) => controller(ControllerName::Reclaim),
            C::ReserveHold(_) | C::ReleaseHold { .. } => controller(ControllerName::Rebalance),
            C::Component(command) => {
                let rights = command.as_component().rights();
                match rights.controller {
                    Some(name) => controller(name),
                    None if rights.replica => Actor::Replica(Name::of_number(1)),
                    None => Actor::Operator,
                }
            }
            C::RaiseLevel { .. } | C::UseJoinToken { .. } | C::SetBounds(_) => {
                Actor::Replica(Name::of_number(1))
            }
            C::AddMachine(_)
            | C::UpdateMachine { .. }
            | C::RemoveMachine { .. }
            | C::RemoveEmptyMachine { .. }
            | C::StartDrain { .. }
            | C::DrainWithin { .. }
            | C::StopDrain { .. }
            | C::AddUser { .. }
            | C::RemoveUser { .. }
            | C::SetCapabilities { .. }
            | C::SetQuota { .. }
            | C::SubmitJob { .. }
            | C::UpdateJob { .. }
            | C::ApplyJob { .. }
            | C::ResizeJob { .. }
            | C::ResizeLimits { .. }
            | C::StopJob { .. }
            | C::StopTask { .. }
            | C::StopWithin { .. }
            | C::RestartTasks { .. }
            | C::StartTasks { .. }
            | C::UndoUpdate { .. }
            | C::CloseUpdate { .. }
            | C::AddToken { .. }
            | C::RevokeToken { .. }
            | C::ConfirmReplica { .. }
            | C::AddBlob { .. }
            | C::RemoveBlob { .. }
            | C::RevokePart { .. } => Actor::Operator,
        }
    }

    /// The agent of the machine. For a machine without a row it is one with the row's number for a
    /// name: whoever has that name, the row is not theirs, so it may do nothing to it.
    #[must_use]
    pub fn agent_of(machine: MachineId, state: &State) -> Actor {
        let row = state.machines().get(machine);
        Actor::Agent(match row {
            Some(row) => row.spec.name.clone(),
            None => Name::of_number(u64::from(machine.0)),
        })
    }
}
