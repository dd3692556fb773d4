//! `cell checkpoint restore`: makes a new cell of one replica with the state of a checkpoint.

use crate::commands::Success;
use crate::failure::Failure;
use crate::output::print_prose;
use crate::runtime::block_on;
use cellwright_gateway::config::Config;
use cellwright_gateway::serve::store_config;
use cellwright_identity::files::IdentityFiles;
use cellwright_identity::private_files::ensure_private_dir;
use cellwright_master::checkpoint::{self, CheckpointError};
use cellwright_store::{Peer, RealDisk};
use clap::Args;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The checkpoint
    file: PathBuf,

    /// Configuration of the replica to be; its data_dir must hold the cell's identity and no log
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

impl RestoreArgs {
    pub fn run(self) -> Result<Success, Failure> {
        let failed = |error: &dyn std::error::Error| {
            Failure::from_error(error, "correct what is named, then run it again")
        };
        // Checked first: with an unreadable checkpoint, no other error is worth fixing.
        let (_, view) = checkpoint::read(&self.file)
            .map_err(|error| Failure::from_error(&error, "take another one: cell checkpoint ls"))?;
        let config = Config::load(&self.config).map_err(|error| failed(&error))?;
        check_no_leftovers(&config.data_dir)?;
        let files = IdentityFiles::in_data_dir(&config.data_dir);
        let authority = if files.has_authority() {
            Some(files.load_authority().map_err(|error| failed(&error))?.fingerprint())
        } else {
            None
        };
        ensure_private_dir(&config.data_dir, 0o700).map_err(|error| failed(&error))?;
        let disk = RealDisk::open(&config.data_dir).map_err(|error| failed(&error))?;
        let me = Peer { name: config.name.to_string(), address: config.advertise.clone() };
        let store = store_config(&config, authority.as_deref());
        let index = block_on(async {
            let made = checkpoint::restore(view, Arc::new(disk), (config.id, me), store).await;
            made.map_err(|error: CheckpointError| failed(&error))
        })?;
        print_prose(&format!(
            "cell {} is restored with one replica, {}, at log index {index}\n\
             next:\n  cell master start --config {}\n  cell token create --replica NAME\n",
            config.cell,
            config.name,
            self.config.display(),
        ))?;
        Ok(Success::Done)
    }
}

/// A restored log starts anew, so files of an old log must not be mistaken for its own.
fn check_no_leftovers(data_dir: &Path) -> Result<(), Failure> {
    let exists = |name: &&&str| data_dir.join(name).exists();
    match ["log", "snap", "events", "audit"].iter().find(exists) {
        None => Ok(()),
        Some(leftover) => Err(Failure::Operation {
            message: format!("{} holds a cell already: {leftover}", data_dir.display()),
            next: "move log, snap, events and audit out of it, leave identity where it is".into(),
        }),
    }
}
