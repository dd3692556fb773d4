//! Commands: everything that can change the state. One log entry carries many, each gets its own
//! verdict. Time, ids of choice (ports, machines, devices) and random draws are already inside.

use crate::blob::BlobLimits;
use crate::bounds::Bounds;
use crate::credential::{KeyPrint, Newcomer, PartKind, SecretHash, TokenKind};
use crate::cron::CronSpec;
use crate::ephemeral::{CapacityChange, NodeChoice};
use crate::id::{MachineId, TaskId};
use crate::machine::{MachineSpec, ShortageReport};
use crate::name::{JobKey, Name, Token};
use crate::plan::Plan;
use crate::priority::Band;
use crate::quota::{Capability, Quota};
use crate::reason::Refusal;
use crate::resource::{Dimension, Resources};
use crate::spec::{JobSpec, PackageRef};
use crate::task::{ExitClass, Notice};
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// One entry of the replicated log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub now: Time,
    pub requests: Vec<Request>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub by: Actor,
    /// Set by clients that may send the same request twice.
    pub id: Option<RequestId>,
    pub command: Command,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Actor {
    /// The cell's own parts: schedulers, controllers, link shards. Authenticated by the master.
    System,
    User(Name),
}

/// A client's own number for a request. Sequence numbers of one client grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RequestId {
    pub client: u64,
    pub sequence: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    // Machines.
    AddMachine(MachineSpec),
    /// `expect`, here and below: the version the client saw (of a machine its generation); `None`
    /// changes whatever is there.
    UpdateMachine {
        spec: MachineSpec,
        expect: Option<u32>,
    },
    RemoveMachine {
        name: Name,
        expect: Option<u32>,
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
        expect: Option<u32>,
    },
    StopDrain {
        name: Name,
        expect: Option<u32>,
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
        expect: Option<u32>,
    },
    SetCapabilities {
        user: Name,
        capabilities: BTreeSet<Capability>,
        expect: Option<u32>,
    },
    /// `None` takes the quota away.
    SetQuota {
        user: Name,
        band: Band,
        quota: Option<Quota>,
        expect: Option<u32>,
    },
    // Jobs. `owner` is whose job it is; the actor must be the owner or an administrator.
    SubmitJob {
        owner: Name,
        spec: JobSpec,
    },
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
        expect: Option<u32>,
    },
    UndoUpdate {
        job: JobKey,
        expect: Option<u32>,
    },
    CloseUpdate {
        job: JobKey,
        expect: Option<u32>,
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
        /// From the entry's time on.
        lease: Span,
        changes: Vec<(NodeChoice, CapacityChange)>,
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
    // Periodic jobs. Named like jobs, in a space of their own.
    SetCron {
        owner: Name,
        spec: CronSpec,
        expect: Option<u32>,
    },
    RemoveCron {
        cron: JobKey,
        expect: Option<u32>,
    },
    /// Controllers: submit the run of one moment of the schedule. A slot that was dealt with
    /// before changes nothing.
    FireCron {
        cron: JobKey,
        slot: Time,
    },
    // Tokens. Whoever makes one chooses the id and keeps the secret.
    AddToken {
        id: Name,
        kind: TokenKind,
        secret_hash: SecretHash,
        /// From the time of the entry on.
        valid_for: Span,
        /// The token that the maker came in with, which this one does not outlive.
        parent: Option<Name>,
    },
    RevokeToken {
        id: Name,
    },
    /// Masters: somebody joins with this token. Works once.
    UseJoinToken {
        id: Name,
        secret_hash: SecretHash,
        /// Of a replica, which then waits for [`Command::ConfirmReplica`].
        newcomer: Option<Newcomer>,
    },
    // Blobs: the masters hold the bytes by the time this is sent.
    AddBlob {
        digest: Token,
        bytes: u64,
        limits: BlobLimits,
    },
    RemoveBlob {
        digest: Token,
    },
    /// An agent describes a machine that has no row. Whoever was sent away gets none.
    Enlist(MachineSpec),
    /// The certificates of a part are good for nothing any more, until it joins again.
    Dismiss {
        part: PartKind,
        name: Name,
    },
    /// One task is dead for good; its job goes on without it.
    StopTask {
        job: JobKey,
        index: u32,
        expect: Option<u32>,
    },
    /// A run of the saver of retained disk failed; the next one is due.
    SaverFailed {
        machine: MachineId,
        task: TaskId,
        attempt: u32,
        run: u32,
        /// `None`: nobody saw how.
        exit: Option<ExitClass>,
    },
    /// The agent's full list of what its machine is short of and cannot help itself with.
    SetShortages {
        machine: MachineId,
        incarnation: u64,
        shortages: Vec<ShortageReport>,
    },
    /// As [`Command::RemoveMachine`], unless the machine is up with tasks on it. Judged here and
    /// not by whoever asks: a plan may come in between.
    RemoveEmptyMachine {
        name: Name,
        expect: Option<u32>,
    },
    /// Masters: what their configuration lets each user have.
    SetBounds(Bounds),
    /// An operator has compared the fingerprint that a replica shows where it joins: from now on it
    /// gets its certificate, and with that the authority's key.
    ConfirmReplica {
        name: Name,
        key: KeyPrint,
    },
}

impl Command {
    /// Whether it takes something away, so that there is more room in the end. Masters whose disk
    /// is nearly full take nothing else.
    #[must_use]
    pub fn makes_room(&self) -> bool {
        matches!(
            self,
            Command::RemoveMachine { .. }
                | Command::RemoveEmptyMachine { .. }
                | Command::RemoveUser { .. }
                | Command::SetQuota { quota: None, .. }
                | Command::StopJob { .. }
                | Command::StopTask { .. }
                | Command::PurgeJobs { .. }
                | Command::ReleaseRetained { .. }
                | Command::Expire
                | Command::DeleteResource { .. }
                | Command::RemoveCron { .. }
                | Command::RevokeToken { .. }
                | Command::RemoveBlob { .. }
                | Command::Dismiss { .. }
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EvictCause {
    /// The machine is draining.
    Drain,
    /// The machine holds more than it can.
    OverCommit,
    /// An alloc or task is better off elsewhere.
    Rebalance,
    /// The machine is short of this, and holding others back did not help.
    Relief(Dimension),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TaskReport {
    pub task: TaskId,
    pub attempt: u32,
    pub what: Observed,
}

/// What an agent saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Observed {
    Started,
    /// Ended with success, of its own accord. What ended because it was told to is `Stopped`,
    /// whatever it exited with; the agent knows which came first.
    Finished,
    Failed(ExitClass),
    /// A stopping task is gone, its container seen empty.
    Stopped,
    Unhealthy,
    Healthy,
    /// Was here and is no longer, and nobody saw it end: no fault of the task's.
    Lost,
    /// As `Stopped`, of one whose end was watched: what became of the warning.
    Left(Notice),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReservationChange {
    pub task: TaskId,
    pub attempt: u32,
    pub reservation: Resources,
}

/// The outcome of one command.
pub type Verdict = Result<Done, Refusal>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Done {
    /// Took effect.
    Applied,
    /// Was so already; nothing changed.
    Unchanged,
    /// Took effect item by item; those refused, by position.
    Partly(Vec<(u32, Refusal)>),
    /// The job is now at this version.
    Version(u32),
    /// Took effect, and so many tokens ended by it.
    Revoked(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the routes that delete something ask for; below its reserve a master takes these.
    #[test]
    fn everything_that_is_a_removal_makes_room() {
        let name = || Name::new("n1").unwrap();
        let (user, band, expect) = (name(), Band::Batch, None);
        let amount = Resources::ZERO;
        let quota = Quota { amount, from: Time(0), until: Time::NEVER };
        let set = |quota| Command::SetQuota { user: user.clone(), band, quota, expect };
        assert!(set(None).makes_room() && !set(Some(quota)).makes_room());
        assert!(Command::RemoveMachine { name: name(), expect }.makes_room());
        assert!(Command::RemoveEmptyMachine { name: name(), expect }.makes_room());
        assert!(Command::RevokeToken { id: name() }.makes_room());
        assert!(Command::Expire.makes_room());
        assert!(!Command::AddUser { name: name() }.makes_room());
    }
}
