//! `cell checkpoint replay`: reconstructs the state after an entry or at a time, from a master's
//! files.

use super::log_source::{LogSourceArgs, note_uncommitted};
use super::show;
use crate::args::OutputArgs;
use crate::commands::{Success, parse};
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print, print_json, print_notice, print_prose};
use cellwright_master::checkpoint::{self, Header, ReplayTarget};
use cellwright_master::log_replay::ReplayedState;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Up to and with this log index, or this time in UTC [default: the end of the log]
    #[arg(long, value_name = "INDEX|TIME", value_parser = parse::log_position)]
    at: Option<ReplayTarget>,

    /// Write that state as a checkpoint, for `show`, `restore` and `cell sim`
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,

    /// A checkpoint to begin from, besides those in the data directory
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,

    #[command(flatten)]
    past: LogSourceArgs,

    #[command(flatten)]
    output: OutputArgs,
}

impl ReplayArgs {
    pub fn run(self) -> Result<Success, Failure> {
        let past = self.past.open(self.base.as_deref())?;
        let mut replayed = past.state_at(self.at)?;
        for why in &replayed.skipped {
            print_notice(&format!("note: passed over {why}"));
        }
        note_uncommitted(&past, replayed.view.index);
        let header = Header::of(&mut replayed.view);
        if let Some(file) = &self.to {
            let next = "choose another file for --to";
            checkpoint::write(&replayed.view, file)
                .map_err(|error| Failure::from_error(&error, next))?;
        }
        self.print(&header, &replayed)?;
        Ok(Success::Done)
    }

    fn print(&self, header: &Header, replayed: &ReplayedState) -> Result<(), Failure> {
        let ReplayedState { view, base, entries, .. } = replayed;
        match self.output.output {
            Output::Json => {
                let mut object = show::as_json(header, &view.state);
                object["base"] = base.to_string().into();
                object["entries_replayed"] = (*entries).into();
                object["written"] = self.to.as_ref().map(|file| file.display().to_string()).into();
                print_json(&object)
            }
            Output::Table => {
                let replayed = format::pluralize_as(*entries, "entry", "entries");
                print_prose(&format!("{replayed} replayed from {base}\n"))?;
                print(&show::as_text(header, &view.state))?;
                match &self.to {
                    Some(file) => print_prose(&format!("written to {}\n", file.display())),
                    None => Ok(()),
                }
            }
        }
    }
}
