//! What `replay` and `log` share: whose files to look at, and errors that say how far back they go.

use crate::commands::DEFAULT_CONFIG;
use crate::failure::Failure;
use crate::format;
use crate::output::aside;
use cellwright_gateway::config::Config;
use cellwright_master::checkpoint::Target;
use cellwright_master::past::{Past, PastError};
use clap::Args;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct PastArgs {
    /// A master's data directory, or a copy of it; it is only read, and the master may run
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    data_dir: Option<PathBuf>,

    /// The master's configuration, which names its data directory
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
}

impl PastArgs {
    pub fn open(&self, base: Option<&Path>) -> Result<Past, Failure> {
        let data_dir = match &self.data_dir {
            Some(data_dir) => data_dir.clone(),
            None => {
                let config = Config::load(&self.config);
                let next = "name a master's directory with --data-dir, or its --config";
                config.map_err(|error| Failure::work(&error, next))?.data_dir
            }
        };
        let past = Past::open(&data_dir, base).map_err(failure)?;
        if let Some(torn) = past.torn_tail() {
            aside(&format!(
                "note: the end of {} is no whole write ({}): torn, or being written now",
                torn.file,
                format::bytes(torn.bytes)
            ));
        }
        Ok(past)
    }
}

/// Entries at the end of a log of several replicas may yet be replaced; the mark lags by a write.
pub fn note_unsure(past: &Past, last: u64) {
    if last >= past.agreed() {
        aside(&format!(
            "note: entries from {} on are on this replica's disk; it has not recorded yet that a \
             quorum took them",
            past.agreed()
        ));
    }
}

/// A failure of its own type, so that the library can hand it through.
pub fn failure(error: PastError) -> Failure {
    let next = match &error {
        PastError::Store(_) => "check the directory; every replica has the log, try another one",
        PastError::Checkpoint(_) | PastError::OtherPast { .. } => {
            "take another one: cell checkpoint ls"
        }
        PastError::TooOld { asked, first, reach } => {
            return too_old(asked.0, *first, *reach);
        }
        PastError::NotYet { .. } => "ask for that one, or ask a replica that is further",
        PastError::Replay(_) | PastError::Entry { .. } => {
            "run the build that wrote it, or try another replica"
        }
    };
    Failure::work(&error, next)
}

fn too_old(
    asked: Target,
    first: u64,
    reach: Option<(u64, cellwright_cell::time::Time)>,
) -> Failure {
    let asked = match asked {
        Target::Index(index) => format!("index {index}"),
        Target::Time(time) => format!("the state at {}", format::utc(time)),
    };
    let (reaches, next) = match reach {
        Some((index, at)) => (
            format!("the past can be replayed from index {index} ({}) on", format::utc_millis(at)),
            "ask for a later one, or name an older checkpoint with --base",
        ),
        None => (
            format!("its entries begin at {first}, and no checkpoint or snapshot reaches them"),
            "name a checkpoint with --base, or try another replica",
        ),
    };
    Failure::Work {
        message: format!("the log no longer reaches back to {asked}: {reaches}"),
        next: next.to_owned(),
    }
}

impl From<PastError> for Failure {
    fn from(error: PastError) -> Failure {
        failure(error)
    }
}
