//! The watcher: samples every task of the machine once a second and applies resource control
//! (B38-B40): reads the usage of their cgroups, asks [`ResourceControl`] what is to be done, and
//! does it. What needs the agent's loop, kills and advertised attributes, is handed to it as
//! findings.
//!
//! It runs in a thread of its own: reading hundreds of the kernel's files must not delay an order.
//! A pass that takes longer than a second makes the next one late, never two at once. What a task
//! can make slow, counting its files and scanning its open ones, is done in another thread
//! ([`count`]): no task escapes a kill by having too much to count.

mod alloc_disk;
mod count;
mod deleted_files;
mod pressure_store;
mod recent_kills;
mod resize;

use crate::calibration::CpuFactor;
use crate::config::DiskScanLimits;
pub use alloc_disk::AllocDisk;
use cellwright_agent_core::resize::PendingResize;
use cellwright_agent_core::resource_control::{
    Action, AvailableResources, MachineSample, ResourceControl, TaskSample,
};
use cellwright_agent_core::usage::{self, LatestReading, Meter};
use cellwright_cell::id::Attempt;
use cellwright_cell::id::TaskId;
use cellwright_cell::isolation::Isolation;
use cellwright_cell::machine::ResourcePressureReport;
use cellwright_cell::observed::LimitsInForce;
use cellwright_cell::priority::{AppClass, Priority};
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_cell::task::ExitClass;
use cellwright_cell::time::{Span, Time};
use cellwright_isolate::Error;
use cellwright_isolate::cgroup::{BlockDevice, CpuList, Group, GroupUsage};
use cellwright_isolate::machine::{CpuTime, available_resources, cpu_time};
use cellwright_isolate::usage::group_reading;
use cellwright_supervise::{Supervisor, failpoint};
use count::Counts;
use pressure_store::PressureStore;
use recent_kills::RecentKills;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One task to watch.
#[derive(Clone, Debug)]
pub struct WatchedTask {
    pub attempt: Attempt,
    /// `user/job/index`.
    pub name: String,
    pub group: Group,
    /// Its own folder.
    pub folder: PathBuf,
    /// The disk space that it shares with others of its alloc.
    pub alloc_disk: Option<AllocDisk>,
    pub class: AppClass,
    pub priority: Priority,
    /// Those in force.
    pub limits: Resources,
    /// A change of them that is not in force yet.
    pub resize: Option<PendingResize>,
    /// What the masters expect it to use: a task above it is to blame for a shortage.
    pub reservation: Resources,
    pub isolation: Isolation,
    /// The ports assigned to it.
    pub ports: Vec<u16>,
}

/// What the loop has to know or do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It must be killed, at once.
    Condemned { class: Option<ExitClass>, why: String },
    /// It listens on ports that were not assigned to it; empty when it does not any more.
    UnassignedPorts(BTreeSet<u16>),
    /// Its cgroup has these limits now.
    Resized(LimitsInForce),
}

/// An alloc whose limits are to be changed.
#[derive(Clone, Debug)]
pub struct ResizedAlloc {
    pub name: String,
    pub group: Group,
    pub resize: PendingResize,
}

/// What to look at in one pass.
#[derive(Clone, Debug, Default)]
pub struct WatchList {
    pub tasks: Vec<WatchedTask>,
    pub allocs: Vec<ResizedAlloc>,
}

/// The watcher's readings, for the report.
#[derive(Clone, Default)]
pub struct Readings {
    tasks: Arc<Mutex<usage::Readings>>,
    resource_pressure: Arc<Mutex<Vec<ResourcePressureReport>>>,
}

impl Readings {
    fn lock(&self) -> MutexGuard<'_, usage::Readings> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_resource_pressure(&self) -> MutexGuard<'_, Vec<ResourcePressureReport>> {
        self.resource_pressure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the machine is short of and cannot relieve itself.
    #[must_use]
    pub fn resource_pressure(&self) -> Vec<ResourcePressureReport> {
        self.lock_resource_pressure().clone()
    }

    /// All readings as they are.
    #[must_use]
    pub fn latest(&self) -> BTreeMap<Attempt, LatestReading> {
        self.lock().latest().clone()
    }

    /// All readings; peaks begin anew.
    #[must_use]
    pub fn take(&self) -> BTreeMap<Attempt, LatestReading> {
        self.lock().take()
    }
}

/// What the watcher has to know of the machine.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// What tasks may use in all; a disk rate of 0 is unknown.
    pub capacity: Resources,
    pub cores: Vec<CpuList>,
    /// Limits that change come in cores of the cell.
    pub cpu_factor: CpuFactor,
    /// Where tasks have their folders.
    pub data: PathBuf,
    /// How long a shortage lasts before the masters are asked for an eviction.
    pub eviction_request_delay: Span,
    /// How much of what tasks have on disk is counted.
    pub scan_limits: DiskScanLimits,
}

/// Starts to watch. A list of tasks that is sent is sampled at once; `found` is called with the
/// findings. Ends when the sender is dropped.
///
/// # Errors
/// When the system gives no thread.
pub fn start(
    machine: MachineConfig,
    readings: Readings,
    found: impl Fn(Attempt, Finding) + Clone + Send + 'static,
    supervisor: &Supervisor,
) -> std::io::Result<SyncSender<WatchList>> {
    let (send, lists): (_, Receiver<WatchList>) = sync_channel(1);
    let counts = Counts::default();
    let scan_limits = machine.scan_limits;
    let mut watcher = Watcher::new(crate::boot::now(), machine, readings, counts.clone());
    let counter = count::start(counts, scan_limits, found.clone(), supervisor)?;
    supervisor.spawn_thread("watch", move || {
        while let Ok(WatchList { mut tasks, allocs }) = lists.recv() {
            failpoint("watch");
            let mut findings = watcher.resize(&mut tasks, &allocs);
            findings.extend(watcher.run_pass(crate::boot::now(), &tasks));
            findings.into_iter().for_each(|(attempt, finding)| found(attempt, finding));
            // A count that is not over yet is not hurried.
            let _ = counter.try_send(tasks);
        }
    })?;
    Ok(send)
}

struct Watcher {
    machine: MachineConfig,
    reserve: AvailableResources,
    disk: Option<BlockDevice>,
    control: ResourceControl,
    meters: BTreeMap<Attempt, Meter>,
    /// The usage of each cgroup at its last sample.
    used: BTreeMap<Attempt, GroupUsage>,
    /// The limits of cgroups that are being changed.
    in_force: BTreeMap<Attempt, Resources>,
    readings: Readings,
    /// Their disk usage, as far as it was counted.
    counts: Counts,
    /// The tasks that were killed with their alloc.
    recent_kills: RecentKills,
    /// For the next agent.
    pressure_store: PressureStore,
    /// CPU time of the whole machine at the last pass.
    cpu_time: Option<CpuTime>,
}

impl Watcher {
    fn new(now: u64, machine: MachineConfig, readings: Readings, counts: Counts) -> Watcher {
        let reserve = AvailableResources::reserve_for(machine.capacity);
        let disk = BlockDevice::of(&machine.data).ok().flatten();
        let pressure_store = PressureStore::open(&machine.data);
        let control = ResourceControl::with_request_delay(
            machine.eviction_request_delay,
            pressure_store.history().clone(),
            Time(now),
        );
        // A report may be sent before the first pass.
        *readings.lock_resource_pressure() = control.resource_pressure(Time(now));
        Watcher {
            control,
            machine,
            reserve,
            disk,
            meters: BTreeMap::new(),
            used: BTreeMap::new(),
            in_force: BTreeMap::new(),
            readings,
            counts,
            recent_kills: RecentKills::default(),
            pressure_store,
            cpu_time: None,
        }
    }

    /// How much of the machine's CPU time was idle since the last pass; nothing at the first.
    fn idle_permille(&mut self) -> Option<u64> {
        let before = std::mem::replace(&mut self.cpu_time, cpu_time().ok());
        self.cpu_time?.idle_permille_since(before?)
    }

    fn run_pass(&mut self, now: u64, tasks: &[WatchedTask]) -> Vec<(Attempt, Finding)> {
        self.prune_gone_tasks(tasks);
        self.credit_removed_files();
        let samples: Vec<TaskSample> =
            tasks.iter().filter_map(|task| self.sample(now, task)).collect();
        let used = |attempt| self.counts.of(attempt).bytes;
        let mut findings = alloc_disk::over_limit(tasks, used, &mut self.recent_kills, now);
        match available_resources(&self.machine.data) {
            Ok(available) => findings.extend(self.rebalance(now, available, &samples, tasks)),
            Err(error) => tracing::error!(%error, "the machine does not say what is free"),
        }
        findings
    }

    /// Removed files of killed tasks are free space by now, which the disk is about to report
    /// itself. Files in the trash have left their task's folder.
    fn credit_removed_files(&mut self) {
        let data = &self.machine.data;
        let is_removed =
            |attempt: &Attempt| !data.join("tasks").join(attempt.to_string()).join("work").exists();
        let removed: Vec<Attempt> = self.control.awaiting_cleanup().filter(is_removed).collect();
        if removed.is_empty() {
            return;
        }
        // After the folders: what is discarded from now on was not checked.
        let nothing_left =
            std::fs::read_dir(data.join("trash")).is_ok_and(|mut all| all.next().is_none());
        if nothing_left {
            removed.into_iter().for_each(|attempt| self.control.cleaned_up(attempt));
        }
    }

    fn prune_gone_tasks(&mut self, tasks: &[WatchedTask]) {
        let there: BTreeSet<Attempt> = tasks.iter().map(|task| task.attempt).collect();
        self.meters.retain(|attempt, _| there.contains(attempt));
        self.used.retain(|attempt, _| there.contains(attempt));
        self.recent_kills.retain(&there);
        self.readings.lock().retain(|attempt| there.contains(&attempt));
    }

    /// Nothing at the first sample, which gives no rates, and for a cgroup that is gone by now.
    fn sample(&mut self, now: u64, task: &WatchedTask) -> Option<TaskSample> {
        if !self.meters.contains_key(&task.attempt) {
            self.lift_limits(task);
        }
        let usage = match self.used.get(&task.attempt) {
            Some(before) => task.group.usage_after(*before).ok()?,
            None => task.group.usage().ok()?,
        };
        self.used.insert(task.attempt, usage);
        let reading = group_reading(&usage);
        let disk = self.counts.of(task.attempt);
        self.readings.lock().record(task.attempt, now, reading, disk.bytes);
        let meter = self.meters.entry(task.attempt).or_default();
        let used = meter.measure(Duration::from_millis(now), reading, disk.bytes)?;
        Some(TaskSample {
            attempt: task.attempt,
            class: task.class,
            priority: task.priority,
            limits: task.limits,
            reservation: task.reservation,
            used: used.now,
            cpu_unmet: used.cpu_unmet,
            whole_cores: task.isolation.whole_cores,
            files: disk.entries,
            slack_cpu: task.isolation.slack_cpu,
            slack_ram: task.isolation.slack_ram,
        })
    }

    /// Limits that an earlier agent set are not known any more, so they are lifted.
    fn lift_limits(&self, task: &WatchedTask) {
        let own = (!task.isolation.slack_cpu).then_some(task.limits.cpu.max(1));
        let cpus = self.machine.cores.iter().flat_map(|core| core.as_slice().iter().copied());
        let all = CpuList::new(cpus.collect());
        log_failure(task, task.group.set_cpu_cap(own));
        log_failure(task, task.group.set_cpus(&all));
        if let Some(disk) = self.disk {
            log_failure(task, task.group.set_io_cap(disk, None));
        }
    }

    fn rebalance(
        &mut self,
        now: u64,
        available: AvailableResources,
        samples: &[TaskSample],
        tasks: &[WatchedTask],
    ) -> Vec<(Attempt, Finding)> {
        let machine = MachineSample {
            capacity: self.machine.capacity,
            available,
            reserve: self.reserve,
            cores: self.machine.cores.clone(),
            idle_permille: self.idle_permille(),
        };
        let by_attempt: BTreeMap<Attempt, &WatchedTask> =
            tasks.iter().map(|task| (task.attempt, task)).collect();
        let mut findings = Vec::new();
        for action in self.control.step(Time(now), &machine, samples) {
            findings.extend(self.apply_action(action, &by_attempt));
        }
        *self.readings.lock_resource_pressure() = self.control.resource_pressure(Time(now));
        self.pressure_store.save(self.control.pressure_history(Time(now)));
        findings
    }

    fn apply_action(
        &self,
        action: Action,
        tasks: &BTreeMap<Attempt, &WatchedTask>,
    ) -> Option<(Attempt, Finding)> {
        let of = |attempt: Attempt| tasks.get(&attempt).copied();
        match action {
            Action::Cap { attempt, dimension, cap, why } => {
                let task = of(attempt)?;
                tracing::info!(task = task.name, %dimension, ?cap, ?why, "capped");
                match (dimension, self.disk) {
                    (Dimension::Cpu, _) => log_failure(task, task.group.set_cpu_cap(cap)),
                    (Dimension::DiskRate, Some(disk)) => {
                        log_failure(task, task.group.set_io_cap(disk, cap));
                    }
                    _ => {}
                }
            }
            Action::RunOn { attempt, cpus } => {
                let task = of(attempt)?;
                log_failure(task, task.group.set_cpus(&cpus));
            }
            Action::SizeMemory { attempt, protect, throttle } => {
                let task = of(attempt)?;
                log_failure(task, task.group.set_memory_soft(protect, throttle));
            }
            Action::NoFreeCores { attempt, requested, free } => {
                let task = &of(attempt)?.name;
                tracing::warn!(task, requested, free, "fewer cores are free than it reserved");
            }
            // The masters get the request with the report.
            Action::RequestEviction { dimension, requested, .. } => {
                tracing::warn!(%dimension, requested, "short for long, asking masters to evict");
            }
            Action::Kill { attempt, reason } => {
                let name = |task: TaskId| {
                    let found = tasks.values().find(|watched| watched.attempt.task == task);
                    found.map_or_else(String::new, |found| found.name.clone())
                };
                let why = reason.describe(name);
                let (task, class) = (of(attempt)?, reason.exit_class(attempt));
                tracing::warn!(task = task.name, why, "killed");
                return Some((task.attempt, Finding::Condemned { class, why }));
            }
        }
        None
    }
}

/// A limit that the kernel refuses is logged; the task goes on without it. Missing controllers were
/// logged when the task started.
fn log_failure(task: &WatchedTask, done: Result<(), Error>) {
    log_refused(&task.name, &task.group, done);
}

/// Returns whether it was refused by a kernel that has the controller.
fn log_refused(name: &str, group: &Group, done: Result<(), Error>) -> bool {
    match done {
        Ok(()) | Err(Error::NoController(_)) => return false,
        Err(_) if !group.exists() => {}
        Err(error) => tracing::warn!(task = name, %error, "cannot be set"),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::count::Counter;
    use super::*;

    use crate::cgroups::{TaskCgroups, base_name};
    use crate::config::ProcessLimits;
    use crate::state_dir::scratch::Scratch;
    use std::fs;

    /// Two tasks with cgroups of their own; nothing where cgroups cannot be created, and that is
    /// only without root.
    struct Lab {
        folder: Scratch,
        groups: TaskCgroups,
        tasks: Vec<WatchedTask>,
    }

    impl Lab {
        fn open() -> Option<Lab> {
            let folder = Scratch::new();
            let groups =
                TaskCgroups::open(&folder.path(""), ProcessLimits::default(), CpuFactor::default());
            let mut tasks = Vec::new();
            for (number, class) in [(1, AppClass::LatencySensitive), (2, AppClass::Batch)] {
                let attempt = Attempt::new(TaskId(number), 1);
                let Some(group) = groups.task_group(attempt, None) else {
                    let why = groups.unavailable_reason().unwrap_or_default();
                    assert!(!rustix::process::geteuid().is_root(), "{why}");
                    println!("skipped: {why}");
                    return None;
                };
                group.create().unwrap();
                tasks.push(WatchedTask {
                    attempt,
                    name: format!("u/j{number}/0"),
                    group,
                    folder: folder.path(&number.to_string()),
                    alloc_disk: None,
                    class,
                    priority: Priority(if number == 1 { 200 } else { 100 }),
                    limits: Resources::new(2000, 1 << 30, 0, 0),
                    resize: None,
                    reservation: Resources::new(2000, 1 << 30, 0, 0),
                    isolation: Isolation::default(),
                    ports: Vec::new(),
                });
                fs::create_dir_all(&tasks.last()?.folder).unwrap();
            }
            Some(Lab { folder, groups, tasks })
        }

        fn watcher(&self) -> Watcher {
            self.watcher_at(0)
        }

        fn watcher_at(&self, now: u64) -> Watcher {
            let capacity = Resources::new(2000, 1 << 30, 1 << 30, 0);
            let cores = vec![CpuList::new(vec![0])];
            let (data, eviction_request_delay) = (self.folder.path(""), Span::seconds(2));
            let scan_limits = DiskScanLimits::default();
            let machine = MachineConfig {
                capacity,
                cores,
                cpu_factor: CpuFactor::default(),
                data,
                eviction_request_delay,
                scan_limits,
            };
            Watcher::new(now, machine, Readings::default(), Counts::default())
        }

        /// The CPU quota of a task in microseconds per tenth of a second.
        fn cap(&self, task: usize) -> Option<u64> {
            let name = format!("task-{}", self.tasks[task].attempt);
            let base = base_name(&self.folder.path(""));
            let read = |subdir: &str, file: &str| {
                fs::read_to_string(format!("/sys/fs/cgroup/{subdir}{base}/{name}/{file}")).ok()
            };
            let text = read("cpu/", "cpu.cfs_quota_us").or_else(|| read("", "cpu.max"))?;
            text.split_whitespace().next()?.parse().ok()
        }
    }

    impl Drop for Lab {
        fn drop(&mut self) {
            self.groups.sweep(&BTreeSet::new());
            self.groups.close();
        }
    }

    fn sample(task: &WatchedTask, cpu: u64, cpu_wanting: u64) -> TaskSample {
        TaskSample {
            attempt: task.attempt,
            class: task.class,
            priority: task.priority,
            limits: task.limits,
            reservation: task.limits,
            used: Resources::new(cpu, 1 << 20, 0, 0),
            cpu_unmet: Some(cpu_wanting),
            whole_cores: 0,
            files: 0,
            slack_cpu: true,
            slack_ram: false,
        }
    }

    #[test]
    fn batch_is_held_back_while_others_go_short_and_let_go_by_the_next_agent() {
        let Some(lab) = Lab::open() else { return };
        let mut watcher = lab.watcher();
        let available =
            AvailableResources { ram_available: 1 << 30, disk_free: 1 << 30, files_free: u64::MAX };
        let crowded = [sample(&lab.tasks[0], 900, 500), sample(&lab.tasks[1], 1100, 0)];
        assert_eq!(watcher.rebalance(1000, available, &crowded, &lab.tasks), []);
        let cap = lab.cap(1).expect("batch is capped");
        assert!((1..110_000).contains(&cap), "{cap}");
        assert_eq!(lab.cap(0).filter(|cap| *cap < u64::MAX), None, "within its limit");
        // A restarted agent knows nothing of the cap, and so must lift it.
        lab.watcher().run_pass(2000, &lab.tasks);
        assert_eq!(lab.cap(1), None);
    }

    #[test]
    fn a_change_of_limits_is_made_once_and_said_until_it_is_known() {
        let Some(mut lab) = Lab::open() else { return };
        let mut watcher = lab.watcher();
        let (attempt, before) = (lab.tasks[0].attempt, lab.tasks[0].limits);
        let known = LimitsInForce { resizes: 0, limits: before };
        let wanted = |resizes, cpu, ram| {
            let limits = Resources { cpu, ram, ..before };
            LimitsInForce { resizes, limits }
        };
        let more = wanted(1, 3000, 2 << 30);
        let (is_alloc, may_grow, slack_ram) = (false, true, false);
        let change =
            |wanted| PendingResize { attempt, is_alloc, wanted, known, may_grow, slack_ram };
        lab.tasks[0].resize = Some(change(more));
        let said = [(attempt, Finding::Resized(more))];
        assert_eq!(watcher.resize(&mut lab.tasks, &[]), said);
        assert_eq!(lab.tasks[0].limits, more.limits);
        // A list that was made before the loop knew undoes nothing.
        lab.tasks[0].limits = before;
        assert_eq!(watcher.resize(&mut lab.tasks, &[]), said);
        assert_eq!(lab.tasks[0].limits, more.limits);
        let less = wanted(2, 500, 64 << 20);
        lab.tasks[0].resize = Some(change(less));
        assert_eq!(watcher.resize(&mut lab.tasks, &[]), [(attempt, Finding::Resized(less))]);
        lab.tasks[0].resize = None;
        assert_eq!(watcher.resize(&mut lab.tasks, &[]), []);
        assert_eq!(watcher.in_force.len(), 0);
    }

    #[test]
    fn the_report_says_what_the_machine_cannot_help_itself_with() {
        type Pressures = Vec<(Dimension, u64, u32)>;
        let Some(lab) = Lab::open() else { return };
        let mut watcher = lab.watcher();
        let available =
            AvailableResources { ram_available: 1 << 30, disk_free: 1 << 30, files_free: u64::MAX };
        let crowded = [sample(&lab.tasks[0], 1900, 500), sample(&lab.tasks[1], 20, 900)];
        let mut pressures = |now: u64, samples: &[TaskSample]| -> Pressures {
            watcher.rebalance(now, available, samples, &lab.tasks);
            let reported = watcher.readings.resource_pressure();
            reported
                .into_iter()
                .map(|short| (short.dimension, short.lasted.0, short.requested))
                .collect()
        };
        let nothing = Pressures::new();
        assert_eq!(pressures(1000, &crowded), nothing);
        assert_eq!(pressures(2000, &crowded), nothing);
        assert_eq!(pressures(3000, &crowded), [(Dimension::Cpu, 2000, 1)]);
        assert_eq!(pressures(4000, &crowded), [(Dimension::Cpu, 3000, 1)]);
        assert_eq!(pressures(5000, &crowded), [(Dimension::Cpu, 4000, 2)]);
        assert_eq!(pressures(6000, &crowded[..1]), [(Dimension::Cpu, 5000, 0)]);
        assert_eq!(pressures(8000, &crowded[..1]), nothing);
    }

    #[test]
    fn the_next_agent_goes_on_asking_where_this_one_was() {
        let Some(lab) = Lab::open() else { return };
        let available =
            AvailableResources { ram_available: 1 << 30, disk_free: 1 << 30, files_free: u64::MAX };
        let crowded = [sample(&lab.tasks[0], 1900, 500), sample(&lab.tasks[1], 20, 900)];
        let pressures = |watcher: &Watcher| -> Vec<(u64, u32)> {
            let reported = watcher.readings.resource_pressure();
            reported.into_iter().map(|short| (short.lasted.0, short.requested)).collect()
        };
        let mut watcher = lab.watcher_at(1000);
        watcher.rebalance(1000, available, &crowded, &lab.tasks);
        // The first pass of the next watcher has no rates, and requests nothing yet.
        let mut watcher = lab.watcher_at(2000);
        watcher.rebalance(3000, available, &[], &lab.tasks);
        assert_eq!(pressures(&watcher), []);
        watcher.rebalance(4000, available, &crowded, &lab.tasks);
        assert_eq!(pressures(&watcher), [(3000, 1)]);
        // And one more reports it before its first pass.
        assert_eq!(pressures(&lab.watcher_at(5000)), [(4000, 1)]);
        // Not after a gap without passes as long as a shortage must last.
        assert_eq!(pressures(&lab.watcher_at(6001)), []);
        // Times of another boot mean nothing.
        let path = lab.folder.path("resource_pressure");
        let text = fs::read_to_string(&path).unwrap();
        let boot_id = crate::boot::boot_id().unwrap();
        let body = text.lines().nth(1).unwrap().replace(&boot_id, "another");
        let sum = xxhash_rust::xxh3::xxh3_64(body.as_bytes());
        fs::write(&path, format!("cell-record 1 {sum:016x}\n{body}\n")).unwrap();
        assert_eq!(pressures(&lab.watcher_at(5000)), []);
    }

    #[test]
    fn whoever_is_over_its_limit_of_disk_is_condemned_and_readings_are_kept() {
        let Some(mut lab) = Lab::open() else { return };
        lab.tasks[1].limits.disk = 4096;
        fs::write(lab.tasks[1].folder.join("big"), vec![1; 64 << 10]).unwrap();
        let mut watcher = lab.watcher();
        watcher.run_pass(1000, &lab.tasks);
        Counter::new(watcher.counts.clone(), DiskScanLimits::default()).count(&lab.tasks);
        let found = watcher.run_pass(2000, &lab.tasks);
        let [(attempt, Finding::Condemned { class, why })] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!((*attempt, *class), (lab.tasks[1].attempt, Some(ExitClass::OverDiskLimit)));
        assert!(why.starts_with("disk: used "), "{why}");
        let kept = watcher.readings.take();
        assert_eq!(kept.len(), 2);
        assert!(kept[attempt].disk >= 64 << 10 && kept[attempt].at == 2000, "{kept:?}");
        watcher.run_pass(3000, &lab.tasks[..1]);
        assert_eq!(watcher.readings.take().len(), 1);
    }

    #[test]
    fn what_tasks_put_into_their_allocs_folder_counts_against_the_alloc() {
        let Some(mut lab) = Lab::open() else { return };
        let (alloc, folder) = (Attempt::new(TaskId(9), 1), lab.folder.path("alloc"));
        fs::create_dir(&folder).unwrap();
        let shared = AllocDisk { alloc, group: None, folder: folder.clone(), limit: 100 << 10 };
        lab.tasks[0].alloc_disk = Some(shared.clone());
        lab.tasks[0].limits.disk = 40 << 10;
        fs::write(lab.tasks[0].folder.join("own"), vec![1; 20 << 10]).unwrap();
        fs::write(folder.join("both"), vec![1; 60 << 10]).unwrap();
        let mut watcher = lab.watcher();
        watcher.run_pass(1000, &lab.tasks);
        let mut counter = Counter::new(watcher.counts.clone(), DiskScanLimits::default());
        counter.count(&lab.tasks);
        assert_eq!(watcher.run_pass(2000, &lab.tasks), [], "within what the alloc has");
        fs::write(folder.join("more"), vec![1; 60 << 10]).unwrap();
        (0..10).for_each(|_| drop(counter.count(&lab.tasks)));
        let found = watcher.run_pass(3000, &lab.tasks);
        let [(attempt, Finding::Condemned { class, why })] = &found[..] else {
            panic!("{found:?}")
        };
        // A task outside of the alloc is not affected.
        assert_eq!((*attempt, *class), (lab.tasks[0].attempt, Some(ExitClass::OverDiskLimit)));
        assert!(why.starts_with("disk: its alloc used "), "{why}");
        assert_eq!(watcher.run_pass(4000, &lab.tasks), [], "it was said");
        assert_eq!(watcher.run_pass(13_000, &lab.tasks).len(), 1, "it is still there");
        // Too many files to be counted are too much.
        let few = DiskScanLimits { files: 1, ..DiskScanLimits::default() };
        lab.tasks[0].alloc_disk = Some(AllocDisk { limit: 1 << 30, ..shared });
        Counter::new(watcher.counts.clone(), few).count(&lab.tasks);
        let mut counter = Counter::new(watcher.counts.clone(), few);
        (0..10).for_each(|_| drop(counter.count(&lab.tasks)));
        assert_eq!(watcher.run_pass(30_000, &lab.tasks).len(), 1);
    }

    #[test]
    fn files_of_the_dead_are_credited_until_they_are_removed() {
        let Some(mut lab) = Lab::open() else { return };
        lab.tasks[1].limits.disk = 4096;
        let killed = lab.tasks[1].attempt;
        let mut watcher = lab.watcher();
        let data = watcher.machine.data.clone();
        let work = data.join("tasks").join(killed.to_string()).join("work");
        fs::create_dir_all(data.join("trash/work.0")).unwrap();
        fs::create_dir_all(&work).unwrap();
        let available =
            AvailableResources { ram_available: 1 << 30, disk_free: 1 << 30, files_free: u64::MAX };
        let mut sampled = sample(&lab.tasks[1], 0, 0);
        sampled.used.disk = 1 << 20;
        assert_eq!(watcher.rebalance(1000, available, &[sampled], &lab.tasks).len(), 1);
        assert_eq!(watcher.rebalance(2000, available, &[], &lab.tasks), []);
        let mut waits = |after: &str| {
            watcher.credit_removed_files();
            assert_eq!(watcher.control.awaiting_cleanup().count(), 1, "{after}");
        };
        waits("its folder is there");
        fs::remove_dir(&work).unwrap();
        waits("its folder is on its way");
        fs::remove_dir(data.join("trash/work.0")).unwrap();
        watcher.credit_removed_files();
        assert_eq!(watcher.control.awaiting_cleanup().count(), 0);
    }
}
