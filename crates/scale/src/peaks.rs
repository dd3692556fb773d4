//! Limits by what was used over days: the most of each day, with a margin, and more than the limit
//! at which a task was killed for want of memory.
//!
//! A limit that is too low costs an end or a slow service, one that is too high only room: so it
//! rises at once and falls after a day of peaks that all were low, once a day. Whether a limit has
//! anything to do with the number of tasks is asked of the policy: one that a measure is held to is
//! the ladder's.

use crate::MINUTE;
use cellwright_cell::scale::{
    LimitRange, PeakDay, ScaleMemory, ScalePolicy, ScaleRule, ScaleSize, SignalName,
};
use cellwright_cell::time::{Span, Time};

/// Above the largest peak, in thousandths.
const MARGIN: u64 = 150;
/// Above a limit at which a task was killed, in thousandths.
const AFTER_OOM: u64 = 250;
/// A peak this close to its limit raises it, in thousandths of the limit.
const NEAR: u64 = 900;
/// A limit falls where it is larger than what is wanted by so much, in thousandths.
const FAR: u64 = 1250;
/// How often a limit falls, and over how long its peaks must be known for it.
const LOWER_EVERY: Span = Span(24 * 60 * MINUTE);
/// A number of tasks that has just changed gives each another share of the load.
const SETTLE: Span = Span(10 * MINUTE);

/// The limits that the peaks ask for, and the rule; `None`: what they are.
#[must_use]
pub fn limits(
    policy: &ScalePolicy,
    memory: &ScaleMemory,
    size: ScaleSize,
    now: Time,
) -> Option<(ScaleSize, ScaleRule)> {
    let settled = [memory.grown_at, memory.shrunk_at].iter().all(|at| now >= at.plus(SETTLE));
    let may_fall =
        settled && is_known_for_a_day(memory, now) && now >= memory.limits_at.plus(LOWER_EVERY);
    let ram = policy.vertical.ram.filter(|_| policy.target.ram.is_none());
    let cpu = policy.vertical.cpu.filter(|_| policy.target.cpu.is_none());
    let oom = memory.peaks.iter().map(|day| day.oom_limit).max().unwrap_or(0);
    let mut wanted = size;
    let mut rule = None;
    if let Some(range) = ram {
        let floor = if oom > 0 { more(oom, AFTER_OOM) } else { 0 };
        let peak = most(memory, |day| day.ram);
        if let Some(limit) = limit(range.into(), size.ram, peak, floor, may_fall) {
            wanted.ram = limit;
            let after_oom = floor > size.ram;
            rule = Some(if after_oom {
                ScaleRule::OutOfMemory
            } else {
                ScaleRule::Peak(SignalName::Ram)
            });
        }
    }
    if let Some(range) = cpu {
        let peak = most(memory, |day| day.cpu);
        if let Some(limit) = limit(range.into(), size.cpu, peak, 0, may_fall) {
            wanted.cpu = limit;
            rule = rule.or(Some(ScaleRule::Peak(SignalName::Cpu)));
        }
    }
    rule.map(|rule| (wanted, rule))
}

fn most(memory: &ScaleMemory, of: impl Fn(&PeakDay) -> u64) -> u64 {
    memory.peaks.iter().map(of).max().unwrap_or(0)
}

fn more(amount: u64, permille: u64) -> u64 {
    let sum = u128::from(amount) * u128::from(1000 + permille) / 1000;
    u64::try_from(sum).unwrap_or(u64::MAX)
}

/// The peaks of the day before are known, so that a whole day is.
fn is_known_for_a_day(memory: &ScaleMemory, now: Time) -> bool {
    let day = now.0 / LOWER_EVERY.0;
    memory.peaks.iter().any(|known| known.day < day)
}

/// Another limit than the present one, if the peaks ask for it.
fn limit(range: LimitRange, present: u64, peak: u64, floor: u64, may_fall: bool) -> Option<u64> {
    let wanted = more(peak, MARGIN).max(floor).min(range.max).max(range.min);
    let outside = present < range.min || present > range.max;
    let near = u128::from(peak) * 1000 >= u128::from(present) * u128::from(NEAR) || floor > present;
    let far = u128::from(present) * 1000 >= u128::from(wanted) * u128::from(FAR);
    let changes = outside || (near && wanted > present) || (far && may_fall && peak > 0);
    (changes && wanted != present).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::scale::RamRange;

    const DAY: u64 = 24 * 60 * MINUTE;
    const SIZE: ScaleSize = ScaleSize { count: 2, cpu: 500, ram: 1000 };

    fn policy() -> ScalePolicy {
        let mut policy = ScalePolicy::between(1, 9);
        policy.target.cpu = Some(60);
        policy.vertical.ram = Some(RamRange { min: 200, max: 4000 });
        policy
    }

    /// Peaks of memory, one each day, the last of them today.
    fn memory(peaks: &[u64], oom_limit: u64) -> (ScaleMemory, Time) {
        let mut memory = ScaleMemory::default();
        for (day, peak) in peaks.iter().enumerate() {
            memory.remember_peak(Time((day as u64 + 1) * DAY), 10, *peak, 0);
        }
        let now = Time(peaks.len() as u64 * DAY);
        memory.remember_peak(now, 10, 0, oom_limit);
        (memory, now)
    }

    fn check(peaks: &[u64], oom_limit: u64, want: Option<(u64, ScaleRule)>) {
        let (memory, now) = memory(peaks, oom_limit);
        let found = limits(&policy(), &memory, SIZE, now).map(|(size, rule)| {
            assert_eq!((size.count, size.cpu), (SIZE.count, SIZE.cpu));
            (size.ram, rule)
        });
        assert_eq!(found, want, "{peaks:?}, killed at {oom_limit}");
    }

    #[test]
    fn a_limit_rises_at_once_and_falls_after_days() {
        let peak = || ScaleRule::Peak(SignalName::Ram);
        check(&[950], 0, Some((1092, peak())));
        check(&[800], 0, None);
        // One day says nothing about the others.
        check(&[300], 0, None);
        check(&[300, 300], 0, Some((345, peak())));
        check(&[850, 300, 300], 0, None);
        check(&[3900], 0, Some((4000, peak())));
        check(&[10, 10], 0, Some((200, peak())));
    }

    #[test]
    fn a_task_that_was_killed_gets_more_than_it_had() {
        check(&[500], 1000, Some((1250, ScaleRule::OutOfMemory)));
        // It was killed at less than it has now.
        check(&[500], 500, None);
        check(&[500], 4000, Some((4000, ScaleRule::OutOfMemory)));
    }

    #[test]
    fn a_limit_that_a_measure_is_held_to_is_left_alone_and_so_is_one_of_a_new_size() {
        let (mut memory, now) = memory(&[300, 300], 0);
        let mut other = policy();
        other.target.ram = Some(70);
        assert_eq!(limits(&other, &memory, SIZE, now), None);
        memory.shrunk_at = Time(now.0 - 1);
        assert_eq!(limits(&policy(), &memory, SIZE, now), None);
        memory.shrunk_at = Time::ZERO;
        memory.limits_at = Time(now.0 - 1);
        assert_eq!(limits(&policy(), &memory, SIZE, now), None);
    }
}
