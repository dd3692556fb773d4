//! `cell wait`: waits until a job or a task has ended, and exits with the task's own code, so that
//! scripts can depend on it.

pub mod goal;
mod options;
mod placement_timeout;

use super::Success;
use super::logs::LogOptions;
use super::select::{self, JobScope};
use super::status::fetch_start_errors;
use super::status_text;
use super::target::{Target, TargetArg, parse_target};
use crate::args::OutputArgs;
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::output::{Output, print_json, print_prose};
use crate::progress::StatusLine;
use crate::runtime::{block_on, unless_interrupted};
use crate::table::{sentences, wrap};
use cellwright_api::client::{ClientError, JobFilter, Watch};
use cellwright_api::error::Code;
use cellwright_api::types::{JobView, TaskView};
use cellwright_cell::job::JobState;
use cellwright_cell::name::JobKey;
use cellwright_cell::spec::Domain;
use cellwright_cell::task::{ExitClass, TaskOutcome, TaskState};
use cellwright_cell::time::Span;
use clap::{ArgGroup, Args};
use goal::{Goal, GoalWait};
pub use options::WaitOptions;
use placement_timeout::PlacementTimeout;
use serde::Serialize;
use std::cell::RefCell;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

const AFTER_HELP: &str = "\
Examples:
  cell wait dev/sums
  cell wait dev/sums/3 --timeout 10m
  cell wait last
  cell wait -l run=42
  cell wait dev/web --for healthy --timeout 5m

Exit code: that of the first task that did not finish, 128 and the signal's
number where a signal ended it, 1 for any other end; 0 when all finished; 3 when
no machine takes it, which stays in the queue all the same. A task may end with
3 as well: `outcome` of -o json is then `failed` and not `not_placed`.

A service never ends by itself: wait until it is placed, running, healthy or
updated. Exit code: 0 when it is so, 3 when it is not after --timeout, when its
version was rolled back, when it ended, or when no machine takes it.";

/// Wait until a job or one task is over, with the task's own exit code; or is so
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
#[command(group = ArgGroup::new("which").required(true).args(["target", "selector"]))]
pub struct WaitArgs {
    /// A job, one of its tasks, or a range of them
    #[arg(value_name = "JOB|TASK", value_parser = parse_target)]
    target: Option<TargetArg>,

    /// Every job whose labels match, those that are over as well: a=b, a!=b, a, !a, separated by
    /// commas
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,

    /// Wait for this, of whole jobs
    #[arg(long = "for", value_name = "WHAT", default_value = "ended")]
    goal: Goal,

    /// Give up after so long, with exit code 1; with --for, 3
    #[arg(long, value_name = "TIME", value_parser = super::parse::duration)]
    timeout: Option<Span>,

    #[command(flatten)]
    placement_timeout: PlacementTimeout,

    #[command(flatten)]
    output: OutputArgs,
}

impl WaitArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        block_on(async {
            let targets = self.targets(&cell).await?;
            if self.goal != Goal::Ended {
                return self.wait_for_goal(&cell, &targets).await;
            }
            let unfinished =
                RefCell::new(targets.iter().map(|target| target.job.clone()).collect());
            let finished = async {
                let mut results = Vec::new();
                let success =
                    self.wait_for_targets(&cell, &targets, &unfinished, &mut results).await?;
                match (self.output.output, &results[..]) {
                    (Output::Table, _) => {}
                    (Output::Json, [single]) if self.selector.is_none() => print_json(single)?,
                    (Output::Json, all) => print_json(&all)?,
                }
                Ok(success)
            };
            let on_interrupt =
                async || still_running_text(&unfinished_jobs(&cell, unfinished.take()).await);
            unless_interrupted(on_interrupt, finished).await
        })
    }

    async fn wait_for_goal(&self, cell: &Cell, targets: &[Target]) -> Result<Success, Failure> {
        if let Some(part) = targets.iter().find(|target| target.tasks.is_some()) {
            return Err(Failure::Usage {
                message: format!("--for {} is of a whole job", self.goal.word()),
                next: format!("cell wait {} --for {}", part.job, self.goal.word()),
            });
        }
        let wait = GoalWait {
            goal: self.goal,
            version: None,
            placement_timeout: self.placement_timeout,
            limit: self.timeout,
        };
        let jobs: Vec<_> = targets.iter().map(|target| (target.job.clone(), None)).collect();
        let results = goal::wait_for_all(cell, wait, &jobs).await?;
        match (self.output.output, &results[..]) {
            (Output::Table, all) => goal::print_results(wait.goal, all)?,
            (Output::Json, [single]) if self.selector.is_none() => print_json(single)?,
            (Output::Json, all) => print_json(&all)?,
        }
        Ok(goal::success(&results))
    }

    async fn targets(&self, cell: &Cell) -> Result<Vec<Target>, Failure> {
        if let Some(target_arg) = &self.target {
            return Ok(vec![target_arg.resolve(cell).await?]);
        }
        let Some(selector) = &self.selector else { return Ok(Vec::new()) };
        let jobs = select::select_jobs(cell, selector, JobScope::All).await?;
        Ok(jobs.iter().map(|job| Target { job: select::job_key(job), tasks: None }).collect())
    }

    async fn wait_for_targets(
        &self,
        cell: &Cell,
        targets: &[Target],
        unfinished: &RefCell<Vec<JobKey>>,
        results: &mut Vec<WaitResult>,
    ) -> Result<Success, Failure> {
        let waiter = Waiter {
            cell,
            placement_timeout: self.placement_timeout,
            follow: false,
            is_attached: false,
            output: self.output.output,
        };
        let mut finished = pin!(waiter.wait_all(targets, unfinished, results));
        let Some(limit) = self.timeout else { return finished.await };
        if let Ok(finished) = timeout(Duration::from_millis(limit.0), &mut finished).await {
            return finished;
        }
        let known = unfinished.borrow().clone();
        match &unfinished_jobs(cell, known).await[..] {
            // Nothing is left to wait for, only the results to print.
            [] => finished.await,
            overdue => Err(timeout_failure(overdue, limit)),
        }
    }
}

fn timeout_failure(unfinished: &[JobKey], limit: Span) -> Failure {
    let span = match limit {
        Span(short @ 1..1000) => format!("{short} ms"),
        long => crate::format::duration(long),
    };
    match unfinished {
        [single] => Failure::Operation {
            message: format!("{single} is not over after {span}"),
            next: format!("cell status {single}, or wait on: cell wait {single}"),
        },
        many => Failure::Operation {
            message: format!(
                "{} jobs are not over after {span}: {}",
                many.len(),
                first_names(many)
            ),
            next: "see how they stand: cell status; or wait on: the same command".into(),
        },
    }
}

/// The final result of a job that was waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WaitResult {
    pub job: String,
    pub outcome: Outcome,
    /// The first task that did not finish successfully.
    pub task: Option<String>,
    /// The exit code of the command.
    pub exit: u8,
    /// A message for people.
    pub text: String,
    /// Whether the task could not even start, so that its output does not say why.
    #[serde(skip)]
    pub never_started: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Finished,
    Failed,
    Stopped,
    NeverRan,
    /// The job is still pending, and the wait for a placement has timed out.
    NotPlaced,
}

impl WaitResult {
    /// Prints the result for a person; `named`: several jobs are waited for, and each result names
    /// its job.
    fn print(&self, named: bool) -> Result<(), Failure> {
        let text = &self.text;
        match (self.outcome, &self.task) {
            (Outcome::NotPlaced, _) => {
                crate::output::note!("{}", not_placed_text(&self.job, text));
                Ok(())
            }
            (Outcome::Finished, _) if named => print_prose(&format!("{}: {text}\n", self.job)),
            (_, Some(task)) if self.never_started => {
                print_prose(&format!("{task} {text}\nnext: cell explain {task}\n"))
            }
            (_, Some(task)) => print_prose(&format!("{task} {text}\n")),
            _ => print_prose(&format!("{text}\n")),
        }
    }

    /// What went wrong, beside the output.
    fn print_note(&self) {
        let text = &self.text;
        match (self.outcome, &self.task) {
            (Outcome::Finished, _) => {}
            (Outcome::NotPlaced, _) => {
                crate::output::note!("{}", not_placed_text(&self.job, text));
            }
            (_, Some(task)) => crate::output::note!("{task} {text}"),
            _ => crate::output::note!("{text}"),
        }
    }

    fn success(&self) -> Success {
        match self.outcome {
            Outcome::Finished => Success::Done,
            Outcome::NotPlaced => Success::DoesNotFit,
            _ => Success::ExitWith(self.exit),
        }
    }
}

/// Waits for jobs or tasks.
struct Waiter<'a> {
    cell: &'a Cell,
    placement_timeout: PlacementTimeout,
    /// Prints their output meanwhile.
    follow: bool,
    /// How it ended is told beside the output, and only where something went wrong.
    is_attached: bool,
    output: Output,
}

impl Waiter<'_> {
    fn log_options(&self) -> LogOptions {
        if self.is_attached { LogOptions::attached() } else { LogOptions::following() }
    }

    /// Waits until all have ended; returns the result of the first that did not finish
    /// successfully. Ended ones move from `unfinished` to `results`.
    async fn wait_all(
        &self,
        targets: &[Target],
        unfinished: &RefCell<Vec<JobKey>>,
        results: &mut Vec<WaitResult>,
    ) -> Result<Success, Failure> {
        let (mut worst, several) = (Success::Done, targets.len() > 1);
        for target in targets {
            let finished = async {
                if self.follow {
                    follow(self.cell, target, self.log_options()).await
                } else {
                    wait_until_over(self.cell, target, StatusLine::if_terminal()).await
                }
            };
            let ended = self.placement_timeout.wait_or_give_up(self.cell, target, finished).await?;
            match self.output {
                Output::Table if self.is_attached => ended.print_note(),
                Output::Table => ended.print(several)?,
                Output::Json => {}
            }
            if worst == Success::Done {
                worst = ended.success();
            }
            // A job that was not placed stays in `unfinished`.
            if ended.outcome != Outcome::NotPlaced {
                unfinished.borrow_mut().retain(|other| *other != target.job);
            }
            results.push(ended);
        }
        Ok(worst)
    }
}

/// Waits until a job that is stopping has ended; returns false after `limit`.
pub async fn is_over_within(cell: &Cell, job: &JobKey, limit: Duration) -> Result<bool, Failure> {
    let target = Target { job: job.clone(), tasks: None };
    let finished = wait_until_over(cell, &target, StatusLine::if_terminal());
    match timeout(limit, finished).await {
        Ok(ended) => ended.map(|_| true),
        Err(_) => Ok(false),
    }
}

/// After ctrl-c, the command takes no longer than this to find out which jobs still run.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum number of running jobs that are named.
const MAX_NAMED_JOBS: usize = 5;

/// The jobs that have not ended. They are waited for one after the other, so one whose turn has not
/// come may have ended long ago; one whose status does not arrive in time is assumed to run.
async fn unfinished_jobs(cell: &Cell, jobs: Vec<JobKey>) -> Vec<JobKey> {
    let (latest, mut unfinished) = (Instant::now() + LEAVE_TIMEOUT, Vec::new());
    for job in jobs {
        let is_over = match timeout_at(latest, cell.client.job(&job)).await {
            Ok(Ok(found)) => matches!(found.value.item.state, JobState::Dead(_)),
            Ok(Err(ClientError::Api(error))) => error.code == Code::NoSuchJob,
            Ok(Err(_)) | Err(_) => false,
        };
        if !is_over {
            unfinished.push(job);
        }
    }
    unfinished
}

fn still_running_text(jobs: &[JobKey]) -> String {
    match jobs {
        [] => "all of it is over\nnext: cell status".to_owned(),
        [single] => format!(
            "{single} goes on without you\n\
             next: cell logs -f {single}\n\
             or wait on: cell wait {single}, or end it: cell stop {single}"
        ),
        [first, ..] => {
            let number = crate::format::pluralize(jobs.len() as u64, "job");
            let text = format!("{number} go on without you: {}", first_names(jobs));
            format!("{}next: cell status, or cell logs -f {first}", wrap("", "  ", &text))
        }
    }
}

/// The first few names, and how many more there are.
fn first_names(jobs: &[JobKey]) -> String {
    let named: Vec<String> = jobs.iter().take(MAX_NAMED_JOBS).map(ToString::to_string).collect();
    let more = match jobs.len().saturating_sub(MAX_NAMED_JOBS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", named.join(", "))
}

/// The exit code for a job that no machine takes. A task may exit with the same code; the message
/// tells them apart.
const NOT_PLACED_EXIT_CODE: u8 = 3;

/// Follows the placement, then the output, then the end.
async fn follow(
    cell: &Cell,
    target: &Target,
    log_options: LogOptions,
) -> Result<WaitResult, Failure> {
    follow_placement(cell, &target.job).await?;
    let (output_result, ended) =
        tokio::join!(log_options.show(cell, target), wait_until_over(cell, target, None));
    // Unreadable output does not change the result.
    if let Err(failure) = output_result {
        crate::output::note!("output: {failure}");
    }
    ended
}

/// Reports the placement of tasks, until each has been placed.
async fn follow_placement(cell: &Cell, key: &JobKey) -> Result<(), Failure> {
    let filter = JobFilter { user: Some(key.user.clone()), ..JobFilter::default() };
    let mut watch = cell.client.watch_jobs(&filter, None);
    let mut printed = String::new();
    while let Some(job) = next_view(&mut watch, key).await? {
        let now = status_text::task_counts(&job.tasks);
        if now != printed {
            crate::output::note!("{key}: {now}");
            printed = now;
        }
        let is_waiting = job.tasks.pending + job.tasks.deferred + job.tasks.assigned > 0;
        let target = Target { job: key.clone(), tasks: None };
        // Of a job that is placed a part at a time, the last place comes when it is almost over.
        let is_throttled = job.spec.spread.iter().any(|limit| limit.domain == Domain::Cell);
        let tasks = fetch_tasks(cell, &target).await?;
        let mut placed = tasks.iter().map(|task| task.attempt > 0);
        if !is_waiting || (is_throttled && placed.clone().any(|is| is)) || placed.all(|is| is) {
            return Ok(());
        }
    }
    Ok(())
}

/// Waits for the end of a job, or of some of its tasks; `status_line` shows the status meanwhile.
async fn wait_until_over(
    cell: &Cell,
    target: &Target,
    mut status_line: Option<StatusLine>,
) -> Result<WaitResult, Failure> {
    let key = &target.job;
    // Fetched first, so that an unknown job is an error at once.
    cell.client.job(key).await?;
    let filter = JobFilter { user: Some(key.user.clone()), ..JobFilter::default() };
    let mut watch = cell.client.watch_jobs(&filter, None);
    loop {
        let Some(job) = next_view(&mut watch, key).await? else {
            return Err(Failure::Operation {
                message: format!("job {key} is forgotten: nothing tells how it ended"),
                next: "look among the events: cell events".into(),
            });
        };
        let finished = match &target.tasks {
            None => matches!(job.state, JobState::Dead(_)),
            Some(_) => true,
        };
        if !finished {
            if let Some(status_line) = &mut status_line {
                status_line
                    .update(vec![format!("{key}: {}", status_text::task_counts(&job.tasks))]);
            }
            continue;
        }
        let tasks = fetch_tasks(cell, target).await?;
        if tasks.iter().all(|task| task.state.is_dead()) {
            return Ok(with_start_error(cell, key, &tasks, summarize(&tasks, key)).await);
        }
    }
}

/// The next view of the job; nothing once it is gone.
pub async fn next_view(
    watch: &mut Watch<JobView>,
    key: &JobKey,
) -> Result<Option<JobView>, Failure> {
    loop {
        let event = watch.next().await?;
        match (event.kind.as_str(), event.data) {
            ("job", Some(job)) if job.user == key.user && job.name == key.job => {
                return Ok(Some(job));
            }
            ("gone", _) if is_about(&event.text, key) => return Ok(None),
            _ => {}
        }
    }
}

fn is_about(gone: &str, key: &JobKey) -> bool {
    let gone: serde_json::Value = serde_json::from_str(gone).unwrap_or_default();
    gone["user"] == key.user.as_str() && gone["job"] == key.job.as_str()
}

async fn fetch_tasks(cell: &Cell, target: &Target) -> Result<Vec<TaskView>, Failure> {
    let mut tasks = super::pagination::tasks(cell, &target.job).await?;
    if let Some(some) = &target.tasks {
        tasks.retain(|task| some.contains(&task.index));
        if tasks.len() != some.len() {
            return Err(Failure::Operation {
                message: format!("{} has no such task", target.job),
                next: format!("cell status {}", target.job),
            });
        }
    }
    Ok(tasks)
}

fn not_placed_text(job: &str, why: &str) -> String {
    let text = sentences("  ", "    ", why);
    format!(
        "{job} is not placed and stays in the queue\n{}\n\
         next: cell explain {job}, or take it back: cell stop {job}",
        text.trim_end()
    )
}

fn summarize(tasks: &[TaskView], job: &JobKey) -> WaitResult {
    let (job, ended) = (job.to_string(), |task: &&TaskView| failure_outcome(task.state).is_some());
    let Some(task) = tasks.iter().find(ended) else {
        let text = format!("{} finished", crate::format::pluralize(tasks.len() as u64, "task"));
        let (outcome, never_started) = (Outcome::Finished, false);
        return WaitResult { job, outcome, task: None, exit: 0, text, never_started };
    };
    let note = status_text::note(task, crate::clock::now());
    let note = if note.is_empty() { String::new() } else { format!(": {note}") };
    WaitResult {
        job,
        outcome: failure_outcome(task.state).unwrap_or(Outcome::Failed),
        task: Some(task.name.clone()),
        exit: exit_code(task.state),
        text: format!("{}{note}", status_text::state(task)),
        never_started: task.state == TaskState::Dead(TaskOutcome::Failed(ExitClass::CouldNotStart)),
    }
}

/// Adds the machine's error if the task could not start, if it can be fetched.
async fn with_start_error(
    cell: &Cell,
    key: &JobKey,
    tasks: &[TaskView],
    mut ended: WaitResult,
) -> WaitResult {
    let is_failed_task = |task: &&TaskView| ended.task.as_ref() == Some(&task.name);
    let Some(task) = tasks.iter().find(is_failed_task).filter(|_| ended.never_started) else {
        return ended;
    };
    for start_error in fetch_start_errors(cell, key, std::slice::from_ref(task)).await {
        ended.text = format!("{}: {}", ended.text, start_error.message);
    }
    ended
}

/// The outcome of a task that did not finish successfully.
fn failure_outcome(state: TaskState) -> Option<Outcome> {
    match state {
        TaskState::Dead(TaskOutcome::Finished) => None,
        TaskState::Dead(TaskOutcome::Killed) => Some(Outcome::Stopped),
        TaskState::Dead(TaskOutcome::DependencyFailed) => Some(Outcome::NeverRan),
        _ => Some(Outcome::Failed),
    }
}

/// The exit code of a task, numbered as shells do.
fn exit_code(state: TaskState) -> u8 {
    match state {
        TaskState::Dead(TaskOutcome::Finished) => 0,
        TaskState::Dead(TaskOutcome::Failed(ExitClass::Code(code))) => {
            u8::try_from(code).ok().filter(|code| *code != 0).unwrap_or(1)
        }
        TaskState::Dead(TaskOutcome::Failed(ExitClass::Signal(signal))) => {
            u8::try_from(signal).ok().and_then(|signal| signal.checked_add(128)).unwrap_or(1)
        }
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_ends_with_three_is_told_from_one_that_has_no_place() {
        let task: TaskView = serde_json::from_value(serde_json::json!({
            "name": "dev/sums/0", "index": 0, "state": {"dead": {"failed": {"code": 3}}},
            "healthy": true, "attempt": 1, "version": 1, "machine": null, "alloc": null,
            "limits": {"cpu": 1, "ram": 1}, "reservation": {"cpu": 1, "ram": 1},
            "ports": [], "devices": [], "waits_for": [], "failures_in_row": 1,
            "not_before": 0, "changed_at": 0, "crashed_on": [],
        }))
        .unwrap();
        let name = |text: &str| cellwright_cell::name::Name::new(text).unwrap();
        let key = JobKey { user: name("dev"), job: name("sums") };
        let state = TaskState::Dead(TaskOutcome::Failed(ExitClass::CouldNotStart));
        let unable = summarize(&[TaskView { state, ..task.clone() }], &key);
        assert_eq!((unable.never_started, unable.exit), (true, 1));
        assert_eq!(unable.text, "failed: could not start");
        let failed = summarize(&[task], &key);
        assert_eq!((failed.outcome, failed.exit), (Outcome::Failed, 3));
        assert_eq!(failed.text, "failed: exit code 3");
        let not_placed = WaitResult { outcome: Outcome::NotPlaced, ..failed.clone() };
        let json = |ended: &WaitResult| serde_json::to_value(ended).unwrap()["outcome"].clone();
        assert_eq!([json(&failed), json(&not_placed)], ["failed", "not_placed"]);
        assert_eq!(not_placed.success(), Success::DoesNotFit);
        assert_eq!(failed.success(), Success::ExitWith(3));
        assert!(!failed.never_started);
    }

    #[test]
    fn whoever_leaves_is_told_what_goes_on_and_how_to_follow_it() {
        let key = |job: &str| {
            let name = |text: &str| cellwright_cell::name::Name::new(text).unwrap();
            JobKey { user: name("dev"), job: name(job) }
        };
        let single = still_running_text(&[key("web")]);
        assert!(single.starts_with("dev/web goes on without you\nnext: cell logs -f dev/web\n"));
        assert!(
            single.contains("cell wait dev/web") && single.contains("cell stop dev/web"),
            "{single}"
        );
        let two = still_running_text(&[key("web"), key("db")]);
        let expected =
            "2 jobs go on without you: dev/web, dev/db\nnext: cell status, or cell logs -f ";
        assert!(two.starts_with(expected), "{two}");
        let many: Vec<JobKey> = (0..7).map(|n| key(&format!("a-rather-long-name-{n}"))).collect();
        let many = still_running_text(&many);
        assert!(many.lines().all(|line| line.len() <= crate::table::WIDTH), "{many}");
        let flat = many.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains("name-3, dev/a-rather-long-name-4 and 2 more next: "), "{many}");
        assert!(still_running_text(&[]).starts_with("all of it is over"));
    }

    #[test]
    fn whoever_gives_up_is_told_after_how_long() {
        let name = |text: &str| cellwright_cell::name::Name::new(text).unwrap();
        let web = JobKey { user: name("dev"), job: name("web") };
        let message = |left: &[JobKey], ms: u64| timeout_failure(left, Span(ms)).to_string();
        for (ms, span) in [(0, "0 s"), (10, "10 ms"), (999, "999 ms"), (1000, "1 s")] {
            let message = message(std::slice::from_ref(&web), ms);
            assert!(message.contains(&format!("dev/web is not over after {span}")), "{message}");
        }
        let two = message(&[web.clone(), JobKey { job: name("db"), ..web.clone() }], 250);
        assert!(two.contains("2 jobs are not over after 250 ms: dev/web, dev/db"), "{two}");
    }

    #[test]
    fn the_code_is_the_tasks_own() {
        let failed = |class| exit_code(TaskState::Dead(TaskOutcome::Failed(class)));
        assert_eq!(exit_code(TaskState::Dead(TaskOutcome::Finished)), 0);
        assert_eq!(failed(ExitClass::Code(7)), 7);
        assert_eq!(failed(ExitClass::Code(70_000)), 1);
        assert_eq!(failed(ExitClass::Signal(9)), 137);
        assert_eq!(failed(ExitClass::OutOfMemory), 1);
        assert_eq!(exit_code(TaskState::Dead(TaskOutcome::Killed)), 1);
    }
}
