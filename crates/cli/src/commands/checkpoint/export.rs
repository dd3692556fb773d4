//! `cell checkpoint export`: writes the rows of a checkpoint as text, including a checkpoint that
//! no master accepts, because that is the one to be repaired.

use crate::commands::{Success, parse};
use crate::failure::Failure;
use crate::format;
use crate::output::{print, print_notice, print_prose};
use cellwright_cell::encode::Rows;
use cellwright_cell::encode::text::{self, LogPosition, RowFilter, TableName};
use cellwright_cell::name::{JobKey, Name};
use cellwright_identity::private_files::write_private;
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
    #[arg(long, value_name = "TABLE", value_parser = parse_table)]
    table: Option<TableName>,

    /// The rows of this job and its tasks alone
    #[arg(long, value_name = "USER/JOB", value_parser = parse::job_key)]
    job: Option<JobKey>,

    /// The row of this machine and those of what is on it alone
    #[arg(long, value_name = "MACHINE", value_parser = parse::name)]
    machine: Option<Name>,
}

fn parse_table(text: &str) -> Result<TableName, String> {
    let found = TableName::ALL.into_iter().find(|table| table.to_string() == text);
    found.ok_or_else(|| format!("allowed: {}", TableName::ALL.map(|t| t.to_string()).join(", ")))
}

impl ExportArgs {
    pub fn run(self) -> Result<Success, Failure> {
        let (header, rows, fault) = checkpoint::read_rows(&self.file)
            .map_err(|error| Failure::from_error(&error, "take another one: cell checkpoint ls"))?;
        if let Some(why) = fault {
            print_notice(&format!("note: no master takes it as it is: {why}"));
        }
        let position = LogPosition { index: header.index, term: header.term };
        let pick = RowFilter { table: self.table, job: self.job, machine: self.machine };
        check_rows_exist(&self.file, position, &rows, &pick)?;
        let rows_text = text::write(position, &rows, &pick);
        let Some(out) = self.out else {
            print(&rows_text)?;
            return Ok(Success::Done);
        };
        let path_text = out.display().to_string();
        write_new_file(&out, &rows_text)?;
        let lines = format::pluralize(rows_text.lines().count() as u64, "line");
        let next = if pick == RowFilter::default() {
            format!("mend it, then: cell checkpoint import {path_text} --out FILE")
        } else {
            "this is a part, to be read; the whole can be mended".to_owned()
        };
        print_prose(&format!("{lines} in {path_text}\nnext: {next}\n"))?;
        Ok(Success::Done)
    }
}

/// A mistyped name must not produce an export with nothing but the header. A table without rows, or
/// a job without tasks on a machine, is a valid result.
fn check_rows_exist(
    file: &Path,
    position: LogPosition,
    rows: &Rows,
    pick: &RowFilter,
) -> Result<(), Failure> {
    let has = |pick: &RowFilter| text::write(position, rows, pick).lines().nth(1).is_some();
    let not_found = |row_name: String, table: TableName| {
        let file = file.display();
        Failure::Operation {
            message: format!("there is no {row_name} in {file}"),
            next: format!("see which there are: cell checkpoint export {file} --table {table}"),
        }
    };
    if let Some(job) = &pick.job
        && !has(&RowFilter { job: Some(job.clone()), ..RowFilter::default() })
    {
        return Err(not_found(format!("job {job}"), TableName::Jobs));
    }
    if let Some(machine) = &pick.machine
        && !has(&RowFilter { machine: Some(machine.clone()), ..RowFilter::default() })
    {
        return Err(not_found(format!("machine {machine}"), TableName::Machines));
    }
    Ok(())
}

/// Job specs contain their secrets, so only the owner may read the file. An existing file is not
/// overwritten, since it may be a half-repaired export.
fn write_new_file(out: &Path, text: &str) -> Result<(), Failure> {
    let path_text = out.display().to_string();
    write_private(out, text.as_bytes()).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => Failure::Operation {
            message: format!("{path_text} is there already and is not overwritten"),
            next: "choose another file for --out".into(),
        },
        _ => Failure::Write { what: path_text, source },
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
        let position = LogPosition { index: 1, term: 1 };
        let check = |pick: RowFilter| check_rows_exist(Path::new("f.ckpt"), position, &rows, &pick);
        let job =
            RowFilter { job: Some(parse::job_key("admin/stcuk").unwrap()), ..RowFilter::default() };
        let machine = RowFilter { machine: Some(Name::new("n9").unwrap()), ..RowFilter::default() };
        for (pick, row_name, table) in
            [(job, "job admin/stcuk", "jobs"), (machine, "machine n9", "machines")]
        {
            match check(pick).unwrap_err() {
                Failure::Operation { message, next } => {
                    assert_eq!(message, format!("there is no {row_name} in f.ckpt"));
                    assert!(next.ends_with(&format!("export f.ckpt --table {table}")), "{next}");
                }
                other => panic!("{other:?}"),
            }
        }
        let table = RowFilter { table: Some(TableName::Blobs), ..RowFilter::default() };
        assert!(check(table).is_ok() && check(RowFilter::default()).is_ok());
    }

    #[test]
    fn an_export_is_for_its_owner_alone_and_overwrites_nothing() {
        let name = format!("cell-export-{}.jsonl", std::process::id());
        let out = std::env::temp_dir().join(name);
        write_new_file(&out, "first").unwrap();
        let again = write_new_file(&out, "second").unwrap_err().to_string();
        let mode = std::fs::metadata(&out).unwrap().permissions().mode() & 0o777;
        let content = std::fs::read_to_string(&out).unwrap();
        std::fs::remove_file(&out).unwrap();
        assert_eq!((mode, content.as_str()), (0o600, "first"));
        assert!(again.contains(&out.display().to_string()), "{again}");
    }
}
