//! `cell start`: tasks that have ended run again in their job: one that was stopped alone, or all
//! that failed for good. `cell run --failed` is the same for those who think of running a job.

use super::Success;
use super::target::{TargetArg, parse_target};
use super::wait::WaitOptions;
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::output::{Output, print_json, print_prose};
use crate::runtime::block_on;
use cellwright_api::client::ChangeOptions;
use cellwright_cell::name::JobKey;
use clap::Args;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  cell start dev/web/2
  cell start 'dev/sums/[2-5]'
  cell start dev/sums --failed

A task that was stopped alone starts again, or one that has ended. With --failed
all tasks of the job do that failed for good, or were lost more often than the
job forgives; those that finished stay finished. The job may be over: it goes on
then, with the spec it had.";

/// Run tasks again that were stopped or have ended
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct StartArgs {
    /// Tasks or ranges of tasks; with --failed, a job
    #[arg(value_name = "TASK|JOB", required = true, value_parser = parse_target)]
    targets: Vec<TargetArg>,

    /// All tasks of the job that failed for good
    #[arg(long)]
    failed: bool,
}

impl StartArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        block_on(async {
            let mut targets = Vec::new();
            // All names are resolved before anything is started.
            for target in &self.targets {
                targets.push(target.resolve_exact(&cell).await?);
            }
            for target in &targets {
                match (&target.tasks, self.failed) {
                    (None, true) => {
                        let changed = start_failed(&cell, &target.job).await?;
                        print_prose(&started_text(&target.job, changed))?;
                    }
                    (Some(indexes), false) => start_tasks(&cell, &target.job, indexes).await?,
                    (None, false) => return Err(which_tasks(&target.job)),
                    (Some(_), true) => {
                        return Err(Failure::Usage {
                            message: "--failed is for a whole job".into(),
                            next: format!("cell start {} --failed", target.job),
                        });
                    }
                }
            }
            Ok(Success::Done)
        })
    }
}

fn which_tasks(job: &JobKey) -> Failure {
    Failure::Usage {
        message: format!("which tasks of {job}? allowed: JOB/INDEX, a range, or --failed"),
        next: format!("cell start {job} --failed, or from its file: cell run FILE"),
    }
}

async fn start_tasks(cell: &Cell, job: &JobKey, indexes: &[u32]) -> Result<(), Failure> {
    for index in indexes {
        let done = cell.client.start_task(job, *index, &ChangeOptions::default()).await;
        let done = done.map_err(|e| Failure::from_change(e, &format!("cell status {job}")))?;
        let said = if done.value.changed { "starts again" } else { "is not over" };
        print_prose(&format!("task {job}/{index} {said}\n"))?;
    }
    print_prose(&format!("next: cell status {job}\n"))
}

/// Runs what failed of a job again, and waits for its end if that is asked for.
pub fn run_failed(
    connection: &ConnectionArgs,
    job: &TargetArg,
    wait_options: WaitOptions,
    output: Output,
) -> Result<Success, Failure> {
    let cell = connection.cell()?;
    let (job, changed) = block_on(async {
        let job = job.resolve_exact(&cell).await?.job;
        let changed = start_failed(&cell, &job).await?;
        Ok::<_, Failure>((job, changed))
    })?;
    let waits = changed && wait_options.is_set();
    match output {
        Output::Table => print_prose(&started_text(&job, changed))?,
        Output::Json if waits => {}
        Output::Json => print_json(&json!({ "job": job.to_string(), "changed": changed }))?,
    }
    if !waits {
        return Ok(Success::Done);
    }
    let mut waited = Vec::new();
    let ended = wait_options.wait_for_jobs(&cell, &[job], output, &mut waited);
    if output == Output::Json {
        print_json(&waited)?;
    }
    ended
}

/// Starts what failed; whether anything did.
async fn start_failed(cell: &Cell, job: &JobKey) -> Result<bool, Failure> {
    let done = cell.client.start_failed_tasks(job, &ChangeOptions::default()).await;
    let done = done.map_err(|e| Failure::from_change(e, &format!("cell status {job}")))?;
    Ok(done.value.changed)
}

/// What to say of that.
fn started_text(job: &JobKey, changed: bool) -> String {
    let said = if changed { "what failed runs again" } else { "no task has failed for good" };
    format!("job {job}: {said}\nnext: cell status {job}\n")
}
