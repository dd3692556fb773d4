//! From a thousand machines to a hundred thousand: parts of the cell of 2011, the cell itself, then
//! copies of it. At every size: what a pass from scratch costs per task, how many decisions a warm
//! scheduler makes, how many commands `apply` takes, and how much memory all of it needs.
//!
//! Everything runs in one process from the smallest to the largest, so the peak of the process is
//! the peak of the size just done. Times are processor time: a busy machine does not spoil them.

use crate::report::{Report, peak_rss_bytes};
use crate::trace::{google2011, google2011_part};
use crate::warm_scheduler::{Cell, churn};
use cellwright_cell::command::{Observed, TaskReport};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::time::Time;
use cellwright_cell::{Command, Done, Entry, Request, State};
use cellwright_sched::Options;
use cellwright_sched::executor::Sequential;
use cellwright_sim::experiment::load::LoadedCell;
use cellwright_sim::experiment::process_metrics::process_cpu;
use cellwright_sim::experiment::scheduler::{commit, solve};
use cellwright_sim::plot::{Chart, Mark, Series};
use std::collections::BTreeMap;
use std::io;

const SEED: u64 = 1;
const RUNS: u32 = 3;
const REPORTS_PER_ENTRY: usize = 10_000;

/// Shares of the cell, then multiples of it.
const PARTS: [usize; 3] = [12, 6, 3];
const COPIES: [u32; 4] = [1, 2, 4, 8];

/// What one size came to.
struct Point {
    machines: f64,
    tasks: f64,
    solve_micros_per_task: f64,
    decisions_per_second: f64,
    changes_per_second: f64,
    commands_per_second: f64,
    peak_bytes: f64,
}

pub fn main() -> io::Result<()> {
    let mut report = Report::new(
        "growth",
        "The Google cell of 2011 from a twelfth of it to eight times over, one core, usage model \
         as in the pack report. Times are processor time. A command of one report is a task that \
         an agent reports finished; a batch is all reports of a machine in one command, 10,000 to \
         a log entry. Memory is the peak of the process, the reading of the whole trace included. \
         Other work on the machine slows all of this through shared caches: here the shape counts, \
         for single figures see the other reports.",
        SEED,
    );
    let mut points = Vec::new();
    for share in PARTS {
        points.push(measure(google2011_part(share)?)?);
    }
    for copies in COPIES {
        points.push(measure(google2011(copies)?)?);
    }
    for point in &points {
        rows(&mut report, point);
    }
    plots(&mut report, &points)?;
    report.save()
}

fn measure(loaded: LoadedCell) -> io::Result<Point> {
    let (machines, tasks) = (loaded.workload.machines.len(), loaded.workload.tasks());
    let mut state = loaded.state;
    let mut solved = solve(&state, Options::default(), SEED, &Sequential);
    let mut fastest = solved.solve_cpu_seconds;
    for _ in 1..RUNS {
        solved = solve(&state, Options::default(), SEED, &Sequential);
        fastest = fastest.min(solved.solve_cpu_seconds);
    }
    commit(&mut state, solved.outcome.plan).map_err(io::Error::other)?;
    let (decisions_per_second, _) = churn(&Cell::of(state.clone()));
    let changes_per_second = changes(&mut state, Observed::Started, usize::MAX)?;
    let commands_per_second = changes(&mut state, Observed::Finished, 1)?;
    Ok(Point {
        machines: machines as f64,
        tasks: tasks as f64,
        solve_micros_per_task: fastest * 1e6 / tasks as f64,
        decisions_per_second,
        changes_per_second,
        commands_per_second,
        peak_bytes: peak_rss_bytes() as f64,
    })
}

/// Every placed task is reported, at most `per_command` of one machine to a command; changes a
/// second.
fn changes(state: &mut State, what: Observed, per_command: usize) -> io::Result<f64> {
    let mut on: BTreeMap<MachineId, Vec<TaskReport>> = BTreeMap::new();
    for (task, row) in state.tasks().iter() {
        if let Some(machine) = row.machine().filter(|_| row.state.holds_resources()) {
            let report = TaskReport { task: TaskId(task.0), attempt: row.attempt, what };
            on.entry(machine).or_default().push(report);
        }
    }
    let count: usize = on.values().map(Vec::len).sum();
    let mut entries = vec![Vec::new()];
    let mut filled = 0;
    for (machine, reports) in on {
        let incarnation = state.machines().get(machine).map_or(0, |row| row.incarnation);
        for reports in reports.chunks(per_command.min(reports.len())) {
            if filled + reports.len() > REPORTS_PER_ENTRY {
                entries.push(Vec::new());
                filled = 0;
            }
            filled += reports.len();
            let reports = reports.to_vec();
            let command = Command::TaskReports { machine, incarnation, reports };
            if let Some(entry) = entries.last_mut() {
                entry.push(Request::from_default_sender(command, state));
            }
        }
    }
    let now = state.now();
    let entries: Vec<Entry> = (1..)
        .zip(entries)
        .map(|(later, requests)| Entry { now: Time(now.0 + later), requests })
        .collect();
    let before = process_cpu();
    for entry in &entries {
        for verdict in state.apply(entry, &mut Vec::new()) {
            if let Done::Partly(refused) = verdict.map_err(io::Error::other)? {
                return Err(io::Error::other(format!("refused: {:?}", refused.first())));
            }
        }
    }
    Ok(count as f64 / (process_cpu() - before).as_secs_f64())
}

fn rows(report: &mut Report, point: &Point) {
    let row =
        |name: &str| format!("{:.0} machines, {:.0} tasks: {name}", point.machines, point.tasks);
    report.row(&row("solve from scratch, per task"), point.solve_micros_per_task, "us", "");
    report.row(&row("steady churn"), point.decisions_per_second, "decisions/s", "");
    report.row(&row("apply, in batches"), point.changes_per_second, "changes/s", "");
    report.row(&row("apply, a command per report"), point.commands_per_second, "commands/s", "");
    report.row(&row("peak memory"), point.peak_bytes / 1e6, "MB", "");
}

fn plots(report: &mut Report, points: &[Point]) -> io::Result<()> {
    let series = |name: &str, value: fn(&Point) -> f64| Series {
        name: name.into(),
        mark: Mark::Line,
        points: points.iter().map(|point| (point.machines, value(point))).collect(),
    };
    let chart = |title: &str, y_title: &str, series: Vec<Series>| Chart {
        title: title.into(),
        subtitle: "parts and copies of the 2011 cell; one core, all techniques on".into(),
        x_title: "machines".into(),
        y_title: y_title.into(),
        series,
    };
    let time = vec![series("solve from scratch", |p| p.solve_micros_per_task)];
    report.plot("growth", &chart("Time per task as the cell grows", "microseconds", time))?;
    let rates = vec![
        series("apply, in batches", |p| p.changes_per_second / 1e6),
        series("apply, a command each", |p| p.commands_per_second / 1e6),
        series("scheduler, steady churn", |p| p.decisions_per_second / 1e6),
    ];
    let title = "Commands and decisions as the cell grows";
    report.plot("growth-rates", &chart(title, "million a second", rates))?;
    let memory = vec![series("peak, loading included", |p| p.peak_bytes / 1e9)];
    report.plot("memory", &chart("Memory as the cell grows", "GB", memory))
}
