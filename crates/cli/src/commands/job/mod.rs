//! `cell job`: looks at jobs and their versions, stops them and takes them back. They are submitted
//! by `cell run`.

mod status;
mod versions;

pub use versions::RevertArgs;

use super::Success;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use clap::Subcommand;

const EXAMPLES: &str = "\
Examples:
  cell job status
  cell job status dev/hello
  cell job history dev/hello
  cell job diff dev/hello 2
  cell job revert dev/hello 2
  cell job stop dev/hello";

/// Jobs: status, stop; their versions: history, diff, revert
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum Job {
    /// List jobs, or show one with its tasks
    Status(status::StatusArgs),
    /// Stop a job: its tasks get notice and are gone for good
    Stop(super::stop::StopArgs),
    /// List the versions of a job: when, by whom, and what each changed
    History(versions::HistoryArgs),
    /// Say what differs between two versions of a job
    Diff(versions::DiffArgs),
    /// Go back to an earlier version of a job, by a rolling update
    Revert(versions::RevertArgs),
}

impl Job {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        match self {
            Job::Status(args) => args.run(connection),
            Job::Stop(args) => args.run(connection),
            Job::History(args) => args.run(connection),
            Job::Diff(args) => args.run(connection),
            Job::Revert(args) => args.run(connection),
        }
    }
}
