//! The scaling of a job as readers see it.

use cellwright_cell::name::JobKey;
use cellwright_cell::scale::{Decision, LoadPoint, MetricSeries, ScaleMode, ScaleSize};
use cellwright_cell::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a job is scaled, and what the rules say now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScaleView {
    pub job: JobKey,
    pub mode: ScaleMode,
    /// Fewest and most tasks of its policy.
    pub min: u32,
    pub max: u32,
    /// Tasks it has, and tasks that the rules ask for.
    pub now: u32,
    pub want: u32,
    /// The same with limits: milli-cores and bytes of each task.
    pub now_size: ScaleSize,
    pub want_size: ScaleSize,
    /// The rule that asks for it: steady, target, metric and the name of a number that tasks tell,
    /// trend, swing, same-time-earlier, schedule, bounds, peak or out-of-memory. `None`: nothing
    /// was measured yet.
    pub rule: Option<String>,
    /// What keeps the cell from that size, in the order in which it was found.
    pub vetoed_by: Vec<String>,
    /// All of it in words.
    pub text: String,
    /// When the job was measured last, in milliseconds since the Unix epoch.
    pub measured_at: Option<Time>,
    /// Thousandths of tasks that it needed then.
    pub need: Option<u32>,
    /// The last decision that said something new.
    pub last: Option<Decision>,
    /// What was needed in each of the last minutes.
    pub recent: Vec<LoadPoint>,
    /// The numbers of its target as its tasks told them last.
    #[serde(default)]
    pub numbers: Vec<ToldNumber>,
    /// Readings of its tasks' numbers that were refused since they started: no numbers from 0 on,
    /// too large, or a link.
    #[serde(default)]
    pub refused: u64,
}

/// A number by which a job is scaled, and what its tasks told of it last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToldNumber {
    pub series: MetricSeries,
    /// Thousandths of what each task is meant for.
    pub per_task: u64,
    /// Thousandths of what all told together.
    pub told: u64,
    /// Running tasks that told it, of how many.
    pub by: u32,
    pub of: u32,
}

/// Who is to choose the size of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetScaleMode {
    /// Its owner. Otherwise the cell.
    pub manual: bool,
}
