//! Commands: everything that can change the state. One log entry carries many commands, and each
//! gets its own verdict. Time, chosen ids (ports, machines, devices) and random draws are already
//! inside.

pub use crate::actor::{Actor, ControllerName};
use crate::blob::BlobLimits;
use crate::bounds::Bounds;
use crate::components;
use crate::credential::{KeyFingerprint, PartKind, ReplicaJoinRequest, SecretHash, TokenKind};
use crate::id::{MachineId, TaskId};
use crate::job_size::JobSize;
use crate::machine::{MachineSpec, ResourcePressureReport};
use crate::name::{JobKey, Name, Token};
use crate::plan::{Assignment, Plan};
use crate::priority::Band;
use crate::quota::{Capability, Quota};
use crate::reason::Rejection;
use crate::resource::{Dimension, Resources};
use crate::spec::{JobSpec, LimitsOverride, PackageRef};
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

impl Entry {
    /// The level that it raises the cell to, if that is beyond `known`: a reader that does not know
    /// it would reject what others obey, and must stop.
    #[must_use]
    pub fn level_beyond(&self, known: u32) -> Option<u32> {
        self.requests.iter().find_map(|request| match request {
            Request { by: Actor::Replica(_), command: Command::RaiseLevel { level }, .. } => {
                (*level > known).then_some(*level)
            }
            _ => None,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The acting identity, as authenticated by a master.
    pub by: Actor,
    /// Set by clients that may send the same request twice (idempotency).
    pub id: Option<RequestId>,
    pub command: Command,
}

impl Request {
    /// A request in the name of the usual sender of such a command, see [`Actor::default_sender`].
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
    /// A command of a component.
    Component(components::Command),
    // Machines.
    AddMachine(MachineSpec),
    /// `expect`, here and below: the version the client saw (for a machine, its generation); `None`
    /// applies the change to any version.
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
    /// `None` removes the quota.
    SetQuota {
        user: Name,
        band: Band,
        quota: Option<Quota>,
        expect: Option<u32>,
    },
    // Jobs. `owner` is the user the job belongs to; the actor must be the owner or an
    // administrator. Specs are behind a pointer: most commands are reports, of a tenth of the size.
    SubmitJob {
        owner: Name,
        spec: Box<JobSpec>,
    },
    UpdateJob {
        owner: Name,
        spec: Box<JobSpec>,
        expect: Option<u32>,
    },
    /// Takes effect at once, except on tasks that do not fit where they are with their new limits:
    /// these roll. Like `ApplyJob`, it closes an update that is complete first.
    ResizeJob {
        job: JobKey,
        size: JobSize,
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
    /// Controllers: purge jobs that ended before `ended_before`.
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
    /// Controllers: expire everything whose time has passed (retained disk, leases, quota).
    Expire,
    // Reclamation: the estimator's logged reservations.
    SetReservations(Vec<ReservationChange>),
    /// Raised once every replica can apply the new behaviour.
    RaiseLevel {
        level: u32,
    },
    // Tokens. The maker of a token chooses its id and keeps the secret.
    AddToken {
        id: Name,
        kind: TokenKind,
        secret_hash: SecretHash,
        /// Counted from the time of the entry.
        valid_for: Span,
        /// The token with which the maker authenticated; the new token does not outlive it.
        parent: Option<Name>,
    },
    RevokeToken {
        id: Name,
    },
    /// Masters: a part joins with this token. Works once.
    UseJoinToken {
        id: Name,
        secret_hash: SecretHash,
        /// Set for a replica, which then waits for [`Command::ConfirmReplica`].
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
    /// An agent registers a machine that has no row. An agent that was revoked gets none.
    RegisterMachine(MachineSpec),
    /// Revokes the certificates of a part until it joins again.
    RevokePart {
        part: PartKind,
        name: Name,
    },
    /// Stops one task for good; its job goes on without it.
    StopTask {
        job: JobKey,
        index: u32,
        expect: Option<u32>,
    },
    /// A run of the log saver of retained disk failed; the next one is due.
    LogSaverFailed {
        machine: MachineId,
        task: TaskId,
        attempt: u32,
        run: u32,
        /// `None`: the exit was not seen.
        exit: Option<ExitClass>,
    },
    /// The agent's full list of resources that its machine is short of and cannot relieve itself.
    SetResourcePressure {
        machine: MachineId,
        incarnation: u64,
        resource_pressure: Vec<ResourcePressureReport>,
    },
    /// As [`Command::RemoveMachine`], unless the machine is up with tasks on it. Decided here and
    /// not by the sender: a plan may be committed in between.
    RemoveEmptyMachine {
        name: Name,
        expect: Option<u32>,
    },
    /// Masters: the per-user limits of their configuration.
    SetBounds(Bounds),
    /// An operator has compared the fingerprint of the key of a joining replica: from now on the
    /// replica can get its certificate, and with that the authority's key.
    ConfirmReplica {
        name: Name,
        key: KeyFingerprint,
    },
    /// Reserves room for a running task on one more machine, the target of a move. Nothing starts
    /// there.
    ReserveHold(Assignment),
    /// Releases that room.
    ReleaseHold {
        task: TaskId,
        attempt: u32,
        machine: MachineId,
    },
    /// The job of this name shall be as `spec` says: submitted if none is live, updated if it
    /// differs, after a complete update is closed. Decided here and not by the sender: somebody
    /// else may have changed the job between a read and a write. `expect`: 0 for no live job.
    ///
    /// A batch job that has ended by itself with this very spec stays ended, unless it is to run
    /// `again`.
    ApplyJob {
        owner: Name,
        spec: Box<JobSpec>,
        expect: Option<u32>,
        again: bool,
    },
    /// As [`Command::StopJob`], or as [`Command::StopTask`] with an index, with at most this
    /// notice; it shortens that of tasks that are stopping.
    StopWithin {
        job: JobKey,
        index: Option<u32>,
        notice: Span,
        expect: Option<u32>,
    },
    /// As [`Command::StartDrain`]; so long after this, budgets and notices keep nothing there.
    DrainWithin {
        name: Name,
        within: Span,
        expect: Option<u32>,
    },
    /// Controllers: a gang that lost a task and was not made whole in time gives back the rest.
    GiveBack {
        job: JobKey,
    },
    /// Tasks of the job that run stop and start again where they are, one after the other as far as
    /// budgets allow; with an index, that one.
    RestartTasks {
        job: JobKey,
        index: Option<u32>,
    },
    /// Controllers: restart one task that is to be restarted.
    StepRestart {
        job: JobKey,
        index: u32,
    },
    /// Tasks that have ended run again, in the same job.
    StartTasks {
        job: JobKey,
        which: TasksToStart,
    },
    /// Other limits for every task of the job that has none of its own; what is left out stays, and
    /// so does all else of the job. Also for the controller that sets limits by what is used.
    ResizeLimits {
        job: JobKey,
        limits: LimitsOverride,
        expect: Option<u32>,
    },
    /// Controllers: a daemon shall have a task for each of its machines, as far as quota goes, and
    /// for no other.
    MatchMachines {
        job: JobKey,
    },
}

impl Command {
    /// The command's name for people and programs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        use Command as C;
        match self {
            C::AddMachine(_) => "add_machine",
            C::UpdateMachine { .. } => "update_machine",
            C::RemoveMachine { .. } | C::RemoveEmptyMachine { .. } => "remove_machine",
            C::MachineUp { .. } => "machine_up",
            C::MachineDown { .. } => "machine_down",
            C::StartDrain { .. } | C::DrainWithin { .. } => "start_drain",
            C::StopDrain { .. } => "stop_drain",
            C::SetMachinePackages { .. } => "set_machine_packages",
            C::AddUser { .. } => "add_user",
            C::RemoveUser { .. } => "remove_user",
            C::SetCapabilities { .. } => "set_capabilities",
            C::SetQuota { .. } => "set_quota",
            C::SubmitJob { .. } => "submit_job",
            C::UpdateJob { .. } => "update_job",
            C::ResizeJob { .. } => "resize_job",
            C::ResizeLimits { .. } => "resize_limits",
            C::StopJob { .. } | C::StopWithin { index: None, .. } => "stop_job",
            C::StopTask { .. } | C::StopWithin { .. } => "stop_task",
            C::UndoUpdate { .. } => "undo_update",
            C::CloseUpdate { .. } => "close_update",
            C::StepUpdate { .. } => "step_update",
            C::MatchMachines { .. } => "match_machines",
            C::PurgeJobs { .. } => "purge_jobs",
            C::CommitPlan(_) => "commit_plan",
            C::Evict { .. } => "evict",
            C::TaskReports { .. } => "task_reports",
            C::ReleaseRetained { .. } => "release_retained",
            C::LogSaverFailed { .. } => "log_saver_failed",
            C::Expire => "expire",
            C::SetReservations(_) => "set_reservations",
            C::RaiseLevel { .. } => "raise_level",
            C::AddToken { .. } => "add_token",
            C::RevokeToken { .. } => "revoke_token",
            C::UseJoinToken { .. } => "use_join_token",
            C::ConfirmReplica { .. } => "confirm_master",
            C::AddBlob { .. } => "add_package",
            C::RemoveBlob { .. } => "remove_package",
            C::RegisterMachine(_) => "register_machine",
            C::RevokePart { .. } => "revoke_part",
            C::SetResourcePressure { .. } => "set_resource_pressure",
            C::SetBounds(_) => "set_bounds",
            C::ApplyJob { .. } => "apply_job",
            C::GiveBack { .. } => "give_back",
            C::RestartTasks { index: None, .. } => "restart_job",
            C::RestartTasks { .. } => "restart_task",
            C::StepRestart { .. } => "step_restart",
            C::StartTasks { which: TasksToStart::Failed, .. } => "start_failed",
            C::StartTasks { .. } => "start_task",
            C::ReserveHold(_) => "reserve_hold",
            C::ReleaseHold { .. } => "release_hold",
            C::Component(command) => command.as_component().name(),
        }
    }

    /// Whether the command removes something, so that the state shrinks in the end. Masters whose
    /// disk is nearly full accept nothing else.
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
                | Command::StopWithin { .. }
                | Command::PurgeJobs { .. }
                | Command::ReleaseRetained { .. }
                | Command::Expire
                | Command::RevokeToken { .. }
                | Command::RemoveBlob { .. }
                | Command::RevokePart { .. }
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
    /// The machine is over-committed.
    OverCommit,
    /// An alloc or task is better off elsewhere.
    Rebalance,
    /// The machine is short of this resource, and throttling others did not help.
    ResourcePressure(Dimension),
}

/// Which of a job's tasks that have ended are to run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TasksToStart {
    /// The task of this index, however it ended.
    One(u32),
    /// All that failed for good.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TaskReport {
    pub task: TaskId,
    pub attempt: u32,
    pub what: Observed,
}

/// What an agent observed of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Observed {
    Started,
    /// Ended with success, of its own accord. A task that ended because it was ordered to is
    /// `Stopped`, whatever its exit status; the agent knows which came first.
    Finished,
    Failed(ExitClass),
    /// A stopping task is gone, its container seen empty.
    Stopped,
    Unhealthy,
    Healthy,
    /// Was on the machine and is no longer, and its end was not seen: not counted as a failure of
    /// the task.
    Lost,
    /// As `Stopped`, for a task whose end was watched: the outcome of the termination notice.
    Left(NoticeOutcome),
    /// After so many changes of its limits, these are in force on its machine.
    LimitsInForce {
        resizes: u32,
        limits: Resources,
    },
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
    /// The state was already so; nothing changed.
    Unchanged,
    /// Took effect item by item; the rejected items by position.
    Partly(Vec<(u32, Rejection)>),
    /// The job is now at this version.
    Version(u32),
    /// Took effect, and this many tokens were revoked by it.
    Revoked(u32),
    /// The job is as requested.
    Job {
        became: ApplyOutcome,
        /// The job's present version.
        version: u32,
        /// The version of the complete update that was closed first, if any.
        closed: Option<u32>,
    },
}

/// How the job came to be as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ApplyOutcome {
    /// There was no live job of its name.
    Created,
    /// A rolling update to the spec is open.
    Updated,
    /// It was already so.
    Unchanged,
    /// It has another number of tasks, at once and without an update.
    Resized,
    /// It was already so, and has ended.
    Ended,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The commands of the routes that delete something; a master below its disk reserve accepts
    /// these.
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
