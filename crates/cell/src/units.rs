//! Text of amounts for people. The cell counts milli-cores and bytes; users who read why a request
//! was rejected wrote cores and GiB.
//!
//! Requests are rounded up and available amounts are rounded down, so that a shortage of one byte
//! never reads "asked 4 GiB, available 4 GiB".

use crate::resource::Dimension;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    Down,
    Up,
}

/// The amount with its unit, without the name of the dimension: `2.5 cores`, `3.1 GiB`, `80 MiB/s`.
#[must_use]
pub fn amount(dimension: Dimension, value: u64, rounding: Rounding) -> String {
    match dimension {
        Dimension::Cpu if value == 1000 => "1 core".into(),
        Dimension::Cpu => format!("{} cores", decimal(value / 1000, value % 1000, 3)),
        Dimension::Ram | Dimension::Disk => bytes(value, rounding),
        Dimension::DiskRate => format!("{}/s", bytes(value, rounding)),
    }
}

/// `whole.fraction` without trailing zeros.
#[must_use]
pub fn decimal(whole: u64, fraction: u64, digits: usize) -> String {
    let whole = group_digits(whole);
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
#[must_use]
pub fn group_digits(value: u64) -> String {
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

/// `1 machine`, `12,477 machines`.
#[must_use]
pub fn pluralize(number: u64, noun: &str) -> String {
    pluralize_as(number, noun, &format!("{noun}s"))
}

/// The same for nouns with an irregular plural, and for phrases: `1 entry`, `2 tasks wait`.
#[must_use]
pub fn pluralize_as(number: u64, singular: &str, plural: &str) -> String {
    match number {
        1 => format!("1 {singular}"),
        _ => format!("{} {plural}", group_digits(number)),
    }
}

/// `once`, `twice`, `3 times`.
#[must_use]
pub fn times_text(number: u64) -> String {
    match number {
        1 => "once".into(),
        2 => "twice".into(),
        _ => format!("{} times", group_digits(number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_told_as_many() {
        let texts = [0, 1, 2, 1200].map(|number| pluralize(number, "task"));
        assert_eq!(texts, ["0 tasks", "1 task", "2 tasks", "1,200 tasks"]);
        let texts = [1, 3].map(|number| pluralize_as(number, "entry", "entries"));
        assert_eq!(texts, ["1 entry", "3 entries"]);
        assert_eq!([0, 1, 2, 3].map(times_text), ["0 times", "once", "twice", "3 times"]);
    }

    #[test]
    fn amounts_read_as_a_person_would_write_them() {
        let check = |dimension, value, rounding, want: &str| {
            assert_eq!(amount(dimension, value, rounding), want);
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
        assert_eq!(group_digits(1_234_567), "1,234,567");
    }

    #[test]
    fn what_is_asked_never_reads_like_what_is_free() {
        for free in [0u64, 1023, 1024, (1 << 30) - 1, 1 << 30, (3 << 30) + 12345] {
            let requested = amount(Dimension::Ram, free + 1, Rounding::Up);
            let available = amount(Dimension::Ram, free, Rounding::Down);
            assert_ne!(requested, available, "{free}");
        }
    }
}
