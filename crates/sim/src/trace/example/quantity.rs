//! Amounts with units: `0.5` or `500m` cores, `4GiB`, `200MiB/s`.
//!
//! Units are binary and spelled out, because `4G` is ambiguous. An amount that is not a whole
//! number of the smallest unit is rejected, never rounded.

use crate::trace::decimal::{Rounding, parse_scaled, parse_whole};

/// Largest amount in any dimension; the kernel's sums stay exact up to it.
pub(super) const MAX_AMOUNT: u64 = 1 << 50;

pub(super) const ALLOWED_MILLI: &str =
    "cores such as 2 or 0.5 (at most 3 decimals) or milli-cores such as 500m";
pub(super) const ALLOWED_BYTES: &str =
    "a number and B, KiB, MiB, GiB or TiB, such as 4GiB or 1.5GiB, at most 1024TiB";
pub(super) const ALLOWED_RATE: &str = "bytes per second, such as 200MiB/s, at most 1024TiB/s";

const UNITS: [(&str, u64); 5] =
    [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40), ("B", 1)];

const BYTE_DECIMALS: u32 = 6;

/// `0.5` and `500m` to 500.
pub fn parse_milli(text: &str) -> Option<u64> {
    let value = match text.strip_suffix('m') {
        Some(milli) => parse_whole(milli),
        None => parse_scaled(text, 3, Rounding::Exact),
    };
    value.ok().filter(|value| *value <= MAX_AMOUNT)
}

/// `4GiB` to bytes.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let (bytes, is_whole) = split_bytes(text)?;
    is_whole.then_some(bytes)
}

/// As [`parse_bytes`], but `7.7GiB` is the whole bytes in it: for queries, where people type back
/// an amount that was rounded for display.
pub fn parse_bytes_down(text: &str) -> Option<u64> {
    split_bytes(text).map(|(bytes, _)| bytes)
}

/// The whole bytes, and whether the amount was exactly that.
fn split_bytes(text: &str) -> Option<(u64, bool)> {
    let (number, unit) =
        UNITS.iter().find_map(|(name, size)| Some((text.strip_suffix(name)?, *size)))?;
    let scaled = u128::from(parse_scaled(number, BYTE_DECIMALS, Rounding::Exact).ok()?);
    let bytes_scaled = scaled * u128::from(unit);
    let scale = 10_u128.pow(BYTE_DECIMALS);
    let bytes = u64::try_from(bytes_scaled / scale).ok().filter(|bytes| *bytes <= MAX_AMOUNT)?;
    Some((bytes, bytes_scaled % scale == 0))
}

/// `200MiB/s` to bytes per second.
pub fn parse_bytes_per_second(text: &str) -> Option<u64> {
    parse_bytes(text.strip_suffix("/s")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact_or_refused() {
        let milli = [("2", 2000), ("0.5", 500), ("500m", 500), ("0.125", 125), ("0", 0)];
        for (text, expected) in milli {
            assert_eq!(parse_milli(text), Some(expected), "{text}");
        }
        for text in ["", "m", "0.5m", "0.0001", "-1", "1 ", "NaN", "1e30", "2c"] {
            assert_eq!(parse_milli(text), None, "{text}");
        }
        let bytes = [("0B", 0), ("7B", 7), ("1KiB", 1024), ("1.5GiB", 3 << 29), ("2TiB", 2 << 40)];
        for (text, expected) in bytes {
            assert_eq!(parse_bytes(text), Some(expected), "{text}");
        }
        for text in ["", "4", "4G", "4GB", "GiB", "0.3B", "0.1KiB", "-1GiB", "1025TiB", "4 GiB"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
        assert_eq!(parse_bytes_down("7.7GiB"), Some(8_267_812_044));
        assert_eq!(parse_bytes_down("7.7G"), None);
        assert_eq!(parse_bytes_per_second("2MiB/s"), Some(2 << 20));
        assert_eq!(parse_bytes_per_second("2MiB"), None);
    }
}
