//! Service discovery (B14): the endpoints of the tasks of a job, by DNS and for Prometheus.
//!
//! ```text
//!   state + events ──► directory, task_status ──► answer ──► DNS (UDP, TCP)
//!                          └───────► discovery: lookups, Prometheus
//! ```
//!
//! The directory is a fold of the cell's own log ([`directory`]): its content at an index is a
//! function of the state at that index, so every replica gives the same answers, and a record goes
//! with the entry in which its task stopped being healthy. Tasks do not register themselves: a task
//! that registers has to be trusted to deregister, and one that crashes does not.

pub mod answer;
pub mod directory;
pub mod discovery;
pub mod dns;
mod rate_limiter;
mod shared_directory;
pub mod task_status;
pub mod zone;

#[cfg(test)]
mod testing;

pub use directory::{Directory, Endpoint};
pub use shared_directory::SharedDirectory;
pub use zone::Zone;
