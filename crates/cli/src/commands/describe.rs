//! `cell describe THING`: everything the cell knows of one thing, and at the end what happened to
//! it lately.

use super::Success;
use super::status::{Thing, find};
use super::words::word;
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::output::{Output, print, print_json};
use crate::reach::{Cell, Reach};
use crate::server::ask;
use crate::{format, style};
use cellwright_api::types::{EventView, TaskView};
use clap::Args;
use serde::Serialize;
use serde_json::Value;

/// Log entries that are looked through for what happened lately.
const LOOKED_THROUGH: u64 = 20_000;
/// Events at the end.
const SHOWN: usize = 15;
/// Events asked for at once.
const PAGE: u32 = 1000;

/// Everything about one thing: a job, task, machine, user or cron; ends with recent events
#[derive(Debug, Args)]
pub struct DescribeArgs {
    /// A name, or how it begins
    #[arg(value_name = "THING")]
    what: String,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Described {
    #[serde(flatten)]
    thing: Thing,
    /// What happened to it lately, oldest first.
    events: Vec<EventView>,
    /// Log index from which on events were looked for.
    events_from: u64,
}

impl DescribeArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        let described = ask(async {
            let thing = find(&cell, &self.what).await?;
            let (events, events_from) = recent(&cell, &names(&thing)).await?;
            Ok(Described { thing, events, events_from })
        })?;
        match self.output.output {
            Output::Json => print_json(&described)?,
            Output::Table => print(&shown(&described))?,
        }
        Ok(Success::Done)
    }
}

/// What its events are about: the thing, and with a job its tasks.
fn names(thing: &Thing) -> Vec<String> {
    match thing {
        Thing::Job(status) | Thing::AllocSet(status) => {
            vec![format!("{}/{}", status.job.user, status.job.name)]
        }
        Thing::Task(status) => status.tasks.iter().map(|task| task.name.clone()).collect(),
        Thing::Machine { machine } => vec![machine.name.to_string()],
        Thing::User { user } => vec![user.name.to_string()],
        Thing::Cron { cron } => vec![format!("{}/{}", cron.user, cron.name)],
    }
}

fn is_about(object: &str, name: &str) -> bool {
    object.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The newest events of these names, and how far back was looked.
async fn recent(cell: &Cell, names: &[String]) -> Result<(Vec<EventView>, u64), Failure> {
    let index = cell.client.cluster_summary().await?.value.index;
    let from = index.saturating_sub(LOOKED_THROUGH);
    let mut after = Some(from.to_string());
    let mut found: Vec<EventView> = Vec::new();
    loop {
        let page = match cell.client.events(after.take(), PAGE).await {
            Ok(page) => page.value,
            // Less is kept than was asked for: from the oldest on.
            Err(error) if error.code() == Some(cellwright_api::error::Code::Gone) => {
                cell.client.events(None, PAGE).await?.value
            }
            Err(error) => return Err(error.into()),
        };
        if page.items.is_empty() {
            let kept = page.oldest.unwrap_or(0).max(from);
            return Ok((found, kept));
        }
        let about = |event: &EventView| names.iter().any(|name| is_about(&event.object, name));
        found.extend(page.items.into_iter().filter(about));
        let more = found.len().saturating_sub(SHOWN);
        found.drain(..more);
        after = Some(page.next);
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
    out.push_str(&format!("\n{}\n", style.strong("recent events")));
    for event in &described.events {
        out.push_str(&crate::table::wrapped(
            &format!("{}  ", format::utc(event.at)),
            "                      ",
            &event.text,
        ));
    }
    let from = format::count(described.events_from);
    out.push_str(&match described.events.is_empty() {
        true => format!("none since log index {from}; more: cell events\n"),
        false => format!("looked back to log index {from}; more: cell events\n"),
    });
    out
}

/// What is told of a task beyond its line.
const TASK: [&str; 8] =
    ["name", "healthy", "version", "alloc", "limits", "reservation", "ports", "waits_for"];

fn fields(task: &TaskView, names: &[&str]) -> String {
    let Ok(Value::Object(all)) = serde_json::to_value(task) else { return String::new() };
    let some = all.into_iter().filter(|(name, value)| {
        let is_nothing = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
        names.contains(&name.as_str()) && !is_nothing
    });
    yaml(&Value::Object(some.collect()))
}

fn last_end(task: &TaskView) -> String {
    let Some(end) = &task.last_end else { return String::new() };
    let notice = end.notice.map(|notice| format!("  {}\n", notice.words())).unwrap_or_default();
    format!(
        "attempt {} on {} ended {}: {} ({})\n{notice}",
        end.attempt,
        end.machine,
        format::utc(end.at),
        end.text,
        word(&end.code),
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_a_job_are_those_of_its_tasks_too() {
        assert!(is_about("dev/hello", "dev/hello") && is_about("dev/hello/3", "dev/hello"));
        assert!(!is_about("dev/hello2/3", "dev/hello") && !is_about("dev", "dev/hello"));
    }
}
