//! Cells of real masters and three real machines, each in a network of its own, that run real
//! programs: what a cell promises of tasks, seen from the tasks.
//!
//! One binary, for every test takes the same hosts and they must come one after another.

mod agent;
mod alloc;
mod clocks;
mod cores;
mod hostile;
mod hostile_packages;
mod leaving;
mod ledger;
mod loss;
mod masters;
mod names;
mod output;
mod packages;
mod reclaim;
mod relief;
mod service;
mod tricks;
