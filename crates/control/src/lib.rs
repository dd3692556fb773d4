//! The decisions of the leading master, apart from their effects: a pure step from inputs to
//! outputs. No clock, no I/O, no runtime; `cellwright-master` drives it, the simulator too.
//!
//! | file | what |
//! |---|---|
//! | `core` | the step itself, over everything below |
//! | `input` | the core's inputs and outputs |
//! | `admission` | the fair admission queue in front of the log |
//! | `batching` | how requests become log entries |
//! | `log_time` | log time, and how far clocks are apart |
//! | `lease` | leases of schedulers on scheduler shards |
//! | `liveness` | heartbeats: which machines are declared down |
//! | `controller` | the controllers: one trait, one list, a file each |

pub mod admission;
pub mod batching;
pub mod config;
pub mod controller;
pub mod core;
pub mod input;
pub mod lease;
pub mod liveness;
pub mod log_time;
