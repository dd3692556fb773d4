//! Events (B5): what `apply` reports of every change. History, names and the scheduler's cached
//! copy are folds over these.

use crate::actor::Actor;
use crate::components;
use crate::id::{BlobId, JobId, MachineId, TaskId, TokenId, UserId};
use crate::name::Name;
use crate::priority::Band;
use crate::reason::{Reason, Rejection};
use crate::resource::Dimension;
use crate::task::{ExitClass, NoticeOutcome};
use crate::time::Time;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    pub at: Time,
    /// Who sent the command that it comes of.
    pub by: Actor,
    pub what: EventKind,
    pub reason: Reason,
}

impl Event {
    /// The code of the reason, as events are filtered and counted by it. A job that its owner's
    /// quota did not allow was requested like any other, and people ask for it by its cause.
    #[must_use]
    pub fn reason_code(&self) -> &'static str {
        self.what.reason_code(&self.reason)
    }
}

impl EventKind {
    /// The same, where the two have been taken apart.
    #[must_use]
    pub fn reason_code(&self, reason: &Reason) -> &'static str {
        match self {
            EventKind::JobRejected { refusal: Rejection::QuotaExceeded { .. }, .. } => "quota",
            _ => reason.code(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// Of a part of the state that stands by itself.
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
    /// A submission or update that was refused; leaves no other trace.
    JobRejected {
        user: Name,
        job: Name,
        refusal: Rejection,
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
    /// The masters' configuration grants users other limits.
    BoundsChanged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TokenChange {
    Added,
    /// A join token let somebody in.
    Used,
    Revoked,
    Expired,
    /// Of a token for a replica: the newcomer may have the authority's key.
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
    /// Row made; deferred or pending.
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
    /// Told to stop.
    Stopping {
        machine: MachineId,
    },
    /// Back to pending, through no fault of its own.
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
    /// A new version took effect without restart.
    Updated,
    /// A change of an update was not made.
    UpdateSkipped,
    ReservationChanged,
    /// Dead.
    Finished,
    Killed,
    NeverRan,
    /// Row purged.
    Purged,
    /// What it left on the machine was to be saved; that failed, and is tried again.
    SaverFailed {
        machine: MachineId,
    },
    /// What it left on the machine was saved.
    Saved {
        machine: MachineId,
    },
    /// Nobody saved what it left on the machine while there was time.
    NotSaved {
        machine: MachineId,
    },
    /// One that was told to stop is gone; what became of the warning.
    Left {
        machine: MachineId,
        notice: NoticeOutcome,
    },
    /// Dead: its attempt ended like this on the machine, and is not tried again.
    GaveUp {
        machine: MachineId,
        exit: ExitClass,
    },
    /// Runs on where it is, and holds room on this machine as well.
    HoldReserved {
        machine: MachineId,
    },
    /// Holds that room no longer.
    HoldReleased {
        machine: MachineId,
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
    /// One of those it waits for has ended, and so many have not.
    StillWaits {
        left: u32,
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
    /// Holds more than it has: somebody must go.
    OverCommitted,
    /// Fits again.
    Recovered,
    DiskRetained {
        bytes: u64,
    },
    DiskReleased {
        bytes: u64,
    },
    /// Its agent asks for relief: short of this, and holding others back does not help.
    Short {
        dimension: Dimension,
    },
    /// Somebody was told to leave it for that.
    Relieved {
        dimension: Dimension,
    },
    /// Short no longer; it takes nothing of non-production until that has lasted.
    Eased {
        dimension: Dimension,
    },
    /// That has lasted.
    EasedForGood {
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
    /// More is charged than granted: nothing new is admitted in this band.
    QuotaExceeded {
        band: Band,
    },
    QuotaRecovered {
        band: Band,
    },
}
