//! `cell sim compact`: the fewest machines that a workload needs.

use super::Success;
use super::sim_report::{render_notes, render_trace_problems};
use crate::args::{MachineSearch, OutputArgs, SchedulerArgs, TraceArgs};
use crate::failure::Failure;
use crate::output::{Output, print_json, print_prose};
use crate::table::wrap;
use crate::{format, progress, style, table};
use cellwright_sched::score::packing::PackingModel;
use cellwright_sim::experiment::compact::{CompactOptions, CompactResult, compact};
use cellwright_sim::experiment::load::{read, units_of};
use cellwright_sim::experiment::scheduler::MODELS;
use cellwright_sim::plot::{Chart, Mark, Series, render};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  cell sim compact --trace example:examples/small-cell
  cell sim compact --trace google2011:DIR --prod-only --at limits
  cell sim compact --trace google2011:DIR --score all --trials 5 -o json
  cell sim compact --trace google2011:DIR --randomization --trials 3

Each trial takes machines away in a random order, packing from scratch each
time, until more tasks pend than allowed. The answer to plan with is the 90th
percentile of the trials. Every task looks at all machines, unlike in the other
commands; a sample of them (--randomization) is faster and packs less tightly.
Jobs with more tasks than half the machines have their constraints turned into
wishes; a workload that does not fit gets the cell several times over.";

/// Find how few machines would do for a workload
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CompactArgs {
    #[command(flatten)]
    trace: TraceArgs,

    #[command(flatten)]
    scheduler: SchedulerArgs,

    /// How machines are compared; `all` runs the three one after the other
    #[arg(long, value_enum, default_value = "hybrid", help_heading = "Scheduler")]
    score: Scores,

    /// Random orders of machines to try, from --seed on
    #[arg(long, value_name = "N", default_value_t = 11,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    trials: u32,

    /// Thousandths of the tasks that may stay pending
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(0..=1000))]
    pending_permille: u32,

    /// Where to write the chart of the trials
    #[arg(long, value_name = "FILE", default_value = "cell-compact.svg")]
    svg: PathBuf,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scores {
    Hybrid,
    BestFit,
    WorstFit,
    All,
}

/// The results for several scores.
#[derive(Serialize)]
struct ByScore<'a> {
    scores: &'a [CompactResult],
    svg: &'a Path,
}

#[derive(Serialize)]
struct WithChart<'a> {
    #[serde(flatten)]
    result: &'a CompactResult,
    svg: &'a Path,
}

impl CompactArgs {
    pub fn run(self) -> Result<Success, Failure> {
        let progress = progress::to_stderr();
        let load = self.trace.load_options()?;
        let workload = read(&load, progress.as_ref())?;
        // Checked now, not after minutes of packing.
        let unwritable =
            |source| Failure::Write { what: format!("the chart {}", self.svg.display()), source };
        fs::OpenOptions::new().create(true).append(true).open(&self.svg).map_err(unwritable)?;
        let mut results = Vec::new();
        for model in self.models() {
            let options = CompactOptions {
                trials: self.trials,
                seed: self.scheduler.seed,
                pending_permille: self.pending_permille,
                scheduler: self.scheduler.options(model, MachineSearch::Exact),
                threads: usize::from(self.scheduler.threads),
            };
            let units = units_of(&load.source);
            results.push(compact(workload.clone(), units, options, progress.as_ref())?);
        }
        drop(progress);
        let chart = render(&chart(&results, &load.source.to_string()));
        fs::write(&self.svg, chart).map_err(unwritable)?;
        match (self.output.output, results.as_slice()) {
            (Output::Json, [result]) => print_json(&WithChart { result, svg: &self.svg })?,
            (Output::Json, scores) => print_json(&ByScore { scores, svg: &self.svg })?,
            (Output::Table, all) => {
                print_prose(&to_text(all, &load.source.to_string(), &self.svg))?
            }
        }
        Ok(Success::Done)
    }

    fn models(&self) -> Vec<PackingModel> {
        match self.score {
            Scores::Hybrid => vec![PackingModel::Hybrid],
            Scores::BestFit => vec![PackingModel::BestFit],
            Scores::WorstFit => vec![PackingModel::WorstFit],
            Scores::All => MODELS.iter().map(|(_, model)| *model).collect(),
        }
    }
}

fn to_text(results: &[CompactResult], trace: &str, svg: &Path) -> String {
    let Some(first) = results.first() else { return String::new() };
    let style = style::for_stdout();
    let machines = format::pluralize(first.machines as u64, "machine");
    let tasks = format::pluralize(first.tasks, "task");
    let mut out = format!("{} {trace}: {machines}, {tasks}\n", style.strong("cell"));
    out.push_str(&format!(
        "{} {}, {}; tasks that may pend: {}\n\n",
        style.strong("method"),
        format::pluralize(first.trials.len() as u64, "trial"),
        match first.techniques.randomization {
            None => "all machines looked at",
            Some(_) => "a sample of the machines looked at",
        },
        format::count(first.may_pend as u64),
    ));
    let percent = |fraction: f64| format!("{:.2} %", fraction * 100.0);
    let rows: Vec<Vec<String>> = results
        .iter()
        .map(|result| {
            vec![
                result.techniques.score.to_owned(),
                percent(result.machines_fraction_p90),
                percent(result.machines_fraction_min),
                percent(result.machines_fraction_median),
                percent(result.machines_fraction_max),
                percent(result.lower_bound_fraction),
                format!("x{}", result.cell_clones),
                format::seconds(result.seconds),
            ]
        })
        .collect();
    let header = ["score", "90th pct", "min", "median", "max", "lower bound", "cells", "time"];
    out.push_str(&table::render(&header, &rows));
    out.push_str(&style.strong("\nlower bound\n"));
    out.push_str(&wrap("  ", "  ", first.lower_bound_meaning));
    out.push_str(&render_trace_problems(&first.trace, style));
    out.push_str(&render_notes(&first.notes, style));
    out.push_str(&format!("\nchart of the trials: {}\n", svg.display()));
    out
}

fn chart(results: &[CompactResult], trace: &str) -> Chart {
    let mut series = Vec::new();
    for result in results {
        let points = |value: &dyn Fn(usize) -> f64| -> Vec<(f64, f64)> {
            (0..result.trials.len()).map(|i| ((i + 1) as f64, value(i))).collect()
        };
        let name = result.techniques.score;
        series.push(Series {
            name: name.to_owned(),
            mark: Mark::Points,
            points: points(&|i| 100.0 * result.trials[i].fraction),
        });
        series.push(Series {
            name: format!("{name}: 90th pct {:.2} %", 100.0 * result.machines_fraction_p90),
            mark: Mark::Rule,
            points: points(&|_| 100.0 * result.machines_fraction_p90),
        });
    }
    if let Some(first) = results.first() {
        let bounds = first.trials.iter().enumerate().map(|(i, trial)| {
            let fraction = trial.lower_bound.machines as f64 / first.machines as f64;
            ((i + 1) as f64, 100.0 * fraction)
        });
        let points = bounds.collect();
        series.push(Series { name: "lower bound".into(), mark: Mark::Points, points });
    }
    Chart {
        title: "Machines needed after compaction".into(),
        subtitle: trace.to_owned(),
        x_title: "trial".into(),
        y_title: "% of the machines of the cell".into(),
        series,
    }
}
