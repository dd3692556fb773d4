//! `cell shapes`: which task shapes can be placed in the cell as it is now, and how many of each;
//! or how many tasks of one shape, or more of a job. Amounts are printed as they are typed.

use super::Success;
use super::parse::{nonzero_cores, nonzero_size, size};
use super::target::{TargetArg, parse_target};
use crate::args::{OutputArgs, WatchArgs};
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::format::{count, pluralize, pluralize_as};
use crate::output::{Output, print_json, print_prose};
use crate::runtime::block_on;
use crate::table::{self, sentences};
use cellwright_api::types::{LikeView, ShapeSet, ShapeView, ShapesQuery, ShapesView};
use cellwright_cell::constraint::{AttributeValue, Constraint, Operator, Strength};
use cellwright_cell::name::Token;
use cellwright_cell::priority::{MAX_PRIORITY, Priority};
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_cell::words::quantity::{Natural, Rounding, Units};
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  cell shapes
  cell shapes --priority 200 --constraint arch=x86_64
  cell shapes --cpu 2 --ram 4GiB
  cell shapes --like dev/web";

/// Say which shapes of task find a place now, and how many of each
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ShapesArgs {
    /// For tasks of this priority [default: for batch and for production]
    #[arg(long, value_name = "N", value_parser = parse_priority)]
    priority: Option<u16>,

    /// Count tasks with so many cores each
    #[arg(long, value_name = "CORES", value_parser = nonzero_cores)]
    cpu: Option<u64>,

    /// Count tasks with so much memory each
    #[arg(long, value_name = "SIZE", value_parser = nonzero_size)]
    ram: Option<u64>,

    /// Count tasks with so much disk space each
    #[arg(long, value_name = "SIZE", value_parser = size)]
    disk: Option<u64>,

    /// Count more tasks of this job, with its ports, devices, spread and all else
    #[arg(long, value_name = "JOB", value_parser = parse_target,
          conflicts_with_all = ["cpu", "ram", "disk", "priority", "constraint", "label"])]
    like: Option<TargetArg>,

    /// Only machines on which it holds: arch=x86_64, os!=debian, cpus>=8, cgroup (has it), !cgroup
    #[arg(long, value_name = "CONSTRAINT", value_parser = parse_constraint)]
    constraint: Vec<Constraint>,

    /// Only machines with this label: zone=a, zone!=a, zone, !zone
    #[arg(long, short = 'l', value_name = "LABEL")]
    label: Vec<String>,

    /// Percent of the machines that must take a shape for it to be easy
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    easy: Option<u32>,

    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    output: OutputArgs,
}

impl ShapesArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        let like = match &self.like {
            Some(target) => Some(block_on(target.resolve(&cell))?.job),
            None => None,
        };
        let has_limits = self.cpu.or(self.ram).or(self.disk).is_some();
        let amount = |amount: Option<u64>| amount.unwrap_or(0);
        let limits = Resources::new(amount(self.cpu), amount(self.ram), amount(self.disk), 0);
        let query = ShapesQuery {
            priority: self.priority.map(Priority),
            limits: has_limits.then_some(limits),
            like,
            constraints: self.constraint.clone(),
            selector: (!self.label.is_empty()).then(|| self.label.join(",")),
            easy_percent: self.easy,
        };
        let shapes = block_on(async { Ok(cell.client.shapes(&query).await?.value.item) })?;
        match self.output.output {
            Output::Json => print_json(&shapes)?,
            Output::Table => print_prose(&render(&shapes, self.requirement_text()))?,
        }
        let takes_none = |set: &ShapeSet| match (&set.like, &set.requested) {
            (Some(like), _) => like.tasks == 0,
            (None, Some(shape)) => shape.tasks == 0,
            (None, None) => false,
        };
        if shapes.sets.iter().all(takes_none) { Ok(Success::DoesNotFit) } else { Ok(Success::Done) }
    }

    /// The missing requirement of machines, if none has it free.
    fn requirement_text(&self) -> Option<&'static str> {
        match (self.constraint.is_empty(), self.label.is_empty()) {
            _ if self.like.is_some() => Some("what the job asks of machines"),
            (false, false) => Some("the constraints and labels"),
            (false, true) => Some("the constraints"),
            (true, false) => Some("the labels"),
            (true, true) => None,
        }
    }
}

fn parse_priority(text: &str) -> Result<u16, String> {
    const ALLOWED: &str = "allowed: a number from 0 to 399, with best effort from 0, batch from \
                           100, production from 200 and monitoring from 300";
    let read = text.parse::<u16>().ok().filter(|number| *number <= MAX_PRIORITY);
    read.ok_or_else(|| ALLOWED.to_owned())
}

fn parse_percent(text: &str) -> Result<u32, String> {
    let read = text.parse::<u32>().ok().filter(|percent| (1..=100).contains(percent));
    read.ok_or_else(|| "allowed: a whole number from 1 to 100".to_owned())
}

/// Parses `arch=x86_64`, `cpus>=8`, `gpu`, `!gpu`; a value that looks like a whole number is one.
fn parse_constraint(text: &str) -> Result<Constraint, String> {
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

fn render(shapes: &ShapesView, requirements: Option<&str>) -> String {
    let sets = shapes.sets.iter().map(|set| render_set(set, shapes.machines_total, requirements));
    sets.collect::<Vec<_>>().join("\n")
}

fn render_set(set: &ShapeSet, total: u32, requirements: Option<&str>) -> String {
    let takes = if set.machines == 1 || total == 1 { "takes" } else { "take" };
    let mut out = format!(
        "{}, priority {}: {} of {} {takes} such work\n",
        set.band,
        set.priority.0,
        count(u64::from(set.machines)),
        pluralize(u64::from(total), "machine"),
    );
    if let Some(like) = &set.like {
        out.push_str(&render_like(like));
    } else if let Some(shape) = &set.requested {
        out.push_str(&format!(
            "tasks of {}: {}\n",
            limits_text(shape.limits),
            placement_text(shape)
        ));
    }
    if set.ladder.is_empty() {
        out.push_str(&format!("nothing fits: {}\n", no_fit_reason(set, total, requirements)));
        return out;
    }
    for largest in &set.largest {
        let limits = limits_text(largest.limits);
        out.push_str(&format!("largest: {limits} on {}\n", largest.machine));
    }
    let easy = pluralize(u64::from(set.easy_from), "machine");
    out.push_str(&format!("easy is what {easy} or more would take\n\n"));
    let rows: Vec<Vec<String>> = set.ladder.iter().map(shape_row).collect();
    out.push_str(&table::render_with_text_column(&["cpu", "ram", "tasks", "machines", ""], &rows));
    out
}

fn no_fit_reason(set: &ShapeSet, total: u32, requirements: Option<&str>) -> String {
    match requirements {
        _ if total == 0 => "the cell has no machines".to_owned(),
        _ if set.machines > 0 => "no machine has CPU and memory free".to_owned(),
        Some(requirements) => format!("no machine that takes work now meets {requirements}"),
        None => "no machine takes such work now, as `cell machine ls` shows".to_owned(),
    }
}

fn render_like(like: &LikeView) -> String {
    let more = if like.or_more { " or more" } else { "" };
    let tasks = pluralize_as(u64::from(like.tasks), "task", "tasks");
    let machines = pluralize(u64::from(like.machines), "machine");
    let mut out = format!("more of {}: {tasks}{more} on {machines}\n", like.job);
    if let Some(why) = &like.stopped_by {
        out.push_str(&sentences("  ", "    ", &format!("the next would be {why}")));
    }
    out
}

fn placement_text(shape: &ShapeView) -> String {
    let easy = if shape.easy { ", easy" } else { "" };
    let tasks = pluralize(shape.tasks, "task");
    format!("{tasks} on {}{easy}", pluralize(u64::from(shape.machines), "machine"))
}

fn shape_row(shape: &ShapeView) -> Vec<String> {
    vec![
        format_cores(shape.limits.cpu),
        format_size(shape.limits.ram),
        count(shape.tasks),
        count(u64::from(shape.machines)),
        if shape.easy { "easy".to_owned() } else { String::new() },
    ]
}

/// Non-zero limits as text, rounded down.
fn limits_text(limits: Resources) -> String {
    let amount = |dimension: Dimension| {
        let amount = Natural.amount(dimension, limits.get(dimension), Rounding::Down);
        format!("{amount} {dimension}")
    };
    let amounts = Dimension::ALL.into_iter().filter(|dimension| limits.get(*dimension) > 0);
    let mut amounts: Vec<String> = amounts.map(amount).collect();
    let last = amounts.pop().unwrap_or_default();
    if amounts.is_empty() { last } else { format!("{} and {last}", amounts.join(", ")) }
}

/// Formats cores as `--cpu` takes them.
fn format_cores(milli: u64) -> String {
    let text = format!("{}.{:03}", milli / 1000, milli % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a size as `--ram` takes it: in the largest unit that gives a whole number.
fn format_size(bytes: u64) -> String {
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
    fn of_nothing_any_number_would_fit() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            _args: ShapesArgs,
        }
        let read = |words: &[&str]| <Line as clap::Parser>::try_parse_from(words).map(drop);
        assert!(read(&["shapes", "--cpu", "0.5", "--ram", "1GiB", "--disk", "0B"]).is_ok());
        for nothing in [["shapes", "--cpu", "0"], ["shapes", "--ram", "0B"]] {
            let text = read(&nothing).unwrap_err().to_string();
            assert!(text.contains("allowed: "), "{text}");
        }
    }

    #[test]
    fn shapes_are_printed_as_they_are_typed() {
        for (milli, want) in [(50, "0.05"), (1250, "1.25"), (2000, "2"), (10_000, "10")] {
            assert_eq!(format_cores(milli), want);
            assert_eq!(nonzero_cores(want), Ok(milli));
        }
        for (bytes, want) in [(5 << 28, "1280MiB"), (4 << 30, "4GiB"), (896, "896B")] {
            assert_eq!(format_size(bytes), want);
            assert_eq!(size(want), Ok(bytes));
        }
    }

    fn shapes_view(total: u32, machines: u32, limits: Option<Resources>) -> ShapesView {
        let shape = |limits| ShapeView { limits, tasks: 0, machines: 0, easy: false };
        let set = ShapeSet {
            priority: Priority(100),
            band: Priority(100).band(),
            machines,
            easy_from: 1,
            largest: Vec::new(),
            ladder: Vec::new(),
            requested: limits.map(shape),
            like: None,
        };
        ShapesView { machines_total: total, easy_percent: 25, sets: vec![set] }
    }

    #[test]
    fn why_nothing_fits_is_told_as_it_is() {
        let check = |total: u32, machines: u32, requirements: Option<&str>, want: &str| {
            let text = render(&shapes_view(total, machines, None), requirements);
            assert!(text.contains(&format!("nothing fits: {want}")), "{want}: {text}");
        };
        check(0, 0, Some("the constraints"), "the cell has no machines");
        check(1, 0, Some("the constraints"), "no machine that takes work now meets the const");
        check(1, 0, None, "no machine takes such work now");
        check(1, 1, Some("the constraints"), "no machine has CPU and memory free");
    }

    #[test]
    fn a_shape_is_told_with_all_that_was_asked_and_nothing_else() {
        let check = |limits: Resources, want: &str| {
            let text = render(&shapes_view(1, 1, Some(limits)), None);
            assert!(text.contains(&format!("\ntasks of {want}: 0 tasks on 0 ")), "{text}");
        };
        check(Resources::new(0, 0, 1 << 40, 0), "1 TiB disk");
        check(Resources::new(500, 1 << 28, 0, 0), "0.5 cores cpu and 256 MiB ram");
        let all = "1 core cpu, 1 GiB ram and 2 GiB disk";
        check(Resources::new(1000, 1 << 30, 2 << 30, 0), all);
    }

    #[test]
    fn numbers_are_read_or_refused_with_what_is_allowed() {
        assert_eq!((parse_priority("0"), parse_priority("399")), (Ok(0), Ok(399)));
        assert_eq!((parse_percent("1"), parse_percent("100")), (Ok(1), Ok(100)));
        for bad in ["prod", "400", "-1", ""] {
            assert!(parse_priority(bad).is_err_and(|error| error.contains("allowed: ")), "{bad:?}");
            assert!(parse_percent(bad).is_err_and(|error| error.contains("allowed: ")), "{bad:?}");
        }
    }

    #[test]
    fn constraints_read_as_explanations_print_them() {
        let check = |text: &str, want: &str| {
            assert_eq!(parse_constraint(text).map(|found| found.to_string()), Ok(want.to_owned()));
        };
        check("os=linux", "os = linux");
        check("os!=linux", "os != linux");
        check("disks>=2", "disks >= 2");
        check("disks<=2", "disks <= 2");
        check("disks<2", "disks < 2");
        check("disks>2", "disks > 2");
        check("gpu", "gpu exists");
        check("!gpu", "gpu absent");
        let two = parse_constraint("disks=2").unwrap();
        assert_eq!(two.operator, Operator::Equal(AttributeValue::Integer(2)));
        for bad in ["", "a b", "disks>many", "=x"] {
            assert!(
                parse_constraint(bad).is_err_and(|error| error.contains("allowed: ")),
                "{bad:?}"
            );
        }
    }
}
