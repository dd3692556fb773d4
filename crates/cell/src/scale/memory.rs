//! What is remembered of a job's load, as rows hold it: the last hour by minutes, days by tens of
//! minutes, and what one task used at most on each day.
//!
//! The load is one number, whatever it was measured by: the thousandths of tasks, at the largest
//! limits that the policy allows, that would have been needed. So it does not change when the cell
//! changes the size, which is what makes a past hour comparable with the present one. Rejected: a
//! series for each measure, of which only the largest would ever be looked at.

use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// Minutes of which each has a point.
pub const RECENT_MINUTES: usize = 60;
/// Minutes in a bucket of a day.
pub const BUCKET_MINUTES: u64 = 10;
pub const BUCKETS_PER_DAY: usize = (24 * 60 / BUCKET_MINUTES) as usize;
/// Days that are remembered, the present one included.
pub const HISTORY_DAYS: usize = 8;
/// Days whose peaks are remembered, the present one included.
pub const PEAK_DAYS: usize = 8;
/// Largest need of a point.
pub const MAX_NEED: u32 = 1_000_000_000;

const MINUTE: u64 = 60_000;
const DAY: u64 = 24 * 60 * MINUTE;

/// What was needed in one minute, counted from 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LoadPoint {
    pub minute: u64,
    pub need: u32,
}

/// The most that was needed in each bucket of a day, counted from 1970; 0 where nothing was
/// measured.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DayLoad {
    pub day: u64,
    /// Invariant: at most [`BUCKETS_PER_DAY`]; later ones were not measured.
    pub buckets: Vec<u32>,
}

/// The most that one task used on a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PeakDay {
    pub day: u64,
    pub cpu: u64,
    pub ram: u64,
    /// The largest limit at which a task was killed for want of memory; 0: none was.
    pub oom_limit: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScaleMemory {
    /// Invariant: minutes grow; at most [`RECENT_MINUTES`].
    pub recent: Vec<LoadPoint>,
    /// Invariant: days grow; at most [`HISTORY_DAYS`].
    pub days: Vec<DayLoad>,
    /// Invariant: days grow; at most [`PEAK_DAYS`].
    pub peaks: Vec<PeakDay>,
    /// When the cell chose more, less, and other limits; [`Time::ZERO`]: never.
    pub grown_at: Time,
    pub shrunk_at: Time,
    pub limits_at: Time,
}

impl ScaleMemory {
    /// Remembers what was needed at `now`. A second point of a minute leaves the larger one.
    pub fn remember_need(&mut self, now: Time, need: u32) {
        let (minute, need) = (now.0 / MINUTE, need.min(MAX_NEED));
        match self.recent.last_mut() {
            Some(last) if last.minute >= minute => last.need = last.need.max(need),
            _ => self.recent.push(LoadPoint { minute, need }),
        }
        let oldest = minute.saturating_sub(RECENT_MINUTES as u64 - 1);
        self.recent.retain(|point| point.minute >= oldest);
        let day = now.0 / DAY;
        if self.days.last().is_none_or(|last| last.day < day) {
            self.days.push(DayLoad { day, buckets: Vec::new() });
        }
        self.days.retain(|known| known.day + HISTORY_DAYS as u64 > day);
        let bucket = (minute % (24 * 60) / BUCKET_MINUTES) as usize;
        let Some(last) = self.days.last_mut() else { return };
        if last.buckets.len() <= bucket {
            last.buckets.resize(bucket + 1, 0);
        }
        last.buckets[bucket] = last.buckets[bucket].max(need);
    }

    /// Remembers the most that one task used; `oom_limit` is the limit at which one was killed for
    /// want of memory, or 0.
    pub fn remember_peak(&mut self, now: Time, cpu: u64, ram: u64, oom_limit: u64) {
        let day = now.0 / DAY;
        if self.peaks.last().is_none_or(|last| last.day < day) {
            self.peaks.push(PeakDay { day, cpu: 0, ram: 0, oom_limit: 0 });
        }
        self.peaks.retain(|known| known.day + PEAK_DAYS as u64 > day);
        let Some(last) = self.peaks.last_mut() else { return };
        last.cpu = last.cpu.max(cpu);
        last.ram = last.ram.max(ram);
        last.oom_limit = last.oom_limit.max(oom_limit);
    }

    /// Remembers that a decision was carried out.
    pub fn remember_change(&mut self, now: Time, from: super::ScaleSize, to: super::ScaleSize) {
        if to.count > from.count || to.cpu > from.cpu || to.ram > from.ram {
            self.grown_at = now;
        }
        if to.count < from.count {
            self.shrunk_at = now;
        }
        if (to.cpu, to.ram) != (from.cpu, from.ram) {
            self.limits_at = now;
        }
    }

    /// Forgets the load, which was measured against targets that hold no more.
    pub fn forget_load(&mut self) {
        self.recent.clear();
        self.days.clear();
    }

    /// The most that was needed within `span` until `now`.
    #[must_use]
    pub fn most_within(&self, now: Time, span: Span) -> Option<u32> {
        let from = now.0.saturating_sub(span.0) / MINUTE;
        self.recent.iter().filter(|point| point.minute >= from).map(|point| point.need).max()
    }

    /// The most that was needed in the buckets from `from` to `until`, on days as they were; `None`
    /// where one of them was not measured.
    #[must_use]
    pub fn most_between(&self, from: Time, until: Time) -> Option<u32> {
        self.buckets_between(from, until)?.max()
    }

    /// The mean of the same buckets.
    #[must_use]
    pub fn mean_between(&self, from: Time, until: Time) -> Option<u32> {
        let buckets: Vec<u64> = self.buckets_between(from, until)?.map(u64::from).collect();
        let mean = buckets.iter().sum::<u64>().checked_div(buckets.len() as u64)?;
        u32::try_from(mean).ok()
    }

    fn buckets_between(&self, from: Time, until: Time) -> Option<std::vec::IntoIter<u32>> {
        let bucket = BUCKET_MINUTES * MINUTE;
        let numbers = from.0 / bucket..=until.0 / bucket;
        let all: Option<Vec<u32>> = numbers.map(|number| self.bucket(number)).collect();
        Some(all?.into_iter())
    }

    /// What was needed in a bucket, counted from 1970.
    fn bucket(&self, number: u64) -> Option<u32> {
        let per_day = BUCKETS_PER_DAY as u64;
        let day = self.days.iter().find(|known| known.day == number / per_day)?;
        let need = day.buckets.get((number % per_day) as usize)?;
        (*need > 0).then_some(*need)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_by_minute_and_the_oldest_go() {
        let mut memory = ScaleMemory::default();
        for minute in 0..200u64 {
            memory.remember_need(Time(minute * MINUTE), minute as u32);
            memory.remember_need(Time(minute * MINUTE + 1), 7);
        }
        assert_eq!(memory.recent.len(), RECENT_MINUTES);
        assert_eq!(memory.recent[0], LoadPoint { minute: 140, need: 140 });
        let now = Time(199 * MINUTE);
        assert_eq!(memory.most_within(now, Span(10 * MINUTE)), Some(199));
        assert_eq!(memory.days[0].buckets.len(), 20);
        assert_eq!(memory.most_between(Time(0), Time(19 * MINUTE)), Some(19));
        assert_eq!(memory.mean_between(Time(0), Time(19 * MINUTE)), Some((9 + 19) / 2));
        // The third hour was not measured to its end.
        assert_eq!(memory.most_between(Time(0), Time(200 * MINUTE)), None);
    }

    #[test]
    fn days_and_peaks_are_forgotten() {
        let mut memory = ScaleMemory::default();
        for day in 0..20u64 {
            memory.remember_need(Time(day * DAY), 1);
            memory.remember_peak(Time(day * DAY), day, 20 - day, 0);
        }
        let days: Vec<u64> = memory.days.iter().map(|known| known.day).collect();
        assert_eq!(days, (12..20).collect::<Vec<u64>>());
        assert_eq!(memory.peaks.len(), PEAK_DAYS);
        // A clock of log time never runs back; what is older than the last point changes that one.
        memory.remember_need(Time(DAY), 9);
        assert_eq!(memory.recent.last().map(|point| point.need), Some(9));
    }
}
