//! `cell archive`: what is in the archive of a cell, and how the archive is doing. Jobs that the
//! cell has forgotten are shown, and made into files that run again; output of tasks is read whose
//! machines are gone.

use super::describe::without_empty;
use super::logs::ArchivedOutput;
use super::{Success, pagination, parse};
use crate::args::OutputArgs;
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print, print_json, print_notice, print_prose, yaml};
use crate::runtime::block_on;
use crate::table;
use cellwright_api::types::{
    ArchiveStatus, ArchivedDay, ArchivedJob, ArchivedJobRow, ArchivedLogRow, RestoreHistory,
    RestoredHistory,
};
use cellwright_cell::isolation::REDACTED;
use cellwright_cell::job::{JobOutcome, JobState};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::{Span, Time};
use cellwright_lang::to_source;
use clap::{Args, Subcommand, ValueEnum};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  cell archive ls
  cell archive ls logs dev/hello
  cell archive show dev/hello
  cell archive logs dev/hello/0
  cell archive restore dev/hello --to hello.yaml
  cell archive restore-history 2026-11-01 2026-11-07
  cell archive status

Where the archive is and for how long it keeps what is in it: `archive` in the
configuration of the masters. Owners see what is theirs; users with read_specs
see the jobs of all, and those with read_output what their tasks wrote.";

/// Finished jobs, logs and history that the cell keeps for good
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum Archive {
    /// List what is in the archive
    Ls(LsArgs),
    /// Show a job that has ended: how, its versions, its tasks
    Show(ShowArgs),
    /// Print what a task wrote
    Logs(LogsArgs),
    /// Write the spec of a job to a file that `cell run` takes
    Restore(RestoreArgs),
    /// Have `cell sql` see days of history again that the cell has forgotten
    RestoreHistory(RestoreHistoryArgs),
    /// Say how far the archive has come, and what is wrong with it
    Status(StatusArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Jobs,
    Logs,
    History,
}

#[derive(Debug, Args)]
pub struct LsArgs {
    /// What to list
    #[arg(value_enum, default_value = "jobs")]
    kind: Kind,

    /// Of logs: of which job
    #[arg(value_name = "JOB", required_if_eq("kind", "logs"))]
    job: Option<String>,

    /// Only jobs of this user
    #[arg(long, value_name = "USER", value_parser = parse::name)]
    user: Option<Name>,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    output: OutputArgs,
}

/// A job of the archive.
#[derive(Debug, Args)]
struct Which {
    /// Which
    #[arg(value_name = "JOB")]
    job: String,

    /// When it was submitted, as `cell archive ls -o json` says [default: the last of its name]
    #[arg(long, value_name = "MILLISECONDS")]
    submitted: Option<u64>,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Which task
    #[arg(value_name = "TASK")]
    task: String,

    /// Which attempt [default: the last]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: Option<u32>,

    /// When its job was submitted, as `cell archive ls logs` says [default: the last of its name]
    #[arg(long, value_name = "MILLISECONDS")]
    submitted: Option<u64>,

    /// Standard output alone
    #[arg(long, conflicts_with = "stderr")]
    stdout: bool,

    /// Standard error alone
    #[arg(long)]
    stderr: bool,

    /// When each line was written, in front of it
    #[arg(long)]
    timestamps: bool,
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    #[command(flatten)]
    which: Which,

    /// Which version of its spec [default: the last]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    version: Option<u32>,

    /// The file, which must not be there yet [default: standard output]
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct RestoreHistoryArgs {
    /// The first day, such as 2026-11-19
    #[arg(value_name = "DAY")]
    from: String,

    /// The last day [default: the first]
    #[arg(value_name = "LAST_DAY")]
    to: Option<String>,

    /// For how long, at most 30d
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse::duration)]
    keep: Span,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    output: OutputArgs,
}

impl Archive {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        match self {
            Archive::Ls(args) => block_on(args.run(&cell)),
            Archive::Show(args) => block_on(args.run(&cell)),
            Archive::Logs(args) => block_on(args.run(&cell)),
            Archive::Restore(args) => block_on(args.run(&cell)),
            Archive::RestoreHistory(args) => block_on(args.run(&cell)),
            Archive::Status(args) => block_on(args.run(&cell)),
        }?;
        Ok(Success::Done)
    }
}

/// The job that was named; without an owner, one of the caller's own.
fn job_key(cell: &Cell, text: &str) -> Result<JobKey, Failure> {
    let next = "list what there is: cell archive ls";
    let bad = |message: String| Failure::Usage { message, next: next.into() };
    if text.contains('/') {
        return parse::job_key(text).map_err(|why| bad(format!("{text:?}: {why}")));
    }
    let job = Name::new(text).map_err(|why| bad(why.to_string()))?;
    let user = cell.job_owner(None);
    let user = user.ok_or_else(|| bad(format!("{text:?} has no owner; allowed: USER/JOB")))?;
    Ok(JobKey { user, job })
}

impl LsArgs {
    async fn run(self, cell: &Cell) -> Result<(), Failure> {
        match self.kind {
            Kind::Jobs => {
                let user = self.user.as_ref();
                let rows = pagination::fetch_all(async |page| {
                    Ok(cell.client.archived_jobs(user, page).await?.value)
                });
                self.show(&rows.await?, &["job", "submitted", "ended", "size"], job_row)
            }
            Kind::Logs => {
                let key = job_key(cell, self.job.as_deref().unwrap_or_default())?;
                let rows = pagination::fetch_all(async |page| {
                    Ok(cell.client.archived_logs(&key, page).await?.value)
                });
                self.show(&rows.await?, &["task", "attempt", "job submitted", "size"], log_row)
            }
            Kind::History => {
                let rows = pagination::fetch_all(async |page| {
                    Ok(cell.client.archived_days(page).await?.value)
                });
                self.show(&rows.await?, &["table", "day", "size"], day_row)
            }
        }
    }

    fn show<T: serde::Serialize>(
        &self,
        rows: &[T],
        header: &[&str],
        cells: fn(&T) -> Vec<String>,
    ) -> Result<(), Failure> {
        match self.output.output {
            Output::Json => print_json(&rows),
            Output::Table if rows.is_empty() => {
                print_prose("nothing of that is in the archive\nnext: cell archive status\n")
            }
            Output::Table => {
                let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
                print(&table::render(header, &rows))
            }
        }
    }
}

fn job_row(row: &ArchivedJobRow) -> Vec<String> {
    vec![
        format!("{}/{}", row.user, row.name),
        format::utc(row.submitted_at),
        format::utc(row.ended_at),
        format::bytes(row.bytes),
    ]
}

fn log_row(row: &ArchivedLogRow) -> Vec<String> {
    let submitted = format::utc(row.submitted_at);
    vec![row.task.clone(), row.attempt.to_string(), submitted, format::bytes(row.bytes)]
}

fn day_row(row: &ArchivedDay) -> Vec<String> {
    vec![row.table.clone(), row.day.clone(), format::bytes(row.bytes)]
}

impl Which {
    async fn fetch(&self, cell: &Cell) -> Result<ArchivedJob, Failure> {
        let key = job_key(cell, &self.job)?;
        Ok(cell.client.archived_job(&key, self.submitted.map(Time)).await?.value)
    }
}

impl ShowArgs {
    async fn run(self, cell: &Cell) -> Result<(), Failure> {
        let found = self.which.fetch(cell).await?;
        match self.output.output {
            Output::Json => print_json(&found),
            Output::Table => print(&render_job(&found)),
        }
    }
}

fn outcome(state: JobState) -> &'static str {
    match state {
        JobState::Dead(JobOutcome::Succeeded) => "succeeded",
        JobState::Dead(JobOutcome::Failed) => "failed",
        JobState::Dead(JobOutcome::Killed) => "was stopped",
        JobState::Dead(JobOutcome::DependencyFailed) => "never ran: a job before it failed",
        JobState::Deferred | JobState::Active | JobState::Stopping => "has not ended",
    }
}

fn render_job(found: &ArchivedJob) -> String {
    let job = &found.job;
    let key = format!("{}/{}", job.user, job.name);
    let ended = job.ended_at.map_or_else(|| "-".to_owned(), format::utc);
    let submitted = format::utc(job.submitted_at);
    let mut out = format!(
        "job {key} {}\n  submitted {submitted}, ended {ended}\n  priority {}, {}\n",
        outcome(job.state),
        job.spec.priority.0,
        format::pluralize(u64::from(job.tasks.total()), "task"),
    );
    let versions: Vec<Vec<String>> = found
        .versions
        .iter()
        .map(|row| {
            let row = &row.version;
            vec![row.version.to_string(), format::utc(row.at), row.by.clone(), row.change.clone()]
        })
        .collect();
    if !versions.is_empty() {
        let header = ["version", "made", "by", "change"];
        out.push_str(&table::render_with_text_column(&header, &versions));
    }
    let tasks: Vec<Vec<String>> = found
        .tasks
        .iter()
        .map(|task| {
            let end = task.last_end.as_ref();
            vec![
                task.index.to_string(),
                task.attempt.to_string(),
                end.map_or_else(String::new, |end| end.machine.clone()),
                end.map_or_else(String::new, |end| format::utc(end.at)),
                end.map_or_else(|| "never ran".to_owned(), |end| end.text.clone()),
            ]
        })
        .collect();
    if !tasks.is_empty() {
        let header = ["task", "attempts", "machine", "ended", "how"];
        out.push_str(&table::render_with_text_column(&header, &tasks));
    }
    out
}

impl LogsArgs {
    async fn run(self, cell: &Cell) -> Result<(), Failure> {
        let usage = || Failure::Usage {
            message: format!("{:?} is no task; allowed: USER/JOB/INDEX or JOB/INDEX", self.task),
            next: "list whose output there is: cell archive ls logs JOB".into(),
        };
        let (job, index) = self.task.rsplit_once('/').ok_or_else(usage)?;
        let index: u32 = index.parse().map_err(|_| usage())?;
        let key = job_key(cell, job)?;
        let submitted = self.submitted.map(Time);
        let content = cell.client.archived_log(&key, index, submitted, self.attempt).await?;
        let output = ArchivedOutput {
            stdout: !self.stderr,
            stderr: !self.stdout,
            timestamps: self.timestamps,
        };
        output.print(&key, index, &content)
    }
}

impl RestoreArgs {
    async fn run(self, cell: &Cell) -> Result<(), Failure> {
        let found = self.which.fetch(cell).await?;
        let spec = self.spec(&found)?;
        let text = yaml(&without_empty(to_source::job(spec)));
        match &self.to {
            None => print(&text)?,
            Some(path) => {
                let file = File::options().write(true).create_new(true).open(path);
                let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
                written.map_err(|why| Failure::Operation {
                    message: format!("{}: {why}", path.display()),
                    next: "the same command with another file".into(),
                })?;
                let path = path.display();
                print_prose(&format!(
                    "job {}/{} is in {path}\nnext: cell run {path}\n",
                    found.job.user, found.job.name
                ))?;
            }
        }
        if spec.task.secrets.values().any(|value| value.0 == REDACTED) {
            print_notice("note: the archive has no secrets: write them in again before you run it");
        }
        Ok(())
    }

    fn spec<'a>(&self, found: &'a ArchivedJob) -> Result<&'a JobSpec, Failure> {
        let Some(version) = self.version else { return Ok(&found.job.spec) };
        let mut kept = found.versions.iter().filter(|row| row.spec.is_some());
        let spec = kept.find(|row| row.version.version == version);
        spec.and_then(|row| row.spec.as_ref()).ok_or_else(|| {
            let kept = found.versions.iter().filter(|row| row.spec.is_some());
            let kept: Vec<String> = kept.map(|row| row.version.version.to_string()).collect();
            Failure::Usage {
                message: format!("version {version} is not there; allowed: {}", kept.join(", ")),
                next: "the same command with one of these".into(),
            }
        })
    }
}

impl RestoreHistoryArgs {
    async fn run(self, cell: &Cell) -> Result<(), Failure> {
        let to = self.to.clone().unwrap_or_else(|| self.from.clone());
        let request = RestoreHistory { from: self.from, to, keep: Some(self.keep) };
        let restored = cell.client.restore_history(&request).await?.value;
        match self.output.output {
            Output::Json => print_json(&restored),
            Output::Table => {
                let RestoredHistory { from, to, until, files, bytes } = restored;
                let (files, bytes) =
                    (format::pluralize(files.into(), "file"), format::bytes(bytes));
                let until = format::utc(until);
                print_prose(&format!(
                    "history of {from} to {to} is there again until {until} ({files}, {bytes})\n\
                     next: cell sql \"select count(*) from task_events where day = '{from}'\"\n"
                ))
            }
        }
    }
}

impl StatusArgs {
    async fn run(self, cell: &Cell) -> Result<(), Failure> {
        let status = cell.client.archive().await?.value.item;
        match self.output.output {
            Output::Json => print_json(&status),
            Output::Table => print(&render_status(&status)),
        }
    }
}

fn render_status(status: &ArchiveStatus) -> String {
    let Some(place) = &status.place else {
        return "this cell has no archive\nnext: set `archive` in the masters' configuration\n"
            .to_owned();
    };
    let time = |at: Option<Time>| at.map_or_else(|| "-".to_owned(), format::utc);
    let state = match status.failing_since {
        Some(since) => format!("failing since {}", format::utc(since)),
        None => "working".to_owned(),
    };
    let mut rows = vec![
        ("place", place.clone()),
        ("state", state),
        ("has all before", time(status.archived_before)),
        ("last success", time(status.last_success)),
        (
            "waiting",
            kinds([status.jobs_waiting, status.logs_waiting, status.days_waiting].map(u64::from)),
        ),
        ("written", kinds([status.jobs_archived, status.logs_archived, status.days_archived])),
        ("removed", format!("{}, old enough", format::pluralize(status.removed, "object"))),
    ];
    if status.lost > 0 {
        rows.push(("lost", format!("{} before they were written", format::count(status.lost))));
    }
    if let Some(error) = &status.last_error {
        rows.push(("last error", error.clone()));
    }
    let text: String = rows.iter().map(|(name, text)| format!("{name:<16}{text}\n")).collect();
    text + "written, removed and lost are since this master leads\n"
}

/// So many jobs, logs and files of history.
fn kinds([jobs, logs, days]: [u64; 3]) -> String {
    let (jobs, logs) = (format::pluralize(jobs, "job"), format::pluralize(logs, "log"));
    format!("{jobs}, {logs}, {} of history", format::pluralize(days, "file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_what_waits_and_what_is_wrong() {
        assert!(render_status(&ArchiveStatus::default()).starts_with("this cell has no archive\n"));
        let failing = ArchiveStatus {
            place: Some("/srv/archive/aa".into()),
            jobs_waiting: 2,
            failing_since: Some(Time(0)),
            last_error: Some("/srv/archive: no space left".into()),
            lost: 1,
            ..ArchiveStatus::default()
        };
        let text = render_status(&failing);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("state failing since 1970-01-01 00:00:00Z"), "{text}");
        assert!(words.contains("waiting 2 jobs, 0 logs, 0 files of history"), "{text}");
        assert!(words.contains("lost 1 before they were written"), "{text}");
        assert!(words.contains("no space left"), "{text}");
    }
}
