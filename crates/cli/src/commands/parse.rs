//! Parsers of command-line values. Their errors name the allowed values. Amounts have the syntax of
//! job files, so that values can be copied from there.

use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::time::{Span, Time};
use cellwright_lang::units::Unit;
use cellwright_master::checkpoint::ReplayTarget;
use time::{Date, Month};

/// The allowed forms of a size, for errors.
const SIZES: &str = "an amount with B, KiB, MiB, GiB, TiB, PiB, kB, MB, GB or TB, as 64GiB";

pub fn name(text: &str) -> Result<Name, String> {
    Name::new(text).map_err(|bad| bad.to_string())
}

/// `USER/JOB`.
pub fn job_key(text: &str) -> Result<JobKey, String> {
    let (user, job) = text.split_once('/').ok_or("allowed: USER/JOB, such as dev/hello")?;
    Ok(JobKey { user: name(user)?, job: name(job)? })
}

/// `5s`, `24h`, `1h30m`.
pub fn duration(text: &str) -> Result<Span, String> {
    let allowed = "allowed: an amount with ms, s, m, h or d, as 90s or 1h30m";
    Unit::Milliseconds.parse(text).map(Span).ok_or_else(|| allowed.into())
}

/// A point in time: a UTC time as lists print it, or a delay from now.
pub fn time_or_delay(text: &str) -> Result<Time, String> {
    if let Ok(span) = duration(text) {
        return Ok(crate::clock::now().plus(span));
    }
    let allowed = "allowed: a UTC time such as 2026-12-01T00:00:00Z, or a time from now, as 30d";
    let Time(millis) = utc_time(text).ok_or(allowed)?;
    // A time without a fraction means the beginning of that second.
    Ok(Time(if text.contains('.') { millis } else { millis - millis % 1000 }))
}

/// A point in time that is over: a UTC time as lists print it, or how long ago it was.
pub fn past_time(text: &str) -> Result<Time, String> {
    if let Ok(span) = duration(text) {
        return Ok(Time(crate::clock::now().0.saturating_sub(span.0)));
    }
    let allowed = "allowed: how long ago, as 10m, or a UTC time such as 2026-12-01T00:00:00Z";
    let Time(millis) = utc_time(text).ok_or(allowed)?;
    Ok(Time(if text.contains('.') { millis } else { millis - millis % 1000 }))
}

/// The time at which something ends, or `never`.
pub fn end_time(text: &str) -> Result<Time, String> {
    match text {
        "never" => Ok(Time::NEVER),
        _ => time_or_delay(text).map_err(|allowed| format!("{allowed}, or never")),
    }
}

/// `64GiB`, `1.5GB`.
pub fn size(text: &str) -> Result<u64, String> {
    Unit::Bytes.parse(text).ok_or_else(|| format!("allowed: {SIZES}"))
}

/// `10MiB/s`; the `/s` may be left out.
pub fn rate(text: &str) -> Result<u64, String> {
    Unit::BytesPerSecond.parse(text).ok_or_else(|| format!("allowed: {SIZES}, or 10MiB/s"))
}

/// Cores, `1.5` or `500m`, in thousandths.
pub fn cores(text: &str) -> Result<u64, String> {
    let allowed = "allowed: cores with at most 3 decimals, as 1.5, or thousandths of one, as 500m";
    Unit::Cpu.parse(text).ok_or_else(|| allowed.to_owned())
}

/// Cores, but not zero.
pub fn nonzero_cores(text: &str) -> Result<u64, String> {
    let more = "allowed: cores from 0.001 on, as 1.5, or thousandths of one from 1m on, as 500m";
    cores(text).ok().filter(|milli| *milli > 0).ok_or_else(|| more.to_owned())
}

/// A size, but not zero.
pub fn nonzero_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err(format!("allowed: 1B or more, as {SIZES}")),
        bytes => Ok(bytes),
    }
}

/// A log position: an index, or a time as lists print it. A time without a fraction means the end
/// of that second, since everything that happened in it is printed with the same second.
pub fn log_position(text: &str) -> Result<ReplayTarget, String> {
    if let Ok(index) = text.parse() {
        return Ok(ReplayTarget::Index(index));
    }
    let allowed = "allowed: a log index, or a UTC time such as 2026-03-01T12:00:00Z".to_owned();
    utc_time(text).map(ReplayTarget::Time).ok_or(allowed)
}

fn utc_time(text: &str) -> Option<Time> {
    let text = text.strip_suffix(['Z', 'z']).unwrap_or(text);
    let (date, clock) = text.split_once(['T', 't', ' '])?;
    let (clock, fraction) = match clock.split_once('.') {
        Some((clock, fraction)) => (clock, Some(fraction)),
        None => (clock, None),
    };
    let millis = match fraction {
        None => 999,
        Some(digits) if (1..=3).contains(&digits.len()) => {
            u64::from(whole_number(digits)?) * 10_u64.pow(3 - digits.len() as u32)
        }
        Some(_) => return None,
    };
    let [year, month, day] = three_numbers(date, '-')?;
    let [hour, minute, second] = three_numbers(clock, ':')?;
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    let date = Date::from_calendar_date(year.into(), month, u8::try_from(day).ok()?).ok()?;
    let [hour, minute, second] = [hour, minute, second].map(u8::try_from);
    let at = date.with_hms(hour.ok()?, minute.ok()?, second.ok()?).ok()?.assume_utc();
    let seconds = u64::try_from(at.unix_timestamp()).ok()?;
    Some(Time(seconds * 1000 + millis))
}

fn whole_number(digits: &str) -> Option<u16> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

fn three_numbers(text: &str, between: char) -> Option<[u16; 3]> {
    let parts: Vec<u16> = text.split(between).map(whole_number).collect::<Option<_>>()?;
    parts.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_index_or_the_time_that_lists_print() {
        assert_eq!(log_position("42"), Ok(ReplayTarget::Index(42)));
        for seconds in [0, 951_782_400, 1_772_366_399] {
            let at = Time(seconds * 1000 + 999);
            assert_eq!(log_position(&crate::format::utc(at)), Ok(ReplayTarget::Time(at)));
            let at = Time(seconds * 1000 + 250);
            assert_eq!(log_position(&crate::format::utc_millis(at)), Ok(ReplayTarget::Time(at)));
        }
        assert_eq!(log_position("1970-01-02T00:00:00.5"), Ok(ReplayTarget::Time(Time(86_400_500))));
        let wrong = ["", "-1", "yesterday", "2026-02-29T00:00:00Z", "2026-01-01T24:00:00Z"];
        for text in wrong {
            assert!(log_position(text).is_err_and(|error| error.contains("allowed: ")), "{text}");
        }
    }

    #[test]
    fn a_moment_is_a_time_or_so_long_from_now() {
        assert_eq!(time_or_delay("1970-01-02T00:00:00Z"), Ok(Time(86_400_000)));
        assert_eq!(time_or_delay("1970-01-02T00:00:00.5Z"), Ok(Time(86_400_500)));
        let (before, soon) = (crate::clock::now(), time_or_delay("30d").unwrap());
        assert!(soon >= before.plus(Span::seconds(30 * 86_400)) && soon < Time::NEVER);
        assert!(time_or_delay("tomorrow").is_err_and(|error| error.contains("allowed: ")));
        assert_eq!(
            (end_time("never"), end_time("1970-01-02T00:00:00Z")),
            (Ok(Time::NEVER), Ok(Time(86_400_000)))
        );
        assert!(end_time("soon").is_err_and(|error| error.ends_with(", or never")));
    }

    #[test]
    fn what_is_typed_is_read_or_refused_with_what_is_allowed() {
        assert_eq!((cores("1.5"), size("2GiB")), (Ok(1500), Ok(2 << 30)));
        // The same forms as in job files.
        assert_eq!((cores("50m"), nonzero_cores("50m"), cores("2")), (Ok(50), Ok(50), Ok(2000)));
        assert_eq!((size("1.5GiB"), nonzero_size("2GB")), (Ok(3 << 29), Ok(2_000_000_000)));
        assert_eq!((rate("10MiB/s"), rate("10MiB")), (Ok(10 << 20), Ok(10 << 20)));
        assert_eq!(duration("1h30m"), Ok(Span::seconds(5400)));
        assert_eq!((nonzero_cores("0.001"), nonzero_size("1B")), (Ok(1), Ok(1)));
        for none in
            [nonzero_cores("0").err(), nonzero_cores("0m").err(), nonzero_size("0GiB").err()]
        {
            assert!(none.is_some_and(|error| error.contains("allowed: ")));
        }
        assert_eq!(duration("15m"), Ok(Span::seconds(900)));
        assert_eq!(job_key("ann/web").map(|key| key.to_string()), Ok("ann/web".into()));
        for wrong in [
            cores("x").err(),
            size("2").err(),
            rate("2/s").err(),
            duration("5").err(),
            job_key("web").err(),
        ] {
            assert!(wrong.is_some_and(|error| error.contains("allowed: ")));
        }
        assert!(job_key("Ann/web").is_err_and(|error| error.contains("a-z")));
    }
}
