//! `cell checkpoint export`: the rows of a checkpoint as text, also of one that no master takes,
//! for that is the one somebody wants to mend.

use crate::commands::{Success, parse};
use crate::failure::Failure;
use crate::format;
use crate::output::{aside, print, say};
use cellwright_cell::encode::Rows;
use cellwright_cell::encode::text::{self, Pick, Place, TableName};
use cellwright_cell::name::{JobKey, Name};
use cellwright_identity::private::write_private;
use cellwright_master::checkpoint;
use clap::Args;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The checkpoint
    file: PathBuf,

    /// The new file to write, for its owner's eyes: secrets of tasks are in it [default: the
    /// standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Rows of this table alone: users, machines, jobs, tasks, …; a word that is none of them is
    /// answered with all
    #[arg(long, value_name = "TABLE", value_parser = table)]
    table: Option<TableName>,

    /// The rows of this job and its tasks alone
    #[arg(long, value_name = "USER/JOB", value_parser = parse::job)]
    job: Option<JobKey>,

    /// The row of this machine and those of what is on it alone
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
            aside(&format!("note: no master takes it as it is: {why}"));
        }
        let place = Place { index: header.index, term: header.term };
        let pick = Pick { table: self.table, job: self.job, machine: self.machine };
        is_there(&self.file, place, &rows, &pick)?;
        let written = text::write(place, &rows, &pick);
        let Some(out) = self.out else {
            print(&written)?;
            return Ok(Success::Done);
        };
        let shown = out.display().to_string();
        write_new(&out, &written)?;
        let lines = format::counted(written.lines().count() as u64, "line");
        let next = match pick == Pick::default() {
            true => format!("mend it, then: cell checkpoint import {shown} --out FILE"),
            false => "this is a part, to be read; the whole can be mended".to_owned(),
        };
        say(&format!("{lines} in {shown}\nnext: {next}\n"))?;
        Ok(Success::Done)
    }
}

/// Whoever types a name wrong must not take the head alone for all there is of it. A table without
/// rows, or a job without tasks on a machine, is an answer.
fn is_there(file: &Path, place: Place, rows: &Rows, pick: &Pick) -> Result<(), Failure> {
    let has = |pick: &Pick| text::write(place, rows, pick).lines().nth(1).is_some();
    let lacks = |what: String, table: TableName| {
        let file = file.display();
        Failure::Work {
            message: format!("there is no {what} in {file}"),
            next: format!("see which there are: cell checkpoint export {file} --table {table}"),
        }
    };
    if let Some(job) = &pick.job
        && !has(&Pick { job: Some(job.clone()), ..Pick::default() })
    {
        return Err(lacks(format!("job {job}"), TableName::Jobs));
    }
    if let Some(machine) = &pick.machine
        && !has(&Pick { machine: Some(machine.clone()), ..Pick::default() })
    {
        return Err(lacks(format!("machine {machine}"), TableName::Machines));
    }
    Ok(())
}

/// Specs of jobs have their secrets in them, so nobody else may read it; and what is there may be
/// an export that somebody has half mended.
fn write_new(out: &Path, text: &str) -> Result<(), Failure> {
    let shown = out.display().to_string();
    write_private(out, text.as_bytes()).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => Failure::Work {
            message: format!("{shown} is there already and is not overwritten"),
            next: "choose another file for --out".into(),
        },
        _ => Failure::Write { what: shown, source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::state::State;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_is_not_in_the_checkpoint_is_named() {
        let rows = Rows::of(&State::default());
        let place = Place { index: 1, term: 1 };
        let said = |pick: Pick| is_there(Path::new("f.ckpt"), place, &rows, &pick);
        let job = Pick { job: Some(parse::job("admin/stcuk").unwrap()), ..Pick::default() };
        let machine = Pick { machine: Some(Name::new("n9").unwrap()), ..Pick::default() };
        for (pick, what, table) in
            [(job, "job admin/stcuk", "jobs"), (machine, "machine n9", "machines")]
        {
            match said(pick).unwrap_err() {
                Failure::Work { message, next } => {
                    assert_eq!(message, format!("there is no {what} in f.ckpt"));
                    assert!(next.ends_with(&format!("export f.ckpt --table {table}")), "{next}");
                }
                other => panic!("{other:?}"),
            }
        }
        let table = Pick { table: Some(TableName::Blobs), ..Pick::default() };
        assert!(said(table).is_ok() && said(Pick::default()).is_ok());
    }

    #[test]
    fn an_export_is_for_its_owner_alone_and_overwrites_nothing() {
        let name = format!("cell-export-{}.jsonl", std::process::id());
        let out = std::env::temp_dir().join(name);
        write_new(&out, "first").unwrap();
        let again = write_new(&out, "second").unwrap_err().to_string();
        let mode = std::fs::metadata(&out).unwrap().permissions().mode() & 0o777;
        let left = std::fs::read_to_string(&out).unwrap();
        std::fs::remove_file(&out).unwrap();
        assert_eq!((mode, left.as_str()), (0o600, "first"));
        assert!(again.contains(&out.display().to_string()), "{again}");
    }
}
