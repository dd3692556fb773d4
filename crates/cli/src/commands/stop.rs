//! `cell stop`: a job with all its tasks, some of its tasks, or every job that a label query finds.

use super::target::{Typed, typed};
use super::{Success, pages};
use crate::failure::Failure;
use crate::output::say;
use crate::reach::{Cell, Reach};
use crate::server::ask;
use cellwright_api::client::{Change, JobFilter};
use cellwright_cell::name::JobKey;
use clap::{ArgGroup, Args};

const EXAMPLES: &str = "\
Examples:
  cell stop dev/hello
  cell stop hello/2
  cell stop 'dev/hello/[2-5]'
  cell stop -l team=search,stage!=prod

Tasks get their notice first. A task that is stopped alone stays dead; its job
goes on.";

/// Stop a job, or some of its tasks
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("which").required(true).args(["targets", "selector"]))]
pub struct StopArgs {
    /// Jobs, tasks or ranges of tasks
    #[arg(value_name = "JOB|TASK", value_parser = typed)]
    targets: Vec<Typed>,

    /// Every live job whose labels match: a=b, a!=b, a, !a, separated by commas
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
}

impl StopArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        ask(async {
            for typed in &self.targets {
                let target = typed.resolve(&cell).await?;
                match &target.tasks {
                    None => stop_job(&cell, &target.job).await?,
                    Some(indexes) => stop_tasks(&cell, &target.job, indexes).await?,
                }
            }
            if let Some(selector) = &self.selector {
                stop_selected(&cell, selector).await?;
            }
            Ok(Success::Done)
        })
    }
}

async fn stop_job(cell: &Cell, job: &JobKey) -> Result<(), Failure> {
    let done = cell.client.stop_job(job, &Change::default()).await?.value;
    let what = if done.changed { "is told to stop" } else { "was stopping already, or is over" };
    say(&format!("job {job} {what}\nnext: cell status {job}\n"))
}

async fn stop_tasks(cell: &Cell, job: &JobKey, indexes: &[u32]) -> Result<(), Failure> {
    for index in indexes {
        let done = cell.client.stop_task(job, *index, &Change::default()).await?.value;
        let what =
            if done.changed { "is told to stop" } else { "was stopping already, or is over" };
        say(&format!("task {job}/{index} {what}\n"))?;
    }
    say(&format!("next: cell status {job}\n"))
}

async fn stop_selected(cell: &Cell, selector: &str) -> Result<(), Failure> {
    let filter = JobFilter {
        selector: Some(selector.to_owned()),
        state: Some("live".into()),
        ..JobFilter::default()
    };
    let jobs = pages::jobs(cell, &filter).await?;
    if jobs.is_empty() {
        return Err(Failure::Work {
            message: format!("no live job has labels {selector}"),
            next: "see the labels: cell job status -o json".into(),
        });
    }
    for job in jobs {
        stop_job(cell, &JobKey { user: job.user, job: job.name }).await?;
    }
    Ok(())
}
