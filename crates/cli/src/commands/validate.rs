//! `cell validate`: validates job files without a cell.

use super::file_inputs::InputArgs;
use super::{Success, file, parse};
use crate::args::OutputArgs;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print_json, print_prose};
use cellwright_cell::name::Name;
use cellwright_lang::diagnostic::Diagnostic;
use cellwright_lang::{Diagnostics, Document};
use clap::Args;
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  cell validate examples/service.jsonnet
  cell validate *.jsonnet -o json
  cell validate web.jsonnet -J ../lib --set replicas=3

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
    inputs: InputArgs,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct CheckedFile {
    file: String,
    /// For which cell, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<String>,
    valid: bool,
    documents: Vec<Document>,
    diagnostics: Vec<Diagnostic>,
}

impl ValidateArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let connections = connection.each_context()?;
        let mut all = Vec::new();
        // An unreadable file does not prevent the diagnostics of the others.
        let mut unreadable = None;
        for (name, connection) in
            self.files.iter().flat_map(|name| connections.iter().map(move |to| (name, to)))
        {
            let job_file = self.inputs.file(name, connection)?;
            let context = connection.context()?.filter(|_| connections.len() > 1);
            let context = context.map(str::to_owned);
            let loaded = file::load(&job_file, Some(&self.owner));
            let (valid, documents, diagnostics) = match loaded {
                Ok(Ok(loaded)) => (true, loaded.documents, loaded.warnings),
                Ok(Err(Diagnostics(diagnostics))) => (false, Vec::new(), diagnostics),
                Err(failure) => {
                    unreadable = unreadable.or(Some(failure));
                    continue;
                }
            };
            all.push(CheckedFile { file: name.clone(), context, valid, documents, diagnostics });
        }
        match self.output.output {
            Output::Json if all.is_empty() => {}
            Output::Json => print_json(&all)?,
            Output::Table => {
                for checked in &all {
                    file::print_diagnostics(&checked.diagnostics);
                    if checked.valid {
                        let CheckedFile { file, context, documents, .. } = checked;
                        let context = context.as_ref();
                        let place = context.map_or(String::new(), |name| format!(" for {name}"));
                        let counted = count_documents(documents);
                        print_prose(&format!("{file}{place}: {counted}\n"))?;
                    }
                }
            }
        }
        if let Some(failure) = unreadable {
            return Err(failure);
        }
        let invalid = all.iter().filter(|checked| !checked.valid).count();
        match (invalid, self.output.output) {
            (0, _) => Ok(Success::Done),
            (_, Output::Json) => Ok(Success::ExitWith(1)),
            (_, Output::Table) => Err(Failure::Operation {
                message: format!(
                    "{} not right",
                    format::pluralize_as(invalid as u64, "file is", "files are")
                ),
                next: "correct what is marked above, then run it again".into(),
            }),
        }
    }
}

/// `2 jobs, 1 periodic job`.
fn count_documents(documents: &[Document]) -> String {
    let crons = documents.iter().filter(|d| matches!(d, Document::Cron(_))).count();
    let jobs = documents.len() - crons;
    let parts = [(jobs, "job"), (crons, "periodic job")];
    let some = parts.iter().filter(|(count, _)| *count > 0);
    let texts: Vec<String> =
        some.map(|(count, noun)| format::pluralize(*count as u64, noun)).collect();
    texts.join(", ")
}
