//! `cell job status`: all jobs in a table, or one with its tasks.

use crate::args::{OutputArgs, WatchArgs};
use crate::clock;
use crate::commands::parse::name;
use crate::commands::status::{print_jobs, read_job, shown_job};
use crate::commands::target::{TargetArg, parse_target};
use crate::commands::{Success, pagination, select};
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print_json, print_named, print_notice, print_prose};
use crate::runtime::block_on;
use cellwright_api::client::JobFilter;
use cellwright_api::types::JobView;
use cellwright_cell::job::JobState;
use cellwright_cell::name::Name;
use cellwright_cell::time::{Span, Time};
use clap::Args;

/// How long a dead job is still listed among the live ones, so that a user who comes back from a
/// break finds it.
const RECENTLY: Span = Span(60 * 60 * 1000);

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// One job, a task or a range of tasks [default: all jobs]
    #[arg(value_name = "JOB", value_parser = parse_target,
          conflicts_with_all = ["selector", "user"])]
    job: Option<TargetArg>,

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

    /// Also jobs that ended more than an hour ago, and those whose name a newer job has
    #[arg(short, long, conflicts_with_all = ["job", "state"])]
    all: bool,

    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    output: OutputArgs,
}

impl StatusArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        let Some(target_arg) = self.job else {
            let filter = JobFilter { selector: self.selector, user: self.user, state: self.state };
            let is_filtered =
                filter.selector.is_some() || filter.user.is_some() || filter.state.is_some();
            let lists_all = self.all || filter.state.is_some();
            let jobs = block_on(pagination::jobs(&cell, &filter))?;
            let (jobs, hidden) =
                if lists_all { (jobs, 0) } else { current_jobs(jobs, clock::now()) };
            match self.output.output {
                Output::Json => print_json(&jobs)?,
                Output::Table if jobs.is_empty() && hidden > 0 => {}
                Output::Table => print_jobs(&jobs, is_filtered)?,
            }
            if hidden > 0 {
                print_notice(&hidden_note(hidden));
            }
            return Ok(Success::Done);
        };
        let (status, of_tasks) = block_on(async {
            let target = target_arg.resolve(&cell).await?;
            let status = read_job(&cell, &target.job, target.tasks.as_deref()).await?;
            Ok((status, target.tasks.is_some()))
        })?;
        let names = if of_tasks { status.task_names() } else { vec![status.job_name()] };
        match self.output.output {
            Output::Json => print_named(&status, &names)?,
            Output::Table => print_prose(&shown_job(&status, clock::now()))?,
        }
        Ok(Success::Done)
    }
}

/// The jobs that are live or ended recently, without those whose name a newer job has, and the
/// number of others.
fn current_jobs(jobs: Vec<JobView>, now: Time) -> (Vec<JobView>, usize) {
    let all = jobs.len();
    let is_recent = |ended: Time| now.0.saturating_sub(ended.0) <= RECENTLY.0;
    let is_live = |job: &JobView| !matches!(job.state, JobState::Dead(_));
    let mut listed = select::newest(jobs);
    listed.retain(|job| is_live(job) || job.ended_at.is_some_and(is_recent));
    let hidden = all - listed.len();
    (listed, hidden)
}

fn hidden_note(hidden: usize) -> String {
    let are = if hidden == 1 { "is" } else { "are" };
    let jobs = format::pluralize(hidden as u64, "job");
    format!("{jobs} of earlier {are} not shown; all: cell job status --all")
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_api::types::TaskCounts;
    use serde_json::json;

    fn job(name: &str, submitted: u64, ended: Option<u64>) -> JobView {
        let state = if ended.is_some() { json!({"dead": "succeeded"}) } else { json!("active") };
        serde_json::from_value(json!({
            "user": "dev", "name": name, "state": state, "version": 1, "redacted": false,
            "update": null, "update_complete": false,
            "spec": { "name": name, "priority": 100, "task": {
                "limits": { "cpu": 100, "ram": 33554432 }, "command": ["sleep"] } },
            "tasks": TaskCounts::default(),
            "waits_for": [], "submitted_at": submitted, "ended_at": ended,
        }))
        .unwrap()
    }

    #[test]
    fn what_is_over_for_long_or_has_a_newer_namesake_is_only_counted() {
        let hour = RECENTLY.0;
        let jobs = vec![
            job("old", 0, Some(1)),
            job("web", 1, Some(hour)),
            job("late", 2, Some(hour)),
            job("lives", 3, None),
            job("web", 4, Some(hour)),
        ];
        let (listed, hidden) = current_jobs(jobs, Time(2 * hour));
        let names: Vec<(&str, u64)> =
            listed.iter().map(|job| (job.name.as_str(), job.submitted_at.0)).collect();
        assert_eq!((names, hidden), (vec![("late", 2), ("lives", 3), ("web", 4)], 2));
        assert_eq!(hidden_note(1), "1 job of earlier is not shown; all: cell job status --all");
    }
}
