//! The checks of `cargo xtask tidy`, one file each, and what they report.
//!
//! A check is a pure function from the repository to findings. Each finding says what is wrong,
//! where, and why the rule exists: a ban without a reason invites a workaround.

mod banned_words;
mod bool_matches;
mod coverage;
mod crate_dependencies;
mod dead_files;
mod documented_paths;
mod invariants;
mod links;
mod purity;
mod security;
mod serde_attributes;
mod single_clock;
mod size_budget;
mod supervised_spawns;

use std::fmt;

use crate::repo::Repo;

/// Crates that decide and never act: their results depend on their arguments alone.
const PURE_CRATES: &[&str] =
    &["rows", "cell", "messages", "scale", "sched", "agent-core", "control"];

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    pub path: String,
    /// Counted from 1; 0 means the file as a whole.
    pub line: usize,
    pub message: String,
}

impl Finding {
    pub fn new(path: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

pub fn run(repo: &Repo) -> Vec<Finding> {
    let checks: [fn(&Repo) -> Vec<Finding>; 15] = [
        unreadable,
        crate_dependencies::check,
        purity::check,
        size_budget::check,
        serde_attributes::check,
        coverage::check,
        invariants::check,
        links::check,
        documented_paths::check,
        dead_files::check,
        banned_words::check,
        bool_matches::check,
        single_clock::check,
        supervised_spawns::check,
        security::check,
    ];
    let mut findings: Vec<Finding> = checks.iter().flat_map(|check| check(repo)).collect();
    findings.sort();
    findings
}

fn unreadable(repo: &Repo) -> Vec<Finding> {
    let files = repo.unreadable().iter();
    files.map(|(path, reason)| Finding::new(path, 0, reason.clone())).collect()
}

/// The messages of a check over a repository made of these files.
#[cfg(test)]
fn messages(check: fn(&Repo) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
    check(&Repo::of(files)).iter().map(ToString::to_string).collect()
}
