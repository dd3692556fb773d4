//! `cell logs`: the output of tasks, read through a master from the machines they are or were on.
//! With several tasks, every line has its task's name in front.

use super::Success;
use super::select::{self, JobScope};
use super::target::{Target, TargetArg, parse_target};
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::output::{print_output, print_raw};
use crate::runtime::block_on;
use crate::sanitize::StreamSanitizer;
use crate::style::{self, Style};
use cellwright_api::client::{Client, ClientError, Watch};
use cellwright_api::error::Code;
use cellwright_api::output::{OutputPiece, OutputQuery, Stream};
use cellwright_cell::name::JobKey;
use clap::{ArgGroup, Args};
use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::time::Duration;
use tokio::sync::mpsc;

const EXAMPLES: &str = "\
Examples:
  cell logs dev/hello
  cell logs dev/hello/2 --follow
  cell logs dev/hello -n 20
  cell logs dev/hello/2 --stderr --previous
  cell logs -l team=search --tail 5

Owners of a job may read what its tasks wrote; users with the capability
read_output what anybody's did. Output of attempts that are over is there as
long as the machine keeps it.";

/// The maximum number of tasks followed at once.
const MAX_FOLLOWED: u32 = 100;
/// Chunks of output queued for printing.
const QUEUED_PIECES: usize = 16;
/// The interval at which a pending task is checked for a placement.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

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

    /// Standard error instead of standard output
    #[arg(long)]
    stderr: bool,

    /// Go on, from one attempt to the next, until the task is dead; one that waits for a place is
    /// shown once it runs
    #[arg(short, long)]
    follow: bool,

    /// The attempt before the newest
    #[arg(long, conflicts_with_all = ["attempt", "follow"])]
    previous: bool,

    /// Which attempt [default: the newest]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: Option<u32>,

    /// Lines from the end to begin with [default: the last 64 KiB]
    #[arg(short = 'n', long, value_name = "LINES",
          value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    tail: Option<u32>,
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

    async fn tasks(&self, cell: &Cell) -> Result<Vec<(JobKey, u32)>, Failure> {
        let mut tasks = Vec::new();
        if let Some(target) = &self.target {
            tasks.extend(expand_target(cell, &target.resolve(cell).await?).await?);
        }
        if let Some(selector) = &self.selector {
            for job in select::select_jobs(cell, selector, JobScope::All).await? {
                tasks.extend((0..job.spec.count).map(|index| (select::job_key(&job), index)));
            }
        }
        Ok(tasks)
    }
}

/// All tasks that the target names.
async fn expand_target(cell: &Cell, target: &Target) -> Result<Vec<(JobKey, u32)>, Failure> {
    let Target { job, tasks } = target;
    let indexes = match tasks {
        Some(single) if single.len() == 1 => single.clone(),
        Some(range) => existing_tasks(cell, job, range).await?,
        None => (0..cell.client.job(job).await?.value.item.spec.count).collect(),
    };
    Ok(indexes.into_iter().map(|index| (job.clone(), index)).collect())
}

/// Which output of which tasks is printed.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogOptions {
    stderr: bool,
    follow: bool,
    previous: bool,
    attempt: Option<u32>,
    tail: Option<u32>,
}

impl From<&LogsArgs> for LogOptions {
    fn from(args: &LogsArgs) -> LogOptions {
        let LogsArgs { stderr, follow, previous, attempt, tail, .. } = *args;
        LogOptions { stderr, follow, previous, attempt, tail }
    }
}

impl LogOptions {
    /// Follows the output from here on until the tasks end.
    pub fn following() -> LogOptions {
        LogOptions { follow: true, ..LogOptions::default() }
    }

    pub async fn show(&self, cell: &Cell, target: &Target) -> Result<(), Failure> {
        self.show_tasks(cell, &expand_target(cell, target).await?).await
    }

    async fn show_tasks(&self, cell: &Cell, tasks: &[(JobKey, u32)]) -> Result<(), Failure> {
        match (tasks, self.follow) {
            ([_], true) => self.follow(cell, tasks, LineStyle::Raw).await,
            ([(job, index)], false) => {
                self.task(cell, job, *index, &mut Printer::new(job, *index, LineStyle::Raw)).await
            }
            (many, true) if many.len() > MAX_FOLLOWED as usize => Err(too_many(many)),
            (many, true) => self.follow(cell, many, LineStyle::Prefixed).await,
            (many, false) => {
                for (job, index) in many {
                    let mut printer = Printer::new(job, *index, LineStyle::Prefixed);
                    match self.task(cell, job, *index, &mut printer).await {
                        Err(failure @ Failure::Operation { .. }) => {
                            crate::output::note!("{job}/{index}: {failure}");
                        }
                        done => done?,
                    }
                }
                Ok(())
            }
        }
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
        let stream = if self.stderr { Stream::Stderr } else { Stream::Stdout };
        Ok(OutputQuery { stream, attempt, lines: self.tail, ..OutputQuery::default() })
    }

    /// Prints the output that exists now.
    async fn task(
        &self,
        cell: &Cell,
        job: &JobKey,
        index: u32,
        printer: &mut Printer,
    ) -> Result<(), Failure> {
        let mut query = self.query(cell, job, index).await?;
        loop {
            let piece = cell.client.output(job, index, &query).await;
            let piece = piece.map_err(|error| output_failure(job, error))?;
            let OutputPiece { attempt, text, next, ended } = piece.value;
            printer.push(&text)?;
            if ended || text.is_empty() {
                return printer.finish();
            }
            (query.attempt, query.from) = (Some(attempt), Some(next));
        }
    }

    async fn follow(
        &self,
        cell: &Cell,
        tasks: &[(JobKey, u32)],
        line_style: LineStyle,
    ) -> Result<(), Failure> {
        let (sender, mut events) = mpsc::channel(QUEUED_PIECES);
        let mut printers = Vec::new();
        for (at, (job, index)) in tasks.iter().enumerate() {
            let query = self.query(cell, job, *index).await?;
            let follower = TaskFollower { task_position: at, events: sender.clone() };
            tokio::spawn(follower.follow(cell.client.clone(), job.clone(), *index, query));
            printers.push(Printer::new(job, *index, line_style));
        }
        drop(sender);
        while let Some((at, log_event)) = events.recv().await {
            let Some(printer) = printers.get_mut(at) else { continue };
            match log_event {
                LogEvent::Text { attempt, text } => {
                    printer.set_attempt(attempt)?;
                    printer.push(&text)?;
                }
                LogEvent::MachineSilent(why) => crate::output::note!("{}: {why}", printer.name),
                LogEvent::NotPlaced => crate::output::note!("{} waits for a place", printer.name),
                LogEvent::NeverRan => {
                    crate::output::note!("{} ended without having run", printer.name)
                }
                LogEvent::End => printer.finish()?,
                LogEvent::Failed(error) => match tasks {
                    [(job, _)] => return Err(output_failure(job, error)),
                    _ => crate::output::note!("{}: {error}", printer.name),
                },
            }
        }
        Ok(())
    }
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

/// An event of one task's log.
enum LogEvent {
    Text {
        attempt: u32,
        text: String,
    },
    MachineSilent(String),
    /// The task has not been placed yet.
    NotPlaced,
    NeverRan,
    End,
    Failed(ClientError),
}

/// Follows the output of one task and sends its events.
struct TaskFollower {
    /// The position of this task among those that are followed.
    task_position: usize,
    events: mpsc::Sender<(usize, LogEvent)>,
}

impl TaskFollower {
    async fn follow(self, client: Client, job: JobKey, index: u32, query: OutputQuery) {
        // An attempt named by the user has already been started.
        if query.attempt.is_none() {
            let log_event = match self.wait_until_placed(&client, &job, index).await {
                Ok(true) => None,
                Ok(false) => Some(LogEvent::NeverRan),
                Err(error) => Some(LogEvent::Failed(error)),
            };
            if let Some(log_event) = log_event {
                drop(self.events.send((self.task_position, log_event)).await);
                return;
            }
        }
        forward_events(client.watch_output(&job, index, &query), self.task_position, self.events)
            .await;
    }

    /// Waits until the task has been placed; returns false if it ended without a placement.
    async fn wait_until_placed(
        &self,
        client: &Client,
        job: &JobKey,
        index: u32,
    ) -> Result<bool, ClientError> {
        let mut is_announced = false;
        loop {
            let task = client.task(job, index).await?.value.item;
            if task.attempt > 0 || task.state.is_dead() {
                return Ok(task.attempt > 0);
            }
            if !is_announced {
                is_announced = true;
                drop(self.events.send((self.task_position, LogEvent::NotPlaced)).await);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

async fn forward_events(
    mut watch: Watch<OutputPiece>,
    at: usize,
    follower: mpsc::Sender<(usize, LogEvent)>,
) {
    loop {
        let log_event = match watch.next().await {
            Ok(event) => match (event.kind.as_str(), event.data) {
                ("output", Some(piece)) => {
                    LogEvent::Text { attempt: piece.attempt, text: piece.text }
                }
                ("silent", _) => LogEvent::MachineSilent("its machine does not answer".into()),
                ("end", _) => LogEvent::End,
                _ => continue,
            },
            Err(error) => LogEvent::Failed(error),
        };
        let last = matches!(log_event, LogEvent::End | LogEvent::Failed(_));
        if follower.send((at, log_event)).await.is_err() || last {
            return;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineStyle {
    /// Output as it was written.
    Raw,
    /// Line by line, with the task's name in front.
    Prefixed,
}

/// Prints the output of one task.
struct Printer {
    name: String,
    index: u32,
    line_style: LineStyle,
    style: Style,
    /// A line without its line end yet.
    partial_line: String,
    /// For raw output on a terminal.
    sanitizer: Option<StreamSanitizer>,
    /// The attempt that the last output came from.
    attempt: Option<u32>,
}

impl Printer {
    fn new(job: &JobKey, index: u32, line_style: LineStyle) -> Printer {
        let (name, style) = (format!("{job}/{index}"), style::for_stdout());
        let sanitizer = (line_style == LineStyle::Raw && io::stdout().is_terminal())
            .then(StreamSanitizer::default);
        Printer {
            name,
            index,
            line_style,
            style,
            partial_line: String::new(),
            sanitizer,
            attempt: None,
        }
    }

    /// Prints a separator where the output of another attempt begins.
    fn set_attempt(&mut self, attempt: u32) -> Result<(), Failure> {
        let before = self.attempt.replace(attempt);
        if before.is_some_and(|before| before != attempt) {
            self.finish()?;
            crate::output::note!("-- {}: attempt {attempt} --", self.name);
        }
        Ok(())
    }

    fn push(&mut self, text: &str) -> Result<(), Failure> {
        match &mut self.sanitizer {
            Some(sanitizer) => return print_raw(&sanitizer.push(text.as_bytes())),
            None if self.line_style == LineStyle::Raw => return print_raw(text),
            None => {}
        }
        self.partial_line.push_str(text);
        let Some(end) = self.partial_line.rfind('\n') else { return Ok(()) };
        let rest = self.partial_line.split_off(end + 1);
        let whole = std::mem::replace(&mut self.partial_line, rest);
        print_output(&self.prefix_lines(&whole))
    }

    fn finish(&mut self) -> Result<(), Failure> {
        if let Some(sanitizer) = &mut self.sanitizer {
            print_raw(&sanitizer.finish())?;
        }
        let rest = std::mem::take(&mut self.partial_line);
        if rest.is_empty() { Ok(()) } else { print_output(&self.prefix_lines(&rest)) }
    }

    fn prefix_lines(&self, lines: &str) -> String {
        let name = self.style.nth_colour(self.index, &self.name);
        lines.lines().map(|line| format!("{name} {line}\n")).collect()
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
