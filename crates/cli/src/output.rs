//! Results to stdout: a table for people or JSON for programs.

use crate::failure::Failure;
use clap::ValueEnum;
use serde::Serialize;
use std::io::{self, Write};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// For programs; one object, stable field names.
    Json,
}

/// Writes to stdout; a reader that went away is not an error of ours.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|source| match source.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Write { what: "the result".into(), source },
    })
}

pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::work(&error, "the same command with -o table"))?;
    print(&format!("{text}\n"))
}
