//! Isolation on one Linux machine: what a task may use, see and do, and who gives way when there is
//! not enough for all.
//!
//! Nothing here knows of cells or masters. An agent asks [`machine`] what there is, opens a
//! [`cgroup::Tree`], gives each task a [`cgroup::ReasonGroup`] with limits and, where
//! [`container::ProbeMachine`] says that it works, a container around it; once a second it reads
//! [`usage`] and does what the control loops of `agent-core` decide.
//!
//! Nothing here decides: so the policy is tested without root, and what needs root is short.

pub mod cgroup;
pub mod container;
mod error;
mod kernel_file;
pub mod machine;
pub mod mounts;
pub mod usage;

pub use error::Error;
