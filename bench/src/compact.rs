//! Compaction of the Google cell of 2011: how few machines would do, by each score.

use crate::report::Report;
use crate::trace::folder;
use cellwright_cell::reclaim::ReclaimConfig;
use cellwright_sched::Options;
use cellwright_sched::score::packing::PackingModel;
use cellwright_sim::convert::UsageModel;
use cellwright_sim::experiment::compact::{CompactOptions, compact};
use cellwright_sim::experiment::load::{LoadOptions, read, units_of};
use cellwright_sim::experiment::progress::NoProgress;
use cellwright_sim::experiment::scheduler::model_name;
use cellwright_sim::trace::TraceSource;
use std::io;

const SEED: u64 = 1;

fn run(report: &mut Report, prod_only: bool, model: PackingModel, trials: u32) -> io::Result<()> {
    let name = model_name(model);
    let scope = if prod_only { "prod only, at limits" } else { "everything, reclamation on" };
    let row = format!("{scope}, {name}: p90 of {trials} trials");
    if report.has_row(&row) {
        return Ok(());
    }
    let source = TraceSource::Google2011(folder().join("google2011"));
    let usage =
        UsageModel { cpu_permille: 400, ram_permille: 550, settings: ReclaimConfig::MEDIUM };
    let load = LoadOptions {
        source: source.clone(),
        prod_only,
        usage: (!prod_only).then_some(usage),
        at_seconds: None,
        copies: 1,
        pods: "default".into(),
    };
    let workload = read(&load, &NoProgress).map_err(io::Error::other)?;
    let options = CompactOptions {
        trials,
        seed: SEED,
        pending_permille: 2,
        scheduler: Options { model, ..Options::exact() },
        threads: 1,
    };
    let result =
        compact(workload, units_of(&source), options, &NoProgress).map_err(io::Error::other)?;
    let target = if prod_only && model == PackingModel::Hybrid { "≤ 75.5" } else { "" };
    let percent = |fraction: f64| 100.0 * fraction;
    report.row(&row, percent(result.machines_fraction_p90), "% of machines", target);
    let spread = percent(result.machines_fraction_max - result.machines_fraction_min);
    report.row(&format!("{scope}, {name}: max - min"), spread, "points", "");
    if model == PackingModel::Hybrid {
        let bound = percent(result.lower_bound_fraction);
        report.row(&format!("{scope}: lower bound"), bound, "% of machines", "");
    }
    Ok(())
}

/// A packing of everything, and one by worst fit, takes several times as long as others and varies
/// little, so these get fewer trials.
const RUNS: [(bool, PackingModel, u32); 6] = [
    (true, PackingModel::Hybrid, 11),
    (true, PackingModel::BestFit, 11),
    (true, PackingModel::WorstFit, 5),
    (false, PackingModel::Hybrid, 3),
    (false, PackingModel::BestFit, 3),
    (false, PackingModel::WorstFit, 3),
];

fn empty_report() -> Report {
    Report::new(
        "compact",
        "Cell compaction of the Google cell of 2011: machines are removed in random order and the \
         workload is packed from scratch, exactly (randomisation off), until more than 0.2 % of \
         the tasks pend. Usage model as in the pack report.",
        SEED,
    )
}

/// Recorded run by run, as they come.
fn record(mut report: Report) -> io::Result<()> {
    for (prod_only, model, trials) in RUNS {
        run(&mut report, prod_only, model, trials)?;
        report.save()?;
    }
    Ok(())
}

pub fn main() -> io::Result<()> {
    record(empty_report())
}

/// Only the runs that the recorded report lacks.
pub fn run_missing() -> io::Result<()> {
    let mut report = empty_report();
    report.recorded()?;
    record(report)
}
