//! Isolation on one Linux machine: limits, visibility and privileges of tasks, and the samples for
//! resource control.
//!
//! This crate knows nothing of cells or masters. An agent reads the capacity from [`machine`],
//! opens a [`cgroup::Tree`], gives each task a [`cgroup::Group`] with limits and, where
//! [`container::Probe`] finds that containers work, a container around it; once a second it reads
//! [`usage`] and carries out the decisions of `agent-core`.
//!
//! No decision is made here: so the policy is tested without root, and the code that needs root is
//! short.

pub mod cgroup;
pub mod container;
mod error;
mod kernel_file;
pub mod machine;
pub mod mounts;
pub mod usage;

pub use error::Error;
