//! What takes a task's own doing to be long: counting its files, and looking through what its
//! processes have open for sockets that listen. Both are bounded for each look and each task, and
//! done in a thread of their own, so that whoever has a million files delays nobody's end.

use super::{Finding, Watched, hidden};
use crate::core::Attempt;
use crate::ports::{self, Search};
use cellwright_cell::isolation::Network;
use cellwright_isolate::usage::{DiskUse, disk_use};
use cellwright_supervise::{Supervisor, plant};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Looks between two at the same task.
const ROUNDS: u64 = 5;
/// Files of a task that are counted: with more, the sum is of these. A task can make files faster
/// than anybody can count them.
const MOST_FILES: u64 = 100_000;

/// Looks in a row at which descriptors of a task wait in sockets: whoever leaves them there for so
/// long keeps them there. Nobody can say what they hold, so it counts as more than can be counted.
const LONG_IN_FLIGHT: u32 = 2;

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
    supervisor: &Supervisor,
) -> std::io::Result<SyncSender<Vec<Watched>>> {
    let (send, lists): (_, Receiver<Vec<Watched>>) = sync_channel(1);
    let mut counter = Counter::new(counts);
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
    /// How much CPU each had had when its files were last counted.
    counted: BTreeMap<Attempt, Duration>,
    /// At how many looks in a row each had descriptors in flight.
    in_flight: BTreeMap<Attempt, u32>,
    ports: BTreeMap<Attempt, Search>,
    round: u64,
}

impl Counter {
    pub fn new(counts: Counts) -> Counter {
        Counter {
            counts,
            counted: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            ports: BTreeMap::new(),
            round: 0,
        }
    }

    /// Counts what is due, and says whose listening has changed.
    pub fn count(&mut self, tasks: &[Watched]) -> Vec<(Attempt, Finding)> {
        self.round += 1;
        let there: BTreeSet<Attempt> = tasks.iter().map(|task| task.attempt).collect();
        self.counts.lock().retain(|attempt, _| there.contains(attempt));
        self.counted.retain(|attempt, _| there.contains(attempt));
        self.in_flight.retain(|attempt, _| there.contains(attempt));
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
        // Whoever had descriptors in flight may leave them there without a turn of the CPU.
        let leaves = self.in_flight.get(&task.attempt).is_some_and(|looks| *looks > 0);
        if self.counted.insert(task.attempt, cpu) == Some(cpu) && last.is_some() && !leaves {
            return;
        }
        let mut found = disk_use(&task.folder, MOST_FILES).unwrap_or(last.unwrap_or_default());
        let hidden = hidden::look(task);
        found.bytes = found.bytes.saturating_add(hidden.bytes);
        let looks = self.in_flight.entry(task.attempt).or_default();
        *looks = if hidden.in_flight > 0 { looks.saturating_add(1) } else { 0 };
        found.complete &= hidden.complete && *looks < LONG_IN_FLIGHT;
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
