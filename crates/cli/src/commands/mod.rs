//! What can be typed: one file per verb.

mod arrivals;
mod compact;
mod fits;
mod pack;
mod question;
mod shown;
mod whatif;

use crate::failure::Failure;
use clap::Subcommand;

/// How a command that did its work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Success {
    Done,
    /// The answer is that the job does not fit.
    DoesNotFit,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the real scheduler on a recorded or made-up workload
    #[command(subcommand)]
    Sim(Sim),
}

/// Experiments; nothing outside this process changes.
#[derive(Debug, Subcommand)]
pub enum Sim {
    /// Place a whole workload from scratch: what fits, what pends and why
    Pack(pack::PackArgs),
    /// Find how few machines would do for a workload
    Compact(compact::CompactArgs),
    /// Count how many more tasks of a job fit, and say what stops the next one
    Fits(fits::FitsArgs),
    /// Say what adding a job would do: where it goes, who is evicted, what pends
    Whatif(whatif::WhatifArgs),
}

impl Command {
    pub fn run(self) -> Result<Success, Failure> {
        let Command::Sim(sim) = self;
        match sim {
            Sim::Pack(args) => args.run(),
            Sim::Compact(args) => args.run(),
            Sim::Fits(args) => args.run(),
            Sim::Whatif(args) => args.run(),
        }
    }
}
