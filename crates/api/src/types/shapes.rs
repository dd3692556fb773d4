//! Task shapes that can be placed in the present state of the cell.

use cellwright_cell::constraint::Constraint;
use cellwright_cell::name::JobKey;
use cellwright_cell::priority::{Band, Priority};
use cellwright_cell::resource::Resources;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The tasks to try. Left out: batch and production tasks without constraints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ShapesQuery {
    /// It decides what counts as free. Left out: one answer for batch and one for production.
    pub priority: Option<Priority>,
    /// One more shape to count.
    pub limits: Option<Resources>,
    /// More tasks like those of this job, with its priority, limits and constraints, so that none
    /// of those may be given beside it, nor a selector.
    pub like: Option<JobKey>,
    /// Only machines on which these hard constraints hold.
    pub constraints: Vec<Constraint>,
    /// Only machines with such labels: terms `a=b`, `a!=b`, `a` and `!a`, separated by commas.
    pub selector: Option<String>,
    /// Percent of the machines open to such work that must accept a shape for it to be easy: 1 to
    /// 100. Left out: 25.
    pub easy_percent: Option<u32>,
}

/// Identical tasks that request resources only, if the cell were filled with nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShapeView {
    pub limits: Resources,
    /// How many can be placed at once, without evictions.
    pub tasks: u64,
    /// Machines that accept one or more.
    pub machines: u32,
    /// It fits on `easy_from` machines or more.
    pub easy: bool,
}

/// The largest request that one task may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LargestView {
    pub limits: Resources,
    pub machine: String,
}

/// More tasks of a job, with its ports, devices, spread limits and other requirements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LikeView {
    /// `user/job`.
    pub job: String,
    /// How many more can be placed at once, without evictions.
    pub tasks: u32,
    /// The count stopped there; more may fit.
    pub or_more: bool,
    /// Machines they would be on.
    pub machines: u32,
    /// Why the next one does not fit, in sentences.
    pub stopped_by: Option<String>,
}

/// The answer for one priority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShapeSet {
    pub priority: Priority,
    pub band: Band,
    /// Machines open to such work, full ones included.
    pub machines: u32,
    /// Machines that must accept a shape for it to be easy.
    pub easy_from: u32,
    /// The largest tasks: the one with most CPU and the one with most memory; only one if a machine
    /// has both, none in a full cell.
    pub largest: Vec<LargestView>,
    /// CPU and memory in steps of what machines have free: what 90 % of them have, 50 %, 10 %, and
    /// 1 %.
    pub ladder: Vec<ShapeView>,
    /// The result for the requested `limits`, or for those of the job in `like`.
    pub requested: Option<ShapeView>,
    pub like: Option<LikeView>,
}

/// Shapes that can be placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShapesView {
    pub machines_total: u32,
    pub easy_percent: u32,
    pub sets: Vec<ShapeSet>,
}
