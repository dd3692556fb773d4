//! `jobs.csv`: one job a line.

use std::collections::HashSet;

use crate::trace::decimal::parse_whole;
use crate::trace::problem::FieldProblem;
use crate::trace::table::{Fields, Flow, Header, TableSpec, read_table};
use crate::trace::{Input, Table, TraceError};

use super::constraint::{ALLOWED as ALLOWED_CONSTRAINTS, ExampleConstraint, parse_constraint};
use super::machines::{amount, optional_amount};
use super::names::{is_token, list, name, tokens};
use super::quantity::{
    ALLOWED_BYTES, ALLOWED_MILLI, ALLOWED_RATE, parse_bytes, parse_bytes_per_second, parse_milli,
};

const MAX_PRIORITY: u16 = 399;
const MAX_TASKS: u32 = 200_000;
const MAX_GPUS: u8 = 64;
const WHOLE_GPU: u64 = 1000;

/// How the machine treats a task's CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExampleAppClass {
    LatencySensitive,
    Batch,
}

/// GPUs of each task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExampleGpus {
    /// Different devices of one machine.
    pub count: u8,
    /// Shares of each, of 1,000.
    pub share_milli: u16,
    /// Models allowed; empty for any.
    pub models: Vec<String>,
}

/// A program or data bundle that a task needs on its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExamplePackage {
    pub name: String,
    pub bytes: u64,
}

/// One job. Amounts are those of each task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExampleJob {
    pub name: String,
    pub user: String,
    /// 0-99 best effort, 100-199 batch, 200-299 production, 300-399 monitoring.
    pub priority: u16,
    pub appclass: ExampleAppClass,
    /// At least 1.
    pub tasks: u32,
    pub cpu_milli: u64,
    pub ram_bytes: u64,
    pub disk_bytes: u64,
    /// Bytes per second; 0 when the file does not say.
    pub disk_rate: u64,
    /// How many ports the system shall choose.
    pub ports: u8,
    /// Ports that the task requires.
    pub static_ports: Vec<u16>,
    pub gpus: Option<ExampleGpus>,
    pub constraints: Vec<ExampleConstraint>,
    /// Most tasks of the job on one machine, in one rack, in one power domain.
    pub max_per_machine: Option<u32>,
    pub max_per_rack: Option<u32>,
    pub max_per_power: Option<u32>,
    /// Whether all tasks are placed together or none is.
    pub is_gang: bool,
    pub packages: Vec<ExamplePackage>,
    /// What a task typically uses of its CPU and RAM.
    pub cpu_used_percent: Option<u8>,
    pub ram_used_percent: Option<u8>,
}

const SPEC: TableSpec = TableSpec {
    columns: &[
        "job",
        "user",
        "priority",
        "appclass",
        "tasks",
        "cpu",
        "ram",
        "disk",
        "disk_rate",
        "ports",
        "static_ports",
        "gpus",
        "gpu_share",
        "gpu_models",
        "constraints",
        "max_per_machine",
        "max_per_rack",
        "max_per_power",
        "gang",
        "packages",
        "cpu_used_percent",
        "ram_used_percent",
    ],
    header: Header::Names { required: 8 },
    has_remarks: true,
};

const APPCLASSES: &[(&str, ExampleAppClass)] =
    &[("latency-sensitive", ExampleAppClass::LatencySensitive), ("batch", ExampleAppClass::Batch)];

const YES_NO: &[(&str, bool)] = &[("yes", true), ("no", false)];

/// Reads jobs; a job that occurs twice for its user is a problem.
pub fn read_jobs(input: Input) -> Result<Table<ExampleJob>, TraceError> {
    let mut rows = Vec::new();
    let mut known = HashSet::new();
    let report = read_table(input, &SPEC, |fields| {
        let job = parse(fields)?;
        if !known.insert((job.user.clone(), job.name.clone())) {
            return Err(fields.problem(0, "a name that no earlier row of the user has"));
        }
        rows.push(job);
        Ok(Flow::Continue(()))
    })?;
    Ok(Table { rows, report })
}

fn parse(fields: &Fields<'_>) -> Result<ExampleJob, FieldProblem> {
    Ok(ExampleJob {
        name: name(fields, 0)?,
        user: name(fields, 1)?,
        priority: fields.whole_up_to(2, MAX_PRIORITY)?,
        appclass: fields.choice(3, APPCLASSES)?,
        tasks: from_one(fields, 4, MAX_TASKS)?,
        cpu_milli: amount(fields, 5, parse_milli, ALLOWED_MILLI)?,
        ram_bytes: amount(fields, 6, parse_bytes, ALLOWED_BYTES)?,
        disk_bytes: amount(fields, 7, parse_bytes, ALLOWED_BYTES)?,
        disk_rate: optional_amount(fields, 8, parse_bytes_per_second, ALLOWED_RATE)?,
        ports: fields.text(9).map_or(Ok(0), |_| fields.whole_up_to(9, 64))?,
        static_ports: parse_static_ports(fields)?,
        gpus: parse_gpus(fields)?,
        constraints: parse_constraints(fields)?,
        max_per_machine: optional_from_one(fields, 15, MAX_TASKS)?,
        max_per_rack: optional_from_one(fields, 16, MAX_TASKS)?,
        max_per_power: optional_from_one(fields, 17, MAX_TASKS)?,
        is_gang: fields.optional_choice(18, YES_NO)?.unwrap_or(false),
        packages: parse_packages(fields)?,
        cpu_used_percent: parse_percent(fields, 20)?,
        ram_used_percent: parse_percent(fields, 21)?,
    })
}

fn from_one(fields: &Fields<'_>, column: usize, largest: u32) -> Result<u32, FieldProblem> {
    fields
        .whole_up_to(column, largest)
        .ok()
        .filter(|value| *value >= 1)
        .ok_or_else(|| fields.problem(column, format!("a whole number from 1 to {largest}")))
}

fn optional_from_one(
    fields: &Fields<'_>,
    column: usize,
    largest: u32,
) -> Result<Option<u32>, FieldProblem> {
    fields.text(column).map(|_| from_one(fields, column, largest)).transpose()
}

fn parse_percent(fields: &Fields<'_>, column: usize) -> Result<Option<u8>, FieldProblem> {
    fields.text(column).map(|_| fields.whole_up_to(column, 100)).transpose()
}

fn parse_static_ports(fields: &Fields<'_>) -> Result<Vec<u16>, FieldProblem> {
    let wrong = || fields.problem(10, "different ports from 1 to 65535 with ; between them");
    let mut ports = Vec::new();
    for part in list(fields, 10) {
        let port = parse_whole(part).ok().and_then(|port| u16::try_from(port).ok());
        let port = port.filter(|port| *port != 0 && !ports.contains(port)).ok_or_else(wrong)?;
        ports.push(port);
    }
    Ok(ports)
}

/// Several GPUs are taken whole; a share is of a single one.
fn parse_gpus(fields: &Fields<'_>) -> Result<Option<ExampleGpus>, FieldProblem> {
    let count = fields.text(11).map_or(Ok(0), |_| fields.whole_up_to(11, MAX_GPUS))?;
    if count == 0 {
        return match [12, 13].into_iter().find(|column| fields.text(*column).is_some()) {
            Some(column) => Err(fields.problem(column, "nothing, for the job asks for no GPU")),
            None => Ok(None),
        };
    }
    let share = match fields.text(12) {
        None => Some(WHOLE_GPU),
        Some(text) => parse_milli(text).filter(|share| (1..=WHOLE_GPU).contains(share)),
    };
    let share = share.filter(|share| count == 1 || *share == WHOLE_GPU);
    let share_milli = share.and_then(|share| u16::try_from(share).ok()).ok_or_else(|| {
        fields.problem(12, "a share from 0.001 to 1 (or 1m to 1000m), less than 1 only of one GPU")
    })?;
    Ok(Some(ExampleGpus { count, share_milli, models: tokens(fields, 13)? }))
}

fn parse_constraints(fields: &Fields<'_>) -> Result<Vec<ExampleConstraint>, FieldProblem> {
    list(fields, 14)
        .map(|text| parse_constraint(text).ok_or_else(|| fields.problem(14, ALLOWED_CONSTRAINTS)))
        .collect()
}

fn parse_packages(fields: &Fields<'_>) -> Result<Vec<ExamplePackage>, FieldProblem> {
    let wrong = || fields.problem(19, "different name=size with ; between them, size as 300MiB");
    let mut packages: Vec<ExamplePackage> = Vec::new();
    for part in list(fields, 19) {
        let (name, size) = part.split_once('=').ok_or_else(wrong)?;
        let bytes = parse_bytes(size).ok_or_else(wrong)?;
        if !is_token(name) || packages.iter().any(|known| known.name == name) {
            return Err(wrong());
        }
        packages.push(ExamplePackage { name: name.to_owned(), bytes });
    }
    Ok(packages)
}
