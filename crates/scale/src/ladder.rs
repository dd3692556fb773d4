//! From what is needed to a size: one line from the smallest size to the largest.
//!
//! Limits first: at the fewest tasks each gets what it needs, up to its largest limit, and only
//! then there are more tasks, all at their largest limits. Limits change in place and at once, a
//! task takes time to start; and fewer, larger tasks waste less on what each needs for itself.
//! How large one may become is the owner's to say, so that it still finds a machine.
//!
//! **Invariant:** a larger need never leads to fewer tasks nor to smaller limits.
//!
//! Rejected: the number of tasks and their limits by a rule each, on the same measure. Smaller
//! limits look like more load, which makes more tasks, each of which has less to do, and gets
//! smaller limits again.

use cellwright_cell::scale::{LimitRange, ScalePolicy, ScaleSize};

/// Limits change by eighths of the largest: a finer choice would only change more often.
const RUNGS: u64 = 8;

/// A limit that follows the need, and its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rail {
    range: LimitRange,
    is_cpu: bool,
}

/// The sizes of a job, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ladder {
    present: ScaleSize,
    rails: Vec<Rail>,
}

impl Ladder {
    /// Limits that a measure is held to, and that have bounds, follow the need; others stay as they
    /// are.
    #[must_use]
    pub fn of(policy: &ScalePolicy, present: ScaleSize) -> Ladder {
        let rail = |range: Option<LimitRange>, target: Option<u32>, is_cpu| {
            range.filter(|_| target.is_some()).map(|range| Rail { range, is_cpu })
        };
        let vertical = policy.vertical;
        let cpu = rail(vertical.cpu.map(LimitRange::from), policy.target.cpu, true);
        let ram = rail(vertical.ram.map(LimitRange::from), policy.target.ram, false);
        Ladder { present, rails: cpu.into_iter().chain(ram).collect() }
    }

    /// One task at its largest limits.
    #[must_use]
    pub fn full(&self) -> ScaleSize {
        let one = ScaleSize { count: 1, ..self.present };
        self.rails.iter().fold(one, |size, rail| rail.with_limit(size, rail.range.max))
    }

    /// What a size is made for, in thousandths of tasks at their largest limits.
    #[must_use]
    pub fn capacity(&self, size: ScaleSize) -> u64 {
        let of_one = self.rails.iter().map(|rail| {
            let (limit, most) = (rail.limit(size), rail.range.max.max(1));
            u64::try_from(u128::from(limit) * 1000 / u128::from(most)).unwrap_or(u64::MAX)
        });
        of_one.min().unwrap_or(1000).saturating_mul(u64::from(size.count))
    }

    /// The smallest size for `need`, of at least `least` and at most `most` tasks.
    #[must_use]
    pub fn size_for(&self, need: u32, least: u32, most: u32) -> ScaleSize {
        let least = least.max(1);
        let count = need.div_ceil(1000).min(most).max(least);
        let size = ScaleSize { count, ..self.full() };
        if count > least {
            return size;
        }
        // Each of the fewest tasks gets its share.
        self.rails.iter().fold(size, |size, rail| rail.with_limit(size, rail.share(need, least)))
    }
}

impl Rail {
    fn limit(&self, size: ScaleSize) -> u64 {
        if self.is_cpu { size.cpu } else { size.ram }
    }

    fn with_limit(&self, size: ScaleSize, limit: u64) -> ScaleSize {
        if self.is_cpu {
            ScaleSize { cpu: limit, ..size }
        } else {
            ScaleSize { ram: limit, ..size }
        }
    }

    /// The limit of one of `least` tasks that share `need`, on the next rung.
    fn share(&self, need: u32, least: u32) -> u64 {
        let LimitRange { min, max } = self.range;
        let exact = u128::from(max) * u128::from(need);
        let exact = exact.div_ceil(u128::from(least) * 1000);
        let rung = u128::from(max).div_ceil(u128::from(RUNGS)).max(1);
        let limit = exact.div_ceil(rung) * rung;
        u64::try_from(limit).unwrap_or(max).min(max).max(min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::scale::{CpuRange, RamRange};
    use proptest::prelude::*;

    const PRESENT: ScaleSize = ScaleSize { count: 2, cpu: 1000, ram: 64 };

    fn policy(cpu: Option<CpuRange>) -> ScalePolicy {
        let mut policy = ScalePolicy::between(2, 10);
        policy.target.cpu = Some(60);
        policy.vertical.cpu = cpu;
        policy
    }

    #[test]
    fn limits_come_first_and_then_tasks() {
        let ladder = Ladder::of(&policy(Some(CpuRange { min: 250, max: 2000 })), PRESENT);
        let check = |need, count, cpu| {
            let size = ladder.size_for(need, 2, 10);
            assert_eq!(size, ScaleSize { count, cpu, ram: 64 }, "need {need}");
            assert!(ladder.capacity(size) >= u64::from(need).min(10_000), "need {need}");
        };
        check(0, 2, 250);
        check(250, 2, 250);
        check(251, 2, 500);
        check(1999, 2, 2000);
        check(2000, 2, 2000);
        check(2001, 3, 2000);
        check(9_001, 10, 2000);
        check(999_999, 10, 2000);
    }

    #[test]
    fn without_bounds_for_limits_there_are_tasks_alone() {
        let ladder = Ladder::of(&policy(None), PRESENT);
        assert_eq!(ladder.size_for(4500, 2, 10), ScaleSize { count: 5, ..PRESENT });
        assert_eq!(ladder.capacity(PRESENT), 2000);
        // Bounds of a limit that no measure is held to are for the peaks.
        let mut other = policy(None);
        other.vertical.ram = Some(RamRange { min: 1, max: 128 });
        assert_eq!(Ladder::of(&other, PRESENT), ladder);
    }

    proptest! {
        #[test]
        fn more_load_never_makes_anything_smaller(
            one in 0..200_000u32, more in 0..200_000u32, least in 1..20u32, room in 0..50u32,
            low in 1..4000u64, high in 1..4000u64,
        ) {
            let range = CpuRange { min: low.min(high), max: low.max(high) };
            let ladder = Ladder::of(&policy(Some(range)), PRESENT);
            let most = least + room;
            let (small, large) =
                (ladder.size_for(one, least, most), ladder.size_for(one + more, least, most));
            prop_assert!(small.count <= large.count && small.cpu <= large.cpu);
            prop_assert!(ladder.capacity(small) <= ladder.capacity(large));
            prop_assert!((least..=most).contains(&small.count));
            prop_assert!((range.min..=range.max).contains(&small.cpu));
        }
    }
}
