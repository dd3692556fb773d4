//! Jobs and tasks as readers see them.

use super::RolledBackView;
use cellwright_cell::daemon::DaemonMachines;
use cellwright_cell::device::DeviceGrant;
use cellwright_cell::job::{JobState, Update};
use cellwright_cell::label::Labels;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::priority::Priority;
use cellwright_cell::reason::Reason;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::task::{NoticeOutcome, TaskState};
use cellwright_cell::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// How many tasks of a job are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskCounts {
    pub deferred: u32,
    pub pending: u32,
    pub assigned: u32,
    pub running: u32,
    pub stopping: u32,
    pub finished: u32,
    pub failed: u32,
    pub killed: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobView {
    pub user: Name,
    pub name: Name,
    pub state: JobState,
    /// Send it back as `If-Match` to change only what you have seen.
    pub version: u32,
    /// The spec of that version.
    pub spec: JobSpec,
    /// The spec is redacted: what the tasks run (command, environment, files, packages, probes,
    /// names of secrets) is for the owner and for users with read_specs or administrate_jobs.
    pub redacted: bool,
    /// A rolling update from one version to another that is not closed yet.
    pub update: Option<Update>,
    /// Every task runs the version that the update leads to, and it is not being rolled back. It is
    /// closed when the job's file is applied again: `cell run`.
    pub update_complete: bool,
    /// Tasks on a machine that run another version than the job's: an update has yet to reach them,
    /// or has skipped them.
    #[serde(default)]
    pub outdated: u32,
    /// While canaries try a version and all of them are well: since when; milliseconds since the
    /// Unix epoch.
    #[serde(default)]
    pub canaries_well_since: Option<Time>,
    /// The newest version, if the cell rolled it back and nobody has asked for it again.
    #[serde(default)]
    pub rolled_back: Option<RolledBackView>,
    pub tasks: TaskCounts,
    /// Running tasks that are still to be restarted.
    #[serde(default)]
    pub restarting: u32,
    /// Of a daemon: how many machines it is for, and how many of them have a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemon: Option<DaemonMachines>,
    /// The jobs it starts after, those that have not ended.
    pub waits_for: Vec<JobKey>,
    /// Milliseconds since the Unix epoch.
    pub submitted_at: Time,
    /// Milliseconds since the Unix epoch; absent while it lives.
    pub ended_at: Option<Time>,
}

impl TaskCounts {
    /// All of them, those that ended included.
    #[must_use]
    pub fn total(&self) -> u32 {
        let live = [self.deferred, self.pending, self.assigned, self.running, self.stopping];
        let ended = [self.finished, self.failed, self.killed];
        live.into_iter().chain(ended).fold(0, u32::saturating_add)
    }
}

impl JobView {
    /// The indices of its tasks are below this. Those of a daemon have gaps, where machines left.
    #[must_use]
    pub fn index_end(&self) -> u32 {
        if self.daemon.is_some() { self.tasks.total() } else { self.spec.count }
    }

    /// Whether the job wants the task: not one that a shrink cut off, or whose machine is no longer
    /// one of the daemon's.
    #[must_use]
    pub fn wants(&self, task: &TaskView) -> bool {
        match self.daemon {
            Some(_) => task.machine_for.is_some(),
            None => task.index < self.spec.count,
        }
    }

    /// How many tasks it wants: a daemon one on each machine for which its owner has quota.
    #[must_use]
    pub fn wanted(&self) -> u32 {
        self.daemon.as_ref().map_or(self.spec.count, |machines| machines.with_task)
    }
}

/// A job as one row of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobRow {
    pub user: Name,
    pub name: Name,
    pub state: JobState,
    /// A rolling update from one version to another is not closed yet.
    pub updating: bool,
    /// Every task runs the new version already, and the update is not being rolled back.
    pub update_complete: bool,
    pub priority: Priority,
    pub labels: Labels,
    /// Limits of one task, without the tasks that have limits of their own.
    pub limits: Resources,
    pub tasks: TaskCounts,
    /// Milliseconds since the Unix epoch.
    pub submitted_at: Time,
}

/// A machine on which a task crashed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CrashView {
    pub machine: String,
    pub crashes: u8,
    /// The crash is forgotten at this time; milliseconds since the Unix epoch.
    pub until: Time,
}

/// The health check status of a task on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskHealth {
    /// It has not passed its check since it was placed: its packages are being fetched, or it runs
    /// and is being checked.
    NotYetHealthy,
    Healthy,
    Unhealthy,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskView {
    /// `user/job/index`.
    pub name: String,
    pub index: u32,
    pub state: TaskState,
    /// It runs and, where it has a health check, has passed it and does not fail it now.
    pub healthy: bool,
    /// Its health check status; absent where it has no check, or is on no machine.
    pub health: Option<TaskHealth>,
    /// Number of placements so far.
    pub attempt: u32,
    /// Version of the job's spec that it runs, or will run.
    pub version: u32,
    pub machine: Option<Name>,
    /// Of a daemon: the only machine for it, where it is or will be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_for: Option<Name>,
    /// Machines on which resources are reserved for it while it still runs elsewhere: the target of
    /// a move.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved_on: Vec<Name>,
    /// The alloc it is in, as `user/job/index`.
    pub alloc: Option<String>,
    pub limits: Resources,
    /// The most that its machine may still allow it, while a change of its limits is not in force:
    /// this counts where it is more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits_in_force: Option<Resources>,
    pub reservation: Resources,
    /// Its recent usage. Absent while it does not run, or where none was reported.
    pub used: Option<Resources>,
    /// Static ports first, in the order of the spec, then the chosen ones.
    pub ports: Vec<u16>,
    pub devices: Vec<DeviceGrant>,
    /// Tasks that are stopping and whose resources it waits for.
    pub waits_for: Vec<String>,
    pub failures_in_row: u32,
    /// Not placed before this time; milliseconds since the Unix epoch.
    pub not_before: Time,
    pub changed_at: Time,
    pub crashed_on: Vec<CrashView>,
    /// How the last attempt ended, or why it was told to end.
    pub last_end: Option<EndView>,
    /// Of a task that never ran: the job, as `user/job`, that it depended on and that did not
    /// succeed.
    pub needed: Option<String>,
}

/// How an attempt ended, or why it was told to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EndView {
    pub attempt: u32,
    /// Milliseconds since the Unix epoch.
    pub at: Time,
    pub machine: String,
    /// Stable code of the reason.
    pub code: String,
    pub why: Reason,
    /// In a few words: `exit code 1`, `preempted by ann/web/0`.
    pub text: String,
    /// Of an attempt that was told to end and has ended: the outcome of its advance notice, where
    /// that was observed.
    pub notice: Option<NoticeOutcome>,
}

/// The address of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EndpointView {
    /// Index of the task in its job.
    pub task: u32,
    /// Its DNS name.
    pub name: String,
    pub machine: Name,
    pub address: IpAddr,
    /// Ports given to the task: static ones, then those chosen for it.
    pub ports: Vec<u16>,
}

/// The endpoints of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NameView {
    /// Its DNS name.
    pub name: String,
    /// Healthy tasks by index.
    pub endpoints: Vec<EndpointView>,
    /// Number of tasks the job should have.
    pub tasks: u32,
    /// Of these, tasks that run and are healthy. Tasks on a machine without an address are counted
    /// and have no endpoints.
    pub healthy: u32,
    /// Of these, tasks that failed their health check and have not restarted. The others wait,
    /// start, stop, or have ended.
    pub unhealthy: u32,
}
