//! The scheduler: snapshot + now + seed → plan and reasons. Pure: no clock, I/O, threads or random
//! source; all numbers that decide anything are integers.
//!
//! A [`Board`] is a dense mirror of the cell's state, a [`Solver`] runs passes over its pending
//! tasks, an [`Outcome`] holds the plan and who still waits. `feasible` says what fits and why
//! not, `score` how well.

pub mod board;
pub mod class;
pub mod eta;
pub mod executor;
pub mod explain;
pub mod feasible;
pub mod queue;
pub(crate) mod random;
pub mod rehearse;
pub mod score;
pub mod shapes;
pub mod solve;
pub mod whatif;

/// The seed of a scheduler that was given none, and of whoever shows beforehand what it would do:
/// of equally good machines both then name the same.
pub const SEED: u64 = 1;

pub use board::Board;
pub use class::ClassId;
pub use solve::options::Options;
pub use solve::{Outcome, PendingTask, Solver, Stats};
