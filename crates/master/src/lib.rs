//! The master: a replicated control plane. A pure core decides, a loop around it acts, link shards
//! poll agents. Its face is the crate `gateway`, which calls [`handle::Handle`].

pub mod announce;
pub mod audit;
pub mod blob_keeper;
pub mod blobs;
pub mod bounds;
pub mod checkpoint;
pub mod clock;
pub mod events;
pub mod flow;
pub mod handle;
pub mod history;
pub mod level;
pub mod links;
pub mod main_loop;
pub mod master;
pub mod mend;
pub mod package_quota;
pub mod past;
pub mod peers;
pub mod records;
pub mod refused;
pub mod replicated;
pub mod segments;
pub mod settings;
pub mod share;
pub mod supervise;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod usage;
pub mod wake;
