//! `cell checkpoint import`: makes a checkpoint from a repaired text export. It passes every check
//! that a checkpoint passes when it is read, so `restore` accepts what is written here.

use super::show;
use crate::commands::Success;
use crate::failure::Failure;
use crate::format;
use crate::output::print_prose;
use cellwright_cell::encode::text::{self, RepairedState, TableName, TextError};
use cellwright_master::checkpoint::{self, Header};
use cellwright_master::replicated_state::View;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// What `cell checkpoint export` wrote, mended
    file: PathBuf,

    /// The checkpoint to write
    #[arg(long, value_name = "FILE", required_unless_present = "check")]
    out: Option<PathBuf>,

    /// Say whether it would do, and write nothing
    #[arg(long, conflicts_with = "out")]
    check: bool,
}

impl ImportArgs {
    pub fn run(self) -> Result<Success, Failure> {
        let path_text = self.file.display().to_string();
        let read = std::fs::read_to_string(&self.file).map_err(|error| Failure::Operation {
            message: format!("{path_text}: {error}"),
            next: "name what `cell checkpoint export FILE --out …` wrote".into(),
        })?;
        let RepairedState { position: place, state, dropped, attempt_floor_raised_to } =
            text::read(&read).map_err(|error| import_failure(&path_text, &error))?;
        let mut view = View { state, index: place.index, term: place.term, log_epoch: 0 };
        let header = Header::of(&mut view);
        print_prose("every rule of the cell holds\n")?;
        print_prose(&dropped_rows_text(&dropped))?;
        if let Some(floor) = attempt_floor_raised_to {
            print_prose(&format!(
                "attempts of new tasks begin at {floor}, above those of the old\n"
            ))?;
        }
        print_prose(&show::as_text(&header, &view.state))?;
        let next = match &self.out {
            None => format!("cell checkpoint import {path_text} --out FILE"),
            Some(out) => {
                checkpoint::write(&view, out).map_err(|error| {
                    Failure::from_error(&error, "choose another file for --out")
                })?;
                format!("cell checkpoint restore {} --config FILE", out.display())
            }
        };
        print_prose(&format!("next: {next}\n"))?;
        Ok(Success::Done)
    }
}

fn import_failure(file: &str, error: &TextError) -> Failure {
    let next = match error {
        TextError::Line { .. } | TextError::Empty => "correct that line, then run it again",
        TextError::Cut => "take all of the export, or export the checkpoint again",
        TextError::State { .. } => "correct the rows that are named, then run it again",
    };
    Failure::Operation { message: format!("{file}: {error}"), next: next.into() }
}

/// `3 rows were taken out: 1 of jobs, 2 of tasks`.
fn dropped_rows_text(dropped: &[(TableName, u32)]) -> String {
    if dropped.is_empty() {
        return String::new();
    }
    let tables = TableName::ALL.into_iter().filter_map(|table| {
        let count = dropped.iter().filter(|(of, _)| *of == table).count();
        (count > 0).then(|| format!("{} of {table}", format::count(count as u64)))
    });
    let (all, tables) = (dropped.len() as u64, tables.collect::<Vec<_>>().join(", "));
    format!("{} taken out: {tables}\n", format::pluralize(all, "row"))
}
