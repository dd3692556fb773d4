//! `cell shapes`: which shapes of task find a place as the cell is now, and how many of each; or
//! how many tasks of one shape, or more of a job, would. Amounts are printed as they are typed.

use super::Success;
use super::parse::{cores, size};
use super::target::{Typed, typed};
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::format::{count, counted, counted_as};
use crate::output::{Output, print, print_json};
use crate::reach::Reach;
use crate::server::ask;
use crate::table::{self, rewrapped};
use cellwright_api::types::{LikeView, ShapeSet, ShapeView, ShapesQuery, ShapesView};
use cellwright_cell::constraint::{AttributeValue, Constraint, Operator, Strength};
use cellwright_cell::name::Token;
use cellwright_cell::priority::Priority;
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_sched::explain::units::{Natural, Rounding, Units};
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  cell shapes
  cell shapes --priority 200 --constraint os=linux
  cell shapes --cpu 2 --ram 4GiB
  cell shapes --like dev/web";

/// Say which shapes of task find a place now, and how many of each
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ShapesArgs {
    /// For tasks of this priority [default: for batch and for production]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=399))]
    priority: Option<u16>,

    /// Count tasks with so many cores each
    #[arg(long, value_name = "CORES", value_parser = cores)]
    cpu: Option<u64>,

    /// Count tasks with so much memory each
    #[arg(long, value_name = "SIZE", value_parser = size)]
    ram: Option<u64>,

    /// Count tasks with so much disk space each
    #[arg(long, value_name = "SIZE", value_parser = size)]
    disk: Option<u64>,

    /// Count more tasks of this job, with its ports, devices, spread and all else
    #[arg(long, value_name = "JOB", value_parser = typed,
          conflicts_with_all = ["cpu", "ram", "disk", "priority", "constraint", "label"])]
    like: Option<Typed>,

    /// Only machines on which it holds: os=linux, os!=linux, disks>=2, gpu (has it), !gpu
    #[arg(long, value_name = "CONSTRAINT", value_parser = constraint)]
    constraint: Vec<Constraint>,

    /// Only machines with this label: zone=a, zone!=a, zone, !zone
    #[arg(long, short = 'l', value_name = "LABEL")]
    label: Vec<String>,

    /// Percent of the machines that must take a shape for it to be easy
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    easy: Option<u32>,

    #[command(flatten)]
    output: OutputArgs,
}

impl ShapesArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        let like = match &self.like {
            Some(typed) => Some(ask(typed.resolve(&cell))?.job),
            None => None,
        };
        let is_asked = self.cpu.or(self.ram).or(self.disk).is_some();
        let amount = |amount: Option<u64>| amount.unwrap_or(0);
        let limits = Resources::new(amount(self.cpu), amount(self.ram), amount(self.disk), 0);
        let query = ShapesQuery {
            priority: self.priority.map(Priority),
            limits: is_asked.then_some(limits),
            like,
            constraints: self.constraint.clone(),
            selector: (!self.label.is_empty()).then(|| self.label.join(",")),
            easy_percent: self.easy,
        };
        let told = ask(async { Ok(cell.client.shapes(&query).await?.value.item) })?;
        match self.output.output {
            Output::Json => print_json(&told)?,
            Output::Table => print(&shown(&told))?,
        }
        let is_none = |set: &ShapeSet| match (&set.like, &set.asked) {
            (Some(like), _) => like.tasks == 0,
            (None, Some(shape)) => shape.tasks == 0,
            (None, None) => false,
        };
        match told.sets.iter().all(is_none) {
            true => Ok(Success::DoesNotFit),
            false => Ok(Success::Done),
        }
    }
}

/// `os=linux`, `disks>=2`, `gpu`, `!gpu`; what reads as a whole number is one.
fn constraint(text: &str) -> Result<Constraint, String> {
    const ALLOWED: &str = "allowed: a=b, a!=b, a<n, a<=n, a>n, a>=n, a or !a";
    let token = |text: &str| Token::new(text.trim()).map_err(|_| ALLOWED.to_owned());
    let number = |text: &str| text.trim().parse::<i64>().map_err(|_| ALLOWED.to_owned());
    let value = |text: &str| match text.trim().parse::<i64>() {
        Ok(number) => AttributeValue::Integer(number),
        Err(_) => AttributeValue::Text(text.trim().to_owned()),
    };
    let found = |operator: &str| text.split_once(operator);
    let (attribute, operator) = if let Some((a, b)) = found("!=") {
        (token(a)?, Operator::NotEqual(value(b)))
    } else if let Some((a, b)) = found("<=") {
        (token(a)?, Operator::LessOrEqual(number(b)?))
    } else if let Some((a, b)) = found(">=") {
        (token(a)?, Operator::GreaterOrEqual(number(b)?))
    } else if let Some((a, b)) = found("<") {
        (token(a)?, Operator::Less(number(b)?))
    } else if let Some((a, b)) = found(">") {
        (token(a)?, Operator::Greater(number(b)?))
    } else if let Some((a, b)) = found("=") {
        (token(a)?, Operator::Equal(value(b)))
    } else if let Some(a) = text.strip_prefix('!') {
        (token(a)?, Operator::Absent)
    } else {
        (token(text)?, Operator::Exists)
    };
    Ok(Constraint { attribute, operator, strength: Strength::Hard })
}

fn shown(told: &ShapesView) -> String {
    let sets = told.sets.iter().map(|set| set_shown(set, told.machines_total));
    sets.collect::<Vec<_>>().join("\n")
}

fn set_shown(set: &ShapeSet, total: u32) -> String {
    let takes = if set.machines == 1 { "takes" } else { "take" };
    let mut out = format!(
        "{}, priority {}: {} of {} {takes} such work\n",
        set.band,
        set.priority.0,
        count(u64::from(set.machines)),
        counted(u64::from(total), "machine"),
    );
    if let Some(like) = &set.like {
        out.push_str(&like_shown(like));
    } else if let Some(shape) = &set.asked {
        let (cpu, ram) = words(shape.limits);
        out.push_str(&format!("tasks of {cpu} and {ram}: {}\n", placed(shape)));
    }
    if set.ladder.is_empty() {
        out.push_str("nothing fits: no machine has CPU and memory free\n");
        return out;
    }
    for largest in &set.largest {
        let (cpu, ram) = words(largest.limits);
        out.push_str(&format!("largest: {cpu} and {ram} on {}\n", largest.machine));
    }
    let easy = counted(u64::from(set.easy_from), "machine");
    out.push_str(&format!("easy is what {easy} or more would take\n\n"));
    let rows: Vec<Vec<String>> = set.ladder.iter().map(row).collect();
    out.push_str(&table::render_told(&["cpu", "ram", "tasks", "machines", ""], &rows));
    out
}

fn like_shown(like: &LikeView) -> String {
    let more = if like.or_more { " or more" } else { "" };
    let tasks = counted_as(u64::from(like.tasks), "task", "tasks");
    let machines = counted(u64::from(like.machines), "machine");
    let mut out = format!("more of {}: {tasks}{more} on {machines}\n", like.job);
    if let Some(why) = &like.stopped_by {
        out.push_str(&rewrapped("  ", "    ", &format!("the next would be {why}")));
    }
    out
}

fn placed(shape: &ShapeView) -> String {
    let easy = if shape.easy { ", easy" } else { "" };
    let tasks = counted(shape.tasks, "task");
    format!("{tasks} on {}{easy}", counted(u64::from(shape.machines), "machine"))
}

fn row(shape: &ShapeView) -> Vec<String> {
    vec![
        typed_cores(shape.limits.cpu),
        typed_size(shape.limits.ram),
        count(shape.tasks),
        count(u64::from(shape.machines)),
        if shape.easy { "easy".to_owned() } else { String::new() },
    ]
}

/// For reading: rounded down.
fn words(limits: Resources) -> (String, String) {
    let amount = |dimension: Dimension| {
        let amount = Natural.amount(dimension, limits.get(dimension), Rounding::Down);
        format!("{amount} {dimension}")
    };
    (amount(Dimension::Cpu), amount(Dimension::Ram))
}

/// As `--cpu` takes it.
fn typed_cores(milli: u64) -> String {
    let text = format!("{}.{:03}", milli / 1000, milli % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// As `--ram` takes it: in the largest unit of which it is a whole number.
fn typed_size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let whole = UNITS.iter().find(|(_, bits)| bytes > 0 && bytes.is_multiple_of(1 << bits));
    match whole {
        Some((unit, bits)) => format!("{}{unit}", bytes >> bits),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_printed_as_they_are_typed() {
        for (milli, want) in [(50, "0.05"), (1250, "1.25"), (2000, "2"), (10_000, "10")] {
            assert_eq!(typed_cores(milli), want);
            assert_eq!(cores(want), Ok(milli));
        }
        for (bytes, want) in [(5 << 28, "1280MiB"), (4 << 30, "4GiB"), (896, "896B")] {
            assert_eq!(typed_size(bytes), want);
            assert_eq!(size(want), Ok(bytes));
        }
    }

    #[test]
    fn constraints_read_as_explanations_print_them() {
        let check = |text: &str, want: &str| {
            assert_eq!(constraint(text).map(|found| found.to_string()), Ok(want.to_owned()));
        };
        check("os=linux", "os = linux");
        check("os!=linux", "os != linux");
        check("disks>=2", "disks >= 2");
        check("disks<=2", "disks <= 2");
        check("disks<2", "disks < 2");
        check("disks>2", "disks > 2");
        check("gpu", "gpu exists");
        check("!gpu", "gpu absent");
        let two = constraint("disks=2").unwrap();
        assert_eq!(two.operator, Operator::Equal(AttributeValue::Integer(2)));
        for bad in ["", "a b", "disks>many", "=x"] {
            assert!(constraint(bad).is_err_and(|error| error.contains("allowed: ")), "{bad:?}");
        }
    }
}
