//! `cell events`: past events, oldest first, and with --follow new ones.
//!
//! All events come from history, so that the master filters them, as far back as history reaches.
//! The event feed only signals that there is more to query: an event of the feed names rows, which
//! cannot be compared with the name of a machine here.

use super::Success;
use super::select::{self, JobScope};
use super::sql::history_start_text;
use super::target::{TargetArg, parse_target};
use crate::args::OutputArgs;
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::format;
use crate::output::{ItemStream, Output, print, print_notice};
use crate::runtime::block_on;
use crate::table::wrap_for_terminal;
use cellwright_api::types::{SqlAnswer, SqlQuery, SqlValue};
use cellwright_cell::name::JobKey;
use cellwright_cell::time::{Span, Time};
use cellwright_cell::words::{self, CodedEvent};
use cellwright_gateway::config::parse_duration;
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Events per query.
const PAGE_ROWS: u32 = 5000;
const COLUMNS: [&str; 13] = [
    "time",
    "log_index",
    "position",
    "kind",
    "object",
    "event",
    "machine",
    "reason",
    "exit_class",
    "exit_code",
    "detail",
    "actor",
    "day",
];

/// The kinds of objects that events are about.
const KINDS: [&str; 10] =
    ["task", "job", "machine", "user", "resource", "cron", "scaling", "token", "package", "cell"];

/// The maximum number of jobs selected by labels: a query takes a hundred values, two for each job.
const MAX_JOBS: usize = 40;

const EXAMPLES: &str = "\
Examples:
  cell events
  cell events dev/hello --since 12h
  cell events -n 20
  cell events -l team=search
  cell events --machine m1 --kind task
  cell events --follow -o jsonl";

/// What happened in the cell
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct EventsArgs {
    /// Only of this job and its tasks
    #[arg(value_name = "JOB", value_parser = parse_target,
          conflicts_with_all = ["job", "selector"])]
    named: Option<TargetArg>,

    /// The same
    #[arg(long, value_name = "JOB", value_parser = parse_target)]
    job: Option<TargetArg>,

    /// Only of the jobs whose labels match now, at most 40: a=b, a!=b, a, !a, separated by commas
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "job")]
    selector: Option<String>,

    /// Only of this user's jobs
    #[arg(long, value_name = "USER")]
    user: Option<String>,

    /// Only on or of this machine
    #[arg(long, value_name = "MACHINE")]
    machine: Option<String>,

    /// Only of this kind
    #[arg(long, value_name = "KIND", value_parser = KINDS)]
    kind: Option<String>,

    /// Only the last hours or days, such as 90m, 12h or 7d
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    since: Option<Span>,

    /// Only the last N
    #[arg(short = 'n', long = "last", value_name = "N", conflicts_with = "after",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(PAGE_ROWS)))]
    most: Option<u32>,

    /// Go on with what happens from now on
    #[arg(long, short)]
    follow: bool,

    /// Only what came after this cursor, as printed with -o json
    #[arg(long, value_name = "CURSOR", value_parser = parse_cursor)]
    after: Option<(u64, u64)>,

    #[command(flatten)]
    output: OutputArgs,
}

fn parse_since(text: &str) -> Result<Span, String> {
    parse_duration(text)
        .ok_or_else(|| "allowed: a whole number with s, m, h or d, as 12h".to_owned())
}

/// Parses `index-position`, or a log index whose entry has been read completely.
fn parse_cursor(text: &str) -> Result<(u64, u64), String> {
    let (index, position) = text.split_once('-').unwrap_or((text, "4294967295"));
    match (index.parse(), position.parse::<u32>()) {
        (Ok(index), Ok(position)) => Ok((index, u64::from(position))),
        _ => Err("allowed: a cursor printed with -o json, or a log index".to_owned()),
    }
}

impl EventsArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        block_on(self.show(&cell))?;
        Ok(Success::Done)
    }

    async fn show(&self, cell: &Cell) -> Result<(), Failure> {
        let jobs = self.jobs(cell).await?;
        let mut event_query =
            EventQuery { args: self, jobs, items: ItemStream::new(self.follow)?, any_found: false };
        let mut last_index = match self.most {
            Some(most) => event_query.show_last(cell, most).await?,
            None => event_query.show_after(cell, self.after, true).await?,
        };
        if !self.follow {
            return match self.output.output {
                Output::Table => {
                    if !event_query.any_found {
                        print_notice("nothing of what was asked for has happened");
                    }
                    Ok(())
                }
                Output::Json => event_query.items.finish(),
            };
        }
        // The feed signals that something happened; history is queried with the same filter as
        // before.
        let mut watch = cell.client.watch_events(Some(format!("{last_index}-{LAST_POSITION}")));
        loop {
            let Some(event) = watch.next().await?.data else { continue };
            // History may lag behind the feed for a moment; the master waits for it when it is
            // queried.
            while event.index > last_index {
                last_index = event_query
                    .show_after(cell, Some((last_index, LAST_POSITION)), false)
                    .await?
                    .max(last_index);
            }
        }
    }

    /// The jobs to filter by; none: no filter.
    async fn jobs(&self, cell: &Cell) -> Result<Vec<JobKey>, Failure> {
        if let Some(target) = self.named.as_ref().or(self.job.as_ref()) {
            return Ok(vec![target.resolve(cell).await?.job]);
        }
        let Some(selector) = &self.selector else { return Ok(Vec::new()) };
        let jobs = select::select_jobs(cell, selector, JobScope::All).await?;
        if jobs.len() > MAX_JOBS {
            Err(too_many(selector, jobs.len()))
        } else {
            Ok(jobs.iter().map(select::job_key).collect())
        }
    }
}

/// The failure for more jobs than one query of history can name.
fn too_many(selector: &str, number: usize) -> Failure {
    Failure::Usage {
        message: format!(
            "{number} jobs have labels {selector}; allowed: labels of at most {MAX_JOBS} jobs"
        ),
        next: "more labels, or one job: cell events JOB".into(),
    }
}

/// The position that stands for an entry read completely.
const LAST_POSITION: u64 = u32::MAX as u64;

/// A query for events, with resolved names.
struct EventQuery<'a> {
    args: &'a EventsArgs,
    /// Events of any of these jobs; none: of all objects.
    jobs: Vec<JobKey>,
    items: ItemStream,
    any_found: bool,
}

impl EventQuery<'_> {
    fn show(&mut self, event: &Event) -> Result<(), Failure> {
        self.any_found = true;
        match self.args.output.output {
            Output::Table => {
                let first = format!("{}  ", format::utc(event.time()));
                print(&wrap_for_terminal(
                    &first,
                    &" ".repeat(first.len()),
                    &event.text_with_actor(),
                ))
            }
            Output::Json => self.items.add(&event.0),
        }
    }

    /// Prints all events after a position, page by page; returns the log index that this reaches.
    async fn show_after(
        &mut self,
        cell: &Cell,
        after: Option<(u64, u64)>,
        first: bool,
    ) -> Result<u64, Failure> {
        let (mut last, mut reached) = (None, 0);
        loop {
            let answer = cell.client.sql(&self.query(after, last)).await?.value;
            if first && last.is_none() && self.args.output.output == Output::Table {
                crate::output::note!("{}", history_start_text(answer.reaches_back_to));
            }
            // Events that arrive while pages are read are on the next page, or in the feed.
            reached = if reached == 0 { answer.index } else { reached };
            for row in &answer.rows {
                let event = Event::from_row(&answer, row);
                last = Some((event.time(), event.position()));
                reached = reached.max(event.position().0);
                self.show(&event)?;
            }
            if answer.rows.is_empty() {
                return Ok(reached);
            }
        }
    }

    /// Prints the newest events, oldest first; returns the log index that this reaches.
    async fn show_last(&mut self, cell: &Cell, most: u32) -> Result<u64, Failure> {
        let answer = cell.client.sql(&self.newest(most)).await?.value;
        if self.args.output.output == Output::Table {
            crate::output::note!("{}", history_start_text(answer.reaches_back_to));
        }
        let mut reached = answer.index;
        for row in answer.rows.iter().rev() {
            let event = Event::from_row(&answer, row);
            reached = reached.max(event.position().0);
            self.show(&event)?;
        }
        Ok(reached)
    }

    /// The query for the newest events, newest first.
    fn newest(&self, most: u32) -> SqlQuery {
        let (terms, args) = self.terms(None, None);
        let query = format!(
            "select {} from events where {terms} \
             order by time desc, log_index desc, position desc limit {most}",
            COLUMNS.join(", ")
        );
        SqlQuery { query, args, limit: Some(most) }
    }

    /// The query for the next page.
    fn query(&self, after: Option<(u64, u64)>, last: Option<(Time, (u64, u64))>) -> SqlQuery {
        let (terms, args) = self.terms(after, last);
        let query = format!(
            "select {} from events where {terms} order by time, log_index, position \
             limit {PAGE_ROWS}",
            COLUMNS.join(", ")
        );
        SqlQuery { query, args, limit: Some(PAGE_ROWS) }
    }

    /// What was asked for as a condition with its arguments; `last`: only what came after it.
    fn terms(
        &self,
        after: Option<(u64, u64)>,
        last: Option<(Time, (u64, u64))>,
    ) -> (String, Vec<SqlValue>) {
        let (mut terms, mut args) = (vec!["1".to_owned()], Vec::new());
        let mut push_term = |sql: &str, values: Vec<SqlValue>| {
            terms.push(sql.to_owned());
            args.extend(values);
        };
        let text = |text: &str| SqlValue::Text(text.to_owned());
        let number = |number: u64| SqlValue::Integer(i64::try_from(number).unwrap_or(i64::MAX));
        let EventsArgs { user, machine, kind, since, .. } = self.args;
        if !self.jobs.is_empty() {
            let each = vec!["user = ? and job = ?"; self.jobs.len()].join(" or ");
            let names =
                self.jobs.iter().flat_map(|key| [text(key.user.as_str()), text(key.job.as_str())]);
            push_term(&format!("({each})"), names.collect());
        }
        if let Some(user) = user {
            push_term("user = ?", vec![text(user)]);
        }
        if let Some(machine) = machine {
            push_term("machine = ?", vec![text(machine)]);
        }
        if let Some(kind) = kind {
            push_term("kind = ?", vec![text(kind)]);
        }
        if let Some(since) = since {
            let now = "cast(unixepoch('subsec') * 1000 as integer)";
            push_term(&format!("time >= {now} - ?"), vec![number(since.0)]);
        }
        if let Some((index, position)) = after {
            push_term("(log_index, position) > (?, ?)", vec![number(index), number(position)]);
        }
        if let Some((time, (index, position))) = last {
            let values = vec![number(time.0), number(time.0), number(index), number(position)];
            push_term("time >= ? and (time, log_index, position) > (?, ?, ?)", values);
        }
        (terms.join(" and "), args)
    }
}

/// The newest events that match a condition, oldest first, and the time at which history begins.
pub async fn recent_events(
    cell: &Cell,
    condition: &str,
    args: Vec<SqlValue>,
    most: u32,
) -> Result<(Vec<Event>, Option<Time>), Failure> {
    let query = format!(
        "select {} from events where {condition} \
         order by time desc, log_index desc, position desc limit {most}",
        COLUMNS.join(", "),
    );
    let answer = cell.client.sql(&SqlQuery { query, args, limit: Some(most) }).await?.value;
    let events = answer.rows.iter().rev().map(|row| Event::from_row(&answer, row)).collect();
    Ok((events, answer.reaches_back_to))
}

/// A row of history, by column.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct Event(Map<String, Value>);

impl Event {
    fn from_row(answer: &SqlAnswer, row: &[SqlValue]) -> Event {
        let value = |value: &SqlValue| serde_json::to_value(value).unwrap_or_default();
        let pairs = answer.columns.iter().cloned().zip(row.iter().map(value));
        let mut event = Event(pairs.collect());
        let (index, position) = event.position();
        event.0.insert("cursor".into(), json!(format!("{index}-{position}")));
        event.0.insert("text".into(), json!(event.text()));
        event
    }

    fn number_column(&self, column: &str) -> u64 {
        self.0.get(column).and_then(Value::as_u64).unwrap_or(0)
    }

    fn text_column(&self, column: &str) -> Option<&str> {
        self.0.get(column).and_then(Value::as_str)
    }

    fn position(&self) -> (u64, u64) {
        (self.number_column("log_index"), self.number_column("position"))
    }

    pub fn time(&self) -> Time {
        Time(self.number_column("time"))
    }

    /// The same with the actor: `ann/web/0 failed on m3: exited with code 1 [agent:m3]`.
    fn text_with_actor(&self) -> String {
        let actor = self.text_column("actor").map(|actor| format!(" [{actor}]"));
        format!("{}{}", self.text(), actor.unwrap_or_default())
    }

    /// `ann/web/0 failed on m3: exited with code 1`.
    pub fn text(&self) -> String {
        words::event_coded(&CodedEvent {
            object: self.text_column("object").unwrap_or(""),
            event: self.text_column("event").unwrap_or(""),
            machine: self.text_column("machine"),
            reason: self.text_column("reason").unwrap_or(""),
            exit_class: self.text_column("exit_class"),
            exit_code: self.0.get("exit_code").and_then(Value::as_i64),
            detail: self.text_column("detail"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_reads_as_a_sentence() {
        let event = |value: Value| Event(value.as_object().unwrap().clone()).text();
        let text = event(json!({
            "object": "ann/web/0", "event": "failed", "machine": "m3", "reason": "exited",
            "exit_class": "code", "exit_code": 1, "detail": null,
        }));
        assert_eq!(text, "ann/web/0 failed on m3: exited with code 1");
        let text = event(json!({
            "object": "ann/web/0", "event": "failed-for-good", "machine": "m3",
            "reason": "too-many-failures", "exit_class": "code", "exit_code": 3,
        }));
        let want = "ann/web/0 failed for good on m3: exited with code 3, \
                    its job allows no more failures";
        assert_eq!(text, want);
        let text = event(json!({
            "object": "ann/web/0", "event": "stopping", "machine": "m3", "reason": "preempted",
            "detail": "by bob/prod/1",
        }));
        assert_eq!(text, "ann/web/0 stopping on m3: preempted by bob/prod/1");
        let text = event(json!({
            "object": "ann/join", "event": "never-ran", "reason": "dependency-failed",
            "detail": "ann/right",
        }));
        assert_eq!(text, "ann/join never ran: a job it needed did not succeed (ann/right)");
        let text = event(json!({
            "object": "m3", "event": "drain-started", "machine": "m3", "reason": "requested",
        }));
        assert_eq!(text, "m3 drain started: requested");
    }

    #[test]
    fn the_kinds_are_those_that_history_knows() {
        let mut tables = cellwright_history::tables::all_tables().into_iter();
        let events = tables.find(|table| table.name == "events").unwrap();
        let kind = events.columns.iter().find(|column| column.name == "kind").unwrap();
        let (most, last) = (KINDS[..9].join(", "), KINDS[9]);
        assert_eq!(kind.description, format!("{most} or {last}."));
    }

    #[test]
    fn the_help_says_of_how_many_jobs_it_tells() {
        let command = EventsArgs::augment_args(clap::Command::new("events"));
        let mut labels = command.get_arguments().filter(|arg| arg.get_short() == Some('l'));
        let help = labels.next().and_then(clap::Arg::get_help).unwrap().to_string();
        assert!(help.contains(&format!("at most {MAX_JOBS}:")), "{help}");
    }

    #[test]
    fn cursors_are_read_as_they_are_printed() {
        assert_eq!(parse_cursor("7-3"), Ok((7, 3)));
        assert_eq!(parse_cursor("7"), Ok((7, u64::from(u32::MAX))));
        assert!(parse_cursor("x").is_err() && parse_cursor("7-").is_err());
    }
}
