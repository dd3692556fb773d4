//! The simulator: trace readers, and experiments that run the real state machine and the real
//! scheduler.

pub mod agent;
pub mod cluster;
pub mod convert;
pub mod experiment;
pub mod machine_shapes;
pub mod plot;
pub mod simulated_agents;
pub mod trace;
pub mod workload;
