//! `cell checkpoint show`: reads a file whole, so that a backup is known to be one.

use crate::args::OutputArgs;
use crate::commands::Success;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print, print_json};
use cellwright_master::checkpoint::{self, Counts};
use clap::Args;
use serde_json::json;
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
        let counts = Counts::of(&view.state);
        match self.output.output {
            Output::Json => print_json(&json!({
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
            }))?,
            Output::Table => print(&format!(
                "log index {} of term {}, {}, hash {:016x}: whole and in order\n\
                 {} machines, {} users, {} jobs, {} tasks, {} periodic jobs, {} resources, \
                 {} tokens, {} blobs\n",
                header.index,
                header.term,
                format::utc(header.at),
                header.hash,
                counts.machines,
                counts.users,
                counts.jobs,
                counts.tasks,
                counts.crons,
                counts.resources,
                counts.tokens,
                counts.blobs,
            ))?,
        }
        Ok(Success::Done)
    }
}
