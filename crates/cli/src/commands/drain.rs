//! `cell drain -m MACHINE`: the machine's verb among the others, since it is what one types before
//! touching one.

use super::Success;
use super::machine::drain;
use super::parse::name;
use crate::failure::Failure;
use crate::reach::Reach;
use cellwright_cell::name::Name;
use clap::Args;

/// Take machines out of use: no new work, and what runs there moves within the jobs' budgets
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// The machine; repeat it for several
    #[arg(short, long = "machine", value_name = "MACHINE", value_parser = name, required = true)]
    machines: Vec<Name>,

    /// Take work again
    #[arg(long)]
    undo: bool,
}

impl DrainArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        for machine in &self.machines {
            drain(&cell, machine, !self.undo)?;
        }
        Ok(Success::Done)
    }
}
