//! `cell job status`: all jobs in a table, or one with its tasks.

use crate::args::OutputArgs;
use crate::commands::Success;
use crate::commands::parse::job;
use crate::commands::words::word;
use crate::failure::Failure;
use crate::output::{Output, print, print_json};
use crate::reach::{Cell, Reach};
use crate::server::ask;
use crate::{format, table};
use cellwright_api::client::{JobFilter, PageAt};
use cellwright_api::types::{JobView, TaskCounts, TaskView};
use cellwright_cell::name::JobKey;
use clap::Args;
use serde::Serialize;

/// Tasks shown of one job in a table; JSON has all.
const SHOWN_TASKS: usize = 40;

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// One job [default: all]
    #[arg(value_name = "USER/JOB", value_parser = job)]
    job: Option<JobKey>,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Shown {
    job: JobView,
    tasks: Vec<TaskView>,
}

impl StatusArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        match self.job {
            None => {
                let jobs = ask(all(&cell))?;
                match self.output.output {
                    Output::Json => print_json(&jobs)?,
                    Output::Table => print(&list(&jobs))?,
                }
            }
            Some(key) => {
                let shown = ask(one(&cell, &key))?;
                match self.output.output {
                    Output::Json => print_json(&shown)?,
                    Output::Table => print(&described(&shown))?,
                }
            }
        }
        Ok(Success::Done)
    }
}

async fn all(cell: &Cell) -> Result<Vec<JobView>, Failure> {
    let mut jobs = Vec::new();
    let mut page = PageAt { limit: Some(1000), consistent: true, after: None };
    loop {
        let part = cell.client.jobs(&JobFilter::default(), &page).await?.value;
        jobs.extend(part.items);
        match part.next {
            Some(next) => page.after = Some(next),
            None => return Ok(jobs),
        }
    }
}

async fn one(cell: &Cell, key: &JobKey) -> Result<Shown, Failure> {
    let job = cell.client.job(key).await?.value.item;
    let mut tasks = Vec::new();
    let mut page = PageAt { limit: Some(1000), ..PageAt::default() };
    loop {
        let part = cell.client.tasks(key, &page).await?.value;
        tasks.extend(part.items);
        match part.next {
            Some(next) => page.after = Some(next),
            None => return Ok(Shown { job, tasks }),
        }
    }
}

/// Numbers of tasks that are not nought: `2 running, 1 pending`.
fn counts(tasks: &TaskCounts) -> String {
    let named = [
        (tasks.running, "running"),
        (tasks.pending, "pending"),
        (tasks.assigned, "assigned"),
        (tasks.deferred, "deferred"),
        (tasks.stopping, "stopping"),
        (tasks.finished, "finished"),
        (tasks.failed, "failed"),
        (tasks.killed, "killed"),
    ];
    let some = named.iter().filter(|(count, _)| *count > 0);
    let texts: Vec<String> =
        some.map(|(count, name)| format!("{} {name}", format::count(u64::from(*count)))).collect();
    if texts.is_empty() { "no tasks".into() } else { texts.join(", ") }
}

fn list(jobs: &[JobView]) -> String {
    if jobs.is_empty() {
        return "no jobs\nnext: cell job run examples/hello.json\n".into();
    }
    let rows: Vec<Vec<String>> = jobs
        .iter()
        .map(|job| {
            vec![
                format!("{}/{}", job.user, job.name),
                word(&job.state),
                job.spec.priority.0.to_string(),
                counts(&job.tasks),
            ]
        })
        .collect();
    table::render(&["job", "state", "priority", "tasks"], &rows)
}

fn described(shown: &Shown) -> String {
    let job = &shown.job;
    let key = format!("{}/{}", job.user, job.name);
    let mut out = format!(
        "{key}: {}, priority {}, version {}, {}\nsubmitted {}\n\n",
        word(&job.state),
        job.spec.priority.0,
        job.version,
        counts(&job.tasks),
        format::utc(job.submitted_at),
    );
    let rows: Vec<Vec<String>> = shown
        .tasks
        .iter()
        .take(SHOWN_TASKS)
        .map(|task| {
            vec![
                task.index.to_string(),
                word(&task.state),
                task.machine.as_ref().map_or("-".into(), ToString::to_string),
                task.attempt.to_string(),
                format::utc(task.changed_at),
            ]
        })
        .collect();
    out.push_str(&table::render(&["task", "state", "machine", "attempt", "since"], &rows));
    let more = shown.tasks.len().saturating_sub(SHOWN_TASKS);
    if more > 0 {
        out.push_str(&format!("... and {more} more: -o json\n"));
    }
    let waiting = shown.tasks.iter().find(|task| word(&task.state) == "pending");
    if let Some(task) = waiting {
        out.push_str(&format!("\nwhy it waits: cell explain {key}/{}\n", task.index));
    }
    out
}
