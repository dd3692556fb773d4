//! Experiments: the real state machine and the real scheduler on a trace.
//!
//! | experiment | question |
//! |---|---|
//! | [`pack`] | does the workload fit, how fast, and why not the rest? |
//! | [`arrivals`] | how much of the GPUs is used when pods come one at a time? |
//! | [`compact`] | how few machines would do? |
//! | [`scale`] | what does scaling save on a recorded load, and is its promise kept? |
//! | [`what_if`] | how many more of this job fit, and what would be evicted for it? |
//!
//! Results are plain serialisable values; tables and files are left to the caller.

pub mod arrivals;
pub mod compact;
pub mod job_text;
pub mod load;
pub mod pack;
pub mod pending;
pub mod placement;
pub mod process_metrics;
pub mod progress;
pub mod scale;
pub mod scheduler;
pub mod threads;
pub mod utilisation;
pub mod what_if;
