//! `cell checkpoint show`: reads and verifies a complete checkpoint file, and summarizes it.

use crate::args::OutputArgs;
use crate::commands::Success;
use crate::failure::Failure;
use crate::output::{Output, print, print_json};
use crate::{format, table};
use cellwright_cell::state::State;
use cellwright_master::checkpoint::{self, Header, StateCounts};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The checkpoint
    file: PathBuf,

    #[command(flatten)]
    output: OutputArgs,
}

impl ShowArgs {
    pub fn run(self) -> Result<Success, Failure> {
        let (header, view) = checkpoint::read(&self.file)
            .map_err(|error| Failure::from_error(&error, "take another one: cell checkpoint ls"))?;
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

/// The position of a state and the size of its tables, for programs.
pub fn as_json(header: &Header, state: &State) -> Value {
    let counts = StateCounts::of(state);
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
        "packages": counts.blobs,
    })
}

/// The same for people.
pub fn as_text(header: &Header, state: &State) -> String {
    let counts = StateCounts::of(state);
    let list = [
        (counts.machines, "machine"),
        (counts.users, "user"),
        (counts.jobs, "job"),
        (counts.tasks, "task"),
        (counts.crons, "periodic job"),
        (counts.resources, "resource"),
        (counts.tokens, "token"),
        (counts.blobs, "package"),
    ];
    // Empty tables are left out.
    let some = list.iter().filter(|(count, _)| *count > 0);
    let some: Vec<String> =
        some.map(|(count, noun)| format::pluralize(*count as u64, noun)).collect();
    let position = [
        format!("log index {} of term {}", header.index, header.term),
        format::utc_millis(header.at),
        format!("hash {:016x}", header.hash),
    ];
    let counts_text = if some.is_empty() {
        "an empty cell\n".to_owned()
    } else {
        table::wrap_list("", "  ", &some)
    };
    format!("{}{counts_text}", table::wrap_list("", "  ", &position))
}
