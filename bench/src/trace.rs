//! The Google cell of 2011 as the benchmarks use it: all tasks, reclamation on.

use cellwright_cell::reclaim::Settings;
use cellwright_sim::convert::UsageModel;
use cellwright_sim::experiment::load::{LoadOptions, Loaded, load};
use cellwright_sim::experiment::progress::Silent;
use cellwright_sim::trace::TraceSource;
use std::io;
use std::path::PathBuf;

/// Where the public traces are: `CELL_TRACES`, or `../shared/traces` beside the checkout.
pub fn folder() -> PathBuf {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/traces");
    std::env::var_os("CELL_TRACES").map_or_else(|| default.into(), PathBuf::from)
}

pub fn google2011(copies: u32) -> io::Result<Loaded> {
    let source = TraceSource::Google2011(folder().join("google2011"));
    let usage =
        Some(UsageModel { cpu_permille: 400, ram_permille: 550, settings: Settings::MEDIUM });
    let options = LoadOptions {
        source,
        prod_only: false,
        usage,
        at_seconds: None,
        copies,
        pods: "default".into(),
    };
    load(&options, &Silent).map_err(io::Error::other)
}
