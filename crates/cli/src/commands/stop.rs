//! `cell stop`: a job with all its tasks, some of its tasks, or every job that a label query finds.

use super::Success;
use super::select::{self, Meant};
use super::status::show_list;
use super::target::{Typed, typed};
use crate::failure::Failure;
use crate::format;
use crate::output::{aside, say};
use crate::reach::{Cell, Reach};
use crate::server::ask;
use cellwright_api::client::{Change, ClientError};
use cellwright_cell::name::JobKey;
use clap::{ArgGroup, Args};
use std::io::{self, IsTerminal};

const EXAMPLES: &str = "\
Examples:
  cell stop dev/hello
  cell stop hello/2
  cell stop 'dev/hello/[2-5]'
  cell stop -l team=search,stage!=prod
  cell stop -l team=search --yes

Names are whole; only the owner may be left out. Tasks get their notice first. A
task that is stopped alone stays dead; its job goes on. With -l the jobs are
listed, and you are asked before any is stopped.";

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

    /// Stop what -l finds without asking
    #[arg(short, long, requires = "selector")]
    yes: bool,
}

impl StopArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        ask(async {
            let mut targets = Vec::new();
            // Nothing is stopped before every name is known to mean something.
            for typed in &self.targets {
                targets.push(typed.whole(&cell).await?);
            }
            for target in &targets {
                match &target.tasks {
                    None => stop_job(&cell, &target.job).await?,
                    Some(indexes) => stop_tasks(&cell, &target.job, indexes).await?,
                }
            }
            if let Some(selector) = &self.selector {
                stop_selected(&cell, selector, self.yes).await?;
            }
            Ok(Success::Done)
        })
    }
}

fn in_doubt(error: ClientError, job: &JobKey) -> Failure {
    Failure::of_change(error, &format!("cell status {job}"))
}

async fn stop_job(cell: &Cell, job: &JobKey) -> Result<(), Failure> {
    let done = cell.client.stop_job(job, &Change::default()).await;
    let done = done.map_err(|error| in_doubt(error, job))?.value;
    let what = if done.changed { "is told to stop" } else { "was stopping already, or is over" };
    say(&format!("job {job} {what}\nnext: cell status {job}\n"))
}

async fn stop_tasks(cell: &Cell, job: &JobKey, indexes: &[u32]) -> Result<(), Failure> {
    for index in indexes {
        let done = cell.client.stop_task(job, *index, &Change::default()).await;
        let done = done.map_err(|error| in_doubt(error, job))?.value;
        let what =
            if done.changed { "is told to stop" } else { "was stopping already, or is over" };
        say(&format!("task {job}/{index} {what}\n"))?;
    }
    say(&format!("next: cell status {job}\n"))
}

/// Labels may find more than whoever typed them thinks of, so the jobs are listed first.
async fn stop_selected(cell: &Cell, selector: &str, is_sure: bool) -> Result<(), Failure> {
    let jobs = select::jobs(cell, selector, Meant::Live).await?;
    show_list(&jobs, true)?;
    if !is_sure && !agreed(jobs.len())? {
        aside("nothing is stopped");
        return Ok(());
    }
    for job in &jobs {
        stop_job(cell, &select::key(job)).await?;
    }
    Ok(())
}

/// Asks whoever is at the terminal; where nobody is, nothing is stopped.
fn agreed(number: usize) -> Result<bool, Failure> {
    let jobs = format::counted(number as u64, "job");
    let (stdin, stderr) = (io::stdin(), io::stderr());
    if !stdin.is_terminal() || !stderr.is_terminal() {
        return Err(Failure::Usage {
            message: format!("{jobs} would be stopped, and nobody is here to be asked"),
            next: "the same command with --yes".into(),
        });
    }
    crate::output::warn(&format!("stop {jobs}? [y/N] "));
    let mut line = String::new();
    // One who cannot be read has not agreed.
    Ok(stdin.read_line(&mut line).is_ok() && is_yes(&line))
}

fn is_yes(line: &str) -> bool {
    matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_yes_is_one() {
        assert!(["y\n", "Yes\n", " YES "].into_iter().all(is_yes));
        assert!(!["", "\n", "n\n", "yep\n", "no, y\n"].into_iter().any(is_yes));
    }
}
