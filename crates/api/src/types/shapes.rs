//! Which shapes of task find a place as the cell is now.

use cellwright_cell::constraint::Constraint;
use cellwright_cell::name::JobKey;
use cellwright_cell::priority::{Band, Priority};
use cellwright_cell::resource::Resources;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What tasks are asked about. Left out: batch and production work without any wish.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ShapesQuery {
    /// What counts as free depends on it. Left out: one answer for batch and one for production.
    pub priority: Option<Priority>,
    /// One more shape to count.
    pub limits: Option<Resources>,
    /// More tasks like those of this job, with all that they ask for: its priority, limits and
    /// constraints, so that none of those may be given beside it, nor a selector.
    pub like: Option<JobKey>,
    /// Only machines on which these hold; hard ones.
    pub constraints: Vec<Constraint>,
    /// Only machines with such labels: terms `a=b`, `a!=b`, `a` and `!a`, separated by commas.
    pub selector: Option<String>,
    /// Percent of the machines that take such work, from which on a shape is easy: 1 to 100. Left
    /// out: 25.
    pub easy_percent: Option<u32>,
}

/// Tasks alike that ask for room alone, if the cell were filled with nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShapeView {
    pub limits: Resources,
    /// How many find a place at once, without anybody evicted.
    pub tasks: u64,
    /// Machines that take one or more.
    pub machines: u32,
    /// It fits on `easy_from` machines or more.
    pub easy: bool,
}

/// The most that one task may ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LargestView {
    pub limits: Resources,
    pub machine: String,
}

/// More tasks of a job, with its ports, devices, spread limits and all else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LikeView {
    /// `user/job`.
    pub job: String,
    /// How many more find a place at once, without anybody evicted.
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
    /// Machines that take such work, full ones included.
    pub machines: u32,
    /// Machines that must take a shape for it to be easy.
    pub easy_from: u32,
    /// The largest tasks: that with most CPU and that with most memory; one if a machine has both,
    /// none in a full cell.
    pub largest: Vec<LargestView>,
    /// CPU and memory in steps of what machines have free: what nine in ten have, half of them,
    /// one in ten, one in a hundred.
    pub ladder: Vec<ShapeView>,
    /// The `limits` that were asked about, or those of the job in `like`.
    pub asked: Option<ShapeView>,
    pub like: Option<LikeView>,
}

/// Shapes that find a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShapesView {
    pub machines_total: u32,
    pub easy_percent: u32,
    pub sets: Vec<ShapeSet>,
}
