//! `cell checkpoint replay`: the cell as it was after an entry or at a time, from a master's files.

use super::past::{PastArgs, note_unsure};
use super::show;
use crate::args::OutputArgs;
use crate::commands::{Success, parse};
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, aside, print, print_json, say};
use cellwright_master::checkpoint::{self, Header, Target};
use cellwright_master::past::Replayed;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Up to and with this log index, or this time in UTC [default: the end of the log]
    #[arg(long, value_name = "INDEX|TIME", value_parser = parse::place)]
    at: Option<Target>,

    /// Write that state as a checkpoint, for `show`, `restore` and `cell sim`
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,

    /// A checkpoint to begin from, besides those in the data directory
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,

    #[command(flatten)]
    past: PastArgs,

    #[command(flatten)]
    output: OutputArgs,
}

impl ReplayArgs {
    pub fn run(self) -> Result<Success, Failure> {
        let past = self.past.open(self.base.as_deref())?;
        let mut replayed = past.at(self.at)?;
        for why in &replayed.passed_over {
            aside(&format!("note: passed over {why}"));
        }
        note_unsure(&past, replayed.view.index);
        let header = Header::of(&mut replayed.view);
        if let Some(file) = &self.to {
            let next = "choose another file for --to";
            checkpoint::write(&replayed.view, file).map_err(|error| Failure::work(&error, next))?;
        }
        self.print(&header, &replayed)?;
        Ok(Success::Done)
    }

    fn print(&self, header: &Header, replayed: &Replayed) -> Result<(), Failure> {
        let Replayed { view, base, entries, .. } = replayed;
        match self.output.output {
            Output::Json => {
                let mut shown = show::as_json(header, &view.state);
                shown["base"] = base.to_string().into();
                shown["entries_replayed"] = (*entries).into();
                shown["written"] = self.to.as_ref().map(|file| file.display().to_string()).into();
                print_json(&shown)
            }
            Output::Table => {
                let replayed = format::counted_as(*entries, "entry", "entries");
                say(&format!("{replayed} replayed from {base}\n"))?;
                print(&show::as_text(header, &view.state))?;
                match &self.to {
                    Some(file) => say(&format!("written to {}\n", file.display())),
                    None => Ok(()),
                }
            }
        }
    }
}
