//! What is in the way of a command: what is there already, what it is for and may not be done now,
//! who would have had to send it. Data, which [`crate::words`] puts into words.

use crate::actor::ControllerName;
use crate::bounds::BoundKind;
use crate::id::{MachineId, TaskId};
use crate::job::JobState;
use crate::name::{JobKey, Name, Token};
use crate::quota::Capability;
use crate::resource::Dimension;
use serde::{Deserialize, Serialize};

/// Something of the cell that has a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Object {
    Job(JobKey),
    Cron(JobKey),
    User(Name),
    Machine(Name),
    Token(Name),
    Package { digest: Token, bytes: u64 },
}

/// What the state holds as much of as it can.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    Jobs,
    Tasks,
    Users,
    Machines,
    Tokens,
    /// Of one kind and name.
    TokensAlike {
        most: u64,
    },
    Packages,
    Crons,
    Resources,
    /// Of resources on machines.
    Capacities,
    ResourcesOn(Name),
    VersionsOf(Name),
    /// What all machines have together.
    Capacity,
    Scalings,
}

/// What stands against a command for the time being.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Conflict {
    JobDead(JobKey),
    /// Absent where there is no such job.
    JobNotActive(Option<JobState>),
    AllocSetStopped(JobKey),
    UpdateOpen(JobKey),
    NoUpdate(JobKey),
    /// So many tasks of it still have to be updated.
    UpdateGoesOn {
        job: JobKey,
        left: u32,
    },
    UserHas {
        user: Name,
        what: BoundKind,
        held: u64,
    },
    /// Leases or retained disk of so many dead jobs last.
    UserLeft {
        user: Name,
        dead: u32,
    },
    CronPaused(JobKey),
    /// Somebody's tasks would not start without the package.
    PackageNeeded {
        digest: Token,
        by: JobKey,
        is_cron: bool,
    },
    /// No replica of this name waits to be confirmed.
    NoReplicaWaits(Name),
    MachineInCell(Name),
    /// It was removed and has not joined again.
    MachineRevoked(Name),
    MachineDown(Name),
    NotDraining(Name),
    NotOverCommitted(Name),
    HoldsTooMuch(Name),
    OthersFirst {
        machine: Name,
        task: TaskId,
    },
    /// It is this task that has to leave first, for this.
    PressureEvictionFirst {
        machine: Name,
        task: TaskId,
        dimension: Dimension,
    },
    NoResourcePressure(Name),
    /// An alloc is charged at its limits.
    AllocAtLimits,
    NotReclaimable,
    /// The new version waits to be promoted.
    CanariesTry(JobKey),
    /// The spec is that of a version that the cell rolled back.
    RolledBack {
        job: JobKey,
        version: u32,
    },
    /// It is an alloc set.
    RunsNothing(JobKey),
    /// Of a periodic job whose runs do not overlap.
    LastRunGoesOn(JobKey),
    /// The job has no policy of scaling.
    NotScaled(JobKey),
}

/// What may not be done to a task in the state it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskAction {
    Placement,
    Preemption,
    /// It is on no machine.
    Eviction,
    Rebalancing,
    Reservation,
    /// To hold room on another machine.
    Hold,
    HoldWhereItRuns,
    /// Beside the one it has.
    SecondHold,
    HoldOfAlloc,
    /// Of the place where it is.
    Release,
    /// From a machine other than its own.
    ForeignReport,
    /// From a machine, while it is on none.
    LateReport,
    /// On a program, which an alloc has not.
    ReportOfProgram,
    /// Of a stop that nobody asked for.
    ReportOfStop,
    /// On health, before the start.
    ReportOfHealth,
    /// Of what is over.
    Restart,
    /// Of what never ran because of a dependency.
    Start,
}

/// Who may send a command.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Sender {
    Users,
    UsersWith(Capability),
    /// Or a user with `administrate_jobs`.
    JobOwner,
    NamespaceOwner,
    /// Whoever brought it, or a user with `administrate_jobs`.
    PackageOwner,
    /// Whom the token is for, or who manages such.
    TokenOwner,
    Agent(Name),
    /// The agent of a machine that is gone.
    AgentOfRow(MachineId),
    /// Of capacities of the system's own resources.
    AgentsOfTheirOwn,
    Schedulers,
    Controller(ControllerName),
    Masters,
    Tasks,
}
