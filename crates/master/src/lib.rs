//! The master: a replicated control plane. A pure core decides, a loop around it acts, link shards
//! poll agents, and HTTP is a thin face on [`handle::Handle`].

pub mod admission;
mod announce;
pub mod audit;
pub mod batching;
pub mod blob_keeper;
pub mod blobs;
pub mod checkpoint;
pub mod clock;
pub mod config;
pub mod controller;
pub mod core;
pub mod events;
pub mod handle;
pub mod history;
pub mod http;
pub mod http_peers;
pub mod identity;
pub mod init;
pub mod input;
pub mod lease;
pub mod level;
pub mod links;
pub mod liveness;
pub mod main_loop;
pub mod master;
pub mod membership;
pub mod past;
pub mod peers;
pub mod records;
pub mod replicated;
pub mod segments;
pub mod serve;
pub mod settings;
pub mod share;
pub mod supervise;
pub mod wake;
