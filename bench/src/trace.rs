//! The Google cell of 2011 as the benchmarks use it: all tasks, reclamation on.

use cellwright_cell::reclaim::ReclaimConfig;
use cellwright_sim::convert::UsageModel;
use cellwright_sim::experiment::load::{LoadOptions, LoadedCell, load, read, units_of};
use cellwright_sim::experiment::process_metrics::timed;
use cellwright_sim::experiment::progress::NoProgress;
use cellwright_sim::trace::TraceSource;
use std::io;
use std::path::PathBuf;

/// Where the public traces are: `CELL_TRACES`, or `../shared/traces` beside the checkout.
pub fn folder() -> PathBuf {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/traces");
    std::env::var_os("CELL_TRACES").map_or_else(|| default.into(), PathBuf::from)
}

fn options(copies: u32) -> LoadOptions {
    let source = TraceSource::Google2011(folder().join("google2011"));
    let usage =
        Some(UsageModel { cpu_permille: 400, ram_permille: 550, settings: ReclaimConfig::MEDIUM });
    LoadOptions {
        source,
        prod_only: false,
        usage,
        at_seconds: None,
        copies,
        pods: "default".into(),
    }
}

pub fn google2011(copies: u32) -> io::Result<LoadedCell> {
    load(&options(copies), &NoProgress).map_err(io::Error::other)
}

/// Every `share`-th machine, and every job with a `share`-th of its tasks.
pub fn google2011_part(share: usize) -> io::Result<LoadedCell> {
    let (workload, read_seconds) = timed(|| read(&options(1), &NoProgress));
    let mut workload = workload.map_err(io::Error::other)?;
    workload.machines = workload.machines.into_iter().step_by(share).collect();
    // Rounding up alone would fill the small cell beyond its size with jobs of one task.
    let mut position = 0;
    workload.jobs.retain_mut(|job| {
        job.spec.count = job.spec.count.div_ceil(share as u32);
        let count = job.spec.count;
        job.spec.overrides.retain(|index, _| *index < count);
        position += 1;
        count > 1 || position % share == 0
    });
    let (state, submit_seconds) = timed(|| workload.submit());
    let units = units_of(&options(1).source);
    let state = state.map_err(io::Error::other)?;
    Ok(LoadedCell { workload, state, units, read_seconds, submit_seconds })
}
