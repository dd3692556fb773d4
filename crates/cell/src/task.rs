//! One task or alloc: its life (B5), where it is and what it holds.
//!
//! The paper's three states are split so that hand-over is explicit: a task between pending and
//! running is assigned, then starting; one on its way out is stopping, no longer charged, and its
//! successor waits until the machine has seen it gone.

use crate::device::DeviceGrant;
use crate::hold::{Hold, Holds};
use crate::id::{JobId, MachineId, TaskId};
use crate::name::Name;
use crate::plan::Victim;
use crate::reason::Reason;
use crate::resource::Resources;
use crate::retry::EndCount;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Waits for its job's predecessor (B6).
    Deferred,
    /// Waits for a machine.
    Pending,
    /// Has a machine; the agent has not confirmed the start.
    Assigned,
    Running,
    /// Told to stop; its machine has not seen it gone. Its room has passed on already, unless it
    /// starts again in place.
    Stopping(StopCause),
    Dead(TaskOutcome),
}

/// Why a task was told to stop, which decides what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    /// A task of higher priority took its place: back to pending.
    Preempted,
    /// Its machine is drained: back to pending.
    Drained,
    /// The machine holds more than it can: back to pending.
    OverCommitted,
    /// Its alloc is moving away: back to pending.
    AllocMoved,
    /// A new spec that fits in place: assigned again on the same machine.
    RestartInPlace,
    /// A new spec that does not fit in place: back to pending.
    UpdateMoves,
    /// Failed its health check: assigned again on the same machine.
    Unhealthy,
    /// Its owner stopped the job or shrank it: dead.
    Killed,
    /// Better off elsewhere: back to pending.
    Rebalanced,
    /// The machine is short of what it uses: back to pending.
    MachineShort,
}

impl StopCause {
    /// Whether the task starts again where it was.
    #[must_use]
    pub fn restarts_in_place(self) -> bool {
        matches!(self, StopCause::RestartInPlace | StopCause::Unhealthy)
    }
}

/// How a task ended for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskOutcome {
    Finished,
    /// Ended more often in a row like this, or failed more often, than its policy allows.
    Failed(ExitClass),
    Killed,
    /// The job it had to wait for failed, so it never ran.
    DependencyFailed,
}

/// What made one attempt end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ExitClass {
    Code(i32),
    Signal(i32),
    /// Exceeded its own memory limit.
    OutOfMemory,
    /// Died because the machine ran out of memory through others.
    OutOfMemoryBystander,
    OverDiskLimit,
    /// Packages or the driver could not start it.
    CouldNotStart,
    TimedOut,
    /// Stopped because it failed its health check.
    Unhealthy,
    /// Killed because the machine ran out of memory, of which this other task had most beyond what
    /// was expected of it.
    GaveWayTo(TaskId),
    /// Gone with its machine, or from it: the end of a task only where its owner said so.
    Lost,
    /// Its place was taken: the end of a task only where its owner said so.
    Evicted,
}

impl ExitClass {
    /// Stable code for programs.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            ExitClass::Code(_) => "code",
            ExitClass::Signal(_) => "signal",
            ExitClass::OutOfMemory => "out-of-memory",
            ExitClass::OutOfMemoryBystander => "out-of-memory-bystander",
            ExitClass::OverDiskLimit => "over-disk-limit",
            ExitClass::CouldNotStart => "could-not-start",
            ExitClass::TimedOut => "timed-out",
            ExitClass::Unhealthy => "unhealthy",
            ExitClass::GaveWayTo(_) => "gave-way",
            ExitClass::Lost => "lost",
            ExitClass::Evicted => "evicted",
        }
    }

    /// The exit code or the signal.
    #[must_use]
    pub fn number(self) -> Option<i32> {
        match self {
            ExitClass::Code(number) | ExitClass::Signal(number) => Some(number),
            _ => None,
        }
    }
}

impl TaskState {
    /// Charged to a machine or an alloc: counts in every sum. A task that stops to start again in
    /// place is its own successor and keeps what it has.
    #[must_use]
    #[inline]
    pub fn holds_resources(self) -> bool {
        match self {
            TaskState::Assigned | TaskState::Running => true,
            TaskState::Stopping(cause) => cause.restarts_in_place(),
            _ => false,
        }
    }

    /// Bound to a machine, charged or not.
    #[must_use]
    pub fn is_on_machine(self) -> bool {
        matches!(self, TaskState::Assigned | TaskState::Running | TaskState::Stopping(_))
    }

    #[must_use]
    pub fn is_dead(self) -> bool {
        matches!(self, TaskState::Dead(_))
    }
}

/// What a placement hands to a task besides room. Absent when there is nothing to hand over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Grant {
    /// Static ports first in spec order, then the chosen ones.
    pub ports: Vec<u16>,
    pub devices: Vec<DeviceGrant>,
    /// Those still on their way out of where this task goes, or grows, whose room it may have got;
    /// it starts when they are gone. Invariant: empty once it runs, unless it is an alloc, whose
    /// tasks do the waiting.
    pub waits_for: Vec<Victim>,
}

/// Attempts on one machine that crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CrashPair {
    pub machine: MachineId,
    pub crashes: u8,
    /// Forgotten from here on: machines get repaired.
    pub until: Time,
}

/// What became of the warning that a task gets before it is killed (B8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NoticeOutcome {
    /// Warned, and gone by itself before its notice was over.
    LeftInTime,
    /// Warned, and still there when its notice was over: killed.
    Overrun,
    /// Killed without a warning: none was asked for, or it had no ears for one.
    NotGiven,
}

impl NoticeOutcome {
    /// For people, of a task.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            NoticeOutcome::LeftInTime => "warned, left within its notice",
            NoticeOutcome::Overrun => "warned, killed when its notice was over",
            NoticeOutcome::NotGiven => "killed without notice",
        }
    }
}

/// How the attempt before ended, for whoever asks what is the matter with a task that waits. The
/// event feed tells the whole story; this is its last line, kept where the row is read anyway.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LastAttemptEnd {
    pub attempt: u32,
    /// When it was told to end, or was seen ended by itself.
    pub at: Time,
    /// By name: it may have left the cell since.
    pub machine: Name,
    pub why: Reason,
    /// Of one that was told to end and is gone: what became of the warning, where that was seen.
    pub notice: Option<NoticeOutcome>,
}

/// Crashes on one machine after which the pairing is avoided.
pub const CRASHES_TO_AVOID: u8 = 2;
/// How long a crash counts against its machine.
pub const CRASH_PAIR_RETENTION: Span = Span::seconds(3600);
/// Crash pairings remembered per task; the oldest is forgotten first.
pub const MAX_CRASH_PAIRS: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Task {
    pub job: JobId,
    pub index: u32,
    pub state: TaskState,
    /// False from a failed health check until the next start.
    pub healthy: bool,
    /// Placements so far. Reports about an older attempt are refused.
    pub attempt: u32,
    /// Version of the job's spec this task runs, or will run.
    pub version: u32,
    /// Where it is, and where room is kept for it besides. Invariant: empty unless
    /// `state.is_on_machine()`; a reservation beside the primary hold only while it runs.
    pub holds: Holds,
    /// Logged reservation, or what a placement will reserve: the limits unless something better is
    /// known. Invariant: at most the limits, at least the disk it must retain.
    pub reservation: Resources,
    pub failures_in_row: u32,
    /// Ends in a row that do not use up the job's `max_failures`. Invariant: in order, each kind
    /// once; the failures among them are among `failures_in_row`.
    pub apart: Vec<EndCount>,
    /// Not placed before this time: back-off, or the lease of an `at_most_one` job.
    pub not_before: Time,
    pub changed_at: Time,
    pub crashed_on: Vec<CrashPair>,
    /// Of the attempt that ended last, or was told to.
    pub last_end: Option<LastAttemptEnd>,
    /// Of one that was pushed out: the most notice it gets, if those who take its room say so.
    pub notice_max: Option<Span>,
}

impl Task {
    /// Whether this task has crashed on `machine` too often to be tried there again.
    #[must_use]
    pub fn avoids(&self, machine: MachineId, now: Time) -> bool {
        let counts = |p: &CrashPair| p.crashes >= CRASHES_TO_AVOID && now < p.until;
        self.crashed_on.iter().any(|p| p.machine == machine && counts(p))
    }

    /// The hold in which it runs.
    #[must_use]
    #[inline]
    pub fn primary(&self) -> Option<&Hold> {
        self.holds.primary()
    }

    /// The machine it runs on. Room kept elsewhere is among its [`Task::holds`].
    #[must_use]
    #[inline]
    pub fn machine(&self) -> Option<MachineId> {
        self.primary().map(|hold| hold.machine)
    }

    /// The alloc it runs in.
    #[must_use]
    #[inline]
    pub fn alloc(&self) -> Option<TaskId> {
        self.primary().and_then(|hold| hold.alloc)
    }

    /// What was handed to it where it runs.
    #[must_use]
    pub fn grant(&self) -> Option<&Arc<Grant>> {
        self.primary().and_then(|hold| hold.grant.as_ref())
    }

    /// Ports where it runs.
    #[must_use]
    pub fn ports(&self) -> &[u16] {
        self.primary().map_or(&[], Hold::ports)
    }

    /// Devices where it runs.
    #[must_use]
    pub fn devices(&self) -> &[DeviceGrant] {
        self.primary().map_or(&[], Hold::devices)
    }
}
