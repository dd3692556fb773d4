//! `machines_t0` and `tasks_t0`: the cell at trace start, as two derived tables.
//!
//! They contain what a replay of the events at time 0 gives (the last event of each machine and
//! task wins), in the same order, with users and platforms numbered. They are a tenth of the
//! events, so they take a tenth of the loading time.

use std::collections::HashSet;
use std::path::Path;

use crate::trace::decimal::Rounding;
use crate::trace::problem::FieldProblem;
use crate::trace::table::{FLAG, Fields, Flow, Header, TableSpec, read_table};
use crate::trace::{Input, Table, TraceError};

use super::files::{TraceTable, find_files};
use super::task_events::parse_key;
use super::{
    MAX_PRIORITY, MAX_SCHEDULING_CLASS, MachineId, MachineRow, Platform, Snapshot, TaskKey,
    TaskRow, TaskState, UserId,
};

const MACHINES: TableSpec = TableSpec {
    columns: &["machine_id", "platform", "cpus", "memory"],
    header: Header::Names { required: 4 },
    has_remarks: false,
};

const TASKS: TableSpec = TableSpec {
    columns: &[
        "job_id",
        "task_index",
        "state",
        "machine_id",
        "user_id",
        "scheduling_class",
        "priority",
        "cpu_request",
        "memory_request",
        "disk_request",
        "different_machines",
    ],
    header: Header::Names { required: 11 },
    has_remarks: false,
};

/// Both tables of a folder.
pub fn read_t0(folder: &Path) -> Result<Snapshot, TraceError> {
    let mut snapshot = Snapshot {
        time_us: 0,
        machines: Vec::new(),
        tasks: Vec::new(),
        machines_without_capacity: Vec::new(),
        incomplete_tasks: Vec::new(),
        reports: Vec::new(),
    };
    for file in find_files(folder, TraceTable::MachinesT0)? {
        let table = read_machines_t0(Input::open(&file)?)?;
        snapshot.machines.extend(table.rows);
        snapshot.reports.push(table.report);
    }
    for file in find_files(folder, TraceTable::TasksT0)? {
        let table = read_tasks_t0(Input::open(&file)?)?;
        snapshot.tasks.extend(table.rows);
        snapshot.reports.push(table.report);
    }
    Ok(snapshot)
}

/// `machines_t0`; a machine that occurs twice is a problem.
pub fn read_machines_t0(input: Input) -> Result<Table<MachineRow>, TraceError> {
    let mut rows: Vec<MachineRow> = Vec::new();
    let mut known: HashSet<MachineId> = HashSet::new();
    let report = read_table(input, &MACHINES, |fields| {
        let row = MachineRow {
            machine: MachineId(fields.whole(0)?),
            platform: parse_platform(fields, 1)?,
            cpu_micro: fields.micro(2, Rounding::Down)?,
            memory_micro: fields.micro(3, Rounding::Down)?,
        };
        if !known.insert(row.machine) {
            return Err(fields.problem(0, "a machine that no earlier row has"));
        }
        rows.push(row);
        Ok(Flow::Continue(()))
    })?;
    Ok(Table { rows, report })
}

/// `tasks_t0`; a task that occurs twice is a problem.
pub fn read_tasks_t0(input: Input) -> Result<Table<TaskRow>, TraceError> {
    let mut rows: Vec<TaskRow> = Vec::new();
    let mut known: HashSet<TaskKey> = HashSet::new();
    let report = read_table(input, &TASKS, |fields| {
        let row = parse_task(fields)?;
        if !known.insert(row.task) {
            return Err(fields.problem(1, "an index that no earlier row of the job has"));
        }
        rows.push(row);
        Ok(Flow::Continue(()))
    })?;
    Ok(Table { rows, report })
}

fn parse_task(fields: &Fields<'_>) -> Result<TaskRow, FieldProblem> {
    Ok(TaskRow {
        task: parse_key(fields, 0)?,
        state: parse_state(fields)?,
        user: UserId(fields.whole_up_to(4, u32::MAX)?),
        scheduling_class: fields.whole_up_to(5, MAX_SCHEDULING_CLASS)?,
        priority: fields.whole_up_to(6, MAX_PRIORITY)?,
        cpu_micro: fields.micro(7, Rounding::Up)?,
        memory_micro: fields.micro(8, Rounding::Up)?,
        disk_micro: fields.micro(9, Rounding::Up)?,
        different_machines: fields.choice(10, FLAG)?,
    })
}

/// State and machine go together: a running task has a machine, a pending one has none.
fn parse_state(fields: &Fields<'_>) -> Result<TaskState, FieldProblem> {
    let is_running = fields.choice(2, &[("R", true), ("P", false)])?;
    match (is_running, fields.optional_whole(3)?) {
        (true, Some(machine)) => Ok(TaskState::Running(MachineId(machine))),
        (false, None) => Ok(TaskState::Pending),
        (true, None) => Err(fields.problem(3, "a machine, for the state is R")),
        (false, Some(_)) => Err(fields.problem(3, "nothing, for the state is P")),
    }
}

/// A letter from A; there are as many types as letters.
fn parse_platform(fields: &Fields<'_>, column: usize) -> Result<Platform, FieldProblem> {
    match fields.text(column).map(str::as_bytes) {
        Some([letter @ b'A'..=b'Z']) => Ok(Platform(u16::from(letter - b'A'))),
        _ => Err(fields.problem(column, "a letter from A to Z")),
    }
}
