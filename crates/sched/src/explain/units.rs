//! Quantities for people. A live cell counts milli-cores and bytes; a trace counts shares of its
//! largest machine: the reader of an explanation should meet the unit the request was written in.
//!
//! What is asked is rounded up and what is free is rounded down, so that a shortage of one byte
//! never reads "needs 4 GiB, 4 GiB free", and "would fit with at most 3.1 GiB" stays true of the
//! rounded figure.

use cellwright_cell::resource::Dimension;
use cellwright_cell::time::Span;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    Down,
    Up,
}

pub trait Units {
    /// The amount with its unit, without the name of the dimension.
    fn amount(&self, dimension: Dimension, value: u64, rounding: Rounding) -> String;
}

/// Milli-cores and bytes: `2.5 cores`, `3.1 GiB`, `80 MiB/s`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Natural;

impl Units for Natural {
    fn amount(&self, dimension: Dimension, value: u64, rounding: Rounding) -> String {
        match dimension {
            Dimension::Cpu if value == 1000 => "1 core".into(),
            Dimension::Cpu => format!("{} cores", thousandths(value)),
            Dimension::Ram | Dimension::Disk => bytes(value, rounding),
            Dimension::DiskRate => format!("{}/s", bytes(value, rounding)),
        }
    }
}

/// Shares of a whole, in millionths: `0.125 of the largest machine`.
#[derive(Clone, Copy, Debug)]
pub struct Millionths {
    /// What 1,000,000 stands for, such as `of the largest machine`; may be empty.
    pub whole: &'static str,
}

impl Units for Millionths {
    fn amount(&self, _: Dimension, value: u64, _: Rounding) -> String {
        let text = decimal(value / 1_000_000, value % 1_000_000, 6);
        if self.whole.is_empty() { text } else { format!("{text} {}", self.whole) }
    }
}

/// A length of time in the two largest units that matter, rounded up to the smaller of them: what
/// is said to come in 12 s has come then. `350 ms`, `12 s`, `3 min 20 s`, `2 h 5 min`, `4 d 1 h`.
#[must_use]
pub fn span(span: Span) -> String {
    if span.0 < 1000 {
        return format!("{} ms", span.0);
    }
    let two = |value: u64, part: u64, large: &str, small: &str| match value % part {
        0 => format!("{} {large}", grouped(value / part)),
        rest => format!("{} {large} {rest} {small}", grouped(value / part)),
    };
    let seconds = span.0.div_ceil(1000);
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3600 => two(seconds, 60, "min", "s"),
        3600..86_400 => two(seconds.div_ceil(60), 60, "h", "min"),
        _ => two(seconds.div_ceil(3600), 24, "d", "h"),
    }
}

fn thousandths(value: u64) -> String {
    decimal(value / 1000, value % 1000, 3)
}

/// `whole.fraction` without trailing zeros.
fn decimal(whole: u64, fraction: u64, digits: usize) -> String {
    let whole = grouped(whole);
    if fraction == 0 {
        return whole;
    }
    let text = format!("{fraction:0digits$}");
    format!("{whole}.{}", text.trim_end_matches('0'))
}

fn bytes(value: u64, rounding: Rounding) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let step = (value.max(1).ilog2() / 10).min(UNITS.len() as u32 - 1);
    let unit = 1u128 << (10 * step);
    let tenths = u128::from(value) * 10;
    let tenths = match rounding {
        Rounding::Down => tenths / unit,
        Rounding::Up => tenths.div_ceil(unit),
    };
    let text = decimal((tenths / 10) as u64, (tenths % 10) as u64, 1);
    format!("{text} {}", UNITS[step as usize])
}

/// `12477` as `12,477`.
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_rounded_up() {
        let check = |millis, want: &str| assert_eq!(span(Span(millis)), want);
        check(350, "350 ms");
        check(1000, "1 s");
        check(11_001, "12 s");
        check(60_000, "1 min");
        check(200_000, "3 min 20 s");
        check(7_500_000, "2 h 5 min");
        check(349_200_000, "4 d 1 h");
    }

    #[test]
    fn amounts_read_as_a_person_would_write_them() {
        let check = |dimension, value, rounding, want: &str| {
            assert_eq!(Natural.amount(dimension, value, rounding), want);
        };
        let gib = 1u64 << 30;
        check(Dimension::Ram, 4 * gib, Rounding::Up, "4 GiB");
        check(Dimension::Ram, 4 * gib + 1, Rounding::Up, "4.1 GiB");
        check(Dimension::Ram, 4 * gib - 1, Rounding::Down, "3.9 GiB");
        check(Dimension::Ram, 0, Rounding::Down, "0 B");
        check(Dimension::Disk, 1023, Rounding::Down, "1,023 B");
        check(Dimension::DiskRate, 80 << 20, Rounding::Up, "80 MiB/s");
        check(Dimension::Cpu, 2500, Rounding::Up, "2.5 cores");
        check(Dimension::Cpu, 1000, Rounding::Up, "1 core");
        check(Dimension::Cpu, 50, Rounding::Up, "0.05 cores");
        let share = Millionths { whole: "of the largest machine" };
        let text = share.amount(Dimension::Cpu, 125_000, Rounding::Up);
        assert_eq!(text, "0.125 of the largest machine");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }

    #[test]
    fn what_is_asked_never_reads_like_what_is_free() {
        for free in [0u64, 1023, 1024, (1 << 30) - 1, 1 << 30, (3 << 30) + 12345] {
            let asked = Natural.amount(Dimension::Ram, free + 1, Rounding::Up);
            let available = Natural.amount(Dimension::Ram, free, Rounding::Down);
            assert_ne!(asked, available, "{free}");
        }
    }
}
