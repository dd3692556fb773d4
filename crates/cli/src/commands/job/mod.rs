//! `cell job`: looks at jobs and stops them. They are submitted by `cell run`.

mod status;

use super::Success;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use clap::Subcommand;

const EXAMPLES: &str = "\
Examples:
  cell job status
  cell job status dev/hello
  cell job stop dev/hello";

/// Jobs: status, stop
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum Job {
    /// List jobs, or show one with its tasks
    Status(status::StatusArgs),
    /// Stop a job: its tasks get notice and are gone for good
    Stop(super::stop::StopArgs),
}

impl Job {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        match self {
            Job::Status(args) => args.run(connection),
            Job::Stop(args) => args.run(connection),
        }
    }
}
