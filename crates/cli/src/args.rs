//! Command-line options that several verbs share, and what they mean.

use crate::failure::Failure;
use crate::output::{Output, format_parser};
use cellwright_cell::reclaim::ReclaimConfig;
use cellwright_sched::Options;
use cellwright_sched::score::packing::PackingModel;
use cellwright_sched::solve::options::DEFAULT_SAMPLE;
use cellwright_sim::convert::UsageModel;
use cellwright_sim::experiment::load::LoadOptions;
use cellwright_sim::trace::decimal::{Rounding, parse_scaled};
use cellwright_sim::trace::{TraceSource, TraceSourceError};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Which cell and workload.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Workload")]
pub struct TraceArgs {
    /// What to read: google2011:DIR, openb:DIR, swf:FILE, example:DIR or checkpoint:FILE; a
    /// relative path that is not here is looked for below $CELL_TRACES
    #[arg(long, value_name = "KIND:PATH", value_parser = parse_trace)]
    pub trace: TraceSource,

    /// Only jobs of the production and monitoring bands
    #[arg(long)]
    pub prod_only: bool,

    /// What tasks are charged: their limits, or the smaller reservations that reclamation leaves
    #[arg(long, value_enum, default_value = "reservations")]
    pub at: ChargeBasis,

    /// The cell this many whole seconds after trace start, such as 3600 [default: at the start];
    /// google2011 only, needs its event tables
    #[arg(long, value_name = "SECONDS")]
    pub at_time: Option<u64>,

    /// Machines and workload this many times over
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub copies: u32,

    /// Pod list by file or variant (default, gpushare40, ...) [default: default]; openb only
    #[arg(long, value_name = "NAME")]
    pub pods: Option<String>,

    /// Safety margin of reclamation [default: medium]
    #[arg(long, value_enum)]
    pub reclaim: Option<Reclaim>,

    /// Modelled CPU usage as a fraction of the limit, where the trace has none [default: 0.4]
    #[arg(long, value_name = "FRACTION", value_parser = parse_fraction)]
    pub usage_cpu: Option<u32>,

    /// Modelled memory usage as a fraction of the limit [default: 0.55]
    #[arg(long, value_name = "FRACTION", value_parser = parse_fraction)]
    pub usage_ram: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ChargeBasis {
    /// Every task reserves its limits: no reclamation.
    Limits,
    /// Tasks reserve what they use plus a margin.
    Reservations,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Reclaim {
    /// Wide margins: little reclaimed.
    Baseline,
    Medium,
    /// Small margins: most reclaimed.
    Aggressive,
}

/// Usage that tasks are assumed to have, in thousandths of their limits.
const DEFAULT_USAGE_CPU_PERMILLE: u32 = 400;
const DEFAULT_USAGE_RAM_PERMILLE: u32 = 550;

impl TraceArgs {
    pub fn load_options(&self) -> Result<LoadOptions, Failure> {
        if self.pods.is_some() && !self.is_openb() {
            return Err(unsupported_option("--pods", &self.trace, "openb:DIR"));
        }
        if let Some(option) = self.first_usage_option().filter(|_| self.is_checkpoint()) {
            return Err(unsupported_option(
                option,
                &self.trace,
                "traces that do not know what is reserved",
            ));
        }
        Ok(LoadOptions {
            source: self.trace.clone(),
            prod_only: self.prod_only,
            usage: self.usage()?,
            at_seconds: self.at_time,
            copies: self.copies,
            pods: self.pods.clone().unwrap_or_else(|| "default".into()),
        })
    }

    pub fn is_openb(&self) -> bool {
        matches!(self.trace, TraceSource::Openb(_))
    }

    pub fn is_checkpoint(&self) -> bool {
        matches!(self.trace, TraceSource::Checkpoint(_))
    }

    /// The first modelled-usage option that was given.
    fn first_usage_option(&self) -> Option<&'static str> {
        let options = [
            ("--usage-cpu", self.usage_cpu.is_some()),
            ("--usage-ram", self.usage_ram.is_some()),
            ("--reclaim", self.reclaim.is_some()),
        ];
        options.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }

    fn usage(&self) -> Result<Option<UsageModel>, Failure> {
        match (self.at, self.first_usage_option()) {
            (ChargeBasis::Limits, Some(option)) => Err(Failure::Usage {
                message: format!("{option} has no effect with --at limits: nothing is reclaimed"),
                next: format!("leave out {option}, or use --at reservations"),
            }),
            (ChargeBasis::Limits, None) => Ok(None),
            (ChargeBasis::Reservations, _) => Ok(Some(UsageModel {
                cpu_permille: self.usage_cpu.unwrap_or(DEFAULT_USAGE_CPU_PERMILLE),
                ram_permille: self.usage_ram.unwrap_or(DEFAULT_USAGE_RAM_PERMILLE),
                settings: match self.reclaim {
                    Some(Reclaim::Baseline) => ReclaimConfig::BASELINE,
                    Some(Reclaim::Aggressive) => ReclaimConfig::AGGRESSIVE,
                    Some(Reclaim::Medium) | None => ReclaimConfig::MEDIUM,
                },
            })),
        }
    }
}

/// An option that the given trace cannot use.
pub fn unsupported_option(option: &str, trace: &TraceSource, allowed: &str) -> Failure {
    Failure::Usage {
        message: format!("{option} does not apply to {trace}; allowed: only with {allowed}"),
        next: format!("the same command without {option}"),
    }
}

/// How the scheduler works.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Scheduler")]
pub struct SchedulerArgs {
    /// Seed of all random choices; the same seed gives the same placements
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(0..=1 << 62))]
    pub seed: u64,

    /// Threads; they change the time, never the result
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,

    /// Score machines anew every time instead of keeping scores until a machine changes
    #[arg(long)]
    pub no_score_cache: bool,

    /// Look at every task by itself instead of once per class of equal tasks
    #[arg(long)]
    pub no_classes: bool,

    /// Look at enough machines in a random order and take the best of them [default, but not for
    /// compact]
    #[arg(long, overrides_with = "no_randomization")]
    pub randomization: bool,

    /// Look at all machines for the best one: packs tighter, takes longer [default for compact]
    #[arg(long, overrides_with = "randomization")]
    pub no_randomization: bool,
}

/// How a command looks for machines when the command line does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineSearch {
    /// Enough of them in a random order, as in a live cell.
    Sampled,
    /// All of them.
    Exact,
}

impl SchedulerArgs {
    pub fn options(&self, model: PackingModel, default_search: MachineSearch) -> Options {
        // Of two contradicting flags the later one counts; clap has dropped the other.
        let is_sampled = match (self.randomization, self.no_randomization) {
            (true, _) => true,
            (false, true) => false,
            (false, false) => default_search == MachineSearch::Sampled,
        };
        Options {
            classes: !self.no_classes,
            score_cache: !self.no_score_cache,
            randomization: is_sampled.then_some(DEFAULT_SAMPLE),
            model,
            ..Options::default()
        }
    }
}

/// How machines are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Score {
    /// Strand as little sellable room as possible.
    Hybrid,
    /// Fill machines up.
    BestFit,
    /// Keep head room everywhere.
    WorstFit,
}

impl Score {
    pub fn model(self) -> PackingModel {
        match self {
            Score::Hybrid => PackingModel::Hybrid,
            Score::BestFit => PackingModel::BestFit,
            Score::WorstFit => PackingModel::WorstFit,
        }
    }
}

#[derive(Clone, Copy, Debug, Args)]
pub struct OutputArgs {
    /// A table for people; the value as JSON or YAML, one object a line, or names alone, for
    /// programs [default: table, or what CELL_OUTPUT says]
    #[arg(short, long, value_name = "FORM", default_value = "table", hide_default_value = true,
          value_parser = format_parser())]
    pub output: Output,
}

/// For commands that show how things stand.
#[derive(Clone, Copy, Debug, Args)]
pub struct WatchArgs {
    /// Show it again every two seconds, until ctrl-c
    #[arg(long)]
    pub watch: bool,
}

/// `0.4` to 400 thousandths.
fn parse_fraction(text: &str) -> Result<u32, String> {
    parse_permille(text, 1000)
        .ok_or_else(|| "allowed: 0 to 1 with at most 3 decimals, as 0.4".into())
}

/// `1.3` to 1300 thousandths.
pub fn parse_load(text: &str) -> Result<u32, String> {
    let load = parse_permille(text, 100_000).filter(|load| *load > 0);
    load.ok_or_else(|| "allowed: 0.001 to 100 with at most 3 decimals, as 1.3".into())
}

fn parse_permille(text: &str, max: u64) -> Option<u32> {
    let value = parse_scaled(text, 3, Rounding::Exact).ok()?;
    u32::try_from(value).ok().filter(|value| u64::from(*value) <= max)
}

/// A relative path that does not exist here is taken below `$CELL_TRACES`.
pub fn below_traces(path: PathBuf) -> PathBuf {
    let root = std::env::var_os("CELL_TRACES").map(PathBuf::from);
    let below_traces = root.filter(|_| path.is_relative()).map(|root| root.join(&path));
    match below_traces.filter(|below_root| !path.exists() && below_root.exists()) {
        Some(below_root) => below_root,
        None => path,
    }
}

fn parse_trace(text: &str) -> Result<TraceSource, TraceSourceError> {
    let resolve = below_traces;
    Ok(match text.parse()? {
        TraceSource::Google2011(path) => TraceSource::Google2011(resolve(path)),
        TraceSource::Openb(path) => TraceSource::Openb(resolve(path)),
        TraceSource::Swf(path) => TraceSource::Swf(resolve(path)),
        TraceSource::Example(path) => TraceSource::Example(resolve(path)),
        TraceSource::Checkpoint(path) => TraceSource::Checkpoint(resolve(path)),
    })
}
