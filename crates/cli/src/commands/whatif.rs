//! `cell sim whatif`: simulates adding a job.

use super::Success;
use super::sim_query::{SimQueryArgs, format_placements, rejection_failure, render_header};
use super::sim_report::{render_explanation, render_notes, render_trace_problems};
use crate::failure::Failure;
use crate::output::{Output, print_json, print_prose};
use crate::table::wrap;
use crate::{format, style, table};
use cellwright_sched::whatif::{Evicted, JobLoss, Whatif};
use cellwright_sim::experiment::what_if::{WhatIfAnswer, whatif};
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  cell sim whatif --trace example:examples/small-cell \\
    --job cpu=8,ram=32GiB,count=20
  cell sim whatif --trace example:examples/small-cell --job job.json -o json

The workload is packed first; then the whole job is added, and tasks of lower
priority may be evicted for it. They are given other places as the next passes
of a live cell would, evicting lower priorities in turn. Exit code 3 when not
all of the job finds a place.";

/// Say what adding a job would do: where it goes, who is evicted, what pends
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct WhatifArgs {
    #[command(flatten)]
    query: SimQueryArgs,
}

impl WhatifArgs {
    pub fn run(self) -> Result<Success, Failure> {
        let packed_cell = self.query.pack()?;
        let executor = packed_cell.executor.as_ref();
        let answer = whatif(
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
        match answer.answer.pending {
            0 => Ok(Success::Done),
            _ => Ok(Success::DoesNotFit),
        }
    }
}

/// The maximum number of rows in a table of jobs or tasks.
const MAX_ROWS: usize = 15;

fn render(answer: &WhatIfAnswer<Whatif>) -> String {
    let found = &answer.answer;
    let count = |number: u32| format::count(u64::from(number));
    let mut out = render_header(&answer.cell, &answer.job);
    let summary = format!(
        "{} of {} placed on {}; {} pending; {} of others evicted",
        count(found.placed),
        format::pluralize(u64::from(answer.job.count), "task"),
        format::pluralize(u64::from(found.machines), "machine"),
        count(found.pending),
        format::pluralize(found.victims.len() as u64, "task"),
    );
    out.push_str(&wrap("", "  ", &summary));
    if !found.placements.is_empty() {
        out.push_str(&wrap("  most on ", "    ", &format_placements(&found.placements)));
    }
    if !found.victims.is_empty() {
        out.push_str(&render_losses(&found.by_job));
        out.push_str(&render_evicted("evicted", &found.victims));
    }
    if !found.evicted_in_turn.is_empty() {
        out.push_str(&render_evicted("evicted in turn", &found.evicted_in_turn));
    }
    if let Some(explanation) = &found.explanation {
        out.push_str("\nwhy the rest is pending\n");
        out.push_str(&render_explanation(explanation, answer.cell.units));
    }
    let style = style::for_stdout();
    out.push_str(&render_trace_problems(&answer.cell.trace, style));
    out.push_str(&render_notes(&answer.cell.notes, style));
    out
}

fn render_losses(losses: &[JobLoss]) -> String {
    let row = |loss: &JobLoss| {
        let amounts = [loss.evicted, loss.placed_again, loss.pending];
        let amounts = amounts.map(|n| format::count(u64::from(n)));
        [vec![loss.job.clone(), loss.priority.0.to_string()], amounts.to_vec()].concat()
    };
    let rows: Vec<Vec<String>> = losses.iter().take(MAX_ROWS).map(row).collect();
    let header = ["job", "priority", "evicted", "placed again", "left pending"];
    format!("\n{}{}", table::render(&header, &rows), more_rows(losses.len()))
}

fn render_evicted(title: &str, victims: &[Evicted]) -> String {
    let row = |victim: &Evicted| {
        let destination =
            victim.moves_to.as_ref().map_or("pending", |machine| machine.name.as_str());
        vec![
            victim.task.name.clone(),
            victim.priority.0.to_string(),
            victim.machine.name.clone(),
            destination.to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = victims.iter().take(MAX_ROWS).map(row).collect();
    let header = [title, "priority", "from", "to"];
    format!("\n{}{}", table::render(&header, &rows), more_rows(victims.len()))
}

fn more_rows(all: usize) -> String {
    match all.saturating_sub(MAX_ROWS) {
        0 => String::new(),
        rest => format!(" and {} more (-o json names them all)\n", format::count(rest as u64)),
    }
}
