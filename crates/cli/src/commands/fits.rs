//! `cell sim fits`: how many more tasks of a job fit, and what prevents the next one.

use super::Success;
use super::sim_query::{SimQueryArgs, format_placements, rejection_failure, render_header};
use super::sim_report::{render_explanation, render_notes, render_trace_problems};
use crate::failure::Failure;
use crate::output::{Output, print_json, print_prose};
use crate::table::wrap;
use crate::{format, style};
use cellwright_sched::whatif::FitCount;
use cellwright_sim::experiment::what_if::{WhatIfAnswer, fits};
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
    query: SimQueryArgs,
}

impl FitsArgs {
    pub fn run(self) -> Result<Success, Failure> {
        let packed_cell = self.query.pack()?;
        let executor = packed_cell.executor.as_ref();
        let answer = fits(
            &packed_cell.result,
            &packed_cell.packed,
            &packed_cell.spec,
            packed_cell.scheduler,
            executor,
        )
        .map_err(|rejection| rejection_failure(&rejection))?;
        match self.query.output.output {
            Output::Json => print_json(&answer)?,
            Output::Table => print_prose(&render(&answer))?,
        }
        Ok(Success::Done)
    }
}

fn render(answer: &WhatIfAnswer<FitCount>) -> String {
    let fits = &answer.answer;
    let mut out = render_header(&answer.cell, &answer.job);
    let at_least = if fits.reached_max { "at least " } else { "" };
    out.push_str(&format!(
        "{at_least}{} more {}, on {}\n",
        format::count(u64::from(fits.count)),
        if fits.count == 1 { "task fits" } else { "tasks fit" },
        format::pluralize(u64::from(fits.machines), "machine"),
    ));
    if !fits.placements.is_empty() {
        out.push_str(&wrap("  most on ", "    ", &format_placements(&fits.placements)));
    }
    if let Some(explanation) = &fits.stopped_by {
        out.push_str("\nwhat stops the next one\n");
        out.push_str(&render_explanation(explanation, answer.cell.units));
    }
    let style = style::for_stdout();
    out.push_str(&render_trace_problems(&answer.cell.trace, style));
    out.push_str(&render_notes(&answer.cell.notes, style));
    out
}
