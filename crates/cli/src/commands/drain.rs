//! `cell drain -m MACHINE`: the machine's verb among the others, since it is what one types before
//! touching one.

use super::Success;
use super::machine::drain;
use super::parse::name;
use crate::failure::Failure;
use crate::output::print;
use crate::reach::{Cell, Reach};
use crate::server::ask;
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

    /// Stay until nothing is on them any more
    #[arg(long, conflicts_with = "undo")]
    wait: bool,
}

impl DrainArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        for machine in &self.machines {
            drain(&cell, machine, !self.undo)?;
        }
        for machine in self.machines.iter().filter(|_| self.wait) {
            ask(until_empty(&cell, machine))?;
            print(&format!(
                "machine {machine} has no tasks any more\n\
                 next: cell machine rm {machine}, or cell drain -m {machine} --undo\n"
            ))?;
        }
        Ok(Success::Done)
    }
}

async fn until_empty(cell: &Cell, machine: &Name) -> Result<(), Failure> {
    // Tells that something is different somewhere, at once and then whenever it is so.
    let mut changes = cell.client.watch::<serde_json::Value>("/v1/watch/overview", None);
    loop {
        let now = cell.client.machine(machine).await?.value.item;
        if !now.draining {
            return Err(Failure::Work {
                message: format!("machine {machine} takes work again: somebody ended the drain"),
                next: format!("cell machine show {machine}"),
            });
        }
        if now.tasks == 0 {
            return Ok(());
        }
        changes.next().await?;
    }
}
