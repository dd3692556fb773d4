//! `cell stop`: stops a job with all its tasks, some of its tasks, or every job that a label
//! selector matches.

use super::Success;
use super::select::{self, JobScope};
use super::status::print_jobs;
use super::target::{TargetArg, parse_target};
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::format;
use crate::output::{print_notice, print_prose};
use crate::runtime::block_on;
use cellwright_api::client::{ChangeOptions, ClientError};
use cellwright_api::types::Changed;
use cellwright_cell::name::JobKey;
use cellwright_cell::time::Span;
use clap::{ArgGroup, Args};
use std::io::{self, IsTerminal};

const EXAMPLES: &str = "\
Examples:
  cell stop dev/hello
  cell stop hello/2
  cell stop 'dev/hello/[2-5]'
  cell stop -l team=search,stage!=prod
  cell stop -l team=search --yes
  cell stop dev/hello --now

Names are whole; only the owner may be left out. Tasks get their notice first;
with --now, which may be given later too, they are killed at once. A task that is
stopped alone stays dead until `cell start` of it; its job goes on while it has
others. With -l the jobs are listed, and you are asked before any is stopped.";

/// Stop a job, or some of its tasks
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("which").required(true).args(["targets", "selector"]))]
pub struct StopArgs {
    /// Jobs, tasks or ranges of tasks
    #[arg(value_name = "JOB|TASK", value_parser = parse_target)]
    targets: Vec<TargetArg>,

    /// Every live job whose labels match: a=b, a!=b, a, !a, separated by commas
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,

    /// Stop what -l finds without asking
    #[arg(short, long, requires = "selector")]
    yes: bool,

    /// Without notice, also what is stopping already
    #[arg(long)]
    now: bool,
}

impl StopArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        block_on(async {
            let mut targets = Vec::new();
            // All names are resolved before anything is stopped.
            for target_arg in &self.targets {
                targets.push(target_arg.resolve_exact(&cell).await?);
            }
            for target in &targets {
                match &target.tasks {
                    None => stop_job(&cell, &target.job, self.now).await?,
                    Some(indexes) => stop_tasks(&cell, &target.job, indexes, self.now).await?,
                }
            }
            if let Some(selector) = &self.selector {
                stop_selected(&cell, selector, self.yes, self.now).await?;
            }
            Ok(Success::Done)
        })
    }
}

fn change_failure(error: ClientError, job: &JobKey) -> Failure {
    Failure::from_change(error, &format!("cell status {job}"))
}

/// Stops a job, or one task of it.
async fn stop_one(
    cell: &Cell,
    job: &JobKey,
    index: Option<u32>,
    now: bool,
) -> Result<Changed, Failure> {
    let change = ChangeOptions::default();
    let done = match index {
        _ if now => cell.client.stop_within(job, index, Span::ZERO, &change).await,
        None => cell.client.stop_job(job, &change).await,
        Some(index) => cell.client.stop_task(job, index, &change).await,
    };
    Ok(done.map_err(|error| change_failure(error, job))?.value)
}

/// What to say of the end of a job or task.
fn outcome(done: &Changed, now: bool) -> &'static str {
    match (done.changed, now) {
        (true, true) => "is killed",
        (true, false) => "is told to stop",
        (false, true) => "is being killed already, or is over",
        (false, false) => "was stopping already, or is over",
    }
}

async fn stop_job(cell: &Cell, job: &JobKey, now: bool) -> Result<(), Failure> {
    let done = stop_one(cell, job, None, now).await?;
    let outcome = outcome(&done, now);
    print_prose(&format!("job {job} {outcome}\nnext: cell status {job}\n"))
}

async fn stop_tasks(cell: &Cell, job: &JobKey, indexes: &[u32], now: bool) -> Result<(), Failure> {
    for index in indexes {
        let done = stop_one(cell, job, Some(*index), now).await?;
        let outcome = outcome(&done, now);
        print_prose(&format!("task {job}/{index} {outcome}\n"))?;
    }
    print_prose(&format!("next: cell status {job}\n"))
}

/// A selector may match more than the user expects, so the jobs are listed first.
async fn stop_selected(
    cell: &Cell,
    selector: &str,
    is_confirmed: bool,
    now: bool,
) -> Result<(), Failure> {
    let jobs = select::select_jobs(cell, selector, JobScope::Live).await?;
    print_jobs(&jobs, true)?;
    if !is_confirmed && !confirm(jobs.len())? {
        print_notice("nothing is stopped");
        return Ok(());
    }
    for job in &jobs {
        stop_job(cell, &select::job_key(job), now).await?;
    }
    Ok(())
}

/// Asks for confirmation at the terminal; without a terminal, nothing is stopped.
fn confirm(number: usize) -> Result<bool, Failure> {
    let jobs = format::pluralize(number as u64, "job");
    let (stdin, stderr) = (io::stdin(), io::stderr());
    if !stdin.is_terminal() || !stderr.is_terminal() {
        return Err(Failure::Usage {
            message: format!("{jobs} would be stopped, and nobody is here to be asked"),
            next: "the same command with --yes".into(),
        });
    }
    crate::output::print_stderr(&format!("stop {jobs}? [y/N] "));
    let mut line = String::new();
    // An unreadable answer is not a confirmation.
    Ok(stdin.read_line(&mut line).is_ok() && is_affirmative(&line))
}

fn is_affirmative(line: &str) -> bool {
    matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_yes_is_one() {
        assert!(["y\n", "Yes\n", " YES "].into_iter().all(is_affirmative));
        assert!(!["", "\n", "n\n", "yep\n", "no, y\n"].into_iter().any(is_affirmative));
    }
}
