//! Compaction of the Google cell of 2011: how few machines would do, by each score.

use crate::report::Report;
use crate::trace::folder;
use cellwright_cell::reclaim::Settings;
use cellwright_sched::Options;
use cellwright_sched::score::packing::Model;
use cellwright_sim::convert::UsageModel;
use cellwright_sim::experiment::compact::{CompactOptions, compact};
use cellwright_sim::experiment::load::{LoadOptions, read, units_of};
use cellwright_sim::experiment::progress::Silent;
use cellwright_sim::experiment::scheduler::model_name;
use cellwright_sim::trace::TraceSource;
use std::io;

const SEED: u64 = 1;

fn run(report: &mut Report, prod_only: bool, model: Model, trials: u32) -> io::Result<()> {
    let name = model_name(model);
    let source = TraceSource::Google2011(folder().join("google2011"));
    let usage = UsageModel { cpu_permille: 400, ram_permille: 550, settings: Settings::MEDIUM };
    let load = LoadOptions {
        source: source.clone(),
        prod_only,
        usage: (!prod_only).then_some(usage),
        at_seconds: None,
        copies: 1,
        pods: "default".into(),
    };
    let workload = read(&load, &Silent).map_err(io::Error::other)?;
    let options = CompactOptions {
        trials,
        seed: SEED,
        pending_permille: 2,
        scheduler: Options { model, ..Options::exact() },
        threads: 2,
    };
    let result =
        compact(workload, units_of(&source), options, &Silent).map_err(io::Error::other)?;
    let what = if prod_only { "prod only, at limits" } else { "everything, reclamation on" };
    let target = if prod_only && model == Model::Hybrid { "≤ 75.5" } else { "" };
    let percent = |fraction: f64| 100.0 * fraction;
    let row = format!("{what}, {name}: p90 of {trials} trials");
    report.row(&row, percent(result.machines_fraction_p90), "% of machines", target);
    let spread = percent(result.machines_fraction_max - result.machines_fraction_min);
    report.row(&format!("{what}, {name}: max - min"), spread, "points", "");
    if model == Model::Hybrid {
        let bound = percent(result.lower_bound_fraction);
        report.row(&format!("{what}: lower bound"), bound, "% of machines", "");
    }
    Ok(())
}

pub fn main() -> io::Result<()> {
    let mut report = Report::new(
        "compact",
        "Cell compaction of the Google cell of 2011: machines are removed in random order and the \
         workload is packed from scratch, exactly (randomisation off), until more than 0.2 % of \
         the tasks pend. Usage model as in the pack report.",
        SEED,
    );
    // The comparisons take long and vary little, so they get fewer trials; recorded as they come.
    let runs = [
        (true, Model::Hybrid, 11),
        (false, Model::Hybrid, 3),
        (false, Model::BestFit, 3),
        (false, Model::WorstFit, 3),
        (true, Model::BestFit, 3),
        (true, Model::WorstFit, 3),
    ];
    for (prod_only, model, trials) in runs {
        run(&mut report, prod_only, model, trials)?;
        report.save()?;
    }
    Ok(())
}
