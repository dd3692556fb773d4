//! Example cells: `machines.csv` and `jobs.csv` in one folder, made to be written by hand.
//!
//! The format exists so that a first run needs no download and has what public traces lack:
//! attributes, racks, packages, ports, GPUs, gangs. `examples/small-cell/README.md` documents every
//! column. Rejected: reusing the format of one of the public traces, because none of them can
//! express more than half of this.

mod constraint;
mod jobs;
mod machines;
mod names;
mod quantity;

use std::path::Path;

use super::{Input, ReadReport, TraceError};

pub(crate) use constraint::ALLOWED as ALLOWED_CONSTRAINTS;
pub use constraint::{ExampleConstraint, ExampleOperator, parse_constraint};
pub use jobs::{ExampleAppClass, ExampleGpus, ExampleJob, ExamplePackage, read_jobs};
pub use machines::{ExampleMachine, read_machines};
pub use quantity::{parse_bytes, parse_bytes_down, parse_bytes_per_second, parse_milli};

pub const MACHINES_FILE: &str = "machines.csv";
pub const JOBS_FILE: &str = "jobs.csv";

/// Machines and jobs of a folder.
#[derive(Clone, Debug)]
pub struct ExampleCell {
    pub machines: Vec<ExampleMachine>,
    pub jobs: Vec<ExampleJob>,
    /// Of the machines, then of the jobs.
    pub reports: Vec<ReadReport>,
}

impl ExampleCell {
    /// Tasks of all jobs.
    pub fn tasks(&self) -> u64 {
        self.jobs.iter().map(|job| u64::from(job.tasks)).sum()
    }
}

/// Reads both files of a folder.
pub fn read_cell(folder: &Path) -> Result<ExampleCell, TraceError> {
    let machines = read_machines(Input::open(&folder.join(MACHINES_FILE))?)?;
    let jobs = read_jobs(Input::open(&folder.join(JOBS_FILE))?)?;
    Ok(ExampleCell {
        machines: machines.rows,
        jobs: jobs.rows,
        reports: vec![machines.report, jobs.report],
    })
}
