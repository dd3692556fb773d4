//! What will be needed by the time that new tasks have started: the line of the last minutes drawn
//! on, and what followed at this time of earlier days.
//!
//! Earlier days say by what factor the load rose from here, not how large it was: a service that
//! has twice as many users as last week still has its evening. Where today is not like the days
//! before, at half or twice their level, they say nothing and are not asked.
//!
//! Rejected: a model of seasons fitted to the history. It wants weeks before it says anything, and
//! an owner cannot see in it why tasks were started.

use crate::MINUTE;
use cellwright_cell::scale::{HISTORY_DAYS, ScaleMemory};
use cellwright_cell::time::{Span, Time};

/// Between a rise and the tasks that were started for it: a minute until it is measured, and about
/// two until they serve.
const LEAD_MINUTES: u64 = 3;
/// Over how many minutes the line is drawn; each end is the mean of some.
const TREND_MINUTES: u64 = 9;
const TREND_ENDS: u64 = 3;
/// A rise below this share of the load is noise, in thousandths.
const TREND_LEAST: u64 = 100;
/// Of the rises of an hour, the largest tenth is left out: one jump is no habit.
const SWINGS_LEFT_OUT: usize = 10;
/// A rise below this share of the hour's mean is noise, in thousandths: what is calm is not to
/// change its size for it.
const SWING_LEAST: u64 = 250;
/// Fewest rises to judge by.
const LEAST_SWINGS: usize = 30;
/// How far ahead earlier days are asked when the job may grow.
pub const AHEAD: Span = Span(10 * MINUTE);
/// How far ahead when it is to shrink: tasks that are stopped now and started again within this
/// time have saved nothing.
pub const LOOK_AHEAD: Span = Span(60 * MINUTE);
/// The level of a time of day is the mean of this long before it, without the bucket that is
/// being filled.
const LEVEL: Span = Span(40 * MINUTE);
const BUCKET: Span = Span(10 * MINUTE);
const DAY: u64 = 24 * 60 * MINUTE;
/// Fewest earlier days that count as a pattern.
const LEAST_DAYS: usize = 2;

/// The need in a few minutes, if the rise of the last ones goes on. `None`: it does not rise.
#[must_use]
pub fn trend(memory: &ScaleMemory, now: Time) -> Option<u32> {
    let minute = now.0 / MINUTE;
    let mean = |first: u64, last: u64| {
        let points = memory.recent.iter().filter(|p| (first..=last).contains(&p.minute));
        let needs: Vec<u64> = points.map(|point| u64::from(point.need)).collect();
        let all = needs.len() as u64 == TREND_ENDS;
        all.then(|| needs.iter().sum::<u64>() / TREND_ENDS)
    };
    let last = mean(minute.checked_sub(TREND_ENDS - 1)?, minute)?;
    let begin = minute.checked_sub(TREND_MINUTES - 1)?;
    let first = mean(begin, begin + TREND_ENDS - 1)?;
    let rise = last.checked_sub(first)?;
    if rise * 1000 < first * TREND_LEAST {
        return None;
    }
    let newest = u64::from(memory.recent.last()?.need);
    // From the middle of one end to the middle of the other.
    let ahead = rise * LEAD_MINUTES / (TREND_MINUTES - TREND_ENDS);
    u32::try_from(newest + ahead).ok()
}

/// The need in a few minutes, if the load swings as it did in the last hour: what it rose by, again
/// and again, in the time that new tasks take. `None`: too little is known, or it is calm.
#[must_use]
pub fn swing(memory: &ScaleMemory) -> Option<u32> {
    let points = &memory.recent;
    let mut rises: Vec<u32> = Vec::with_capacity(points.len());
    let mut later = points.iter().peekable();
    for point in points {
        let then = point.minute + LEAD_MINUTES;
        while later.peek().is_some_and(|other| other.minute < then) {
            later.next();
        }
        if let Some(other) = later.peek().filter(|other| other.minute == then) {
            rises.push(other.need.saturating_sub(point.need));
        }
    }
    if rises.len() < LEAST_SWINGS {
        return None;
    }
    rises.sort_unstable_by(|one, other| other.cmp(one));
    let usual = *rises.get(rises.len() / SWINGS_LEFT_OUT)?;
    let sum: u64 = points.iter().map(|point| u64::from(point.need)).sum();
    let swings = u64::from(usual) * 1000 * points.len() as u64 > sum * SWING_LEAST;
    let newest = points.last()?.need;
    swings.then(|| newest.saturating_add(usual))
}

/// The most that will be needed within `ahead`, if today goes on as earlier days did.
#[must_use]
pub fn same_time_earlier(memory: &ScaleMemory, now: Time, ahead: Span) -> Option<u32> {
    let level = level_before(memory, now)?;
    let mut days: Vec<(u64, u64)> = Vec::new();
    for back in 1..HISTORY_DAYS as u64 {
        let Some(then) = now.0.checked_sub(back * DAY).map(Time) else { break };
        let most = memory.most_between(then, then.plus(ahead));
        if let (Some(most), Some(level)) = (most, level_before(memory, then)) {
            days.push((level, u64::from(most) * 1000 / level.max(1)));
        }
    }
    if days.len() < LEAST_DAYS {
        return None;
    }
    let usual = upper_median(days.iter().map(|(level, _)| *level));
    if level * 2 < usual || level > usual * 2 {
        return None;
    }
    let growth = upper_median(days.iter().map(|(_, growth)| *growth));
    u32::try_from(level * growth / 1000).ok()
}

/// What was needed on average shortly before `at`.
fn level_before(memory: &ScaleMemory, at: Time) -> Option<u64> {
    let (from, until) = (at.0.checked_sub(LEVEL.0)?, at.0.checked_sub(BUCKET.0)?);
    memory.mean_between(Time(from), Time(until)).map(u64::from)
}

fn upper_median(values: impl Iterator<Item = u64>) -> u64 {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A memory of `minutes`, each with the need that `need` says.
    fn memory(minutes: std::ops::Range<u64>, need: impl Fn(u64) -> u64) -> ScaleMemory {
        let mut memory = ScaleMemory::default();
        for minute in minutes {
            memory.remember_need(Time(minute * MINUTE), need(minute) as u32);
        }
        memory
    }

    #[test]
    fn a_rise_is_drawn_on_and_noise_is_not() {
        let trend_of = |need: fn(u64) -> u64| trend(&memory(0..20, need), Time(19 * MINUTE));
        // By 100 a minute, at 2900 now.
        assert_eq!(trend_of(|minute| 1000 + minute * 100), Some(3200));
        assert_eq!(trend_of(|minute| 3000 - minute * 100), None);
        assert_eq!(trend_of(|_| 1000), None);
        assert_eq!(trend_of(|minute| 1000 + minute % 2 * 90), None);
        // Too short a time.
        assert_eq!(trend(&memory(0..5, |minute| minute * 100), Time(4 * MINUTE)), None);
    }

    #[test]
    fn what_rises_again_and_again_is_expected_to_and_one_jump_is_not() {
        let swing_of = |need: fn(u64) -> u64| swing(&memory(0..60, need));
        assert_eq!(swing_of(|_| 1000), None);
        assert_eq!(swing_of(|minute| if minute < 30 { 1000 } else { 5000 }), None);
        // Up and down every five minutes; it is low now.
        assert_eq!(swing_of(|minute| if minute / 5 % 2 == 0 { 3000 } else { 1000 }), Some(3000));
        assert_eq!(swing(&memory(0..20, |minute| 1000 + minute % 5 * 500)), None);
    }

    /// Doubles at noon, for an hour.
    fn noon(minute: u64) -> u64 {
        if (720..780).contains(&(minute % 1440)) { 2000 } else { 1000 }
    }

    #[test]
    fn what_rose_on_earlier_days_is_expected() {
        let day = 1440;
        let check = |minutes: u64, factor: fn(u64) -> u64, ahead: Span, want: Option<u32>| {
            let memory = memory(0..minutes, |minute| noon(minute) * factor(minute / 1440) / 10);
            let now = Time((minutes - 1) * MINUTE);
            assert_eq!(same_time_earlier(&memory, now, ahead), want, "at minute {minutes}");
        };
        let same = |_: u64| 10u64;
        check(3 * day + 715, same, AHEAD, Some(2000));
        check(3 * day + 600, same, AHEAD, Some(1000));
        check(3 * day + 665, same, LOOK_AHEAD, Some(2000));
        // One earlier day is no pattern.
        check(day + 715, same, AHEAD, None);
        // Half again as much as on the days before, and so will be the rise.
        check(3 * day + 715, |day| if day == 3 { 15 } else { 10 }, AHEAD, Some(3000));
        // Nothing like the days before.
        check(3 * day + 715, |day| if day == 3 { 30 } else { 10 }, AHEAD, None);
        check(3 * day + 715, |day| if day == 3 { 4 } else { 10 }, AHEAD, None);
    }

    #[test]
    fn a_day_that_was_not_measured_is_left_out() {
        let hole = |minute: u64| if minute / 1440 == 1 { 0 } else { noon(minute) };
        let memory = memory(0..4 * 1440 + 715, hole);
        let now = Time((4 * 1440 + 714) * MINUTE);
        assert_eq!(same_time_earlier(&memory, now, AHEAD), Some(2000));
    }
}
