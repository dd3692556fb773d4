//! Problems of a trace: in one row, or in the whole file.
//!
//! A row problem is data (it is counted, kept and printed in tables and JSON); a file problem is an
//! error. Values are cut and escaped before they are kept, so that a hostile file can neither fill
//! the memory nor write escape codes to a terminal.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::Path;

use serde::Serialize;

/// How many problems of a file are kept in full; the rest are only counted.
pub const KEPT_PROBLEMS: usize = 100;

/// How many characters of a bad value are kept.
const KEPT_VALUE_CHARS: usize = 60;

/// One row that could not be used, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RowProblem {
    pub file: String,
    /// Counted from 1, the header included.
    pub line: u64,
    /// The column, or `row` when the line as a whole is at fault.
    pub field: &'static str,
    /// The value in the file: escaped, and cut if long.
    pub value: String,
    pub allowed: Cow<'static, str>,
}

impl fmt::Display for RowProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RowProblem { file, line, field, value, allowed } = self;
        write!(f, "{file}:{line}: {field} is \"{value}\"; allowed: {allowed}")
    }
}

/// A problem whose line is not known yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldProblem {
    pub field: &'static str,
    pub value: String,
    pub allowed: Cow<'static, str>,
}

impl FieldProblem {
    pub fn new(field: &'static str, value: &str, allowed: impl Into<Cow<'static, str>>) -> Self {
        FieldProblem { field, value: preview(value), allowed: allowed.into() }
    }
}

/// The outcome of reading one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReadReport {
    pub file: String,
    /// Rows that were read and used.
    pub rows: u64,
    /// The first 100 problems.
    pub problems: Vec<RowProblem>,
    /// All rows that could not be used; a row counts once, by its first problem.
    pub problems_total: u64,
    /// False when the caller had seen enough before the end of the file.
    pub end_reached: bool,
}

impl ReadReport {
    pub(super) fn new(file: &str) -> Self {
        ReadReport {
            file: file.to_owned(),
            rows: 0,
            problems: Vec::new(),
            problems_total: 0,
            end_reached: false,
        }
    }

    pub(super) fn add_problem(&mut self, line: u64, problem: FieldProblem) {
        self.problems_total += 1;
        if self.problems.len() < KEPT_PROBLEMS {
            let FieldProblem { field, value, allowed } = problem;
            self.problems.push(RowProblem { file: self.file.clone(), line, field, value, allowed });
        }
    }

    /// Whether every row was usable.
    pub fn is_clean(&self) -> bool {
        self.problems_total == 0
    }
}

/// Rows that could not be used, over several files.
pub fn total_problems(reports: &[ReadReport]) -> u64 {
    reports.iter().map(|report| report.problems_total).sum()
}

/// Why a trace cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("cannot open {file}: {source}")]
    Open { file: String, source: io::Error },
    #[error("cannot read {file} past line {line}: {source}")]
    Read { file: String, line: u64, source: io::Error },
    #[error("the header of {file} is \"{found}\"; allowed: {allowed}")]
    Header { file: String, found: String, allowed: String },
    #[error("no {what} in {folder}; allowed: {allowed}")]
    Missing { what: String, folder: String, allowed: String },
    #[error("no pod list \"{given}\" in {folder}; allowed: {}", list_variants(.known))]
    UnknownPodList { given: String, folder: String, known: Vec<String> },
    #[error(
        "the cell {} s after the start was asked for, but the task events of the trace end after \
         {} s; allowed: 0 to {1}",
        .requested_us / 1_000_000,
        .last_us / 1_000_000
    )]
    BeyondTrace { requested_us: u64, last_us: u64 },
}

impl TraceError {
    pub(super) fn open(path: &Path, source: io::Error) -> Self {
        TraceError::Open { file: path.display().to_string(), source }
    }
}

/// Lists the variants of pod lists, or says that there is none.
fn list_variants(known: &[String]) -> String {
    match known {
        [] => "a folder with files openb_pod_list_NAME.csv".into(),
        known => known.join(", "),
    }
}

/// A value in a form that can be kept and printed: escaped, and cut when long.
pub fn preview(value: &str) -> String {
    let mut characters = value.chars();
    let start: String = characters.by_ref().take(KEPT_VALUE_CHARS).collect();
    let ellipsis = if characters.next().is_some() { "…" } else { "" };
    format!("{}{ellipsis}", start.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_hostile_values_are_cut_and_escaped() {
        assert_eq!(preview("abc"), "abc");
        assert_eq!(preview("\u{1b}[2J"), "\\u{1b}[2J");
        assert_eq!(preview(&"x".repeat(61)), format!("{}…", "x".repeat(60)));
    }

    #[test]
    fn only_the_first_problems_are_kept_but_all_are_counted() {
        let mut report = ReadReport::new("f.csv");
        for line in 1..=250 {
            report.add_problem(line, FieldProblem::new("cpus", "NaN", "a number"));
        }
        assert_eq!((report.problems.len(), report.problems_total), (KEPT_PROBLEMS, 250));
        assert!(!report.is_clean());
        assert_eq!(report.problems[1].to_string(), "f.csv:2: cpus is \"NaN\"; allowed: a number");
    }
}
