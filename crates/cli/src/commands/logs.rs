//! `cell logs`: what tasks wrote. The machines that say where their agent listens are asked, one by
//! one: a task that is over is on no machine any more, but one of them has its output.

use super::Success;
use super::parse;
use crate::failure::Failure;
use crate::output::print;
use crate::reach::{Cell, Reach};
use crate::server::ask;
use cellwright_api::client::{ClientError, PageAt, encode_query};
use cellwright_api::error::Code;
use cellwright_api::output::{ADDRESS_ATTRIBUTE, OUTPUT_PATH, OutputPiece, Stream};
use cellwright_cell::constraint::AttributeValue;
use cellwright_cell::name::{JobKey, Token};
use clap::Args;
use std::time::Duration;

/// How long an agent may wait for more before it answers.
const WAIT: Duration = Duration::from_secs(10);
/// What an answer may take beyond that.
const GRACE: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  cell logs dev/hello
  cell logs dev/hello/2 --follow
  cell logs dev/hello/2 --stderr --attempt 1

Agents tell the output of tasks to whoever asks on their own machine, where their
configuration says `listen`; `cell dev` does so.";

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

    /// Go on until the attempt has ended; for one task
    #[arg(short, long)]
    follow: bool,

    /// Which attempt [default: the newest]
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,

    /// Bytes from the end to begin with
    #[arg(long, value_name = "BYTES", default_value_t = 65_536)]
    tail: u64,
}

fn target(text: &str) -> Result<(JobKey, Option<u32>), String> {
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
        let addresses = agents(cell).await?;
        let count = cell.client.job(&self.target.0).await?.value.item.spec.count;
        match self.target.1 {
            Some(index) => self.task(cell, &addresses, index).await,
            None if count == 1 => self.task(cell, &addresses, 0).await,
            None if self.follow => Err(Failure::Usage {
                message: format!("{} has {count} tasks; --follow follows one", self.target.0),
                next: format!("cell logs {}/0 --follow", self.target.0),
            }),
            None => {
                for index in 0..count {
                    print(&format!("==> {}/{index}\n", self.target.0))?;
                    self.task(cell, &addresses, index).await?;
                }
                Ok(())
            }
        }
    }

    async fn task(&self, cell: &Cell, addresses: &[String], index: u32) -> Result<(), Failure> {
        let mut refused = None;
        for address in addresses {
            match self.piece(cell, address, index, None).await {
                Ok(piece) => return self.rest(cell, address, index, piece).await,
                Err(error) if error.code() == Some(Code::NoSuchTask) => refused = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(match refused {
            Some(error) => Failure::work(&error, "see whether it ran: cell job status USER/JOB"),
            None => Failure::Work {
                message: "no machine says where its agent can be asked".into(),
                next: "give the agents an address: `listen` in their configuration".into(),
            },
        })
    }

    async fn rest(
        &self,
        cell: &Cell,
        address: &str,
        index: u32,
        first: OutputPiece,
    ) -> Result<(), Failure> {
        let mut piece = first;
        loop {
            print(&piece.text)?;
            // Without following, the end is where there is nothing more for now.
            if piece.ended || (!self.follow && piece.text.is_empty()) {
                return Ok(());
            }
            piece = self.piece(cell, address, index, Some(&piece)).await?;
        }
    }

    async fn piece(
        &self,
        cell: &Cell,
        address: &str,
        index: u32,
        after: Option<&OutputPiece>,
    ) -> Result<OutputPiece, ClientError> {
        let stream = if self.stderr { Stream::Stderr } else { Stream::Stdout };
        let attempt = after.map(|piece| piece.attempt).or(self.attempt);
        let wait = if self.follow && after.is_some() { WAIT } else { Duration::ZERO };
        let query = encode_query(&[
            ("stream", Some(stream.name().to_owned())),
            ("attempt", attempt.map(|number| number.to_string())),
            ("from", after.map(|piece| piece.next.clone())),
            ("tail", Some(self.tail.to_string())),
            ("wait", Some(wait.as_millis().to_string())),
        ]);
        let JobKey { user, job } = &self.target.0;
        let path = format!("{OUTPUT_PATH}/{user}/{job}/{index}{query}");
        let bytes = cell.client.bytes_at(address, &path, wait + GRACE).await?;
        serde_json::from_slice(&bytes).map_err(|error| ClientError::BadReply(error.to_string()))
    }
}

/// Where agents say they can be asked.
async fn agents(cell: &Cell) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    let Ok(name) = Token::new(ADDRESS_ATTRIBUTE) else { return Ok(found) };
    let mut page = PageAt { limit: Some(1000), ..PageAt::default() };
    loop {
        let part = cell.client.machines(&page).await?.value;
        for machine in part.items {
            if let Some(AttributeValue::Text(address)) = machine.spec.attributes.get(&name) {
                found.push(address.clone());
            }
        }
        match part.next {
            Some(next) => page.after = Some(next),
            None => return Ok(found),
        }
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
