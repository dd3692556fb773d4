//! `cell master`: replicas of the master, from installation to their status.

mod admission;
mod confirm;
mod init;
mod join;
mod remove;
mod repair;
mod start;
mod status;

use super::Success;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use clap::{Args, Subcommand};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  cell master init --cell aa --name m1 --advertise m1.example:7070
  cell master start --config /etc/cellwright/master.toml
  cell token create --replica m2 --token-file m2.token
  cell master join --token-file m2.token --master m1.example:7070 \\
    --advertise m2.example:7070
  cell master confirm m2 FINGERPRINT
  cell master status";

/// Replicas of the master: install, start, join, confirm, remove, repair, look
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum Master {
    /// Make a new cell: its authority, its first administrator and its first replica
    Init(init::InitArgs),
    /// Run a replica in the foreground, or with --dev an open cell for trying things out
    Start(start::StartArgs),
    /// Install a further replica of a cell that runs
    Join(join::JoinArgs),
    /// Let a replica that waits to join have the authority's key
    Confirm(confirm::ConfirmArgs),
    /// Take a replica out of the cell
    Remove(remove::RemoveArgs),
    /// Rebuild a replica whose log is damaged from its peers; it must not run
    Repair(repair::RepairArgs),
    /// Show the replicas: who leads, who lags, who waits to join, what is alarming
    #[command(visible_alias = "ls")]
    Status(status::StatusArgs),
}

impl Master {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        match self {
            Master::Init(args) => args.run(connection),
            Master::Start(args) => args.run(),
            Master::Join(args) => args.run(connection),
            Master::Confirm(args) => args.run(connection),
            Master::Remove(args) => args.run(connection),
            Master::Repair(args) => args.run(connection),
            Master::Status(args) => args.run(connection),
        }
    }
}

/// Where a replica lives and how it is reached.
#[derive(Debug, Args)]
pub struct ReplicaLocationArgs {
    /// host:port at which clients, agents and other replicas reach this one
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: String,

    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:7070")]
    pub listen: String,

    /// Log, snapshots, events, keys and packages
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cellwright/master")]
    pub data_dir: PathBuf,

    /// The configuration file to write
    #[arg(long, value_name = "FILE", default_value = super::DEFAULT_CONFIG)]
    pub config: PathBuf,
}

impl ReplicaLocationArgs {
    fn location(&self) -> cellwright_gateway::init::ReplicaLocation {
        cellwright_gateway::init::ReplicaLocation {
            data_dir: self.data_dir.clone(),
            config: self.config.clone(),
            listen: self.listen.clone(),
            advertise: self.advertise.clone(),
        }
    }
}
