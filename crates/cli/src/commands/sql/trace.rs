//! `cell sql --export-trace DIR`: all of history in the tables of the public cluster traces, as CSV
//! files with a header. History is asked page by page, so that neither side holds more than a page.

use super::layout::{self, Layout, Row};
use crate::commands::pages;
use crate::failure::Failure;
use crate::format;
use crate::reach::Cell;
use cellwright_api::client::JobFilter;
use cellwright_api::types::{SqlAnswer, SqlQuery, SqlValue};
use cellwright_cell::resource::Resources;
use cellwright_sim::experiment::load::Units;
use serde::Serialize;
use std::fs::{File, create_dir_all};
use std::io::{BufWriter, Write};
use std::path::Path;

/// Rows asked for at once.
const PAGE: u32 = 5000;

const JOBS: &str = "select time, log_index, position, user, job, event from job_events";
const TASKS: &str = "select time, log_index, position, user, job, event, task_index, machine, \
                     reason from task_events";
const MACHINES: &str = "select time, log_index, position, machine, event from machine_events";
const EVENT_ORDER: &str = "time, log_index, position";
const USAGE: &str = "select time, millis, user, job, task_index, machine, cpu_avg, cpu_max, \
                     ram_avg, ram_max, samples, ram_limit, attempt from usage";
const USAGE_ORDER: &str = "time, user, job, task_index, attempt, machine";
/// Where a row of usage has those.
const USAGE_KEY: [usize; 6] = [0, 2, 3, 4, 12, 5];

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exported {
    pub tables: Vec<Written>,
    /// What 1.0 is in them.
    pub largest_machine: Largest,
}

/// In thousandths of a core and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Largest {
    pub cpu: u64,
    pub ram: u64,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Written {
    pub name: &'static str,
    pub rows: u64,
    pub file: String,
}

impl Written {
    pub fn as_text(&self) -> String {
        format!("{}: {}\n", self.file, format::counted(self.rows, "row"))
    }
}

impl Exported {
    fn new(tables: Vec<Written>, largest: Resources) -> Exported {
        Exported { tables, largest_machine: Largest { cpu: largest.cpu, ram: largest.ram } }
    }

    pub fn scale(&self) -> String {
        let amount = |name, amount| format::amount(Units::CoresAndBytes, name, amount);
        let Largest { cpu, ram } = self.largest_machine;
        format!("1.0 is the largest machine: {}, {}\n", amount("cpu", cpu), amount("ram", ram))
    }

    /// As if it had been asked for, for the forms that are of rows.
    pub fn as_answer(&self) -> SqlAnswer {
        let text = |text: &str| SqlValue::Text(text.to_owned());
        let row = |written: &Written| {
            let rows = i64::try_from(written.rows).unwrap_or(i64::MAX);
            vec![text(written.name), SqlValue::Integer(rows), text(&written.file)]
        };
        SqlAnswer {
            columns: ["name", "rows", "file"].map(str::to_owned).to_vec(),
            rows: self.tables.iter().map(row).collect(),
            truncated: false,
            reaches_back_to: None,
            index: 0,
        }
    }
}

/// Writes everything into the folder, and tells of each file as it is done.
pub async fn export(
    cell: &Cell,
    folder: &Path,
    mut told: impl FnMut(&Written) -> Result<(), Failure>,
) -> Result<Exported, Failure> {
    let jobs = pages::jobs(cell, &JobFilter::default()).await?;
    let machines = pages::machines(cell).await?;
    let began = first(cell).await?;
    let mut layout = Layout::new(began, jobs, machines);
    create_dir_all(folder).map_err(failed(folder))?;
    let mut tables = Vec::new();
    let mut end = |table: Table| {
        let written = table.end()?;
        told(&written)?;
        tables.push(written);
        Ok::<(), Failure>(())
    };
    // Machines and jobs first: the rest speaks of both by number.
    let mut table = Table::new(folder, "machine_events", &layout::MACHINE_EVENTS)?;
    let events = Asked { select: MACHINES, order: EVENT_ORDER, key: &[0, 1, 2] };
    events.each(cell, |row| table.add(layout.machine(row))).await?;
    end(table)?;
    let mut table = Table::new(folder, "collection_events", &layout::COLLECTION_EVENTS)?;
    let events = Asked { select: JOBS, ..events };
    events.each(cell, |row| table.add(layout.collection(row))).await?;
    end(table)?;
    let mut table = Table::new(folder, "instance_events", &layout::INSTANCE_EVENTS)?;
    let events = Asked { select: TASKS, ..events };
    events.each(cell, |row| table.add(layout.instance(row))).await?;
    end(table)?;
    let mut table = Table::new(folder, "instance_usage", &layout::INSTANCE_USAGE)?;
    let usage = Asked { select: USAGE, order: USAGE_ORDER, key: &USAGE_KEY };
    usage.each(cell, |row| table.add(Some(layout.usage(row)))).await?;
    end(table)?;
    let mut table = Table::new(folder, "machine_attributes", &layout::MACHINE_ATTRIBUTES)?;
    table.add(layout.attributes())?;
    end(table)?;
    Ok(Exported::new(tables, layout.largest))
}

/// The time of the first row there is.
async fn first(cell: &Cell) -> Result<i64, Failure> {
    let query = "select min(time) from (select min(time) as time from job_events \
                 union all select min(time) from task_events \
                 union all select min(time) from machine_events \
                 union all select min(time) from usage)";
    let query = SqlQuery { query: query.into(), args: Vec::new(), limit: None };
    let answer = cell.client.sql(&query).await?.value;
    match answer.rows.first().and_then(|row| row.first()) {
        Some(SqlValue::Integer(time)) => Ok(*time),
        _ => Ok(0),
    }
}

/// A question whose answer comes in pages.
#[derive(Clone, Copy)]
struct Asked {
    select: &'static str,
    order: &'static str,
    /// Where the columns of the order are among those that are selected.
    key: &'static [usize],
}

impl Asked {
    async fn each(
        self,
        cell: &Cell,
        mut take: impl FnMut(&[SqlValue]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Asked { select, order, key } = self;
        let mut args: Vec<SqlValue> = Vec::new();
        loop {
            let marks: Vec<String> = (1..=args.len()).map(|nth| format!("?{nth}")).collect();
            let marks = marks.join(", ");
            let after = match args.is_empty() {
                true => String::new(),
                // The first alone spares the days before; the whole place is exact.
                false => format!(" where time >= ?1 and ({order}) > ({marks})"),
            };
            let query = format!("{select}{after} order by {order} limit {PAGE}");
            let query = SqlQuery { query, args: args.clone(), limit: Some(PAGE) };
            let answer = cell.client.sql(&query).await?.value;
            answer.rows.iter().try_for_each(|row| take(row))?;
            let Some(last) = answer.rows.last() else { return Ok(()) };
            args = key.iter().filter_map(|nth| last.get(*nth).cloned()).collect();
        }
    }
}

/// A file that grows.
struct Table {
    name: &'static str,
    path: String,
    file: BufWriter<File>,
    rows: u64,
}

impl Table {
    fn new(folder: &Path, name: &'static str, columns: &[&str]) -> Result<Table, Failure> {
        let path = folder.join(format!("{name}.csv"));
        let file = File::create_new(&path).map_err(failed(&path))?;
        let path = path.display().to_string();
        let mut table = Table { name, path, file: BufWriter::new(file), rows: 0 };
        table.line(&columns.iter().map(|column| (*column).to_owned()).collect::<Row>())?;
        Ok(table)
    }

    fn add(&mut self, rows: impl IntoIterator<Item = Row>) -> Result<(), Failure> {
        rows.into_iter().try_for_each(|row| {
            self.rows += 1;
            self.line(&row)
        })
    }

    fn line(&mut self, row: &[String]) -> Result<(), Failure> {
        let fields: Vec<String> = row.iter().map(|text| field(text)).collect();
        let written = writeln!(self.file, "{}", fields.join(","));
        written.map_err(|source| Failure::Write { what: self.path.clone(), source })
    }

    fn end(mut self) -> Result<Written, Failure> {
        let flushed = self.file.flush();
        flushed.map_err(|source| Failure::Write { what: self.path.clone(), source })?;
        Ok(Written { name: self.name, rows: self.rows, file: self.path })
    }
}

/// As spreadsheets and databases take it.
pub(super) fn field(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Failure {
    let what = path.display().to_string();
    move |source| Failure::Write { what: what.clone(), source }
}
