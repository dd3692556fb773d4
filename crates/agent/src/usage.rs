//! Resource usage of tasks without a cgroup, for the report, from `/proc`: CPU of all descendants
//! of the shim, memory that is resident now, and the bytes in the task's folder. That is good
//! enough; a process that was born and died between two samples is still counted, in its parent's
//! sum.

use crate::proc::{self, Process};
use crate::state_dir::size;
use cellwright_agent_core::usage::{LatestReading, Reading};
use cellwright_cell::id::Attempt;
use cellwright_cell::resource::Resources;
use cellwright_messages::TaskUsage;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// A task to measure.
pub struct MeasuredTask {
    pub attempt: Attempt,
    pub shim: i32,
    pub folder: PathBuf,
}

/// Keeps the last sample of each attempt; rates are between two of them.
#[derive(Default)]
pub struct ProcessSampler {
    last: BTreeMap<Attempt, (u64, u64)>,
    /// The readings that the last samples were made from.
    latest: BTreeMap<Attempt, LatestReading>,
}

impl ProcessSampler {
    /// Samples all tasks. An attempt's first sample has no rates, so it is not reported.
    pub fn sample(&mut self, measured: &[MeasuredTask], now: u64) -> Vec<TaskUsage> {
        let all = proc::list();
        let page = rustix::param::page_size() as u64;
        let mut used = Vec::new();
        let mut samples = BTreeMap::new();
        self.latest.clear();
        for task in measured {
            let below = proc::descendants(&all, task.shim);
            let own = all.get(&task.shim).map_or(0, |shim| shim.ticks);
            let ticks = own + below.iter().map(|process| process.ticks).sum::<u64>();
            samples.insert(task.attempt, (ticks, now));
            let resident = |process: &Process| process.resident_pages * page;
            let (ram, disk) = (below.iter().map(resident).sum(), size(&task.folder));
            let reading =
                Reading { cpu: Duration::from_millis(millis(ticks)), ram, ..Reading::default() };
            let latest = LatestReading { at: now, reading, disk, ram_peak: ram };
            self.latest.insert(task.attempt, latest);
            let before = self.last.get(&task.attempt);
            let Some(cpu) = before.and_then(|before| milli_cores(*before, (ticks, now))) else {
                continue;
            };
            used.push(TaskUsage {
                task: task.attempt.task,
                attempt: task.attempt.number,
                used: Resources { cpu, ram, disk, disk_rate: 0 },
            });
        }
        self.last = samples;
        used
    }

    /// The totals of the tasks that were last sampled.
    #[must_use]
    pub fn latest(&self) -> &BTreeMap<Attempt, LatestReading> {
        &self.latest
    }
}

/// A time in the kernel's ticks.
fn millis(ticks: u64) -> u64 {
    ticks * 1000 / rustix::param::clock_ticks_per_second().max(1)
}

/// Average CPU usage between two samples of (ticks, milliseconds).
fn milli_cores(before: (u64, u64), after: (u64, u64)) -> Option<u64> {
    let millis = after.1.checked_sub(before.1).filter(|millis| *millis > 0)?;
    let ticks = after.0.saturating_sub(before.0);
    Some(self::millis(ticks) * 1000 / millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_between_samples() {
        let second = rustix::param::clock_ticks_per_second();
        assert_eq!(milli_cores((10, 0), (10 + second, 2000)), Some(500));
        assert_eq!(milli_cores((10, 0), (10, 0)), None);
        // A process left the tree: nothing was used, not less than nothing.
        assert_eq!(milli_cores((10, 0), (5, 1000)), Some(0));
    }

    #[test]
    fn this_very_process_uses_memory() {
        let own = i32::try_from(std::process::id()).unwrap();
        let parent = proc::get(own).unwrap().parent;
        let attempt = Attempt::new(cellwright_cell::id::TaskId(1), 1);
        let measured = [MeasuredTask { attempt, shim: parent, folder: "/absent".into() }];
        let mut sampler = ProcessSampler::default();
        assert_eq!(sampler.sample(&measured, 0), []);
        let found = sampler.sample(&measured, 1000);
        assert!(found[0].used.ram > 0, "{found:?}");
        assert_eq!((found[0].task.0, found[0].used.disk), (1, 0));
    }
}
