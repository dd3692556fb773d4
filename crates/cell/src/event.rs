//! Events (B5): what `apply` reports of every change. History, names and the scheduler's snapshot
//! are folds over these.

use crate::actor::Actor;
use crate::components;
use crate::id::{BlobId, JobId, MachineId, TaskId, TokenId, UserId};
use crate::name::Name;
use crate::priority::Band;
use crate::reason::{Reason, Rejection};
use crate::resource::{Dimension, Resources};
use crate::tables::TableName;
use crate::task::{ExitClass, NoticeOutcome};
use crate::time::Time;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    pub at: Time,
    /// The sender of the command that caused the event.
    pub actor: Actor,
    pub kind: EventKind,
    pub reason: Reason,
}

/// Code of what a quota did not allow.
pub const OVER_QUOTA: &str = "quota";

impl Event {
    /// The code of the reason, by which events are filtered and counted. A job that is over its
    /// owner's quota is counted by that cause, not as requested.
    #[must_use]
    pub fn reason_code(&self) -> &'static str {
        self.kind.reason_code(&self.reason)
    }

    /// The machine that an event mentions beside its object.
    #[must_use]
    pub fn mentioned_machine(&self) -> Option<MachineId> {
        match &self.kind {
            EventKind::Task { change, .. } => change.machine(),
            EventKind::Component(event) => {
                let row = event.as_component().related_row()?;
                (row.table == TableName::Machines).then_some(MachineId(row.slot))
            }
            _ => None,
        }
    }
}

impl TaskChange {
    /// The machine on which it happened.
    #[must_use]
    pub fn machine(self) -> Option<MachineId> {
        use TaskChange as T;
        match self {
            T::Scheduled { machine }
            | T::Started { machine }
            | T::Stopping { machine }
            | T::Evicted { machine }
            | T::Completed { machine }
            | T::Failed { machine }
            | T::Lost { machine }
            | T::Restarted { machine }
            | T::LogSaverFailed { machine }
            | T::Saved { machine }
            | T::NotSaved { machine }
            | T::Left { machine, .. }
            | T::GaveUp { machine, .. }
            | T::HoldReserved { machine }
            | T::HoldReleased { machine } => Some(machine),
            T::Submitted
            | T::Released
            | T::Updated
            | T::UpdateSkipped
            | T::ReservationChanged
            | T::Resized { .. }
            | T::Finished
            | T::Killed
            | T::NeverRan
            | T::Purged
            | T::RestartDue => None,
        }
    }
}

impl EventKind {
    /// The same, when kind and reason are already separate.
    #[must_use]
    pub fn reason_code(&self, reason: &Reason) -> &'static str {
        match self {
            EventKind::JobRejected { rejection, .. }
                if matches!(**rejection, Rejection::QuotaExceeded { .. }) =>
            {
                OVER_QUOTA
            }
            _ => reason.code(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// An event of a component.
    Component(components::Event),
    Task {
        task: TaskId,
        job: JobId,
        index: u32,
        attempt: u32,
        change: TaskChange,
    },
    Job {
        job: JobId,
        change: JobChange,
    },
    /// A submission or update that was rejected; leaves no other trace.
    JobRejected {
        user: Name,
        job: Name,
        /// Behind a pointer: events are many, and hardly any of them is a rejection.
        rejection: Box<Rejection>,
    },
    Machine {
        machine: MachineId,
        change: MachineChange,
    },
    User {
        user: UserId,
        change: UserChange,
    },
    LevelRaised {
        level: u32,
    },
    Token {
        token: TokenId,
        change: TokenChange,
    },
    Blob {
        blob: BlobId,
        change: BlobChange,
    },
    /// The masters' configuration sets other per-user limits.
    BoundsChanged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TokenChange {
    Added,
    /// A part joined with a join token.
    Used,
    Revoked,
    Expired,
    /// Of a token for a replica: the joining replica may have the authority's key.
    Confirmed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BlobChange {
    Added,
    Removed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskChange {
    /// Row created; deferred or pending.
    Submitted,
    /// Deferred -> pending.
    Released,
    /// Pending -> assigned.
    Scheduled {
        machine: MachineId,
    },
    /// Assigned -> running.
    Started {
        machine: MachineId,
    },
    /// Ordered to stop.
    Stopping {
        machine: MachineId,
    },
    /// Back to pending, not counted as a failure.
    Evicted {
        machine: MachineId,
    },
    /// Attempt ended with success and the job wants it again; back to pending.
    Completed {
        machine: MachineId,
    },
    /// Attempt failed; back to pending.
    Failed {
        machine: MachineId,
    },
    /// Machine lost; back to pending.
    Lost {
        machine: MachineId,
    },
    /// Assigned again to the machine it was on.
    Restarted {
        machine: MachineId,
    },
    /// A new version took effect without a restart.
    Updated,
    /// The update skipped its change of this task.
    UpdateSkipped,
    ReservationChanged,
    /// Dead.
    Finished,
    Killed,
    NeverRan,
    /// Row purged.
    Purged,
    /// The log saver of its retained disk failed, and is tried again.
    LogSaverFailed {
        machine: MachineId,
    },
    /// Its retained disk was saved.
    Saved {
        machine: MachineId,
    },
    /// Its retained disk was not saved in time.
    NotSaved {
        machine: MachineId,
    },
    /// It was ordered to stop and is gone; the outcome of the termination notice.
    Left {
        machine: MachineId,
        notice: NoticeOutcome,
    },
    /// Dead: its attempt ended like this on the machine, and is not retried.
    GaveUp {
        machine: MachineId,
        exit: ExitClass,
    },
    /// Keeps running where it is, and reserves room on this machine as well.
    HoldReserved {
        machine: MachineId,
    },
    /// Released that reservation.
    HoldReleased {
        machine: MachineId,
    },
    /// It is to be restarted as soon as its job can spare it.
    RestartDue,
    /// Its agent has other limits in force for it.
    Resized {
        before: Resources,
        after: Resources,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobChange {
    Submitted,
    Accepted,
    Released,
    UpdateOpened {
        version: u32,
    },
    UpdateUndone {
        version: u32,
    },
    UpdateClosed {
        version: u32,
    },
    Resized {
        count: u32,
    },
    Stopping,
    Succeeded,
    Failed,
    Killed,
    NeverRan,
    Purged,
    /// One of its dependencies has ended, and this many have not.
    StillWaits {
        left: u32,
    },
    /// It was over, and some of its tasks run again.
    StartedAgain,
    /// Its tasks take other limits, and nothing else becomes different.
    LimitsChanged {
        version: u32,
    },
    /// A daemon has tasks for other machines than before, so many now.
    MachinesMatched {
        tasks: u32,
    },
    /// A daemon lacks tasks on so many machines, because its owner's quota, or a limit for each
    /// user, does not suffice.
    MachinesLeftOut {
        machines: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MachineChange {
    Added,
    Updated,
    Removed,
    Up {
        incarnation: u64,
    },
    Down,
    DrainStarted,
    DrainStopped,
    PackagesChanged,
    /// Over-committed: some tasks must be evicted.
    OverCommitted,
    /// No longer over-committed.
    Recovered,
    DiskRetained {
        bytes: u64,
    },
    DiskReleased {
        bytes: u64,
    },
    /// Its agent requests an eviction: it is short of this, and throttling others does not help.
    PressureReported {
        dimension: Dimension,
    },
    /// A task was ordered to leave because of that.
    PressureEvicted {
        dimension: Dimension,
    },
    /// No longer short; accepts no new non-production tasks until that has lasted.
    PressureEased {
        dimension: Dimension,
    },
    /// The shortage is over for good.
    PressureEnded {
        dimension: Dimension,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum UserChange {
    Added,
    Removed,
    CapabilitiesChanged,
    QuotaChanged {
        band: Band,
    },
    /// More is charged than granted: no new jobs are admitted in this band.
    QuotaExceeded {
        band: Band,
    },
    QuotaRecovered {
        band: Band,
    },
}
