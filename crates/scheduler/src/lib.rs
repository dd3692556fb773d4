//! The process around `sched`: a cached copy of the cell, passes over it, and proposals.
//!
//! A scheduler owns nothing. What it knows it learnt from the log ([`cell_copy`]), what it decides is
//! only a proposal ([`pass`]), and `apply` rechecks every group of it; so a scheduler may be
//! killed, run twice or lag behind, and nothing is lost or placed twice. When to do what is decided
//! in [`pass_planner`]; [`process`] has the waiting and the messages.

pub mod cell_copy;
pub mod config;
pub mod http_link;
pub mod master_link;
pub mod pass;
pub mod pass_planner;
pub mod plan_result;
pub mod process;
pub mod scheduler_shard;

pub use cell_copy::CellCopy;
pub use config::SchedulerConfig;
pub use master_link::{LinkError, MasterLink};
pub use process::{Scheduler, SchedulerRole, SchedulerStatus};
pub use scheduler_shard::SchedulerShard;
