//! `cell sim scale`: what scaling saves on a recorded load.

use super::Success;
use super::sim_report::render_trace_problems;
use crate::args::{OutputArgs, below_traces};
use crate::failure::Failure;
use crate::output::{Output, print_json, print_prose};
use crate::table::wrap;
use crate::{format, style, table};
use cellwright_sim::experiment::scale::{ScaleError, ScaleOptions, ScaleResult, chart, scale};
use cellwright_sim::plot::render as render_svg;
use clap::Args;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  cell sim scale --trace rates:requests.csv
  cell sim scale --trace rates:requests.csv --skip-days 20 --days 14
  cell sim scale --trace rates:requests.csv --target 70 --svg cores.svg -o json

The file has a line for each minute, or for each few minutes: a time and the
requests that came, as 1998-06-10 18:04:00,5120. Its busiest minute is taken for
40 cores of work. One fixed size is the smallest that keeps the promise; the
plain controller is a horizontal autoscaler by CPU, as of Kubernetes.";

/// Try the rules of scaling on a recorded load, against a fixed size and a plain controller
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SimScaleArgs {
    /// What to read: rates:FILE; a relative path that is not here is looked for below $CELL_TRACES
    #[arg(long, value_name = "rates:FILE", value_parser = parse_rates)]
    trace: PathBuf,

    /// Whole days to leave out at the beginning
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip_days: u64,

    /// Days to take after them [default: all]
    #[arg(long, value_name = "N")]
    days: Option<u64>,

    /// Percent of its CPU limit that a task is to use
    #[arg(long, value_name = "PERCENT", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    target: u32,

    /// How many of a million requests may wait longer than a second
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    late_ppm: u64,

    /// Where to write the chart of the cores [default: nowhere]
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct WithChart<'a> {
    #[serde(flatten)]
    result: &'a ScaleResult,
    svg: Option<&'a Path>,
}

fn parse_rates(text: &str) -> Result<PathBuf, String> {
    let file = text.strip_prefix("rates:").filter(|path| !path.is_empty());
    file.map(|path| below_traces(PathBuf::from(path))).ok_or_else(|| "allowed: rates:FILE".into())
}

impl SimScaleArgs {
    pub fn run(self) -> Result<Success, Failure> {
        let options = ScaleOptions {
            file: self.trace.clone(),
            skip_days: self.skip_days,
            days: self.days,
            target: self.target,
            late_ppm: self.late_ppm,
        };
        let result = scale(&options)?;
        if let Some(svg) = &self.svg {
            let what = format!("the chart {}", svg.display());
            fs::write(svg, render_svg(&chart(&result)))
                .map_err(|source| Failure::Write { what, source })?;
        }
        match self.output.output {
            Output::Json => print_json(&WithChart { result: &result, svg: self.svg.as_deref() })?,
            Output::Table => print_prose(&to_text(&result))?,
        }
        Ok(Success::Done)
    }
}

fn to_text(result: &ScaleResult) -> String {
    let style = style::for_stdout();
    let summary = format!(
        "{} of {}; the busiest needs {}; a task is to use {} % of its limit; {} % of the requests \
         wait a second at most",
        format::pluralize(result.minutes, "minute"),
        result.file,
        format::pluralize(result.busiest_cores, "core"),
        result.target_percent,
        result.promised_percent,
    );
    let mut out = wrap("", "", &summary);
    out.push('\n');
    let rows: Vec<Vec<String>> = result
        .rows
        .iter()
        .map(|row| {
            vec![
                row.name.to_owned(),
                format!("{:.0}", row.core_hours),
                format!("{:.1}", row.saved_percent),
                format!("{:.3}{}", row.on_time_percent, if row.keeps_promise { "" } else { " !" }),
                row.task_changes.to_string(),
                row.limit_changes.to_string(),
                row.reversals.to_string(),
                row.opposed.to_string(),
            ]
        })
        .collect();
    let header =
        ["sized", "core-h", "saved %", "on time %", "tasks", "limits", "reversed", "opposed"];
    out.push_str(&table::render(&header, &rows));
    let meaning = "saved: of the core-hours of one size for ever; !: not what was promised; tasks, \
                   limits: how often they were changed; reversed: taken back within 15 minutes; \
                   opposed: more of one and less of the other at once";
    out.push('\n');
    out.push_str(&wrap("", "", meaning));
    if result.filled_minutes > 0 {
        let filled = format::pluralize(result.filled_minutes, "minute");
        out.push_str(&format!("the trace has nothing for {filled}\n"));
    }
    out.push_str(&render_trace_problems(&result.trace, style));
    out
}

impl From<ScaleError> for Failure {
    fn from(error: ScaleError) -> Failure {
        let next = match &error {
            ScaleError::Trace(_) => "a file with a line for each minute: a time, a comma, a number",
            ScaleError::NoDays { .. } => "the same command with other --skip-days and --days",
        };
        Failure::from_error(&error, next)
    }
}
