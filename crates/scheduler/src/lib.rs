//! The process around `sched`: a cached copy of the cell, passes over it, and proposals.
//!
//! A scheduler owns nothing. What it knows it learnt from the log ([`copy`]), what it decides is
//! only a proposal ([`pass`]), and `apply` rechecks every group of it; so a scheduler may be
//! killed, run twice or lag behind, and nothing is lost or placed twice. When to do what is decided
//! in [`duty`]; [`process`] has the waiting and the messages.

pub mod copy;
pub mod duty;
pub mod http_link;
pub mod lane;
pub mod link;
pub mod pass;
pub mod process;
pub mod settings;
pub mod tally;

pub use copy::CellCopy;
pub use lane::Lane;
pub use link::{LinkError, MasterLink};
pub use process::{Scheduler, Standing, Status};
pub use settings::Settings;
