//! Numbers that tasks tell, from the text in which they tell them: lines of `NAME{LABEL="VALUE"}
//! NUMBER`, as Prometheus reads them. What a task writes is not to be trusted: a number is whole
//! thousandths from 0 on, or it is refused; and of a number with one series that is refused nothing
//! counts, because a part of a sum looks like a sum.
//!
//! A rate is the growth between two readings of the same attempt. Each series is compared with
//! itself: one that is smaller than it was has begun anew, and one that is new has grown by nothing
//! yet. Compared as a sum, one series that goes away would look like a new beginning of all, and
//! everything they had counted in years like the growth of a moment.

use cellwright_cell::scale::{MetricKind, MetricSeries, MetricSource, MetricsOrder};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Most bytes of one reading.
pub const MAX_BYTES: usize = 1 << 20;
/// Most series that are added up to one number.
const MAX_SERIES: usize = 1000;
/// Thousandths. Sums of a thousand series and of all tasks stay far below the end of `u128`.
const MAX_NUMBER: u64 = u64::MAX / 2;
/// Digits of a number that count.
const MAX_DIGITS: usize = 30;
/// A longer time between two readings gives no rate, in milliseconds.
const MAX_GAP: u64 = 120_000;

/// The numbers of one attempt, reading after reading.
#[derive(Clone, Debug)]
pub struct MetricReader {
    order: MetricsOrder,
    /// The reading before, and its time, of each number that was told.
    before: Option<(u64, Vec<Option<Sums>>)>,
    refused: u64,
}

/// What one number was in each of its series, by their labels as they were written.
type Sums = BTreeMap<String, u64>;

/// A number that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused;

impl MetricReader {
    #[must_use]
    pub fn new(order: MetricsOrder) -> MetricReader {
        MetricReader { order, before: None, refused: 0 }
    }

    #[must_use]
    pub fn order(&self) -> &MetricsOrder {
        &self.order
    }

    /// Readings that were refused, whole or in part.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Notes a reading that was refused before anything was read of it.
    pub fn refuse(&mut self) {
        self.refused = self.refused.saturating_add(1);
    }

    /// The numbers of the text, in thousandths, as far as they are told; `now` is a time in
    /// milliseconds that only moves forward.
    pub fn read(&mut self, now: u64, text: &str) -> Vec<(MetricSeries, u64)> {
        let found = self.sums(text);
        if found.iter().any(Result::is_err) {
            self.refuse();
        }
        let sums: Vec<Option<Sums>> = found.into_iter().map(|sums| sums.ok().flatten()).collect();
        let before = self.before.take();
        let mut told = Vec::new();
        for (position, (series, sums)) in self.order.series.iter().zip(&sums).enumerate() {
            let Some(sums) = sums else { continue };
            let number = match series.kind {
                MetricKind::Value => Some(sum(sums.values().copied())),
                MetricKind::Rate => before.as_ref().and_then(|(at, before)| {
                    rate(before.get(position)?.as_ref()?, sums, now.checked_sub(*at)?)
                }),
            };
            told.extend(number.map(|number| (series.clone(), number)));
        }
        self.before = Some((now, sums));
        told
    }

    /// Of each number its series; `None` where there is none.
    fn sums(&self, text: &str) -> Vec<Result<Option<Sums>, Refused>> {
        let wanted = &self.order.series;
        let mut found: Vec<Result<Option<Sums>, Refused>> = vec![Ok(None); wanted.len()];
        if let (MetricSource::File(_), Some(number)) = (&self.order.source, bare(text)) {
            if let Some(first) = found.first_mut() {
                *first = number.map(|number| Some(Sums::from([(String::new(), number)])));
            }
            return found;
        }
        for line in text.lines() {
            let line = line.trim();
            let name = &line[..line.find([' ', '\t', '{']).unwrap_or(line.len())];
            for (series, sums) in wanted.iter().zip(&mut found) {
                if series.name.as_str() == name && add(series, &line[name.len()..], sums).is_none()
                {
                    *sums = Err(Refused);
                }
            }
        }
        found
    }
}

/// Adds what follows the name in a line, if its labels are those that are meant. `None`: it cannot
/// be read.
fn add(series: &MetricSeries, rest: &str, sums: &mut Result<Option<Sums>, Refused>) -> Option<()> {
    let (written, labels, rest) = labels(rest.trim_start())?;
    let is_meant = series.labels.iter().all(|(name, value)| {
        let found = labels.iter().find(|(known, _)| *known == name.as_str());
        found.is_some_and(|(_, found)| found == value)
    });
    if !is_meant {
        return Some(());
    }
    let number = thousandths(rest.split_ascii_whitespace().next()?)?;
    let Ok(sums) = sums else { return Some(()) };
    let sums = sums.get_or_insert_default();
    if sums.len() >= MAX_SERIES {
        return None;
    }
    // A series that is told twice is none.
    sums.insert(written.to_owned(), number).is_none().then_some(())
}

/// A label and its value.
type Label<'a> = (&'a str, Cow<'a, str>);

/// The labels at the beginning of a text, as they are written and one by one, and what follows.
fn labels(text: &str) -> Option<(&str, Vec<Label<'_>>, &str)> {
    let Some(mut rest) = text.strip_prefix('{') else { return Some(("", Vec::new(), text)) };
    let mut all = Vec::new();
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix('}') {
            let written = &text[..text.len() - after.len()];
            return Some((written, all, after));
        }
        let (name, after) = rest.split_once('=')?;
        let (value, after) = quoted(after.trim_start())?;
        all.push((name.trim_end(), value));
        rest = after.trim_start();
        rest = match rest.strip_prefix(',') {
            Some(after) => after,
            None if rest.starts_with('}') => rest,
            None => return None,
        };
    }
}

/// The text between quotes at the beginning, and what follows.
fn quoted(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let inner = text.strip_prefix('"')?;
    let end = inner.find(['"', '\\'])?;
    if inner[end..].starts_with('"') {
        return Some((Cow::Borrowed(&inner[..end]), &inner[end + 1..]));
    }
    let mut value = String::new();
    let mut chars = inner.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((Cow::Owned(value), &inner[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

/// A text that is one word, and so no line of a page: a number, or one that is refused.
fn bare(text: &str) -> Option<Result<u64, Refused>> {
    let mut words = text.split_ascii_whitespace();
    let (word, None) = (words.next()?, words.next()) else { return None };
    (!word.contains(['{', '#'])).then(|| thousandths(word).ok_or(Refused))
}

/// A decimal number in thousandths, rounded down. `None`: none, below zero, endless, or too large.
#[must_use]
pub fn thousandths(text: &str) -> Option<u64> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(text) => (true, text),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = || whole.bytes().chain(fraction.bytes());
    if digits().next().is_none() || !digits().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let exponent: i64 = exponent.parse::<i32>().ok()?.into();
    // From the first digit that is not 0, as many as count.
    let zeros = digits().take_while(|digit| *digit == b'0').count();
    let counted = digits().skip(zeros).take(MAX_DIGITS);
    let (number, taken) = counted.fold((0_u128, 0_usize), |(number, taken), digit| {
        (number * 10 + u128::from(digit - b'0'), taken + 1)
    });
    if number == 0 || negative {
        return (number == 0).then_some(0);
    }
    // The place of the last digit taken, counted from the thousandths.
    let after_point = i64::try_from(zeros + taken).ok()? - i64::try_from(whole.len()).ok()?;
    let shift = exponent - after_point + 3;
    let power = |by: i64| 10_u128.checked_pow(u32::try_from(by).ok()?);
    let number = if shift >= 0 {
        number.checked_mul(power(shift)?)?
    } else {
        power(-shift).map_or(0, |power| number / power)
    };
    u64::try_from(number).ok().filter(|number| *number <= MAX_NUMBER)
}

/// What two readings tell of the growth in a second.
fn rate(before: &Sums, now: &Sums, millis: u64) -> Option<u64> {
    if !(1..=MAX_GAP).contains(&millis) {
        return None;
    }
    let growth = now.iter().filter_map(|(labels, number)| {
        let before = before.get(labels)?;
        // It began anew.
        Some(number.checked_sub(*before).unwrap_or(*number))
    });
    let grown = u128::from(sum(growth)) * 1000 / u128::from(millis);
    Some(u64::try_from(grown).unwrap_or(MAX_NUMBER).min(MAX_NUMBER))
}

fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, |sum: u64, number| sum.saturating_add(number)).min(MAX_NUMBER)
}

#[cfg(test)]
mod tests;
