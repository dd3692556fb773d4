//! Scaling on a recorded load: the rules of the cell against one size for ever and against a plain
//! controller of target utilisation, in the same minutes, and the rules without each of their
//! parts.
//!
//! The rules and the service are those of the crate `scale`; here is what reads a trace, and what
//! makes figures and a chart of the outcomes. A trace says how many requests came, not how much
//! work they were: the busiest minute is taken for 40 cores of it.

use super::pack::TraceProblems;
use crate::plot::{Chart, Mark, Series};
use crate::trace::rates::{self, Rates};
use crate::trace::{Input, TraceError};
use cellwright_cell::time::Time;
use cellwright_scale::trial::{Outcome, Scenario, compare};
use serde::Serialize;
use std::path::{Path, PathBuf};

const MINUTES_PER_DAY: u64 = 24 * 60;
const MINUTE: u64 = 60_000;

#[derive(Clone, Debug)]
pub struct ScaleOptions {
    /// A table of rates: see [`rates`].
    pub file: PathBuf,
    /// Whole days to leave out at the beginning, and to take after them. `None`: all.
    pub skip_days: u64,
    pub days: Option<u64>,
    /// Percent of its limit that a task is to use.
    pub target: u32,
    /// How many of a million requests may wait longer than a second.
    pub late_ppm: u64,
}

/// What one way of sizing came to.
#[derive(Clone, Debug, Serialize)]
pub struct ScaleRow {
    pub name: &'static str,
    pub core_hours: f64,
    /// Of those that one size for ever took, in percent.
    pub saved_percent: f64,
    /// Percent of the requests that waited no longer than they may.
    pub on_time_percent: f64,
    pub keeps_promise: bool,
    pub task_changes: u64,
    pub limit_changes: u64,
    /// Changes that were taken back within a quarter of an hour.
    pub reversals: u64,
    /// Changes that made one dimension larger and the other smaller.
    pub opposed: u64,
    pub most_tasks: u32,
}

#[derive(Clone, Debug, Serialize)]
pub struct ScaleResult {
    pub file: String,
    /// Milliseconds since 1970.
    pub from: Time,
    pub minutes: u64,
    /// Minutes from one row of the trace to the next.
    pub grain_minutes: u64,
    /// Minutes for which the trace had nothing, which have what came before them.
    pub filled_minutes: u64,
    pub busiest_cores: u64,
    pub target_percent: u32,
    /// Percent of the requests that have to be on time.
    pub promised_percent: f64,
    pub rows: Vec<ScaleRow>,
    pub trace: TraceProblems,
    /// What each held in each minute, for charts.
    #[serde(skip)]
    pub outcomes: Vec<Outcome>,
    #[serde(skip)]
    pub rates: Vec<u64>,
}

/// Why a load could not be tried.
#[derive(Debug, thiserror::Error)]
pub enum ScaleError {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(
        "{file} has {days} days, and those asked for are {skip} to {until}; allowed: 0 to {days}"
    )]
    NoDays { file: String, days: u64, skip: u64, until: u64 },
}

/// # Errors
/// When the trace cannot be read, or has no minute of the days asked for.
pub fn scale(options: &ScaleOptions) -> Result<ScaleResult, ScaleError> {
    let Rates { from, per_minute, grain, filled, report } =
        rates::read(Input::open(&options.file)?)?;
    let (from, chosen) = choose_days(options, from, &per_minute)?;
    let mut scenario = Scenario::new(chosen, from);
    (scenario.target, scenario.late_ppm) = (options.target, options.late_ppm);
    let outcomes = compare(&scenario);
    let rows = match outcomes.first() {
        Some(fixed) => outcomes.iter().map(|one| row(one, fixed, options.late_ppm)).collect(),
        None => Vec::new(),
    };
    let busiest = scenario.rates.iter().copied().max().unwrap_or(0);
    Ok(ScaleResult {
        file: file_name(&options.file),
        from,
        minutes: scenario.rates.len() as u64,
        grain_minutes: grain,
        filled_minutes: filled,
        busiest_cores: busiest.div_ceil(scenario.model.per_core),
        target_percent: options.target,
        promised_percent: 100.0 - options.late_ppm as f64 / 1e4,
        rows,
        trace: TraceProblems::of(std::slice::from_ref(&report)),
        outcomes,
        rates: scenario.rates,
    })
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn choose_days(
    options: &ScaleOptions,
    from: Time,
    rates: &[u64],
) -> Result<(Time, Vec<u64>), ScaleError> {
    let ScaleOptions { skip_days, days, .. } = *options;
    let skipped = usize::try_from(skip_days.saturating_mul(MINUTES_PER_DAY)).unwrap_or(usize::MAX);
    let taken = days.map_or(usize::MAX, |days| {
        usize::try_from(days.saturating_mul(MINUTES_PER_DAY)).unwrap_or(usize::MAX)
    });
    let chosen: Vec<u64> = rates.iter().skip(skipped).take(taken).copied().collect();
    if chosen.is_empty() {
        return Err(ScaleError::NoDays {
            file: file_name(&options.file),
            days: rates.len() as u64 / MINUTES_PER_DAY,
            skip: skip_days,
            until: skip_days.saturating_add(days.unwrap_or(0)),
        });
    }
    Ok((Time(from.0 + skip_days * MINUTES_PER_DAY * MINUTE), chosen))
}

fn row(outcome: &Outcome, fixed: &Outcome, late_ppm: u64) -> ScaleRow {
    let core_hours = |outcome: &Outcome| outcome.held as f64 / 60_000.0;
    let saved = 100.0 * (1.0 - core_hours(outcome) / core_hours(fixed).max(f64::MIN_POSITIVE));
    let on_time = 100.0 * (1.0 - outcome.late as f64 / (outcome.requests as f64).max(1.0));
    ScaleRow {
        name: outcome.name,
        core_hours: core_hours(outcome),
        saved_percent: saved,
        on_time_percent: on_time,
        keeps_promise: outcome.keeps(late_ppm),
        task_changes: outcome.count_changes,
        limit_changes: outcome.limit_changes,
        reversals: outcome.reversals,
        opposed: outcome.opposed,
        most_tasks: outcome.most_tasks,
    }
}

/// The cores that the load needs, and those that the first three held, hour by hour.
#[must_use]
pub fn chart(result: &ScaleResult) -> Chart {
    let busiest = result.rates.iter().copied().max().unwrap_or(0).max(1) as f64;
    let cores = result.busiest_cores as f64;
    let hourly = |values: &mut dyn Iterator<Item = f64>| -> Vec<(f64, f64)> {
        let values: Vec<f64> = values.collect();
        let days = |hour: usize| hour as f64 / 24.0;
        let mean = |hour: &[f64]| hour.iter().sum::<f64>() / hour.len() as f64;
        values.chunks(60).enumerate().map(|(at, hour)| (days(at), mean(hour))).collect()
    };
    let needed = hourly(&mut result.rates.iter().map(|rate| *rate as f64 * cores / busiest));
    let mut series = vec![Series { name: "needed".into(), mark: Mark::Line, points: needed }];
    for outcome in result.outcomes.iter().take(3) {
        let held = hourly(&mut outcome.minutes.iter().map(|(held, _)| *held as f64 / 1000.0));
        series.push(Series { name: outcome.name.into(), mark: Mark::Line, points: held });
    }
    Chart {
        title: "Cores held, and cores needed".into(),
        subtitle: format!("{}: {} days, by hours", result.file, result.minutes / MINUTES_PER_DAY),
        x_title: "days".into(),
        y_title: "cores".into(),
        series,
    }
}

/// The requests that were late, added up, for the plain controller and the rules.
#[must_use]
pub fn late_chart(result: &ScaleResult) -> Chart {
    let series = result.outcomes.iter().take(3).map(|outcome| {
        let mut sum = 0;
        let total = (outcome.requests as f64).max(1.0);
        let hours = outcome.minutes.chunks(60).enumerate().map(|(hour, minutes)| {
            sum += minutes.iter().map(|(_, late)| late).sum::<u64>();
            (hour as f64 / 24.0, sum as f64 * 1e6 / total)
        });
        Series { name: outcome.name.into(), mark: Mark::Line, points: hours.collect() }
    });
    Chart {
        title: "Requests that waited longer than a second".into(),
        subtitle: format!("{}: of a million of all requests, added up", result.file),
        x_title: "days".into(),
        y_title: "late".into(),
        series: series.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_chosen_and_those_that_are_not_there_are_refused() {
        let options = |skip_days, days| ScaleOptions {
            file: "r.csv".into(),
            skip_days,
            days,
            target: 60,
            late_ppm: 1000,
        };
        let rates: Vec<u64> = (0..3 * MINUTES_PER_DAY).collect();
        let (from, chosen) = choose_days(&options(1, Some(1)), Time(0), &rates).expect("a day");
        assert_eq!((from.0, chosen[0], chosen.len()), (86_400_000, 1440, 1440));
        let (_, all) = choose_days(&options(0, None), Time(0), &rates).expect("all days");
        assert_eq!(all.len(), rates.len());
        let error = choose_days(&options(3, Some(2)), Time(0), &rates).expect_err("no day");
        let want = "r.csv has 3 days, and those asked for are 3 to 5; allowed: 0 to 3";
        assert_eq!(error.to_string(), want);
    }
}
