//! Where the tables of the trace are inside its folder.
//!
//! The published set keeps each table in a folder of numbered parts; people who fetch only a few
//! parts tend to put them side by side. Both layouts are found, plain or gzip, in part order.

use std::fs;
use std::path::{Path, PathBuf};

use crate::trace::TraceError;

/// The tables of the trace, the two derived ones included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceTable {
    MachineEvents,
    MachineAttributes,
    TaskEvents,
    TaskConstraints,
    TaskUsage,
    JobEvents,
    MachinesT0,
    TasksT0,
}

impl TraceTable {
    pub fn name(self) -> &'static str {
        match self {
            TraceTable::MachineEvents => "machine_events",
            TraceTable::MachineAttributes => "machine_attributes",
            TraceTable::TaskEvents => "task_events",
            TraceTable::TaskConstraints => "task_constraints",
            TraceTable::TaskUsage => "task_usage",
            TraceTable::JobEvents => "job_events",
            TraceTable::MachinesT0 => "machines_t0",
            TraceTable::TasksT0 => "tasks_t0",
        }
    }
}

/// The files of a table in part order, or an error with the places that were searched.
pub fn find_files(folder: &Path, table: TraceTable) -> Result<Vec<PathBuf>, TraceError> {
    let name = table.name();
    let mut found = list(folder, |file| {
        stem(file).is_some_and(|stem| stem == name || stem.starts_with(&format!("{name}.part-")))
    })?;
    let parts = folder.join(name);
    if parts.is_dir() {
        found.extend(list(&parts, |file| stem(file).is_some_and(|s| s.starts_with("part-")))?);
    }
    if found.is_empty() {
        let allowed = format!(
            "{name}.csv, {name}.part-NNNNN-of-NNNNN.csv or {name}/part-NNNNN-of-NNNNN.csv, \
             each plain or with .gz"
        );
        let folder = folder.display().to_string();
        return Err(TraceError::Missing { what: format!("table {name}"), folder, allowed });
    }
    Ok(found)
}

/// The name without `.csv` or `.csv.gz`.
fn stem(file: &str) -> Option<&str> {
    file.strip_suffix(".gz").unwrap_or(file).strip_suffix(".csv")
}

/// Files of a folder whose name matches, sorted by name.
fn list(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, TraceError> {
    let failed = |source| TraceError::open(folder, source);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(&wanted) && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
