//! `cell fmt`: formats job files.

use super::file::STDIN;
use super::{Success, file};
use crate::failure::Failure;
use crate::format;
use crate::output::print;
use cellwright_lang::Format;
use cellwright_lang::diagnostic::{Diagnostic, Source};
use clap::Args;
use std::path::Path;

const EXAMPLES: &str = "\
Examples:
  cell fmt *.jsonnet
  cell fmt --check examples/service.jsonnet
  cell fmt - < web.jsonnet

Jsonnet keeps its line breaks and comments; indentation, blanks, quotes and
commas are put right. JSON is written anew. YAML is left as it is. What a file
means never changes.";

/// Write files of jobs in the usual way
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct FmtArgs {
    /// Jsonnet or JSON files; - for standard input, which is written to standard output
    #[arg(value_name = "FILE|-", required = true)]
    files: Vec<String>,

    /// Change nothing; say which files would change, and end with 1 if any would
    #[arg(long)]
    check: bool,
}

/// The result of formatting a file.
enum FormatOutcome {
    Unchanged,
    Changed,
    /// The file's language is not formatted.
    Skipped,
}

impl FmtArgs {
    pub fn run(self) -> Result<Success, Failure> {
        let (mut changed, mut failed) = (0, 0);
        for name in &self.files {
            if name == STDIN && !self.check {
                failed += u64::from(!format_stdin()?);
                continue;
            }
            match self.format_file(name)? {
                Ok(FormatOutcome::Unchanged) => {}
                Ok(FormatOutcome::Changed) => {
                    changed += 1;
                    let verb = if self.check { "would change" } else { "changed" };
                    print(&format!("{name}: {verb}\n"))?;
                }
                Ok(FormatOutcome::Skipped) => {
                    print(&format!("{name}: left as it is, being YAML\n"))?
                }
                Err(error) => {
                    failed += 1;
                    file::print_diagnostics(&[*error]);
                }
            }
        }
        if failed > 0 {
            let files = format::pluralize_as(failed, "file", "files");
            return Err(Failure::Operation {
                message: format!("{files} could not be formatted and stayed as before"),
                next: "correct what is marked above, then run it again".into(),
            });
        }
        if changed > 0 && self.check {
            return Err(Failure::Operation {
                message: format!(
                    "{} not written in the usual way",
                    format::pluralize_as(changed, "file is", "files are")
                ),
                next: format!("cell fmt {}", self.files.join(" ")),
            });
        }
        Ok(Success::Done)
    }

    fn format_file(&self, name: &str) -> Result<Result<FormatOutcome, Box<Diagnostic>>, Failure> {
        let path = Path::new(name);
        let (source, language) = if name == STDIN { file::read_stdin()? } else { read(name)? };
        let formatted = match cellwright_lang::format::format_source(&source, language) {
            Ok(Some(formatted)) => formatted,
            Ok(None) => return Ok(Ok(FormatOutcome::Skipped)),
            Err(error) => return Ok(Err(error)),
        };
        if formatted == source.text {
            return Ok(Ok(FormatOutcome::Unchanged));
        }
        if !self.check {
            replace_file(path, &formatted)
                .map_err(|source| Failure::Write { what: name.to_owned(), source })?;
        }
        Ok(Ok(FormatOutcome::Changed))
    }
}

/// The text of a file, and the language that its name implies.
fn read(name: &str) -> Result<(Source, Format), Failure> {
    let usage = |message: String| Failure::Usage {
        message,
        next: "name .jsonnet, .libsonnet or .json files that can be read and written".into(),
    };
    let Some(language) = Format::of(Path::new(name)) else {
        return Err(usage(format!("{name} is not Jsonnet, JSON or YAML by its name")));
    };
    let text = std::fs::read_to_string(name);
    let text = text.map_err(|error| usage(format!("cannot read {name}: {error}")))?;
    Ok((Source { name: name.to_owned(), text }, language))
}

/// Formats standard input to standard output, and copies it if its language is not formatted, since
/// a pipe needs all of it. Returns whether it could be formatted.
fn format_stdin() -> Result<bool, Failure> {
    let (source, language) = file::read_stdin()?;
    match cellwright_lang::format::format_source(&source, language) {
        Ok(formatted) => print(&formatted.unwrap_or(source.text)).map(|()| true),
        Err(error) => {
            file::print_diagnostics(&[*error]);
            Ok(false)
        }
    }
}

/// Replaces a file atomically: it is not lost to a full disk.
fn replace_file(path: &Path, text: &str) -> std::io::Result<()> {
    let target = path.canonicalize()?;
    let temporary = target.with_extension(format!("{}.cell-fmt", std::process::id()));
    std::fs::write(&temporary, text)?;
    std::fs::set_permissions(&temporary, std::fs::metadata(&target)?.permissions())?;
    std::fs::rename(&temporary, &target).inspect_err(|_| {
        // Only this process knows of the temporary file.
        let _ = std::fs::remove_file(&temporary);
    })
}
