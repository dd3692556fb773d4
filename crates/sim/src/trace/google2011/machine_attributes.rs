//! `machine_attributes`: properties of machines that task constraints refer to.

use crate::trace::problem::FieldProblem;
use crate::trace::table::{FLAG, Fields, Flow, Header, TableSpec, read_table};
use crate::trace::{Input, ReadReport, TraceError};

use super::MachineId;

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineAttribute<'a> {
    pub time_us: u64,
    pub machine: MachineId,
    /// Opaque name.
    pub name: &'a str,
    /// A whole number or an opaque text.
    pub value: Option<&'a str>,
    /// Whether the machine lost the attribute at that time.
    pub deleted: bool,
}

const SPEC: TableSpec = TableSpec {
    columns: &["time", "machine ID", "attribute name", "attribute value", "attribute deleted"],
    header: Header::None,
    has_remarks: false,
};

/// Passes every row to `each` until it breaks off.
pub fn read(
    input: Input,
    mut each: impl FnMut(MachineAttribute<'_>) -> Flow,
) -> Result<ReadReport, TraceError> {
    read_table(input, &SPEC, |fields| Ok(each(parse(fields)?)))
}

fn parse<'a>(fields: &Fields<'a>) -> Result<MachineAttribute<'a>, FieldProblem> {
    Ok(MachineAttribute {
        time_us: fields.whole(0)?,
        machine: MachineId(fields.whole(1)?),
        name: fields.required_text(2)?,
        value: fields.text(3),
        deleted: fields.choice(4, FLAG)?,
    })
}
