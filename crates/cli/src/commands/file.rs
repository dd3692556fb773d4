//! Job files, for every command that takes one: loading, validation, and diagnostics with
//! positions.

use crate::failure::Failure;
use crate::style;
use cellwright_cell::name::Name;
use cellwright_lang::diagnostic::{Diagnostic, Source};
use cellwright_lang::{Diagnostics, Evaluator, Format, Limits, LoadOptions, Loaded};
use std::io::{self, Read};
use std::path::Path;

/// Names standard input instead of a file.
pub const STDIN: &str = "-";

/// How to name the language of standard input.
pub const STDIN_FORMAT_RULE: &str =
    "standard input is YAML when it begins with --- or a field, else Jsonnet or JSON";

/// The documents of a file, or all diagnostics. `owner`: the owner of jobs that name none, as far
/// as it is known.
pub fn load(file: &str, owner: Option<&Name>) -> Result<Result<Loaded, Diagnostics>, Failure> {
    let options = options(owner.cloned())?;
    if file != STDIN {
        check_readable(file)?;
        return Ok(cellwright_lang::load(Path::new(file), &options));
    }
    let (source, format) = read_stdin()?;
    Ok(cellwright_lang::load_text(&source, Path::new("."), format, &options))
}

/// The same for commands that need a valid file. Warnings are printed.
pub fn load_valid(file: &str, owner: Option<&Name>) -> Result<Loaded, Failure> {
    match load(file, owner)? {
        Ok(loaded) => {
            print_diagnostics(&loaded.warnings);
            Ok(loaded)
        }
        Err(Diagnostics(diagnostics)) => {
            print_diagnostics(&diagnostics);
            let errors = diagnostics.iter().filter(|diagnostic| diagnostic.is_error()).count();
            let counted = crate::format::pluralize(errors as u64, "error");
            let next = match file {
                STDIN => format!("correct it; {STDIN_FORMAT_RULE}"),
                _ => format!("correct it, then look again: cell validate {file}"),
            };
            Err(Failure::Operation {
                message: format!("{file} has {counted}; nothing was done"),
                next,
            })
        }
    }
}

/// Rejects a path that does not exist or is not a file.
fn check_readable(file: &str) -> Result<(), Failure> {
    let usage = |message: String| Failure::Usage {
        message,
        next: "name a file that can be read, or - for standard input; cell init writes one".into(),
    };
    if Format::of(Path::new(file)).is_none() {
        let endings = "its name does not end in .jsonnet, .json, .yaml or .yml";
        return Err(usage(format!("{file} is not a job: {endings}")));
    }
    let opened = std::fs::metadata(file);
    opened.map(drop).map_err(|error| usage(format!("cannot read the jobs from {file}: {error}")))
}

/// Prints diagnostics to stderr, with colours on a terminal.
pub fn print_diagnostics(diagnostics: &[Diagnostic]) {
    let coloured = style::for_stderr().is_coloured();
    for diagnostic in diagnostics {
        crate::output::note!("{}", diagnostic.render(coloured));
    }
}

/// How the files of the caller's jobs are loaded.
pub fn options(owner: Option<Name>) -> Result<LoadOptions, Failure> {
    let program = std::env::current_exe().map_err(|error| {
        Failure::from_error(&error, "see whether the program is still where it was started from")
    })?;
    Ok(LoadOptions { evaluator: Evaluator::Child(program), limits: Limits::default(), owner })
}

/// The text of standard input, and its detected language, which errors name.
pub fn read_stdin() -> Result<(Source, Format), Failure> {
    let most = Limits::default().file_bytes;
    let mut text = String::new();
    let read = io::stdin().lock().take(most + 1).read_to_string(&mut text);
    let usage = |message: String| Failure::Usage { message, next: "name a file instead".into() };
    read.map_err(|error| usage(format!("cannot read standard input: {error}")))?;
    if text.len() as u64 > most {
        return Err(usage(format!("standard input has more than {most} bytes")));
    }
    let format = Format::of_text(&text);
    Ok((Source { name: format!("standard input as {format}"), text }, format))
}
