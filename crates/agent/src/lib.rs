//! The agent of a machine (B35): holds what the masters ordered, and tells them everything it sees.
//! What it decides is in `agent-core`, which is pure; here is what it does.
//!
//! | part | what it is |
//! |---|---|
//! | [`shim`] | the small process around each task: holds it, its end and its log |
//! | [`shim_program`] | which program shims are, and how many start at a time |
//! | [`attempt`] | the agent's end of one shim: makes it ready, attaches, tells it to stop |
//! | [`preparer`] | from an order to a shim: packages, control group, driver |
//! | [`driver`] | how a program is run: what it gets, and what cannot be kept from it |
//! | [`id_ranges`] | which users and groups of the machine tasks are |
//! | [`cgroups`], [`packages`] | the control groups of tasks; what they run |
//! | [`watch`], [`ports`] | looks at every task once a second, and has those give way who must |
//! | [`devices`] | which devices there are, and how tasks get to them |
//! | [`health`] | asks tasks whether they are well |
//! | [`trash`] | removes what tasks left behind |
//! | [`usage`] | what tasks use, for the report |
//! | [`main_loop`] | one loop, one closed set of events, around all of them |
//! | [`link`] | polls the masters |
//! | [`identity`] | the machine's certificate, and its renewal |
//! | [`credentials`] | the certificates of tasks, and their renewal |
//! | [`open_files`] | how many files processes that serve may have open, and tasks |
//! | [`listen`] | where masters and other agents dial this one |
//! | [`output`], [`session`] | what tasks wrote; commands run where a task runs |
//!
//! The agent itself keeps nothing in memory that it cannot find again: orders, folders and shims
//! are there when it comes back, so killing it, at any point, changes no task.

pub mod attempt;
pub mod boot;
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
pub mod output;
pub mod packages;
pub mod ports;
pub mod preparer;
#[cfg(test)]
mod sample_orders;
pub mod session;
pub mod shim_program;
pub mod state_dir;
pub mod trash;
pub mod usage;
pub mod watch;

// The shim is a crate and a program of its own; agents speak its protocol and read its records.
pub use cellwright_shim as shim;
pub use cellwright_shim::{open_files, proc, record};
