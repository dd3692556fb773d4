//! Resource usage of tasks, aggregated into windows before it is written: an agent measures every
//! few seconds, and a row for each sample would be twenty million a day for a thousand machines.
//!
//! Windows end at whole multiples of five minutes, and where a process starts or stops. A row has
//! the time it covers, so sums over rows are right however the windows are divided.

use crate::day::day_of;
use crate::event_rows::to_sql_integer;
use cellwright_cell::id::TaskId;
use cellwright_cell::resource::Resources;
use cellwright_cell::time::{Span, Time};
use rusqlite::types::Value;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Length of a window.
pub const WINDOW: Span = Span::seconds(300);
/// A sample stands for the time since the one before, but not for more than this: a machine that
/// was silent has not reported what happened meanwhile.
const MAX_COVERED: Span = Span::seconds(60);

/// The task that usage belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageOwner {
    pub user: String,
    pub job: String,
    pub task_index: u32,
    pub machine: String,
    pub band: String,
}

/// One usage sample of one task.
#[derive(Clone, Copy, Debug)]
pub struct UsageSample {
    pub task: TaskId,
    pub attempt: u32,
    pub at: Time,
    /// Time it covers.
    pub covers: Span,
    pub used: Resources,
    pub reserved: Resources,
    pub limit: Resources,
}

/// The usage of one task in one window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRow {
    pub time: Time,
    pub millis: u64,
    pub user: String,
    pub job: String,
    pub task_index: u32,
    pub attempt: u32,
    pub machine: String,
    pub band: String,
    pub samples: u64,
    pub average: Resources,
    pub peak: Resources,
    pub reserved: Resources,
    pub limit: Resources,
}

impl UsageRow {
    /// In the order of the table's columns.
    pub(crate) fn values(&self) -> Vec<Value> {
        let number = |number: u64| Value::Integer(to_sql_integer(number));
        let text = |text: &str| Value::Text(text.to_owned());
        vec![
            number(self.time.0),
            Value::Text(day_of(self.time.0)),
            number(self.millis),
            text(&self.user),
            text(&self.job),
            number(u64::from(self.task_index)),
            number(u64::from(self.attempt)),
            text(&self.machine),
            text(&self.band),
            number(self.samples),
            number(self.average.cpu),
            number(self.peak.cpu),
            number(self.average.ram),
            number(self.peak.ram),
            number(self.peak.disk),
            number(self.average.disk_rate),
            number(self.reserved.cpu),
            number(self.reserved.ram),
            number(self.limit.cpu),
            number(self.limit.ram),
        ]
    }

    /// Its contribution to a day: seconds, then milli-core seconds and MiB seconds used, reserved
    /// and requested.
    pub(crate) fn sums(&self) -> [i64; 7] {
        let over = |amount: u64, unit: u128| {
            let sum = u128::from(amount) * u128::from(self.millis) / (unit * 1000);
            i64::try_from(sum).unwrap_or(i64::MAX)
        };
        const MIB: u128 = 1 << 20;
        [
            to_sql_integer(self.millis / 1000),
            over(self.average.cpu, 1),
            over(self.reserved.cpu, 1),
            over(self.limit.cpu, 1),
            over(self.average.ram, MIB),
            over(self.reserved.ram, MIB),
            over(self.limit.ram, MIB),
        ]
    }
}

#[derive(Debug)]
struct OpenWindow {
    owner: UsageOwner,
    begin: Time,
    last: Time,
    millis: u64,
    samples: u64,
    /// Weighted by time.
    sum: [u128; 4],
    peak: Resources,
    reserved: Resources,
    limit: Resources,
}

/// The windows that are being filled.
#[derive(Debug, Default)]
pub struct UsageWindows {
    open: BTreeMap<(TaskId, u32), OpenWindow>,
    done: Vec<UsageRow>,
}

impl UsageWindows {
    /// Adds a sample; `owner` is called when a window begins.
    pub fn add_sample(
        &mut self,
        measured: UsageSample,
        owner: impl FnOnce() -> Option<UsageOwner>,
    ) {
        let key = (measured.task, measured.attempt);
        let covers = measured.covers.0.min(MAX_COVERED.0);
        let from = Time(measured.at.0.saturating_sub(covers));
        let window = |at: Time| at.0 / WINDOW.0;
        let over = self.open.get(&key).is_some_and(|open| window(open.last) != window(measured.at));
        if over && let Some(open) = self.open.remove(&key) {
            self.done.push(close_window(key, &open));
        }
        let open = match self.open.entry(key) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let Some(owner) = owner() else { return };
                entry.insert(OpenWindow {
                    owner,
                    begin: from,
                    last: from,
                    millis: 0,
                    samples: 0,
                    sum: [0; 4],
                    peak: Resources::ZERO,
                    reserved: measured.reserved,
                    limit: measured.limit,
                })
            }
        };
        let used = measured.used;
        let amounts = [used.cpu, used.ram, used.disk, used.disk_rate];
        for (sum, amount) in open.sum.iter_mut().zip(amounts) {
            *sum += u128::from(amount) * u128::from(covers);
        }
        open.millis += covers;
        open.samples += 1;
        open.last = measured.at;
        open.peak = open.peak.max(used);
        (open.reserved, open.limit) = (measured.reserved, measured.limit);
    }

    /// Windows that are over by now, and those of tasks that ended.
    pub fn take_finished(&mut self, now: Time) -> Vec<UsageRow> {
        let window = |at: Time| at.0 / WINDOW.0;
        let over = |open: &OpenWindow| window(open.last) < window(now);
        let keys: Vec<_> =
            self.open.iter().filter(|(_, open)| over(open)).map(|(key, _)| *key).collect();
        self.close(keys)
    }

    /// All of them: the process ends.
    pub fn take_all(&mut self) -> Vec<UsageRow> {
        let keys: Vec<_> = self.open.keys().copied().collect();
        self.close(keys)
    }

    /// Usage that was measured and not taken yet, open windows included.
    #[must_use]
    pub fn unwritten(&self) -> Vec<UsageRow> {
        let open = self.open.iter().map(|(key, open)| close_window(*key, open));
        self.done.iter().cloned().chain(open).collect()
    }

    fn close(&mut self, keys: Vec<(TaskId, u32)>) -> Vec<UsageRow> {
        for key in keys {
            if let Some(open) = self.open.remove(&key) {
                self.done.push(close_window(key, &open));
            }
        }
        std::mem::take(&mut self.done)
    }
}

fn close_window((_, attempt): (TaskId, u32), open: &OpenWindow) -> UsageRow {
    // A sample that covers no time counts as one of a millisecond.
    let millis = u128::from(open.millis.max(1));
    let [cpu, ram, disk, disk_rate] =
        open.sum.map(|sum| u64::try_from(sum / millis).unwrap_or(u64::MAX));
    UsageRow {
        time: open.begin,
        millis: open.millis,
        user: open.owner.user.clone(),
        job: open.owner.job.clone(),
        task_index: open.owner.task_index,
        attempt,
        machine: open.owner.machine.clone(),
        band: open.owner.band.clone(),
        samples: open.samples,
        average: Resources { cpu, ram, disk, disk_rate },
        peak: open.peak,
        reserved: open.reserved,
        limit: open.limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Option<UsageOwner> {
        let text = |text: &str| text.to_owned();
        let (user, job, machine) = (text("ann"), text("web"), text("m1"));
        Some(UsageOwner { user, job, task_index: 3, machine, band: text("batch") })
    }

    fn measured(at: u64, cpu: u64) -> UsageSample {
        let used = Resources { cpu, ram: cpu << 20, ..Resources::ZERO };
        let limit = Resources { cpu: 1000, ram: 1 << 30, ..Resources::ZERO };
        let (task, covers) = (TaskId(7), Span(10_000));
        UsageSample { task, attempt: 2, at: Time(at), covers, used, reserved: limit, limit }
    }

    #[test]
    fn a_window_has_the_average_and_the_most_of_its_measurements() {
        let mut windows = UsageWindows::default();
        for (at, cpu) in [(10_000, 100), (20_000, 300), (30_000, 200)] {
            windows.add_sample(measured(at, cpu), owner);
        }
        assert_eq!(windows.take_finished(Time(200_000)), [], "the window is not over");
        let present = windows.unwritten();
        let rows = windows.take_finished(Time(WINDOW.0));
        assert_eq!(rows.len(), 1);
        assert_eq!(present, rows, "and was seen before");
        let row = &rows[0];
        assert_eq!((row.time, row.millis, row.samples), (Time(0), 30_000, 3));
        assert_eq!((row.average.cpu, row.peak.cpu), (200, 300));
        assert_eq!((row.average.ram, row.peak.ram), (200 << 20, 300 << 20));
        assert_eq!(row.sums(), [30, 6_000, 30_000, 30_000, 6_000, 30_720, 30_720]);
        assert_eq!(windows.take_all(), []);
    }

    #[test]
    fn sums_do_not_depend_on_where_windows_are_cut() {
        let total = |cut: &[usize]| {
            let (mut windows, mut rows) = (UsageWindows::default(), Vec::new());
            for nth in 0..100_usize {
                windows.add_sample(measured(10_000 * (nth as u64 + 1), 500), owner);
                if cut.contains(&nth) {
                    rows.extend(windows.take_all());
                }
            }
            rows.extend(windows.take_all());
            rows.iter().map(|row| row.sums()[1]).sum::<i64>()
        };
        assert_eq!(total(&[]), 500_000);
        assert_eq!(total(&[3, 4, 50]), 500_000);
    }

    #[test]
    fn silence_is_not_counted_as_use() {
        let mut windows = UsageWindows::default();
        let long = UsageSample { covers: Span::seconds(3600), ..measured(3_600_000, 100) };
        windows.add_sample(long, owner);
        assert_eq!(windows.take_all()[0].millis, 60_000);
    }
}
