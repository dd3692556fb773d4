//! Commands: everything that can change the state. One log entry carries many, each gets its own
//! verdict. Time, ids of choice (ports, machines, devices) and random draws are already inside.

use crate::ephemeral::CapacityChange;
use crate::id::{MachineId, TaskId};
use crate::machine::MachineSpec;
use crate::name::{JobKey, Name, Token};
use crate::plan::Plan;
use crate::priority::Band;
use crate::quota::{Capability, Quota};
use crate::reason::Refusal;
use crate::resource::Resources;
use crate::spec::{JobSpec, PackageRef};
use crate::task::ExitClass;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// One entry of the replicated log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub now: Time,
    pub requests: Vec<Request>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub by: Actor,
    /// Set by clients that may send the same request twice.
    pub id: Option<RequestId>,
    pub command: Command,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Actor {
    /// The cell's own parts: schedulers, controllers, link shards. Authenticated by the master.
    System,
    User(Name),
}

/// A client's own number for a request. Sequence numbers of one client grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId {
    pub client: u64,
    pub sequence: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    // Machines.
    AddMachine(MachineSpec),
    UpdateMachine {
        spec: MachineSpec,
    },
    RemoveMachine {
        name: Name,
    },
    MachineUp {
        machine: MachineId,
        incarnation: u64,
    },
    MachineDown {
        machine: MachineId,
    },
    StartDrain {
        name: Name,
    },
    StopDrain {
        name: Name,
    },
    /// The agent's full list of installed packages.
    SetMachinePackages {
        machine: MachineId,
        packages: BTreeSet<PackageRef>,
    },
    // Users.
    AddUser {
        name: Name,
    },
    RemoveUser {
        name: Name,
    },
    SetCapabilities {
        user: Name,
        capabilities: BTreeSet<Capability>,
    },
    /// `None` takes the quota away.
    SetQuota {
        user: Name,
        band: Band,
        quota: Option<Quota>,
    },
    // Jobs. `owner` is whose job it is; the actor must be the owner or an administrator.
    SubmitJob {
        owner: Name,
        spec: JobSpec,
    },
    /// `expect`: the version the client saw; `None` overwrites whatever is there.
    UpdateJob {
        owner: Name,
        spec: JobSpec,
        expect: Option<u32>,
    },
    ResizeJob {
        job: JobKey,
        count: u32,
        expect: Option<u32>,
    },
    StopJob {
        job: JobKey,
    },
    UndoUpdate {
        job: JobKey,
    },
    CloseUpdate {
        job: JobKey,
    },
    /// Controllers: roll the open update of the job forward on one task.
    StepUpdate {
        job: JobKey,
        index: u32,
    },
    /// Controllers: forget jobs that ended before `ended_before`.
    PurgeJobs {
        ended_before: Time,
    },
    // Placement.
    CommitPlan(Plan),
    /// Controllers: move a task or alloc away, within budgets unless its machine over-commits.
    Evict {
        task: TaskId,
        attempt: u32,
        cause: EvictCause,
    },
    // Agents.
    TaskReports {
        machine: MachineId,
        incarnation: u64,
        reports: Vec<TaskReport>,
    },
    /// A log saver fetched the retained disk, or it can no longer be fetched.
    ReleaseRetained {
        machine: MachineId,
        task: TaskId,
        attempt: u32,
    },
    /// Controllers: let everything whose time has passed expire (retained disk, leases, quota).
    Expire,
    // Ephemeral resources.
    SetResource {
        namespace: Token,
        name: Token,
        lease_until: Time,
        changes: Vec<(MachineId, CapacityChange)>,
    },
    DeleteResource {
        namespace: Token,
        name: Token,
    },
    // Reclamation: the estimator's logged reservations.
    SetReservations(Vec<ReservationChange>),
    /// Raised once every replica can apply the new behaviour.
    RaiseLevel {
        level: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EvictCause {
    /// The machine is draining.
    Drain,
    /// The machine holds more than it can.
    OverCommit,
    /// An alloc or task is better off elsewhere.
    Rebalance,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskReport {
    pub task: TaskId,
    pub attempt: u32,
    pub what: Observed,
}

/// What an agent saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Observed {
    Started,
    /// Ended with success.
    Finished,
    Failed(ExitClass),
    /// A stopping task is gone, its container seen empty.
    Stopped,
    Unhealthy,
    Healthy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationChange {
    pub task: TaskId,
    pub attempt: u32,
    pub reservation: Resources,
}

/// The outcome of one command.
pub type Verdict = Result<Done, Refusal>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Done {
    /// Took effect.
    Applied,
    /// Was so already; nothing changed.
    Unchanged,
    /// Took effect item by item; those refused, by position.
    Partly(Vec<(u32, Refusal)>),
    /// The job is now at this version.
    Version(u32),
}
