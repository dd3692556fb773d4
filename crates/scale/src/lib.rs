//! The rules of scaling (B42): from what was measured of a job to the size that it should have.
//! One controller decides on both dimensions, how many tasks there are and how much each may use.
//!
//! | part | what it is |
//! |---|---|
//! | [`need`] | measures → one number: the tasks that would be needed, at their largest limits |
//! | [`forecast`] | what will be needed when new tasks have started |
//! | [`ladder`] | that number → how many tasks and which limits, on one line from small to large |
//! | [`peaks`] | limits that no measure is held to, by what was used over days |
//! | [mod@decide] | all of these, with what stands in the way |
//! | [`trial`] | a service under a load, on which rules are compared |
//!
//! Why the two dimensions cannot fight: what a measure asks for is turned into a number of tasks
//! and limits by the ladder alone, which is monotone, so more load never makes either smaller. The
//! number does not depend on the present size, so that a change of limits is no change of load.
//! Limits that are no measure's are chosen by peaks alone, and never in the minutes in which the
//! number of tasks has just changed.
//!
//! What a load is made of is left to the caller: tasks of services are measured by their use and
//! their own numbers, and whatever else has a rate and a capacity becomes a [`need::Signal`] too.
//!
//! **Invariant:** nothing here reads a clock, a file or a socket, or draws a random number, and no
//! decision is made with floats.

pub mod decide;
pub mod forecast;
pub mod ladder;
pub mod need;
pub mod peaks;
pub mod trial;

pub use decide::{Measured, Situation, decide};

/// Milliseconds in a minute, which is how often a job is measured.
pub const MINUTE: u64 = 60_000;
