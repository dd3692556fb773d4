//! `cell checkpoint`: saves and restores the whole state of a cell as a file.

mod export;
mod import;
mod log;
mod log_source;
mod replay;
mod restore;
mod show;

use super::Success;
use crate::args::OutputArgs;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::{Output, print, print_json, print_notice, print_prose};
use crate::runtime::block_on;
use crate::{format, table};
use cellwright_api::types::{CheckpointView, One, Page};
use clap::{Args, Subcommand};
use hyper::Method;
use std::path::Path;

const EXAMPLES: &str = "\
Examples:
  cell checkpoint save
  cell checkpoint ls
  cell checkpoint show FILE
  cell checkpoint log --from 1200
  cell checkpoint replay --at 1234
  cell checkpoint replay --at 2026-03-01T12:00:00Z --to noon.ckpt
  cell checkpoint restore FILE --config /etc/cellwright/master.toml
  cell checkpoint export FILE --job ann/web
  cell checkpoint export FILE --out state.jsonl
  cell checkpoint import state.jsonl --out mended.ckpt";

/// A cell's state in a file, and its past: save, ls, show, replay, log, restore, export, import
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum Checkpoint {
    /// Save the state now, on the replica that answers
    Save(SaveArgs),
    /// List the checkpoints of the replica that answers
    Ls(SaveArgs),
    /// Check a checkpoint file and say what is in it
    Show(show::ShowArgs),
    /// Say what the cell was like at an index or a time, from a master's files
    Replay(replay::ReplayArgs),
    /// List the entries of a master's log from its files
    Log(log::LogArgs),
    /// Start a new cell of one replica from a checkpoint, when all replicas are lost
    Restore(restore::RestoreArgs),
    /// Write a checkpoint as text, a line for each row, to be read or mended
    Export(export::ExportArgs),
    /// Make a checkpoint of text that was mended, if it breaks no rule of the cell
    Import(import::ImportArgs),
}

#[derive(Debug, Args)]
pub struct SaveArgs {
    #[command(flatten)]
    output: OutputArgs,
}

impl Checkpoint {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        match self {
            Checkpoint::Save(args) => args.save(connection),
            Checkpoint::Ls(args) => args.list(connection),
            Checkpoint::Show(args) => args.run(),
            Checkpoint::Replay(args) => args.run(),
            Checkpoint::Log(args) => args.run(),
            Checkpoint::Restore(args) => args.run(),
            Checkpoint::Export(args) => args.run(),
            Checkpoint::Import(args) => args.run(),
        }
    }
}

impl SaveArgs {
    fn save(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        let none: Option<&()> = None;
        let saved: One<CheckpointView> = block_on(async {
            Ok(cell.client.create(Method::POST, "/v1/checkpoints", none).await?.value)
        })?;
        if self.output.output == Output::Table {
            let CheckpointView { replica, path, index, bytes, .. } = &saved.item;
            let (index, bytes) = (format::count(*index), format::bytes(*bytes));
            print_prose(&format!(
                "saved on replica {replica}, index {index}, {bytes}:\n  {path}\n\
                 next: cell checkpoint show FILE, there; copy it to another place\n"
            ))?;
            return Ok(Success::Done);
        }
        self.print(&[saved.item])
    }

    fn list(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        let found: Page<CheckpointView> =
            block_on(async { Ok(cell.client.get("/v1/checkpoints").await?.value) })?;
        self.print(&found.items)
    }

    fn print(&self, checkpoints: &[CheckpointView]) -> Result<Success, Failure> {
        match self.output.output {
            Output::Json => print_json(&checkpoints)?,
            Output::Table if checkpoints.is_empty() => {
                print_notice(
                    "no checkpoints on the replica that answers; next: cell checkpoint save",
                );
            }
            Output::Table => {
                let rows: Vec<Vec<String>> = checkpoints
                    .iter()
                    .map(|found| {
                        vec![
                            found.name.clone(),
                            format::count(found.index),
                            format::bytes(found.bytes),
                            format::utc(found.at),
                        ]
                    })
                    .collect();
                print(&table::render(&["checkpoint", "index", "size", "time"], &rows))?;
                if let Some(CheckpointView { replica, path, .. }) = checkpoints.last() {
                    // The path is reported to users who may manage machines.
                    let folder = Path::new(path).parent();
                    let location = folder.map(|folder| format!(", in {}", folder.display()));
                    print_prose(&format!(
                        "on replica {replica}{}\n",
                        location.unwrap_or_default()
                    ))?;
                }
            }
        }
        Ok(Success::Done)
    }
}
