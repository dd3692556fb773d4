//! `cell sim fits`: how many more tasks of a job fit, and what stops the next one.

use super::Success;
use super::question::{QuestionArgs, header, places, refused};
use super::shown::{explained, notes, problems};
use crate::failure::Failure;
use crate::output::{Output, print_json, say};
use crate::table::wrapped;
use crate::{format, style};
use cellwright_sched::whatif::Fits;
use cellwright_sim::experiment::question::{Answer, fits};
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  cell sim fits --trace example:examples/small-cell --job cpu=2,ram=8GiB
  cell sim fits --trace example:examples/small-cell \\
    --job 'cpu=1,ram=2GiB,static_ports=8080,constraints=arch = arm64'
  cell sim fits --trace google2011:DIR --job cpu=0.25,ram=0.1

The workload is packed first; then tasks of the job are added one by one,
without evicting anybody, until one finds no place. Amounts of google2011 are
shares of its largest machine. A count in the job does not matter here.";

/// Count how many more tasks of a job fit, and say what stops the next one
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct FitsArgs {
    #[command(flatten)]
    question: QuestionArgs,
}

impl FitsArgs {
    pub fn run(self) -> Result<Success, Failure> {
        let asked = self.question.pack()?;
        let executor = asked.executor.as_ref();
        let answer = fits(&asked.result, &asked.packed, &asked.spec, asked.scheduler, executor)
            .map_err(|refusal| refused(&refusal))?;
        match self.question.output.output {
            Output::Json => print_json(&answer)?,
            Output::Table => say(&shown(&answer))?,
        }
        Ok(Success::Done)
    }
}

fn shown(answer: &Answer<Fits>) -> String {
    let fits = &answer.answer;
    let mut out = header(&answer.cell, &answer.job);
    let at_least = if fits.reached_max { "at least " } else { "" };
    out.push_str(&format!(
        "{at_least}{} more {}, on {}\n",
        format::count(u64::from(fits.count)),
        if fits.count == 1 { "task fits" } else { "tasks fit" },
        format::counted(u64::from(fits.machines), "machine"),
    ));
    if !fits.placements.is_empty() {
        out.push_str(&wrapped("  most on ", "    ", &places(&fits.placements)));
    }
    if let Some(explanation) = &fits.stopped_by {
        out.push_str("\nwhat stops the next one\n");
        out.push_str(&explained(explanation, answer.cell.units));
    }
    let style = style::for_stdout();
    out.push_str(&problems(&answer.cell.trace, style));
    out.push_str(&notes(&answer.cell.notes, style));
    out
}
