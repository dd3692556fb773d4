//! Jobs and tasks as readers see them.

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
    /// The spec is an outline: what the tasks run (command, environment, files, packages, probes,
    /// names of secrets) is for the owner and for users with read_specs or administrate_jobs.
    #[serde(default)]
    pub redacted: bool,
    /// A roll from one version to another that is not closed yet.
    pub update: Option<Update>,
    /// Every task runs the version that update leads to, and it is not being undone. It is closed
    /// by whoever runs the job's file anew: `cell run`.
    #[serde(default)]
    pub update_complete: bool,
    pub tasks: TaskCounts,
    /// The jobs it starts after, as far as they have not ended.
    pub waits_for: Vec<JobKey>,
    /// Milliseconds since the Unix epoch.
    pub submitted_at: Time,
    /// Milliseconds since the Unix epoch; absent while it lives.
    pub ended_at: Option<Time>,
}

/// A job in short, for lists of many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobRow {
    pub user: Name,
    pub name: Name,
    pub state: JobState,
    /// A roll from one version to another is not closed yet.
    pub updating: bool,
    /// Every task runs the new version already, and the roll is not being undone.
    #[serde(default)]
    pub update_complete: bool,
    pub priority: Priority,
    pub labels: Labels,
    /// Of one task; tasks with limits of their own apart.
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
    /// Forgotten from here on; milliseconds since the Unix epoch.
    pub until: Time,
}

/// How a task on a machine stands by its health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskHealth {
    /// It has not passed it since it was placed: its packages are fetched, or it runs and is asked.
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
    /// How it stands by its health check; absent where it has none, or is on no machine.
    #[serde(default)]
    pub health: Option<TaskHealth>,
    /// Placements so far.
    pub attempt: u32,
    /// Version of the job's spec it runs, or will run.
    pub version: u32,
    pub machine: Option<Name>,
    /// Machines that keep room for it while it runs where it is: the target of a move.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved_on: Vec<Name>,
    /// The alloc it is in, as `user/job/index`.
    pub alloc: Option<String>,
    pub limits: Resources,
    pub reservation: Resources,
    /// What it used lately. Absent while it does not run, or where nobody has said so.
    #[serde(default)]
    pub used: Option<Resources>,
    /// Static ports first, in the order of the spec, then the chosen ones.
    pub ports: Vec<u16>,
    pub devices: Vec<DeviceGrant>,
    /// Tasks on their way out whose room it waits for.
    pub waits_for: Vec<String>,
    pub failures_in_row: u32,
    /// Not placed before this time; milliseconds since the Unix epoch.
    pub not_before: Time,
    pub changed_at: Time,
    pub crashed_on: Vec<CrashView>,
    /// Of the attempt that ended last, or was told to.
    #[serde(default)]
    pub last_end: Option<EndView>,
    /// Of one that never ran: the job, as `user/job`, that it had to wait for and that did not
    /// succeed.
    #[serde(default)]
    pub needed: Option<String>,
}

/// How an attempt ended, or why it was told to.
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
    /// Of one that was told to end and is gone: what became of the warning, where that was seen.
    #[serde(default)]
    pub notice: Option<NoticeOutcome>,
}

/// Where a task is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EndpointView {
    /// Index of the task in its job.
    pub task: u32,
    /// As DNS has it.
    pub name: String,
    pub machine: Name,
    pub address: IpAddr,
    /// As given to the task: those it insisted on, then those chosen for it.
    pub ports: Vec<u16>,
}

/// Where a job is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NameView {
    /// As DNS has it.
    pub name: String,
    /// Healthy tasks by index.
    pub endpoints: Vec<EndpointView>,
    /// Tasks the job shall have.
    pub tasks: u32,
    /// Of these, tasks that run and are healthy. Those on a machine without an address are among
    /// them, and no endpoints.
    pub healthy: u32,
    /// Of these, tasks that failed their health check and have not started again. The others wait,
    /// start, leave, or have ended.
    pub ill: u32,
}
