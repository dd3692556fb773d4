//! Resource usage of tasks: rates from totals, and the usage in a report to the masters.
//!
//! A [`Meter`] takes readings with their times and can be tested exactly; the code that reads a
//! kernel, a real one or that of a simulation, only reads.

use cellwright_cell::id::Attempt;
use cellwright_cell::resource::Resources;
use cellwright_messages::TaskUsage;
use std::collections::BTreeMap;
use std::time::Duration;

/// Totals since the task started, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    pub cpu: Duration,
    /// Time in which threads waited for a CPU; `None` where that is not known.
    pub cpu_stalled: Option<Duration>,
    pub ram: u64,
    pub ram_peak: u64,
    /// Bytes read from and written to disks.
    pub io: u64,
}

/// What a task uses at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU and disk rate since the reading before; RAM and disk as they are.
    pub now: Resources,
    /// Most RAM seen so far.
    pub ram_peak: u64,
    /// Milli-cores that the task wanted and did not get, as far as the kernel knows.
    pub cpu_unmet: Option<u64>,
}

/// Turns readings into rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    before: Option<(Duration, Reading)>,
    ram_peak: u64,
}

impl Meter {
    /// `now` is a time that only moves forward. The first reading, and one taken at the time of the
    /// one before, give no rate, so there is no usage yet.
    pub fn measure(&mut self, now: Duration, reading: Reading, disk: u64) -> Option<Usage> {
        self.ram_peak = self.ram_peak.max(reading.ram).max(reading.ram_peak);
        let before = self.before;
        if before.is_some_and(|(at, _)| at >= now) {
            return None;
        }
        self.before = Some((now, reading));
        let (at, old) = before?;
        let micros = u64::try_from(now.saturating_sub(at).as_micros()).unwrap_or(u64::MAX).max(1);
        let milli = |new: Duration, old: Duration| {
            let spent = u64::try_from(new.saturating_sub(old).as_micros()).unwrap_or(u64::MAX);
            spent.saturating_mul(1000) / micros
        };
        let io_bytes = reading.io.saturating_sub(old.io);
        let stalled = reading.cpu_stalled.zip(old.cpu_stalled);
        let now = Resources {
            cpu: milli(reading.cpu, old.cpu),
            ram: reading.ram,
            disk,
            disk_rate: io_bytes.saturating_mul(1_000_000) / micros,
        };
        let cpu_unmet = stalled.map(|(new, old)| milli(new, old));
        Some(Usage { now, ram_peak: self.ram_peak, cpu_unmet })
    }
}

/// The last reading of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatestReading {
    /// On the boot clock.
    pub at: u64,
    pub reading: Reading,
    /// Bytes it has on disk.
    pub disk: u64,
    /// Most memory since the last report.
    pub ram_peak: u64,
}

/// The newest readings of all tasks, from which reports are made.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    latest: BTreeMap<Attempt, LatestReading>,
}

impl Readings {
    /// Records one reading of a task.
    pub fn record(&mut self, attempt: Attempt, at: u64, reading: Reading, disk: u64) {
        let ram_peak = self.latest.get(&attempt).map_or(0, |old| old.ram_peak).max(reading.ram);
        self.latest.insert(attempt, LatestReading { at, reading, disk, ram_peak });
    }

    /// Forgets those that are gone.
    pub fn retain(&mut self, is_there: impl Fn(Attempt) -> bool) {
        self.latest.retain(|attempt, _| is_there(*attempt));
    }

    /// All readings as they are.
    #[must_use]
    pub fn latest(&self) -> &BTreeMap<Attempt, LatestReading> {
        &self.latest
    }

    /// All readings; peaks begin anew.
    #[must_use]
    pub fn take(&mut self) -> BTreeMap<Attempt, LatestReading> {
        let taken = self.latest.clone();
        self.latest.values_mut().for_each(|latest| latest.ram_peak = 0);
        taken
    }
}

/// Makes the usage of a report: rates are between two reports.
#[derive(Clone, Debug, Default)]
pub struct Sampler {
    meters: BTreeMap<Attempt, Meter>,
}

impl Sampler {
    /// Rates since the last call, memory as its peak since then. An attempt's first reading has no
    /// rates, so it is left out.
    pub fn usage(&mut self, latest: &BTreeMap<Attempt, LatestReading>) -> Vec<TaskUsage> {
        self.meters.retain(|attempt, _| latest.contains_key(attempt));
        let used = |(attempt, latest): (&Attempt, &LatestReading)| {
            let meter = self.meters.entry(*attempt).or_default();
            let now = Duration::from_millis(latest.at);
            let used = meter.measure(now, latest.reading, latest.disk)?.now;
            let ram = used.ram.max(latest.ram_peak);
            let used = Resources { ram, ..used };
            Some(TaskUsage { task: attempt.task, attempt: attempt.number, used })
        };
        // The usage of a log saver says nothing about the task whose logs it saves.
        latest.iter().filter(|(attempt, _)| !attempt.is_log_saver()).filter_map(used).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_totals_over_time() {
        let mut meter = Meter::default();
        let reading = |cpu_ms, stalled_ms, ram, io| Reading {
            cpu: Duration::from_millis(cpu_ms),
            cpu_stalled: Some(Duration::from_millis(stalled_ms)),
            ram,
            ram_peak: 0,
            io,
        };
        let at = Duration::from_millis;
        assert_eq!(meter.measure(at(1000), reading(500, 0, 900, 0), 7), None);
        let usage = meter.measure(at(3000), reading(1500, 100, 300, 4096), 8).unwrap();
        assert_eq!(usage.now, Resources::new(500, 300, 8, 2048));
        assert_eq!((usage.ram_peak, usage.cpu_unmet), (900, Some(50)));
        assert_eq!(meter.measure(at(3000), reading(1500, 100, 300, 4096), 8), None);
        let after_restart = meter.measure(at(4000), reading(0, 0, 1, 0), 8).unwrap();
        assert_eq!(after_restart.now, Resources::new(0, 1, 8, 0));
    }

    #[test]
    fn reports_have_rates_since_the_last_one_and_peaks_of_memory() {
        let attempt = Attempt::new(cellwright_cell::id::TaskId(1), 2);
        let mut readings = Readings::default();
        let mut note = |at, cpu_ms, ram, io| {
            let cpu = Duration::from_millis(cpu_ms);
            readings.record(attempt, at, Reading { cpu, ram, io, ..Reading::default() }, 7);
            readings.latest[&attempt].ram_peak
        };
        assert_eq!((note(500, 50, 9, 0), note(1000, 100, 5, 0)), (9, 9));
        let mut sampler = Sampler::default();
        assert_eq!(sampler.usage(&readings.take()), []);
        readings.record(attempt, 2000, Reading { ram: 9, ..Reading::default() }, 7);
        let cpu = Duration::from_millis(1100);
        readings.record(attempt, 3000, Reading { cpu, ram: 5, io: 4000, ..Reading::default() }, 7);
        let found = sampler.usage(&readings.take());
        assert_eq!(found[0].used, Resources::new(500, 9, 7, 2000));
        assert_eq!((found[0].task.0, found[0].attempt), (1, 2));
        // No new reading: nothing is reported.
        assert_eq!(sampler.usage(&readings.take()), []);
        readings.retain(|_| false);
        assert_eq!(readings.take(), BTreeMap::new());
    }
}
