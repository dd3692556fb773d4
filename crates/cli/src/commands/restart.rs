//! `cell restart`: running tasks stop and start again where they are, as many at a time as the
//! job's budget allows. The cell does it by itself; waiting only looks on.

use super::target::{Target, TargetArg, parse_target};
use super::{Success, pagination, wait};
use crate::args::OutputArgs;
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print_json, print_prose};
use crate::progress::StatusLine;
use crate::runtime::{block_on, unless_interrupted};
use cellwright_api::client::{ChangeOptions, ClientError, JobFilter};
use cellwright_api::types::TaskView;
use cellwright_cell::job::JobState;
use cellwright_cell::name::JobKey;
use cellwright_cell::task::{TaskOutcome, TaskState};
use cellwright_cell::time::Span;
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, timeout};

const EXAMPLES: &str = "\
Examples:
  cell restart dev/web
  cell restart dev/web/3
  cell restart dev/web --wait --timeout 10m

Tasks keep their index, their machine and their spec, and get their notice. As
many are down at once as `max_down` of the job allows, or a tenth of a job that
names none. It counts as no failure. What does not run yet starts anyway.

Exit code with --wait: 0 when all were restarted and run, and are healthy where
they have a check; 3 if not.";

/// A task that fails so often in a row since it was restarted will not come up by itself.
const FAILURES_TO_GIVE_UP: u32 = 3;
/// How often the tasks are listed while most are still to be restarted.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The exit code for tasks that do not run again.
const NOT_UP_EXIT_CODE: u8 = 3;

/// Restart the tasks of a job one after the other, or some of them
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RestartArgs {
    /// A job, one of its tasks, or a range of them
    #[arg(value_name = "JOB|TASK", value_parser = parse_target)]
    target: TargetArg,

    /// Stay until all run again
    #[arg(long)]
    wait: bool,

    /// Give up after so long; the cell goes on
    #[arg(long, value_name = "TIME", requires = "wait", value_parser = super::parse::duration)]
    timeout: Option<Span>,

    #[command(flatten)]
    output: OutputArgs,
}

/// What became of a restart.
#[derive(Debug, Serialize)]
struct RestartResult {
    job: String,
    /// Tasks that ran when the restart was asked for.
    tasks: usize,
    /// Of these, tasks that were restarted and run; with `--wait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    restarted: Option<usize>,
    /// Tasks that do not run again, and why.
    not_up: Vec<NotUp>,
    /// Whether all run again, or with `--wait` not given whether there was something to do.
    done: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct NotUp {
    task: String,
    text: String,
}

/// A task as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Before {
    attempt: u32,
    failures: u32,
}

impl RestartArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        block_on(async {
            let target = self.target.resolve_exact(&cell).await?;
            let before = running(&cell, &target).await?;
            let changed = ask(&cell, &target).await?;
            if !self.wait {
                self.print_asked(&target, before.len(), changed)?;
                return Ok(Success::Done);
            }
            let goes_on = async || {
                let job = &target.job;
                format!("the restart of {job} goes on without you\nnext: cell status {job}")
            };
            unless_interrupted(goes_on, self.wait_and_print(&cell, &target, &before)).await
        })
    }

    fn print_asked(&self, target: &Target, tasks: usize, changed: bool) -> Result<(), Failure> {
        let job = &target.job;
        if self.output.output == Output::Json {
            let (job, not_up) = (job.to_string(), Vec::new());
            return print_json(&RestartResult {
                job,
                tasks,
                restarted: None,
                not_up,
                done: changed,
            });
        }
        let number = format::pluralize(tasks as u64, "task");
        let said = match (tasks, changed) {
            (0, _) => "none of the tasks runs, so there is nothing to restart".to_owned(),
            (_, true) => format!("{number} to restart, as its budget allows"),
            (_, false) => "is being restarted already".to_owned(),
        };
        print_prose(&format!("job {job}: {said}\nnext: cell status {job}\n"))
    }

    async fn wait_and_print(
        &self,
        cell: &Cell,
        target: &Target,
        before: &BTreeMap<u32, Before>,
    ) -> Result<Success, Failure> {
        let waiting = wait_until_up(cell, target, before);
        let end = match self.timeout {
            None => waiting.await?,
            Some(limit) => match timeout(Duration::from_millis(limit.0), waiting).await {
                Ok(end) => end?,
                Err(_) => progress(&pagination::tasks(cell, &target.job).await?, before),
            },
        };
        let is_up = end.is_up();
        let job = target.job.to_string();
        match self.output.output {
            Output::Json => print_json(&RestartResult {
                job,
                tasks: before.len(),
                restarted: Some(end.restarted),
                not_up: end.not_up,
                done: is_up,
            })?,
            Output::Table => print_prose(&end.text(&job, before.len()))?,
        }
        Ok(if is_up { Success::Done } else { Success::ExitWith(NOT_UP_EXIT_CODE) })
    }
}

/// The tasks of the target that run now.
async fn running(cell: &Cell, target: &Target) -> Result<BTreeMap<u32, Before>, Failure> {
    let tasks = pagination::tasks(cell, &target.job).await?;
    let is_meant = |task: &&TaskView| {
        let named = target.tasks.as_ref();
        task.state == TaskState::Running && named.is_none_or(|named| named.contains(&task.index))
    };
    let before = |task: &TaskView| {
        (task.index, Before { attempt: task.attempt, failures: task.failures_in_row })
    };
    Ok(tasks.iter().filter(is_meant).map(before).collect())
}

/// Whether there was anything to do.
async fn ask(cell: &Cell, target: &Target) -> Result<bool, Failure> {
    let change = ChangeOptions::default();
    let failed =
        |error: ClientError| Failure::from_change(error, &format!("cell status {}", target.job));
    let Some(indexes) = &target.tasks else {
        let done = cell.client.restart_job(&target.job, None, &change).await.map_err(failed)?;
        return Ok(done.value.changed);
    };
    let mut changed = false;
    for index in indexes {
        let done = cell.client.restart_job(&target.job, Some(*index), &change).await;
        changed |= done.map_err(failed)?.value.changed;
    }
    Ok(changed)
}

/// How far a restart is.
#[derive(Debug, Default, PartialEq, Eq)]
struct RestartProgress {
    restarted: usize,
    /// Tasks that finished before it was their turn: they have done their work.
    finished: usize,
    not_up: Vec<NotUp>,
    left: usize,
    /// One of those that are not up will not be by itself, or nothing is left to wait for.
    is_over: bool,
}

impl RestartProgress {
    fn is_up(&self) -> bool {
        self.left == 0 && self.not_up.is_empty()
    }

    fn text(&self, job: &str, tasks: usize) -> String {
        if tasks == 0 {
            return format!("job {job}: none of the tasks ran, so there was nothing to restart\n");
        }
        let number = format::pluralize(tasks as u64, "task");
        let mut lines = vec![format!("job {job}: {} of {number} restarted", self.restarted)];
        if self.finished > 0 {
            lines.push(format!("{} finished before", self.finished));
        }
        let mut text = lines.join(", ");
        for NotUp { task, text: why } in &self.not_up {
            text.push_str(&format!("\n{task} {why}"));
        }
        if self.left > 0 {
            let left = format::pluralize(self.left as u64, "task");
            text.push_str(&format!("\n{left} not restarted yet"));
        }
        if !self.is_up() {
            text.push_str(&format!("\nnext: cell explain {job}"));
        }
        text + "\n"
    }
}

/// How far the restart of the tasks in `before` is.
fn progress(tasks: &[TaskView], before: &BTreeMap<u32, Before>) -> RestartProgress {
    let mut progress = RestartProgress::default();
    let mut found = 0;
    for task in tasks {
        let Some(was) = before.get(&task.index) else { continue };
        found += 1;
        let why = task.last_end.as_ref().map_or("is over".to_owned(), |end| end.text.clone());
        let name = task.name.clone();
        match task.state {
            TaskState::Dead(TaskOutcome::Finished) => progress.finished += 1,
            TaskState::Dead(TaskOutcome::Failed(_)) => {
                progress.not_up.push(NotUp { task: name, text: format!("failed for good: {why}") });
            }
            TaskState::Dead(_) => {
                progress.not_up.push(NotUp { task: name, text: "was stopped".into() });
            }
            TaskState::Running if task.attempt > was.attempt && task.healthy => {
                progress.restarted += 1;
            }
            _ => {
                progress.left += 1;
                let failures = task.failures_in_row.saturating_sub(was.failures);
                if task.attempt > was.attempt && failures >= FAILURES_TO_GIVE_UP {
                    let text = format!("failed {failures} times in a row since: {why}");
                    progress.not_up.push(NotUp { task: name, text });
                    progress.is_over = true;
                }
            }
        }
    }
    // A row that is gone was removed with its index.
    progress.left += before.len() - found;
    progress.is_over |= progress.left == 0;
    progress
}

/// Waits until all tasks run again, or one of them does not come up.
async fn wait_until_up(
    cell: &Cell,
    target: &Target,
    before: &BTreeMap<u32, Before>,
) -> Result<RestartProgress, Failure> {
    let (job, mut line) = (&target.job, StatusLine::to_stderr());
    let filter = JobFilter { user: Some(job.user.clone()), ..JobFilter::default() };
    let mut watch = cell.client.watch_jobs(&filter, None);
    let mut looked: Option<Instant> = None;
    loop {
        let view = wait::next_view(&mut watch, job).await?;
        let is_dead = view.as_ref().is_none_or(|view| matches!(view.state, JobState::Dead(_)));
        // While most are still to come, not every change of the job is worth a list of its tasks.
        let is_early = view.as_ref().is_some_and(|view| view.restarting > 0);
        if is_early && !is_dead && looked.is_some_and(|at| at.elapsed() < LOOK_INTERVAL) {
            continue;
        }
        looked = Some(Instant::now());
        let now = progress(&pagination::tasks(cell, job).await?, before);
        if now.is_over || is_dead {
            return Ok(now);
        }
        line.update(vec![progress_line(job, &now, before.len())]);
    }
}

fn progress_line(job: &JobKey, now: &RestartProgress, tasks: usize) -> String {
    let failing = match &now.not_up[..] {
        [] => String::new(),
        [NotUp { task, text }, ..] => format!("; {task} {text}"),
    };
    format!("{job}: {} of {tasks} restarted{failing}", now.restarted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn task(index: u32, attempt: u32, state: serde_json::Value, failures: u32) -> TaskView {
        let running = state == json!("running");
        serde_json::from_value(json!({
            "name": format!("dev/web/{index}"), "index": index, "state": state,
            "healthy": running, "health": null, "attempt": attempt, "version": 1,
            "machine": null, "alloc": null,
            "limits": { "cpu": 1, "ram": 1, "disk": 0, "disk_rate": 0 },
            "reservation": { "cpu": 1, "ram": 1, "disk": 0, "disk_rate": 0 },
            "used": null, "ports": [], "devices": [], "waits_for": [],
            "failures_in_row": failures, "not_before": 0, "changed_at": 0, "crashed_on": [],
            "last_end": null, "needed": null,
        }))
        .unwrap()
    }

    fn before(tasks: u32) -> BTreeMap<u32, Before> {
        (0..tasks).map(|index| (index, Before { attempt: 1, failures: 0 })).collect()
    }

    #[test]
    fn all_that_ran_have_to_run_again() {
        let run = || json!("running");
        let now = progress(&[task(0, 2, run(), 0), task(1, 1, run(), 0)], &before(2));
        assert_eq!((now.restarted, now.left, now.is_over, now.is_up()), (1, 1, false, false));
        let now = progress(&[task(0, 2, run(), 0), task(1, 2, run(), 0)], &before(2));
        assert!(now.is_over && now.is_up());
        assert_eq!(now.text("dev/web", 2), "job dev/web: 2 of 2 tasks restarted\n");
        // Who did not run before is nobody's concern.
        let now = progress(&[task(0, 2, run(), 0), task(7, 1, json!("pending"), 0)], &before(1));
        assert!(now.is_over && now.is_up());
    }

    #[test]
    fn a_task_that_keeps_failing_ends_the_wait() {
        let states = [task(0, 5, json!("pending"), 3), task(1, 1, json!("running"), 0)];
        let now = progress(&states, &before(2));
        assert!(now.is_over && !now.is_up());
        let text = now.text("dev/web", 2);
        assert!(text.contains("dev/web/0 failed 3 times in a row since: is over"), "{text}");
        assert!(text.contains("2 tasks not restarted yet"), "{text}");
        let twice = progress(&[task(0, 4, json!("pending"), 2)], &before(1));
        assert!(!twice.is_over);
    }

    #[test]
    fn work_that_finished_is_no_failure_and_a_stop_is() {
        let finished = task(0, 1, json!({ "dead": "finished" }), 0);
        let now = progress(&[finished], &before(1));
        assert!(now.is_over && now.is_up() && now.finished == 1);
        let stopped = task(0, 1, json!({ "dead": "killed" }), 0);
        let now = progress(&[stopped], &before(1));
        assert!(now.is_over && !now.is_up());
        assert!(now.text("dev/web", 1).contains("dev/web/0 was stopped"));
    }
}
