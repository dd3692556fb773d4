//! One task or alloc: its lifecycle (B5), where it is and what it holds.
//!
//! The Borg paper's three states are split so that hand-over is explicit: a task between pending
//! and running is assigned, then starting; one on its way out is stopping and no longer charged,
//! and its successor waits until the agent reports it gone.

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
    /// Waits for the jobs that its job depends on (B6).
    Deferred,
    /// Waits for a machine.
    Pending,
    /// Has a machine; the agent has not confirmed the start.
    Assigned,
    Running,
    /// Ordered to stop; its agent has not reported it gone. Its room is free for others already,
    /// unless it starts again in place.
    Stopping(StopCause),
    Dead(TaskOutcome),
}

/// Why a task was ordered to stop, which decides what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    /// A task of higher priority took its place: back to pending.
    Preempted,
    /// Its machine is drained: back to pending.
    Drained,
    /// The machine is over-committed: back to pending.
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
    /// Rebalanced to a better place: back to pending.
    Rebalanced,
    /// The machine is short of a resource that it uses: back to pending.
    ResourcePressure,
    /// Its gang lost a task and could not be made whole: back to pending.
    GangBroken,
    /// Its owner wants it restarted: assigned again on the same machine.
    Restart,
}

impl StopCause {
    /// Whether the task starts again where it was.
    #[must_use]
    pub fn restarts_in_place(self) -> bool {
        matches!(self, StopCause::RestartInPlace | StopCause::Unhealthy | StopCause::Restart)
    }
}

/// The final outcome of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskOutcome {
    Finished,
    /// Failed: more ends in a row of this kind, or more failures, than its policy allows.
    Failed(ExitClass),
    Killed,
    /// A job that it depended on failed, so it never ran.
    DependencyFailed,
}

/// Why one attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ExitClass {
    Code(i32),
    Signal(i32),
    /// Exceeded its own memory limit.
    OutOfMemory,
    /// Killed when the machine ran out of memory because of other tasks.
    OutOfMemoryBystander,
    OverDiskLimit,
    /// Its packages or the driver could not start it.
    CouldNotStart,
    TimedOut,
    /// Stopped because it failed its health check.
    Unhealthy,
    /// Killed when the machine ran out of memory, although this other task exceeded its expected
    /// use by most.
    GaveWayTo(TaskId),
    /// Lost with its machine, or from it: final only if the job's policy says so.
    Lost,
    /// Evicted: final only if the job's policy says so.
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

    /// The exit code or the signal number.
    #[must_use]
    pub fn number(self) -> Option<i32> {
        match self {
            ExitClass::Code(number) | ExitClass::Signal(number) => Some(number),
            _ => None,
        }
    }
}

impl TaskState {
    /// Whether it is charged to a machine or an alloc and so counts in every sum. A task that stops
    /// in order to start again in place is its own successor and keeps what it has.
    #[must_use]
    #[inline]
    pub fn holds_resources(self) -> bool {
        match self {
            TaskState::Assigned | TaskState::Running => true,
            TaskState::Stopping(cause) => cause.restarts_in_place(),
            _ => false,
        }
    }

    /// Whether it is bound to a machine, charged or not.
    #[must_use]
    pub fn is_on_machine(self) -> bool {
        matches!(self, TaskState::Assigned | TaskState::Running | TaskState::Stopping(_))
    }

    #[must_use]
    pub fn is_dead(self) -> bool {
        matches!(self, TaskState::Dead(_))
    }
}

/// What a placement gives a task besides room. Absent when there is nothing to give.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Grant {
    /// Static ports first in spec order, then the chosen ones.
    pub ports: Vec<u16>,
    pub devices: Vec<DeviceGrant>,
    /// Tasks still stopping on the machine where this task goes, or grows, whose room it may have
    /// got; it starts when they are gone. Invariant: empty once it runs, unless it is an alloc,
    /// whose tasks wait instead.
    pub waits_for: Vec<Victim>,
}

/// Crashes of a task's attempts on one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CrashPair {
    pub machine: MachineId,
    pub crashes: u8,
    /// Ignored from this time on, because machines get repaired.
    pub until: Time,
}

/// The outcome of the termination notice that a task gets before it is killed (B8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NoticeOutcome {
    /// Notified, and exited by itself before its notice was over.
    LeftInTime,
    /// Notified, and still running when its notice was over: killed.
    Overrun,
    /// Killed without a notice: none was requested, or it could not receive one.
    NotGiven,
}

impl NoticeOutcome {
    /// A phrase for people, with the task as its subject.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            NoticeOutcome::LeftInTime => "warned, left within its notice",
            NoticeOutcome::Overrun => "warned, killed when its notice was over",
            NoticeOutcome::NotGiven => "killed without notice",
        }
    }
}

/// How the previous attempt ended, to explain why a task waits. The event feed has the whole
/// history; this is its last entry, stored in a row that is read anyway.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LastAttemptEnd {
    pub attempt: u32,
    /// When it was ordered to stop, or was seen to have ended by itself.
    pub at: Time,
    /// By name, because the machine may have left the cell since.
    pub machine: Name,
    pub why: Reason,
    /// Of an attempt that was ordered to stop and is gone: the outcome of the notice, if seen.
    pub notice: Option<NoticeOutcome>,
}

/// Crashes on one machine after which the pairing is avoided.
pub const CRASHES_TO_AVOID: u8 = 2;
/// How long a crash counts against its machine.
pub const CRASH_PAIR_RETENTION: Span = Span::seconds(3600);
/// Crash pairs remembered for each task; the oldest is dropped first.
pub const MAX_CRASH_PAIRS: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Task {
    pub job: JobId,
    pub index: u32,
    pub state: TaskState,
    /// False from a failed health check until the next start.
    pub healthy: bool,
    /// Number of placements so far. Reports about an older attempt are rejected.
    pub attempt: u32,
    /// The version of the job's spec that this task runs, or will run.
    pub version: u32,
    /// Where it is, and where room is reserved for it besides. Invariant: empty unless
    /// `state.is_on_machine()`; a reservation beside the primary hold only while it runs.
    pub holds: Holds,
    /// The logged reservation, or what a placement will reserve: the limits unless an estimate is
    /// known. Invariant: at most the counted limits, at least the disk it must retain.
    pub reservation: Resources,
    pub failures_in_row: u32,
    /// Ends in a row that do not count towards the job's `max_failures`. Invariant: in order, each
    /// kind once; the failures among them are included in `failures_in_row`.
    pub apart: Vec<EndCount>,
    /// Not placed before this time: back-off, or the lease of an `at_most_one` job.
    pub not_before: Time,
    pub changed_at: Time,
    pub crashed_on: Vec<CrashPair>,
    /// Of the attempt that ended last, or was ordered to stop last.
    pub last_end: Option<LastAttemptEnd>,
    /// Of a preempted task: the longest notice it gets, if the jobs that preempt it set a bound.
    pub notice_max: Option<Span>,
    /// Its owner wants it restarted. Invariant: false unless it runs; so whatever stops it is the
    /// restart.
    pub restart_due: bool,
    /// How often its limits were changed where it was. Orders and what agents report of them say
    /// the number, so that no report is taken for one about a later change.
    pub resizes: u32,
    /// The most that its machine may still allow it, from a change of its limits until the
    /// machine's agent has reported them in force. Invariant: only while it holds resources.
    pub limits_in_force: Option<Box<Resources>>,
}

impl Task {
    /// Whether this task has crashed too often on `machine` to be placed there again now.
    #[must_use]
    pub fn avoids(&self, machine: MachineId, now: Time) -> bool {
        let counts = |p: &CrashPair| p.crashes >= CRASHES_TO_AVOID && now < p.until;
        self.crashed_on.iter().any(|p| p.machine == machine && counts(p))
    }

    /// What counts as its limits in every sum: those of its version, and where its machine may
    /// still allow it more, that. So growth is charged before it happens, and a cut afterwards.
    #[must_use]
    #[inline]
    pub fn counted_limits(&self, limits: Resources) -> Resources {
        self.limits_in_force.as_ref().map_or(limits, |in_force| limits.max(**in_force))
    }

    /// The hold where it runs.
    #[must_use]
    #[inline]
    pub fn primary(&self) -> Option<&Hold> {
        self.holds.primary()
    }

    /// The machine it runs on. Room reserved elsewhere is among its [`Task::holds`].
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

    /// What its placement gave it where it runs.
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
