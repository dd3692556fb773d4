//! `cell logs`: what tasks wrote, from the machines they are or were on, through a master. Several
//! tasks at once are told apart by their names in front of every line.

use super::Success;
use super::select::{self, Meant};
use super::target::{Target, Typed, typed};
use crate::failure::Failure;
use crate::output::{print_output, print_raw};
use crate::reach::{Cell, Reach};
use crate::server::ask;
use crate::style::{self, Style};
use crate::visible::Pieces;
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

/// Tasks that are followed at once.
const MOST: u32 = 100;
/// Pieces that wait to be shown.
const WAITING: usize = 16;
/// A task that waits for a place is looked at this often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Show what tasks wrote
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("which").required(true).args(["target", "selector"]))]
pub struct LogsArgs {
    /// A job, one of its tasks, or a range of them
    #[arg(value_name = "JOB|TASK", value_parser = typed)]
    target: Option<Typed>,

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
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        ask(async {
            let tasks = self.tasks(&cell).await?;
            Wanted::from(&self).show_tasks(&cell, &tasks).await
        })?;
        Ok(Success::Done)
    }

    async fn tasks(&self, cell: &Cell) -> Result<Vec<(JobKey, u32)>, Failure> {
        let mut tasks = Vec::new();
        if let Some(typed) = &self.target {
            tasks.extend(tasks_of(cell, &typed.resolve(cell).await?).await?);
        }
        if let Some(selector) = &self.selector {
            for job in select::jobs(cell, selector, Meant::All).await? {
                tasks.extend((0..job.spec.count).map(|index| (select::key(&job), index)));
            }
        }
        Ok(tasks)
    }
}

/// Each task that is meant.
async fn tasks_of(cell: &Cell, target: &Target) -> Result<Vec<(JobKey, u32)>, Failure> {
    let Target { job, tasks } = target;
    let indexes = match tasks {
        Some(one) if one.len() == 1 => one.clone(),
        Some(range) => there(cell, job, range).await?,
        None => (0..cell.client.job(job).await?.value.item.spec.count).collect(),
    };
    Ok(indexes.into_iter().map(|index| (job.clone(), index)).collect())
}

/// What is to be shown of which tasks' output.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    stderr: bool,
    follow: bool,
    previous: bool,
    attempt: Option<u32>,
    tail: Option<u32>,
}

impl From<&LogsArgs> for Wanted {
    fn from(args: &LogsArgs) -> Wanted {
        let LogsArgs { stderr, follow, previous, attempt, tail, .. } = *args;
        Wanted { stderr, follow, previous, attempt, tail }
    }
}

impl Wanted {
    /// From here on, until all of it is over.
    pub fn following() -> Wanted {
        Wanted { follow: true, ..Wanted::default() }
    }

    pub async fn show(&self, cell: &Cell, target: &Target) -> Result<(), Failure> {
        self.show_tasks(cell, &tasks_of(cell, target).await?).await
    }

    async fn show_tasks(&self, cell: &Cell, tasks: &[(JobKey, u32)]) -> Result<(), Failure> {
        match (tasks, self.follow) {
            ([_], true) => self.follow(cell, tasks, Shown::Bare).await,
            ([(job, index)], false) => {
                self.task(cell, job, *index, &mut Printer::new(job, *index, Shown::Bare)).await
            }
            (many, true) if many.len() > MOST as usize => Err(too_many(many)),
            (many, true) => self.follow(cell, many, Shown::Named).await,
            (many, false) => {
                for (job, index) in many {
                    let mut printer = Printer::new(job, *index, Shown::Named);
                    match self.task(cell, job, *index, &mut printer).await {
                        Err(failure @ Failure::Work { .. }) => {
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
        let attempt = match self.previous {
            false => self.attempt,
            true => {
                let newest = cell.client.task(job, index).await?.value.item.attempt;
                let none = || Failure::Work {
                    message: format!(
                        "{job}/{index} has been placed {}",
                        crate::format::times(u64::from(newest))
                    ),
                    next: "the same command without --previous".into(),
                };
                Some(newest.checked_sub(1).filter(|number| *number > 0).ok_or_else(none)?)
            }
        };
        let stream = if self.stderr { Stream::Stderr } else { Stream::Stdout };
        Ok(OutputQuery { stream, attempt, lines: self.tail, ..OutputQuery::default() })
    }

    /// What there is now.
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
            let piece = piece.map_err(|error| refused(job, error))?;
            let OutputPiece { attempt, text, next, ended } = piece.value;
            printer.take(&text)?;
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
        shown: Shown,
    ) -> Result<(), Failure> {
        let (sender, mut pieces) = mpsc::channel(WAITING);
        let mut printers = Vec::new();
        for (at, (job, index)) in tasks.iter().enumerate() {
            let query = self.query(cell, job, *index).await?;
            let to = Ear { at, to: sender.clone() };
            tokio::spawn(to.follow(cell.client.clone(), job.clone(), *index, query));
            printers.push(Printer::new(job, *index, shown));
        }
        drop(sender);
        while let Some((at, heard)) = pieces.recv().await {
            let Some(printer) = printers.get_mut(at) else { continue };
            match heard {
                Heard::Text { attempt, text } => {
                    printer.at(attempt)?;
                    printer.take(&text)?;
                }
                Heard::Silent(why) => crate::output::note!("{}: {why}", printer.name),
                Heard::Waits => crate::output::note!("{} waits for a place", printer.name),
                Heard::NeverRan => {
                    crate::output::note!("{} ended without having run", printer.name)
                }
                Heard::End => printer.finish()?,
                Heard::Failed(error) => match tasks {
                    [(job, _)] => return Err(refused(job, error)),
                    _ => crate::output::note!("{}: {error}", printer.name),
                },
            }
        }
        Ok(())
    }
}

/// More than can be followed at once; `tasks` are of one job, or of several.
fn too_many(tasks: &[(JobKey, u32)]) -> Failure {
    let number = tasks.len();
    let jobs: BTreeSet<&JobKey> = tasks.iter().map(|(job, _)| job).collect();
    let (message, next) = match jobs.first() {
        Some(job) if jobs.len() == 1 => {
            let next = format!("follow at most {MOST}: cell logs '{job}/[0-{}]' -f", MOST - 1);
            (format!("{job} has {number} tasks"), next)
        }
        _ => {
            let next = format!("follow at most {MOST}: labels of fewer jobs, or one job");
            (format!("{} jobs have {number} tasks", jobs.len()), next)
        }
    };
    Failure::Usage { message, next }
}

/// Those of a range that there are; the others are named once.
async fn there(cell: &Cell, job: &JobKey, range: &[u32]) -> Result<Vec<u32>, Failure> {
    let tasks = super::pages::tasks(cell, job).await?;
    let known: BTreeSet<u32> = tasks.iter().map(|task| task.index).collect();
    let (there, absent): (Vec<u32>, Vec<u32>) =
        range.iter().copied().partition(|index| known.contains(index));
    let message = || format!("{job} has no task {}", ranges(&absent));
    if there.is_empty() {
        let next = format!("see which there are: cell status {job}");
        return Err(Failure::Work { message: message(), next });
    }
    if !absent.is_empty() {
        crate::output::note!("{}", message());
    }
    Ok(there)
}

/// `3, 7-99`.
fn ranges(indexes: &[u32]) -> String {
    let runs = indexes.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    let words = runs.filter_map(|run| match run {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    words.collect::<Vec<_>>().join(", ")
}

fn refused(job: &JobKey, error: ClientError) -> Failure {
    match error.code() {
        Some(Code::NoSuchTask) => {
            Failure::work(&error, &format!("see whether it ran: cell status {job}"))
        }
        _ => error.into(),
    }
}

/// What is heard of one task.
enum Heard {
    Text {
        attempt: u32,
        text: String,
    },
    Silent(String),
    /// It has had no place yet.
    Waits,
    NeverRan,
    End,
    Failed(ClientError),
}

/// Where what is heard of one task goes.
struct Ear {
    /// Which of those that are followed it is.
    at: usize,
    to: mpsc::Sender<(usize, Heard)>,
}

impl Ear {
    async fn follow(self, client: Client, job: JobKey, index: u32, query: OutputQuery) {
        // Who names an attempt means one that was.
        if query.attempt.is_none() {
            let heard = match self.placed(&client, &job, index).await {
                Ok(true) => None,
                Ok(false) => Some(Heard::NeverRan),
                Err(error) => Some(Heard::Failed(error)),
            };
            if let Some(heard) = heard {
                drop(self.to.send((self.at, heard)).await);
                return;
            }
        }
        heed(client.watch_output(&job, index, &query), self.at, self.to).await;
    }

    /// Until it has had a place; false if it died without one.
    async fn placed(&self, client: &Client, job: &JobKey, index: u32) -> Result<bool, ClientError> {
        let mut said = false;
        loop {
            let task = client.task(job, index).await?.value.item;
            if task.attempt > 0 || task.state.is_dead() {
                return Ok(task.attempt > 0);
            }
            if !said {
                said = true;
                drop(self.to.send((self.at, Heard::Waits)).await);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

async fn heed(mut watch: Watch<OutputPiece>, at: usize, to: mpsc::Sender<(usize, Heard)>) {
    loop {
        let heard = match watch.next().await {
            Ok(event) => match (event.kind.as_str(), event.data) {
                ("output", Some(piece)) => Heard::Text { attempt: piece.attempt, text: piece.text },
                ("silent", _) => Heard::Silent("its machine does not answer".into()),
                ("end", _) => Heard::End,
                _ => continue,
            },
            Err(error) => Heard::Failed(error),
        };
        let last = matches!(heard, Heard::End | Heard::Failed(_));
        if to.send((at, heard)).await.is_err() || last {
            return;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// As it was written.
    Bare,
    /// Line by line, behind the name of the task.
    Named,
}

/// Shows what one task wrote.
struct Printer {
    name: String,
    index: u32,
    shown: Shown,
    style: Style,
    /// A line that is not whole yet.
    begun: String,
    /// Of what is shown as it was written, on a terminal.
    pieces: Option<Pieces>,
    /// Whose output came last.
    attempt: Option<u32>,
}

impl Printer {
    fn new(job: &JobKey, index: u32, shown: Shown) -> Printer {
        let (name, style) = (format!("{job}/{index}"), style::for_stdout());
        let pieces = (shown == Shown::Bare && io::stdout().is_terminal()).then(Pieces::default);
        Printer { name, index, shown, style, begun: String::new(), pieces, attempt: None }
    }

    /// Where the output of another attempt begins is said apart from it.
    fn at(&mut self, attempt: u32) -> Result<(), Failure> {
        let before = self.attempt.replace(attempt);
        if before.is_some_and(|before| before != attempt) {
            self.finish()?;
            crate::output::note!("-- {}: attempt {attempt} --", self.name);
        }
        Ok(())
    }

    fn take(&mut self, text: &str) -> Result<(), Failure> {
        match &mut self.pieces {
            Some(pieces) => return print_raw(&pieces.take(text.as_bytes())),
            None if self.shown == Shown::Bare => return print_raw(text),
            None => {}
        }
        self.begun.push_str(text);
        let Some(end) = self.begun.rfind('\n') else { return Ok(()) };
        let rest = self.begun.split_off(end + 1);
        let whole = std::mem::replace(&mut self.begun, rest);
        print_output(&self.named(&whole))
    }

    fn finish(&mut self) -> Result<(), Failure> {
        if let Some(pieces) = &mut self.pieces {
            print_raw(&pieces.end())?;
        }
        let rest = std::mem::take(&mut self.begun);
        if rest.is_empty() { Ok(()) } else { print_output(&self.named(&rest)) }
    }

    fn named(&self, lines: &str) -> String {
        let name = self.style.one_of_many(self.index, &self.name);
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
        let said = |tasks: Vec<(JobKey, u32)>| match too_many(&tasks) {
            Failure::Usage { message, next } => (message, next),
            other => panic!("{other:?}"),
        };
        let (message, next) = said(tasks("web", 120).collect());
        assert_eq!(message, "dev/web has 120 tasks");
        assert!(next.ends_with("cell logs 'dev/web/[0-99]' -f"), "{next}");
        let (message, next) = said(tasks("web", 70).chain(tasks("db", 50)).collect());
        assert_eq!(message, "2 jobs have 120 tasks");
        assert!(next.starts_with("follow at most 100: labels"), "{next}");
    }

    #[test]
    fn indexes_in_a_row_are_told_together() {
        assert_eq!(ranges(&[3, 7, 8, 9]), "3, 7-9");
        assert_eq!(ranges(&(3..=99).collect::<Vec<_>>()), "3-99");
    }
}
