//! What a user asks for (B2-B10): a job of tasks, an alloc set, or a job inside an alloc set.
//! Pure data; the rules that admit it are in [`crate::admit`].

use crate::constraint::Constraint;
use crate::device::DeviceRequest;
use crate::label::Labels;
use crate::name::{JobKey, Name, Token};
use crate::named::NamedAmount;
use crate::priority::{AppClass, Priority};
use crate::resource::Resources;
use crate::time::Span;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most tasks in one job. Larger requests are refused at the door.
pub const MAX_TASKS: u32 = 200_000;
/// Most constraints, ports, packages, named resources or device requests of one task.
pub const MAX_LIST: usize = 64;

/// Whether the members of a job run a program or hold resources for other jobs' tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum JobKind {
    Tasks,
    /// Each member is an alloc: resources reserved on a machine whether used or not (B9).
    AllocSet,
}

/// A content-addressed program or data bundle.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PackageRef {
    pub name: Token,
    /// Hex digest of the content.
    pub digest: Token,
    pub bytes: u64,
}

/// What every task of the job runs and needs, unless overridden.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TaskSpec {
    /// Upper bound of each resource: what quota is charged and prod is placed by.
    pub limits: Resources,
    /// How many ports the system shall choose.
    pub ports: u8,
    /// Ports the task insists on; two tasks that insist on one port never share a machine.
    pub static_ports: Vec<u16>,
    /// Sorted by name.
    pub named: Vec<NamedAmount>,
    pub devices: Vec<DeviceRequest>,
    pub packages: Vec<PackageRef>,
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Time between the warning signal and the kill.
    pub notice: Span,
}

/// What differs for one task. `None` means as in the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TaskOverride {
    pub limits: Option<Resources>,
    pub command: Option<Vec<String>>,
    pub env: Option<BTreeMap<String, String>>,
}

/// The unit over which tasks of one job are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Domain {
    Machine,
    Rack,
    Power,
}

/// At most `limit` tasks of the job in one domain. `Machine` with 1 is "different machines".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SpreadLimit {
    pub domain: Domain,
    pub limit: u32,
}

/// Start only after another job has ended (B6).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct After {
    pub job: JobKey,
    /// If the other job fails, this one never starts.
    pub require_success: bool,
}

/// What happens to a task that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RestartPolicy {
    /// Failures in a row after which the task stays dead. `None`: restart for ever.
    pub max_failures: Option<u32>,
    /// First wait; doubles with each failure in a row, up to `backoff_max`.
    pub backoff: Span,
    pub backoff_max: Span,
    /// Whether a task that finished with success is started again (services) or is done (batch).
    pub restart_on_success: bool,
}

/// Disk kept on the machine after an alloc or task ended, for a log saver to fetch (B9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RetainDisk {
    pub bytes: u64,
    pub keep: Span,
}

/// A job or alloc set as its owner wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct JobSpec {
    pub name: Name,
    pub kind: JobKind,
    pub count: u32,
    pub priority: Priority,
    pub appclass: AppClass,
    pub labels: Labels,
    pub task: TaskSpec,
    /// By task index.
    pub overrides: BTreeMap<u32, TaskOverride>,
    pub constraints: Vec<Constraint>,
    pub spread: Vec<SpreadLimit>,
    /// The alloc set inside which the tasks run; they charge it and nothing else.
    pub alloc_set: Option<JobKey>,
    pub after: Option<After>,
    /// All tasks are placed together or none is.
    pub gang: bool,
    /// Most tasks that may be down at once through what the system chooses to do.
    /// `None`: no bound.
    pub max_down: Option<u32>,
    /// Most task disruptions one update may cause; changes beyond are skipped and reported.
    pub max_update_disruptions: Option<u32>,
    pub restart: RestartPolicy,
    /// Whether unused resources may be lent to non-prod work. Switching it off takes a capability.
    pub reclaimable: bool,
    /// Lease of a job of which two instances of a task must never overlap.
    pub at_most_one: Option<Span>,
    pub retain_disk: Option<RetainDisk>,
}

impl JobSpec {
    /// Limits of the task at `index`, override applied.
    #[must_use]
    pub fn limits_of(&self, index: u32) -> Resources {
        self.overrides.get(&index).and_then(|o| o.limits).unwrap_or(self.task.limits)
    }

    /// Sum of all tasks' limits: what admission charges.
    #[must_use]
    pub fn total_limits(&self) -> Resources {
        let overridden = self.overrides.range(..self.count).filter(|(_, o)| o.limits.is_some());
        let plain = u64::from(self.count) - overridden.clone().count() as u64;
        overridden
            .fold(self.task.limits.times(plain), |sum, (index, _)| sum.plus(self.limits_of(*index)))
    }

    /// The tightest spread limit over `domain`.
    #[must_use]
    pub fn spread_limit(&self, domain: Domain) -> Option<u32> {
        self.spread.iter().filter(|s| s.domain == domain).map(|s| s.limit).min()
    }
}
