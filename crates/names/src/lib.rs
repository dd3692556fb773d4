//! Names (B14): where the tasks of a job are, for programs that want to talk to them.
//!
//! ```text
//!   state + events ──► directory, standing ──► answer ──► DNS (UDP, TCP)
//!                          └───────► discovery: lookups, Prometheus
//! ```
//!
//! The directory is a fold of the cell's own log ([`directory`]): what it says at an index is a
//! function of the state at that index, so every replica gives the same answers, and a record goes
//! with the entry in which its task stopped being healthy. Nothing is registered by tasks
//! themselves: what registers has to be trusted to sign off, and what crashes does not.

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
