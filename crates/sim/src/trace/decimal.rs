//! Exact decimal numbers: text to scaled integers without passing through floats.
//!
//! The kernel counts in integers, and trace tables mix plain (`0.0625`) and scientific
//! (`2.861e-06`) notation. A float in between would make `0.1 + 0.2` differ from `0.3` before any
//! decision is made, and would hide which way the last digit went. Here the caller says what
//! happens to digits beyond the scale: requests and usage are rounded up so that nothing is
//! under-counted, capacities are rounded down so that nothing is promised that is not there.

use thiserror::Error;

/// Decimals of a micro-unit: 1.0 is 1,000,000.
pub const MICRO_DECIMALS: u32 = 6;

/// What happens to digits finer than the scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// For requests and usage: any finer digit that is not zero adds one unit.
    Up,
    /// For capacities: finer digits are cut off.
    Down,
    /// Finer digits that are not zero are rejected.
    Exact,
}

/// Why a text is not a number that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NumberProblem {
    #[error("not a decimal number")]
    NotDecimal,
    #[error("below zero")]
    Negative,
    #[error("too large")]
    TooLarge,
    #[error("finer than the unit")]
    TooFine,
}

/// `0.5` to 500,000.
pub fn parse_micro(text: &str, rounding: Rounding) -> Result<u64, NumberProblem> {
    parse_scaled(text, MICRO_DECIMALS, rounding)
}

/// Only digits, no sign, no point.
pub fn parse_whole(text: &str) -> Result<u64, NumberProblem> {
    if text.starts_with('-') {
        return Err(NumberProblem::Negative);
    }
    if text.is_empty() {
        return Err(NumberProblem::NotDecimal);
    }
    let mut value: u64 = 0;
    for byte in text.bytes() {
        value = append(value, digit_of(byte)?)?;
    }
    Ok(value)
}

/// The number times ten to the power of `decimals`, as an integer.
///
/// Takes digits, at most one point, and an exponent; no sign, no infinities, no separators.
pub fn parse_scaled(text: &str, decimals: u32, rounding: Rounding) -> Result<u64, NumberProblem> {
    if text.starts_with('-') {
        return Err(NumberProblem::Negative);
    }
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], parse_exponent(&text[at + 1..])?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return Err(NumberProblem::NotDecimal);
    }
    // How many of the digits are before the point once the scale is applied.
    let kept = i64::try_from(whole.len()).map_err(|_| NumberProblem::TooLarge)?
        + exponent
        + i64::from(decimals);
    let mut value: u64 = 0;
    let mut has_finer_digit = false;
    let mut seen: i64 = 0;
    for byte in whole.bytes().chain(fraction.bytes()) {
        let digit = digit_of(byte)?;
        if seen < kept {
            value = append(value, digit)?;
        } else {
            has_finer_digit |= digit != 0;
        }
        seen += 1;
    }
    // Zeros that the text leaves out; the loop is short, for all but zero soon overflow.
    while value != 0 && seen < kept {
        value = append(value, 0)?;
        seen += 1;
    }
    match rounding {
        Rounding::Exact if has_finer_digit => Err(NumberProblem::TooFine),
        Rounding::Up if has_finer_digit => value.checked_add(1).ok_or(NumberProblem::TooLarge),
        _ => Ok(value),
    }
}

fn digit_of(byte: u8) -> Result<u64, NumberProblem> {
    if byte.is_ascii_digit() { Ok(u64::from(byte - b'0')) } else { Err(NumberProblem::NotDecimal) }
}

fn append(value: u64, digit: u64) -> Result<u64, NumberProblem> {
    value.checked_mul(10).and_then(|tens| tens.checked_add(digit)).ok_or(NumberProblem::TooLarge)
}

/// Exponents are limited to a million, far beyond what digits within a line can compensate.
fn parse_exponent(text: &str) -> Result<i64, NumberProblem> {
    let (sign, digits) = match text.as_bytes().first() {
        Some(b'-') => (-1, &text[1..]),
        Some(b'+') => (1, &text[1..]),
        _ => (1, text),
    };
    if digits.is_empty() {
        return Err(NumberProblem::NotDecimal);
    }
    let mut value: i64 = 0;
    for byte in digits.bytes() {
        let digit = digit_of(byte)? as i64;
        value = (value * 10 + digit).min(1_000_000);
    }
    Ok(sign * value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use NumberProblem::{Negative, NotDecimal, TooFine, TooLarge};
    use Rounding::{Down, Exact, Up};

    #[test]
    fn plain_and_scientific_notation_give_the_same_micro_units() {
        let check = |text: &str, down: u64, up: u64| {
            assert_eq!(parse_micro(text, Down), Ok(down), "{text} down");
            assert_eq!(parse_micro(text, Up), Ok(up), "{text} up");
            let exact = if down == up { Ok(up) } else { Err(TooFine) };
            assert_eq!(parse_micro(text, Exact), exact, "{text} exact");
        };
        check("0", 0, 0);
        check("1", 1_000_000, 1_000_000);
        check("1.", 1_000_000, 1_000_000);
        check(".5", 500_000, 500_000);
        check("0.2493", 249_300, 249_300);
        check("0.0004244", 424, 425);
        check("0.00042400", 424, 424);
        check("2.861e-06", 2, 3);
        check("7.057e-05", 70, 71);
        check("9.537E-7", 0, 1);
        check("1e-400", 0, 1);
        check("0e999999999999999999999", 0, 0);
        check("1.25e+3", 1_250_000_000, 1_250_000_000);
        check("12345678e-8", 123_456, 123_457);
        check("18446744073709.551615", u64::MAX, u64::MAX);
    }

    #[test]
    fn everything_else_is_refused() {
        let check = |text: &str, expected| {
            assert_eq!(parse_micro(text, Up), Err(expected), "{text}");
        };
        for text in ["", ".", "e5", "NaN", "inf", "1e", "1e+", "1.2.3", "0x1", "1,5", "+1", " 1"] {
            check(text, NotDecimal);
        }
        check("-1", Negative);
        check("-0", Negative);
        check("18446744073709.551616", TooLarge);
        check("18446744073709.5516151", TooLarge);
        check("1e14", TooLarge);
        check("1e999999999999999999999", TooLarge);
    }

    #[test]
    fn whole_numbers_take_digits_only() {
        assert_eq!(parse_whole("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(parse_whole("18446744073709551616"), Err(TooLarge));
        assert_eq!(parse_whole("-1"), Err(Negative));
        for text in ["", "+1", "1.0", "1e3", "٣"] {
            assert_eq!(parse_whole(text), Err(NotDecimal), "{text}");
        }
    }
}
