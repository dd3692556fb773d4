//! Amounts formatted for people: cores, GiB, seconds, thousands.

use cellwright_cell::time::{Span, Time};
use cellwright_sim::experiment::load::Units;
use std::cmp::Ordering;
use time::OffsetDateTime;

pub use cellwright_cell::units::{group_digits as count, pluralize, pluralize_as, times_text};

/// `2026-03-01 12:00:00Z`.
pub fn utc(time: Time) -> String {
    let seconds = i64::try_from(time.0 / 1000).unwrap_or(i64::MAX);
    // A time beyond the calendar is printed as a number.
    let Ok(at) = OffsetDateTime::from_unix_timestamp(seconds) else {
        return format!("{} ms", time.0);
    };
    let (hour, minute, second) = at.to_hms();
    format!("{} {hour:02}:{minute:02}:{second:02}Z", at.date())
}

/// `2026-03-01 12:00:00.250Z`.
pub fn utc_millis(time: Time) -> String {
    let text = utc(time);
    match text.strip_suffix('Z') {
        Some(seconds) => format!("{seconds}.{:03}Z", time.0 % 1000),
        None => text,
    }
}

/// A length of time in one unit: `12 s`, `3 min`, `26 h`, `9 d`.
pub fn duration(span: Span) -> String {
    let seconds = span.0.div_ceil(1000);
    match seconds {
        0..100 => format!("{seconds} s"),
        100..6_000 => format!("{} min", seconds / 60),
        6_000..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// By how much one clock differs from another, which the text after this names.
pub fn clock_difference(ahead_ms: i64) -> String {
    let by = duration(Span(ahead_ms.unsigned_abs()));
    if ahead_ms < 0 { format!("{by} behind") } else { format!("{by} ahead of") }
}

/// How long ago something was; zero if it is in the future.
pub fn elapsed(then: Time, now: Time) -> String {
    duration(Span(now.0.saturating_sub(then.0)))
}

/// Natural sort order of names, which compares numbers by value: `m2` before `m10`.
pub fn natural_order(one: &str, other: &str) -> Ordering {
    let (mut one_rest, mut other_rest) = (one, other);
    loop {
        let (a, b) = (leading_run(one_rest), leading_run(other_rest));
        let order = match (a.starts_with(is_digit), b.starts_with(is_digit)) {
            (true, true) => {
                let (a, b) = (a.trim_start_matches('0'), b.trim_start_matches('0'));
                a.len().cmp(&b.len()).then_with(|| a.cmp(b))
            }
            _ => a.cmp(b),
        };
        if order.is_ne() || a.is_empty() {
            // Names whose numbers are equal, such as `m1` and `m01`, are still different.
            return order.then_with(|| one.cmp(other));
        }
        (one_rest, other_rest) = (&one_rest[a.len()..], &other_rest[b.len()..]);
    }
}

fn is_digit(character: char) -> bool {
    character.is_ascii_digit()
}

/// The digits a text begins with, or everything up to the first digit.
fn leading_run(text: &str) -> &str {
    let digits = text.starts_with(is_digit);
    let end = text.find(|character| is_digit(character) != digits);
    &text[..end.unwrap_or(text.len())]
}

/// `1.234 s` or `56.7 ms`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s => format!("{:.1} ms", s * 1000.0),
    }
}

/// `1.5 GiB`.
pub fn bytes(amount: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = amount as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = if unit == 0 || value.fract() == 0.0 { 0 } else { 1 };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// An amount of `dimension` in the units of the trace.
pub fn amount(units: Units, dimension: &str, amount: u64) -> String {
    match (units, dimension) {
        (Units::LargestMachine, _) => format!("{:.3} units", amount as f64 / 1e6),
        (Units::CoresAndBytes, "cpu") => match (amount, amount % 1000) {
            (1000, _) => "1 core".into(),
            (_, 0) => format!("{} cores", count(amount / 1000)),
            // Less than a hundredth must not be printed as zero.
            _ if amount < 10 => format!("{:.3} cores", amount as f64 / 1000.0),
            _ => format!("{:.2} cores", amount as f64 / 1000.0),
        },
        (Units::CoresAndBytes, "disk-rate") => format!("{}/s", bytes(amount)),
        (Units::CoresAndBytes, _) => bytes(amount),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        let at = |seconds: u64| utc(Time(seconds * 1000));
        assert_eq!(at(0), "1970-01-01 00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00Z");
        assert_eq!(at(1_772_366_399), "2026-03-01 11:59:59Z");
        assert_eq!(utc(Time(u64::MAX)), format!("{} ms", u64::MAX));
    }

    #[test]
    fn lengths_of_time_are_in_the_unit_people_use() {
        let texts =
            [0, 1, 1500, 99_000, 100_000, 7_200_000, 172_800_000].map(|ms| duration(Span(ms)));
        assert_eq!(texts, ["0 s", "1 s", "2 s", "99 s", "1 min", "2 h", "2 d"]);
        assert_eq!(elapsed(Time(10_000), Time(4_000)), "0 s");
    }

    #[test]
    fn names_are_in_the_order_people_count_in() {
        let mut names = ["m10", "m2", "rack-b-1", "m1", "m01", "m", "rack-a-12-x", "rack-a-2-y"];
        names.sort_by(|one, other| natural_order(one, other));
        let want = ["m", "m01", "m1", "m2", "m10", "rack-a-2-y", "rack-a-12-x", "rack-b-1"];
        assert_eq!(names, want);
    }

    #[test]
    fn amounts_read_well() {
        assert_eq!(
            (count(7), count(1234), count(1_234_567)),
            ("7".into(), "1,234".into(), "1,234,567".into())
        );
        assert_eq!(
            (pluralize(0, "task"), pluralize(1, "task"), pluralize(1200, "task")),
            ("0 tasks".into(), "1 task".into(), "1,200 tasks".into())
        );
        assert_eq!(
            (bytes(512), bytes(3 << 29), bytes(2 << 40)),
            ("512 B".into(), "1.5 GiB".into(), "2 TiB".into())
        );
        assert_eq!(
            (seconds(0.0123), seconds(1.5), seconds(250.0)),
            ("12.3 ms".into(), "1.50 s".into(), "250 s".into())
        );
        assert_eq!(amount(Units::CoresAndBytes, "cpu", 2500), "2.50 cores");
        assert_eq!(amount(Units::CoresAndBytes, "cpu", 1), "0.001 cores");
        assert_eq!(amount(Units::LargestMachine, "ram", 250_000), "0.250 units");
        assert_eq!(amount(Units::CoresAndBytes, "disk-rate", 1 << 20), "1 MiB/s");
    }
}
