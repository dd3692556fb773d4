//! `cell checkpoint show`: reads a file whole, so that a backup is known to be one.

use crate::args::OutputArgs;
use crate::commands::Success;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print, print_json};
use cellwright_cell::state::State;
use cellwright_master::checkpoint::{self, Counts, Header};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct ShowArgs {
    file: PathBuf,

    #[command(flatten)]
    output: OutputArgs,
}

impl ShowArgs {
    pub fn run(self) -> Result<Success, Failure> {
        let (header, view) = checkpoint::read(&self.file)
            .map_err(|error| Failure::work(&error, "take another one: cell checkpoint ls"))?;
        match self.output.output {
            Output::Json => print_json(&as_json(&header, &view.state))?,
            Output::Table => {
                print("whole and in order\n")?;
                print(&as_text(&header, &view.state))?;
            }
        }
        Ok(Success::Done)
    }
}

/// Where a state stands and how much is in it, for programs.
pub fn as_json(header: &Header, state: &State) -> Value {
    let counts = Counts::of(state);
    json!({
        "index": header.index,
        "term": header.term,
        "at": header.at,
        "hash": format!("{:016x}", header.hash),
        "level": counts.level,
        "machines": counts.machines,
        "users": counts.users,
        "jobs": counts.jobs,
        "tasks": counts.tasks,
        "crons": counts.crons,
        "resources": counts.resources,
        "tokens": counts.tokens,
        "blobs": counts.blobs,
    })
}

/// The same for people.
pub fn as_text(header: &Header, state: &State) -> String {
    let counts = Counts::of(state);
    let list = [
        (counts.machines, "machine"),
        (counts.users, "user"),
        (counts.jobs, "job"),
        (counts.tasks, "task"),
        (counts.crons, "periodic job"),
        (counts.resources, "resource"),
        (counts.tokens, "token"),
        (counts.blobs, "blob"),
    ];
    let counted = list.map(|(count, noun)| format::counted(count as u64, noun));
    format!(
        "log index {} of term {}, {}, hash {:016x}\n{}\n",
        header.index,
        header.term,
        format::utc_millis(header.at),
        header.hash,
        counted.join(", "),
    )
}
