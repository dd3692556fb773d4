//! `cell sim pack`: place a whole workload from scratch.

use super::shown::{notes, problems, reasons};
use super::{Success, arrivals};
use crate::args::{OutputArgs, SchedulerArgs, Score, TraceArgs, not_for, parse_load};
use crate::failure::Failure;
use crate::output::{Output, print, print_json};
use crate::table::wrapped;
use crate::{format, progress, style, table};
use cellwright_sim::experiment::load::load;
use cellwright_sim::experiment::pack::{PackOptions, PackResult, pack};
use cellwright_sim::experiment::threads::executor;
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  cell sim pack --trace example:examples/small-cell
  cell sim pack --trace google2011:../shared/traces/google2011 -o json
  cell sim pack --trace google2011:../shared/traces/google2011 --prod-only --at limits
  cell sim pack --trace openb:../shared/traces/openb --pods all --load 1.3 --seeds 10

The trace is read and submitted by the commands a live cell takes, one scheduling
pass places what it can, and the cell checks every placement again. With openb the
pods arrive one at a time instead, and the answer is how much of the GPUs is used.
Tasks that stay pending are part of the answer: the exit code is 0.";

/// Place a whole workload from scratch: what fits, what pends and why
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PackArgs {
    #[command(flatten)]
    pub trace: TraceArgs,

    #[command(flatten)]
    pub scheduler: SchedulerArgs,

    /// How machines are compared
    #[arg(long, value_enum, default_value = "hybrid", help_heading = "Scheduler")]
    pub score: Score,

    /// Explain this many classes of pending tasks, those with most tasks first [default: 3]
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "3")]
    pub explain: Option<usize>,

    /// GPU demand that arrives, as a multiple of the capacity [default: 1.3]; openb only
    #[arg(long, value_name = "FACTOR", value_parser = parse_load, help_heading = "Arrivals")]
    pub load: Option<u32>,

    /// How many orders of arrival to run, from --seed on [default: 1]; openb only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000),
          help_heading = "Arrivals")]
    pub seeds: Option<u32>,

    #[command(flatten)]
    pub output: OutputArgs,
}

const EXPLAINED: usize = 3;

impl PackArgs {
    pub fn run(self) -> Result<Success, Failure> {
        if self.trace.is_openb() {
            return arrivals::run(self);
        }
        let arrival_options = [("--load", self.load.is_some()), ("--seeds", self.seeds.is_some())];
        if let Some((option, _)) = arrival_options.iter().find(|(_, is_given)| *is_given) {
            return Err(not_for(option, &self.trace.trace, "openb:DIR"));
        }
        let threads = usize::from(self.scheduler.threads);
        let executor = executor(threads)?;
        let progress = progress::to_stderr();
        let loaded = load(&self.trace.load_options()?, progress.as_ref())?;
        let options = PackOptions {
            scheduler: self.scheduler.options(self.score.model()),
            seed: self.scheduler.seed,
            threads,
            executor: executor.as_ref(),
            explain: self.explain.unwrap_or(EXPLAINED),
        };
        let (result, _) = pack(loaded, options, progress.as_ref())?;
        drop(progress);
        match self.output.output {
            Output::Json => print_json(&result)?,
            Output::Table => print(&shown(&result, &self.trace.trace.to_string()))?,
        }
        Ok(Success::Done)
    }
}

fn shown(result: &PackResult, trace: &str) -> String {
    let style = style::for_stdout();
    let count = |number: usize| format::count(number as u64);
    let pending = count(result.pending);
    let techniques = &result.techniques;
    let used = [
        ("score cache", techniques.score_cache),
        ("classes", techniques.equivalence_classes),
        ("randomization", techniques.randomization.is_some()),
    ];
    let used: Vec<&str> = used.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
    let used = if used.is_empty() { "none".to_owned() } else { used.join(", ") };
    let mut out = String::new();
    // Wrapped before it is coloured: codes take no room on the screen.
    let mut line = |name: &str, text: String| {
        let plain = wrapped(&format!("{name:<10} "), "           ", &text);
        out.push_str(&plain.replacen(name, &style.strong(name), 1));
    };
    line("cell", format!("{trace}: {} machines", count(result.machines)));
    let jobs = count(result.jobs);
    line("workload", format!("{jobs} jobs, {} tasks", format::count(result.tasks)));
    let (placed, preempted) = (count(result.placed), count(result.preempted));
    line("result", format!("{placed} placed, {pending} pending, {preempted} preempted"));
    line("scheduler", format!("{}; {used}; seed {}", techniques.score, result.seed));
    line("time", times(result));
    line("memory", result.peak_rss_bytes.map_or("unknown".into(), format::bytes) + " at peak");
    line("placement", result.placement_hash.to_string());
    out.push('\n');
    out.push_str(&utilisation(result));
    out.push_str(&reasons(&result.pending_reasons, result.units, style));
    out.push_str(&problems(&result.trace, style));
    out.push_str(&notes(&result.notes, style));
    out
}

fn times(result: &PackResult) -> String {
    let parts = [
        ("load", result.load_seconds),
        ("snapshot", result.snapshot_seconds),
        ("solve", result.solve_seconds),
        ("apply", result.apply_seconds),
        ("explain", result.explain_seconds),
    ];
    let parts = parts.map(|(name, seconds)| format!("{name} {}", format::seconds(seconds)));
    parts.join(", ")
}

fn utilisation(result: &PackResult) -> String {
    let percent = |value: f64| format!("{value:.1} %");
    let mut rows: Vec<Vec<String>> = result
        .utilisation
        .iter()
        .map(|of| {
            vec![
                of.dimension.to_owned(),
                format::amount(result.units, of.dimension, of.capacity),
                percent(of.limits_percent),
                percent(of.prod_limits_percent),
                percent(of.reserved_percent),
            ]
        })
        .collect();
    if let Some(devices) = result.devices_percent {
        let none = String::new;
        rows.push(vec!["devices".into(), none(), percent(devices), none(), none()]);
    }
    table::render(&["placed", "capacity", "limits", "prod limits", "reserved"], &rows)
}
