//! Scaling of jobs (B42): what is remembered of each scaled job's load, and what was decided.
//!
//! The leading master says once a minute what the jobs with a policy used, all of them in one
//! command; a controller decides on what the row says ([`crate::scale`] has the nouns, the crate
//! `scale` the rules); and `apply` checks each size again by the rules of a resize, in its owner's
//! name. So a new leader goes on where the old one was, with the same past.
//!
//! Rejected: the past in the history of usage, outside the state. It is another on each replica,
//! and a decision made from it could not be repeated.

mod apply;
mod command;
mod event;
mod invariant;
mod row;
mod sizes_are_taken_as_decided;
mod table;

pub use command::{Command, JobLoad};
pub use event::{Event, ScalingChange};
pub(crate) use table::Tables;

use crate::id::JobId;
use crate::scale::{Decision, LoadBasis, ScaleMemory, SignalName, Untold};
use crate::time::Time;
use serde::{Deserialize, Serialize};

cellwright_rows::id!(
    /// What is remembered of the scaling of one job. Never reused.
    ScalingId
);

/// What was measured last.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MeasuredNeed {
    pub at: Time,
    /// The measure that asked for the most.
    pub by: SignalName,
    /// Thousandths of tasks at their largest limits, for what the measured tasks did.
    pub need: u32,
    /// Tasks that should run and were not measured.
    pub missing: u32,
}

/// The row of one scaled job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Scaling {
    pub job: JobId,
    /// Its owner has resized it by hand since; the cell leaves it alone until told otherwise.
    pub manual: bool,
    /// What the remembered load was measured against.
    pub basis: LoadBasis,
    pub memory: ScaleMemory,
    pub measured: Option<MeasuredNeed>,
    /// The last one that said something new.
    pub decision: Option<Decision>,
    /// What was not told by all tasks when it was measured last.
    #[serde(default)]
    pub untold: Option<Untold>,
}
