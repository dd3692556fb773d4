//! One job with its tasks, or with some of them; and many jobs, a line each.

use crate::clock;
use crate::commands::pages;
use crate::commands::tell;
use crate::failure::Failure;
use crate::format;
use crate::output::{aside, is_wide, say};
use crate::reach::Cell;
use crate::table::{self, wrapped};
use cellwright_api::output::{OutputQuery, Stream};
use cellwright_api::types::{JobView, TaskView};
use cellwright_cell::job::Update;
use cellwright_cell::name::JobKey;
use cellwright_cell::reason::Reason;
use cellwright_cell::task::{ExitClass, Fate, TaskState};
use cellwright_cell::time::Time;
use cellwright_sim::experiment::load::Units;
use serde::Serialize;

/// Tasks shown of one job in a table; JSON has all.
const SHOWN_TASKS: usize = 40;
/// Tasks that could not start whose words are fetched.
const ASKED: usize = 3;

#[derive(Serialize)]
pub struct JobStatus {
    pub job: JobView,
    pub tasks: Vec<TaskView>,
    /// Why tasks could not start, in the words of their machines, by task.
    pub words: Vec<Words>,
}

impl JobStatus {
    /// Of each task.
    pub fn task_names(&self) -> Vec<String> {
        self.tasks.iter().map(|task| task.name.clone()).collect()
    }

    /// Of the job.
    pub fn job_name(&self) -> String {
        format!("{}/{}", self.job.user, self.job.name)
    }
}

/// What the machine said of a task.
#[derive(Serialize)]
pub struct Words {
    pub task: String,
    pub said: String,
}

/// `indexes`: which tasks; absent: all.
pub async fn read(
    cell: &Cell,
    key: &JobKey,
    indexes: Option<&[u32]>,
) -> Result<JobStatus, Failure> {
    let job = cell.client.job(key).await?.value.item;
    let tasks = match indexes {
        None => pages::tasks(cell, key).await?,
        Some([one]) => vec![cell.client.task(key, *one).await?.value.item],
        Some(some) => {
            let mut tasks = pages::tasks(cell, key).await?;
            tasks.retain(|task| some.contains(&task.index));
            // Of a range without a task the cell says why: the first is one that it has not.
            if let (true, Some(first)) = (tasks.is_empty(), some.first()) {
                tasks.push(cell.client.task(key, *first).await?.value.item);
            }
            tasks
        }
    };
    let words = words_of_starts(cell, key, &tasks).await;
    Ok(JobStatus { job, tasks, words })
}

/// What kept tasks from starting. The cell writes it at the end of their log; who cannot read that,
/// or whose machine does not answer, is told the rest without it.
pub async fn words_of_starts(cell: &Cell, key: &JobKey, tasks: &[TaskView]) -> Vec<Words> {
    let mut found = Vec::new();
    for task in tasks.iter().filter(|task| could_not_start(task)).take(ASKED) {
        let attempt = task.last_end.as_ref().map(|end| end.attempt);
        let query = OutputQuery {
            stream: Stream::Stderr,
            attempt,
            lines: Some(1),
            ..OutputQuery::default()
        };
        let said = cell.client.output(key, task.index, &query).await;
        let said = said.map(|piece| piece.value.text.trim().to_owned()).unwrap_or_default();
        let said = said.strip_prefix("[cell: ").and_then(|said| said.strip_suffix(']'));
        if let Some(said) = said {
            found.push(Words { task: task.name.clone(), said: said.to_owned() });
        }
    }
    found
}

fn could_not_start(task: &TaskView) -> bool {
    let cause = Reason::Exited(ExitClass::CouldNotStart);
    task.state == TaskState::Dead(Fate::Failed(ExitClass::CouldNotStart))
        || (tell::is_failing(task) && task.last_end.as_ref().is_some_and(|end| end.why == cause))
}

/// Jobs for people, or that there are none; `some`: only those that are like something.
pub fn show_list(jobs: &[JobView], some: bool) -> Result<(), Failure> {
    match (jobs.is_empty(), some) {
        (true, true) => aside("no job is like that; next: cell job status"),
        (true, false) => aside("no jobs; next: cell run examples/hello.json"),
        (false, _) => say(&list(jobs, clock::now()))?,
    }
    Ok(())
}

/// Jobs, a line each.
fn list(jobs: &[JobView], now: Time) -> String {
    let rows: Vec<Vec<String>> = jobs
        .iter()
        .map(|job| {
            let mut row = vec![
                format!("{}/{}", job.user, job.name),
                tell::job_state(job).into(),
                job.spec.priority.0.to_string(),
                format::since(job.submitted_at, now),
            ];
            if is_wide() {
                row.push(format!("{}", job.version));
                row.push(amounts(&job.spec.task.limits));
            }
            row.push(tell::counts_of(job));
            row
        })
        .collect();
    match is_wide() {
        true => table::render_told(
            &["job", "state", "priority", "age", "version", "limits", "tasks"],
            &rows,
        ),
        false => table::render_told(&["job", "state", "priority", "age", "tasks"], &rows),
    }
}

pub fn amounts(limits: &cellwright_cell::resource::Resources) -> String {
    let amount = |dimension, amount| format::amount(Units::CoresAndBytes, dimension, amount);
    format!("{}, {}", amount("cpu", limits.cpu), amount("ram", limits.ram))
}

/// Tasks, a line each.
pub fn rows_of_tasks(tasks: &[TaskView], now: Time) -> String {
    let rows: Vec<Vec<String>> = tasks
        .iter()
        .map(|task| {
            let mut row = vec![
                task.index.to_string(),
                tell::state(task),
                task.machine.as_ref().map_or("-".into(), ToString::to_string),
                task.attempt.to_string(),
                format::since(task.changed_at, now),
            ];
            if is_wide() {
                let ports: Vec<String> = task.ports.iter().map(ToString::to_string).collect();
                row.push(amounts(&task.limits));
                row.push(amounts(&task.reservation));
                row.push(ports.join(" "));
            }
            row.push(tell::note(task, now));
            row
        })
        .collect();
    match is_wide() {
        true => {
            let header =
                ["task", "state", "machine", "try", "since", "limits", "reserved", "ports", ""];
            table::render_told(&header, &rows)
        }
        false => table::render_told(&["task", "state", "machine", "try", "since", ""], &rows),
    }
}

pub fn shown(status: &JobStatus, now: Time) -> String {
    let JobStatus { job, tasks, words } = status;
    let key = format!("{}/{}", job.user, job.name);
    let mut out = format!(
        "{key}: {}, priority {}, version {}, {}\n",
        tell::job_state(job),
        job.spec.priority.0,
        job.version,
        tell::counts_of(job),
    );
    out.push_str(&format!("submitted {} ago\n", format::since(job.submitted_at, now)));
    if !job.waits_for.is_empty() {
        let before: Vec<String> = job.waits_for.iter().map(ToString::to_string).collect();
        out.push_str(&wrapped("starts after ", "  ", &before.join(", ")));
    }
    if let Some(update) = &job.update {
        out.push_str(&updating(&key, update, job.update_complete));
    }
    out.push('\n');
    out.push_str(&rows_of_tasks(&tasks[..tasks.len().min(SHOWN_TASKS)], now));
    let more = tasks.len().saturating_sub(SHOWN_TASKS);
    if more > 0 {
        out.push_str(&format!("... and {} more: -o json\n", format::count(more as u64)));
    }
    for Words { task, said } in words {
        out.push_str(&wrapped(&format!("\n{task} could not start: "), "  ", said));
    }
    out.push_str(&next(&key, tasks));
    out
}

fn updating(key: &str, update: &Update, is_complete: bool) -> String {
    let skipped = match update.skipped.len() {
        0 => String::new(),
        some => format!(", {} skipped", format::counted(some as u64, "task")),
    };
    let way = if update.undoing { "undoing" } else { "update" };
    let (from, to) = (update.from, update.to);
    let disrupted = format::counted(u64::from(update.disruptions), "disruption");
    let complete = if is_complete { "complete, not closed yet, " } else { "" };
    let text = format!("{complete}{disrupted}{skipped}; cell update {key}");
    wrapped(&format!("{way} from version {from} to {to}: "), "  ", &text)
}

/// What to type next about the first task that needs it.
fn next(key: &str, tasks: &[TaskView]) -> String {
    if let Some(task) = tasks.iter().find(|task| tell::is_failing(task)) {
        let index = task.index;
        // The log of one that runs again is that of the attempt that is well.
        return match &task.last_end {
            Some(end) if task.state.on_machine() => format!(
                "\nwhy it failed: cell logs {key}/{index} --stderr --attempt {}\n",
                end.attempt
            ),
            _ => format!("\nwhy it fails: cell logs {key}/{index} --stderr\n"),
        };
    }
    let pending = |task: &&TaskView| task.state == TaskState::Pending;
    match tasks.iter().find(pending) {
        Some(task) => format!("\nwhy it waits: cell explain {key}/{}\n", task.index),
        None => String::new(),
    }
}
