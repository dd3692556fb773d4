//! The agent of a machine (B35): runs the tasks that the masters order, and reports everything it
//! sees to them. Its decisions are made in `agent-core`, which is pure; this crate carries them
//! out.
//!
//! | part | what it is |
//! |---|---|
//! | [`shim`] | the small supervisor process around each task: holds it, its exit and its log |
//! | [`shim_program`] | which shim executable is used, and how many shims start at a time |
//! | [`attempt`] | the agent's side of one shim: prepares it, attaches to it, tells it to stop |
//! | [`preparer`] | from an order to a shim: packages, cgroup, driver |
//! | [`driver`] | how a program is run: environment, isolation, and what isolation is missing |
//! | [`id_ranges`] | which users and groups of the machine tasks run as |
//! | [`cgroups`], [`packages`] | the cgroups of tasks; the packages they run |
//! | [`watch`], [`ports`] | samples every task once a second, and applies resource control |
//! | [`calibration`] | how fast the machine's cores and its disk are, where nobody says it |
//! | [`devices`] | which devices the machine has, and how tasks get access to them |
//! | [`health`] | health probes of tasks |
//! | [`metrics`] | numbers that tasks tell, by which their jobs are scaled |
//! | [`trash`] | removes the files that tasks left behind |
//! | [`usage`] | resource usage of tasks, for the report |
//! | [`main_loop`] | the event loop around all of them, with one closed set of events |
//! | [`link`] | polls the masters |
//! | [`identity`] | the machine's certificate, and its renewal |
//! | [`credentials`] | the certificates of tasks, and their renewal |
//! | [`open_files`] | the limits of open files for serving processes and for tasks |
//! | [`listen`] | the listener where masters and other agents dial this one |
//! | [`output`], [`session`] | output of tasks; interactive commands run inside a task (exec) |
//!
//! The agent keeps nothing in memory that it cannot recover: orders, folders and shims are there
//! when it restarts, so killing it, at any point, changes no task.

pub mod attempt;
pub mod book_keeper;
pub mod boot;
pub mod calibration;
pub mod cgroups;
pub mod config;
pub mod credentials;
pub mod device_positions;
pub mod devices;
pub mod driver;
pub mod health;
pub mod id_ranges;
pub mod identity;
pub mod link;
pub mod listen;
pub mod machine;
pub mod main_loop;
pub mod membership;
pub mod metrics;
pub mod output;
pub mod packages;
pub mod ports;
pub mod preparer;
#[cfg(test)]
mod sample_orders;
pub mod session;
pub mod shim_program;
pub mod state_dir;
pub mod timed_output;
pub mod trash;
pub mod usage;
pub mod watch;

// The shim is a crate and a program of its own; agents speak its protocol and read its records.
pub use cellwright_shim as shim;
pub use cellwright_shim::{open_files, proc, record};
