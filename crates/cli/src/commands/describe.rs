//! `cell describe THING`: everything the cell knows of one thing, and at the end what happened to
//! it lately, as far back as history reaches.

use super::Success;
use super::events::{Event, lately};
use super::sql::reach_back;
use super::status::{JobStatus, Thing, find, shown_cron};
use super::words::word;
use crate::args::{OutputArgs, WatchArgs};
use crate::failure::Failure;
use crate::output::{Output, print_named, say};
use crate::reach::{Cell, Reach};
use crate::server::ask;
use crate::{format, style, table};
use cellwright_api::types::{CronView, MachineView, SqlQuery, SqlValue, TaskView, UserView};
use cellwright_cell::admit::MAX_TOTAL;
use cellwright_cell::time::Time;
use cellwright_lang::written;
use clap::Args;
use serde::Serialize;
use serde_json::Value;

/// Events at the end.
const SHOWN: u32 = 15;
/// Tasks of a range whose events are asked for.
const MOST_TASKS: usize = 50;

const EXAMPLES: &str = "\
Examples:
  cell describe dev/hello
  cell describe dev/hello/0
  cell describe local -o yaml

Of jobs that had the same name one after the other only the newest is described;
what happened to all of them: cell events --job JOB.";

/// Everything about one thing: a job, task, machine, user or cron; ends with recent events
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DescribeArgs {
    /// A name, or how it begins
    #[arg(value_name = "THING")]
    what: String,

    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Described {
    #[serde(flatten)]
    thing: Thing,
    /// What happened to it lately, oldest first.
    events: Vec<Event>,
    /// How far back history reaches.
    events_since: Option<Time>,
    /// Why history says nothing; the thing itself is known without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    events_missing: Option<String>,
    /// Of a long range of tasks the events of so many alone, the first, were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    events_of_first: Option<usize>,
    /// Whether there are events of earlier jobs of the same name, which are not among these.
    #[serde(skip_serializing_if = "is_false")]
    events_of_namesakes: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

impl DescribeArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        let described = ask(async {
            let thing = find(&cell, &self.what).await?;
            let heard = heard(&cell, &thing).await;
            Ok(Described::new(thing, heard))
        })?;
        match self.output.output {
            Output::Json => print_named(&described, &described.thing.names())?,
            Output::Table => say(&shown(&described))?,
        }
        Ok(Success::Done)
    }
}

/// What history says of a thing.
#[derive(Default)]
struct Past {
    events: Vec<Event>,
    since: Option<Time>,
    of_namesakes: bool,
}

async fn heard(cell: &Cell, thing: &Thing) -> Result<Past, Failure> {
    let About { condition, args, since } = about(thing);
    let Some(begun) = since else {
        let (events, since) = lately(cell, &condition, args, SHOWN).await?;
        return Ok(Past { events, since, of_namesakes: false });
    };
    let begun = SqlValue::Integer(i64::try_from(begun.0).unwrap_or(i64::MAX));
    let others = namesakes(&args, begun.clone());
    let args = [args, vec![begun]].concat();
    let (events, since) = lately(cell, &format!("{condition} and {OWN}"), args, SHOWN).await?;
    // A day that cannot be read, or too many of them, are no reason to keep back what was heard.
    let others = cell.client.sql(&others).await;
    Ok(Past { events, since, of_namesakes: others.is_ok_and(|found| !found.value.rows.is_empty()) })
}

/// Asks for one event of an earlier job of the same name; one that was refused never was a job.
/// Only the events of jobs are looked through: they are few, and archives have no index.
fn namesakes(args: &[SqlValue], begun: SqlValue) -> SqlQuery {
    // User and job come first, whatever of the job it is about.
    let name = args.iter().take(2).cloned();
    SqlQuery {
        query: "select 1 from job_events \
                where user = ? and job = ? and time < ? and event <> 'rejected' limit 1"
            .to_owned(),
        args: name.chain([begun]).collect(),
        limit: Some(1),
    }
}

/// What happened to a job itself, and not to an earlier one of its name. One that is there to be
/// described has not been forgotten, so whatever was, was another.
const OWN: &str = "event <> 'purged' and time >= ?";

impl Described {
    fn new(thing: Thing, heard: Result<Past, Failure>) -> Described {
        let events_of_first = match &thing {
            Thing::Task(status) if status.tasks.len() > MOST_TASKS => Some(MOST_TASKS),
            _ => None,
        };
        let (past, events_missing) = match heard {
            Ok(past) => (past, None),
            Err(failure) => (Past::default(), Some(failure.to_string())),
        };
        Described {
            thing,
            events: past.events,
            events_since: past.since,
            events_missing,
            events_of_first,
            events_of_namesakes: past.of_namesakes,
        }
    }

    /// What happened to it, or why nobody says.
    fn past(&self) -> String {
        if let Some(why) = &self.events_missing {
            return format!("\nevents: {why}\n");
        }
        let mut out = format!("\n{}\n", style::for_stdout().strong("recent events"));
        for event in &self.events {
            out.push_str(&table::wrapped(
                &format!("{}  ", format::utc(event.time())),
                "                      ",
                &event.text(),
            ));
        }
        let none = if self.events.is_empty() { "none among the " } else { "" };
        let some = self.events_of_first.map(|n| format!(", of the first {n} of these tasks"));
        let since = reach_back(self.events_since);
        out.push_str(&format!("{none}{since}{}\n", some.unwrap_or_default()));
        match (&self.thing, self.events_of_namesakes) {
            (Thing::Job(job) | Thing::AllocSet(job) | Thing::Task(job), true) => {
                out.push_str(&format!(
                    "earlier jobs had this name; with theirs: cell events --job {}\n",
                    job.job_name()
                ));
            }
            _ => out.push_str("more: cell events\n"),
        }
        out
    }
}

/// What its events have in common, as history is asked for them.
struct About {
    condition: String,
    args: Vec<SqlValue>,
    /// When it came to be, where an earlier one may have had its name.
    since: Option<Time>,
}

fn about(thing: &Thing) -> About {
    let text = |text: &dyn ToString| SqlValue::Text(text.to_string());
    let of_kind = |kind: &str, name: &dyn ToString| About {
        condition: "kind = ? and object = ?".to_owned(),
        args: vec![text(&kind), text(name)],
        since: None,
    };
    match thing {
        Thing::Job(JobStatus { job, .. }) | Thing::AllocSet(JobStatus { job, .. }) => About {
            condition: "user = ? and job = ?".to_owned(),
            args: vec![text(&job.user), text(&job.name)],
            since: Some(job.submitted_at),
        },
        Thing::Task(JobStatus { job, tasks, .. }) => {
            let places = vec!["?"; tasks.len().min(MOST_TASKS)].join(", ");
            let own = [text(&job.user), text(&job.name)].into_iter();
            let named = tasks.iter().take(MOST_TASKS).map(|task| text(&task.name));
            About {
                condition: format!("user = ? and job = ? and object in ({places})"),
                args: own.chain(named).collect(),
                since: Some(job.submitted_at),
            }
        }
        Thing::Machine { machine } => of_kind("machine", &machine.name),
        Thing::User { user } => of_kind("user", &user.name),
        Thing::Cron { cron } => of_kind("cron", &format!("{}/{}", cron.user, cron.name)),
    }
}

fn shown(described: &Described) -> String {
    let style = style::for_stdout();
    let mut out = String::new();
    match &described.thing {
        Thing::Job(status) | Thing::AllocSet(status) | Thing::Task(status) => {
            out.push_str(&super::status::shown_job(status, crate::clock::now()));
            if let (Thing::Task(_), [task]) = (&described.thing, &status.tasks[..]) {
                out.push_str(&format!("\n{}\n{}", style.strong("task"), fields(task, &TASK)));
                out.push_str(&last_end(task));
            }
            out.push_str(&format!(
                "\n{}\n{}{}",
                style.strong("spec"),
                outlined(status.job.redacted),
                yaml(&written::job(&status.job.spec))
            ));
        }
        Thing::Machine { machine } => {
            out.push_str(&super::machine::shown(machine));
            out.push_str(&format!("\n{}\n{}", style.strong("spec"), yaml(&machine_spec(machine))));
        }
        Thing::User { user } => out.push_str(&yaml(&written_user(user))),
        Thing::Cron { cron } => {
            out.push_str(&shown_cron(cron, crate::clock::now()));
            out.push_str(&format!(
                "\n{}\n{}{}",
                style.strong("spec"),
                outlined(cron.redacted),
                yaml(&cron_spec(cron))
            ));
        }
    }
    out.push_str(&described.past());
    out
}

/// Says that something is left out below, so that nobody takes it for a job without a program.
fn outlined(redacted: bool) -> &'static str {
    if redacted { "# what it runs is for its owner and users with read_specs\n" } else { "" }
}

fn machine_spec(machine: &MachineView) -> Value {
    let mut spec = serde_json::to_value(&machine.spec).unwrap_or_default();
    amounts(&mut spec["capacity"]);
    spec
}

/// The schedule, and the job as its own file would have it.
fn cron_spec(cron: &CronView) -> Value {
    let mut spec = serde_json::to_value(cron.spec.shown()).unwrap_or_default();
    spec["job"] = written::job(&cron.spec.job);
    spec
}

fn written_user(user: &UserView) -> Value {
    let mut value = serde_json::to_value(user).unwrap_or_default();
    for (row, view) in value["quota"].as_array_mut().into_iter().flatten().zip(&user.quota) {
        amounts(&mut row["charged"]);
        let Some(quota) = view.quota else { continue };
        amounts(&mut row["quota"]["amount"]);
        let end = |time: Time, open: Time| match time == open {
            true => Value::Null,
            false => format::utc(time).into(),
        };
        row["quota"]["from"] = end(quota.from, Time(0));
        row["quota"]["until"] = end(quota.until, Time::NEVER);
    }
    value
}

/// Resources as a job's limits are written.
fn amounts(value: &mut Value) {
    let Some(fields) = value.as_object_mut() else { return };
    for (name, amount) in fields {
        *amount = match amount.as_u64() {
            // Nobody counts up to there.
            Some(MAX_TOTAL..) => "unbounded".into(),
            _ => written::field(&format!("task.limits.{name}"), amount),
        };
    }
}

/// What is told of a task beyond its line.
const TASK: [&str; 9] = [
    "name",
    "health",
    "version",
    "reserved_on",
    "alloc",
    "limits",
    "reservation",
    "ports",
    "waits_for",
];

fn fields(task: &TaskView, names: &[&str]) -> String {
    let Ok(Value::Object(all)) = serde_json::to_value(task) else { return String::new() };
    let some = all.into_iter().filter(|(name, value)| {
        let is_nothing = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
        names.contains(&name.as_str()) && !is_nothing
    });
    let written = some.map(|(name, value)| match name.as_str() {
        "limits" | "reservation" => (name, written::field("task.limits", &value)),
        "health" => (name, word(&task.health).into()),
        _ => (name, value),
    });
    yaml(&Value::Object(written.collect()))
}

fn last_end(task: &TaskView) -> String {
    let Some(end) = &task.last_end else { return String::new() };
    let notice = end.notice.map(|notice| format!("  {}\n", notice.words())).unwrap_or_default();
    let ended = format!("attempt {} on {} ended ", end.attempt, end.machine);
    let how = format!("{}: {} ({})", format::utc(end.at), end.text, word(&end.code));
    format!("{}{notice}", crate::table::wrapped(&ended, "  ", &how))
}

fn yaml(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    crate::output::yaml(&lean(value)).lines().map(|line| fold(&format!("  {line}"))).collect()
}

/// A line that is too wide for a terminal goes on further in: to YAML a line break inside a text is
/// a space.
fn fold(line: &str) -> String {
    let text = line.trim_start();
    let inset = &line[..line.len() - text.len()];
    match text.contains("  ") || text.ends_with(' ') {
        true => format!("{line}\n"),
        false => table::line(inset, &format!("{inset}    "), text),
    }
}

/// Without what is empty or left out: it says nothing.
fn lean(value: Value) -> Value {
    match value {
        Value::Object(all) => {
            let all = all.into_iter().map(|(name, value)| (name, lean(value)));
            let says = |value: &Value| match value {
                Value::Null => false,
                Value::Array(items) => !items.is_empty(),
                Value::Object(fields) => !fields.is_empty(),
                _ => true,
            };
            Value::Object(all.filter(|(_, value)| says(value)).collect())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn namesakes_are_looked_for_among_the_few_events_of_jobs_before() {
        let text = |text: &str| SqlValue::Text(text.to_owned());
        let of_task = [text("dev"), text("hello"), text("dev/hello/0")];
        let SqlQuery { query, args, limit } = namesakes(&of_task, SqlValue::Integer(7));
        assert!(query.contains("from job_events where") && query.contains("time < ?"), "{query}");
        assert_eq!(args, [text("dev"), text("hello"), SqlValue::Integer(7)]);
        assert_eq!(limit, Some(1));
    }

    #[test]
    fn a_cron_is_described_as_people_write_it() {
        let limits = json!({ "cpu": 250, "ram": 32 << 20 });
        let job = json!({
            "name": "tick", "priority": 100, "count": 1,
            "task": { "limits": limits, "command": ["true"], "notice": 10_000 },
        });
        let cron = json!({
            "user": "dev", "name": "tick", "version": 1, "last_job": null,
            "spec": { "name": "tick", "schedule": "0 3 * * *", "job": job },
            "last_slot": 1_794_829_439_000_u64, "next_slot": 1_794_829_440_000_u64,
        });
        let cron = serde_json::from_value(cron).unwrap();
        let told = shown(&Described::new(Thing::Cron { cron }, Ok(Past::default())));
        for part in ["\"10s\"", "\"32MiB\"", "\"0.25\"", "never ran yet", "at 2026-11-16"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(!told.contains("last_slot") && !told.contains("1794829"), "{told}");
    }

    #[test]
    fn amounts_of_a_user_are_written_with_units_and_times_as_people_read_them() {
        let user = json!({
            "name": "dev", "version": 3, "capabilities": [], "live_jobs": 0,
            "quota": [{
                "band": "batch", "exceeded": false,
                "charged": { "cpu": 1500, "ram": 1 << 30, "disk": 0, "disk_rate": 0 },
                "quota": {
                    "amount": { "cpu": MAX_TOTAL, "ram": 8_u64 << 30, "disk": 0, "disk_rate": 0 },
                    "from": 0, "until": 86_400_000,
                },
            }],
        });
        let value = written_user(&serde_json::from_value(user).unwrap());
        let row = &value["quota"][0];
        assert_eq!(
            (&row["charged"]["cpu"], &row["charged"]["ram"]),
            (&json!("1.5"), &json!("1GiB"))
        );
        assert_eq!(row["quota"]["amount"]["cpu"], "unbounded");
        assert_eq!(row["quota"]["until"], "1970-01-02 00:00:00Z");
        assert_eq!(row["quota"]["from"], Value::Null);
    }
}
