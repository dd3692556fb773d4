//! Formats quantities for people. A live cell counts milli-cores and bytes ([`crate::units`]); a
//! trace counts shares of its largest machine: the reader of an explanation should see the unit
//! that the request was written in.
//!
//! Requested amounts are rounded up and free amounts are rounded down, so that "would fit with at
//! most 3.1 GiB" stays true of the rounded figure.

use crate::resource::Dimension;
use crate::time::Span;
use crate::units::{self, group_digits};

pub use units::Rounding;

pub trait Units {
    /// The amount with its unit, without the name of the dimension.
    fn amount(&self, dimension: Dimension, value: u64, rounding: Rounding) -> String;
}

/// Milli-cores and bytes: `2.5 cores`, `3.1 GiB`, `80 MiB/s`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Natural;

impl Units for Natural {
    fn amount(&self, dimension: Dimension, value: u64, rounding: Rounding) -> String {
        units::amount(dimension, value, rounding)
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
        let text = units::decimal(value / 1_000_000, value % 1_000_000, 6);
        if self.whole.is_empty() { text } else { format!("{text} {}", self.whole) }
    }
}

/// A length of time in its two largest units, rounded up to the smaller of them: an event announced
/// for 12 s has happened by then. `350 ms`, `12 s`, `3 min 20 s`, `2 h 5 min`, `4 d 1 h`.
#[must_use]
pub fn span(span: Span) -> String {
    if span.0 < 1000 {
        return format!("{} ms", span.0);
    }
    let two = |value: u64, part: u64, large: &str, small: &str| match value % part {
        0 => format!("{} {large}", group_digits(value / part)),
        rest => format!("{} {large} {rest} {small}", group_digits(value / part)),
    };
    let seconds = span.0.div_ceil(1000);
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3600 => two(seconds, 60, "min", "s"),
        3600..86_400 => two(seconds.div_ceil(60), 60, "h", "min"),
        _ => two(seconds.div_ceil(3600), 24, "d", "h"),
    }
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
    fn shares_of_a_trace_say_of_what() {
        let share = Millionths { whole: "of the largest machine" };
        let text = share.amount(Dimension::Cpu, 125_000, Rounding::Up);
        assert_eq!(text, "0.125 of the largest machine");
        assert_eq!(Natural.amount(Dimension::Ram, 3 << 29, Rounding::Up), "1.5 GiB");
    }
}
