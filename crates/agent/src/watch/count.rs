//! What takes a task's own doing to be long: counting its files, and looking through what its
//! processes have open for sockets that listen. Both are bounded for each look and each task, and
//! done in a thread of their own, so that whoever has a million files delays nobody's end.

use super::verdicts::Verdicts;
use super::{Finding, Shared, Watched, hidden};
use crate::config::Counting;
use crate::ports::{self, Search};
use cellwright_cell::id::Attempt;
use cellwright_cell::isolation::Network;
use cellwright_cell::task::ExitClass;
use cellwright_isolate::cgroup::Group;
use cellwright_isolate::usage::{DiskUse, disk_use};
use cellwright_supervise::{Supervisor, plant};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Looks between two at the same task.
const ROUNDS: u64 = 5;

/// What tasks and allocs have on disk, as far as it was counted. Cheap to clone; clones are the
/// same.
#[derive(Clone, Default)]
pub struct Counts(Arc<Mutex<BTreeMap<Attempt, DiskUse>>>);

impl Counts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Attempt, DiskUse>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing for a task that was not counted yet.
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
    counting: Counting,
    found: impl Fn(Attempt, Finding) + Send + 'static,
    supervisor: &Supervisor,
) -> std::io::Result<SyncSender<Vec<Watched>>> {
    let (send, lists): (_, Receiver<Vec<Watched>>) = sync_channel(1);
    let mut counter = Counter::new(counts, counting);
    supervisor.thread("count", move || {
        while let Ok(tasks) = lists.recv() {
            plant("count");
            let findings = counter.count(&tasks);
            findings.into_iter().for_each(|(attempt, finding)| found(attempt, finding));
        }
    })?;
    Ok(send)
}

pub struct Counter {
    counts: Counts,
    counting: Counting,
    /// How much CPU each had had when its files were last counted.
    counted: BTreeMap<Attempt, Duration>,
    /// For what no folder shows.
    hidden: BTreeMap<Attempt, hidden::Search>,
    verdicts: Verdicts,
    ports: BTreeMap<Attempt, Search>,
    round: u64,
}

impl Counter {
    pub fn new(counts: Counts, counting: Counting) -> Counter {
        Counter {
            counts,
            counting,
            counted: BTreeMap::new(),
            hidden: BTreeMap::new(),
            verdicts: Verdicts::default(),
            ports: BTreeMap::new(),
            round: 0,
        }
    }

    /// Counts what is due, and says whose listening has changed, and who hides what it has.
    pub fn count(&mut self, tasks: &[Watched]) -> Vec<(Attempt, Finding)> {
        self.round += 1;
        let allocs: BTreeMap<Attempt, &Shared> =
            tasks.iter().filter_map(|task| task.shared.as_ref()).map(|s| (s.alloc, s)).collect();
        let mut there: BTreeSet<Attempt> = tasks.iter().map(|task| task.attempt).collect();
        there.extend(allocs.keys());
        self.counts.lock().retain(|attempt, _| there.contains(attempt));
        self.counted.retain(|attempt, _| there.contains(attempt));
        self.hidden.retain(|attempt, _| there.contains(attempt));
        self.verdicts.retain(&there);
        self.ports.retain(|attempt, _| there.contains(attempt));
        let mut findings: Vec<(Attempt, Finding)> =
            tasks.iter().filter_map(|task| self.count_files(task)).collect();
        allocs.values().for_each(|shared| self.count_shared(shared));
        if self.round.is_multiple_of(ROUNDS) {
            findings.extend(self.look_at_ports(tasks));
        }
        findings
    }

    /// At every few looks, a share of all at each; not again while nobody in the group has had CPU
    /// to write with.
    fn is_due(&mut self, attempt: Attempt, group: Option<&Group>) -> bool {
        let last = self.counts.lock().get(&attempt).copied();
        let turn = (self.round + u64::from(attempt.task.0)).is_multiple_of(ROUNDS);
        if last.is_some() && !turn {
            return false;
        }
        let cpu = group.and_then(|group| group.usage().ok()).map(|usage| usage.cpu);
        // Whoever had descriptors in flight may leave them there without a turn of the CPU.
        let leaves = self.hidden.get(&attempt).is_some_and(hidden::Search::is_open);
        let before = self.counted.insert(attempt, cpu.unwrap_or_default());
        cpu.is_none() || before != cpu || last.is_none() || leaves
    }

    /// Says who has more than can be looked into: no way around a limit.
    fn count_files(&mut self, task: &Watched) -> Option<(Attempt, Finding)> {
        if !self.is_due(task.attempt, Some(&task.group)) {
            return None;
        }
        let mut found = self.on_disk(task.attempt, &task.folder);
        let search = self.hidden.entry(task.attempt).or_default();
        let hidden = search.look(task, self.counting.open_files);
        found.bytes = found.bytes.saturating_add(hidden.bytes);
        self.note(task.attempt, found, task.limits.disk);
        let why = hidden.unseen.filter(|_| task.limits.disk > 0)?.to_string();
        if !self.verdicts.is_due(task.attempt, crate::boot::now()) {
            return None;
        }
        tracing::warn!(task = task.name, why, "killed");
        let class = Some(ExitClass::OverDiskLimit);
        Some((task.attempt, Finding::Condemned { class, why }))
    }

    /// Files without a name are counted for the task that holds them, wherever they had one.
    fn count_shared(&mut self, shared: &Shared) {
        if self.is_due(shared.alloc, shared.group.as_ref()) {
            let found = self.on_disk(shared.alloc, &shared.folder);
            self.note(shared.alloc, found, shared.limit);
        }
    }

    /// What is in a folder; what was there before, should it not be told.
    fn on_disk(&self, attempt: Attempt, folder: &Path) -> DiskUse {
        disk_use(folder, self.counting.files).unwrap_or_else(|_| self.counts.of(attempt))
    }

    fn note(&self, attempt: Attempt, mut found: DiskUse, limit: u64) {
        // More than can be counted, or hidden too deep: no way around a limit.
        if !found.complete && limit > 0 {
            found.bytes = found.bytes.max(limit.saturating_add(1));
        }
        self.counts.lock().insert(attempt, found);
    }

    fn look_at_ports(&mut self, tasks: &[Watched]) -> Vec<(Attempt, Finding)> {
        let listening = ports::listening();
        let mut findings = Vec::new();
        for task in tasks.iter().filter(|task| task.isolation.network == Network::Host) {
            let processes = task.group.processes().unwrap_or_default();
            let search = self.ports.entry(task.attempt).or_default();
            if let Some(now) = search.go_on(&processes, &listening, &task.ports) {
                findings.push((task.attempt, Finding::Ungiven(now)));
            }
        }
        findings
    }
}
