//! What agents, schedulers and masters tell each other, as data: no connection, no clock, no file.
//! Those who only decide (`agent-core`, `control`) need no more of the others than this, and get no
//! HTTP library with it. The messages travel as postcard on the same listener as the public API,
//! under `/internal`, and only certificates of the cell's own parts are admitted there;
//! `cellwright_api::wire` says which version of them two parts speak.
//!
//! | file | what |
//! |---|---|
//! | `agent` | reports and orders, and what else agents ask for |
//! | `link_shard` | what a replica that polls agents tells the leader |
//! | `scheduler` | the log, proposals, leases |
//! | `unavailable` | why there is no verdict |
//! | `usage` | the book of what a machine's tasks used |
//!
//! Rejected: the messages with the client that sends them. Whatever reads a report would be built
//! with TLS and certificates, the small program around each task too.

mod agent;
mod link_shard;
mod scheduler;
mod unavailable;
mod usage;

pub use agent::*;
pub use link_shard::*;
pub use scheduler::*;
pub use unavailable::*;
pub use usage::*;
