//! `cell sql --export-trace DIR`: exports all of history as the tables of the public cluster
//! traces, as CSV files with a header. History is queried page by page, so that neither side holds
//! more than a page.

use super::cluster_trace::{self, Row, TraceConverter};
use crate::commands::pagination;
use crate::connection::Cell;
use crate::failure::Failure;
use crate::format;
use cellwright_api::client::JobFilter;
use cellwright_api::types::{SqlAnswer, SqlQuery, SqlValue};
use cellwright_cell::resource::Resources;
use cellwright_sim::experiment::load::Units;
use serde::Serialize;
use std::fs::{File, create_dir_all};
use std::io::{BufWriter, Write};
use std::path::Path;

/// Rows per query.
const PAGE_ROWS: u32 = 5000;

const JOBS: &str = "select time, log_index, position, user, job, event from job_events";
const TASKS: &str = "select time, log_index, position, user, job, event, task_index, machine, \
                     reason from task_events";
const MACHINES: &str = "select time, log_index, position, machine, event from machine_events";
const EVENT_ORDER: &str = "time, log_index, position";
const USAGE: &str = "select time, millis, user, job, task_index, machine, cpu_avg, cpu_max, \
                     ram_avg, ram_max, samples, ram_limit, attempt from usage";
const USAGE_ORDER: &str = "time, user, job, task_index, attempt, machine";
/// The positions of the key columns in a usage row.
const USAGE_KEY: [usize; 6] = [0, 2, 3, 4, 12, 5];

/// A summary of the files written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TraceExport {
    pub tables: Vec<ExportedTable>,
    /// The capacity that 1.0 stands for.
    pub largest_machine: LargestMachine,
}

/// In thousandths of a core and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LargestMachine {
    pub cpu: u64,
    pub ram: u64,
}

/// One exported file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExportedTable {
    pub name: &'static str,
    pub rows: u64,
    pub file: String,
}

impl ExportedTable {
    pub fn as_text(&self) -> String {
        format!("{}: {}\n", self.file, format::pluralize(self.rows, "row"))
    }
}

impl TraceExport {
    fn new(tables: Vec<ExportedTable>, largest: Resources) -> TraceExport {
        TraceExport {
            tables,
            largest_machine: LargestMachine { cpu: largest.cpu, ram: largest.ram },
        }
    }

    pub fn scale(&self) -> String {
        let amount = |name, amount| format::amount(Units::CoresAndBytes, name, amount);
        let LargestMachine { cpu, ram } = self.largest_machine;
        format!("1.0 is the largest machine: {}, {}\n", amount("cpu", cpu), amount("ram", ram))
    }

    /// The summary as a query result, for output formats of rows.
    pub fn as_answer(&self) -> SqlAnswer {
        let text = |text: &str| SqlValue::Text(text.to_owned());
        let row = |written: &ExportedTable| {
            let rows = i64::try_from(written.rows).unwrap_or(i64::MAX);
            vec![text(written.name), SqlValue::Integer(rows), text(&written.file)]
        };
        SqlAnswer {
            columns: ["name", "rows", "file"].map(str::to_owned).to_vec(),
            rows: self.tables.iter().map(row).collect(),
            truncated: false,
            reaches_back_to: None,
            archived: false,
            index: 0,
        }
    }
}

/// Writes all tables into the folder, and reports each file when it is complete.
pub async fn export(
    cell: &Cell,
    folder: &Path,
    mut on_table: impl FnMut(&ExportedTable) -> Result<(), Failure>,
) -> Result<TraceExport, Failure> {
    let jobs = pagination::jobs(cell, &JobFilter::default()).await?;
    let machines = pagination::machines(cell).await?;
    let start_millis = first_row_time(cell).await?;
    let mut layout = TraceConverter::new(start_millis, jobs, machines);
    create_dir_all(folder).map_err(write_failure(folder))?;
    let mut tables = Vec::new();
    let mut finish_table = |table: CsvFile| {
        let written = table.finish()?;
        on_table(&written)?;
        tables.push(written);
        Ok::<(), Failure>(())
    };
    // Machines and jobs come first, because the other tables refer to both by number.
    let mut table = CsvFile::new(folder, "machine_events", &cluster_trace::MACHINE_EVENTS)?;
    let events = PagedQuery { select: MACHINES, order: EVENT_ORDER, key: &[0, 1, 2] };
    events.for_each_row(cell, |row| table.add(layout.machine_event(row))).await?;
    finish_table(table)?;
    let mut table = CsvFile::new(folder, "collection_events", &cluster_trace::COLLECTION_EVENTS)?;
    let events = PagedQuery { select: JOBS, ..events };
    events.for_each_row(cell, |row| table.add(layout.collection_event(row))).await?;
    finish_table(table)?;
    let mut table = CsvFile::new(folder, "instance_events", &cluster_trace::INSTANCE_EVENTS)?;
    let events = PagedQuery { select: TASKS, ..events };
    events.for_each_row(cell, |row| table.add(layout.instance_events(row))).await?;
    finish_table(table)?;
    let mut table = CsvFile::new(folder, "instance_usage", &cluster_trace::INSTANCE_USAGE)?;
    let usage = PagedQuery { select: USAGE, order: USAGE_ORDER, key: &USAGE_KEY };
    usage.for_each_row(cell, |row| table.add(Some(layout.usage_record(row)))).await?;
    finish_table(table)?;
    let mut table = CsvFile::new(folder, "machine_attributes", &cluster_trace::MACHINE_ATTRIBUTES)?;
    table.add(layout.attribute_rows())?;
    finish_table(table)?;
    Ok(TraceExport::new(tables, layout.largest))
}

/// The time of the first row of history.
async fn first_row_time(cell: &Cell) -> Result<i64, Failure> {
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

/// A query whose result is fetched in pages.
#[derive(Clone, Copy)]
struct PagedQuery {
    select: &'static str,
    order: &'static str,
    /// The positions of the ordering columns among the selected ones.
    key: &'static [usize],
}

impl PagedQuery {
    async fn for_each_row(
        self,
        cell: &Cell,
        mut handle_row: impl FnMut(&[SqlValue]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let PagedQuery { select, order, key } = self;
        let mut args: Vec<SqlValue> = Vec::new();
        loop {
            let marks: Vec<String> = (1..=args.len()).map(|nth| format!("?{nth}")).collect();
            let marks = marks.join(", ");
            let after = if args.is_empty() {
                String::new()
            } else {
                // The time bound lets history skip earlier days; the comparison of the full key is
                // exact.
                format!(" where time >= ?1 and ({order}) > ({marks})")
            };
            let query = format!("{select}{after} order by {order} limit {PAGE_ROWS}");
            let query = SqlQuery { query, args: args.clone(), limit: Some(PAGE_ROWS) };
            let answer = cell.client.sql(&query).await?.value;
            answer.rows.iter().try_for_each(|row| handle_row(row))?;
            let Some(last) = answer.rows.last() else { return Ok(()) };
            args = key.iter().filter_map(|nth| last.get(*nth).cloned()).collect();
        }
    }
}

/// A CSV file that is written row by row.
struct CsvFile {
    name: &'static str,
    path: String,
    file: BufWriter<File>,
    rows: u64,
}

impl CsvFile {
    fn new(folder: &Path, name: &'static str, columns: &[&str]) -> Result<CsvFile, Failure> {
        let path = folder.join(format!("{name}.csv"));
        let file = File::create_new(&path).map_err(write_failure(&path))?;
        let path = path.display().to_string();
        let mut table = CsvFile { name, path, file: BufWriter::new(file), rows: 0 };
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
        let fields: Vec<String> = row.iter().map(|text| csv_field(text)).collect();
        let written = writeln!(self.file, "{}", fields.join(","));
        written.map_err(|source| Failure::Write { what: self.path.clone(), source })
    }

    fn finish(mut self) -> Result<ExportedTable, Failure> {
        let flushed = self.file.flush();
        flushed.map_err(|source| Failure::Write { what: self.path.clone(), source })?;
        Ok(ExportedTable { name: self.name, rows: self.rows, file: self.path })
    }
}

/// Quotes a field as spreadsheets and databases expect it.
pub(super) fn csv_field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

fn write_failure(path: &Path) -> impl Fn(std::io::Error) -> Failure {
    let path_text = path.display().to_string();
    move |source| Failure::Write { what: path_text.clone(), source }
}
