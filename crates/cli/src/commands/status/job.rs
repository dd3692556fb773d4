//! The status of one job with all or some of its tasks; and lists of jobs, one line each.

use crate::clock;
use crate::commands::pagination;
use crate::commands::status_text;
use crate::commands::update::{rolled_back_text, skipped_text};
use crate::commands::wait::goal;
use crate::connection::Cell;
use crate::failure::Failure;
use crate::format;
use crate::output::{is_wide, print_notice, print_prose};
use crate::table::{self, wrap};
use cellwright_api::output::{OutputQuery, StreamSelection};
use cellwright_api::types::{JobView, TaskView};
use cellwright_cell::job::Update;
use cellwright_cell::name::JobKey;
use cellwright_cell::reason::Reason;
use cellwright_cell::task::{ExitClass, TaskOutcome, TaskState};
use cellwright_cell::time::Time;
use cellwright_sim::experiment::load::Units;
use serde::Serialize;

/// The maximum number of a job's tasks in a table; JSON has all.
const MAX_TASK_ROWS: usize = 40;
/// The maximum number of tasks whose start errors are fetched.
const MAX_START_ERRORS: usize = 3;

#[derive(Serialize)]
pub struct JobStatus {
    pub job: JobView,
    pub tasks: Vec<TaskView>,
    /// Why tasks could not start, as reported by their machines, by task.
    pub words: Vec<StartError>,
}

impl JobStatus {
    /// The names of the tasks.
    pub fn task_names(&self) -> Vec<String> {
        self.tasks.iter().map(|task| task.name.clone()).collect()
    }

    /// The name of the job.
    pub fn job_name(&self) -> String {
        format!("{}/{}", self.job.user, self.job.name)
    }
}

/// A machine's report why a task could not start.
#[derive(Serialize)]
pub struct StartError {
    pub task: String,
    pub message: String,
}

/// `indexes`: which tasks; absent: all.
pub async fn read(
    cell: &Cell,
    key: &JobKey,
    indexes: Option<&[u32]>,
) -> Result<JobStatus, Failure> {
    let job = cell.client.job(key).await?.value.item;
    let tasks = match indexes {
        None => pagination::tasks(cell, key).await?,
        Some([single]) => vec![cell.client.task(key, *single).await?.value.item],
        Some(some) => {
            let mut tasks = pagination::tasks(cell, key).await?;
            tasks.retain(|task| some.contains(&task.index));
            // For a range without an existing task, the cell's error for the first index says why.
            if let (true, Some(first)) = (tasks.is_empty(), some.first()) {
                tasks.push(cell.client.task(key, *first).await?.value.item);
            }
            tasks
        }
    };
    let words = fetch_start_errors(cell, key, &tasks).await;
    Ok(JobStatus { job, tasks, words })
}

/// Fetches the start errors of tasks. The cell writes them at the end of their log; if the log may
/// not be read, or the machine does not answer, the status is shown without them.
pub async fn fetch_start_errors(cell: &Cell, key: &JobKey, tasks: &[TaskView]) -> Vec<StartError> {
    let mut found = Vec::new();
    for task in tasks.iter().filter(|task| could_not_start(task)).take(MAX_START_ERRORS) {
        let attempt = task.last_end.as_ref().map(|end| end.attempt);
        let query = OutputQuery {
            stream: StreamSelection::Stderr,
            attempt,
            lines: Some(1),
            ..OutputQuery::default()
        };
        let stderr_line = cell.client.output(key, task.index, &query).await;
        let stderr_line =
            stderr_line.map(|piece| piece.value.text.trim().to_owned()).unwrap_or_default();
        let stderr_line =
            stderr_line.strip_prefix("[cell: ").and_then(|message| message.strip_suffix(']'));
        if let Some(stderr_line) = stderr_line {
            found.push(StartError { task: task.name.clone(), message: stderr_line.to_owned() });
        }
    }
    found
}

fn could_not_start(task: &TaskView) -> bool {
    let cause = Reason::Exited(ExitClass::CouldNotStart);
    task.state == TaskState::Dead(TaskOutcome::Failed(ExitClass::CouldNotStart))
        || (status_text::is_failing(task)
            && task.last_end.as_ref().is_some_and(|end| end.why == cause))
}

/// Prints jobs for people, or that there are none; `is_filtered`: the list was filtered.
pub fn print_jobs(jobs: &[JobView], is_filtered: bool) -> Result<(), Failure> {
    match (jobs.is_empty(), is_filtered) {
        (true, true) => print_notice("no job is like that; next: cell job status"),
        (true, false) => print_notice("no jobs; next: cell run examples/hello.json"),
        (false, _) => print_prose(&render_list(jobs, clock::now()))?,
    }
    Ok(())
}

/// Renders jobs, one line each.
fn render_list(jobs: &[JobView], now: Time) -> String {
    let rows: Vec<Vec<String>> = jobs
        .iter()
        .map(|job| {
            let mut row = vec![
                format!("{}/{}", job.user, job.name),
                status_text::job_state(job).into(),
                job.spec.priority.0.to_string(),
                format::elapsed(job.submitted_at, now),
            ];
            if is_wide() {
                row.push(format!("{}", job.version));
                row.push(limits_text(&job.spec.task.limits));
            }
            row.push(status_text::job_task_counts(job));
            row
        })
        .collect();
    if is_wide() {
        table::render_with_text_column(
            &["job", "state", "priority", "age", "version", "limits", "tasks"],
            &rows,
        )
    } else {
        table::render_with_text_column(&["job", "state", "priority", "age", "tasks"], &rows)
    }
}

pub fn limits_text(limits: &cellwright_cell::resource::Resources) -> String {
    let amount = |dimension, amount| format::amount(Units::CoresAndBytes, dimension, amount);
    format!("{}, {}", amount("cpu", limits.cpu), amount("ram", limits.ram))
}

/// Where it is; of a daemon's task, where it belongs.
fn machine_text(task: &TaskView) -> String {
    task.machine.as_ref().or(task.machine_for.as_ref()).map_or("-".into(), ToString::to_string)
}

/// Renders tasks, one line each.
pub fn render_tasks(tasks: &[TaskView], now: Time) -> String {
    let rows: Vec<Vec<String>> = tasks
        .iter()
        .map(|task| {
            let mut row = vec![
                task.index.to_string(),
                status_text::state(task),
                machine_text(task),
                task.attempt.to_string(),
                format::elapsed(task.changed_at, now),
            ];
            if is_wide() {
                let ports: Vec<String> = task.ports.iter().map(ToString::to_string).collect();
                row.push(limits_text(&task.limits));
                row.push(limits_text(&task.reservation));
                row.push(ports.join(" "));
            }
            row.push(status_text::note(task, now));
            row
        })
        .collect();
    if is_wide() {
        let header =
            ["task", "state", "machine", "try", "since", "limits", "reserved", "ports", ""];
        table::render_with_text_column(&header, &rows)
    } else {
        table::render_with_text_column(&["task", "state", "machine", "try", "since", ""], &rows)
    }
}

/// Renders the tasks of a machine, which are of many jobs.
pub fn render_bound(tasks: &[TaskView], now: Time) -> String {
    if tasks.is_empty() {
        return String::new();
    }
    let row = |task: &TaskView| {
        let since = format::elapsed(task.changed_at, now);
        let note = status_text::note(task, now);
        vec![task.name.clone(), status_text::state(task), task.attempt.to_string(), since, note]
    };
    let rows: Vec<Vec<String>> = tasks.iter().take(MAX_TASK_ROWS).map(row).collect();
    let header = ["task", "state", "try", "since", ""];
    format!("\n{}{}", table::render_with_text_column(&header, &rows), more_text(tasks))
}

/// How many tasks are not in the table.
fn more_text(tasks: &[TaskView]) -> String {
    match tasks.len().saturating_sub(MAX_TASK_ROWS) {
        0 => String::new(),
        more => format!("... and {} more: -o json\n", format::count(more as u64)),
    }
}

pub fn render(status: &JobStatus, now: Time) -> String {
    let JobStatus { job, tasks, words } = status;
    // Tasks of machines that left a daemon are history, and JSON has them.
    let gone = |task: &TaskView| job.daemon.is_some() && !job.wants(task) && task.state.is_dead();
    let tasks: Vec<TaskView> = tasks.iter().filter(|task| !gone(task)).cloned().collect();
    let tasks = &tasks[..];
    let key = format!("{}/{}", job.user, job.name);
    let mut out = format!(
        "{key}: {}, priority {}, version {}, {}\n",
        status_text::job_state(job),
        job.spec.priority.0,
        job.version,
        status_text::job_task_counts(job),
    );
    out.push_str(&format!("submitted {} ago\n", format::elapsed(job.submitted_at, now)));
    if !job.waits_for.is_empty() {
        let dependencies: Vec<String> = job.waits_for.iter().map(ToString::to_string).collect();
        out.push_str(&wrap("starts after ", "  ", &dependencies.join(", ")));
    }
    if let Some(update) = &job.update {
        out.push_str(&update_text(&key, update, job.update_complete));
    }
    if let Some(back) = &job.rolled_back {
        out.push_str(&wrap("", "  ", &rolled_back_text(&key, back)));
    }
    let skipped = goal::skipped(job);
    if skipped > 0 {
        out.push_str(&format!("{}\n", skipped_text(&key, skipped)));
    }
    out.push('\n');
    out.push_str(&render_tasks(&tasks[..tasks.len().min(MAX_TASK_ROWS)], now));
    out.push_str(&more_text(tasks));
    for StartError { task, message } in words {
        out.push_str(&wrap(&format!("\n{task} could not start: "), "  ", message));
    }
    out.push_str(&next_hint(&key, tasks));
    out
}

fn update_text(key: &str, update: &Update, is_complete: bool) -> String {
    let skipped = match update.skipped.len() {
        0 => String::new(),
        some => format!(", {} skipped", format::pluralize(some as u64, "task")),
    };
    let kind = if update.undoing { "undoing" } else { "update" };
    let (from, to) = (update.from, update.to);
    let disrupted = format::pluralize(u64::from(update.disruptions), "disruption");
    let complete = match update.canaries {
        0 if is_complete => "complete, not closed yet, ".to_owned(),
        0 => String::new(),
        some => format!("tried by {} first, ", format::pluralize(u64::from(some), "task")),
    };
    let text = format!("{complete}{disrupted}{skipped}; cell update {key}");
    wrap(&format!("{kind} from version {from} to {to}: "), "  ", &text)
}

/// What to type next about the first task with a problem.
fn next_hint(key: &str, tasks: &[TaskView]) -> String {
    if let Some(task) = tasks.iter().find(|task| status_text::is_failing(task)) {
        let index = task.index;
        // The log of a restarted task is that of its current attempt, which is healthy.
        return match &task.last_end {
            Some(end) if task.state.is_on_machine() => {
                format!("\nwhy it failed: cell logs {key}/{index} --attempt {}\n", end.attempt)
            }
            _ => format!("\nwhy it fails: cell logs {key}/{index}\n"),
        };
    }
    let pending = |task: &&TaskView| task.state == TaskState::Pending;
    match tasks.iter().find(pending) {
        Some(task) => format!("\nwhy it waits: cell explain {key}/{}\n", task.index),
        None => String::new(),
    }
}
