//! Scaling of a job (B42): what its owner asks for, what is remembered of it, and what was decided.
//!
//! One policy speaks of both dimensions: how many tasks there are, and how much each may use. The
//! rules that decide are in the crate `scale`, which is given these nouns and returns a
//! [`Decision`]; `apply` keeps the memory and checks every size again.
//!
//! Rejected: one object for the number of tasks and another for their limits, as elsewhere. Each
//! then measures what the other has just changed, and they answer each other without end.

mod decision;
mod memory;
pub mod metric;

pub use decision::{Decision, ScaleRule, ScaleSize, ScaleVeto, SignalName};
pub use memory::{
    BUCKET_MINUTES, BUCKETS_PER_DAY, DayLoad, HISTORY_DAYS, LoadPoint, MAX_NEED, PEAK_DAYS,
    PeakDay, RECENT_MINUTES, ScaleMemory,
};
pub use metric::{MetricKind, MetricSeries, MetricSource, MetricTarget, MetricsOrder, Untold};

#[cfg(feature = "schema")]
use crate::admit::{MAX_SPAN, MIN_RAM};
use crate::cron::schedule::Schedule;
#[cfg(feature = "schema")]
use crate::resource::MAX_QUANTITY;
use crate::spec::JobSpec;
#[cfg(feature = "schema")]
use crate::spec::MAX_TASKS;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// Most scheduled sizes of a job.
pub const MAX_SCHEDULED: usize = 64;
/// Most points that are remembered for the stabilisation of a shrink, in minutes.
pub const MAX_STABILISE: Span = Span::seconds(RECENT_MINUTES as u64 * 60);
/// Most percent of its tasks by which a job grows in a step.
pub const MAX_UP_PERCENT: u32 = 10_000;

/// How a job is scaled.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ScalePolicy {
    /// Fewest tasks.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_TASKS)))]
    pub min: u32,
    /// Most tasks.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_TASKS)))]
    pub max: u32,
    /// What tasks are measured by. Left out: nothing; the schedule alone decides.
    #[serde(default)]
    pub target: ScaleTarget,
    /// Times at which there are more tasks than `min`. Left out: none.
    #[serde(default)]
    pub schedule: Vec<ScheduledMinimum>,
    /// Between what the limits of each task are chosen. Left out: they stay as they are.
    #[serde(default)]
    pub vertical: VerticalBounds,
    /// How quickly sizes change.
    #[serde(default)]
    pub pace: ScalePace,
    /// Only say what would be done. Left out: false.
    #[serde(default)]
    pub advise: bool,
    /// Where tasks tell the numbers of `target.metrics`. `None`: they tell none.
    #[serde(default)]
    pub metrics: Option<MetricSource>,
}

/// What each task is to be used, on average over all. The measure that asks for the most tasks
/// decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ScaleTarget {
    /// Percent of the CPU limit.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    pub cpu: Option<u32>,
    /// Percent of the memory limit.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    pub ram: Option<u32>,
    /// Numbers that tasks tell themselves. Left out: none.
    #[cfg_attr(feature = "schema", schemars(length(max = metric::MAX_METRICS)))]
    pub metrics: Vec<MetricTarget>,
}

impl ScaleTarget {
    /// Nothing is measured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cpu.is_none() && self.ram.is_none() && self.metrics.is_empty()
    }
}

/// From each moment of the schedule on, for so long, there are at least so many tasks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ScheduledMinimum {
    pub from: Schedule,
    /// In milliseconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1, "maximum" = MAX_SPAN.0)))]
    pub lasts: Span,
    /// Tasks. `max` bounds it.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_TASKS)))]
    pub min: u32,
}

impl ScheduledMinimum {
    /// Whether it holds at `now`.
    #[must_use]
    pub fn holds_at(&self, now: Time) -> bool {
        self.from.latest_until(now).is_some_and(|from| from.plus(self.lasts) > now)
    }
}

/// Between what the limits of each task are chosen. A limit that is left out stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct VerticalBounds {
    /// Milli-cores.
    pub cpu: Option<CpuRange>,
    /// Bytes.
    pub ram: Option<RamRange>,
}

/// Milli-cores of each task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CpuRange {
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_QUANTITY)))]
    pub min: u64,
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_QUANTITY)))]
    pub max: u64,
}

/// Bytes of each task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RamRange {
    #[cfg_attr(feature = "schema", schemars(range(min = MIN_RAM, max = MAX_QUANTITY)))]
    pub min: u64,
    #[cfg_attr(feature = "schema", schemars(range(min = MIN_RAM, max = MAX_QUANTITY)))]
    pub max: u64,
}

/// A range of either dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitRange {
    pub min: u64,
    pub max: u64,
}

impl From<CpuRange> for LimitRange {
    fn from(CpuRange { min, max }: CpuRange) -> LimitRange {
        LimitRange { min, max }
    }
}

impl From<RamRange> for LimitRange {
    fn from(RamRange { min, max }: RamRange) -> LimitRange {
        LimitRange { min, max }
    }
}

/// How quickly sizes change. What is left out has the value stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ScalePace {
    /// In one step the job grows by at most so many percent of its tasks, or by `up_tasks` where
    /// that is more. Left out: 100.
    #[cfg_attr(feature = "schema", schemars(range(max = MAX_UP_PERCENT)))]
    pub up_percent: u32,
    /// Left out: 4.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_TASKS)))]
    pub up_tasks: u32,
    /// In one step it shrinks by at most so many percent of its tasks, by one at least. Left out:
    /// 50.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    pub down_percent: u32,
    /// It shrinks to the most that it would have needed within this time, in milliseconds. Left
    /// out: 20 minutes.
    #[cfg_attr(feature = "schema", schemars(extend("maximum" = MAX_STABILISE.0)))]
    pub stabilise: Span,
    /// How long after a growth it does not shrink, in milliseconds. Left out: 5 minutes.
    #[cfg_attr(feature = "schema", schemars(extend("maximum" = MAX_SPAN.0)))]
    pub cool_down: Span,
    /// Whether sizes follow the load of the same time on earlier days. Left out: true.
    pub forecast: bool,
}

impl Default for ScalePace {
    fn default() -> ScalePace {
        ScalePace {
            up_percent: 100,
            up_tasks: 4,
            down_percent: 50,
            stabilise: Span::seconds(1200),
            cool_down: Span::seconds(300),
            forecast: true,
        }
    }
}

impl ScalePolicy {
    /// A policy between these numbers of tasks; all other fields have their defaults.
    #[must_use]
    pub fn between(min: u32, max: u32) -> ScalePolicy {
        ScalePolicy {
            min,
            max,
            target: ScaleTarget::default(),
            schedule: Vec::new(),
            vertical: VerticalBounds::default(),
            pace: ScalePace::default(),
            advise: false,
            metrics: None,
        }
    }

    /// What a load of a job with this spec is measured against.
    #[must_use]
    pub fn basis(&self, spec: &JobSpec) -> LoadBasis {
        let ScaleTarget { cpu, ram, .. } = self.target;
        let limits = spec.task.limits;
        let (most_cpu, most_ram) =
            (self.vertical.cpu.map(|range| range.max), self.vertical.ram.map(|range| range.max));
        LoadBasis {
            target: self.target.clone(),
            cpu: cpu.map_or(0, |_| most_cpu.unwrap_or(limits.cpu)),
            ram: ram.map_or(0, |_| most_ram.unwrap_or(limits.ram)),
        }
    }

    /// What agents are to read of its tasks.
    #[must_use]
    pub fn metrics_order(&self) -> Option<MetricsOrder> {
        let source = self.metrics.clone().filter(|_| !self.target.metrics.is_empty())?;
        let series = self.target.metrics.iter().map(MetricTarget::series).collect();
        Some(MetricsOrder { source, series })
    }

    /// The fewest tasks at `now`: `min`, or what the schedule says where that is more.
    #[must_use]
    pub fn least_at(&self, now: Time) -> u32 {
        let scheduled = self.schedule.iter().filter(|rule| rule.holds_at(now));
        scheduled.map(|rule| rule.min).fold(self.min, u32::max).min(self.max)
    }
}

/// What loads are measured against: those of another basis cannot be compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LoadBasis {
    pub target: ScaleTarget,
    /// The largest limits of a task, of what a measure is held to: milli-cores and bytes.
    pub cpu: u64,
    pub ram: u64,
}

/// Who chooses the size of a job.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ScaleMode {
    /// The cell.
    #[default]
    Auto,
    /// Its owner; the cell says what it would do.
    Advise,
    /// Its owner, who has resized it by hand since.
    Manual,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_needs_no_more_than_its_bounds() {
        let policy: ScalePolicy = serde_json::from_str(r#"{"min": 2, "max": 9}"#).unwrap();
        assert_eq!(policy, ScalePolicy::between(2, 9));
        let text = r#"{"min": 1, "max": 3, "target": {"cpu": 60}, "pace": {"cool_down": 5}}"#;
        let policy: ScalePolicy = serde_json::from_str(text).unwrap();
        assert_eq!((policy.target.cpu, policy.target.ram), (Some(60), None));
        assert_eq!(policy.pace, ScalePace { cool_down: Span(5), ..ScalePace::default() });
        assert!(serde_json::from_str::<ScalePolicy>(r#"{"min": 1, "max": 3, "mx": 1}"#).is_err());
    }

    #[test]
    fn a_scheduled_size_holds_for_its_length_and_stays_below_max() {
        let hour = 3_600_000;
        let mut policy = ScalePolicy::between(1, 5);
        let rule = |min| ScheduledMinimum {
            from: Schedule::new("0 8 * * *").unwrap(),
            lasts: Span(2 * hour),
            min,
        };
        policy.schedule = vec![rule(4), rule(3)];
        let check = |policy: &ScalePolicy, at: u64, want| {
            assert_eq!(policy.least_at(Time(at)), want, "at {at}");
        };
        check(&policy, 8 * hour - 1, 1);
        check(&policy, 8 * hour, 4);
        check(&policy, 10 * hour - 1, 4);
        check(&policy, 10 * hour, 1);
        policy.schedule = vec![rule(99)];
        check(&policy, 9 * hour, 5);
    }
}
