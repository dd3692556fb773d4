//! `cell describe`: everything the cell knows about one object, followed by its recent events as
//! far back as history reaches.

use super::Success;
use super::enum_words::enum_text;
use super::events::{Event, recent_events};
use super::sql::history_start_text;
use super::status::{CellObject, JobStatus, find_object, shown_cron};
use crate::args::{OutputArgs, WatchArgs};
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::output::{Output, print_named, print_prose};
use crate::runtime::block_on;
use crate::{format, style, table};
use cellwright_api::types::{CronView, MachineView, SqlQuery, SqlValue, TaskView, UserView};
use cellwright_cell::admit::MAX_TOTAL;
use cellwright_cell::time::Time;
use cellwright_lang::to_source;
use clap::Args;
use serde::Serialize;
use serde_json::Value;

/// The number of events at the end.
const MAX_EVENTS: u32 = 15;
/// The number of tasks of a range whose events are queried.
const MAX_TASKS: usize = 50;

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
struct Description {
    #[serde(flatten)]
    object: CellObject,
    /// Recent events of the object, oldest first.
    events: Vec<Event>,
    /// The time at which history begins.
    events_since: Option<Time>,
    /// Why there are no events; the object itself is described without them.
    #[serde(skip_serializing_if = "Option::is_none")]
    events_missing: Option<String>,
    /// For a long range of tasks, the number of leading tasks whose events were queried.
    #[serde(skip_serializing_if = "Option::is_none")]
    events_of_first: Option<usize>,
    /// Whether there are events of earlier jobs of the same name, which are left out.
    #[serde(skip_serializing_if = "is_false")]
    events_of_namesakes: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

impl DescribeArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        let described = block_on(async {
            let object = find_object(&cell, &self.what).await?;
            let fetched = fetch_events(&cell, &object).await;
            Ok(Description::new(object, fetched))
        })?;
        match self.output.output {
            Output::Json => print_named(&described, &described.object.names())?,
            Output::Table => print_prose(&render(&described))?,
        }
        Ok(Success::Done)
    }
}

/// The events of an object from history.
#[derive(Default)]
struct RecentEvents {
    events: Vec<Event>,
    since: Option<Time>,
    of_namesakes: bool,
}

async fn fetch_events(cell: &Cell, object: &CellObject) -> Result<RecentEvents, Failure> {
    let EventFilter { condition, args, since } = event_filter(object);
    let Some(submitted_at) = since else {
        let (events, since) = recent_events(cell, &condition, args, MAX_EVENTS).await?;
        return Ok(RecentEvents { events, since, of_namesakes: false });
    };
    let submitted_at = SqlValue::Integer(i64::try_from(submitted_at.0).unwrap_or(i64::MAX));
    let namesake_events = namesake_query(&args, submitted_at.clone());
    let args = [args, vec![submitted_at]].concat();
    let (events, since) =
        recent_events(cell, &format!("{condition} and {OWN_EVENTS}"), args, MAX_EVENTS).await?;
    // An unreadable or too large history is no reason to withhold the events found above.
    let namesake_events = cell.client.sql(&namesake_events).await;
    Ok(RecentEvents {
        events,
        since,
        of_namesakes: namesake_events.is_ok_and(|found| !found.value.rows.is_empty()),
    })
}

/// A query for one event of an earlier job of the same name; a rejected one never was a job. Only
/// the table of job events is searched: it is small, and archives have no index.
fn namesake_query(args: &[SqlValue], submitted_at: SqlValue) -> SqlQuery {
    // User and job are the first arguments of every condition about a job.
    let name = args.iter().take(2).cloned();
    SqlQuery {
        query: "select 1 from job_events \
                where user = ? and job = ? and time < ? and event <> 'rejected' limit 1"
            .to_owned(),
        args: name.chain([submitted_at]).collect(),
        limit: Some(1),
    }
}

/// Restricts events to this job, without those of an earlier one of the same name. A job that can
/// be described has not been purged, so any `purged` event belongs to an earlier one.
const OWN_EVENTS: &str = "event <> 'purged' and time >= ?";

impl Description {
    fn new(object: CellObject, fetched: Result<RecentEvents, Failure>) -> Description {
        let events_of_first = match &object {
            CellObject::Task(status) if status.tasks.len() > MAX_TASKS => Some(MAX_TASKS),
            _ => None,
        };
        let (past, events_missing) = match fetched {
            Ok(past) => (past, None),
            Err(failure) => (RecentEvents::default(), Some(failure.to_string())),
        };
        Description {
            object,
            events: past.events,
            events_since: past.since,
            events_missing,
            events_of_first,
            events_of_namesakes: past.of_namesakes,
        }
    }

    /// The recent events, or why there are none.
    fn render_events(&self) -> String {
        if let Some(why) = &self.events_missing {
            return format!("\nevents: {why}\n");
        }
        let mut out = format!("\n{}\n", style::for_stdout().strong("recent events"));
        for event in &self.events {
            out.push_str(&table::wrap(
                &format!("{}  ", format::utc(event.time())),
                "                      ",
                &event.text(),
            ));
        }
        let none = if self.events.is_empty() { "none among the " } else { "" };
        let some = self.events_of_first.map(|n| format!(", of the first {n} of these tasks"));
        let since = history_start_text(self.events_since);
        out.push_str(&format!("{none}{since}{}\n", some.unwrap_or_default()));
        match (&self.object, self.events_of_namesakes) {
            (CellObject::Job(job) | CellObject::AllocSet(job) | CellObject::Task(job), true) => {
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

/// The condition of a query for an object's events.
struct EventFilter {
    condition: String,
    args: Vec<SqlValue>,
    /// When the object was created, if an earlier one may have had its name.
    since: Option<Time>,
}

fn event_filter(object: &CellObject) -> EventFilter {
    let text = |text: &dyn ToString| SqlValue::Text(text.to_string());
    let of_kind = |kind: &str, name: &dyn ToString| EventFilter {
        condition: "kind = ? and object = ?".to_owned(),
        args: vec![text(&kind), text(name)],
        since: None,
    };
    match object {
        CellObject::Job(JobStatus { job, .. }) | CellObject::AllocSet(JobStatus { job, .. }) => {
            EventFilter {
                condition: "user = ? and job = ?".to_owned(),
                args: vec![text(&job.user), text(&job.name)],
                since: Some(job.submitted_at),
            }
        }
        CellObject::Task(JobStatus { job, tasks, .. }) => {
            let placeholders = vec!["?"; tasks.len().min(MAX_TASKS)].join(", ");
            let own = [text(&job.user), text(&job.name)].into_iter();
            let named = tasks.iter().take(MAX_TASKS).map(|task| text(&task.name));
            EventFilter {
                condition: format!("user = ? and job = ? and object in ({placeholders})"),
                args: own.chain(named).collect(),
                since: Some(job.submitted_at),
            }
        }
        CellObject::Machine { machine, .. } => of_kind("machine", &machine.name),
        CellObject::User { user } => of_kind("user", &user.name),
        CellObject::Cron { cron } => of_kind("cron", &format!("{}/{}", cron.user, cron.name)),
    }
}

fn render(described: &Description) -> String {
    let style = style::for_stdout();
    let mut out = String::new();
    match &described.object {
        CellObject::Job(status) | CellObject::AllocSet(status) | CellObject::Task(status) => {
            out.push_str(&super::status::shown_job(status, crate::clock::now()));
            if let (CellObject::Task(_), [task]) = (&described.object, &status.tasks[..]) {
                out.push_str(&format!(
                    "\n{}\n{}",
                    style.strong("task"),
                    render_fields(task, &TASK_FIELDS)
                ));
                out.push_str(&render_last_end(task));
            }
            out.push_str(&format!(
                "\n{}\n{}{}",
                style.strong("spec"),
                redaction_note(status.job.redacted),
                render_yaml(&to_source::job(&status.job.spec))
            ));
        }
        CellObject::Machine { machine, .. } => {
            out.push_str(&super::machine::render(machine));
            out.push_str(&format!(
                "\n{}\n{}",
                style.strong("spec"),
                render_yaml(&machine_spec(machine))
            ));
        }
        CellObject::User { user } => out.push_str(&render_yaml(&user_value(user))),
        CellObject::Cron { cron } => {
            out.push_str(&shown_cron(cron, crate::clock::now()));
            out.push_str(&format!(
                "\n{}\n{}{}",
                style.strong("spec"),
                redaction_note(cron.redacted),
                render_yaml(&cron_spec(cron))
            ));
        }
    }
    out.push_str(&described.render_events());
    out
}

/// A note that secrets are redacted below, so that the output is not taken for a job without a
/// program.
fn redaction_note(redacted: bool) -> &'static str {
    if redacted { "# what it runs is for its owner and users with read_specs\n" } else { "" }
}

fn machine_spec(machine: &MachineView) -> Value {
    let mut spec = serde_json::to_value(&machine.spec).unwrap_or_default();
    format_amounts(&mut spec["capacity"]);
    spec
}

/// The schedule, and the job as it would be written in a file.
fn cron_spec(cron: &CronView) -> Value {
    let mut spec = serde_json::to_value(cron.spec.redacted()).unwrap_or_default();
    spec["job"] = to_source::job(&cron.spec.job);
    spec
}

fn user_value(user: &UserView) -> Value {
    let mut value = serde_json::to_value(user).unwrap_or_default();
    for (row, view) in value["quota"].as_array_mut().into_iter().flatten().zip(&user.quota) {
        format_amounts(&mut row["charged"]);
        let Some(quota) = view.quota else { continue };
        format_amounts(&mut row["quota"]["amount"]);
        let end = |time: Time, open: Time| {
            if time == open { Value::Null } else { format::utc(time).into() }
        };
        row["quota"]["from"] = end(quota.from, Time(0));
        row["quota"]["until"] = end(quota.until, Time::NEVER);
    }
    value
}

/// Formats resources like limits in a job file.
fn format_amounts(value: &mut Value) {
    let Some(fields) = value.as_object_mut() else { return };
    for (name, amount) in fields {
        *amount = match amount.as_u64() {
            // A total this large means no limit.
            Some(MAX_TOTAL..) => "unbounded".into(),
            _ => to_source::field(&format!("task.limits.{name}"), amount),
        };
    }
}

/// The fields of a task that are shown below its line.
const TASK_FIELDS: [&str; 10] = [
    "name",
    "health",
    "version",
    "reserved_on",
    "alloc",
    "limits",
    "limits_in_force",
    "reservation",
    "ports",
    "waits_for",
];

fn render_fields(task: &TaskView, names: &[&str]) -> String {
    let Ok(Value::Object(all)) = serde_json::to_value(task) else { return String::new() };
    let some = all.into_iter().filter(|(name, value)| {
        let is_nothing = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
        names.contains(&name.as_str()) && !is_nothing
    });
    let written = some.map(|(name, value)| match name.as_str() {
        "limits" | "limits_in_force" | "reservation" => {
            (name, to_source::field("task.limits", &value))
        }
        "health" => (name, enum_text(&task.health).into()),
        _ => (name, value),
    });
    render_yaml(&Value::Object(written.collect()))
}

fn render_last_end(task: &TaskView) -> String {
    let Some(end) = &task.last_end else { return String::new() };
    let notice = end.notice.map(|notice| format!("  {}\n", notice.describe())).unwrap_or_default();
    let ended = format!("attempt {} on {} ended ", end.attempt, end.machine);
    let how = format!("{}: {} ({})", format::utc(end.at), end.text, enum_text(&end.code));
    format!("{}{notice}", crate::table::wrap(&ended, "  ", &how))
}

fn render_yaml(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    crate::output::yaml(&without_empty(value))
        .lines()
        .map(|line| wrap_yaml_line(&format!("  {line}")))
        .collect()
}

/// Wraps a line that is too wide for a terminal, with further indentation: YAML reads a line break
/// inside a text as a space.
fn wrap_yaml_line(line: &str) -> String {
    let text = line.trim_start();
    let inset = &line[..line.len() - text.len()];
    if text.contains("  ") || text.ends_with(' ') {
        format!("{line}\n")
    } else {
        table::wrap_for_terminal(inset, &format!("{inset}    "), text)
    }
}

/// The value without empty fields.
pub fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(all) => {
            let all = all.into_iter().map(|(name, value)| (name, without_empty(value)));
            let is_present = |value: &Value| match value {
                Value::Null => false,
                Value::Array(items) => !items.is_empty(),
                Value::Object(fields) => !fields.is_empty(),
                _ => true,
            };
            Value::Object(all.filter(|(_, value)| is_present(value)).collect())
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
        let SqlQuery { query, args, limit } = namesake_query(&of_task, SqlValue::Integer(7));
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
            "user": "dev", "name": "tick", "version": 1, "redacted": false, "last_job": null,
            "spec": { "name": "tick", "schedule": "0 3 * * *", "job": job },
            "last_slot": 1_794_829_439_000_u64, "next_slot": 1_794_829_440_000_u64,
        });
        let cron = serde_json::from_value(cron).unwrap();
        let text =
            render(&Description::new(CellObject::Cron { cron }, Ok(RecentEvents::default())));
        for part in ["\"10s\"", "\"32MiB\"", "\"0.25\"", "never ran yet", "at 2026-11-16"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("last_slot") && !text.contains("1794829"), "{text}");
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
        let value = user_value(&serde_json::from_value(user).unwrap());
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
