//! Standard Workload Format: logs of parallel machines, one job a line.
//!
//! Comment lines start with `;` and form the header (`; MaxProcs: 128`); job lines have 18 numbers
//! separated by blanks, and -1 stands for unknown.

mod header;
mod job;

pub use header::SwfHeader;
pub use job::{SwfJob, SwfJobId, SwfStatus};

use super::problem::ReadReport;
use super::table::text_of;
use super::{Input, TraceError};

/// A whole log.
#[derive(Clone, Debug)]
pub struct SwfLog {
    pub header: SwfHeader,
    pub jobs: Vec<SwfJob>,
    pub report: ReadReport,
}

/// Reads a log. Empty lines are skipped; a header value that cannot be used is a problem too.
pub fn read(input: Input) -> Result<SwfLog, TraceError> {
    let mut report = ReadReport::new(input.name());
    let mut header = SwfHeader::default();
    let mut jobs = Vec::new();
    let mut lines = input.into_lines();
    while let Some((number, line)) = lines.next_line()? {
        let text = match text_of(line) {
            Ok(text) => text.trim(),
            Err(problem) => {
                report.add_problem(number, problem);
                continue;
            }
        };
        if let Some(comment) = text.strip_prefix(';') {
            if let Err(problem) = header.add(comment) {
                report.add_problem(number, problem);
            }
        } else if !text.is_empty() {
            match job::parse(text) {
                Ok(job) => {
                    jobs.push(job);
                    report.rows += 1;
                }
                Err(problem) => report.add_problem(number, problem),
            }
        }
    }
    report.end_reached = true;
    Ok(SwfLog { header, jobs, report })
}
