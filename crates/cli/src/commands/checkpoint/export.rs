//! `cell checkpoint export`: the rows of a checkpoint as text, also of one that no master takes,
//! for that is the one somebody wants to mend.

use crate::commands::{Success, parse};
use crate::failure::Failure;
use crate::format;
use crate::output::print;
use cellwright_cell::encode::text::{self, Pick, Place, TableName};
use cellwright_cell::name::{JobKey, Name};
use cellwright_master::checkpoint;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The checkpoint
    file: PathBuf,

    /// Where to write [default: the standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Rows of this table alone: users, machines, resources, jobs, tasks, crons, tokens, blobs or
    /// windows
    #[arg(long, value_name = "TABLE", value_parser = table)]
    table: Option<TableName>,

    /// The rows of this job and its tasks alone
    #[arg(long, value_name = "USER/JOB", value_parser = parse::job)]
    job: Option<JobKey>,

    /// The row of this machine and those of the tasks on it alone
    #[arg(long, value_name = "MACHINE", value_parser = parse::name)]
    machine: Option<Name>,
}

fn table(text: &str) -> Result<TableName, String> {
    let found = TableName::ALL.into_iter().find(|table| table.to_string() == text);
    found.ok_or_else(|| format!("allowed: {}", TableName::ALL.map(|t| t.to_string()).join(", ")))
}

impl ExportArgs {
    pub fn run(self) -> Result<Success, Failure> {
        let (header, rows, fault) = checkpoint::read_rows(&self.file)
            .map_err(|error| Failure::work(&error, "take another one: cell checkpoint ls"))?;
        if let Some(why) = fault {
            eprintln!("note: no master takes it as it is: {why}");
        }
        let place = Place { index: header.index, term: header.term };
        let pick = Pick { table: self.table, job: self.job, machine: self.machine };
        let written = text::write(place, &rows, &pick);
        let Some(out) = self.out else {
            print(&written)?;
            return Ok(Success::Done);
        };
        let shown = out.display().to_string();
        std::fs::write(&out, &written)
            .map_err(|source| Failure::Write { what: shown.clone(), source })?;
        let lines = format::counted(written.lines().count() as u64, "line");
        let next = match pick == Pick::default() {
            true => format!("mend it, then: cell checkpoint import {shown} --out FILE"),
            false => "this is a part, to be read; the whole can be mended".to_owned(),
        };
        print(&format!("{lines} in {shown}\nnext: {next}\n"))?;
        Ok(Success::Done)
    }
}
