//! `cell logs`: what tasks wrote, from the machines they are or were on, through a master. Several
//! tasks at once are told apart by their names in front of every line.

use super::{Success, parse};
use crate::failure::Failure;
use crate::output::print;
use crate::reach::{Cell, Reach};
use crate::server::ask;
use crate::style::{self, Style};
use cellwright_api::client::{ClientError, Watch};
use cellwright_api::error::Code;
use cellwright_api::output::{OutputPiece, OutputQuery, Stream};
use cellwright_cell::name::JobKey;
use clap::Args;
use tokio::sync::mpsc;

const EXAMPLES: &str = "\
Examples:
  cell logs dev/hello
  cell logs dev/hello/2 --follow
  cell logs dev/hello --tail 20
  cell logs dev/hello/2 --stderr --previous

Owners of a job may read what its tasks wrote; users with the capability read_output what
anybody's did. Output of attempts that are over is there as long as the machine keeps it.";

/// Tasks that are followed at once.
const MOST: u32 = 100;
/// Pieces that wait to be shown.
const WAITING: usize = 16;

/// Show what tasks wrote
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct LogsArgs {
    /// A job, or one of its tasks
    #[arg(value_name = "USER/JOB[/INDEX]", value_parser = target)]
    target: (JobKey, Option<u32>),

    /// Standard error instead of standard output
    #[arg(long)]
    stderr: bool,

    /// Go on, from one attempt to the next, until the task is dead
    #[arg(short, long)]
    follow: bool,

    /// The attempt before the newest
    #[arg(long, conflicts_with_all = ["attempt", "follow"])]
    previous: bool,

    /// Which attempt [default: the newest]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: Option<u32>,

    /// Lines from the end to begin with [default: the last 64 KiB]
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    tail: Option<u32>,
}

pub fn target(text: &str) -> Result<(JobKey, Option<u32>), String> {
    match text.splitn(3, '/').collect::<Vec<_>>()[..] {
        [user, job, index] => {
            let number = index.parse().map_err(|_| "allowed: USER/JOB/INDEX, as dev/hello/0")?;
            Ok((parse::job(&format!("{user}/{job}"))?, Some(number)))
        }
        _ => Ok((parse::job(text)?, None)),
    }
}

impl LogsArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        ask(self.show(&cell))?;
        Ok(Success::Done)
    }

    async fn show(&self, cell: &Cell) -> Result<(), Failure> {
        let indexes = match self.target.1 {
            Some(index) => vec![index],
            None => (0..cell.client.job(&self.target.0).await?.value.item.spec.count).collect(),
        };
        match (&indexes[..], self.follow) {
            ([one], true) => self.follow(cell, &[*one], Shown::Bare).await,
            ([one], false) => {
                self.task(cell, *one, &mut Printer::new(self, *one, Shown::Bare)).await
            }
            (many, true) if many.len() > MOST as usize => Err(Failure::Usage {
                message: format!("{} has {} tasks", self.target.0, many.len()),
                next: format!("follow at most {MOST}, or one: cell logs {}/0 -f", self.target.0),
            }),
            (many, true) => self.follow(cell, many, Shown::Named).await,
            (many, false) => {
                for index in many {
                    let mut printer = Printer::new(self, *index, Shown::Named);
                    match self.task(cell, *index, &mut printer).await {
                        Err(failure @ Failure::Work { .. }) => {
                            eprintln!("{}/{index}: {failure}", self.target.0);
                        }
                        done => done?,
                    }
                }
                Ok(())
            }
        }
    }

    async fn query(&self, cell: &Cell, index: u32) -> Result<OutputQuery, Failure> {
        let attempt = match self.previous {
            false => self.attempt,
            true => {
                let newest = cell.client.task(&self.target.0, index).await?.value.item.attempt;
                let none = || Failure::Work {
                    message: format!("{}/{index} has been placed {newest} times", self.target.0),
                    next: "the same command without --previous".into(),
                };
                Some(newest.checked_sub(1).filter(|number| *number > 0).ok_or_else(none)?)
            }
        };
        let stream = if self.stderr { Stream::Stderr } else { Stream::Stdout };
        Ok(OutputQuery { stream, attempt, lines: self.tail, ..OutputQuery::default() })
    }

    /// What there is now.
    async fn task(&self, cell: &Cell, index: u32, printer: &mut Printer) -> Result<(), Failure> {
        let mut query = self.query(cell, index).await?;
        loop {
            let piece = cell.client.output(&self.target.0, index, &query).await.map_err(refused)?;
            let OutputPiece { attempt, text, next, ended } = piece.value;
            printer.take(&text)?;
            if ended || text.is_empty() {
                return printer.finish();
            }
            (query.attempt, query.from) = (Some(attempt), Some(next));
        }
    }

    async fn follow(&self, cell: &Cell, indexes: &[u32], shown: Shown) -> Result<(), Failure> {
        let (sender, mut pieces) = mpsc::channel(WAITING);
        let mut printers = Vec::new();
        for (at, index) in indexes.iter().enumerate() {
            let query = self.query(cell, *index).await?;
            let watch = cell.client.watch_output(&self.target.0, *index, &query);
            tokio::spawn(heed(watch, at, sender.clone()));
            printers.push(Printer::new(self, *index, shown));
        }
        drop(sender);
        while let Some((at, heard)) = pieces.recv().await {
            let Some(printer) = printers.get_mut(at) else { continue };
            match heard {
                Heard::Text(text) => printer.take(&text)?,
                Heard::Silent(why) => eprintln!("{}: {why}", printer.name),
                Heard::End => printer.finish()?,
                Heard::Failed(error) if indexes.len() == 1 => return Err(refused(error)),
                Heard::Failed(error) => eprintln!("{}: {error}", printer.name),
            }
        }
        Ok(())
    }
}

fn refused(error: ClientError) -> Failure {
    match error.code() {
        Some(Code::NoSuchTask) => {
            Failure::work(&error, "see whether it ran: cell job status USER/JOB")
        }
        _ => error.into(),
    }
}

/// What is heard of one task.
enum Heard {
    Text(String),
    Silent(String),
    End,
    Failed(ClientError),
}

async fn heed(mut watch: Watch<OutputPiece>, at: usize, to: mpsc::Sender<(usize, Heard)>) {
    loop {
        let heard = match watch.next().await {
            Ok(event) => match (event.kind.as_str(), event.data) {
                ("output", Some(piece)) => Heard::Text(piece.text),
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
}

impl Printer {
    fn new(args: &LogsArgs, index: u32, shown: Shown) -> Printer {
        let name = format!("{}/{index}", args.target.0);
        Printer { name, index, shown, style: style::for_stdout(), begun: String::new() }
    }

    fn take(&mut self, text: &str) -> Result<(), Failure> {
        if self.shown == Shown::Bare {
            return print(text);
        }
        self.begun.push_str(text);
        let Some(end) = self.begun.rfind('\n') else { return Ok(()) };
        let rest = self.begun.split_off(end + 1);
        let whole = std::mem::replace(&mut self.begun, rest);
        print(&self.named(&whole))
    }

    fn finish(&mut self) -> Result<(), Failure> {
        let rest = std::mem::take(&mut self.begun);
        if rest.is_empty() { Ok(()) } else { print(&self.named(&rest)) }
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
    fn a_job_or_one_of_its_tasks() {
        let named = |text: &str| target(text).map(|(key, index)| (key.to_string(), index));
        assert_eq!(named("dev/hello"), Ok(("dev/hello".into(), None)));
        assert_eq!(named("dev/hello/2"), Ok(("dev/hello".into(), Some(2))));
        assert!(named("hello").is_err_and(|error| error.contains("USER/JOB")));
        assert!(named("dev/hello/x").is_err_and(|error| error.contains("USER/JOB/INDEX")));
    }
}
