//! The master: a replicated control plane. A pure core decides, a main loop around it acts, link
//! shards poll agents. Its public API is the crate `gateway`, which calls [`handle::MasterHandle`].

pub mod audit;
pub mod blob_syncer;
pub mod blobs;
pub mod bounds_publisher;
pub mod checkpoint;
pub mod child_process;
pub mod clock;
pub mod config;
pub mod events;
pub mod flow_control;
pub mod handle;
pub mod history;
pub mod leadership_log;
pub mod level;
pub mod links;
pub mod load_sampler;
pub mod log_replay;
pub mod main_loop;
pub mod master;
pub mod package_quota;
pub mod peers;
pub mod poll_assignment;
pub mod poll_wakers;
mod record_body;
pub mod record_logs;
pub mod record_repair;
pub mod rejected_polls;
pub mod replica_alarms;
pub mod replicated_state;
pub mod segments;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod usage;
