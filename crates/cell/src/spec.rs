//! Job specs as users write them (B2-B10): a job of tasks, an alloc set, a job inside an alloc
//! set, or a daemon. Pure data; the rules that admit it are in [`crate::admit`].
//!
//! These are the types of the public JSON too. Optional fields have a default, stated at the field;
//! unknown fields are rejected. The log writes every field, so defaults can change without changing
//! the meaning of old entries. Rejected: a second set of structs for requests, which would have to
//! be kept in step with this one by hand.

#[cfg(feature = "schema")]
use crate::admit::{MAX_LOG_FILES, MAX_SPAN, MIN_LOG_FILE};
use crate::alloc_pairing::AllocPairing;
use crate::constraint::Constraint;
use crate::dependency;
use crate::device::DeviceRequest;
use crate::disruption::DisruptionLimit;
use crate::health::{HealthCheck, Probe};
use crate::isolation::{Isolation, Secret};
use crate::label::Labels;
use crate::name::{JobKey, Name, Token};
use crate::named::NamedAmount;
use crate::priority::{AppClass, Priority};
#[cfg(feature = "schema")]
use crate::resource::MAX_QUANTITY;
use crate::resource::Resources;
use crate::retry::Retries;
use crate::scale::ScalePolicy;
use crate::time::Span;
use crate::update_policy::UpdatePolicy;
pub use dependency::JobDependency;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Most tasks in one job. Larger requests are rejected before they reach the log.
pub const MAX_TASKS: u32 = 200_000;
/// Most constraints, ports, packages, named resources or device requests of one task.
pub const MAX_LIST: usize = 64;

/// Whether the members of a job run a program or hold resources for other jobs' tasks.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    #[default]
    Tasks,
    /// Each member is an alloc: resources reserved on a machine whether used or not (B9).
    AllocSet,
    /// One task on every machine it may run on, as machines come and go: an agent that ships logs
    /// or watches hardware. The cell decides how many ([`crate::daemon`]).
    Daemon,
}

impl JobKind {
    /// Whether its tasks run a program: an alloc runs none.
    #[must_use]
    pub fn runs_programs(self) -> bool {
        self != JobKind::AllocSet
    }
}

/// A content-addressed program or data bundle.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PackageRef {
    pub name: Token,
    /// Hex digest of the content.
    pub digest: Token,
    #[cfg_attr(feature = "schema", schemars(range(max = MAX_QUANTITY)))]
    pub bytes: u64,
}

/// What every task of the job runs and needs, unless overridden.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TaskSpec {
    /// Upper bound of each resource: what quota is charged and prod is placed by.
    pub limits: Resources,
    /// How many ports the system shall choose. Left out: 0.
    #[serde(default)]
    pub ports: u8,
    /// Ports the task insists on; two tasks that insist on one port never share a machine.
    /// Left out: none.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 1))))]
    pub static_ports: Vec<u16>,
    /// Sorted by name. Left out: none.
    #[serde(default)]
    pub named: Vec<NamedAmount>,
    /// Left out: none.
    #[serde(default)]
    pub devices: Vec<DeviceRequest>,
    /// Left out: none.
    #[serde(default)]
    pub packages: Vec<PackageRef>,
    /// The program and its arguments; empty for an alloc set, which runs none.
    pub command: Vec<String>,
    /// Left out: empty.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Milliseconds between the warning signal and the kill, as far as the cell allows its band so
    /// many. Left out: 10,000.
    #[serde(default = "defaults::notice")]
    #[cfg_attr(feature = "schema", schemars(extend("maximum" = MAX_SPAN.0)))]
    pub notice: Span,
    /// How to tell that a task is well. `None`: one that runs is.
    pub health: Option<HealthCheck>,
    /// Milliseconds after which an attempt is killed and counts as failed. `None`: never.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1, "maximum" = MAX_SPAN.0)))]
    pub max_run: Option<Span>,
    /// Small files by their path in the task's folder, written before each start. Left out: none.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// The machine's account to run as. `None`: where the agent is root, a number of the task's own
    /// that is no account; elsewhere the agent's account.
    pub user: Option<Token>,
    /// What is kept of each task's output. `None`: as the machine's operator chose.
    pub logs: Option<LogLimits>,
    /// Whether what each attempt wrote goes to the archive of the cell when the attempt is over, as
    /// far as its machine still has it. Left out: false.
    #[serde(default)]
    pub archive_logs: bool,
    /// How it is shut off from its machine and its neighbours.
    #[serde(default)]
    pub isolation: Isolation,
    /// Files by their name in the task's folder of secrets. Their values are never shown: a spec
    /// that is read has `(hidden)` in their place. Left out: none.
    #[serde(default)]
    pub secrets: BTreeMap<Token, Secret>,
}

/// How much of a task's output its machine keeps, of each of its two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LogLimits {
    /// Bytes of one file.
    #[cfg_attr(feature = "schema", schemars(range(min = MIN_LOG_FILE, max = MAX_QUANTITY)))]
    pub file_bytes: u64,
    /// Files, the present one included.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_LOG_FILES)))]
    pub files: u32,
    /// Bytes a second; more is dropped and counted.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_QUANTITY)))]
    pub rate: u64,
}

/// What differs for one task; what is left out is as in the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct TaskOverride {
    pub limits: Option<LimitsOverride>,
    pub command: Option<Vec<String>>,
    /// Added to the variables of the job; one of the same name is stronger.
    pub env: Option<BTreeMap<String, String>>,
}

/// The limits that differ for one task; others are as in the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct LimitsOverride {
    /// Milli-cores.
    pub cpu: Option<u64>,
    /// Bytes.
    pub ram: Option<u64>,
    /// Bytes.
    pub disk: Option<u64>,
    /// Bytes a second.
    pub disk_rate: Option<u64>,
}

impl LimitsOverride {
    /// `limits` with what differs.
    #[must_use]
    pub fn over(self, limits: Resources) -> Resources {
        Resources::new(
            self.cpu.unwrap_or(limits.cpu),
            self.ram.unwrap_or(limits.ram),
            self.disk.unwrap_or(limits.disk),
            self.disk_rate.unwrap_or(limits.disk_rate),
        )
    }
}

impl From<Resources> for LimitsOverride {
    fn from(limits: Resources) -> LimitsOverride {
        let Resources { cpu, ram, disk, disk_rate } = limits;
        LimitsOverride {
            cpu: Some(cpu),
            ram: Some(ram),
            disk: Some(disk),
            disk_rate: Some(disk_rate),
        }
    }
}

/// The unit over which tasks of one job are kept apart, or the whole cell, which bounds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Domain {
    Machine,
    Rack,
    Power,
    /// All machines: a limit is how many tasks of the job are placed at once.
    Cell,
}

/// At most `limit` tasks of the job in one domain. `Machine` with 1 is "different machines".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SpreadLimit {
    pub domain: Domain,
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub limit: u32,
}

/// What happens to a task that failed. Left out: restarted for ever, after a second at first and
/// five minutes at most, and done once it succeeds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RestartPolicy {
    /// Failures in a row that are forgiven; the next is for good. `None`: restart for ever.
    pub max_failures: Option<u32>,
    /// Kinds of ends that are forgiven more or less often than that. Left out: none.
    pub retry: Retries,
    /// First wait, in milliseconds; doubles with each failure in a row, up to `backoff_max`.
    #[cfg_attr(feature = "schema", schemars(extend("maximum" = MAX_SPAN.0)))]
    pub backoff: Span,
    #[cfg_attr(feature = "schema", schemars(extend("maximum" = MAX_SPAN.0)))]
    pub backoff_max: Span,
    /// Whether a task that finished with success is started again (services) or is done (batch).
    pub restart_on_success: bool,
}

impl Default for RestartPolicy {
    fn default() -> RestartPolicy {
        RestartPolicy {
            max_failures: None,
            retry: Retries::default(),
            backoff: Span::seconds(1),
            backoff_max: Span::seconds(300),
            restart_on_success: false,
        }
    }
}

/// Defaults of fields whose type has no obvious zero.
mod defaults {
    use crate::time::Span;

    pub fn notice() -> Span {
        Span::seconds(10)
    }
    pub fn one() -> u32 {
        1
    }
    pub fn yes() -> bool {
        true
    }
}

/// Disk kept on the machine after an alloc or task ended, for a log saver to fetch (B9).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RetainDisk {
    #[cfg_attr(feature = "schema", schemars(range(max = MAX_QUANTITY)))]
    pub bytes: u64,
    /// How long, in milliseconds.
    #[cfg_attr(feature = "schema", schemars(extend("maximum" = MAX_SPAN.0)))]
    pub keep: Span,
    /// Of an alloc set: the job, inside the set and of the same owner, that is run on what an alloc
    /// left when it ended, again and again until it succeeds or the time is over. `None`: nobody.
    pub log_saver: Option<Name>,
}

/// A job or alloc set as its owner wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    pub name: Name,
    /// Left out: tasks.
    #[serde(default)]
    pub kind: JobKind,
    /// How many tasks; of a daemon, which has one for each machine, nothing else than 1. Left out:
    /// 1.
    #[serde(default = "defaults::one")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_TASKS)))]
    pub count: u32,
    pub priority: Priority,
    /// Left out: latency-sensitive in the bands production and monitoring, batch below.
    pub appclass: Option<AppClass>,
    /// Left out: none.
    #[serde(default)]
    pub labels: Labels,
    pub task: TaskSpec,
    /// By task index. Left out: none.
    #[serde(default)]
    pub overrides: BTreeMap<u32, TaskOverride>,
    /// Left out: none.
    #[serde(default)]
    pub constraints: Vec<Constraint>,
    /// Left out: none.
    #[serde(default)]
    pub spread: Vec<SpreadLimit>,
    /// The alloc set inside which the tasks run; they charge it and nothing else.
    pub alloc_set: Option<JobKey>,
    /// Jobs that have to end before this one starts: one, or a list of them. Left out: none.
    #[serde(default, deserialize_with = "dependency::one_or_more")]
    pub after: Vec<JobDependency>,
    /// All tasks are placed together or none is. Left out: false.
    #[serde(default)]
    pub gang: bool,
    /// Of a gang that lost a task: milliseconds until it is whole again or gives back all that it
    /// holds. Left out: 60,000.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1, "maximum" = MAX_SPAN.0)))]
    pub repair: Option<Span>,
    /// Most tasks that may be down at once through what the system chooses to do; what a higher
    /// priority band takes is no choice. `None`: no bound.
    pub max_down: Option<u32>,
    /// Most task disruptions one update may cause; changes beyond are skipped and reported.
    pub max_update_disruptions: Option<u32>,
    /// Most milliseconds of notice for those whom tasks of this job push out, however much they ask
    /// for themselves. `None`: as they ask.
    #[cfg_attr(feature = "schema", schemars(extend("maximum" = MAX_SPAN.0)))]
    pub preemption_notice_max: Option<Span>,
    #[serde(default)]
    pub restart: RestartPolicy,
    /// Whether unused resources may be lent to non-prod work. Switching it off takes a capability.
    /// Left out: true.
    #[serde(default = "defaults::yes")]
    pub reclaimable: bool,
    /// Lease, in milliseconds, of a job of which two instances of a task must never overlap.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1, "maximum" = MAX_SPAN.0)))]
    pub at_most_one: Option<Span>,
    pub retain_disk: Option<RetainDisk>,
    /// How many tasks the system may choose to disrupt over time, however few are down at once.
    /// `None`: no bound.
    pub disruptions: Option<DisruptionLimit>,
    /// Of a job inside an alloc set: which of its tasks go into which alloc. Left out: by index.
    #[serde(default)]
    pub alloc_pairing: AllocPairing,
    /// Which tasks get a new version first, and when the cell goes back by itself.
    #[serde(default)]
    pub update: UpdatePolicy,
    /// How the cell chooses the number of tasks and their limits. `count` and the limits are the
    /// first ones then, and an update keeps those chosen since. `None`: they stay as they are.
    pub scale: Option<ScalePolicy>,
}

impl TaskSpec {
    /// A task spec with these limits and no command; all other fields have their defaults.
    #[must_use]
    pub fn new(limits: Resources) -> TaskSpec {
        TaskSpec {
            limits,
            ports: 0,
            static_ports: Vec::new(),
            named: Vec::new(),
            devices: Vec::new(),
            packages: Vec::new(),
            command: Vec::new(),
            env: BTreeMap::new(),
            notice: defaults::notice(),
            health: None,
            max_run: None,
            files: BTreeMap::new(),
            user: None,
            logs: None,
            archive_logs: false,
            isolation: Isolation::default(),
            secrets: BTreeMap::new(),
        }
    }
}

impl JobSpec {
    /// A job of [such](TaskSpec::new) tasks; all other fields have their defaults.
    #[must_use]
    pub fn new(name: Name, count: u32, priority: Priority, limits: Resources) -> JobSpec {
        JobSpec {
            name,
            kind: JobKind::default(),
            count,
            priority,
            appclass: None,
            labels: Labels::new(),
            task: TaskSpec::new(limits),
            overrides: BTreeMap::new(),
            constraints: Vec::new(),
            spread: Vec::new(),
            alloc_set: None,
            after: Vec::new(),
            gang: false,
            repair: None,
            max_down: None,
            max_update_disruptions: None,
            preemption_notice_max: None,
            restart: RestartPolicy::default(),
            reclaimable: defaults::yes(),
            at_most_one: None,
            retain_disk: None,
            disruptions: None,
            alloc_pairing: AllocPairing::default(),
            update: UpdatePolicy::default(),
            scale: None,
        }
    }

    /// How machines treat its tasks' CPU time.
    #[must_use]
    pub fn appclass(&self) -> AppClass {
        self.appclass.unwrap_or_else(|| AppClass::of_priority(self.priority))
    }

    /// Whether its tasks are packed by their limits, so that they never depend on what others leave
    /// unused: latency-sensitive ones of production (B40). All others are packed by their
    /// reservations, and give way where those prove too small.
    #[must_use]
    pub fn is_packed_by_limits(&self) -> bool {
        self.priority.is_prod() && self.appclass() == AppClass::LatencySensitive
    }

    /// The spec with its secrets redacted.
    #[must_use]
    pub fn redacted(&self) -> JobSpec {
        let mut spec = self.clone();
        spec.task.secrets.values_mut().for_each(|value| *value = Secret::redacted());
        spec
    }

    /// The part of the spec that everybody in the cell may see: how much it asks for, where it may
    /// go and how it is treated, but not what it runs.
    #[must_use]
    pub fn public_view(&self) -> JobSpec {
        let mut spec = self.clone();
        let task = &mut spec.task;
        task.packages.clear();
        task.command.clear();
        task.env.clear();
        task.files.clear();
        task.secrets.clear();
        task.isolation.root = None;
        match task.health.as_mut().map(|check| &mut check.probe) {
            Some(Probe::Command(command)) => command.clear(),
            Some(Probe::Http { path, .. }) => path.clear(),
            Some(Probe::Tcp { .. }) | None => {}
        }
        for own in spec.overrides.values_mut() {
            (own.command, own.env) = (None, None);
        }
        spec
    }

    /// Limits of the task at `index`, with its override applied.
    #[must_use]
    pub fn limits_of(&self, index: u32) -> Resources {
        let own = self.overrides.get(&index).and_then(|o| o.limits).unwrap_or_default();
        own.over(self.task.limits)
    }

    /// Command of the task at `index`, with its override applied.
    #[must_use]
    pub fn command_of(&self, index: u32) -> &[String] {
        let own = self.overrides.get(&index).and_then(|o| o.command.as_ref());
        own.unwrap_or(&self.task.command)
    }

    /// Environment of the task at `index`, with its override applied.
    #[must_use]
    pub fn env_of(&self, index: u32) -> Cow<'_, BTreeMap<String, String>> {
        let Some(own) = self.overrides.get(&index).and_then(|o| o.env.as_ref()) else {
            return Cow::Borrowed(&self.task.env);
        };
        let mut env = self.task.env.clone();
        env.extend(own.iter().map(|(name, value)| (name.clone(), value.clone())));
        Cow::Owned(env)
    }

    /// Sum of the limits of all tasks.
    #[must_use]
    pub fn total_limits(&self) -> Resources {
        self.total_charge(Resources::ZERO)
    }

    /// What quota is charged for the task at `index`: its limits, or `least` where that is more.
    #[must_use]
    pub fn charge_of(&self, index: u32, least: Resources) -> Resources {
        self.limits_of(index).max(least)
    }

    /// What admission charges for all tasks.
    #[must_use]
    pub fn total_charge(&self, least: Resources) -> Resources {
        let overridden = self.overrides.range(..self.count).filter(|(_, o)| o.limits.is_some());
        let plain = u64::from(self.count) - overridden.clone().count() as u64;
        overridden.fold(self.task.limits.max(least).times(plain), |sum, (index, _)| {
            sum.plus(self.charge_of(*index, least))
        })
    }

    /// The tightest spread limit over `domain`.
    #[must_use]
    pub fn spread_limit(&self, domain: Domain) -> Option<u32> {
        self.spread.iter().filter(|s| s.domain == domain).map(|s| s.limit).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_changes_what_it_names_and_nothing_else() {
        let mut spec = crate::apply::fixture::job("jfoo", 3, 100);
        spec.task.limits = Resources::new(500, 1000, 2000, 30);
        let env = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
        };
        spec.task.env = env(&[("A", "1"), ("B", "2")]);
        let limits = LimitsOverride { ram: Some(7), ..LimitsOverride::default() };
        let own = TaskOverride {
            limits: Some(limits),
            command: None,
            env: Some(env(&[("B", "3"), ("C", "4")])),
        };
        spec.overrides.insert(1, own);
        assert_eq!(spec.limits_of(0), Resources::new(500, 1000, 2000, 30));
        assert_eq!(spec.limits_of(1), Resources::new(500, 7, 2000, 30));
        assert_eq!(spec.total_limits(), Resources::new(1500, 2007, 6000, 90));
        assert_eq!(*spec.env_of(0), env(&[("A", "1"), ("B", "2")]));
        assert_eq!(*spec.env_of(1), env(&[("A", "1"), ("B", "3"), ("C", "4")]));
        assert_eq!(spec.command_of(1), spec.command_of(0));
    }

    #[test]
    fn a_new_job_is_what_is_read_where_all_else_is_left_out() {
        let text = r#"{"name": "web", "count": 3, "priority": 200,
                       "task": {"limits": {"cpu": 500, "ram": 7}, "command": []}}"#;
        let limits = Resources { cpu: 500, ram: 7, ..Resources::ZERO };
        let spec = JobSpec::new(Name::new("web").unwrap(), 3, Priority(200), limits);
        assert_eq!(serde_json::from_str::<JobSpec>(text).unwrap(), spec);
    }
}
