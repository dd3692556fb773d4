//! The job language (B13): loads a job file in Jsonnet, JSON or YAML into the job specs that the
//! API takes, or diagnostics with file, line, caret and allowed values.
//!
//! All three languages are loaded in the same way: first into a value, then into documents, which
//! are checked against the schema of the cell's own types ([`mod@schema`]) and by the cell's own
//! admission rules. Evaluation is hermetic: no network, no clock, no environment, imports only from
//! the file's own folder and named library folders ([`inputs`]), and limits on time, memory, depth
//! and size ([`limits`]).
//!
//! Rejected: a language of our own. Jsonnet is known, small and pure, and its objects inherit,
//! which suits configuration files.

pub mod diagnostic;
mod document;
mod evaluate;
mod example;
pub mod format;
pub mod image;
pub mod inputs;
mod json;
pub mod limits;
mod locate;
mod number;
mod references;
pub mod schema;
mod schema_check;
pub mod to_source;
pub mod units;
mod validate;
mod yaml;

pub use document::{CronDocument, Document, JobDocument};
pub use evaluate::import::{LIBRARY, LIBRARY_NAME};
pub use evaluate::{CHILD_COMMAND, Evaluator, run_child};
pub use inputs::Inputs;
pub use limits::Limits;

use cellwright_cell::field::FieldPath;
use cellwright_cell::name::Name;
use diagnostic::{Diagnostic, Severity, Source, SourceLocation};
use document::DocumentReader;
use evaluate::import::ImportFolders;
use locate::FieldPart;
use schema_check::{FaultKind, SchemaError};
use serde_json::Value;
use std::fmt;
use std::path::Path;
use yaml::LocationMap;

/// The maximum number of errors shown for one file; beyond that they usually repeat.
const MAX_ERRORS: usize = 20;
/// The maximum number of errors that are located, in order to show the first ones.
const MAX_LOCATED: usize = 1000;

/// How to load a file.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    pub evaluator: Evaluator,
    pub limits: Limits,
    /// The owner of jobs that name none, as far as it is known.
    pub owner: Option<Name>,
    pub inputs: Inputs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Jsonnet,
    Json,
    Yaml,
}

impl Format {
    /// The format by the file name's extension.
    #[must_use]
    pub fn of(path: &Path) -> Option<Format> {
        match path.extension()?.to_str()? {
            "jsonnet" | "libsonnet" => Some(Format::Jsonnet),
            "json" => Some(Format::Json),
            "yaml" | "yml" => Some(Format::Yaml),
            _ => None,
        }
    }

    /// The format of a text without a name, detected from its content. YAML is recognized by its
    /// first line; a text that could be either is taken as Jsonnet.
    #[must_use]
    pub fn of_text(text: &str) -> Format {
        if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() {
            return Format::Json;
        }
        let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim_end);
        let is_content = |line: &&str| !line.is_empty() && !line.trim_start().starts_with('#');
        match lines.into_iter().find(is_content) {
            Some(first) if yaml::looks_like_yaml(first.trim_start()) => Format::Yaml,
            _ => Format::Jsonnet,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Jsonnet => "Jsonnet",
            Format::Json => "JSON",
            Format::Yaml => "YAML",
        })
    }
}

/// The result of loading a file.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// In an order in which they can be submitted: none refers to a later one.
    pub documents: Vec<Document>,
    pub warnings: Vec<Diagnostic>,
}

/// The errors of a file, at least one.
#[derive(Clone, Debug)]
pub struct Diagnostics(pub Vec<Diagnostic>);

/// Loads a file.
///
/// # Errors
/// All errors in it.
pub fn load(path: &Path, options: &LoadOptions) -> Result<Loaded, Diagnostics> {
    let name = path.display().to_string();
    let schema_error = |message: String| Diagnostics(vec![Diagnostic::error(&name, message)]);
    let Some(format) = Format::of(path) else {
        let error = Diagnostic::error(&name, "the name does not say what language it is");
        return Err(Diagnostics(vec![error.with_help(".jsonnet, .json, .yaml or .yml")]));
    };
    let bytes = evaluate::import::read(path, options.limits.file_bytes).map_err(&schema_error)?;
    let text =
        String::from_utf8(bytes).map_err(|_| schema_error(format!("{name} is not UTF-8")))?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    load_text(&Source { name, text }, folder, format, options)
}

/// Loads a text, for example from standard input; imports are resolved in `folder`.
///
/// # Errors
/// All errors in it.
pub fn load_text(
    source: &Source,
    folder: &Path,
    format: Format,
    options: &LoadOptions,
) -> Result<Loaded, Diagnostics> {
    let folders = ImportFolders::new(folder, &options.inputs.libraries)
        .map_err(|message| Diagnostics(vec![Diagnostic::error(&source.name, message)]))?;
    let (value, locations) = value_of(source, &folders, format, options).map_err(Diagnostics)?;
    let mut reader = DocumentReader::new(options.owner.clone());
    reader.read(value, &FieldPath::default(), None);
    let file = PathLocator { source, folders, locations, max_bytes: options.limits.file_bytes };
    let (reader, documents) = reader.finish();
    if documents.is_empty() && reader.checker.errors.is_empty() {
        let error = Diagnostic::error(&source.name, "there is no job in this file");
        return Err(Diagnostics(vec![error]));
    }
    let max = options.limits.documents;
    if documents.len() > max {
        let message = format!("the file has {} jobs", documents.len());
        let error = Diagnostic::error(&source.name, message);
        return Err(Diagnostics(vec![error.with_help(format!("job limit: {max} in one file"))]));
    }
    let warnings = file.warnings(&reader);
    if reader.checker.errors.is_empty() {
        Ok(Loaded { documents, warnings })
    } else {
        Err(Diagnostics(file.errors(&reader)))
    }
}

fn value_of(
    source: &Source,
    folders: &ImportFolders,
    format: Format,
    options: &LoadOptions,
) -> Result<(Value, Option<LocationMap>), Vec<Diagnostic>> {
    if let (Format::Json | Format::Yaml, Some(name)) =
        (format, options.inputs.parameters.keys().next())
    {
        let message = format!("the file has no parameter `{name}`: {format} has none");
        let help = "parameters are for Jsonnet files that are a function";
        return Err(vec![Diagnostic::error(&source.name, message).with_help(help)]);
    }
    match format {
        Format::Json => {
            Ok((json::parse(source).map_err(|schema_error| vec![*schema_error])?, None))
        }
        Format::Yaml => {
            let (value, locations) =
                yaml::parse(source).map_err(|schema_error| vec![*schema_error])?;
            Ok((value, Some(locations)))
        }
        Format::Jsonnet => {
            let text = evaluate::evaluate(source, folders, options)?;
            let json = Source { name: source.name.clone(), text };
            Ok((
                json::parse(&json)
                    .map_err(|schema_error| vec![schema_error.with_location(None)])?,
                None,
            ))
        }
    }
}

/// Locates field paths in the source.
struct PathLocator<'a> {
    source: &'a Source,
    folders: ImportFolders,
    /// The locations in a YAML file; in other formats they are searched when there are errors.
    locations: Option<LocationMap>,
    max_bytes: u64,
}

impl PathLocator<'_> {
    fn locate(&self, wanted: &[(FieldPath, FieldPart)]) -> Vec<Option<SourceLocation>> {
        let Some(locations) = &self.locations else {
            let found = locate::locate(self.source, &self.folders, self.max_bytes, wanted);
            return found.into_iter().map(|found| found.map(|(location, _)| location)).collect();
        };
        let find = |(path, part): &(FieldPath, FieldPart)| {
            let exact = match part {
                FieldPart::Name => locations.name(path),
                FieldPart::Value => locations.value(path),
            };
            exact.or_else(|| yaml::ancestors(path).find_map(|path| locations.name(&path))).cloned()
        };
        wanted.iter().map(find).collect()
    }

    fn errors(&self, reader: &DocumentReader) -> Vec<Diagnostic> {
        let schema_errors = &reader.checker.errors;
        let located = &schema_errors[..schema_errors.len().min(MAX_LOCATED)];
        let wanted: Vec<(FieldPath, FieldPart)> = located
            .iter()
            .map(|schema_error| (reader.written_path(&schema_error.path), schema_error.part))
            .collect();
        let locations = self.locate(&wanted);
        let made = located.iter().zip(wanted.iter().zip(locations)).map(
            |(schema_error, ((path, _), location))| {
                let (message, help) = match self.unquoted_number(schema_error, location.as_ref()) {
                    Some((message, help)) => (message, Some(help)),
                    None => (schema_error.message.clone(), schema_error.help.clone()),
                };
                let error = Diagnostic::error(&self.source.name, message).with_location(location);
                let missing = matches!(schema_error.kind, FaultKind::Missing(_));
                (missing, Diagnostic { field: display_path(path), help, ..error })
            },
        );
        let mut errors: Vec<(bool, Diagnostic)> = made.collect();
        errors.sort_by_cached_key(|(missing, error)| (self.sort_key(error), *missing));
        let mut errors: Vec<Diagnostic> = errors.into_iter().map(|(_, error)| error).collect();
        let more = schema_errors.len() - located.len() + errors.len().saturating_sub(MAX_ERRORS);
        errors.truncate(MAX_ERRORS);
        if more > 0 {
            let noun = if more == 1 { "error" } else { "errors" };
            let message = format!("and {more} more {noun}");
            errors.push(Diagnostic::error(&self.source.name, message));
        }
        errors
    }

    /// The digits of a number that should be a quoted text, as written in the file: many texts of
    /// digits are the same number. Only YAML has locations of single values.
    fn unquoted_number(
        &self,
        schema_error: &SchemaError,
        location: Option<&SourceLocation>,
    ) -> Option<(String, String)> {
        let location = location
            .filter(|_| schema_error.kind == FaultKind::Unquoted && self.locations.is_some())?;
        let characters = location.text.chars().skip(location.column as usize - 1);
        let digits: String = characters.take(location.width as usize).collect();
        let is_number = digits.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
        is_number.then(|| schema_check::unquoted_error(&digits))
    }

    /// Reading order: the file itself from the top, then its imports.
    fn sort_key(&self, error: &Diagnostic) -> (bool, String, u32, u32) {
        match &error.place {
            Some(SourceLocation { file, line, column, .. }) => {
                (*file != self.source.name, file.clone(), *line, *column)
            }
            None => (true, String::new(), u32::MAX, u32::MAX),
        }
    }

    fn warnings(&self, reader: &DocumentReader) -> Vec<Diagnostic> {
        let shown_warnings: Vec<_> = reader.warnings.iter().take(MAX_ERRORS).collect();
        let wanted: Vec<(FieldPath, FieldPart)> = shown_warnings
            .iter()
            .map(|(path, ..)| (reader.written_path(path), FieldPart::Value))
            .collect();
        let locations = if wanted.is_empty() { Vec::new() } else { self.locate(&wanted) };
        let made = shown_warnings.iter().zip(wanted.iter().zip(locations));
        made.map(|((_, message, help), ((path, _), location))| {
            let warning =
                Diagnostic::error(&self.source.name, message.clone()).with_location(location);
            let (field, help) = (display_path(path), Some(help.clone()));
            Diagnostic { severity: Severity::Warning, field, help, ..warning }
        })
        .collect()
    }
}

/// The path as text; the top of the file has none.
fn display_path(path: &FieldPath) -> Option<String> {
    Some(path.to_string()).filter(|text| !text.is_empty())
}
