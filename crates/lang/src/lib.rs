//! The job language (B13): a file in Jsonnet, JSON or YAML becomes the job specs that the API
//! takes, or diagnostics with file, line, caret and what is allowed.
//!
//! One way for all three: a value first, then documents, checked against the schema of the cell's
//! own types ([`mod@schema`]) and by the cell's own admission rules. Evaluation is hermetic: no
//! network, no clock, no environment, imports from the file's own folder alone, and limits on
//! time, memory, depth and size ([`limits`]).
//!
//! Rejected: a language of our own. Jsonnet is known, small and pure, and its objects inherit,
//! which is what configurations are made of.

pub mod diagnostic;
mod document;
mod evaluate;
mod example;
pub mod format;
mod json;
pub mod limits;
mod locate;
mod number;
mod references;
pub mod schema;
mod schema_check;
pub mod units;
mod validate;
pub mod written;
mod yaml;

pub use document::{CronDocument, Document, JobDocument};
pub use evaluate::import::{LIBRARY, LIBRARY_NAME};
pub use evaluate::{CHILD, Evaluator, run_child};
pub use limits::Limits;

use cellwright_cell::field::FieldPath;
use cellwright_cell::name::Name;
use diagnostic::{Diagnostic, Place, Severity, Source};
use document::Reader;
use locate::Part;
use schema_check::{Fault, Wrong};
use serde_json::Value;
use std::fmt;
use std::path::{Path, PathBuf};
use yaml::Places;

/// Errors shown of one file; whoever has more has the same one everywhere.
const MOST_ERRORS: usize = 20;
/// Errors whose places are looked for, to show the first of them.
const MOST_PLACED: usize = 1000;

/// How to read a file.
#[derive(Clone, Debug)]
pub struct Options {
    pub evaluator: Evaluator,
    pub limits: Limits,
    /// Whose jobs are that name no owner, as far as it is known.
    pub owner: Option<Name>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Jsonnet,
    Json,
    Yaml,
}

impl Format {
    /// By the ending of the name.
    #[must_use]
    pub fn of(path: &Path) -> Option<Format> {
        match path.extension()?.to_str()? {
            "jsonnet" | "libsonnet" => Some(Format::Jsonnet),
            "json" => Some(Format::Json),
            "yaml" | "yml" => Some(Format::Yaml),
            _ => None,
        }
    }

    /// By what it says, for a text without a name. YAML shows on its first line that it is not
    /// Jsonnet; what could be either is Jsonnet.
    #[must_use]
    pub fn of_text(text: &str) -> Format {
        if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() {
            return Format::Json;
        }
        let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim_end);
        let said = |line: &&str| !line.is_empty() && !line.trim_start().starts_with('#');
        match lines.into_iter().find(said) {
            Some(first) if yaml::begins_with(first.trim_start()) => Format::Yaml,
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

/// What a file asks for.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// In an order in which they can be submitted: none refers to a later one.
    pub documents: Vec<Document>,
    pub warnings: Vec<Diagnostic>,
}

/// What is wrong with a file: one error at least.
#[derive(Clone, Debug)]
pub struct Diagnostics(pub Vec<Diagnostic>);

/// Reads a file.
///
/// # Errors
/// Everything that is wrong with it.
pub fn load(path: &Path, options: &Options) -> Result<Loaded, Diagnostics> {
    let name = path.display().to_string();
    let wrong = |message: String| Diagnostics(vec![Diagnostic::error(&name, message)]);
    let Some(format) = Format::of(path) else {
        let error = Diagnostic::error(&name, "the name does not say what language it is");
        return Err(Diagnostics(vec![error.with_help(".jsonnet, .json, .yaml or .yml")]));
    };
    let bytes = evaluate::import::read(path, options.limits.file_bytes).map_err(&wrong)?;
    let text = String::from_utf8(bytes).map_err(|_| wrong(format!("{name} is not UTF-8")))?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    load_text(&Source { name, text }, folder, format, options)
}

/// Reads a text, as from standard input; imports come from `folder`.
///
/// # Errors
/// Everything that is wrong with it.
pub fn load_text(
    source: &Source,
    folder: &Path,
    format: Format,
    options: &Options,
) -> Result<Loaded, Diagnostics> {
    let root = folder.canonicalize().map_err(|error| {
        let message = format!("{} cannot be read: {error}", folder.display());
        Diagnostics(vec![Diagnostic::error(&source.name, message)])
    })?;
    let (value, places) = value_of(source, &root, format, options).map_err(Diagnostics)?;
    let mut reader = Reader::new(options.owner.clone());
    reader.read(value, &FieldPath::default(), None);
    let file = File { source, root, places, most_bytes: options.limits.file_bytes };
    let (reader, documents) = reader.finish();
    if documents.is_empty() && reader.checker.wrong.is_empty() {
        let error = Diagnostic::error(&source.name, "there is no job in this file");
        return Err(Diagnostics(vec![error]));
    }
    let most = options.limits.documents;
    if documents.len() > most {
        let message = format!("the file has {} jobs", documents.len());
        let error = Diagnostic::error(&source.name, message);
        return Err(Diagnostics(vec![error.with_help(format!("job limit: {most} in one file"))]));
    }
    let warnings = file.warnings(&reader);
    match reader.checker.wrong.is_empty() {
        true => Ok(Loaded { documents, warnings }),
        false => Err(Diagnostics(file.errors(&reader))),
    }
}

fn value_of(
    source: &Source,
    root: &Path,
    format: Format,
    options: &Options,
) -> Result<(Value, Option<Places>), Vec<Diagnostic>> {
    match format {
        Format::Json => Ok((json::parse(source).map_err(|wrong| vec![*wrong])?, None)),
        Format::Yaml => {
            let (value, places) = yaml::parse(source).map_err(|wrong| vec![*wrong])?;
            Ok((value, Some(places)))
        }
        Format::Jsonnet => {
            let text = evaluate::evaluate(source, root, &options.evaluator, &options.limits)?;
            let json = Source { name: source.name.clone(), text };
            Ok((json::parse(&json).map_err(|wrong| vec![wrong.at(None)])?, None))
        }
    }
}

/// Finds the places of paths.
struct File<'a> {
    source: &'a Source,
    root: PathBuf,
    /// Of YAML; of the others they are looked for when something is wrong.
    places: Option<Places>,
    most_bytes: u64,
}

impl File<'_> {
    fn places_of(&self, wanted: &[(FieldPath, Part)]) -> Vec<Option<Place>> {
        let Some(places) = &self.places else {
            let found = locate::locate(self.source, &self.root, self.most_bytes, wanted);
            return found.into_iter().map(|found| found.map(|(place, _)| place)).collect();
        };
        let find = |(path, part): &(FieldPath, Part)| {
            let exact = match part {
                Part::Name => places.name(path),
                Part::Value => places.value(path),
            };
            exact.or_else(|| yaml::shortened(path).find_map(|path| places.name(&path))).cloned()
        };
        wanted.iter().map(find).collect()
    }

    fn errors(&self, reader: &Reader) -> Vec<Diagnostic> {
        let wrong = &reader.checker.wrong;
        let looked = &wrong[..wrong.len().min(MOST_PLACED)];
        let wanted: Vec<(FieldPath, Part)> =
            looked.iter().map(|wrong| (reader.as_written(&wrong.path), wrong.part)).collect();
        let places = self.places_of(&wanted);
        let made =
            looked.iter().zip(wanted.iter().zip(places)).map(|(wrong, ((path, _), place))| {
                let (message, help) = match self.number_at(wrong, place.as_ref()) {
                    Some((message, help)) => (message, Some(help)),
                    None => (wrong.message.clone(), wrong.help.clone()),
                };
                let error = Diagnostic::error(&self.source.name, message).at(place);
                let missing = matches!(wrong.fault, Fault::Missing(_));
                (missing, Diagnostic { field: named(path), help, ..error })
            });
        let mut errors: Vec<(bool, Diagnostic)> = made.collect();
        errors.sort_by_cached_key(|(missing, error)| (self.order_of(error), *missing));
        let mut errors: Vec<Diagnostic> = errors.into_iter().map(|(_, error)| error).collect();
        let more = wrong.len() - looked.len() + errors.len().saturating_sub(MOST_ERRORS);
        errors.truncate(MOST_ERRORS);
        if more > 0 {
            let noun = if more == 1 { "error" } else { "errors" };
            let message = format!("and {more} more {noun}");
            errors.push(Diagnostic::error(&self.source.name, message));
        }
        errors
    }

    /// A number that should be a text is shown as it is written: many texts of digits are the same
    /// number. Only YAML has places of single values.
    fn number_at(&self, wrong: &Wrong, place: Option<&Place>) -> Option<(String, String)> {
        let place = place.filter(|_| wrong.fault == Fault::Unquoted && self.places.is_some())?;
        let characters = place.text.chars().skip(place.column as usize - 1);
        let written: String = characters.take(place.width as usize).collect();
        let is_number = written.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
        is_number.then(|| schema_check::unquoted(&written))
    }

    /// As one reads: the file itself from the top, then what it imports.
    fn order_of(&self, error: &Diagnostic) -> (bool, String, u32, u32) {
        match &error.place {
            Some(Place { file, line, column, .. }) => {
                (*file != self.source.name, file.clone(), *line, *column)
            }
            None => (true, String::new(), u32::MAX, u32::MAX),
        }
    }

    fn warnings(&self, reader: &Reader) -> Vec<Diagnostic> {
        let shown: Vec<_> = reader.warnings.iter().take(MOST_ERRORS).collect();
        let wanted: Vec<(FieldPath, Part)> =
            shown.iter().map(|(path, ..)| (reader.as_written(path), Part::Value)).collect();
        let places = if wanted.is_empty() { Vec::new() } else { self.places_of(&wanted) };
        let made = shown.iter().zip(wanted.iter().zip(places));
        made.map(|((_, message, help), ((path, _), place))| {
            let warning = Diagnostic::error(&self.source.name, message.clone()).at(place);
            let (field, help) = (named(path), Some(help.clone()));
            Diagnostic { severity: Severity::Warning, field, help, ..warning }
        })
        .collect()
    }
}

/// The top of the file has no path.
fn named(path: &FieldPath) -> Option<String> {
    Some(path.to_string()).filter(|text| !text.is_empty())
}
