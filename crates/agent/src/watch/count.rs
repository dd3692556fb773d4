//! What takes a task's own doing to be long: counting its files, and looking through what its
//! processes have open for sockets that listen. Both are bounded for each look and each task, and
//! done in a thread of their own, so that whoever has a million files delays nobody's end.

use super::{Finding, Watched};
use crate::core::Attempt;
use crate::ports::{self, Search};
use cellwright_cell::isolation::Network;
use cellwright_isolate::usage::{DiskUse, disk_use};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Looks between two at the same task.
const ROUNDS: u64 = 5;
/// Files of a task that are counted: with more, the sum is of these. A task can make files faster
/// than anybody can count them.
const MOST_FILES: u64 = 100_000;

/// Open files of a task among which those without a name are looked for.
const MOST_OPEN: usize = 16_384;
/// What `stat` calls a block.
const BLOCK: u64 = 512;

/// What tasks have on disk, as far as it was counted. Cheap to clone; clones are the same.
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
    found: impl Fn(Attempt, Finding) + Send + 'static,
) -> std::io::Result<SyncSender<Vec<Watched>>> {
    let (send, lists): (_, Receiver<Vec<Watched>>) = sync_channel(1);
    let mut counter = Counter::new(counts);
    std::thread::Builder::new().name("count".into()).spawn(move || {
        while let Ok(tasks) = lists.recv() {
            let findings = counter.count(&tasks);
            findings.into_iter().for_each(|(attempt, finding)| found(attempt, finding));
        }
    })?;
    Ok(send)
}

pub struct Counter {
    counts: Counts,
    /// How much CPU each had had when its files were last counted.
    counted: BTreeMap<Attempt, Duration>,
    ports: BTreeMap<Attempt, Search>,
    round: u64,
}

impl Counter {
    pub fn new(counts: Counts) -> Counter {
        Counter { counts, counted: BTreeMap::new(), ports: BTreeMap::new(), round: 0 }
    }

    /// Counts what is due, and says whose listening has changed.
    pub fn count(&mut self, tasks: &[Watched]) -> Vec<(Attempt, Finding)> {
        self.round += 1;
        let there: BTreeSet<Attempt> = tasks.iter().map(|task| task.attempt).collect();
        self.counts.lock().retain(|attempt, _| there.contains(attempt));
        self.counted.retain(|attempt, _| there.contains(attempt));
        self.ports.retain(|attempt, _| there.contains(attempt));
        tasks.iter().for_each(|task| self.count_files(task));
        match self.round.is_multiple_of(ROUNDS) {
            true => self.look_at_ports(tasks),
            false => Vec::new(),
        }
    }

    /// At every few looks, a share of the tasks at each; not again while a task has had no CPU to
    /// write with.
    fn count_files(&mut self, task: &Watched) {
        let last = self.counts.lock().get(&task.attempt).copied();
        let turn = (self.round + u64::from(task.attempt.task.0)).is_multiple_of(ROUNDS);
        if last.is_some() && !turn {
            return;
        }
        let cpu = task.group.usage().map(|usage| usage.cpu).unwrap_or_default();
        if self.counted.insert(task.attempt, cpu) == Some(cpu) && last.is_some() {
            return;
        }
        let mut found = disk_use(&task.folder, MOST_FILES).unwrap_or(last.unwrap_or_default());
        found.bytes = found.bytes.saturating_add(unlinked(task));
        // More than can be counted, or hidden too deep: no way around a limit.
        if !found.complete && task.limits.disk > 0 {
            found.bytes = found.bytes.max(task.limits.disk.saturating_add(1));
        }
        self.counts.lock().insert(task.attempt, found);
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

/// Bytes of files that have no name any more and go on taking space, because a process of the task
/// holds them open.
fn unlinked(task: &Watched) -> u64 {
    let Ok(disk) = fs::metadata(&task.folder).map(|about| about.dev()) else { return 0 };
    let processes = task.group.processes().unwrap_or_default();
    let files = processes.iter().flat_map(|pid| ports::open_files(*pid)).take(MOST_OPEN);
    let held = files.filter_map(|file| {
        let about = fs::metadata(file).ok()?;
        let counts = about.is_file() && about.nlink() == 0 && about.dev() == disk;
        counts.then_some((about.ino(), about.blocks().saturating_mul(BLOCK)))
    });
    // Held by several, it is there once.
    held.collect::<BTreeMap<u64, u64>>().values().sum()
}
