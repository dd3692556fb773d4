//! The rules of scaling on recorded loads: core-hours and lateness against one fixed size and a
//! plain controller, with each part of the rules left out in turn.
//!
//! The figures are counts of a model and not times: they are the same on every machine.

use crate::report::Report;
use crate::trace::folder;
use cellwright_sim::experiment::scale::{ScaleOptions, ScaleResult, chart, late_chart, scale};
use std::io;
use std::path::PathBuf;

/// A trace, the days of it, and what it shows.
struct Load {
    name: &'static str,
    file: &'static str,
    skip_days: u64,
    days: Option<u64>,
    plot: &'static str,
}

const WORLD_CUP: &str = "web/worldcup98_per_minute_days1-45.csv.gz";

/// Weeks that are alike, the opening of the World Cup, and two weeks of a load balancer.
const LOADS: [Load; 3] = [
    Load {
        name: "WorldCup98, 20 May to 7 June",
        file: WORLD_CUP,
        skip_days: 20,
        days: Some(19),
        plot: "scale-weeks",
    },
    Load {
        name: "WorldCup98, 3 to 14 June",
        file: WORLD_CUP,
        skip_days: 34,
        days: None,
        plot: "scale-opening",
    },
    Load {
        name: "NAB elb_request_count",
        file: "nab/elb_request_count_8c0756.csv",
        skip_days: 0,
        days: None,
        plot: "scale-elb",
    },
];

const TARGET: u32 = 60;
const LATE_PPM: u64 = 1000;

pub fn main() -> io::Result<()> {
    let mut report = Report::new(
        "scale",
        "The rules of scaling on recorded requests (Internet Traffic Archive: WorldCup98; Numenta \
         Anomaly Benchmark: requests of a load balancer, five minutes each, drawn as lines). The \
         busiest minute of a load is 40 cores of work; a task has one core and takes a minute to \
         start; a request is late when it waits longer than a second, and one of a thousand may \
         be. \"Fixed\" is the smallest number of tasks that keeps this when it is never changed; \
         \"plain\" is a horizontal autoscaler as Kubernetes has it, with its defaults and the same \
         target of 60 % of the CPU limit; \"two controllers\" are that one and a vertical one that \
         know nothing of each other; the others are the rules without one of their parts. All see \
         the same minutes, and no random numbers are drawn.",
        0,
    );
    for load in &LOADS {
        let options = ScaleOptions {
            file: folder().join(PathBuf::from(load.file)),
            skip_days: load.skip_days,
            days: load.days,
            target: TARGET,
            late_ppm: LATE_PPM,
        };
        let result = scale(&options).map_err(io::Error::other)?;
        rows(&mut report, load.name, &result);
        report.plot(load.plot, &chart(&result))?;
        report.plot(&format!("{}-late", load.plot), &late_chart(&result))?;
    }
    report.save()
}

fn rows(report: &mut Report, load: &str, result: &ScaleResult) {
    for row in &result.rows {
        let label = format!("{load}: {}", row.name);
        let is_ours = row.name == "rules";
        let target = |text: &'static str| if is_ours { text } else { "" };
        report.row(&format!("{label}: held"), row.core_hours, "core-hours", "");
        let at_least = target("30 % or more, with the promise kept");
        report.row(&format!("{label}: saved"), row.saved_percent, "%", at_least);
        let on_time = target("99.9 %");
        report.row(&format!("{label}: on time"), row.on_time_percent, "%", on_time);
        let changes = (row.task_changes + row.limit_changes) as f64;
        report.row(&format!("{label}: changes"), changes, "changes of tasks or limits", "");
        let reversed = row.reversals as f64;
        report.row(&format!("{label}: taken back in 15 min"), reversed, "changes", "");
        let opposed = row.opposed as f64;
        report.row(&format!("{label}: opposed"), opposed, "changes", target("none"));
    }
}
