//! `cell sim pack --trace openb:DIR`: simulates pods that arrive one at a time.

use super::Success;
use super::pack::PackArgs;
use super::sim_report::{render_notes, render_trace_problems};
use crate::args::{MachineSearch, unsupported_option};
use crate::failure::Failure;
use crate::output::{Output, print_json, print_prose};
use crate::table::wrap;
use crate::{format, progress, style, table};
use cellwright_sim::experiment::arrivals::{ArrivalOptions, ArrivalResult, arrivals};
use cellwright_sim::trace::TraceSource;
use serde::Serialize;

/// The load used in the published figures.
const PUBLISHED_LOAD_PERMILLE: u32 = 1300;

/// The results for several pod lists.
#[derive(Serialize)]
struct Workloads<'a> {
    workloads: &'a [ArrivalResult],
}

pub fn run(args: PackArgs) -> Result<Success, Failure> {
    let options = options(&args)?;
    let progress = progress::to_stderr();
    let results = arrivals(&options, progress.as_ref())?;
    drop(progress);
    match (args.output.output, results.as_slice()) {
        (Output::Json, [single]) => print_json(single)?,
        (Output::Json, all) => print_json(&Workloads { workloads: all })?,
        (Output::Table, all) => print_prose(&render(all))?,
    }
    Ok(Success::Done)
}

fn options(args: &PackArgs) -> Result<ArrivalOptions, Failure> {
    let trace = &args.trace;
    let inapplicable = [
        ("--prod-only", trace.prod_only),
        ("--at-time", trace.at_time.is_some()),
        ("--copies", trace.copies > 1),
        ("--usage-cpu", trace.usage_cpu.is_some()),
        ("--usage-ram", trace.usage_ram.is_some()),
        ("--reclaim", trace.reclaim.is_some()),
        ("--explain", args.explain.is_some()),
    ];
    if let Some((option, _)) = inapplicable.iter().find(|(_, is_given)| *is_given) {
        return Err(unsupported_option(option, &trace.trace, "another trace"));
    }
    let TraceSource::Openb(folder) = &trace.trace else {
        return Err(unsupported_option("arrival", &trace.trace, "openb:DIR"));
    };
    Ok(ArrivalOptions {
        folder: folder.clone(),
        pods: trace.pods.clone().unwrap_or_else(|| "default".into()),
        load_permille: args.load.unwrap_or(PUBLISHED_LOAD_PERMILLE),
        seed: args.scheduler.seed,
        seeds: args.seeds.unwrap_or(1),
        scheduler: args.scheduler.options(args.score.model(), MachineSearch::Sampled),
        threads: usize::from(args.scheduler.threads),
    })
}

fn render(results: &[ArrivalResult]) -> String {
    let Some(first) = results.first() else { return "no pod list\n".into() };
    let style = style::for_stdout();
    let Some(run) = first.runs.first() else { return "no run\n".into() };
    let summary = format!(
        "{}; pods ask for {:.0} % of the GPUs, one at a time; {}; {}",
        format::pluralize(run.machines as u64, "machine"),
        first.load * 100.0,
        format::pluralize(first.runs.len() as u64, "seed"),
        first.techniques.score,
    );
    let mut out = wrap("", "", &summary);
    out.push('\n');
    let percent = |value: f64| format!("{value:.2}");
    let rows: Vec<Vec<String>> = results
        .iter()
        .map(|result| {
            let published = result.published;
            let or_dash = |value: Option<f64>| value.map_or("-".into(), percent);
            let least = result.gpu_allocated_percent.iter().copied().fold(f64::MAX, f64::min);
            let most = result.gpu_allocated_percent.iter().copied().fold(f64::MIN, f64::max);
            vec![
                result.pods.trim_start_matches("openb_pod_list_").to_owned(),
                percent(result.gpu_allocated_percent_mean),
                percent(least),
                percent(most),
                or_dash(published.map(|p| p.fgd)),
                or_dash(published.map(|p| p.best_fit)),
                or_dash(published.map(|p| p.random)),
                or_dash(result.unallocated_vs_fgd),
            ]
        })
        .collect();
    let header = ["pods", "GPU %", "min", "max", "FGD %", "best fit %", "random %", "idle/FGD"];
    out.push_str(&table::render(&header, &rows));
    let meaning = "idle/FGD: GPU left unallocated, as a multiple of what the best published \
                   policy (FGD) leaves; below 1 is better";
    out.push('\n');
    out.push_str(&wrap("", "", meaning));
    out.push_str(&render_trace_problems(&first.trace, style));
    out.push_str(&render_notes(&first.notes, style));
    out
}
