//! The measurements whose duration a task can influence: counting its files, and scanning what its
//! processes have open for listening sockets. Both are bounded for each pass and each task, and
//! done in a thread of their own, so that a task with a million files does not delay the kill of
//! another.

use super::recent_kills::RecentKills;
use super::{AllocDisk, Finding, WatchedTask, deleted_files};
use crate::config::DiskScanLimits;
use crate::ports::{self, PortScan};
use cellwright_cell::id::Attempt;
use cellwright_cell::isolation::Network;
use cellwright_cell::task::ExitClass;
use cellwright_isolate::cgroup::Group;
use cellwright_isolate::usage::{DiskUse, disk_use};
use cellwright_supervise::{Supervisor, failpoint};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Passes between two scans of the same task.
const SCAN_EVERY_ROUNDS: u64 = 5;

/// The disk usage of tasks and allocs, as far as it was counted. Cheap to clone; clones share it.
#[derive(Clone, Default)]
pub struct Counts(Arc<Mutex<BTreeMap<Attempt, DiskUse>>>);

impl Counts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Attempt, DiskUse>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Zero for a task that was not counted yet.
    pub fn of(&self, attempt: Attempt) -> DiskUse {
        self.lock().get(&attempt).copied().unwrap_or_default()
    }
}

/// Starts to count. Ends when the sender is dropped.
///
/// # Errors
/// When the system gives no thread.
pub fn start(
    counts: Counts,
    scan_limits: DiskScanLimits,
    found: impl Fn(Attempt, Finding) + Send + 'static,
    supervisor: &Supervisor,
) -> std::io::Result<SyncSender<Vec<WatchedTask>>> {
    let (send, lists): (_, Receiver<Vec<WatchedTask>>) = sync_channel(1);
    let mut counter = Counter::new(counts, scan_limits);
    supervisor.spawn_thread("count", move || {
        while let Ok(tasks) = lists.recv() {
            failpoint("count");
            let findings = counter.count(&tasks);
            findings.into_iter().for_each(|(attempt, finding)| found(attempt, finding));
        }
    })?;
    Ok(send)
}

pub struct Counter {
    counts: Counts,
    scan_limits: DiskScanLimits,
    /// The CPU time of each when its files were last counted.
    counted: BTreeMap<Attempt, Duration>,
    /// For files that no folder lists.
    deleted_files: BTreeMap<Attempt, deleted_files::DeletedFileScan>,
    recent_kills: RecentKills,
    ports: BTreeMap<Attempt, PortScan>,
    round: u64,
}

impl Counter {
    pub fn new(counts: Counts, scan_limits: DiskScanLimits) -> Counter {
        Counter {
            counts,
            scan_limits,
            counted: BTreeMap::new(),
            deleted_files: BTreeMap::new(),
            recent_kills: RecentKills::default(),
            ports: BTreeMap::new(),
            round: 0,
        }
    }

    /// Counts what is due, and returns the tasks whose listening ports have changed, and those that
    /// have more than can be counted.
    pub fn count(&mut self, tasks: &[WatchedTask]) -> Vec<(Attempt, Finding)> {
        self.round += 1;
        let allocs: BTreeMap<Attempt, &AllocDisk> = tasks
            .iter()
            .filter_map(|task| task.alloc_disk.as_ref())
            .map(|s| (s.alloc, s))
            .collect();
        let mut there: BTreeSet<Attempt> = tasks.iter().map(|task| task.attempt).collect();
        there.extend(allocs.keys());
        self.counts.lock().retain(|attempt, _| there.contains(attempt));
        self.counted.retain(|attempt, _| there.contains(attempt));
        self.deleted_files.retain(|attempt, _| there.contains(attempt));
        self.recent_kills.retain(&there);
        self.ports.retain(|attempt, _| there.contains(attempt));
        let mut findings: Vec<(Attempt, Finding)> =
            tasks.iter().filter_map(|task| self.count_files(task)).collect();
        allocs.values().for_each(|shared| self.count_alloc(shared));
        if self.round.is_multiple_of(SCAN_EVERY_ROUNDS) {
            findings.extend(self.scan_ports(tasks));
        }
        findings
    }

    /// Tasks are spread over a few passes; a task is not counted again while its cgroup has had no
    /// CPU to write with.
    fn is_due(&mut self, attempt: Attempt, group: Option<&Group>) -> bool {
        let last = self.counts.lock().get(&attempt).copied();
        let is_turn = (self.round + u64::from(attempt.task.0)).is_multiple_of(SCAN_EVERY_ROUNDS);
        if last.is_some() && !is_turn {
            return false;
        }
        let cpu = group.and_then(|group| group.usage().ok()).map(|usage| usage.cpu);
        // A task with descriptors in flight may leave them there without using any CPU.
        let has_pending_scan =
            self.deleted_files.get(&attempt).is_some_and(deleted_files::DeletedFileScan::is_open);
        let before = self.counted.insert(attempt, cpu.unwrap_or_default());
        cpu.is_none() || before != cpu || last.is_none() || has_pending_scan
    }

    /// Condemns a task with more than can be counted: that is no way around a limit.
    fn count_files(&mut self, task: &WatchedTask) -> Option<(Attempt, Finding)> {
        if !self.is_due(task.attempt, Some(&task.group)) {
            return None;
        }
        let mut found = self.measure_dir(task.attempt, &task.folder);
        let search = self.deleted_files.entry(task.attempt).or_default();
        let scan = search.scan(task, self.scan_limits.open_files);
        found.bytes = found.bytes.saturating_add(scan.bytes);
        self.note(task.attempt, found, task.limits.disk);
        let why = scan.failure.filter(|_| task.limits.disk > 0)?.to_string();
        if !self.recent_kills.is_due(task.attempt, crate::boot::now()) {
            return None;
        }
        tracing::warn!(task = task.name, why, "killed");
        let class = Some(ExitClass::OverDiskLimit);
        Some((task.attempt, Finding::Condemned { class, why }))
    }

    /// Files without a name count for the task that holds them, wherever they had one.
    fn count_alloc(&mut self, shared: &AllocDisk) {
        if self.is_due(shared.alloc, shared.group.as_ref()) {
            let found = self.measure_dir(shared.alloc, &shared.folder);
            self.note(shared.alloc, found, shared.limit);
        }
    }

    /// The usage of a folder; that of the last count if it cannot be read.
    fn measure_dir(&self, attempt: Attempt, folder: &Path) -> DiskUse {
        disk_use(folder, self.scan_limits.files).unwrap_or_else(|_| self.counts.of(attempt))
    }

    fn note(&self, attempt: Attempt, mut found: DiskUse, limit: u64) {
        // More than can be counted, or hidden too deep: no way around a limit.
        if !found.complete && limit > 0 {
            found.bytes = found.bytes.max(limit.saturating_add(1));
        }
        self.counts.lock().insert(attempt, found);
    }

    fn scan_ports(&mut self, tasks: &[WatchedTask]) -> Vec<(Attempt, Finding)> {
        let listening = ports::listening_sockets();
        let mut findings = Vec::new();
        for task in tasks.iter().filter(|task| task.isolation.network == Network::Host) {
            let processes = task.group.processes().unwrap_or_default();
            let search = self.ports.entry(task.attempt).or_default();
            if let Some(now) = search.resume(&processes, &listening, &task.ports) {
                findings.push((task.attempt, Finding::UnassignedPorts(now)));
            }
        }
        findings
    }
}
