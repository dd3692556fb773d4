//! Shared by `replay` and `log`: which data directory to read, and errors that say how far back it
//! reaches.

use crate::commands::DEFAULT_CONFIG;
use crate::failure::Failure;
use crate::format;
use crate::output::print_notice;
use cellwright_gateway::config::Config;
use cellwright_master::checkpoint::ReplayTarget;
use cellwright_master::log_replay::{LogReplayError, LogReplayer};
use clap::Args;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct LogSourceArgs {
    /// A master's data directory, or a copy of it; it is only read, and the master may run
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    data_dir: Option<PathBuf>,

    /// The master's configuration, which names its data directory
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
}

impl LogSourceArgs {
    pub fn open(&self, base: Option<&Path>) -> Result<LogReplayer, Failure> {
        let data_dir = match &self.data_dir {
            Some(data_dir) => data_dir.clone(),
            None => {
                let config = Config::load(&self.config);
                let next = "name a master's directory with --data-dir, or its --config";
                config.map_err(|error| Failure::from_error(&error, next))?.data_dir
            }
        };
        let past = LogReplayer::open(&data_dir, base).map_err(to_failure)?;
        if let Some(torn) = past.torn_tail() {
            print_notice(&format!(
                "note: the end of {} is no whole write ({}): torn, or being written now",
                torn.file,
                format::bytes(torn.bytes)
            ));
        }
        Ok(past)
    }
}

/// Notes that entries at the end of a log of several replicas may still be replaced; the commit
/// mark lags by one write.
pub fn note_uncommitted(past: &LogReplayer, last: u64) {
    if last >= past.committed_end() {
        print_notice(&format!(
            "note: entries from {} on are on this replica's disk; it has not recorded yet that a \
             quorum took them",
            past.committed_end()
        ));
    }
}

/// Converts a replay error to a failure.
pub fn to_failure(error: LogReplayError) -> Failure {
    let next = match &error {
        LogReplayError::Store(_) => {
            "check the directory; every replica has the log, try another one"
        }
        LogReplayError::Checkpoint(_) | LogReplayError::OtherHistory { .. } => {
            "take another one: cell checkpoint ls"
        }
        LogReplayError::BeforeStart { requested, first, reach: earliest } => {
            return too_old(requested.0, *first, *earliest);
        }
        LogReplayError::BeyondEnd { .. } => "ask for that one, or ask a replica that is further",
        LogReplayError::Replay(_) | LogReplayError::Entry { .. } => {
            "run the build that wrote it, or try another replica"
        }
    };
    Failure::from_error(&error, next)
}

fn too_old(
    requested: ReplayTarget,
    first: u64,
    earliest: Option<(u64, cellwright_cell::time::Time)>,
) -> Failure {
    let requested = match requested {
        ReplayTarget::Index(index) => format!("index {index}"),
        ReplayTarget::Time(time) => format!("the state at {}", format::utc(time)),
    };
    let (coverage, next) = match earliest {
        Some((index, at)) => (
            format!("the past can be replayed from index {index} ({}) on", format::utc_millis(at)),
            "ask for a later one, or name an older checkpoint with --base",
        ),
        None => (
            format!("its entries begin at {first}, and no checkpoint or snapshot reaches them"),
            "name a checkpoint with --base, or try another replica",
        ),
    };
    Failure::Operation {
        message: format!("the log no longer reaches back to {requested}: {coverage}"),
        next: next.to_owned(),
    }
}

impl From<LogReplayError> for Failure {
    fn from(error: LogReplayError) -> Failure {
        to_failure(error)
    }
}
