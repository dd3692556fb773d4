//! Resource control on a crowded machine: which tasks are killed or throttled, and when the masters
//! are asked for an eviction (B38, B39). A pure step from samples to actions, called once a second
//! by the agent; it reads no clock and touches nothing.
//!
//! The rules, in the order of their weight:
//!
//! 1. A task over its own limit of memory or disk goes first, whatever its priority.
//! 2. What cannot be throttled (memory, disk space) is freed by killing, lowest priority first, and
//!    no more than needed. A latency-sensitive production task within its limit
//!    is never killed: what it may use is there.
//! 3. What can be throttled (CPU, disk rate) is taken from batch, lowest priority first, and only
//!    while a latency-sensitive task within its limit is starved.
//! 4. A latency-sensitive task that takes more than its limit may starve batch for seconds. After
//!    that its excess is throttled, never what is within its limit.
//! 5. Reserved cores are closed to other latency-sensitive tasks; batch runs anywhere.
//! 6. Where that does not help for a minute, the masters are asked for an eviction, and again after
//!    every further minute: one may not suffice. A machine counts as short until it has been well
//!    for as long, so that an evicted task is not placed straight back.
//!
//! All state is per attempt, not per task: the next attempt runs in a cgroup without settings, and
//! is not to blame for the one before.
//!
//! Every action carries its reason and, where a task is killed for a shortage, who took how much:
//! the owner of the killed task must not have to guess. Rejected: pressure figures (PSI) as the
//! only signal, which v1 machines without the unified hierarchy do not have; killing by size, which
//! punishes the large and well-behaved.

mod cores;
mod kills;
mod pressure_eviction;
mod throttle;

#[cfg(test)]
mod tests;

use crate::cpus::CpuList;
use crate::usage::Usage;
use cellwright_cell::desired::RunSpec;
use cellwright_cell::id::{Attempt, TaskId};
use cellwright_cell::machine::ResourcePressureReport;
use cellwright_cell::priority::{AppClass, Priority};
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_cell::task::ExitClass;
use cellwright_cell::time::{Span, Time};
use kills::KilledTask;
use pressure_eviction::PressureEviction;
pub use pressure_eviction::{CONFIRM_WITHIN, PressureHistory};
use std::collections::{BTreeMap, BTreeSet};
use throttle::Throttle;

/// How long batch may be starved by tasks over their limit.
pub const BATCH_STARVATION_LIMIT: Span = Span::seconds(20);
/// How long a shortage lasts before the masters are asked for an eviction, unless configured
/// otherwise.
pub const EVICTION_REQUEST_DELAY: Span = Span::seconds(60);
/// How long a task may take to die before the kill is repeated, and what it holds does not count as
/// free any more.
pub const KILL_TIMEOUT: Span = Span::seconds(10);
/// How long after its end the files of a killed task count as removed.
pub const CLEANUP_TIMEOUT: Span = Span::seconds(60);

/// The resources that are available on the machine now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AvailableResources {
    /// Bytes that programs could still get without hurting one another.
    pub ram_available: u64,
    pub disk_free: u64,
    /// How many more files the disk can hold. File systems that do not count them say 0 of 0, which
    /// becomes `u64::MAX`.
    pub files_free: u64,
}

/// The part of memory and disk that is kept free by killing: a fiftieth.
const RESERVE_DIVISOR: u64 = 50;
/// And of a large disk no more than this: agents and shims write little, and a disk of terabytes is
/// not short while tens of gigabytes are free.
const MAX_DISK_RESERVE: u64 = 2 << 30;
/// And this many free files: shims and agents write small ones.
const FILE_RESERVE: u64 = 10_000;

impl AvailableResources {
    /// What a machine keeps free: with less it is short.
    #[must_use]
    pub fn reserve_for(capacity: Resources) -> AvailableResources {
        AvailableResources {
            ram_available: capacity.ram / RESERVE_DIVISOR,
            disk_free: MAX_DISK_RESERVE.min(capacity.disk / RESERVE_DIVISOR),
            files_free: FILE_RESERVE,
        }
    }
}

/// One task as it was sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSample {
    pub attempt: Attempt,
    pub class: AppClass,
    pub priority: Priority,
    /// For disk, 0 means that there is no limit: then only a shortage of the machine counts.
    pub limits: Resources,
    /// What the cell expects it to use; at most the limits.
    pub reservation: Resources,
    pub used: Resources,
    /// Milli-cores it wanted and did not get; `None` where the kernel does not report it.
    pub cpu_unmet: Option<u64>,
    /// Whole cores it has reserved, for itself among the latency-sensitive.
    pub whole_cores: u32,
    /// Files and directories it has on the machine's disk.
    pub files: u64,
    /// May use CPU that others leave, beyond its limit.
    pub slack_cpu: bool,
    /// May use memory that others leave, and is killed first when they want it back.
    pub slack_ram: bool,
}

impl TaskSample {
    /// The order's limits, and what was measured.
    #[must_use]
    pub fn of(attempt: Attempt, work: &RunSpec, usage: &Usage, files: u64) -> TaskSample {
        TaskSample {
            attempt,
            class: work.appclass,
            priority: work.priority,
            limits: work.limits,
            reservation: work.reservation,
            used: usage.now,
            cpu_unmet: usage.cpu_unmet,
            whole_cores: work.isolation.whole_cores,
            files,
            slack_cpu: work.isolation.slack_cpu,
            slack_ram: work.isolation.slack_ram,
        }
    }

    fn is_batch(&self) -> bool {
        self.class == AppClass::Batch
    }

    /// Whether the cell packed it by its limits, so that they are there for it.
    fn is_packed_by_limits(&self) -> bool {
        self.priority.is_prod() && !self.is_batch()
    }
}

/// The machine as it was sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineSample {
    /// What tasks may use in all. A disk rate of 0 is unknown, and then not controlled.
    pub capacity: Resources,
    pub available: AvailableResources,
    /// Below this it is short.
    pub reserve: AvailableResources,
    pub cores: Vec<CpuList>,
    /// Thousandths of the machine's CPU time that were idle since the last pass, counting tasks and
    /// all else; `None` where that is not known.
    pub idle_permille: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// `None`: no cap.
    Cap {
        attempt: Attempt,
        dimension: Dimension,
        cap: Option<u64>,
        why: CapReason,
    },
    RunOn {
        attempt: Attempt,
        cpus: CpuList,
    },
    /// The cores it reserved are not free; it runs on those that are.
    NoFreeCores {
        attempt: Attempt,
        requested: u32,
        free: u32,
    },
    /// Memory up to `protect` is reclaimed last; above `throttle` the task is made to free some
    /// first.
    SizeMemory {
        attempt: Attempt,
        protect: u64,
        throttle: Option<u64>,
    },
    Kill {
        attempt: Attempt,
        reason: KillReason,
    },
    /// The machine has been short for a while and cannot relieve itself; `requested` counts the
    /// requests so far.
    RequestEviction {
        dimension: Dimension,
        since: Time,
        requested: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapReason {
    /// It may not use slack.
    OwnLimit,
    /// Latency-sensitive tasks within their limits were starved.
    Yields,
    /// It took more than its limit while batch had next to nothing.
    StarvedBatch { since: Time },
    /// The resource is free again.
    Eased,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillReason {
    pub dimension: Dimension,
    pub used: u64,
    pub cause: KillCause,
    /// Tasks over their reservations, most first.
    pub blamed: Vec<Blame>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillCause {
    OverLimit {
        limit: u64,
    },
    /// The disk could hold `short` files too few; this one had `files`, and no task of lower
    /// priority was left.
    Files {
        short: u64,
        files: u64,
        priority: Priority,
    },
    /// The machine lacked `short` bytes, and no task of lower priority was left.
    ResourcePressure {
        short: u64,
        priority: Priority,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blame {
    pub attempt: Attempt,
    pub used: u64,
    pub reservation: u64,
}

impl KillReason {
    /// The exit class of a kill for the masters, with the task that took what was short. A kill for
    /// a shortage of disk space is no failure of the task.
    #[must_use]
    pub fn exit_class(&self, killed: Attempt) -> Option<ExitClass> {
        let others = || self.blamed.iter().map(|blame| blame.attempt);
        let to = others().find(|other| *other != killed && !other.is_log_saver());
        match (self.dimension, self.cause) {
            (Dimension::Disk, KillCause::OverLimit { .. }) => Some(ExitClass::OverDiskLimit),
            (Dimension::Disk, KillCause::ResourcePressure { .. })
            | (_, KillCause::Files { .. }) => None,
            (_, KillCause::OverLimit { .. }) => Some(ExitClass::OutOfMemory),
            (_, KillCause::ResourcePressure { .. }) => {
                Some(to.map_or(ExitClass::OutOfMemoryBystander, |to| ExitClass::GaveWayTo(to.task)))
            }
        }
    }

    /// The reason as text; `name` returns the name of a task for people.
    #[must_use]
    pub fn describe(&self, name: impl Fn(TaskId) -> String) -> String {
        let (what, used) = (self.dimension, self.used);
        let mut text = match self.cause {
            KillCause::OverLimit { limit } => {
                let over = used.saturating_sub(limit);
                format!("{what}: used {used}, {over} over its limit of {limit}")
            }
            KillCause::ResourcePressure { short, priority } => {
                let Priority(level) = priority;
                format!("{what}: the machine lacked {short}; priority {level}, held {used}")
            }
            KillCause::Files { short, files, priority } => {
                let Priority(level) = priority;
                format!("{what}: no room for {short} files; priority {level}, had {files} files")
            }
        };
        for (index, blame) in self.blamed.iter().enumerate() {
            let over = blame.used.saturating_sub(blame.reservation);
            text.push_str(if index == 0 { "; over their reservations: " } else { ", " });
            text.push_str(&format!("{} by {over}", name(blame.attempt.task)));
        }
        text
    }
}

/// The state: decisions that still hold.
#[derive(Clone, Debug)]
pub struct ResourceControl {
    cpu: Throttle,
    disk_rate: Throttle,
    cpus: BTreeMap<Attempt, CpuList>,
    reserved_cores: BTreeMap<Attempt, Vec<CpuList>>,
    rejected_reservations: BTreeMap<Attempt, (u32, u32)>,
    memory: BTreeMap<Attempt, (u64, Option<u64>)>,
    dying: BTreeMap<Attempt, KilledTask>,
    starved_since: Option<Time>,
    /// When the caps of tasks over their limits were last changed.
    last_throttled: Option<Time>,
    pressure_eviction: PressureEviction,
}

impl Default for ResourceControl {
    fn default() -> ResourceControl {
        ResourceControl {
            cpu: Throttle::new(Dimension::Cpu, 20),
            disk_rate: Throttle::new(Dimension::DiskRate, 256 << 10),
            cpus: BTreeMap::new(),
            reserved_cores: BTreeMap::new(),
            rejected_reservations: BTreeMap::new(),
            memory: BTreeMap::new(),
            dying: BTreeMap::new(),
            starved_since: None,
            last_throttled: None,
            pressure_eviction: PressureEviction::new(EVICTION_REQUEST_DELAY),
        }
    }
}

impl ResourceControl {
    /// Requests an eviction after `request_delay` of shortage, and resumes from another's history.
    #[must_use]
    pub fn with_request_delay(
        request_delay: Span,
        history: PressureHistory,
        now: Time,
    ) -> ResourceControl {
        ResourceControl {
            pressure_eviction: PressureEviction::resume(history, request_delay, now),
            ..ResourceControl::default()
        }
    }

    /// What the next instance has to know: all else it finds out by itself.
    #[must_use]
    pub fn pressure_history(&self, now: Time) -> PressureHistory {
        self.pressure_eviction.history(now)
    }

    /// The shortages to report to the masters, in the order of dimensions.
    #[must_use]
    pub fn resource_pressure(&self, now: Time) -> Vec<ResourcePressureReport> {
        self.pressure_eviction.resource_pressure(now)
    }

    /// One pass, one list of actions, to be done in this order. What holds already is not repeated,
    /// so an agent that restarts begins with a new `ResourceControl` and sets everything once.
    pub fn step(
        &mut self,
        now: Time,
        machine: &MachineSample,
        tasks: &[TaskSample],
    ) -> Vec<Action> {
        self.prune_gone_tasks(now, tasks);
        let mut actions = Vec::new();
        self.kill(now, machine, tasks, &mut actions);
        let alive: Vec<&TaskSample> =
            tasks.iter().filter(|task| !self.is_dying(task.attempt)).collect();
        self.share_cores(machine, &alive, &mut actions);
        self.share_cpu(now, machine, &alive, &mut actions);
        self.share_disk_rate(now, machine, &alive, &mut actions);
        self.size_memory(machine, &alive, &mut actions);
        self.pressure_eviction.request_evictions(now, &mut actions);
        actions
    }

    /// Whether it was killed and is still there.
    #[must_use]
    pub fn is_dying(&self, attempt: Attempt) -> bool {
        self.dying.get(&attempt).is_some_and(|dying| dying.exited.is_none())
    }

    /// The killed tasks whose files count as removed, and may be so by now.
    pub fn awaiting_cleanup(&self) -> impl Iterator<Item = Attempt> + '_ {
        let waits = |dying: &KilledTask| {
            dying.exited.is_some() && (dying.last_usage.disk, dying.files) != (0, 0)
        };
        self.dying.iter().filter(move |(_, dying)| waits(dying)).map(|(attempt, _)| *attempt)
    }

    /// Its files are removed: from here on the disk's free space includes them. To be called before
    /// the disk is next sampled.
    pub fn cleaned_up(&mut self, attempt: Attempt) {
        if let Some(dying) = self.dying.get_mut(&attempt) {
            (dying.last_usage.disk, dying.files) = (0, 0);
        }
    }

    /// Tasks whose CPU is capped below what they could otherwise use.
    #[must_use]
    pub fn cpu_caps(&self) -> &BTreeMap<Attempt, u64> {
        self.cpu.caps()
    }

    fn prune_gone_tasks(&mut self, now: Time, tasks: &[TaskSample]) {
        let present: BTreeSet<Attempt> = tasks.iter().map(|task| task.attempt).collect();
        self.cpu.retain(&present);
        self.disk_rate.retain(&present);
        self.cpus.retain(|task, _| present.contains(task));
        self.reserved_cores.retain(|task, _| present.contains(task));
        self.rejected_reservations.retain(|task, _| present.contains(task));
        self.memory.retain(|task, _| present.contains(task));
        self.track_killed(now, tasks);
    }

    /// Prod is protected up to its predicted usage. Others are sized by pressure: while memory gets
    /// scarce, their current usage is the mark above which they must free some first.
    fn size_memory(
        &mut self,
        machine: &MachineSample,
        tasks: &[&TaskSample],
        actions: &mut Vec<Action>,
    ) {
        let is_scarce =
            machine.available.ram_available < machine.reserve.ram_available.saturating_mul(2);
        for sample in tasks {
            let before = self.memory.get(&sample.attempt).copied().unwrap_or((0, None));
            let after = if sample.priority.is_prod() {
                (sample.reservation.ram, None)
            } else if is_scarce {
                // Kept once set: a mark that followed the usage would never throttle.
                (0, before.1.or(Some(sample.used.ram.max(16 << 20))))
            } else {
                (0, None)
            };
            if after != before {
                self.memory.insert(sample.attempt, after);
                let (attempt, (protect, throttle)) = (sample.attempt, after);
                actions.push(Action::SizeMemory { attempt, protect, throttle });
            }
        }
    }
}
