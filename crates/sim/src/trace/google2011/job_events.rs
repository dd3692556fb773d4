//! `job_events`: every step in the life cycle of every job.

use crate::trace::problem::FieldProblem;
use crate::trace::table::{Fields, Flow, Header, TableSpec, read_table};
use crate::trace::{Input, ReadReport, TraceError};

use super::JobId;
use super::task_events::{EventKind, KINDS, MISSING, MissingInfo, parse_class};

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEvent<'a> {
    pub time_us: u64,
    pub missing_info: Option<MissingInfo>,
    pub job: JobId,
    pub kind: EventKind,
    /// Opaque name.
    pub user: Option<&'a str>,
    pub scheduling_class: Option<u8>,
    /// Opaque name, often with parts that change from run to run.
    pub job_name: Option<&'a str>,
    /// Opaque name, the same for all runs of one program.
    pub logical_name: Option<&'a str>,
}

const SPEC: TableSpec = TableSpec {
    columns: &[
        "time",
        "missing info",
        "job ID",
        "event type",
        "user",
        "scheduling class",
        "job name",
        "logical job name",
    ],
    header: Header::None,
    has_remarks: false,
};

/// Passes every event to `each` until it breaks off.
pub fn read(
    input: Input,
    mut each: impl FnMut(JobEvent<'_>) -> Flow,
) -> Result<ReadReport, TraceError> {
    read_table(input, &SPEC, |fields| Ok(each(parse(fields)?)))
}

fn parse<'a>(fields: &Fields<'a>) -> Result<JobEvent<'a>, FieldProblem> {
    Ok(JobEvent {
        time_us: fields.whole(0)?,
        missing_info: fields.optional_choice(1, MISSING)?,
        job: JobId(fields.whole(2)?),
        kind: fields.choice(3, KINDS)?,
        user: fields.text(4),
        scheduling_class: parse_class(fields, 5)?,
        job_name: fields.text(6),
        logical_name: fields.text(7),
    })
}
