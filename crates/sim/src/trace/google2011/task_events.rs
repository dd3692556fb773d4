//! `task_events`: every step in the life cycle of every task.

use crate::trace::decimal::Rounding;
use crate::trace::problem::FieldProblem;
use crate::trace::table::{FLAG, Fields, Flow, Header, TableSpec, read_table};
use crate::trace::{Input, ReadReport, TraceError};

use super::{JobId, MAX_PRIORITY, MAX_SCHEDULING_CLASS, MachineId, TaskKey};

/// What happened to a task or a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Submit,
    Schedule,
    Evict,
    Fail,
    Finish,
    Kill,
    Lost,
    UpdatePending,
    UpdateRunning,
}

/// Why the publishers of the trace made up a row from indirect evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingInfo {
    /// A snapshot shows the change, the event itself is missing.
    SnapshotButNoTransition,
    /// The last known state ended without an event.
    NoSnapshotOrTransition,
    /// The task or job exists, but its creation was not seen.
    ExistsButNoCreation,
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEvent<'a> {
    pub time_us: u64,
    pub missing_info: Option<MissingInfo>,
    pub task: TaskKey,
    pub machine: Option<MachineId>,
    pub kind: EventKind,
    /// Opaque name.
    pub user: Option<&'a str>,
    /// 0 (not latency-sensitive) to 3 (most).
    pub scheduling_class: Option<u8>,
    pub priority: u8,
    /// Rounded up, as all requests.
    pub cpu_micro: Option<u64>,
    pub memory_micro: Option<u64>,
    pub disk_micro: Option<u64>,
    /// Whether the task must be on another machine than all other tasks of its job.
    pub different_machines: Option<bool>,
}

const SPEC: TableSpec = TableSpec {
    columns: &[
        "time",
        "missing info",
        "job ID",
        "task index",
        "machine ID",
        "event type",
        "user",
        "scheduling class",
        "priority",
        "CPU request",
        "memory request",
        "disk space request",
        "different machines restriction",
    ],
    header: Header::None,
    has_remarks: false,
};

pub(super) const KINDS: &[(&str, EventKind)] = &[
    ("0", EventKind::Submit),
    ("1", EventKind::Schedule),
    ("2", EventKind::Evict),
    ("3", EventKind::Fail),
    ("4", EventKind::Finish),
    ("5", EventKind::Kill),
    ("6", EventKind::Lost),
    ("7", EventKind::UpdatePending),
    ("8", EventKind::UpdateRunning),
];

pub(super) const MISSING: &[(&str, MissingInfo)] = &[
    ("0", MissingInfo::SnapshotButNoTransition),
    ("1", MissingInfo::NoSnapshotOrTransition),
    ("2", MissingInfo::ExistsButNoCreation),
];

/// Passes every event to `each` until it breaks off.
pub fn read(
    input: Input,
    mut each: impl FnMut(TaskEvent<'_>) -> Flow,
) -> Result<ReadReport, TraceError> {
    read_table(input, &SPEC, |fields| Ok(each(parse(fields)?)))
}

/// As [`read`], where the callback may reject a row.
pub(super) fn read_checked(
    input: Input,
    mut each: impl FnMut(TaskEvent<'_>) -> Result<Flow, FieldProblem>,
) -> Result<ReadReport, TraceError> {
    read_table(input, &SPEC, |fields| each(parse(fields)?))
}

fn parse<'a>(fields: &Fields<'a>) -> Result<TaskEvent<'a>, FieldProblem> {
    Ok(TaskEvent {
        time_us: fields.whole(0)?,
        missing_info: fields.optional_choice(1, MISSING)?,
        task: parse_key(fields, 2)?,
        machine: fields.optional_whole(4)?.map(MachineId),
        kind: fields.choice(5, KINDS)?,
        user: fields.text(6),
        scheduling_class: parse_class(fields, 7)?,
        priority: fields.whole_up_to(8, MAX_PRIORITY)?,
        cpu_micro: fields.optional_micro(9, Rounding::Up)?,
        memory_micro: fields.optional_micro(10, Rounding::Up)?,
        disk_micro: fields.optional_micro(11, Rounding::Up)?,
        different_machines: fields.optional_choice(12, FLAG)?,
    })
}

/// A job number at `column` and a task index after it.
pub(super) fn parse_key(fields: &Fields<'_>, column: usize) -> Result<TaskKey, FieldProblem> {
    let job = JobId(fields.whole(column)?);
    Ok(TaskKey { job, index: fields.whole_up_to(column + 1, u32::MAX)? })
}

pub(super) fn parse_class(fields: &Fields<'_>, column: usize) -> Result<Option<u8>, FieldProblem> {
    fields.text(column).map(|_| fields.whole_up_to(column, MAX_SCHEDULING_CLASS)).transpose()
}
