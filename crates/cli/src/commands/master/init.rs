//! `cell master init`: a new cell.

use super::PlaceArgs;
use crate::commands::Success;
use crate::commands::parse::name;
use crate::failure::Failure;
use crate::output::say;
use crate::reach::Reach;
use cellwright_cell::name::Name;
use cellwright_master::clock::{Clock, SystemClock};
use clap::Args;

const USAGE: &str = "\
cell master init [OPTIONS] --cell <NAME> --name <NAME>
       --advertise <HOST:PORT>";

#[derive(Debug, Args)]
#[command(override_usage = USAGE)]
pub struct InitArgs {
    /// Name of the cell
    #[arg(long, value_name = "NAME", value_parser = name)]
    cell: Name,

    /// Name of this replica
    #[arg(long, value_name = "NAME", value_parser = name)]
    name: Name,

    /// The first administrator
    #[arg(long, value_name = "USER", default_value = "admin", value_parser = name)]
    administrator: Name,

    #[command(flatten)]
    place: PlaceArgs,
}

impl InitArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let contexts = reach.contexts_path()?;
        let place = self.place.place();
        let now = SystemClock.wall();
        let made = cellwright_gateway::init::init(
            &self.cell,
            &self.name,
            &place,
            &self.administrator,
            &contexts,
            now,
        )
        .map_err(|error| {
            Failure::work(&error, "choose another --data-dir and --config, or correct the value")
        })?;
        say(&format!(
            "cell {} is made: configuration {}, keys and log in {}\n\
             {} is its administrator\n\
             context {:?} is in {}\n\
             authority {}\n\
             next:\n{}",
            self.cell,
            made.config.display(),
            place.data_dir.display(),
            self.administrator,
            made.context,
            made.contexts.display(),
            made.fingerprint,
            made.next
                .iter()
                .map(|next| format!("  {}\n", reach.repeated(next)))
                .collect::<String>(),
        ))?;
        Ok(Success::Done)
    }
}
