//! `cell sim whatif`: what adding a job would do.

use super::Success;
use super::question::{QuestionArgs, header, places, refused};
use super::shown::{explained, notes, problems};
use crate::failure::Failure;
use crate::output::{Output, print, print_json};
use crate::table::wrapped;
use crate::{format, style, table};
use cellwright_sched::whatif::Whatif;
use cellwright_sim::experiment::question::{Answer, whatif};
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  cell sim whatif --trace example:examples/small-cell --job cpu=8,ram=32GiB,count=20
  cell sim whatif --trace example:examples/small-cell --job job.json -o json

The workload is packed first; then the whole job is added, and tasks of lower
priority may be evicted for it. Exit code 3 when not all of it finds a place.";

/// Say what adding a job would do: where it goes, who is evicted, what pends
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct WhatifArgs {
    #[command(flatten)]
    question: QuestionArgs,
}

impl WhatifArgs {
    pub fn run(self) -> Result<Success, Failure> {
        let asked = self.question.pack()?;
        let executor = asked.executor.as_ref();
        let answer = whatif(&asked.result, &asked.packed, &asked.spec, asked.scheduler, executor)
            .map_err(|refusal| refused(&refusal))?;
        match self.question.output.output {
            Output::Json => print_json(&answer)?,
            Output::Table => print(&shown(&answer))?,
        }
        match answer.answer.pending {
            0 => Ok(Success::Done),
            _ => Ok(Success::DoesNotFit),
        }
    }
}

/// Evicted tasks named in a table.
const NAMED: usize = 15;

fn shown(answer: &Answer<Whatif>) -> String {
    let found = &answer.answer;
    let count = |number: u32| format::count(u64::from(number));
    let mut out = header(&answer.cell, &answer.job);
    out.push_str(&format!(
        "{} of {} tasks placed on {} machines; {} pending; {} tasks of others evicted\n",
        count(found.placed),
        count(answer.job.count),
        count(found.machines),
        count(found.pending),
        format::count(found.victims.len() as u64),
    ));
    if !found.placements.is_empty() {
        out.push_str(&wrapped("  most on ", "    ", &places(&found.placements)));
    }
    if !found.victims.is_empty() {
        let rows: Vec<Vec<String>> = found
            .victims
            .iter()
            .take(NAMED)
            .map(|victim| {
                let priority = victim.priority.0.to_string();
                vec![victim.task.name.clone(), priority, victim.machine.name.clone()]
            })
            .collect();
        out.push('\n');
        out.push_str(&table::render(&["evicted", "priority", "machine"], &rows));
        let rest = found.victims.len().saturating_sub(NAMED);
        if rest > 0 {
            out.push_str(&format!(
                " and {} more (-o json names them all)\n",
                format::count(rest as u64)
            ));
        }
    }
    if let Some(explanation) = &found.explanation {
        out.push_str("\nwhy the rest is pending\n");
        out.push_str(&explained(explanation, answer.cell.units));
    }
    let style = style::for_stdout();
    out.push_str(&problems(&answer.cell.trace, style));
    out.push_str(&notes(&answer.cell.notes, style));
    out
}
