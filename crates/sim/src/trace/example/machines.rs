//! `machines.csv`: one machine a line.

use std::collections::HashSet;

use crate::trace::problem::FieldProblem;
use crate::trace::table::{Fields, Flow, Header, TableSpec, read_table};
use crate::trace::{Input, Table, TraceError};

use super::names::{is_token, list, name, token, tokens};
use super::quantity::{
    ALLOWED_BYTES, ALLOWED_MILLI, ALLOWED_RATE, parse_bytes, parse_bytes_per_second, parse_milli,
};

/// Most GPUs of one machine.
const MAX_GPUS: u8 = 64;

/// One machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExampleMachine {
    pub name: String,
    pub arch: String,
    pub rack: String,
    pub power: String,
    pub cpu_milli: u64,
    pub ram_bytes: u64,
    pub disk_bytes: u64,
    /// Bytes per second; 0 when the file does not say.
    pub disk_rate: u64,
    pub gpus: u8,
    /// Model of all its GPUs; none without GPUs.
    pub gpu_model: Option<String>,
    /// Packages that are already there.
    pub packages: Vec<String>,
    /// Names and values besides those of the columns, in file order.
    pub attributes: Vec<(String, String)>,
}

impl ExampleMachine {
    /// Everything constraints can refer to: `machine`, `arch`, `rack`, `power`, `gpu_model` where
    /// there is one, and the attributes.
    pub fn all_attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        let columns = [
            ("machine", Some(&self.name)),
            ("arch", Some(&self.arch)),
            ("rack", Some(&self.rack)),
            ("power", Some(&self.power)),
            ("gpu_model", self.gpu_model.as_ref()),
        ];
        let of_columns = columns.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let others = self.attributes.iter().map(|(name, value)| (name.as_str(), value));
        of_columns.chain(others).map(|(name, value)| (name, value.as_str()))
    }
}

const SPEC: TableSpec = TableSpec {
    columns: &[
        "name",
        "arch",
        "rack",
        "power",
        "cpu",
        "ram",
        "disk",
        "disk_rate",
        "gpu_model",
        "gpus",
        "packages",
        "attributes",
    ],
    header: Header::Names { required: 7 },
    has_remarks: true,
};

/// Reads machines; a name that occurs twice is a problem.
pub fn read_machines(input: Input) -> Result<Table<ExampleMachine>, TraceError> {
    let mut rows = Vec::new();
    let mut known = HashSet::new();
    let report = read_table(input, &SPEC, |fields| {
        let machine = parse(fields)?;
        if !known.insert(machine.name.clone()) {
            return Err(fields.problem(0, "a name that no earlier row has"));
        }
        rows.push(machine);
        Ok(Flow::Continue(()))
    })?;
    Ok(Table { rows, report })
}

fn parse(fields: &Fields<'_>) -> Result<ExampleMachine, FieldProblem> {
    let (gpus, gpu_model) = parse_gpus(fields)?;
    Ok(ExampleMachine {
        name: name(fields, 0)?,
        arch: token(fields, 1)?,
        rack: token(fields, 2)?,
        power: token(fields, 3)?,
        cpu_milli: amount(fields, 4, parse_milli, ALLOWED_MILLI)?,
        ram_bytes: amount(fields, 5, parse_bytes, ALLOWED_BYTES)?,
        disk_bytes: amount(fields, 6, parse_bytes, ALLOWED_BYTES)?,
        disk_rate: optional_amount(fields, 7, parse_bytes_per_second, ALLOWED_RATE)?,
        gpus,
        gpu_model,
        packages: tokens(fields, 10)?,
        attributes: parse_attributes(fields)?,
    })
}

/// An amount that is required.
pub(super) fn amount(
    fields: &Fields<'_>,
    column: usize,
    parse: fn(&str) -> Option<u64>,
    allowed: &'static str,
) -> Result<u64, FieldProblem> {
    fields.text(column).and_then(parse).ok_or_else(|| fields.problem(column, allowed))
}

/// An amount that is 0 when the field is empty.
pub(super) fn optional_amount(
    fields: &Fields<'_>,
    column: usize,
    parse: fn(&str) -> Option<u64>,
    allowed: &'static str,
) -> Result<u64, FieldProblem> {
    let given = fields.text(column).map(|_| amount(fields, column, parse, allowed)).transpose()?;
    Ok(given.unwrap_or(0))
}

fn parse_gpus(fields: &Fields<'_>) -> Result<(u8, Option<String>), FieldProblem> {
    let gpus = fields.text(9).map(|_| fields.whole_up_to(9, MAX_GPUS)).transpose()?.unwrap_or(0);
    match (gpus, fields.text(8)) {
        (0, None) => Ok((0, None)),
        (0, Some(_)) => Err(fields.problem(8, "nothing, for the machine has no GPU")),
        (_, None) => Err(fields.problem(8, "a GPU model, for the machine has GPUs")),
        (_, Some(_)) => Ok((gpus, Some(token(fields, 8)?))),
    }
}

const COLUMN_ATTRIBUTES: [&str; 5] = ["machine", "arch", "rack", "power", "gpu_model"];

fn parse_attributes(fields: &Fields<'_>) -> Result<Vec<(String, String)>, FieldProblem> {
    let wrong = || fields.problem(11, "name=value with ; between them, no name twice");
    let mut found: Vec<(String, String)> = Vec::new();
    for part in list(fields, 11) {
        let (name, value) = part.split_once('=').ok_or_else(wrong)?;
        let is_known =
            COLUMN_ATTRIBUTES.contains(&name) || found.iter().any(|(known, _)| known == name);
        if !is_token(name) || !is_token(value) || is_known {
            return Err(wrong());
        }
        found.push((name.to_owned(), value.to_owned()));
    }
    Ok(found)
}
