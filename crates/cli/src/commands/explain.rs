//! `cell explain`: why a task waits and what would let it run, why it is where it is, how it ended;
//! or the same of a whole job, its tasks that are alike together.

use super::Success;
use super::status::{Words, words_of_starts};
use super::target::{Target, Typed, typed};
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print, print_json};
use crate::reach::{Cell, Reach};
use crate::server::ask;
use crate::table::{rewrapped, wrapped};
use cellwright_api::types::{ExplanationView, HappenedView};
use cellwright_cell::name::JobKey;
use clap::Args;

/// Events of the past shown in a table; JSON has more.
const SHOWN: usize = 5;

/// Say why a task waits, why it is where it is, or how it ended
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// A job, or one of its tasks
    #[arg(value_name = "JOB|TASK", value_parser = typed)]
    subject: Typed,

    #[command(flatten)]
    output: OutputArgs,
}

impl ExplainArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        let Target { job, tasks } = ask(self.subject.resolve(&cell))?;
        let Some(indexes) = tasks else {
            let said = ask(async { Ok(cell.client.explain_job(&job).await?.value.item) })?;
            match self.output.output {
                Output::Json => print_json(&said)?,
                Output::Table => {
                    // The first of each kind stands for the rest.
                    let firsts = said.groups.iter().filter_map(|group| group.tasks.first());
                    let words = starts(&cell, &job, firsts.copied().collect());
                    print(&format!("{}: {}{words}", said.job, lines(&said.text)))?;
                }
            }
            return Ok(Success::Done);
        };
        let [index] = indexes[..] else {
            return Err(Failure::Usage {
                message: format!("{} tasks of {job} at once; allowed: one, or all", indexes.len()),
                next: format!("those that are alike together: cell explain {job}"),
            });
        };
        let said = ask(async { Ok(cell.client.explain(&job, index).await?.value.item) })?;
        match self.output.output {
            Output::Json => print_json(&said)?,
            Output::Table => print(&task(&said, &starts(&cell, &job, vec![index])))?,
        }
        Ok(Success::Done)
    }
}

/// Why tasks could not start, in the words of their machines. That a machine does not say is no
/// reason to explain nothing.
fn starts(cell: &Cell, job: &JobKey, indexes: Vec<u32>) -> String {
    let found = ask(async {
        let mut tasks = Vec::new();
        for index in indexes {
            tasks.push(cell.client.task(job, index).await?.value.item);
        }
        Ok(words_of_starts(cell, job, &tasks).await)
    });
    let said = found.unwrap_or_default();
    let line =
        |words: &Words| wrapped(&format!("{} could not start: ", words.task), "  ", &words.said);
    said.iter().map(line).collect()
}

fn lines(text: &str) -> String {
    rewrapped("", "  ", text)
}

/// `words`: of its machine, why it could not start.
fn task(said: &ExplanationView, words: &str) -> String {
    let mut out = lines(&said.text);
    out.push_str(words);
    if let Some(here) = &said.here {
        for candidate in &here.candidates {
            let mark = if candidate.here { "  (here)" } else { "" };
            let terms = candidate.score.as_object().map(|terms| {
                let term = |(name, value): (&String, &serde_json::Value)| format!("{name} {value}");
                terms.iter().map(term).collect::<Vec<_>>().join(", ")
            });
            let score = terms.unwrap_or_default();
            out.push_str(&format!("  {}. {}{mark}: {score}\n", candidate.rank, candidate.machine));
        }
    }
    let newest = said.history.len().saturating_sub(SHOWN);
    let shown = &said.history[newest..];
    if !shown.is_empty() {
        out.push_str("\nlately\n");
        shown.iter().for_each(|event| out.push_str(&happened(event)));
    }
    out
}

fn happened(event: &HappenedView) -> String {
    let start = format!("  {}  ", format::utc(event.at));
    wrapped(&start, "                          ", &event.text)
}
