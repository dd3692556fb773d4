//! What is needed: each measure says how many tasks it would take, and the largest counts.

use crate::ladder::Ladder;
use cellwright_cell::scale::{MAX_NEED, MetricTarget, ScalePolicy, ScaleSize, SignalName};

/// One measure of the load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signal {
    pub name: SignalName,
    /// Of all measured tasks together.
    pub load: u64,
    /// What one task at its largest limits is meant for, in the same unit.
    pub per_task: u64,
}

impl Signal {
    /// Thousandths of tasks that the load is meant for.
    #[must_use]
    pub fn need(&self) -> u32 {
        let need = (u128::from(self.load) * 1000).div_ceil(u128::from(self.per_task.max(1)));
        u32::try_from(need).map_or(MAX_NEED, |need| need.min(MAX_NEED))
    }
}

/// What a job was seen to use in a minute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tasks that are in the sums.
    pub tasks: u32,
    /// Milli-cores of all of them, on average over the minute.
    pub cpu: u64,
    /// Bytes of all of them.
    pub ram: u64,
    /// Thousandths of what all told, for each of the policy's numbers in turn; `None`: no task
    /// told it.
    pub metrics: Vec<Option<u64>>,
}

/// The measures of a policy.
#[must_use]
pub fn signals(policy: &ScalePolicy, size: ScaleSize, usage: &Usage) -> Vec<Signal> {
    let full = Ladder::of(policy, size).full();
    let of_limit = |limit: u64, percent: u32| {
        u64::try_from(u128::from(limit) * u128::from(percent) / 100).unwrap_or(u64::MAX).max(1)
    };
    let target = &policy.target;
    let is_measured = |_: &u32| usage.tasks > 0;
    let cpu = target.cpu.filter(is_measured).map(|percent| Signal {
        name: SignalName::Cpu,
        load: usage.cpu,
        per_task: of_limit(full.cpu, percent),
    });
    let ram = target.ram.filter(is_measured).map(|percent| Signal {
        name: SignalName::Ram,
        load: usage.ram,
        per_task: of_limit(full.ram, percent),
    });
    let metric = |(target, told): (&MetricTarget, &Option<u64>)| {
        let name = SignalName::Metric(target.name.clone());
        told.map(|load| Signal { name, load, per_task: target.per_task })
    };
    let metrics = target.metrics.iter().zip(&usage.metrics).filter_map(metric);
    cpu.into_iter().chain(ram).chain(metrics).collect()
}

/// The measure that asks for the most tasks, and for how many.
#[must_use]
pub fn largest(signals: &[Signal]) -> Option<(SignalName, u32)> {
    // Of equal ones the first.
    let all = signals.iter().rev().map(|signal| (&signal.name, signal.need()));
    all.max_by_key(|(_, need)| *need).map(|(name, need)| (name.clone(), need))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::name::Token;
    use cellwright_cell::scale::{CpuRange, MetricKind};
    use std::collections::BTreeMap;

    const SIZE: ScaleSize = ScaleSize { count: 3, cpu: 500, ram: 1000 };

    fn policy() -> ScalePolicy {
        let mut policy = ScalePolicy::between(1, 10);
        policy.target.cpu = Some(50);
        policy
    }

    #[test]
    fn use_is_measured_against_the_largest_limit() {
        let mut policy = policy();
        let usage = Usage { tasks: 3, cpu: 750, ram: 900, metrics: Vec::new() };
        let check = |policy: &ScalePolicy, want| {
            assert_eq!(largest(&signals(policy, SIZE, &usage)), Some(want), "{policy:?}");
        };
        check(&policy, (SignalName::Cpu, 3000));
        // It does not depend on the present limit then: a change of limits is no change of load.
        policy.vertical.cpu = Some(CpuRange { min: 100, max: 1000 });
        check(&policy, (SignalName::Cpu, 1500));
        policy.target.ram = Some(30);
        check(&policy, (SignalName::Ram, 3000));
        assert_eq!(largest(&signals(&policy, SIZE, &Usage::default())), None);
    }

    #[test]
    fn numbers_of_tasks_ask_for_what_each_is_meant_for() {
        let mut policy = policy();
        let metric = |name: &str, per_task| MetricTarget {
            name: Token::new(name).unwrap(),
            per_task,
            kind: MetricKind::Value,
            labels: BTreeMap::new(),
        };
        policy.target.metrics = vec![metric("queue", 100_000), metric("rate", 500)];
        let check = |cpu, told: [Option<u64>; 2], want: Option<(&str, u32)>| {
            let tasks = u32::from(cpu > 0);
            let usage = Usage { tasks, cpu, ram: 0, metrics: told.to_vec() };
            let found = largest(&signals(&policy, SIZE, &usage));
            let found = found.map(|(name, need)| match name {
                SignalName::Metric(name) => (name.to_string(), need),
                other => (format!("{other:?}"), need),
            });
            assert_eq!(found, want.map(|(name, need)| (name.to_owned(), need)));
        };
        check(0, [Some(250_000), Some(100)], Some(("queue", 2500)));
        check(0, [Some(250_001), Some(1000)], Some(("queue", 2501)));
        check(0, [Some(0), Some(2000)], Some(("rate", 4000)));
        check(1500, [Some(250_000), Some(100)], Some(("Cpu", 6000)));
        check(0, [None, None], None);
        check(0, [None, Some(0)], Some(("rate", 0)));
    }

    #[test]
    fn of_equal_measures_the_first_counts_and_none_is_too_large() {
        let signal = |name, load| Signal { name, load, per_task: 3 };
        let both = [signal(SignalName::Cpu, 6), signal(SignalName::Ram, 6)];
        assert_eq!(largest(&both), Some((SignalName::Cpu, 2000)));
        assert_eq!(signal(SignalName::Cpu, u64::MAX).need(), MAX_NEED);
        let nothing = Signal { name: SignalName::Cpu, load: 5, per_task: 0 };
        assert_eq!(nothing.need(), 5000);
    }
}
