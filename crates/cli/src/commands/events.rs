//! `cell events`: what happened, oldest first, and with --follow what happens.
//!
//! The past comes from history, so that what is wanted is chosen by the master and reaches back as
//! far as that; the present comes from the feed, from the last event shown on.

use super::Success;
use super::sql::{PATIENCE, reach_back};
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print, print_item};
use crate::reach::{Cell, Reach};
use crate::server::ask;
use cellwright_api::types::{EventView, SqlAnswer, SqlQuery, SqlValue};
use cellwright_cell::time::{Span, Time};
use cellwright_master::config::duration;
use clap::Args;
use serde_json::{Map, Value, json};

/// Events asked for at once.
const PAGE: u32 = 5000;
const COLUMNS: [&str; 12] = [
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
    "day",
];

/// What happened in the cell
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Only of this job and its tasks, as USER/JOB
    #[arg(long, value_name = "USER/JOB")]
    job: Option<String>,

    /// Only of this user's jobs
    #[arg(long, value_name = "USER")]
    user: Option<String>,

    /// Only on or of this machine
    #[arg(long, value_name = "MACHINE")]
    machine: Option<String>,

    /// Only of this kind: task, job, machine, user, resource, cron, token, blob or cell
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,

    /// Only the last hours or days, such as 90m, 12h or 7d
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<Span>,

    /// Go on with what happens from now on, all of it
    #[arg(long, short, conflicts_with_all = ["job", "user", "machine", "kind"])]
    follow: bool,

    /// Only what came after this cursor, as printed with -o json
    #[arg(long, value_name = "CURSOR", value_parser = cursor)]
    after: Option<(u64, u64)>,

    #[command(flatten)]
    output: OutputArgs,
}

fn since(text: &str) -> Result<Span, String> {
    duration(text).ok_or_else(|| "allowed: a whole number with s, m, h or d, as 12h".to_owned())
}

/// `index-position`, or an index whose entry was seen whole.
fn cursor(text: &str) -> Result<(u64, u64), String> {
    let (index, position) = text.split_once('-').unwrap_or((text, "4294967295"));
    match (index.parse(), position.parse::<u32>()) {
        (Ok(index), Ok(position)) => Ok((index, u64::from(position))),
        _ => Err("allowed: a cursor printed with -o json, or a log index".to_owned()),
    }
}

impl EventsArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.within(PATIENCE)?;
        ask(self.show(&cell))?;
        Ok(Success::Done)
    }

    async fn show(&self, cell: &Cell) -> Result<(), Failure> {
        let mut after = self.after;
        let mut shown_last = None;
        let mut first = true;
        loop {
            let answer = cell.client.sql(&self.query(shown_last)).await?.value;
            if first && self.output.output == Output::Table {
                eprintln!("{}", reach_back(answer.reaches_back_to));
            }
            first = false;
            for row in &answer.rows {
                let event = Event::of(&answer, row);
                after = Some(event.place());
                shown_last = Some((event.time(), event.place()));
                self.line(&event.text(), event.time(), &event.0)?;
            }
            if answer.rows.is_empty() {
                break;
            }
        }
        if !self.follow {
            return Ok(());
        }
        let after = after.map(|(index, position)| format!("{index}-{position}"));
        let mut watch = cell.client.watch_events(after);
        loop {
            if let Some(event) = watch.next().await?.data {
                let shown = shown(&event);
                self.line(&event.text, event.at, &shown)?;
            }
        }
    }

    /// The next page of what is wanted.
    fn query(&self, last: Option<(Time, (u64, u64))>) -> SqlQuery {
        let (mut terms, mut args) = (vec!["1".to_owned()], Vec::new());
        let mut term = |sql: &str, values: Vec<SqlValue>| {
            terms.push(sql.to_owned());
            args.extend(values);
        };
        let text = |text: &str| SqlValue::Text(text.to_owned());
        let number = |number: u64| SqlValue::Integer(i64::try_from(number).unwrap_or(i64::MAX));
        if let Some(job) = &self.job {
            let (user, name) = job.split_once('/').unwrap_or((job, ""));
            term("user = ? and job = ?", vec![text(user), text(name)]);
        }
        if let Some(user) = &self.user {
            term("user = ?", vec![text(user)]);
        }
        if let Some(machine) = &self.machine {
            term("machine = ?", vec![text(machine)]);
        }
        if let Some(kind) = &self.kind {
            term("kind = ?", vec![text(kind)]);
        }
        if let Some(since) = self.since {
            let now = "cast(unixepoch('subsec') * 1000 as integer)";
            term(&format!("time >= {now} - ?"), vec![number(since.0)]);
        }
        if let Some((index, position)) = self.after {
            term("(log_index, position) > (?, ?)", vec![number(index), number(position)]);
        }
        if let Some((time, (index, position))) = last {
            let values = vec![number(time.0), number(time.0), number(index), number(position)];
            term("time >= ? and (time, log_index, position) > (?, ?, ?)", values);
        }
        let query = format!(
            "select {} from events where {} order by time, log_index, position limit {PAGE}",
            COLUMNS.join(", "),
            terms.join(" and ")
        );
        SqlQuery { query, args, limit: Some(PAGE) }
    }

    /// One line for each event; JSON too, so that a follower can read as they come.
    fn line(&self, text: &str, at: Time, event: &Map<String, Value>) -> Result<(), Failure> {
        match self.output.output {
            Output::Table => print(&format!("{}  {text}\n", format::utc(at))),
            Output::Json => print_item(event),
        }
    }
}

/// A row of history, by column.
struct Event(Map<String, Value>);

impl Event {
    fn of(answer: &SqlAnswer, row: &[SqlValue]) -> Event {
        let value = |value: &SqlValue| serde_json::to_value(value).unwrap_or_default();
        let pairs = answer.columns.iter().cloned().zip(row.iter().map(value));
        let mut event = Event(pairs.collect());
        let (index, position) = event.place();
        event.0.insert("cursor".into(), json!(format!("{index}-{position}")));
        event.0.insert("text".into(), json!(event.text()));
        event
    }

    fn number(&self, column: &str) -> u64 {
        self.0.get(column).and_then(Value::as_u64).unwrap_or(0)
    }

    fn word(&self, column: &str) -> Option<&str> {
        self.0.get(column).and_then(Value::as_str)
    }

    fn place(&self) -> (u64, u64) {
        (self.number("log_index"), self.number("position"))
    }

    fn time(&self) -> Time {
        Time(self.number("time"))
    }

    /// `ann/web/0 failed on m3: exited, code 1`.
    fn text(&self) -> String {
        let plain = |column: &str| self.word(column).unwrap_or("").replace('-', " ");
        let object = self.word("object").unwrap_or("");
        let mut text = format!("{object} {}", plain("event"));
        if let Some(machine) = self.word("machine").filter(|machine| *machine != object) {
            text.push_str(&format!(" on {machine}"));
        }
        text.push_str(&format!(": {}", plain("reason")));
        if self.word("exit_class").is_some() {
            text.push_str(&format!(", {}", plain("exit_class")));
            if let Some(code) = self.0.get("exit_code").and_then(Value::as_i64) {
                text.push_str(&format!(" {code}"));
            }
        }
        if let Some(detail) = self.word("detail") {
            text.push_str(&format!(" ({detail})"));
        }
        text
    }
}

/// An event of the feed, under the names history has for the same things.
fn shown(event: &EventView) -> Map<String, Value> {
    let position = event.cursor.split_once('-').and_then(|(_, at)| at.parse::<u64>().ok());
    let pairs = [
        ("cursor", json!(event.cursor)),
        ("time", json!(event.at)),
        ("log_index", json!(event.index)),
        ("position", json!(position)),
        ("object", json!(event.object)),
        ("reason", json!(event.reason_code)),
        ("text", json!(event.text)),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
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
        assert_eq!(text, "ann/web/0 failed on m3: exited, code 1");
        let text = event(json!({
            "object": "m3", "event": "drain-started", "machine": "m3", "reason": "requested",
        }));
        assert_eq!(text, "m3 drain started: requested");
    }

    #[test]
    fn cursors_are_read_as_they_are_printed() {
        assert_eq!(cursor("7-3"), Ok((7, 3)));
        assert_eq!(cursor("7"), Ok((7, u64::from(u32::MAX))));
        assert!(cursor("x").is_err() && cursor("7-").is_err());
    }
}
