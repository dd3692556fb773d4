//! `machine_events`: machines that are added, are removed and change their capacity.

use crate::trace::decimal::Rounding;
use crate::trace::problem::FieldProblem;
use crate::trace::table::{Fields, Flow, Header, TableSpec, read_table};
use crate::trace::{Input, ReadReport, TraceError};

use super::MachineId;

/// What happened to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineEventKind {
    Add,
    Remove,
    /// Its capacity changed.
    Update,
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineEvent<'a> {
    pub time_us: u64,
    pub machine: MachineId,
    pub kind: MachineEventKind,
    /// Opaque name of the micro-architecture and chipset.
    pub platform: Option<&'a str>,
    /// Rounded down.
    pub cpu_micro: Option<u64>,
    /// Rounded down.
    pub memory_micro: Option<u64>,
}

const SPEC: TableSpec = TableSpec {
    columns: &["time", "machine ID", "event type", "platform ID", "CPUs", "Memory"],
    header: Header::None,
    has_remarks: false,
};

const KINDS: &[(&str, MachineEventKind)] = &[
    ("0", MachineEventKind::Add),
    ("1", MachineEventKind::Remove),
    ("2", MachineEventKind::Update),
];

/// Passes every event to `each` until it breaks off.
pub fn read(
    input: Input,
    mut each: impl FnMut(MachineEvent<'_>) -> Flow,
) -> Result<ReadReport, TraceError> {
    read_table(input, &SPEC, |fields| Ok(each(parse(fields)?)))
}

/// As [`read`], where the callback may reject a row.
pub(super) fn read_checked(
    input: Input,
    mut each: impl FnMut(MachineEvent<'_>) -> Result<Flow, FieldProblem>,
) -> Result<ReadReport, TraceError> {
    read_table(input, &SPEC, |fields| each(parse(fields)?))
}

fn parse<'a>(fields: &Fields<'a>) -> Result<MachineEvent<'a>, FieldProblem> {
    Ok(MachineEvent {
        time_us: fields.whole(0)?,
        machine: MachineId(fields.whole(1)?),
        kind: fields.choice(2, KINDS)?,
        platform: fields.text(3),
        cpu_micro: fields.optional_micro(4, Rounding::Down)?,
        memory_micro: fields.optional_micro(5, Rounding::Down)?,
    })
}
