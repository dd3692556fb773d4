//! The options of commands that submit jobs and may stay with them: until all is over, showing what
//! the tasks write meanwhile, or until the jobs are so.

use super::goal::{Goal, GoalWait};
use super::placement_timeout::PlacementTimeout;
use super::{WaitResult, Waiter, still_running_text, unfinished_jobs};
use crate::commands::target::Target;
use crate::commands::{Success, parse};
use crate::connection::Cell;
use crate::failure::Failure;
use crate::output::Output;
use crate::runtime::{block_on, unless_interrupted};
use cellwright_cell::name::JobKey;
use cellwright_cell::time::Span;
use clap::Args;
use std::cell::RefCell;

/// How long whoever submitted jobs stays with them.
#[derive(Clone, Copy, Debug, Args)]
pub struct WaitOptions {
    /// Stay until all of it is over, and end with the code of the first task that did not finish;
    /// or until it is placed, running, healthy or updated, and end with 0, or 3 if it is not
    #[arg(long, value_name = "WHAT", num_args = 0..=1, require_equals = true,
          default_missing_value = "ended")]
    wait: Option<Goal>,

    /// Give up --wait=WHAT after so long, with exit code 3
    #[arg(long, value_name = "TIME", value_parser = parse::duration, requires = "wait")]
    timeout: Option<Span>,

    /// Tell how placement goes, then show what the tasks write, until all of it is over
    #[arg(long)]
    follow: bool,

    #[command(flatten)]
    placement_timeout: PlacementTimeout,

    /// Nothing but what the tasks write goes to standard output.
    #[arg(skip)]
    is_attached: bool,
}

impl WaitOptions {
    /// For a command that is run as if it ran here: what it writes is all that is shown, unless a
    /// document is asked for.
    pub fn attached(self, output: Output) -> WaitOptions {
        let is_document = output == Output::Json;
        let wait = is_document.then_some(Goal::Ended);
        WaitOptions { wait, follow: !is_document, is_attached: true, ..self }
    }

    pub fn is_set(self) -> bool {
        self.wait.is_some() || self.follow
    }

    /// What is waited for, where that is not the end.
    pub fn goal(self) -> Option<GoalWait> {
        let goal = self.wait.filter(|goal| *goal != Goal::Ended)?;
        let WaitOptions { placement_timeout, timeout: limit, .. } = self;
        Some(GoalWait { goal, version: None, placement_timeout, limit })
    }

    /// Rejects `--follow` with a document as output: the tasks' output would appear within it.
    pub fn check(self, output: Output) -> Result<(), Failure> {
        if self.timeout.is_some() && self.goal().is_none() {
            return Err(Failure::Usage {
                message: "--timeout is for --wait=WHAT; allowed: placed, running, healthy, updated"
                    .into(),
                next: "the same command with --wait, then: cell wait JOB --timeout TIME".into(),
            });
        }
        match (self.follow, output) {
            (true, _) if self.goal().is_some() => Err(Failure::Usage {
                message: "--follow shows what tasks write until all is over".into(),
                next: "the same command without --follow".into(),
            }),
            (true, Output::Json) => Err(Failure::Usage {
                message: "--follow shows what tasks write, which is no part of a document; \
                          allowed: -o table"
                    .into(),
                next: "the same command with --wait instead of --follow".into(),
            }),
            _ => Ok(()),
        }
    }

    /// Waits for the submitted jobs, and prints how each ended as soon as it has, or leaves that to
    /// the caller, who prints a document of it. Ctrl-C leaves all of them running.
    pub fn wait_for_jobs(
        self,
        cell: &Cell,
        jobs: &[JobKey],
        output: Output,
        results: &mut Vec<WaitResult>,
    ) -> Result<Success, Failure> {
        let unfinished = RefCell::new(jobs.to_vec());
        let whole = |job: &JobKey| Target { job: job.clone(), tasks: None };
        let targets: Vec<Target> = jobs.iter().map(whole).collect();
        block_on(async {
            let waiter = Waiter {
                cell,
                placement_timeout: self.placement_timeout,
                follow: self.follow,
                is_attached: self.is_attached,
                output,
            };
            let finished = waiter.wait_all(&targets, &unfinished, results);
            let on_interrupt =
                async || still_running_text(&unfinished_jobs(cell, unfinished.take()).await);
            unless_interrupted(on_interrupt, finished).await
        })
    }
}
