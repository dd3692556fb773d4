//! Commands: everything that can change the state. One log entry carries many, each gets its own
//! verdict. Time, ids of choice (ports, machines, devices) and random draws are already inside.

pub use crate::actor::{Actor, ControllerName};
use crate::blob::BlobLimits;
use crate::bounds::Bounds;
use crate::components;
use crate::credential::{KeyFingerprint, PartKind, ReplicaJoinRequest, SecretHash, TokenKind};
use crate::id::{MachineId, TaskId};
use crate::machine::{MachineSpec, ResourcePressureReport};
use crate::name::{JobKey, Name, Token};
use crate::plan::{Assignment, Plan};
use crate::priority::Band;
use crate::quota::{Capability, Quota};
use crate::reason::Rejection;
use crate::resource::{Dimension, Resources};
use crate::spec::{JobSpec, PackageRef};
use crate::state::State;
use crate::task::{ExitClass, NoticeOutcome};
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
    /// Who acts, as a master has established.
    pub by: Actor,
    /// Set by clients that may send the same request twice.
    pub id: Option<RequestId>,
    pub command: Command,
}

impl Request {
    /// In the name of whoever sends such a command, see [`Actor::default_sender`].
    #[must_use]
    pub fn from_default_sender(command: Command, state: &State) -> Request {
        Request { by: Actor::default_sender(&command, state), id: None, command }
    }
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
    /// Of a part of the state that stands by itself.
    Component(components::Command),
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
    // Reclamation: the estimator's logged reservations.
    SetReservations(Vec<ReservationChange>),
    /// Raised once every replica can apply the new behaviour.
    RaiseLevel {
        level: u32,
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
        newcomer: Option<ReplicaJoinRequest>,
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
        shortages: Vec<ResourcePressureReport>,
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
        key: KeyFingerprint,
    },
    /// Keep room for a running task on one more machine, the target of a move. Nothing starts
    /// there.
    ReserveHold(Assignment),
    /// Give that room up again.
    ReleaseHold {
        task: TaskId,
        attempt: u32,
        machine: MachineId,
    },
    /// The job of this name shall be as `spec` says: submitted if none lives, updated if it
    /// differs, with an update that is complete closed first. Decided here and not by whoever
    /// asks: between a look and a write somebody else may have changed it. `expect`: 0 for no job
    /// that lives.
    ApplyJob {
        owner: Name,
        spec: JobSpec,
        expect: Option<u32>,
    },
}

impl Command {
    /// What people and programs call it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        use Command as C;
        match self {
            C::AddMachine(_) => "add_machine",
            C::UpdateMachine { .. } => "update_machine",
            C::RemoveMachine { .. } | C::RemoveEmptyMachine { .. } => "remove_machine",
            C::MachineUp { .. } => "machine_up",
            C::MachineDown { .. } => "machine_down",
            C::StartDrain { .. } => "start_drain",
            C::StopDrain { .. } => "stop_drain",
            C::SetMachinePackages { .. } => "set_machine_packages",
            C::AddUser { .. } => "add_user",
            C::RemoveUser { .. } => "remove_user",
            C::SetCapabilities { .. } => "set_capabilities",
            C::SetQuota { .. } => "set_quota",
            C::SubmitJob { .. } => "submit_job",
            C::UpdateJob { .. } => "update_job",
            C::ResizeJob { .. } => "resize_job",
            C::StopJob { .. } => "stop_job",
            C::StopTask { .. } => "stop_task",
            C::UndoUpdate { .. } => "undo_update",
            C::CloseUpdate { .. } => "close_update",
            C::StepUpdate { .. } => "step_update",
            C::PurgeJobs { .. } => "purge_jobs",
            C::CommitPlan(_) => "commit_plan",
            C::Evict { .. } => "evict",
            C::TaskReports { .. } => "task_reports",
            C::ReleaseRetained { .. } => "release_retained",
            C::SaverFailed { .. } => "saver_failed",
            C::Expire => "expire",
            C::SetReservations(_) => "set_reservations",
            C::RaiseLevel { .. } => "raise_level",
            C::AddToken { .. } => "add_token",
            C::RevokeToken { .. } => "revoke_token",
            C::UseJoinToken { .. } => "use_join_token",
            C::ConfirmReplica { .. } => "confirm_master",
            C::AddBlob { .. } => "add_package",
            C::RemoveBlob { .. } => "remove_package",
            C::Enlist(_) => "enlist",
            C::Dismiss { .. } => "dismiss",
            C::SetShortages { .. } => "set_shortages",
            C::SetBounds(_) => "set_bounds",
            C::ApplyJob { .. } => "apply_job",
            C::ReserveHold(_) => "reserve_hold",
            C::ReleaseHold { .. } => "release_hold",
            C::Component(command) => command.as_component().name(),
        }
    }

    /// Whether it takes something away, so that there is more room in the end. Masters whose disk
    /// is nearly full take nothing else.
    #[must_use]
    pub fn frees_space(&self) -> bool {
        if let Command::Component(command) = self {
            return command.as_component().frees_space();
        }
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
                | Command::RevokeToken { .. }
                | Command::RemoveBlob { .. }
                | Command::Dismiss { .. }
                | Command::ReleaseHold { .. }
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
    Left(NoticeOutcome),
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
pub type Verdict = Result<Done, Rejection>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Done {
    /// Took effect.
    Applied,
    /// Was so already; nothing changed.
    Unchanged,
    /// Took effect item by item; those refused, by position.
    Partly(Vec<(u32, Rejection)>),
    /// The job is now at this version.
    Version(u32),
    /// Took effect, and so many tokens ended by it.
    Revoked(u32),
    /// The job is as it was asked for.
    Job {
        became: ApplyOutcome,
        /// The version it is at now.
        version: u32,
        /// The version of the update that was complete and was closed first.
        closed: Option<u32>,
    },
}

/// How a job came to be as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ApplyOutcome {
    /// No job of its name lived.
    Created,
    /// A rolling update to the spec is open.
    Updated,
    /// It was so already.
    Unchanged,
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
        assert!(set(None).frees_space() && !set(Some(quota)).frees_space());
        assert!(Command::RemoveMachine { name: name(), expect }.frees_space());
        assert!(Command::RemoveEmptyMachine { name: name(), expect }.frees_space());
        assert!(Command::RevokeToken { id: name() }.frees_space());
        assert!(Command::Expire.frees_space());
        assert!(!Command::AddUser { name: name() }.frees_space());
    }
}
