//! Job files, for every command that takes one: loading, validation, and diagnostics with
//! positions.

use crate::failure::Failure;
use crate::style;
use cellwright_cell::name::Name;
use cellwright_lang::diagnostic::{Diagnostic, Source};
use cellwright_lang::{Diagnostics, Evaluator, Format, Inputs, Limits, LoadOptions, Loaded};
use std::io::{self, Read};
use std::path::Path;
use std::sync::OnceLock;

/// Names standard input instead of a file.
pub const STDIN: &str = "-";

/// How to name the language of standard input.
pub const STDIN_FORMAT_RULE: &str =
    "standard input is YAML when it begins with --- or a field, else Jsonnet or JSON";

/// A job file that was named, and what it is evaluated with.
pub struct JobFile {
    /// A path, or [`STDIN`].
    pub name: String,
    pub inputs: Inputs,
    /// The options that say so, each with a blank before it, for commands that are suggested.
    pub options: String,
}

/// The documents of a file, or all diagnostics. `owner`: the owner of jobs that name none, as far
/// as it is known.
pub fn load(file: &JobFile, owner: Option<&Name>) -> Result<Result<Loaded, Diagnostics>, Failure> {
    let options = options(owner.cloned(), file.inputs.clone())?;
    if file.name != STDIN {
        check_readable(&file.name)?;
        return Ok(cellwright_lang::load(Path::new(&file.name), &options));
    }
    let (source, format) = read_stdin()?;
    Ok(cellwright_lang::load_text(&source, Path::new("."), format, &options))
}

/// The same for commands that need a valid file. Warnings are printed.
pub fn load_valid(file: &JobFile, owner: Option<&Name>) -> Result<Loaded, Failure> {
    match load(file, owner)? {
        Ok(loaded) => {
            print_diagnostics(&loaded.warnings);
            Ok(loaded)
        }
        Err(Diagnostics(diagnostics)) => {
            print_diagnostics(&diagnostics);
            let errors = diagnostics.iter().filter(|diagnostic| diagnostic.is_error()).count();
            let counted = crate::format::pluralize(errors as u64, "error");
            let JobFile { name, options, .. } = file;
            let next = match name.as_str() {
                STDIN => format!("correct it; {STDIN_FORMAT_RULE}"),
                _ => format!("correct it, then look again: cell validate {name}{options}"),
            };
            Err(Failure::Operation {
                message: format!("{name} has {counted}; nothing was done"),
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
pub fn options(owner: Option<Name>, inputs: Inputs) -> Result<LoadOptions, Failure> {
    let program = std::env::current_exe().map_err(|error| {
        Failure::from_error(&error, "see whether the program is still where it was started from")
    })?;
    let evaluator = Evaluator::Child(program);
    Ok(LoadOptions { evaluator, limits: Limits::default(), owner, inputs })
}

/// The text of standard input, and its detected language, which errors name. It is read once: what
/// is run in several cells is evaluated for each of them.
pub fn read_stdin() -> Result<(Source, Format), Failure> {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = match TEXT.get() {
        Some(text) => text,
        None => {
            let text = read_stdin_text()?;
            TEXT.get_or_init(|| text)
        }
    };
    let format = Format::of_text(text);
    Ok((Source { name: format!("standard input as {format}"), text: text.clone() }, format))
}

fn read_stdin_text() -> Result<String, Failure> {
    let most = Limits::default().file_bytes;
    let mut text = String::new();
    let read = io::stdin().lock().take(most + 1).read_to_string(&mut text);
    let usage = |message: String| Failure::Usage { message, next: "name a file instead".into() };
    read.map_err(|error| usage(format!("cannot read standard input: {error}")))?;
    if text.len() as u64 > most {
        return Err(usage(format!("standard input has more than {most} bytes")));
    }
    Ok(text)
}
