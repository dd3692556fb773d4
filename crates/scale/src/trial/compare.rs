//! The same minutes, sized by several: core-hours, what was late, and how often sizes changed.

use super::service::{STEPS_PER_MINUTE, Service, ServiceModel};
use super::sizers::{Fixed, Rules, Seen, Separate, Sizer, TargetUse};
use crate::MINUTE;
use cellwright_cell::scale::{CpuRange, ScalePace, ScalePolicy, ScaleSize};
use cellwright_cell::time::{Span, Time};
use std::collections::VecDeque;

/// A change against the one before it, within this time, is a reversal.
const REVERSAL_MINUTES: u64 = 15;
/// The busiest minute needs this many cores; a trace does not say how much work a request is.
const PEAK_CORES: u64 = 40;

/// A load, and the service that it meets.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Requests of each minute.
    pub rates: Vec<u64>,
    /// When the first minute began.
    pub from: Time,
    pub model: ServiceModel,
    /// The limit of one task, which vertical scaling may make smaller.
    pub task_cpu: u64,
    /// The smallest that it makes it.
    pub least_cpu: u64,
    /// Percent of its limit that a task is to use.
    pub target: u32,
    pub min: u32,
    pub max: u32,
    pub pace: ScalePace,
    /// How many of a million requests may be late.
    pub late_ppm: u64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub name: &'static str,
    /// Milli-core-minutes held.
    pub held: u64,
    /// Task-minutes: each task costs something of its own as well, however small it is.
    pub tasks: u64,
    pub requests: u64,
    pub late: u64,
    /// Changes of the number of tasks, and of limits.
    pub count_changes: u64,
    pub limit_changes: u64,
    /// Changes that took back the one before within a quarter of an hour.
    pub reversals: u64,
    /// Changes of which one dimension went up and the other down.
    pub opposed: u64,
    pub most_tasks: u32,
    /// Of each minute: milli-cores held, and requests that were late.
    pub minutes: Vec<(u64, u64)>,
}

impl Outcome {
    /// Whether no more requests were late than may be.
    #[must_use]
    pub fn keeps(&self, late_ppm: u64) -> bool {
        u128::from(self.late) * 1_000_000 <= u128::from(self.requests) * u128::from(late_ppm)
    }

    /// Of a million requests.
    #[must_use]
    pub fn late_ppm(&self) -> u64 {
        let late = u128::from(self.late) * 1_000_000;
        u64::try_from(late.checked_div(u128::from(self.requests)).unwrap_or(0)).unwrap_or(u64::MAX)
    }

    /// Thousandths of core-hours less than another.
    #[must_use]
    pub fn saved_permille(&self, than: &Outcome) -> u64 {
        let saved = u128::from(than.held.saturating_sub(self.held)) * 1000;
        u64::try_from(saved.checked_div(u128::from(than.held)).unwrap_or(0)).unwrap_or(u64::MAX)
    }

    #[must_use]
    pub fn core_hours(&self) -> u64 {
        self.held / 60 / 1000
    }
}

impl Scenario {
    /// A service whose busiest minute needs 40 cores, in tasks of one core that take a minute to
    /// start; a request is late after a second, and one of a thousand may be.
    #[must_use]
    pub fn new(rates: Vec<u64>, from: Time) -> Scenario {
        let peak = rates.iter().copied().max().unwrap_or(0);
        let model = ServiceModel {
            per_core: (peak / PEAK_CORES).max(1),
            start_steps: STEPS_PER_MINUTE,
            patience: 1000,
            give_up: 30_000,
        };
        Scenario {
            rates,
            from,
            model,
            task_cpu: 1000,
            least_cpu: 250,
            target: 60,
            min: 2,
            max: u32::try_from(PEAK_CORES * 2).unwrap_or(u32::MAX),
            pace: ScalePace::default(),
            late_ppm: 1000,
        }
    }

    fn size(&self, count: u32) -> ScaleSize {
        ScaleSize { count, cpu: self.task_cpu, ram: 1 << 30 }
    }

    fn range(&self) -> CpuRange {
        CpuRange { min: self.least_cpu, max: self.task_cpu }
    }

    /// The policy of a job of this service, both dimensions at work.
    #[must_use]
    pub fn policy(&self) -> ScalePolicy {
        let mut policy = ScalePolicy::between(self.min, self.max);
        policy.target.cpu = Some(self.target);
        policy.vertical.cpu = Some(self.range());
        policy.pace = self.pace;
        policy
    }

    fn target_use(&self) -> TargetUse {
        TargetUse::new(u64::from(self.target), self.min, self.max)
    }
}

/// One sizer on a scenario.
pub fn run(scenario: &Scenario, name: &'static str, sizer: &mut dyn Sizer, count: u32) -> Outcome {
    let mut service = Service::new(scenario.model, scenario.size(count));
    let mut out = Outcome {
        name,
        held: 0,
        tasks: 0,
        requests: 0,
        late: 0,
        count_changes: 0,
        limit_changes: 0,
        reversals: 0,
        opposed: 0,
        most_tasks: count,
        minutes: Vec::with_capacity(scenario.rates.len()),
    };
    let mut changes = Changes::default();
    let mut used: VecDeque<u64> = VecDeque::new();
    for (minute, rate) in scenario.rates.iter().enumerate() {
        let (mut held, mut late) = (0, 0);
        for quarter in 1..=STEPS_PER_MINUTE {
            let result = service.step(rate * 1000 / STEPS_PER_MINUTE);
            held += result.held;
            late += result.late;
            used.push_back(result.used);
            if used.len() as u64 > STEPS_PER_MINUTE {
                used.pop_front();
            }
            let step = minute as u64 * STEPS_PER_MINUTE + quarter;
            let seen = Seen {
                now: Time(scenario.from.0 + step * MINUTE / STEPS_PER_MINUTE),
                step,
                size: service.size(),
                ready: service.ready(),
                used: used.iter().sum::<u64>() / (used.len() as u64).max(1),
            };
            let to = sizer.step(&seen);
            if to != seen.size {
                changes.count(&mut out, step, seen.size, to);
                service.resize(to);
            }
        }
        let count = service.size().count;
        out.most_tasks = out.most_tasks.max(count);
        out.tasks += u64::from(count);
        let (held, late) = (held / STEPS_PER_MINUTE, late / 1000);
        out.held += held;
        out.late += late;
        out.requests += rate;
        out.minutes.push((held, late));
    }
    out
}

/// The last change, to tell one that takes it back.
#[derive(Default)]
struct Changes {
    last: Option<(u64, bool)>,
}

impl Changes {
    fn count(&mut self, out: &mut Outcome, step: u64, from: ScaleSize, to: ScaleSize) {
        out.count_changes += u64::from(from.count != to.count);
        out.limit_changes += u64::from(from.cpu != to.cpu);
        let opposed = (to.count > from.count && to.cpu < from.cpu)
            || (to.count < from.count && to.cpu > from.cpu);
        out.opposed += u64::from(opposed);
        let total = |size: ScaleSize| u64::from(size.count) * size.cpu;
        let up = total(to) > total(from);
        let reverses = self.last.is_some_and(|(at, was_up)| {
            was_up != up && step - at <= REVERSAL_MINUTES * STEPS_PER_MINUTE
        });
        out.reversals += u64::from(reverses);
        self.last = Some((step, up));
    }
}

/// The smallest number of tasks that, never changed, keeps the promise of the scenario.
#[must_use]
pub fn smallest_fixed(scenario: &Scenario) -> Outcome {
    let fixed = |count: u32| run(scenario, "fixed", &mut Fixed(scenario.size(count)), count);
    let (mut low, mut high) = (1, scenario.max.max(1));
    while low < high {
        let middle = low + (high - low) / 2;
        if fixed(middle).keeps(scenario.late_ppm) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    fixed(low)
}

/// Fixed at the peak, a plain controller, the rules, and the rules without each of their parts.
#[must_use]
pub fn compare(scenario: &Scenario) -> Vec<Outcome> {
    let fixed = smallest_fixed(scenario);
    let first = fixed.most_tasks;
    let rules = |name, change: &dyn Fn(&mut ScalePolicy)| {
        let mut policy = scenario.policy();
        change(&mut policy);
        run(scenario, name, &mut Rules::new(policy), first)
    };
    let plain = run(scenario, "plain", &mut scenario.target_use(), first);
    let mut separate = Separate::new(scenario.target_use(), scenario.range());
    let mut all = vec![fixed, plain];
    all.extend([
        rules("rules", &|_| ()),
        rules("no forecast", &|policy| policy.pace.forecast = false),
        rules("no stabilising", &|policy| {
            (policy.pace.stabilise, policy.pace.cool_down) = (Span::ZERO, Span::ZERO);
        }),
        rules("tasks alone", &|policy| policy.vertical.cpu = None),
        rules("limits alone", &|policy| (policy.min, policy.max) = (first, first)),
        run(scenario, "two controllers", &mut separate, first),
    ]);
    all
}
