//! Cells of real masters and three real machines, each in a network of its own, that run real
//! programs: what a cell promises of tasks, seen from the tasks.
//!
//! One binary, for every test takes the same hosts and they must come one after another.

mod agent;
mod alloc;
mod billing;
mod calibration;
mod clocks;
mod cores;
mod drain_and_preemption;
mod followers;
mod hostile;
mod hostile_packages;
mod ledger;
mod machine_loss;
mod masters;
mod mixed;
mod names;
mod output;
mod packages;
mod pressure_eviction;
mod reclaim;
mod resize;
mod rollouts;
mod service;
mod traps;
