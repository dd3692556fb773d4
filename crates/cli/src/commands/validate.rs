//! `cell validate`: whether files of jobs are right, without a cell.

use super::{Success, file, parse};
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print_json, say};
use cellwright_cell::name::Name;
use cellwright_lang::diagnostic::Diagnostic;
use cellwright_lang::{Diagnostics, Document};
use clap::Args;
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  cell validate examples/service.jsonnet
  cell validate *.jsonnet -o json

Exit codes: 0 all are right, 1 something is wrong, 2 wrong usage. What only a
cell knows, such as quota, is looked at by `cell run`.";

/// Check files of jobs: syntax, fields, units, ranges, references
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ValidateArgs {
    /// Jobs in Jsonnet, JSON or YAML; - for standard input
    #[arg(value_name = "FILE|-", required = true)]
    files: Vec<String>,

    /// Whose jobs are that name no owner
    #[arg(long, value_name = "USER", default_value = "dev", value_parser = parse::name)]
    owner: Name,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Checked {
    file: String,
    valid: bool,
    documents: Vec<Document>,
    diagnostics: Vec<Diagnostic>,
}

impl ValidateArgs {
    pub fn run(self) -> Result<Success, Failure> {
        let mut all = Vec::new();
        // A file that cannot be read keeps nothing back of what is wrong with the others.
        let mut unread = None;
        for name in &self.files {
            let (valid, documents, diagnostics) = match file::load(name, Some(&self.owner)) {
                Ok(Ok(loaded)) => (true, loaded.documents, loaded.warnings),
                Ok(Err(Diagnostics(wrong))) => (false, Vec::new(), wrong),
                Err(failure) => {
                    unread = unread.or(Some(failure));
                    continue;
                }
            };
            all.push(Checked { file: name.clone(), valid, documents, diagnostics });
        }
        match self.output.output {
            Output::Json if all.is_empty() => {}
            Output::Json => print_json(&all)?,
            Output::Table => {
                for checked in &all {
                    file::show(&checked.diagnostics);
                    if checked.valid {
                        say(&format!("{}: {}\n", checked.file, counted(&checked.documents)))?;
                    }
                }
            }
        }
        if let Some(failure) = unread {
            return Err(failure);
        }
        let wrong = all.iter().filter(|checked| !checked.valid).count();
        match (wrong, self.output.output) {
            (0, _) => Ok(Success::Done),
            (_, Output::Json) => Ok(Success::Ended(1)),
            (_, Output::Table) => Err(Failure::Work {
                message: format!(
                    "{} not right",
                    format::counted_as(wrong as u64, "file is", "files are")
                ),
                next: "correct what is marked above, then run it again".into(),
            }),
        }
    }
}

/// `2 jobs, 1 periodic job`.
fn counted(documents: &[Document]) -> String {
    let crons = documents.iter().filter(|d| matches!(d, Document::Cron(_))).count();
    let jobs = documents.len() - crons;
    let parts = [(jobs, "job"), (crons, "periodic job")];
    let some = parts.iter().filter(|(count, _)| *count > 0);
    let texts: Vec<String> =
        some.map(|(count, noun)| format::counted(*count as u64, noun)).collect();
    texts.join(", ")
}
