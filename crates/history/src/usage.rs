//! What one attempt used in one interval: a row of `usage`, and what it adds to the sums of its
//! day.
//!
//! Agents cut the intervals (at whole multiples of five minutes, and where a task starts or ends)
//! and say each of them until a replica has it, in the same words. So a row is known by its task,
//! its attempt, its machine and its beginning, and one that comes again changes nothing.
//!
//! CPU time is the kernel's own count of it. A rate that is rounded to milli-cores is off by a
//! hundredth for a task of a tenth of a second, and a bill is the sum of many.

use crate::day::day_of;
use crate::event_rows::to_sql_integer;
use cellwright_cell::resource::Resources;
use cellwright_cell::time::Time;
use rusqlite::types::Value;
use serde::{Deserialize, Serialize};

/// The usage of one attempt in one interval.
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
    /// CPU time, in microseconds.
    pub cpu_micros: u64,
    /// Labels of the job as a JSON object; empty where they are not known.
    pub labels: String,
}

/// Labels of jobs of which none are known.
pub(crate) const NO_LABELS: &str = "{}";

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
            number(self.cpu_micros),
            text(self.known_labels()),
        ]
    }

    pub(crate) fn known_labels(&self) -> &str {
        if self.labels.is_empty() { NO_LABELS } else { &self.labels }
    }

    /// Its contribution to a day, in thousandths: seconds, then milli-core seconds and MiB seconds
    /// used, reserved and requested.
    pub(crate) fn sums(&self) -> [i64; 7] {
        let over = |amount: u64, unit: u128| {
            let sum = u128::from(amount) * u128::from(self.millis) / unit;
            i64::try_from(sum).unwrap_or(i64::MAX)
        };
        const MIB: u128 = 1 << 20;
        [
            to_sql_integer(self.millis),
            to_sql_integer(self.cpu_micros),
            over(self.reserved.cpu, 1),
            over(self.limit.cpu, 1),
            over(self.average.ram, MIB),
            over(self.reserved.ram, MIB),
            over(self.limit.ram, MIB),
        ]
    }

    /// How long the task used about so much, for percentiles of a day: the resource, the level and
    /// the time in thousandths of a second.
    pub(crate) fn levels(&self) -> [(&'static str, i64, i64); 2] {
        let millis = to_sql_integer(self.millis);
        let levels = [("cpu", self.average.cpu), ("ram", self.average.ram)];
        levels.map(|(resource, used)| (resource, to_sql_integer(level(used)), millis))
    }
}

/// A figure in as few steps as a percentile can bear: sixteen to each doubling, rounded up, so that
/// what is read from it is at most a sixteenth too much.
fn level(amount: u64) -> u64 {
    let bits = u64::BITS - amount.leading_zeros();
    let shift = bits.saturating_sub(5);
    let step = 1_u64 << shift;
    amount.div_ceil(step).saturating_mul(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_task_is_billed_for_what_the_kernel_counted() {
        let amount = |cpu, ram| Resources { cpu, ram, ..Resources::ZERO };
        let row = UsageRow {
            time: Time(7),
            millis: 50,
            user: "ann".into(),
            job: "web".into(),
            task_index: 3,
            attempt: 2,
            machine: "m1".into(),
            band: "batch".into(),
            samples: 0,
            average: amount(962, 10 << 20),
            peak: amount(962, 10 << 20),
            reserved: amount(1000, 64 << 20),
            limit: amount(2000, 128 << 20),
            cpu_micros: 48_123,
            labels: String::new(),
        };
        assert_eq!(row.sums(), [50, 48_123, 50_000, 100_000, 500, 3200, 6400]);
        assert_eq!(row.levels(), [("cpu", 992, 50), ("ram", 10 << 20, 50)]);
        assert_eq!(row.known_labels(), "{}");
    }

    #[test]
    fn a_level_is_never_too_little_and_at_most_a_sixteenth_too_much() {
        for amount in (0..5000).chain([1 << 40, (1 << 40) + 1, u64::MAX - 1, u64::MAX]) {
            let level = level(amount);
            assert!(level >= amount, "{amount}");
            assert!(level - amount <= amount / 16, "{amount}: {level}");
        }
    }
}
