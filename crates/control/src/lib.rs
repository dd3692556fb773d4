//! What the leading master decides, apart from what it does: a pure step from what happened to what
//! is to be done. No clock, no I/O, no runtime; `cellwright-master` drives it, the simulator too.
//!
//! | file | what |
//! |---|---|
//! | `core` | the step itself, over everything below |
//! | `input` | what can happen to the core, and what it can ask for |
//! | `admission` | fair turns of callers at the log |
//! | `batching` | how requests become log entries |
//! | `log_time` | log time, and how far clocks are apart |
//! | `lease` | which scheduler plans which jobs |
//! | `liveness` | which machines are down |
//! | `controller` | what the cell does by itself: one trait, one list, a file each |

pub mod admission;
pub mod batching;
pub mod config;
pub mod controller;
pub mod core;
pub mod input;
pub mod lease;
pub mod liveness;
pub mod log_time;
