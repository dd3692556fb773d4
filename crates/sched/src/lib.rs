//! The scheduler: snapshot + now + seed → plan and reasons. Pure: no clock, I/O, threads or random
//! source; all numbers that decide anything are integers.
//!
//! A [`ClusterSnapshot`] is a dense mirror of the cell's state, a [`Solver`] runs scheduling passes
//! over its pending tasks, and a [`PassOutcome`] holds the plan and the tasks that stay pending.
//! `feasible` holds the predicates (filters) with their reasons, `score` ranks feasible machines.

pub mod available_shapes;
pub mod class;
pub mod cluster_snapshot;
pub mod dry_run;
pub mod eta;
pub mod executor;
pub mod explain;
pub mod feasible;
pub mod queue;
pub(crate) mod random;
pub mod score;
pub mod solve;
pub mod whatif;

/// The seed of a scheduler for which none is configured, and of dry runs and previews: among
/// equally good machines both then choose the same one.
pub const DEFAULT_SEED: u64 = 1;

pub use class::ClassId;
pub use cluster_snapshot::ClusterSnapshot;
pub use solve::options::Options;
pub use solve::{PassOutcome, PendingTask, Solver, Stats};
