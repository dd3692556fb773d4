//! `cell scale`: how a job is scaled, why it has the size that it has, and who chooses it.

use super::Success;
use super::scale_cell::CellDemand;
use super::target::{TargetArg, parse_target};
use crate::args::{OutputArgs, WatchArgs};
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::format::pluralize;
use crate::output::{Output, print_json, print_prose};
use crate::runtime::block_on;
use crate::table::wrap;
use crate::{format, table};
use cellwright_api::client::ChangeOptions;
use cellwright_api::types::{ScaleView, ToldNumber};
use cellwright_cell::name::Token;
use cellwright_cell::scale::{MetricKind, ScaleMode, ScaleSize};
use cellwright_cell::words::scaling::{size as size_text, thousandths};
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  cell scale dev/web
  cell scale dev/web -o json
  cell scale dev/web --manual
  cell scale dev/web --auto
  cell scale --cell

A job is scaled that says so in its file (field scale). cell resize hands its
size to you; --auto gives it back to the cell.";

/// Say how a job is scaled and why, or who chooses its size
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ScaleArgs {
    /// Which
    #[arg(value_name = "JOB", value_parser = parse_target, required_unless_present = "cell")]
    job: Option<TargetArg>,

    /// How large the cell would have to be for all its scaled jobs
    #[arg(long, conflicts_with_all = ["job", "auto", "manual"])]
    cell: bool,

    /// The cell chooses its size again
    #[arg(long, conflicts_with = "manual")]
    auto: bool,

    /// Leave its size as it is until told otherwise
    #[arg(long)]
    manual: bool,

    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    output: OutputArgs,
}

impl ScaleArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        let Some(job) = self.job else {
            let demand = block_on(CellDemand::fetch(&cell))?;
            match self.output.output {
                Output::Json => print_json(&demand)?,
                Output::Table => print_prose(&demand.render())?,
            }
            return Ok(Success::Done);
        };
        let key = block_on(async { Ok(job.resolve(&cell).await?.job) })?;
        if self.auto || self.manual {
            let change = ChangeOptions::default();
            let set = block_on(async {
                Ok::<_, Failure>(cell.client.set_scale_mode(&key, self.manual, &change).await)
            })?;
            set.map_err(|error| Failure::from_change(error, &format!("cell scale {key}")))?;
        }
        let view = block_on(async { Ok(cell.client.scale(&key).await?.value.item) })?;
        match self.output.output {
            Output::Json => print_json(&view)?,
            Output::Table => print_prose(&render(&view))?,
        }
        Ok(Success::Done)
    }
}

fn render(view: &ScaleView) -> String {
    let mode = match view.mode {
        ScaleMode::Auto => "auto",
        ScaleMode::Advise => "advise",
        ScaleMode::Manual => "manual",
    };
    let vetoes = if view.vetoed_by.is_empty() { "-".into() } else { view.vetoed_by.join(", ") };
    let rows = vec![vec![
        mode.to_owned(),
        view.min.to_string(),
        view.max.to_string(),
        view.now.to_string(),
        view.want.to_string(),
        view.rule.clone().unwrap_or_else(|| "-".into()),
        vetoes,
    ]];
    let header = ["mode", "min", "max", "now", "want", "rule", "vetoed by"];
    let mut out = table::render_with_text_from(&header, &rows, header.len() - 2);
    out.push('\n');
    out.push_str(&wrap("", "  ", &format!("{}.", view.text)));
    if limits(view.now_size) != limits(view.want_size) {
        let (now, want) = (size_text(view.now_size), size_text(view.want_size));
        out.push_str(&wrap("", "  ", &format!("It has {now}; the rules ask for {want}.")));
    }
    if let (Some(at), Some(need)) = (view.measured_at, view.need) {
        let need = cellwright_cell::words::scaling::tasks(need);
        out.push_str(&format!("measured {}: it needed {need} tasks\n", format::utc(at)));
    }
    out.push_str(&numbers(view));
    if view.mode == ScaleMode::Manual {
        out.push_str(&format!("next: cell scale {} --auto\n", view.job));
    }
    out
}

/// What its tasks told last, if it is scaled by that.
fn numbers(view: &ScaleView) -> String {
    if view.numbers.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = view.numbers.iter().map(number_row).collect();
    let header = ["number", "per task", "told", "told by"];
    let mut out = format!("\n{}", table::render_with_text_column(&header, &rows));
    if view.refused > 0 {
        let readings = pluralize(view.refused, "reading");
        let text = format!("{readings} refused: no number from 0 on, more than 1 MiB, or a link.");
        out.push_str(&wrap("", "  ", &text));
    }
    out
}

fn number_row(number: &ToldNumber) -> Vec<String> {
    let series = &number.series;
    let label = |(name, value): (&Token, &String)| format!("{name}={value:?}");
    let labels: Vec<String> = series.labels.iter().map(label).collect();
    let labels = match &labels[..] {
        [] => String::new(),
        some => format!("{{{}}}", some.join(",")),
    };
    let rate = if series.kind == MetricKind::Rate { "/s" } else { "" };
    let told = if number.by == 0 { "-".into() } else { thousandths(number.told) };
    vec![
        format!("{}{labels}{rate}", series.name),
        thousandths(number.per_task),
        told,
        format!("{} of {}", number.by, pluralize(u64::from(number.of), "task")),
    ]
}

fn limits(size: ScaleSize) -> (u64, u64) {
    (size.cpu, size.ram)
}
