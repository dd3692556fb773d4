//! The scheduler process around `cellwright_sched`: a cached copy of the cell, scheduling passes
//! over it, and proposals to the master.
//!
//! A scheduler owns nothing. Its knowledge comes from the log ([`cell_copy`]), its decisions are
//! only proposals ([`pass`]), and `apply` rechecks every group of them; so a scheduler may be
//! killed, run twice or lag behind, and nothing is lost or placed twice. [`pass_planner`] decides
//! what to do when; [`process`] does the waiting and the messages.

pub mod cell_copy;
pub mod config;
pub mod credentials;
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
