//! Who sizes a service: the rules of this crate, and what they are compared with.

use super::service::STEPS_PER_MINUTE;
use crate::decide::{Measured, Situation, decide};
use crate::need::{Usage, largest, signals};
use cellwright_cell::scale::{CpuRange, ScaleMemory, ScaleMode, ScalePolicy, ScaleSize};
use cellwright_cell::time::Time;
use std::collections::VecDeque;

/// What a sizer sees after a step.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub now: Time,
    /// Counted from the beginning.
    pub step: u64,
    pub size: ScaleSize,
    /// Tasks that serve.
    pub ready: u32,
    /// Milli-cores that they used, on average over the last minute.
    pub used: u64,
}

pub trait Sizer {
    /// The size from now on.
    fn step(&mut self, seen: &Seen) -> ScaleSize;
}

/// One size for ever.
#[derive(Debug)]
pub struct Fixed(pub ScaleSize);

impl Sizer for Fixed {
    fn step(&mut self, _: &Seen) -> ScaleSize {
        self.0
    }
}

/// The rules of this crate, once a minute, as the cell asks them.
#[derive(Debug)]
pub struct Rules {
    policy: ScalePolicy,
    memory: ScaleMemory,
}

impl Rules {
    #[must_use]
    pub fn new(policy: ScalePolicy) -> Rules {
        Rules { policy, memory: ScaleMemory::default() }
    }
}

impl Sizer for Rules {
    fn step(&mut self, seen: &Seen) -> ScaleSize {
        let Seen { now, size, ready, used, .. } = *seen;
        if !seen.step.is_multiple_of(STEPS_PER_MINUTE) {
            return size;
        }
        let usage = Usage { tasks: ready, cpu: used, ..Usage::default() };
        let measured = largest(&signals(&self.policy, size, &usage)).map(|(by, need)| {
            self.memory.remember_need(now, need);
            Measured { at: now, by, need, missing: size.count.saturating_sub(ready) }
        });
        let decision = decide(&Situation {
            now,
            policy: &self.policy,
            mode: ScaleMode::Auto,
            size,
            fewest: 1,
            failing: 0,
            update_open: false,
            memory: &self.memory,
            measured,
            untold: None,
            room: None,
        });
        if decision.changes_size() {
            self.memory.remember_change(now, decision.from, decision.to);
        }
        decision.to
    }
}

/// A number of tasks by the use of their limits, as the horizontal autoscaler of Kubernetes does
/// with its defaults: every quarter of a minute, a tenth of tolerance, at most four more or twice
/// as many at once, and five minutes of stabilisation.
#[derive(Debug)]
pub struct TargetUse {
    pub percent: u64,
    pub min: u32,
    pub max: u32,
    recent: VecDeque<u32>,
}

impl TargetUse {
    #[must_use]
    pub fn new(percent: u64, min: u32, max: u32) -> TargetUse {
        TargetUse { percent, min, max, recent: VecDeque::new() }
    }

    fn count(&mut self, seen: &Seen) -> u32 {
        let present = seen.size.count;
        // Tasks that do not serve yet count as idle where it would grow.
        let per_task = (seen.size.cpu * self.percent / 100).max(1);
        let exact = u32::try_from(seen.used.div_ceil(per_task)).unwrap_or(u32::MAX);
        let permille = seen.used * 1000 / (per_task * u64::from(present.max(1)));
        let desired = if (900..=1100).contains(&permille) { present } else { exact };
        let desired = desired.clamp(self.min, self.max);
        self.recent.push_back(desired);
        if self.recent.len() as u64 > 5 * STEPS_PER_MINUTE {
            self.recent.pop_front();
        }
        if desired >= present {
            return desired.min(present.saturating_mul(2).max(present + 4));
        }
        let most = self.recent.iter().copied().max().unwrap_or(desired);
        most.min(present)
    }
}

impl Sizer for TargetUse {
    fn step(&mut self, seen: &Seen) -> ScaleSize {
        ScaleSize { count: self.count(seen), ..seen.size }
    }
}

/// Two controllers that know nothing of each other: the one above, and one that gives each task
/// what it used at most in the last minutes, with a margin.
#[derive(Debug)]
pub struct Separate {
    horizontal: TargetUse,
    range: CpuRange,
    /// The most that a task used in a step.
    used: VecDeque<u64>,
}

impl Separate {
    #[must_use]
    pub fn new(horizontal: TargetUse, range: CpuRange) -> Separate {
        Separate { horizontal, range, used: VecDeque::new() }
    }
}

impl Sizer for Separate {
    fn step(&mut self, seen: &Seen) -> ScaleSize {
        let count = self.horizontal.count(seen);
        self.used.push_back(seen.used / u64::from(seen.ready.max(1)));
        if self.used.len() as u64 > 10 * STEPS_PER_MINUTE {
            self.used.pop_front();
        }
        let peak = self.used.iter().copied().max().unwrap_or(0);
        let wanted = (peak * 1150 / 1000).clamp(self.range.min, self.range.max);
        ScaleSize { count, cpu: wanted, ram: seen.size.ram }
    }
}
