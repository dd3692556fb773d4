//! `cell master init`: creates a new cell.

use super::ReplicaLocationArgs;
use crate::commands::Success;
use crate::commands::parse::name;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::print_prose;
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
    location: ReplicaLocationArgs,
}

impl InitArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let contexts = connection.contexts_path()?;
        let location = self.location.location();
        let now = SystemClock.wall_time();
        let made = cellwright_gateway::init::init(
            &self.cell,
            &self.name,
            &location,
            &self.administrator,
            &contexts,
            now,
        )
        .map_err(|error| {
            Failure::from_error(
                &error,
                "choose another --data-dir and --config, or correct the value",
            )
        })?;
        print_prose(&format!(
            "cell {} is made: configuration {}, keys and log in {}\n\
             {} is its administrator\n\
             context {:?} is in {}\n\
             authority {}\n\
             next:\n{}",
            self.cell,
            made.config.display(),
            location.data_dir.display(),
            self.administrator,
            made.context,
            made.contexts.display(),
            made.fingerprint,
            made.next
                .iter()
                .map(|next| format!("  {}\n", connection.with_contexts_flag(next)))
                .collect::<String>(),
        ))?;
        Ok(Success::Done)
    }
}
