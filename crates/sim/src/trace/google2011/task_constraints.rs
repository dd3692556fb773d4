//! `task_constraints`: what tasks require of the attributes of their machine.

use crate::trace::problem::FieldProblem;
use crate::trace::table::{Fields, Flow, Header, TableSpec, read_table};
use crate::trace::{Input, ReadReport, TraceError};

use super::TaskKey;
use super::task_events::parse_key;

/// How the machine's value is compared with the constraint's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConstraintOperator {
    Equal,
    NotEqual,
    LessThan,
    GreaterThan,
}

/// One row. All rows of a task hold together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskConstraint<'a> {
    pub time_us: u64,
    pub task: TaskKey,
    pub operator: ConstraintOperator,
    /// Opaque name.
    pub attribute: &'a str,
    /// A whole number or an opaque text; none stands for the empty text.
    pub value: Option<&'a str>,
}

const SPEC: TableSpec = TableSpec {
    columns: &[
        "time",
        "job ID",
        "task index",
        "comparison operator",
        "attribute name",
        "attribute value",
    ],
    header: Header::None,
    has_remarks: false,
};

const OPERATORS: &[(&str, ConstraintOperator)] = &[
    ("0", ConstraintOperator::Equal),
    ("1", ConstraintOperator::NotEqual),
    ("2", ConstraintOperator::LessThan),
    ("3", ConstraintOperator::GreaterThan),
];

/// Passes every row to `each` until it breaks off.
pub fn read(
    input: Input,
    mut each: impl FnMut(TaskConstraint<'_>) -> Flow,
) -> Result<ReadReport, TraceError> {
    read_table(input, &SPEC, |fields| Ok(each(parse(fields)?)))
}

fn parse<'a>(fields: &Fields<'a>) -> Result<TaskConstraint<'a>, FieldProblem> {
    Ok(TaskConstraint {
        time_us: fields.whole(0)?,
        task: parse_key(fields, 1)?,
        operator: fields.choice(3, OPERATORS)?,
        attribute: fields.required_text(4)?,
        value: fields.text(5),
    })
}
