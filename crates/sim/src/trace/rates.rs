//! Rates of requests: a table of two columns, a time and how many requests came until the next.
//!
//! The columns may have any names; the time is `YYYY-MM-DD HH:MM:SS`, and its grain is the shortest
//! distance between two rows. What was counted over several minutes is drawn as a line from one to
//! the next: steps every five minutes would be a load that no service has. Minutes that the file
//! leaves out have what came before them, and are counted.

use super::decimal::{Rounding, parse_scaled};
use super::lines::{Input, Line};
use super::problem::{FieldProblem, ReadReport, TraceError};
use super::table::text_of;
use cellwright_cell::time::Time;

/// Rates are in thousandths, so that few requests in many minutes are not rounded away.
const DECIMALS: u32 = 3;
const ALLOWED_TIME: &str = "a time as 1998-06-10 18:04:00, later than the row before";
const ALLOWED_COUNT: &str = "a number of requests from 0 to 1000000000";
const MAX_COUNT: u64 = 1_000_000_000_000;
/// Longest distance between two rows, in minutes; more is another recording.
const MAX_GAP: u64 = 7 * 24 * 60;

/// A recorded load, minute by minute.
#[derive(Clone, Debug)]
pub struct Rates {
    /// When the first minute begins.
    pub from: Time,
    /// Thousandths of requests.
    pub per_minute: Vec<u64>,
    /// Minutes from one row to the next.
    pub grain: u64,
    /// Minutes for which the file has nothing.
    pub filled: u64,
    pub report: ReadReport,
}

/// # Errors
/// When the file cannot be read, or has fewer than two rows that can be used.
pub fn read(input: Input) -> Result<Rates, TraceError> {
    let mut report = ReadReport::new(input.name());
    let mut rows: Vec<(u64, u64)> = Vec::new();
    let mut lines = input.into_lines();
    while let Some((number, line)) = lines.next_line()? {
        if number == 1 {
            continue;
        }
        match row(line, rows.last().map(|(minute, _)| *minute)) {
            Ok(found) => {
                rows.push(found);
                report.rows += 1;
            }
            Err(problem) => report.add_problem(number, problem),
        }
    }
    report.end_reached = true;
    let [(first, _), _, ..] = rows[..] else {
        let allowed = "two rows or more of a time and a number of requests".to_owned();
        let found = format!("{} rows", rows.len());
        return Err(TraceError::Header { file: report.file, found, allowed });
    };
    let grain = rows.windows(2).map(|pair| pair[1].0 - pair[0].0).min().unwrap_or(1).max(1);
    let mut per_minute = Vec::new();
    let mut filled = 0;
    for pair in rows.windows(2) {
        let ((at, count), (next, later)) = (pair[0], pair[1]);
        let distance = next - at;
        filled += distance - grain.min(distance);
        for minute in 0..distance {
            // Beyond the grain nothing was counted.
            let along = minute.min(grain);
            per_minute.push((count * (grain - along) + later * along) / grain / grain);
        }
    }
    Ok(Rates { from: Time(first * 60_000), per_minute, grain, filled, report })
}

/// The minute of a row, and its count in thousandths.
fn row(line: Line<'_>, before: Option<u64>) -> Result<(u64, u64), FieldProblem> {
    let text = text_of(line)?;
    let (time, count) = text
        .split_once(',')
        .ok_or_else(|| FieldProblem::new("row", text, "two fields with a comma between them"))?;
    let wrong_time = || FieldProblem::new("time", time, ALLOWED_TIME);
    let minute = minute_of(time).ok_or_else(wrong_time)?;
    let follows = before.is_none_or(|before| minute > before && minute - before <= MAX_GAP);
    if !follows {
        return Err(wrong_time());
    }
    let count =
        parse_scaled(count, DECIMALS, Rounding::Up).ok().filter(|count| *count <= MAX_COUNT);
    let count = count.ok_or_else(|| FieldProblem::new("count", text, ALLOWED_COUNT))?;
    Ok((minute, count))
}

/// Minutes since 1970 of `YYYY-MM-DD HH:MM:SS`.
fn minute_of(text: &str) -> Option<u64> {
    let (date, time) = text.trim().split_once([' ', 'T'])?;
    let numbers = |text: &str, between: char| -> Option<[u64; 3]> {
        let mut parts = text.split(between).map(|part| part.parse::<u64>().ok());
        let all = [parts.next()??, parts.next()??, parts.next()??];
        parts.next().is_none().then_some(all)
    };
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, _] = numbers(time, ':')?;
    let is_date = (1970..10_000).contains(&year) && (1..=12).contains(&month);
    if !is_date || !(1..=31).contains(&day) || hour > 23 || minute > 59 {
        return None;
    }
    // Years begin in March, so that the leap day is a year's last.
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1;
    let days = days.checked_sub(719_468)?;
    Some((days * 24 + hour) * 60 + minute)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(text: &str) -> Rates {
        read(Input::from_bytes("r.csv", text.as_bytes().to_vec())).expect("rates")
    }

    #[test]
    fn known_dates() {
        assert_eq!(minute_of("1970-01-01 00:00:00"), Some(0));
        assert_eq!(minute_of("2000-02-29 00:00:00"), Some(951_782_400 / 60));
        assert_eq!(minute_of("2026-11-15 00:01:59"), Some(1_794_700_800 / 60 + 1));
        for bad in ["", "2026-11-15", "2026-13-01 00:00:00", "x-1-1 0:0:0", "1-1-1-1 0:0:0"] {
            assert_eq!(minute_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_row_a_minute_is_taken_as_it_is_and_holes_are_counted() {
        let text = "period,count\n1998-06-10 18:04:00,5\n1998-06-10 18:05:00,7\n\
                    1998-06-10 18:08:00,1\n1998-06-10 18:09:00,9\n";
        let rates = rates(text);
        // The last row has no next one.
        assert_eq!(rates.per_minute, [5000, 7000, 1000, 1000, 1000]);
        assert_eq!((rates.grain, rates.filled, rates.report.rows), (1, 2, 4));
        assert!(rates.report.is_clean());
    }

    #[test]
    fn counts_of_several_minutes_are_drawn_as_lines() {
        let text = "timestamp,value\n2014-04-10 00:04:00,10.0\n2014-04-10 00:09:00,20.0\n\
                    2014-04-10 00:14:00,0\n";
        let want = [2000, 2400, 2800, 3200, 3600, 4000, 3200, 2400, 1600, 800];
        assert_eq!(rates(text).per_minute, want);
    }

    #[test]
    fn rows_that_cannot_be_used_are_reported() {
        let text = "t,n\n1998-06-10 18:04:00,5\nx\n1998-06-10 18:03:00,5\n1998-06-10 18:05:00,-1\n\
                    1998-06-10 18:06:00,1\n";
        let report = rates(text).report;
        let fields: Vec<&str> = report.problems.iter().map(|problem| problem.field).collect();
        assert_eq!(fields, ["row", "time", "count"]);
        assert!(read(Input::from_bytes("r.csv", b"t,n\n".to_vec())).is_err());
    }
}
