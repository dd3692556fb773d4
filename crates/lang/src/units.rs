//! Parses and formats amounts with units as whole numbers of the API: `2` and `"500m"` cores,
//! `"2GiB"`, `"90s"`. Amounts are exact or rejected, never rounded, so what is written is what is
//! run.

/// The unit of a whole number in a spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Thousandths of a core.
    Cpu,
    /// Thousandths of what a program counts in.
    Count,
    Bytes,
    BytesPerSecond,
    Milliseconds,
}

impl Unit {
    #[must_use]
    pub fn allowed(self) -> &'static str {
        match self {
            Unit::Cpu => {
                "cores such as 2 or 0.5, or a text with thousandths of a core such as \"500m\""
            }
            Unit::Count => {
                "a number such as 100 or 0.5, or a text with thousandths such as \"500m\""
            }
            Unit::Bytes => {
                "a text such as \"512MiB\" or \"2GB\" (B, KiB, MiB, GiB, TiB, PiB, kB, MB, GB, \
                 TB), or a whole number of bytes"
            }
            Unit::BytesPerSecond => {
                "a text such as \"10MiB/s\", or a whole number of bytes a second"
            }
            Unit::Milliseconds => {
                "a text such as \"500ms\", \"90s\", \"1h30m\" (ms, s, m, h, d), or a whole number \
                 of milliseconds"
            }
        }
    }

    /// Formats `number` in the largest unit in which it is whole.
    #[must_use]
    pub fn format(self, number: u64) -> String {
        const BYTES: [(&str, u64); 5] = [
            ("PiB", 1 << 50),
            ("TiB", 1 << 40),
            ("GiB", 1 << 30),
            ("MiB", 1 << 20),
            ("KiB", 1 << 10),
        ];
        const TIMES: [(&str, u64); 4] =
            [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
        let in_units = |units: &[(&str, u64)], smallest: &str| {
            let whole = units.iter().find(|(_, size)| number > 0 && number.is_multiple_of(*size));
            match whole {
                Some((unit, size)) => format!("{}{unit}", number / size),
                None => format!("{number}{smallest}"),
            }
        };
        match self {
            Unit::Cpu | Unit::Count => {
                let text = format!("{}.{:03}", number / 1000, number % 1000);
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            }
            Unit::Bytes => in_units(&BYTES, "B"),
            Unit::BytesPerSecond => format!("{}/s", in_units(&BYTES, "B")),
            Unit::Milliseconds => in_units(&TIMES, "ms"),
        }
    }

    /// Parses a number without a unit, as a file has it: of CPU, cores.
    #[must_use]
    pub fn of_number(self, number: &serde_json::Number) -> Option<u64> {
        match self {
            Unit::Cpu | Unit::Count => self.parse(&number.to_string()).or_else(|| {
                // What was computed may be off by the last bit: 0.1 + 0.2 cores are 300 m.
                let milli = number.as_f64()? * 1000.0;
                let whole = milli.round();
                let is_whole = (milli - whole).abs() < 1e-6 && (0.0..1e15).contains(&whole);
                is_whole.then_some(whole as u64)
            }),
            _ => number.as_u64(),
        }
    }

    /// Parses `text` as a whole number.
    #[must_use]
    pub fn parse(self, text: &str) -> Option<u64> {
        let text = text.trim();
        match self {
            Unit::Cpu | Unit::Count => match text.strip_suffix('m') {
                Some(thousandths) => scaled(thousandths, 1),
                None => scaled(text, 1000),
            },
            Unit::Bytes => bytes(text),
            Unit::BytesPerSecond => bytes(text.strip_suffix("/s").unwrap_or(text)),
            Unit::Milliseconds => milliseconds(text),
        }
    }
}

fn bytes(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 15] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("PiB", 1 << 50),
        ("kB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
        // As other systems write them.
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("Pi", 1 << 50),
    ];
    let (unit, size) = UNITS.iter().find(|(unit, _)| text.ends_with(unit))?;
    scaled(text.strip_suffix(unit)?.trim_end(), *size)
}

/// Parses `1h30m`: whole or decimal amounts, largest unit first, each unit once.
fn milliseconds(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 5] =
        [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
    let (mut rest, mut sum, mut below) = (text, 0_u64, u64::MAX);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (amount, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let (_, size) = UNITS.iter().find(|(known, _)| *known == unit)?;
        if *size >= below {
            return None;
        }
        sum = sum.checked_add(scaled(amount, *size)?)?;
        (rest, below) = (after.trim_start(), *size);
    }
    (below != u64::MAX).then_some(sum)
}

/// A decimal number times `size`, if that is a whole number.
fn scaled(text: &str, size: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 15 {
        return None;
    }
    if text.contains('.') && fraction.is_empty() {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(size)?;
    let parts = match fraction {
        "" => 0,
        _ => fraction.parse::<u128>().ok()?.checked_mul(u128::from(size))?,
    };
    let ten = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    if parts % ten != 0 {
        return None;
    }
    whole.checked_add(u64::try_from(parts / ten).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_as_what_it_was() {
        let check = |unit: Unit, number: u64, want: &str| {
            assert_eq!(unit.format(number), want);
            assert_eq!(unit.parse(want), Some(number), "{want}");
        };
        check(Unit::Cpu, 0, "0");
        check(Unit::Cpu, 1500, "1.5");
        check(Unit::Cpu, 10_000, "10");
        check(Unit::Count, 100_500, "100.5");
        check(Unit::Bytes, 0, "0B");
        check(Unit::Bytes, 4096, "4KiB");
        check(Unit::Bytes, 1 << 50, "1PiB");
        check(Unit::Bytes, 1023, "1023B");
        check(Unit::BytesPerSecond, 10 << 20, "10MiB/s");
        check(Unit::Milliseconds, 0, "0ms");
        check(Unit::Milliseconds, 100, "100ms");
        check(Unit::Milliseconds, 366 * 86_400_000, "366d");
        check(Unit::Milliseconds, 5_400_000, "90m");
    }

    #[test]
    fn cores_are_plain_numbers() {
        let check = |number: &str, want: Option<u64>| {
            let read = Unit::Cpu.of_number(&serde_json::from_str(number).unwrap());
            assert_eq!(read, want, "{number}");
        };
        check("2", Some(2000));
        check("2.0", Some(2000));
        check("0.5", Some(500));
        check("0.001", Some(1));
        check("0", Some(0));
        check("0.30000000000000004", Some(300));
        check("0.0001", None);
        check("-1", None);
        check("1e300", None);
        check("18446744073709551615", None);
    }

    #[test]
    fn amounts_are_exact_or_refused() {
        let check = |unit: Unit, text: &str, want: Option<u64>| {
            assert_eq!(unit.parse(text), want, "{text}");
        };
        check(Unit::Cpu, "500m", Some(500));
        check(Unit::Cpu, "1.5", Some(1500));
        check(Unit::Cpu, "2", Some(2000));
        check(Unit::Cpu, "0.0001", None);
        check(Unit::Cpu, "-1", None);
        check(Unit::Cpu, "two", None);
        check(Unit::Cpu, "", None);
        check(Unit::Bytes, "2GiB", Some(2 << 30));
        check(Unit::Bytes, "1.5 GiB", Some(3 << 29));
        check(Unit::Bytes, "2GB", Some(2_000_000_000));
        check(Unit::Bytes, "64Mi", Some(64 << 20));
        check(Unit::Bytes, "1.5Gi", Some(3 << 29));
        check(Unit::BytesPerSecond, "10Mi/s", Some(10 << 20));
        check(Unit::Bytes, "64M", None);
        check(Unit::Bytes, "7", None);
        check(Unit::Bytes, "2G", None);
        check(Unit::Bytes, "0.3B", None);
        check(Unit::Bytes, "99999999999999999999GiB", None);
        check(Unit::BytesPerSecond, "10MiB/s", Some(10 << 20));
        check(Unit::BytesPerSecond, "10MiB", Some(10 << 20));
        check(Unit::Milliseconds, "500ms", Some(500));
        check(Unit::Milliseconds, "1h30m", Some(5_400_000));
        check(Unit::Milliseconds, "1.5s", Some(1500));
        check(Unit::Milliseconds, "2d 1ms", Some(172_800_001));
        check(Unit::Milliseconds, "30m1h", None);
        check(Unit::Milliseconds, "1m1m", None);
        check(Unit::Milliseconds, "90", None);
        check(Unit::Milliseconds, "1.s", None);
    }
}
