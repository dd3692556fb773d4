//! Reasons are data (B17): every refusal and every state change carries one of these, and the CLI,
//! the console, metrics and explanations all speak from them.

use crate::actor::Actor;
use crate::bounds::BoundKind;
use crate::credential::InvalidTokenReason;
use crate::id::{JobId, MachineId, TaskId};
use crate::isolation::{HostVolume, REDACTED};
use crate::name::{JobKey, Name, Token};
use crate::named::ResourceName;
use crate::priority::{Band, Priority};
use crate::quota::Capability;
use crate::resource::{Dimension, Shortfall};
use crate::spec::Domain;
use crate::task::{ExitClass, TaskState};
use crate::time::{Span, Time};
use crate::units::pluralize;
use serde::{Deserialize, Serialize};

/// Why a task does not fit on a machine. Declaration order is precedence: of several reasons the
/// first is the one reported, so that counts per reason add up to the cell.
// `Volume` comes right after `Constraint`, and `MachineFull` right before `Resource`; they stand
// where they do because they came late, and logs go by number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum InfeasibleReason {
    MachineDown,
    MachineDraining,
    /// Position of the first hard constraint that does not hold, in the job's list.
    Constraint {
        position: u32,
    },
    /// The task crashed there too often.
    CrashedHere,
    /// No placed alloc of the job's alloc set is on this machine.
    NoAllocHere,
    /// The domain already holds as many tasks of the job as its spread limit allows.
    Spread {
        domain: Domain,
        limit: u32,
    },
    StaticPort {
        port: u16,
        holder: Option<TaskId>,
    },
    DynamicPorts {
        asked: u32,
        available: u32,
    },
    Device {
        kind: Token,
        asked: u32,
        milli: u16,
        available: u32,
    },
    Named {
        name: ResourceName,
        asked: u64,
        available: u64,
    },
    Resource(Shortfall),
    /// The machine does not lend the folder.
    Volume(HostVolume),
    /// There is room, and the machine is short of CPU or disk rate all the same: it takes nothing
    /// more of non-production.
    MachineShort,
    /// The machine holds as many tasks as it may, whatever they ask for.
    MachineFull {
        most: u64,
    },
}

impl InfeasibleReason {
    /// Stable code for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            InfeasibleReason::MachineDown => "machine-down",
            InfeasibleReason::MachineDraining => "machine-draining",
            InfeasibleReason::Constraint { .. } => "constraint",
            InfeasibleReason::CrashedHere => "crashed-here",
            InfeasibleReason::NoAllocHere => "no-alloc-here",
            InfeasibleReason::Spread { .. } => "spread",
            InfeasibleReason::StaticPort { .. } => "static-port",
            InfeasibleReason::DynamicPorts { .. } => "dynamic-ports",
            InfeasibleReason::Device { .. } => "device",
            InfeasibleReason::Named { .. } => "named-resource",
            InfeasibleReason::Resource(_) => "resource",
            InfeasibleReason::Volume(_) => "volume",
            InfeasibleReason::MachineShort => "machine-short",
            InfeasibleReason::MachineFull { .. } => "machine-full",
        }
    }
}

/// Why a command did not take effect. Nothing of a refused command is in the state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    #[error("user {user} lacks the capability {capability}")]
    NotAllowed { user: Name, capability: Capability },
    #[error("user {user} does not own {job} and lacks the capability administrate_jobs")]
    NotOwner { user: Name, job: JobKey },
    #[error("field {field}: value {value} is not valid; allowed: {allowed}")]
    BadField { field: String, value: String, allowed: String },
    #[error("there is no user {0}")]
    NoSuchUser(Name),
    #[error("there is no job {0}")]
    NoSuchJob(JobKey),
    #[error("there is no machine {0}")]
    NoSuchMachine(Name),
    #[error("there is no resource {0}")]
    NoSuchResource(ResourceName),
    #[error("there is no such row: {0}")]
    NoSuchRow(String),
    #[error("{0} exists already")]
    Exists(String),
    #[error("quota of {user} in band {band} does not suffice: {shortfall}")]
    QuotaExceeded { user: Name, band: Band, shortfall: Shortfall },
    #[error("prod quota sold would exceed the cell's capacity: {0}")]
    QuotaOversold(Shortfall),
    #[error("{object} is at version {found}, not {expected}; read it again and retry")]
    StaleVersion { object: String, expected: u32, found: u32 },
    #[error("task row {task:?} is at attempt {found}, not {expected}")]
    StaleAttempt { task: TaskId, expected: u32, found: u32 },
    #[error("machine {machine} is at incarnation {found}, the report is of {reported}")]
    StaleIncarnation { machine: Name, reported: u64, found: u64 },
    #[error("not possible while {what}")]
    WrongState { what: String },
    #[error("task row {task:?} is {state:?}, which does not allow {action}")]
    WrongTaskState { task: TaskId, state: TaskState, action: String },
    #[error("task row {task:?} does not fit on machine row {machine:?}: {misfit:?}")]
    DoesNotFit { task: TaskId, machine: MachineId, misfit: InfeasibleReason },
    #[error("task row {task:?} may not start before {not_before} ms (back-off or lease)")]
    TooEarly { task: TaskId, not_before: u64 },
    #[error("priority {} may not preempt priority {}", by.0, victim.0)]
    MayNotPreempt { by: Priority, victim: Priority },
    #[error("victim {0:?} is not needed: the group fits without it")]
    NeedlessVictim(TaskId),
    #[error(
        "job row {job:?}: {} down already, at most {max} allowed",
        pluralize(u64::from(*down), "task")
    )]
    BudgetExhausted { job: JobId, down: u32, max: u32 },
    #[error("a gang is placed whole: {placed} of {needed} tasks in the group")]
    PartialGang { placed: u32, needed: u32 },
    #[error("request id was used before for a different request")]
    RequestIdReused,
    #[error("request id is older than the window kept for this client; use the object's version")]
    RequestTooOld,
    #[error("the state cannot hold more {0}")]
    Full(String),
    #[error("level {asked} cannot follow level {found}; allowed: {allowed}")]
    BadLevel { asked: u32, found: u32, allowed: String },
    /// `allowed`: who may, or for what this one may.
    #[error("{command} is not for {actor}; allowed: {allowed}")]
    WrongActor { actor: Actor, command: String, allowed: String },
    #[error("user {user} does not own the resource namespace {namespace}")]
    ForeignNamespace { user: Name, namespace: Token },
    #[error("there is no periodic job {0}")]
    NoSuchCron(JobKey),
    #[error("there is no token {0}")]
    NoSuchToken(Name),
    #[error("token {id} lets nobody in: {flaw}")]
    BadToken { id: Name, flaw: InvalidTokenReason },
    #[error("there is no package {0}")]
    NoSuchBlob(Token),
    #[error(
        "job row {job:?}: at most {} disrupted within {} ms, the next at {} ms",
        pluralize(u64::from(*most), "task"), within.0, next.0
    )]
    DisruptedTooOften { job: JobId, most: u32, within: Span, next: Time },
    #[error(
        "machine {machine} is up with {} on it, which would end at once",
        pluralize(u64::from(*tasks), "task")
    )]
    HoldsTasks { machine: Name, tasks: u32 },
    #[error(
        "packages of {} take {used} bytes; {more} more would exceed the quota of {limit}",
        user.as_ref().map_or("the cell", Name::as_str)
    )]
    PackageQuota {
        /// Whose; absent where it is the quota of all together.
        user: Option<Name>,
        used: u64,
        more: u64,
        limit: u64,
    },
    #[error(
        "user {user} has {held} {what} and asks for {asked} more; at most {most} for each user"
    )]
    OverBound { user: Name, what: BoundKind, held: u64, asked: u64, most: u64 },
    #[error("{matching} nodes have that much available, {asked} are asked")]
    TooFewNodes { matching: u64, asked: u64 },
    #[error("not possible while job {0} is stopping")]
    JobStopping(JobKey),
}

/// Bytes of each text in a refusal. It may quote what was sent, and is kept with the answer.
pub const MAX_REJECTION_TEXT: usize = 512;

impl Rejection {
    /// The same in bounded words: what a client sent is quoted from its beginning.
    #[must_use]
    pub fn truncated(mut self) -> Rejection {
        match &mut self {
            Rejection::BadField { field, value, allowed } => {
                [field, value, allowed].into_iter().for_each(truncate_text);
            }
            Rejection::NoSuchRow(text)
            | Rejection::Exists(text)
            | Rejection::Full(text)
            | Rejection::StaleVersion { object: text, .. }
            | Rejection::WrongState { what: text }
            | Rejection::WrongTaskState { action: text, .. }
            | Rejection::BadLevel { allowed: text, .. } => truncate_text(text),
            // The others hold names, tokens and numbers, whose types bound them.
            _ => {}
        }
        self
    }
}

fn truncate_text(text: &mut String) {
    const MORE: &str = "...";
    if text.len() <= MAX_REJECTION_TEXT {
        return;
    }
    let end = (0..=MAX_REJECTION_TEXT - MORE.len()).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
    text.push_str(MORE);
    // What was sent may have been megabytes.
    text.shrink_to_fit();
}

/// Fields that say what a job runs, which is for those who may read its spec.
const PRIVATE_FIELDS: [&str; 7] = [
    "task.command",
    "task.env",
    "task.files",
    "task.packages",
    "task.secrets",
    "task.health.probe",
    "overrides",
];

impl Rejection {
    /// The refusal as everybody may read it: which field was wrong, and of what a job runs not how.
    /// Whoever sent the job has the whole of it in the verdict.
    #[must_use]
    pub fn redacted(&self) -> Rejection {
        let mut rejection = self.clone();
        if let Rejection::BadField { field, value, .. } = &mut rejection
            && let Some(inside) = PRIVATE_FIELDS.iter().find(|inside| field.starts_with(**inside))
        {
            *field = (*inside).to_owned();
            *value = REDACTED.to_owned();
        }
        rejection
    }
}

macro_rules! reasons {
    ($(
        $(#[$about:meta])*
        $name:ident $({ $($field:ident: $part:ty),* })? $(($inner:ty))? = $code:literal;
    )*) => {
        /// Why something happened to a task, job, machine or resource.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "snake_case")]
        pub enum Reason {
            $($(#[$about])* $name $({ $($field: $part),* })? $(($inner))?,)*
        }

        impl Reason {
            /// Stable code for programs.
            #[must_use]
            pub fn code(&self) -> &'static str {
                match self { $(Reason::$name { .. } => $code,)* }
            }

            /// The code of every reason: tests hold that each is reached.
            pub const CODES: [&'static str; [$($code),*].len()] = [$($code),*];
        }
    };
}

// Logs go by number: new ones come last.
reasons! {
    /// Somebody asked for it.
    Requested = "requested";
    /// Within quota and well formed.
    Admitted = "admitted";
    /// The scheduler found a place.
    FoundPlace = "found-place";
    /// Confirmed by the machine's agent.
    AgentReport = "agent-report";
    Preempted { by: TaskId } = "preempted";
    Drained = "drained";
    OverCommitted = "over-committed";
    AllocMoved = "alloc-moved";
    /// A new spec takes effect without stopping the task.
    UpdateInPlace = "update-in-place";
    /// A new spec needs a restart on the same machine.
    UpdateRestart = "update-restart";
    /// A new spec does not fit on the machine any more.
    UpdateMove = "update-move";
    /// Skipped: it would have caused more disruptions than the update may.
    UpdateSkipped = "update-skipped";
    Unhealthy = "unhealthy";
    Exited(ExitClass) = "exited";
    Succeeded = "succeeded";
    MachineDown = "machine-down";
    MachineRemoved = "machine-removed";
    /// What it waited for has ended as required.
    DependencyMet = "dependency-met";
    /// What it waited for did not end as required, and is forgotten meanwhile.
    DependencyFailed = "dependency-failed";
    /// Failed more often in a row than its policy allows.
    TooManyFailures = "too-many-failures";
    /// Every task has ended.
    AllTasksEnded = "all-tasks-ended";
    LeaseExpired = "lease-expired";
    /// The world changed (usage, machine, quota): more is held than there is.
    Excess = "excess";
    /// The excess is gone.
    ExcessGone = "excess-gone";
    /// The estimator's batch.
    Reservation = "reservation";
    Retention = "retention";
    /// Moved because the cell is better off with it elsewhere.
    Rebalanced = "rebalanced";
    /// A moment of a periodic job has come.
    SlotDue = "slot-due";
    /// The last run of the periodic job still goes on.
    LastRunActive = "last-run-active";
    /// Its policy forgives this kind of end so often in a row, and no more.
    NotRetried { exit: ExitClass, forgiven: u32 } = "not-retried";
    /// The machine is short of this, and holding others back did not help.
    MachineShort(Dimension) = "machine-short";
    /// This one, for which it waited, did not end as required.
    NeededFailed { job: JobId } = "dependency-failed";
    /// The task for which room was held no longer runs as it did.
    NoLongerRuns = "no-longer-runs";
}
