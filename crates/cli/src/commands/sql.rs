//! `cell sql`: one SELECT over events and usage, sent to a master or run on a history folder that
//! no master serves.

mod cluster_trace;
mod trace_export;

use super::Success;
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::output::{print, print_json, print_notice};
use crate::progress::StatusLine;
use crate::runtime::block_on;
use crate::{format, table};
use cellwright_api::types::{DEFAULT_SQL_ROWS, MAX_SQL_ROWS, SqlAnswer, SqlQuery, SqlValue};
use cellwright_cell::time::Time;
use cellwright_history::{
    HistoryReader, QueryError, QueryLimits, Value, exists, sql_functions, tables,
};
use cellwright_master::history::folder;
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::timeout;

/// Longer than the limit of a query on a master, because no other caller waits for this one.
const OFFLINE_TIMEOUT: Duration = Duration::from_secs(90);
const SECOND: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "\
Examples:
  cell sql --tables
  cell sql \"select user, day, sum(count) from task_events_daily group by 1, 2\"
  cell sql \"select * from task_events where event = ?\" --arg failed
  cell sql \"select day, sum(cpu_used) / 3600000 from usage_daily group by 1\" \\
    -o csv
  cell sql \"select user, job, tasks, pending from jobs_now\"
  cell sql \"select job, percentile(cpu_avg, 95, millis) from usage group by 1\"
  cell sql --export-trace DIR";

/// Ask the history of the cell: one SELECT
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SqlArgs {
    /// The query, in SQLite's dialect and in quotes
    #[arg(value_name = "SELECT", required_unless_present_any = ["tables", "export_trace"])]
    query: Vec<String>,

    /// Value of the next `?` in the query; numbers are numbers
    #[arg(long = "arg", value_name = "VALUE")]
    args: Vec<String>,

    /// Most rows
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SQL_ROWS,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SQL_ROWS)))]
    limit: u32,

    /// Describe the tables instead
    #[arg(long, conflicts_with = "query")]
    tables: bool,

    /// Write all of history into this folder as CSV files, in the tables of the public cluster
    /// traces of 2019; -o says how to tell what was written
    #[arg(long, value_name = "DIR", conflicts_with_all = ["query", "tables", "data"])]
    export_trace: Option<PathBuf>,

    /// Read the data directory of a master that does not run
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// How to print the rows
    #[arg(long, short, value_enum, default_value = "table")]
    output: SqlOutput,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SqlOutput {
    /// For people.
    Table,
    /// The same: a table of rows is as wide as they are.
    Wide,
    /// The whole answer as one object.
    Json,
    /// The whole answer as one object.
    Yaml,
    /// The first column alone, one a line.
    Name,
    /// One object a row.
    Jsonl,
    /// Comma-separated, with a header.
    Csv,
}

impl SqlArgs {
    /// The query as one shell word. Several words are not joined: without quotes, the shell has
    /// already expanded `*`, `>` and brackets.
    fn single_query(&self) -> Result<String, Failure> {
        match &self.query[..] {
            [] => Ok(String::new()),
            [one] => Ok(one.clone()),
            several => Err(Failure::Usage {
                message: format!("the query is {} words; allowed: one, in quotes", several.len()),
                next: format!("cell sql \"{}\"", several.join(" ")),
            }),
        }
    }

    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        if self.tables {
            print(&describe_tables())?;
            return Ok(Success::Done);
        }
        if let Some(folder) = &self.export_trace {
            self.export(&connection.cell()?, folder)?;
            return Ok(Success::Done);
        }
        let query = SqlQuery {
            query: self.single_query()?,
            args: self.args.iter().map(|text| parse_value(text)).collect(),
            limit: Some(self.limit),
        };
        let answer = match &self.data {
            Some(data) => query_folder(data, &query)?,
            None => query_master(&connection.cell()?, &query)?,
        };
        self.show(&answer)?;
        Ok(Success::Done)
    }

    fn export(&self, cell: &Cell, folder: &Path) -> Result<(), Failure> {
        let is_table = matches!(self.output, SqlOutput::Table | SqlOutput::Wide);
        let on_table = |written: &trace_export::ExportedTable| {
            if is_table { print(&written.as_text()) } else { Ok(()) }
        };
        let exported = block_on(trace_export::export(cell, folder, on_table))?;
        match self.output {
            SqlOutput::Table | SqlOutput::Wide => print(&exported.scale()),
            SqlOutput::Json | SqlOutput::Yaml => print_json(&exported),
            SqlOutput::Name => print(&first_column(&exported.as_answer())),
            SqlOutput::Jsonl => print(&json_lines(&exported.as_answer())?),
            SqlOutput::Csv => print(&csv(&exported.as_answer())),
        }
    }

    fn show(&self, answer: &SqlAnswer) -> Result<(), Failure> {
        match self.output {
            SqlOutput::Json | SqlOutput::Yaml => return print_json(answer),
            SqlOutput::Name => print(&first_column(answer))?,
            SqlOutput::Jsonl => print(&json_lines(answer)?)?,
            SqlOutput::Csv => print(&csv(answer))?,
            SqlOutput::Table | SqlOutput::Wide => {
                let header: Vec<&str> = answer.columns.iter().map(String::as_str).collect();
                let row = |row: &Vec<SqlValue>| row.iter().map(value_text).collect();
                let rows: Vec<Vec<String>> = answer.rows.iter().map(row).collect();
                if rows.is_empty() {
                    print_notice("no rows")
                } else {
                    print(&table::render_unwrapped(&header, &rows))?
                }
            }
        }
        if answer.truncated {
            let rows = format::pluralize(answer.rows.len() as u64, "row");
            crate::output::note!("there is more than these {rows}: raise --limit, or ask for less");
        }
        if matches!(self.output, SqlOutput::Table | SqlOutput::Wide) {
            let older = if answer.archived { "; days before: cell archive ls history" } else { "" };
            crate::output::note!("{}{older}", history_start_text(answer.reaches_back_to));
        }
        Ok(())
    }
}

/// Sends the query to a master, which cancels it when the caller disconnects.
fn query_master(cell: &Cell, query: &SqlQuery) -> Result<SqlAnswer, Failure> {
    let mut status_line = None;
    let on_tick = |seconds: u64| {
        let status_line = status_line.get_or_insert_with(StatusLine::if_terminal);
        let text = format!("the query runs for {seconds} s; ctrl-c ends it");
        status_line.iter_mut().for_each(|line| line.update(vec![text.clone()]));
    };
    block_on(run_with_ticks(async { Ok(cell.client.sql(query).await?.value) }, on_tick))
}

/// Runs the work, and calls `on_second` after every second with the number of seconds so far.
async fn run_with_ticks<T>(work: impl Future<Output = T>, mut on_second: impl FnMut(u64)) -> T {
    let mut work = std::pin::pin!(work);
    let mut seconds = 0;
    loop {
        if let Ok(done) = timeout(SECOND, &mut work).await {
            return done;
        }
        seconds += 1;
        on_second(seconds);
    }
}

/// The time at which history begins, for people.
pub fn history_start_text(since: Option<Time>) -> String {
    match since {
        Some(since) => format!("events since {}", format::utc(since)),
        None => "no events yet".to_owned(),
    }
}

/// Parses an integer or a float where the text is one, else a string.
fn parse_value(text: &str) -> SqlValue {
    match (text.parse::<i64>(), text.parse::<f64>()) {
        (Ok(number), _) => SqlValue::Integer(number),
        (_, Ok(number)) if number.is_finite() => SqlValue::Real(number),
        _ => SqlValue::Text(text.to_owned()),
    }
}

fn value_text(value: &SqlValue) -> String {
    match value {
        SqlValue::Null => "-".to_owned(),
        SqlValue::Integer(number) => number.to_string(),
        SqlValue::Real(number) => number.to_string(),
        SqlValue::Text(text) => text.clone(),
    }
}

/// The first column as lines. Rows without a value there are left out: an empty line would be taken
/// for a name.
fn first_column(answer: &SqlAnswer) -> String {
    let first = answer.rows.iter().filter_map(|row| row.first());
    let named = first.filter(|value| **value != SqlValue::Null);
    named.map(|value| value_text(value) + "\n").collect()
}

fn json_lines(answer: &SqlAnswer) -> Result<String, Failure> {
    let mut out = String::new();
    for row in &answer.rows {
        let pairs = answer.columns.iter().cloned().zip(row.iter().map(value_json));
        let object: serde_json::Map<String, serde_json::Value> = pairs.collect();
        let line = serde_json::to_string(&object)
            .map_err(|error| Failure::from_error(&error, "the same without -o jsonl"))?;
        out.push_str(&line);
        out.push('\n');
    }
    Ok(out)
}

fn value_json(value: &SqlValue) -> serde_json::Value {
    match value {
        SqlValue::Null => serde_json::Value::Null,
        SqlValue::Integer(number) => (*number).into(),
        SqlValue::Real(number) => (*number).into(),
        SqlValue::Text(text) => text.as_str().into(),
    }
}

fn csv(answer: &SqlAnswer) -> String {
    let cell = |value: &SqlValue| match value {
        SqlValue::Null => String::new(),
        other => trace_export::csv_field(&value_text(other)),
    };
    let header: Vec<String> =
        answer.columns.iter().map(|name| trace_export::csv_field(name)).collect();
    let mut out = header.join(",") + "\n";
    for row in &answer.rows {
        let cells: Vec<String> = row.iter().map(cell).collect();
        out.push_str(&(cells.join(",") + "\n"));
    }
    out
}

fn query_folder(data: &Path, query: &SqlQuery) -> Result<SqlAnswer, Failure> {
    let folder = if exists(data) { data.to_owned() } else { folder(data) };
    if !exists(&folder) {
        return Err(Failure::Usage {
            message: format!("{} holds no history", data.display()),
            next: "name the data directory of a master: --data /var/lib/cellwright/master".into(),
        });
    }
    let args: Vec<Value> = query.args.iter().map(to_history_value).collect();
    let rows = usize::try_from(query.limit.unwrap_or(DEFAULT_SQL_ROWS)).unwrap_or(usize::MAX);
    let bounds =
        QueryLimits { max_time: OFFLINE_TIMEOUT, max_rows: rows, ..QueryLimits::default() };
    let answer =
        HistoryReader::new(&folder).query(&query.query, &args, bounds).map_err(|error| {
            let next = match error {
                QueryError::Sql(_) | QueryError::NotAllowed(_) => {
                    "see the tables: cell sql --tables"
                }
                QueryError::TooSlow(_) => "ask for fewer days, or ask the daily sums",
                QueryError::Broken(_) | QueryError::Stopped => {
                    "look whether a master still uses the folder"
                }
            };
            Failure::from_error(&error, next)
        })?;
    let row = |row: Vec<Value>| row.into_iter().map(from_history_value).collect();
    Ok(SqlAnswer {
        columns: answer.columns,
        rows: answer.rows.into_iter().map(row).collect(),
        truncated: answer.truncated,
        reaches_back_to: answer.reaches_back_to,
        archived: false,
        index: 0,
    })
}

fn to_history_value(value: &SqlValue) -> Value {
    match value {
        SqlValue::Null => Value::Null,
        SqlValue::Integer(number) => Value::Integer(*number),
        SqlValue::Real(number) => Value::Real(*number),
        SqlValue::Text(text) => Value::Text(text.clone()),
    }
}

fn from_history_value(value: Value) -> SqlValue {
    match value {
        Value::Null => SqlValue::Null,
        Value::Integer(number) => SqlValue::Integer(number),
        Value::Real(number) => SqlValue::Real(number),
        Value::Text(text) => SqlValue::Text(text),
    }
}

fn describe_tables() -> String {
    let mut out = String::new();
    for known in tables::all_tables() {
        out.push_str(&table::wrap(&format!("{}: ", known.name), "  ", known.description));
        for column in known.columns {
            let kind = column.kind.as_str().to_lowercase();
            let rule = if column.required { "" } else { "; may be absent" };
            let first = format!("  {:14} {kind:8} ", column.name);
            let text = match column.description.strip_suffix('.') {
                Some(about) if !about.ends_with('.') => format!("{about}{rule}."),
                _ => format!("{}{rule}", column.description),
            };
            out.push_str(&table::wrap(&first, &" ".repeat(first.len()), &text));
        }
        out.push('\n');
    }
    out.push_str("functions beside SQLite's own:\n");
    for (call, about) in sql_functions::FUNCTIONS {
        out.push_str(&table::wrap(&format!("  {call}: "), "    ", about));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_answer() -> SqlAnswer {
        let text = |text: &str| SqlValue::Text(text.to_owned());
        SqlAnswer {
            columns: vec!["user".into(), "n".into()],
            rows: vec![
                vec![text("ann"), SqlValue::Integer(7)],
                vec![text("a \"b\", c"), SqlValue::Null],
            ],
            truncated: false,
            reaches_back_to: None,
            archived: false,
            index: 1,
        }
    }

    #[test]
    fn rows_are_written_for_spreadsheets_and_for_programs() {
        assert_eq!(csv(&sample_answer()), "user,n\nann,7\n\"a \"\"b\"\", c\",\n");
        let text = json_lines(&sample_answer()).unwrap();
        assert_eq!(text.lines().next(), Some(r#"{"user":"ann","n":7}"#));
    }

    #[test]
    fn a_query_without_quotes_is_told_of_them() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: SqlArgs,
        }
        let read = |words: &[&str]| {
            let line: Line = clap::Parser::try_parse_from([&["sql"], words].concat()).unwrap();
            line.args.single_query()
        };
        assert_eq!(read(&["select 1"]).unwrap(), "select 1");
        match read(&["select", "count", "from", "events", "--limit", "3"]) {
            Err(Failure::Usage { message, next }) => {
                assert_eq!(message, "the query is 4 words; allowed: one, in quotes");
                assert_eq!(next, "cell sql \"select count from events\"");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_form_of_other_commands_is_one_of_a_query_too() {
        for form in crate::output::OUTPUT_FORMATS {
            assert!(SqlOutput::from_str(form, false).is_ok(), "{form}");
        }
        let mut answer = sample_answer();
        answer.rows.push(vec![SqlValue::Null, SqlValue::Integer(1)]);
        assert_eq!(first_column(&answer), "ann\na \"b\", c\n");
    }

    #[test]
    fn a_query_that_takes_long_is_told_about() {
        let (notify, notified) = tokio::sync::oneshot::channel();
        let mut notify = Some(notify);
        let first = |seconds| {
            if let Some(notify) = notify.take() {
                notify.send(seconds).unwrap();
            }
        };
        let waited = block_on(run_with_ticks(async { Ok(notified.await) }, first));
        assert!(matches!(waited, Ok(Ok(1))), "the work went on until something was told");
    }

    #[test]
    fn arguments_that_read_as_numbers_are_numbers() {
        assert_eq!(parse_value("7"), SqlValue::Integer(7));
        assert_eq!(parse_value("0.5"), SqlValue::Real(0.5));
        assert_eq!(parse_value("inf"), SqlValue::Text("inf".into()));
        assert_eq!(parse_value("2026-11-15"), SqlValue::Text("2026-11-15".into()));
    }

    #[test]
    fn every_table_is_described() {
        let text = describe_tables();
        for known in tables::all_tables() {
            assert!(text.contains(&format!("{}: ", known.name)));
        }
        assert!(text.lines().all(|line| line.chars().count() <= table::WIDTH), "{text}");
        let stops = text.replace("...", "");
        assert!(!stops.contains(".,") && !stops.contains(".;"), "{text}");
    }
}
