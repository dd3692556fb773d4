//! Reasons are data (B17): every refusal and every state change carries one of these, and the CLI,
//! the console, metrics and explanations all speak from them. Their words are made by
//! [`crate::words`] where they are shown.

mod allowed;
mod conflict;

pub use allowed::{Allowed, FieldName, Given, Listed, Quality};
pub use conflict::{Conflict, Object, Sender, Storage, TaskAction};

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
use crate::tables::RowRef;
use crate::task::{ExitClass, TaskState};
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// Why a task does not fit on a machine. Declaration order is precedence: the first of several
/// reasons is reported, so that counts for each reason add up to the cell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum InfeasibleReason {
    /// The task of a daemon is for another machine, whatever there is to say of this one.
    OtherMachine,
    MachineDown,
    MachineDraining,
    /// Position of the first hard constraint that does not hold, in the job's list.
    Constraint {
        position: u32,
    },
    /// The machine does not lend the folder.
    Volume(HostVolume),
    /// The task crashed on this machine too often.
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
        requested: u32,
        available: u32,
    },
    Device {
        kind: Token,
        requested: u32,
        milli: u16,
        available: u32,
    },
    Named {
        name: ResourceName,
        requested: u64,
        available: u64,
    },
    /// The machine has the most tasks it may have, whatever they ask for.
    MachineFull {
        most: u64,
    },
    Resource(Shortfall),
    /// There is room, but the machine is short of CPU or disk rate: it accepts no more
    /// non-production tasks.
    ResourcePressure,
}

impl InfeasibleReason {
    /// Stable code for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            InfeasibleReason::OtherMachine => "other-machine",
            InfeasibleReason::MachineDown => "machine-down",
            InfeasibleReason::MachineDraining => "machine-draining",
            InfeasibleReason::Constraint { .. } => "constraint",
            InfeasibleReason::Volume(_) => "volume",
            InfeasibleReason::CrashedHere => "crashed-here",
            InfeasibleReason::NoAllocHere => "no-alloc-here",
            InfeasibleReason::Spread { .. } => "spread",
            InfeasibleReason::StaticPort { .. } => "static-port",
            InfeasibleReason::DynamicPorts { .. } => "dynamic-ports",
            InfeasibleReason::Device { .. } => "device",
            InfeasibleReason::Named { .. } => "named-resource",
            InfeasibleReason::MachineFull { .. } => "machine-full",
            InfeasibleReason::Resource(_) => "resource",
            InfeasibleReason::ResourcePressure => "resource-pressure",
        }
    }
}

/// Why a command did not take effect. Nothing of a refused command is in the state. Its words are
/// in `words/rejection.rs`; it is kept with the answer and hashed, so it has none of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    NotAllowed {
        user: Name,
        capability: Capability,
    },
    NotOwner {
        user: Name,
        job: JobKey,
    },
    BadField {
        field: FieldName,
        value: Given,
        // Behind a pointer: every rule returns a verdict, and most of them reject nothing.
        allowed: Box<Allowed>,
    },
    NoSuchUser(Name),
    NoSuchJob(JobKey),
    NoSuchMachine(Name),
    NoSuchResource(ResourceName),
    NoSuchRow(RowRef),
    Exists(Object),
    QuotaExceeded {
        user: Name,
        band: Band,
        shortfall: Shortfall,
    },
    QuotaOversold(Shortfall),
    StaleVersion {
        object: Object,
        expected: u32,
        found: u32,
    },
    StaleAttempt {
        task: TaskId,
        expected: u32,
        found: u32,
    },
    StaleIncarnation {
        machine: Name,
        reported: u64,
        found: u64,
    },
    WrongState(Conflict),
    WrongTaskState {
        task: TaskId,
        state: TaskState,
        action: TaskAction,
    },
    DoesNotFit {
        task: TaskId,
        machine: MachineId,
        infeasible: InfeasibleReason,
    },
    TooEarly {
        task: TaskId,
        not_before: u64,
    },
    MayNotPreempt {
        by: Priority,
        victim: Priority,
    },
    NeedlessVictim(TaskId),
    BudgetExhausted {
        job: JobId,
        down: u32,
        max: u32,
    },
    PartialGang {
        placed: u32,
        needed: u32,
    },
    RequestIdReused,
    RequestTooOld,
    Full(Storage),
    /// `is_last`: this build knows no higher one.
    BadLevel {
        requested: u32,
        found: u32,
        is_last: bool,
    },
    WrongActor {
        actor: Actor,
        command: String,
        allowed: Vec<Sender>,
    },
    ForeignNamespace {
        user: Name,
        namespace: Token,
    },
    NoSuchCron(JobKey),
    NoSuchToken(Name),
    BadToken {
        id: Name,
        flaw: InvalidTokenReason,
    },
    NoSuchBlob(Token),
    DisruptedTooOften {
        job: JobId,
        most: u32,
        within: Span,
        next: Time,
    },
    HoldsTasks {
        machine: Name,
        tasks: u32,
    },
    PackageQuota {
        /// The user whose quota it is; absent for the quota of all users together.
        user: Option<Name>,
        used: u64,
        more: u64,
        limit: u64,
    },
    OverBound {
        user: Name,
        what: BoundKind,
        held: u64,
        requested: u64,
        most: u64,
    },
    TooFewNodes {
        matching: u64,
        requested: u64,
    },
    JobStopping(JobKey),
    NoSuchTask {
        job: JobKey,
        index: u32,
    },
}

/// Most bytes of each text in a rejection. It may quote what was sent, and is stored with the
/// answer.
pub const MAX_REJECTION_TEXT: usize = 512;

impl Rejection {
    /// A field that is not as it must be.
    pub(crate) fn bad_field(
        field: impl Into<FieldName>,
        value: Given,
        allowed: Allowed,
    ) -> Rejection {
        Rejection::BadField { field: field.into(), value, allowed: Box::new(allowed) }
    }

    /// The same in bounded bytes: what a client sent is quoted from its beginning.
    #[must_use]
    pub fn truncated(mut self) -> Rejection {
        // The others hold names, tokens and numbers, whose types bound them.
        if let Rejection::BadField { field, value, allowed } = &mut self {
            truncate_text(&mut field.path);
            value.texts_mut().into_iter().for_each(truncate_text);
            allowed.shorten(MAX_REJECTION_TEXT, truncate_text);
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

/// Fields that describe what a job runs, which only readers of its spec may see.
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
    /// The rejection as everybody may read it: it names the wrong field, without values that
    /// describe what a job runs. The sender of the job gets all of it in the verdict.
    #[must_use]
    pub fn redacted(&self) -> Rejection {
        let mut rejection = self.clone();
        if let Rejection::BadField { field, value, .. } = &mut rejection
            && let Some(inside) =
                PRIVATE_FIELDS.iter().find(|inside| field.path.starts_with(**inside))
        {
            *field = FieldName::from(*inside);
            *value = Given::Text(REDACTED.to_owned());
        }
        rejection
    }
}

macro_rules! reasons {
    ($(
        $(#[$about:meta])*
        $name:ident $({ $($field:ident: $part:ty),* })? $(($inner:ty))? =
            $code:literal, $words:literal;
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

            /// For people, without what its fields say.
            pub(crate) fn words(&self) -> &'static str {
                match self { $(Reason::$name { .. } => $words,)* }
            }

            /// The code of every reason: tests hold that each is reached.
            pub const CODES: [&'static str; [$($code),*].len()] = [$($code),*];

            /// Codes and their words, for whoever has no more of a reason than its code.
            pub(crate) const WORDS: [(&'static str, &'static str); Self::CODES.len()] =
                [$(($code, $words)),*];
        }
    };
}

// Each with its code and its words; `words::reason` adds what its fields say. Logs go by number:
// new ones come last.
reasons! {
    /// Somebody asked for it.
    Requested = "requested", "requested";
    /// Within quota and well formed.
    Admitted = "admitted", "well formed and within quota";
    /// The scheduler found a place.
    FoundPlace = "found-place", "found a place";
    /// Confirmed by the machine's agent.
    AgentReport = "agent-report", "seen by the machine's agent";
    Preempted { by: TaskId } = "preempted", "preempted";
    Drained = "drained", "the machine is drained";
    OverCommitted = "over-committed", "the machine holds more than it has";
    AllocMoved = "alloc-moved", "its alloc stops or moves away";
    /// A new spec takes effect without stopping the task.
    UpdateInPlace = "update-in-place", "new spec, no restart needed";
    /// A new spec needs a restart on the same machine.
    UpdateRestart = "update-restart", "new spec needs a restart";
    /// A new spec does not fit on the machine any more.
    UpdateMove = "update-move", "new spec needs another place";
    /// Skipped: it would have caused more disruptions than the update may.
    UpdateSkipped = "update-skipped", "the update has caused as many disruptions as it may";
    Unhealthy = "unhealthy", "failed its health check";
    Exited(ExitClass) = "exited", "ended by itself";
    Succeeded = "succeeded", "succeeded";
    MachineDown = "machine-down", "the machine is down";
    MachineRemoved = "machine-removed", "the machine was removed";
    /// What it waited for has ended as required.
    DependencyMet = "dependency-met", "a job it waited for has ended";
    /// This one, for which it waited, did not end as required.
    DependencyFailed { job: JobId } = "dependency-failed", "a job it needed did not succeed";
    /// Failed more often in a row than its policy allows.
    TooManyFailures = "too-many-failures", "its job allows no more failures";
    /// Every task has ended.
    AllTasksEnded = "all-tasks-ended", "all tasks have ended";
    LeaseExpired = "lease-expired", "the lease has run out";
    /// The world changed (usage, machine, quota): more is held than there is.
    Excess = "excess", "more is held than there is";
    /// The excess is gone.
    ExcessGone = "excess-gone", "no more is held than there is";
    /// The estimator's batch.
    Reservation = "reservation", "the estimate of its usage changed";
    Retention = "retention", "kept for a log saver";
    /// Moved because the cell is better off with it elsewhere.
    Rebalanced = "rebalanced", "better off elsewhere";
    /// A moment of a periodic job has come.
    SlotDue = "slot-due", "its time has come";
    /// The last run of the periodic job still goes on.
    LastRunActive = "last-run-active", "the last run still goes on";
    /// Its policy forgives this kind of end so often in a row, and no more.
    NotRetried { exit: ExitClass, forgiven: u32 } = "not-retried", "not retried";
    /// The machine is short of this, and holding others back did not help.
    ResourcePressure(Dimension) = "resource-pressure",
        "the machine is short, and throttling did not help";
    /// The task for which room was held no longer runs as it did.
    NoLongerRuns = "no-longer-runs", "the task it is for does not run as it did";
    /// So many attempts at the new version failed within the span that its job allows.
    UpdateFailed { failures: u32, within: Span } = "update-failed",
        "too many tasks of the new version failed";
    /// Its canaries were well for as long as the job asks for.
    CanariesWell = "canaries-well", "its canaries stayed well";
    /// Older than the versions that are kept.
    TooManyVersions = "too-many-versions", "newer versions take its place";
    /// Its gang gives back what it holds.
    GangBroken = "gang-broken", "its gang lost a task and could not be made whole in time";
    /// Its owner asked for it.
    RestartRequested = "restart-requested", "a restart was requested";
    /// Other machines than before are those of a daemon.
    MachinesChanged = "machines-changed", "other machines are up and meet its constraints";
    /// Its use was measured.
    Measured = "measured", "what it uses was measured";
    /// The cell chose its size.
    Scaled = "scaled", "as the rules of scaling say";
    /// What is remembered of its scaling is of no use any more.
    NotScaled = "not-scaled", "it has ended, or has no policy";
}
