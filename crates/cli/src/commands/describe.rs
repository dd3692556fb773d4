//! `cell describe THING`: everything the cell knows of one thing, and at the end what happened to
//! it lately, as far back as history reaches.

use super::Success;
use super::events::{Event, lately};
use super::sql::reach_back;
use super::status::{JobStatus, Thing, find};
use super::words::word;
use crate::args::{OutputArgs, WatchArgs};
use crate::failure::Failure;
use crate::output::{Output, print_named, say};
use crate::reach::Reach;
use crate::server::ask;
use crate::{format, style};
use cellwright_api::types::{SqlValue, TaskView};
use cellwright_cell::time::Time;
use clap::Args;
use serde::Serialize;
use serde_json::Value;

/// Events at the end.
const SHOWN: u32 = 15;
/// Tasks of a range whose events are asked for.
const MOST_TASKS: usize = 50;

/// Everything about one thing: a job, task, machine, user or cron; ends with recent events
#[derive(Debug, Args)]
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
}

impl DescribeArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        let described = ask(async {
            let thing = find(&cell, &self.what).await?;
            let (condition, args) = about(&thing);
            Ok(Described::new(thing, lately(&cell, &condition, args, SHOWN).await))
        })?;
        match self.output.output {
            Output::Json => print_named(&described, &described.thing.names())?,
            Output::Table => say(&shown(&described))?,
        }
        Ok(Success::Done)
    }
}

impl Described {
    fn new(thing: Thing, heard: Result<(Vec<Event>, Option<Time>), Failure>) -> Described {
        let events_of_first = match &thing {
            Thing::Task(status) if status.tasks.len() > MOST_TASKS => Some(MOST_TASKS),
            _ => None,
        };
        let ((events, events_since), events_missing) = match heard {
            Ok(heard) => (heard, None),
            Err(failure) => ((Vec::new(), None), Some(failure.to_string())),
        };
        Described { thing, events, events_since, events_missing, events_of_first }
    }

    /// What happened to it, or why nobody says.
    fn past(&self) -> String {
        if let Some(why) = &self.events_missing {
            return format!("\nevents: {why}\n");
        }
        let mut out = format!("\n{}\n", style::for_stdout().strong("recent events"));
        for event in &self.events {
            out.push_str(&crate::table::wrapped(
                &format!("{}  ", format::utc(event.time())),
                "                      ",
                &event.text(),
            ));
        }
        let none = if self.events.is_empty() { "none among the " } else { "" };
        let some = self.events_of_first.map(|n| format!(", of the first {n} of these tasks"));
        let since = reach_back(self.events_since);
        out.push_str(&format!("{none}{since}{}\nmore: cell events\n", some.unwrap_or_default()));
        out
    }
}

/// What its events have in common, as history is asked for them.
fn about(thing: &Thing) -> (String, Vec<SqlValue>) {
    let text = |text: &dyn ToString| SqlValue::Text(text.to_string());
    let of_kind = |kind: &str, name: &dyn ToString| {
        ("kind = ? and object = ?".to_owned(), vec![text(&kind), text(name)])
    };
    match thing {
        Thing::Job(JobStatus { job, .. }) | Thing::AllocSet(JobStatus { job, .. }) => {
            ("user = ? and job = ?".to_owned(), vec![text(&job.user), text(&job.name)])
        }
        Thing::Task(JobStatus { job, tasks, .. }) => {
            let places = vec!["?"; tasks.len().min(MOST_TASKS)].join(", ");
            let own = [text(&job.user), text(&job.name)].into_iter();
            let named = tasks.iter().take(MOST_TASKS).map(|task| text(&task.name));
            let condition = format!("user = ? and job = ? and object in ({places})");
            (condition, own.chain(named).collect())
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
            out.push_str(&format!("\n{}\n{}", style.strong("spec"), yaml(&status.job.spec)));
        }
        Thing::Machine { machine } => {
            out.push_str(&super::machine::shown(machine));
            out.push_str(&format!("\n{}\n{}", style.strong("spec"), yaml(&machine.spec)));
        }
        Thing::User { user } => out.push_str(&yaml(user)),
        Thing::Cron { cron } => out.push_str(&yaml(cron)),
    }
    out.push_str(&described.past());
    out
}

/// What is told of a task beyond its line.
const TASK: [&str; 8] =
    ["name", "healthy", "version", "alloc", "limits", "reservation", "ports", "waits_for"];

fn fields(task: &TaskView, names: &[&str]) -> String {
    let Ok(Value::Object(all)) = serde_json::to_value(task) else { return String::new() };
    let some = all.into_iter().filter(|(name, value)| {
        let is_nothing = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
        // Whoever is dead is neither well nor ill.
        let is_told = !(task.state.is_dead() && name == "healthy");
        names.contains(&name.as_str()) && !is_nothing && is_told
    });
    yaml(&Value::Object(some.collect()))
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
    crate::output::yaml(&lean(value)).lines().map(|line| format!("  {line}\n")).collect()
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
