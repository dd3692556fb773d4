//! `cell job status`: all jobs in a table, or one with its tasks.

use crate::args::{OutputArgs, WatchArgs};
use crate::clock;
use crate::commands::parse::name;
use crate::commands::status::{read_job, show_list, shown_job};
use crate::commands::target::{Typed, typed};
use crate::commands::{Success, pages};
use crate::failure::Failure;
use crate::output::{Output, print_json, print_named, say};
use crate::reach::Reach;
use crate::server::ask;
use cellwright_api::client::JobFilter;
use cellwright_cell::name::Name;
use clap::Args;

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// One job, a task or a range of tasks [default: all jobs]
    #[arg(value_name = "JOB", value_parser = typed, conflicts_with_all = ["selector", "user"])]
    job: Option<Typed>,

    /// Only jobs whose labels match: a=b, a!=b, a, !a, separated by commas
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,

    /// Only jobs of this user
    #[arg(long, value_name = "USER", value_parser = name)]
    user: Option<Name>,

    /// Only jobs in this state; waiting: with pending tasks
    #[arg(long, value_name = "STATE",
          value_parser = ["deferred", "active", "stopping", "dead", "live", "waiting"])]
    state: Option<String>,

    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    output: OutputArgs,
}

impl StatusArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        let Some(typed) = self.job else {
            let filter = JobFilter { selector: self.selector, user: self.user, state: self.state };
            let some = filter.selector.is_some() || filter.user.is_some() || filter.state.is_some();
            let jobs = ask(pages::jobs(&cell, &filter))?;
            match self.output.output {
                Output::Json => print_json(&jobs)?,
                Output::Table => show_list(&jobs, some)?,
            }
            return Ok(Success::Done);
        };
        let (status, of_tasks) = ask(async {
            let target = typed.resolve(&cell).await?;
            let status = read_job(&cell, &target.job, target.tasks.as_deref()).await?;
            Ok((status, target.tasks.is_some()))
        })?;
        let names = match of_tasks {
            true => status.task_names(),
            false => vec![status.job_name()],
        };
        match self.output.output {
            Output::Json => print_named(&status, &names)?,
            Output::Table => say(&shown_job(&status, clock::now()))?,
        }
        Ok(Success::Done)
    }
}
