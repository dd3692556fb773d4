//! `cell logs`: the output of tasks, read through a master from the machines they are or were on.
//! Both streams of a program are shown, in the order in which it wrote them as far as that is
//! known. With several tasks, every line has its task's name in front, and lines of all of them are
//! in order.

mod archived;
mod follow;
mod printer;

pub use archived::ArchivedOutput;

use super::select::{self, JobScope};
use super::target::{Target, TargetArg, parse_target};
use super::{Success, pagination};
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::runtime::block_on;
use cellwright_api::client::ClientError;
use cellwright_api::error::Code;
use cellwright_api::output::{OutputPiece, OutputQuery, StreamSelection};
use cellwright_api::types::JobView;
use cellwright_cell::name::JobKey;
use cellwright_cell::time::Time;
use clap::{ArgGroup, Args};
use printer::{LineStyle, MergedLines, Printer};
use std::collections::BTreeSet;

const EXAMPLES: &str = "\
Examples:
  cell logs dev/hello
  cell logs dev/hello/2 --follow
  cell logs dev/hello --since 10m --timestamps
  cell logs dev/hello/2 --stderr --previous
  cell logs -l team=search --tail 5

Owners of a job may read what its tasks wrote; users with the capability
read_output what anybody's did. Output of attempts that are over is there as
long as the machine keeps it. What a program writes to its standard error is
coloured on a terminal, and marked where lines have something in front.";

/// The maximum number of tasks that are followed, or put in order, at once.
const MAX_FOLLOWED: u32 = 100;

/// Show what tasks wrote
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("which").required(true).args(["target", "selector"]))]
pub struct LogsArgs {
    /// A job, one of its tasks, or a range of them
    #[arg(value_name = "JOB|TASK", value_parser = parse_target)]
    target: Option<TargetArg>,

    /// All tasks of the jobs whose labels match: a=b, a!=b, a, !a, separated by commas
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,

    /// Standard output alone
    #[arg(long, conflicts_with = "stderr")]
    stdout: bool,

    /// Standard error alone
    #[arg(long)]
    stderr: bool,

    /// Go on, from one attempt to the next, until the task is dead; one that waits for a place is
    /// shown once it runs, and one that is added to the job as well
    #[arg(short, long)]
    follow: bool,

    /// The attempt before the newest
    #[arg(long, conflicts_with_all = ["attempt", "follow"])]
    previous: bool,

    /// Which attempt [default: the newest]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: Option<u32>,

    /// Lines from the end to begin with, of each task [default: the last 64 KiB]
    #[arg(short = 'n', long, value_name = "LINES",
          value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    tail: Option<u32>,

    /// Only what was written since: so long ago, such as 10m, or a UTC time
    #[arg(long, value_name = "TIME", value_parser = super::parse::past_time)]
    since: Option<Time>,

    /// When each line was written, in front of it
    #[arg(long)]
    timestamps: bool,
}

impl LogsArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        block_on(async {
            let tasks = self.tasks(&cell).await?;
            LogOptions::from(&self).show_tasks(&cell, &tasks).await
        })?;
        Ok(Success::Done)
    }

    async fn tasks(&self, cell: &Cell) -> Result<TaskList, Failure> {
        let mut list = TaskList::default();
        if let Some(target) = &self.target {
            list = expand_target(cell, &target.resolve(cell).await?).await?;
        }
        if let Some(selector) = &self.selector {
            for job in select::select_jobs(cell, selector, JobScope::All).await? {
                let key = select::job_key(&job);
                let indexes = wanted_tasks(cell, &job).await?;
                list.tasks.extend(indexes.into_iter().map(|index| (key.clone(), index)));
                list.whole.push(key);
            }
        }
        Ok(list)
    }
}

/// Tasks, and the jobs of which all are meant, also those that are added later.
#[derive(Debug, Default)]
struct TaskList {
    tasks: Vec<(JobKey, u32)>,
    whole: Vec<JobKey>,
}

/// The tasks that the job wants: of a daemon those that have a machine.
async fn wanted_tasks(cell: &Cell, job: &JobView) -> Result<Vec<u32>, Failure> {
    if job.daemon.is_none() {
        return Ok((0..job.spec.count).collect());
    }
    let tasks = pagination::tasks(cell, &select::job_key(job)).await?;
    Ok(tasks.iter().filter(|task| job.wants(task)).map(|task| task.index).collect())
}

/// All tasks that the target names.
async fn expand_target(cell: &Cell, target: &Target) -> Result<TaskList, Failure> {
    let Target { job, tasks } = target;
    let indexes = match tasks {
        Some(single) if single.len() == 1 => single.clone(),
        Some(range) => existing_tasks(cell, job, range).await?,
        None => wanted_tasks(cell, &cell.client.job(job).await?.value.item).await?,
    };
    let whole = if tasks.is_none() { vec![job.clone()] } else { Vec::new() };
    Ok(TaskList { tasks: indexes.into_iter().map(|index| (job.clone(), index)).collect(), whole })
}

/// Which output of which tasks is printed.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogOptions {
    selection: StreamSelection,
    follow: bool,
    previous: bool,
    attempt: Option<u32>,
    tail: Option<u32>,
    since: Option<Time>,
    timestamps: bool,
    apart: bool,
}

impl From<&LogsArgs> for LogOptions {
    fn from(args: &LogsArgs) -> LogOptions {
        let LogsArgs { follow, previous, attempt, tail, since, timestamps, .. } = *args;
        let selection = match (args.stdout, args.stderr) {
            (true, _) => StreamSelection::Stdout,
            (_, true) => StreamSelection::Stderr,
            _ => StreamSelection::All,
        };
        LogOptions { selection, follow, previous, attempt, tail, since, timestamps, apart: false }
    }
}

impl LogOptions {
    /// Follows the output from here on until the tasks end.
    pub fn following() -> LogOptions {
        let selection = StreamSelection::All;
        LogOptions { selection, follow: true, ..LogOptions::default() }
    }

    /// The same, with standard error of the tasks on our own.
    pub fn attached() -> LogOptions {
        LogOptions { apart: true, ..LogOptions::following() }
    }

    pub async fn show(&self, cell: &Cell, target: &Target) -> Result<(), Failure> {
        self.show_tasks(cell, &expand_target(cell, target).await?).await
    }

    async fn show_tasks(&self, cell: &Cell, list: &TaskList) -> Result<(), Failure> {
        let tasks = &list.tasks;
        let LogOptions { timestamps, apart, .. } = *self;
        let line_style = LineStyle { named: tasks.len() != 1, timestamps, apart };
        match (tasks.as_slice(), self.follow) {
            (many, true) if many.len() > MAX_FOLLOWED as usize => Err(too_many(many)),
            (_, true) => follow::follow(self, cell, list, line_style).await,
            ([(job, index)], false) => {
                let mut printer = Printer::new(job, *index, line_style);
                self.task(cell, job, *index, &mut Sink::Printer(&mut printer)).await?;
                printer.finish()
            }
            (many, false) => self.show_many(cell, many, line_style).await,
        }
    }

    /// Few tasks are shown in the order of time, many one after the other.
    async fn show_many(
        &self,
        cell: &Cell,
        tasks: &[(JobKey, u32)],
        line_style: LineStyle,
    ) -> Result<(), Failure> {
        let is_merged = tasks.len() <= MAX_FOLLOWED as usize;
        let mut merged = MergedLines::default();
        for (job, index) in tasks {
            let mut printer = Printer::new(job, *index, line_style);
            let mut sink = if is_merged {
                Sink::Merged(&mut merged, &mut printer)
            } else {
                Sink::Printer(&mut printer)
            };
            match self.task(cell, job, *index, &mut sink).await {
                Err(failure @ Failure::Operation { .. }) => {
                    crate::output::note!("{job}/{index}: {failure}");
                }
                done => done?,
            }
            if is_merged {
                merged.end_task(&mut printer)?;
            } else {
                printer.finish()?;
            }
        }
        merged.print()
    }

    async fn query(&self, cell: &Cell, job: &JobKey, index: u32) -> Result<OutputQuery, Failure> {
        let attempt = if self.previous {
            let newest = cell.client.task(job, index).await?.value.item.attempt;
            let none = || Failure::Operation {
                message: format!(
                    "{job}/{index} has been placed {}",
                    crate::format::times_text(u64::from(newest))
                ),
                next: "the same command without --previous".into(),
            };
            Some(newest.checked_sub(1).filter(|number| *number > 0).ok_or_else(none)?)
        } else {
            self.attempt
        };
        Ok(OutputQuery {
            stream: self.selection,
            attempt,
            lines: self.tail,
            since: self.since.map(|Time(at)| at),
            parts: true,
            ..OutputQuery::default()
        })
    }

    /// Passes on the output that exists now.
    async fn task(
        &self,
        cell: &Cell,
        job: &JobKey,
        index: u32,
        sink: &mut Sink<'_>,
    ) -> Result<(), Failure> {
        let mut query = self.query(cell, job, index).await?;
        loop {
            let piece = cell.client.output(job, index, &query).await;
            let piece = piece.map_err(|error| output_failure(job, error))?.value;
            let is_over = piece.ended || piece.is_empty();
            let OutputPiece { attempt, parts, next, .. } = piece;
            for part in &parts {
                match sink {
                    Sink::Printer(printer) => printer.push(part)?,
                    Sink::Merged(merged, printer) => merged.push(printer, part)?,
                }
            }
            if is_over {
                return Ok(());
            }
            (query.attempt, query.from) = (Some(attempt), Some(next));
        }
    }
}

/// Where the output of a task goes.
enum Sink<'a> {
    Printer(&'a mut Printer),
    /// To be put in order with that of other tasks.
    Merged(&'a mut MergedLines, &'a mut Printer),
}

/// The failure for more tasks than can be followed at once; `tasks` are of one job, or of several.
fn too_many(tasks: &[(JobKey, u32)]) -> Failure {
    let number = tasks.len();
    let jobs: BTreeSet<&JobKey> = tasks.iter().map(|(job, _)| job).collect();
    let (message, next) = match jobs.first() {
        Some(job) if jobs.len() == 1 => {
            let next = format!(
                "follow at most {MAX_FOLLOWED}: cell logs '{job}/[0-{}]' -f",
                MAX_FOLLOWED - 1
            );
            (format!("{job} has {number} tasks"), next)
        }
        _ => {
            let next = format!("follow at most {MAX_FOLLOWED}: labels of fewer jobs, or one job");
            (format!("{} jobs have {number} tasks", jobs.len()), next)
        }
    };
    Failure::Usage { message, next }
}

/// The tasks of a range that exist; the missing ones are reported once.
async fn existing_tasks(cell: &Cell, job: &JobKey, range: &[u32]) -> Result<Vec<u32>, Failure> {
    let tasks = super::pagination::tasks(cell, job).await?;
    let known: BTreeSet<u32> = tasks.iter().map(|task| task.index).collect();
    let (there, absent): (Vec<u32>, Vec<u32>) =
        range.iter().copied().partition(|index| known.contains(index));
    let message = || format!("{job} has no task {}", format_ranges(&absent));
    if there.is_empty() {
        let next = format!("see which there are: cell status {job}");
        return Err(Failure::Operation { message: message(), next });
    }
    if !absent.is_empty() {
        crate::output::note!("{}", message());
    }
    Ok(there)
}

/// `3, 7-99`.
fn format_ranges(indexes: &[u32]) -> String {
    let runs = indexes.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    let words = runs.filter_map(|run| match run {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    words.collect::<Vec<_>>().join(", ")
}

fn output_failure(job: &JobKey, error: ClientError) -> Failure {
    match error.code() {
        Some(Code::NoSuchTask) => {
            Failure::from_error(&error, &format!("see whether it ran: cell status {job}"))
        }
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_follows_too_many_is_told_how_many_are_allowed() {
        let name = |text: &str| cellwright_cell::name::Name::new(text).unwrap();
        let tasks = |job: &str, count: u32| {
            let key = JobKey { user: name("dev"), job: name(job) };
            (0..count).map(move |index| (key.clone(), index))
        };
        let failure_text = |tasks: Vec<(JobKey, u32)>| match too_many(&tasks) {
            Failure::Usage { message, next } => (message, next),
            other => panic!("{other:?}"),
        };
        let (message, next) = failure_text(tasks("web", 120).collect());
        assert_eq!(message, "dev/web has 120 tasks");
        assert!(next.ends_with("cell logs 'dev/web/[0-99]' -f"), "{next}");
        let (message, next) = failure_text(tasks("web", 70).chain(tasks("db", 50)).collect());
        assert_eq!(message, "2 jobs have 120 tasks");
        assert!(next.starts_with("follow at most 100: labels"), "{next}");
    }

    #[test]
    fn indexes_in_a_row_are_told_together() {
        assert_eq!(format_ranges(&[3, 7, 8, 9]), "3, 7-9");
        assert_eq!(format_ranges(&(3..=99).collect::<Vec<_>>()), "3-99");
    }
}
