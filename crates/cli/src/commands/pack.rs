//! `cell sim pack`: places a whole workload on an empty cell.

use super::sim_report::{
    render_explained_task, render_notes, render_pending_reasons, render_trace_problems,
};
use super::{Success, arrivals};
use crate::args::{
    MachineSearch, OutputArgs, SchedulerArgs, Score, TraceArgs, parse_load, unsupported_option,
};
use crate::failure::Failure;
use crate::output::{Output, print_json, print_prose};
use crate::table::wrap;
use crate::{format, progress, style, table};
use cellwright_sim::experiment::load::{load, load_running};
use cellwright_sim::experiment::pack::{PackOptions, PackResult, pack};
use cellwright_sim::experiment::pending::{Explain, InvalidTaskName, TaskName};
use cellwright_sim::experiment::threads::executor;
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  cell sim pack --trace example:examples/small-cell
  cell sim pack --trace example:examples/small-cell --explain ci/riscv-port/0
  cell sim pack --trace checkpoint:00000000000000000042.ckpt
  cell sim pack --trace google2011:DIR -o json
  cell sim pack --trace google2011:DIR --prod-only --at limits
  cell sim pack --trace openb:DIR --pods all --load 1.3 --seeds 10

The trace is read and submitted by the commands a live cell takes, one
scheduling pass places what it can, and the cell checks every placement again.
With openb the pods arrive one at a time instead, and the answer is how much of
the GPUs is used. Tasks that stay pending are part of the answer: the exit code
is 0.";

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

    /// Explain this many classes of pending tasks, those with most tasks first, or one task by name
    /// [default: 3]
    #[arg(long, value_name = "N|USER/JOB/INDEX", num_args = 0..=1, default_missing_value = "3",
          value_parser = parse_explain)]
    pub explain: Option<ExplainArg>,

    /// Leave every task where it was and place only those that wait; checkpoint only
    #[arg(long, help_heading = "Workload")]
    pub as_it_stands: bool,

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

const DEFAULT_EXPLAINED_CLASSES: usize = 3;

/// The argument of `--explain`.
#[derive(Clone, Debug)]
pub enum ExplainArg {
    Classes(usize),
    Task(TaskName),
}

fn parse_explain(text: &str) -> Result<ExplainArg, String> {
    match (text.parse(), text.parse()) {
        (Ok(classes), _) => Ok(ExplainArg::Classes(classes)),
        (_, Ok(name)) => Ok(ExplainArg::Task(name)),
        (_, Err(InvalidTaskName)) => Err("allowed: a number of classes, or one task as \
                                      USER/JOB/INDEX, such as ci/riscv-port/0"
            .into()),
    }
}

impl PackArgs {
    pub fn run(self) -> Result<Success, Failure> {
        if self.as_it_stands && !self.trace.is_checkpoint() {
            return Err(unsupported_option("--as-it-stands", &self.trace.trace, "checkpoint:FILE"));
        }
        if self.trace.is_openb() {
            return arrivals::run(self);
        }
        let arrival_options = [("--load", self.load.is_some()), ("--seeds", self.seeds.is_some())];
        if let Some((option, _)) = arrival_options.iter().find(|(_, is_given)| *is_given) {
            return Err(unsupported_option(option, &self.trace.trace, "openb:DIR"));
        }
        let threads = usize::from(self.scheduler.threads);
        let executor = executor(threads)?;
        let progress = progress::to_stderr();
        let options = self.trace.load_options()?;
        let loaded = if self.as_it_stands {
            load_running(&options, progress.as_ref())?
        } else {
            load(&options, progress.as_ref())?
        };
        let options = PackOptions {
            scheduler: self.scheduler.options(self.score.model(), MachineSearch::Sampled),
            seed: self.scheduler.seed,
            threads,
            executor: executor.as_ref(),
            explain: match &self.explain {
                None => Explain::Classes(DEFAULT_EXPLAINED_CLASSES),
                Some(ExplainArg::Classes(most)) => Explain::Classes(*most),
                Some(ExplainArg::Task(name)) => Explain::Task(name),
            },
        };
        let (result, _) = pack(loaded, options, progress.as_ref())?;
        drop(progress);
        match self.output.output {
            Output::Json => print_json(&result)?,
            Output::Table => print_prose(&render(&result, &self.trace.trace.to_string()))?,
        }
        Ok(Success::Done)
    }
}

fn render(result: &PackResult, trace: &str) -> String {
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
    // Wrapped before it is coloured, because colour codes would count as width.
    let mut line = |name: &str, text: String| {
        let plain = wrap(&format!("{name:<10} "), "           ", &text);
        out.push_str(&plain.replacen(name, &style.strong(name), 1));
    };
    let machines = format::pluralize(result.machines as u64, "machine");
    line("cell", format!("{trace}: {machines}"));
    let jobs = format::pluralize(result.jobs as u64, "job");
    line("workload", format!("{jobs}, {}", format::pluralize(result.tasks, "task")));
    let (placed, preempted) = (count(result.placed), count(result.preempted));
    line("result", format!("{placed} placed, {pending} pending, {preempted} preempted"));
    line("scheduler", format!("{}; {used}; seed {}", techniques.score, result.seed));
    line("time", render_times(result));
    line("memory", result.peak_rss_bytes.map_or("unknown".into(), format::bytes) + " at peak");
    line("placement", result.placement_hash.to_string());
    out.push('\n');
    out.push_str(&render_utilisation(result));
    if let Some(task) = &result.explained_task {
        out.push_str(&render_explained_task(task, result.units, style));
    }
    out.push_str(&render_pending_reasons(&result.pending_reasons, result.units, style));
    out.push_str(&render_trace_problems(&result.trace, style));
    out.push_str(&render_notes(&result.notes, style));
    out
}

fn render_times(result: &PackResult) -> String {
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

fn render_utilisation(result: &PackResult) -> String {
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
