//! Trace readers and experiments that run the real state machine and the real scheduler.

pub mod agent;
pub mod cluster;
pub mod convert;
pub mod experiment;
pub mod fleet;
pub mod machines;
pub mod plot;
pub mod trace;
pub mod workload;
