//! Cron schedules: five fields of the familiar crontab, in UTC. A schedule is parsed once, on
//! input, and stored as sets of numbers, so the next moment is found by searching day by day,
//! without a clock and without a time zone database. The calendar comes from the crate `time`;
//! beyond the year 9999 there are no moments.
//!
//! Rejected: local time. Twice a year an hour happens twice or not at all, and a cell has no place
//! on a map. Also rejected: a list of future moments in the state, which would have to be refilled.

use crate::time::Time;
use ::time::{Month, OffsetDateTime, util::days_in_month};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Milliseconds in a minute, the grain of a schedule.
pub const MINUTE: u64 = 60_000;
const DAY: u64 = 24 * 60;
/// The longest wait: from one 29 February to the next over a century that has none.
const MAX_DAYS_BETWEEN: u64 = 8 * 366;
/// Longest text of a schedule.
const MAX_TEXT: usize = 256;

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Why a text is not a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("schedule {text:?}: {field} {value:?} is not valid; allowed: {allowed}")]
pub struct InvalidSchedule {
    pub text: String,
    pub field: String,
    pub value: String,
    pub allowed: String,
}

/// `minute hour day-of-month month day-of-week`, in UTC.
///
/// Each field is `*`, a number, a range `1-5`, or either with a step (`*/15`, `1-9/2`), or several
/// of these with commas. Months and weekdays have their English three-letter names too; Sunday is
/// 0 or 7. Where both days are restricted, a day that satisfies either will do.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Schedule {
    text: Arc<str>,
    /// One bit for each matching value, as in all fields below.
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
}

/// One field: its name, its range, the names of its values, and the value of the first name.
struct Field {
    name: &'static str,
    first: u64,
    last: u64,
    value_names: &'static [&'static str],
}

const MINUTES: Field = Field { name: "minute", first: 0, last: 59, value_names: &[] };
const HOURS: Field = Field { name: "hour", first: 0, last: 23, value_names: &[] };
const DAYS: Field = Field { name: "day of month", first: 1, last: 31, value_names: &[] };
const MONTHS_OF_YEAR: Field = Field { name: "month", first: 1, last: 12, value_names: &MONTHS };
const DAYS_OF_WEEK: Field =
    Field { name: "day of week", first: 0, last: 7, value_names: &WEEKDAYS };

impl Field {
    fn all(&self) -> u64 {
        (self.first..=self.last).fold(0, |set, value| set | 1 << value)
    }

    fn allowed(&self) -> String {
        let Field { first, last, .. } = self;
        let words = match self.value_names {
            [one, .., other] => format!(", {one} to {other}"),
            _ => String::new(),
        };
        format!("*, {first} to {last}{words}, ranges a-b, steps a-b/n and */n, lists with commas")
    }

    /// The values that the text of a field matches; `None` when it is not valid.
    fn parse(&self, text: &str) -> Option<u64> {
        text.split(',').try_fold(0, |set, part| Some(set | self.parse_part(part)?))
    }

    fn parse_part(&self, text: &str) -> Option<u64> {
        let (range, step) = match text.split_once('/') {
            Some((range, step)) => (range, parse_number(step).filter(|step| *step > 0)?),
            None => (text, 1),
        };
        let (from, to) = match (range, range.split_once('-')) {
            ("*", _) => (self.first, self.last),
            (_, Some((from, to))) => (self.parse_value(from)?, self.parse_value(to)?),
            // A step without a range is ambiguous.
            (value, None) if step == 1 && !text.contains('/') => {
                (self.parse_value(value)?, self.parse_value(value)?)
            }
            _ => return None,
        };
        let steps = (from..=to).step_by(usize::try_from(step).ok()?);
        (from <= to).then(|| steps.fold(0, |set, value| set | 1 << value))
    }

    fn parse_value(&self, text: &str) -> Option<u64> {
        let lower = text.to_ascii_lowercase();
        let word = self.value_names.iter().position(|word| *word == lower);
        let value = match word {
            Some(at) => self.first + at as u64,
            None => parse_number(text)?,
        };
        (self.first..=self.last).contains(&value).then_some(value)
    }
}

/// Digits alone: `+5` is not accepted.
fn parse_number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.len() <= 4 && text.bytes().all(|b| b.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

impl Schedule {
    /// # Errors
    /// The field of `text` that is not valid, and what is allowed.
    pub fn new(text: &str) -> Result<Schedule, InvalidSchedule> {
        let bad = |field: &str, value: &str, allowed: String| InvalidSchedule {
            text: text.chars().take(MAX_TEXT).collect(),
            field: field.to_owned(),
            value: value.chars().take(MAX_TEXT).collect(),
            allowed,
        };
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let count = words.len().to_string();
        let &[minute, hour, day, month, weekday] = &words[..] else {
            let allowed = "five: minute hour day-of-month month day-of-week, in UTC".to_owned();
            return Err(bad("number of fields", &count, allowed));
        };
        if text.len() > MAX_TEXT {
            return Err(bad("length", &text.len().to_string(), format!("at most {MAX_TEXT}")));
        }
        let parsed = |field: &Field, text: &str| {
            field.parse(text).ok_or_else(|| bad(field.name, text, field.allowed()))
        };
        let weekdays = parsed(&DAYS_OF_WEEK, weekday)?;
        let schedule = Schedule {
            text: words.join(" ").into(),
            minutes: parsed(&MINUTES, minute)?,
            hours: parsed(&HOURS, hour)?,
            days: parsed(&DAYS, day)?,
            months: parsed(&MONTHS_OF_YEAR, month)?,
            weekdays: (weekdays | weekdays >> 7) & 0x7f,
        };
        if schedule.has_any_day() {
            Ok(schedule)
        } else {
            Err(bad(DAYS.name, day, format!("a day that a month in {month:?} has")))
        }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    fn is_any_weekday(&self) -> bool {
        self.weekdays == 0x7f
    }

    /// False for 30 February, for instance, which is in no year.
    fn has_any_day(&self) -> bool {
        const LEAP: i32 = 2000;
        let has = |month| (1..=days_in_month(month, LEAP)).any(|day| self.days >> day & 1 == 1);
        let months = (1..=12u8).filter(|month| self.months >> month & 1 == 1);
        !self.is_any_weekday() || months.flat_map(Month::try_from).any(has)
    }

    /// Whether `at` is a moment of this schedule: the beginning of a matching minute.
    #[must_use]
    pub fn contains(&self, at: Time) -> bool {
        let minute = at.0 / MINUTE;
        at.0.is_multiple_of(MINUTE)
            && self.matches_day(minute / DAY)
            && self.hours >> (minute % DAY / 60) & 1 == 1
            && self.minutes >> (minute % 60) & 1 == 1
    }

    /// The first moment after `at`; [`Time::NEVER`] if there is none before the end of time.
    #[must_use]
    pub fn next_after(&self, at: Time) -> Time {
        let mut minute = at.0 / MINUTE + 1;
        for _ in 0..=MAX_DAYS_BETWEEN {
            let day = minute / DAY;
            if self.matches_day(day)
                && let Some(found) = (minute % DAY..DAY).find(|minute| self.matches_time(*minute))
            {
                return (day * DAY + found).checked_mul(MINUTE).map_or(Time::NEVER, Time);
            }
            minute = (day + 1) * DAY;
        }
        Time::NEVER
    }

    /// The last moment that is not after `at`, if there has been one since 1970.
    #[must_use]
    pub fn latest_until(&self, at: Time) -> Option<Time> {
        let mut minute = at.0 / MINUTE;
        for _ in 0..=MAX_DAYS_BETWEEN {
            let day = minute / DAY;
            if self.matches_day(day)
                && let Some(found) =
                    (0..=minute % DAY).rev().find(|minute| self.matches_time(*minute))
            {
                return Some(Time((day * DAY + found) * MINUTE));
            }
            minute = (day * DAY).checked_sub(1)?;
        }
        None
    }

    fn matches_time(&self, minute: u64) -> bool {
        self.hours >> (minute / 60) & 1 == 1 && self.minutes >> (minute % 60) & 1 == 1
    }

    /// `day` counts from 1 January 1970.
    fn matches_day(&self, day: u64) -> bool {
        let Some(date) = day.checked_mul(DAY).and_then(minute_to_datetime) else { return false };
        let on_date = self.days >> date.day() & 1 == 1;
        let on_weekday = self.weekdays >> date.weekday().number_days_from_sunday() & 1 == 1;
        let either = self.days != DAYS.all() && !self.is_any_weekday();
        let holds = if either { on_date || on_weekday } else { on_date && on_weekday };
        holds && self.months >> u8::from(date.month()) & 1 == 1
    }
}

/// The beginning of a minute counted from 1 January 1970; `None` after the year 9999.
fn minute_to_datetime(minute: u64) -> Option<OffsetDateTime> {
    let seconds = i64::try_from(minute).ok()?.checked_mul(60)?;
    OffsetDateTime::from_unix_timestamp(seconds).ok()
}

/// A moment as it is written in names of runs: `202602281430`. One beyond the calendar is written
/// as its number of milliseconds, which is part of no name.
#[must_use]
pub fn stamp(at: Time) -> String {
    let Some(at) = minute_to_datetime(at.0 / MINUTE) else { return format!("{} ms", at.0) };
    let (year, month, day) = at.to_calendar_date();
    let month = u8::from(month);
    format!("{year:04}{month:02}{day:02}{:02}{:02}", at.hour(), at.minute())
}

impl TryFrom<String> for Schedule {
    type Error = InvalidSchedule;
    fn try_from(text: String) -> Result<Schedule, InvalidSchedule> {
        Schedule::new(&text)
    }
}

impl From<Schedule> for String {
    fn from(schedule: Schedule) -> String {
        schedule.text.as_ref().to_owned()
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.text)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Schedule {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Schedule".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "minute hour day-of-month month day-of-week, in UTC",
            "maxLength": MAX_TEXT,
            "pattern": r"^\s*\S+(\s+\S+){4}\s*$",
            "examples": ["*/15 * * * *", "30 2 * * mon-fri"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moments known from elsewhere (`date -u -d ... +%s`), in seconds.
    const Y2000_FEB_29: u64 = 951_782_400;
    const Y2026_NOV_15_SUNDAY: u64 = 1_794_700_800;
    const Y2096_MAR_1: u64 = 3_981_398_400;

    /// The moments that follow `from`, as stamps.
    fn check(text: &str, from: u64, want: &[&str]) {
        let schedule = Schedule::new(text).unwrap();
        let mut at = Time(from * 1000);
        let mut got = Vec::new();
        for _ in want {
            at = schedule.next_after(at);
            assert!(schedule.contains(at), "{text} at {}", at.0);
            // Backwards from just before the next one, and from the moment itself.
            assert_eq!(schedule.latest_until(at), Some(at));
            let before_next = Time(schedule.next_after(at).0 - 1);
            assert_eq!(schedule.latest_until(before_next), Some(at), "{text}");
            got.push(stamp(at));
        }
        assert_eq!(got, want, "{text}");
    }

    #[test]
    fn known_dates() {
        assert_eq!(stamp(Time(0)), "197001010000");
        assert_eq!(stamp(Time(Y2000_FEB_29 * 1000)), "200002290000");
        assert_eq!(stamp(Time((Y2000_FEB_29 + 86_400) * 1000 - 1)), "200002292359");
        assert_eq!(stamp(Time((Y2000_FEB_29 + 86_400) * 1000)), "200003010000");
        assert_eq!(stamp(Time(Y2026_NOV_15_SUNDAY * 1000)), "202611150000");
        assert_eq!(stamp(Time(4_107_542_399_000)), "210002282359");
        assert_eq!(stamp(Time(4_107_542_400_000)), "210003010000");
        assert_eq!(stamp(Time(253_402_300_799_999)), "999912312359");
        assert_eq!(stamp(Time(253_402_300_800_000)), "253402300800000 ms");
    }

    #[test]
    fn moments_follow_each_other() {
        let sunday = Y2026_NOV_15_SUNDAY;
        check("* * * * *", sunday, &["202611150001", "202611150002"]);
        check("*/15 * * * *", sunday - 1, &["202611150000", "202611150015", "202611150030"]);
        check("30 2 * * mon-fri", sunday, &["202611160230", "202611170230"]);
        check("0 0 * * 7", sunday, &["202611220000", "202611290000"]);
        check("0 0 * * 0", sunday - 1, &["202611150000"]);
        check("0 12 1,15 * *", sunday, &["202611151200", "202612011200", "202612151200"]);
        check("5 4 31 * *", sunday, &["202612310405", "202701310405", "202703310405"]);
        check("0 0 1 jan *", sunday, &["202701010000", "202801010000"]);
        check("10-20/5,59 23 * * *", sunday, &["202611152310", "202611152315", "202611152320"]);
        // Either of two restricted days.
        check("0 0 20 * fri", sunday, &["202611200000", "202611270000", "202612040000"]);
        check("0 0 18 * fri", sunday, &["202611180000", "202611200000"]);
    }

    #[test]
    fn leap_days_come_when_they_come() {
        let leap = "0 0 29 2 *";
        check(leap, Y2000_FEB_29 - 1, &["200002290000", "200402290000", "200802290000"]);
        // 2100 is no leap year: the longest wait.
        check(leap, Y2096_MAR_1, &["210402290000", "210802290000"]);
        assert_eq!(Schedule::new("* * * * *").unwrap().next_after(Time::NEVER), Time::NEVER);
        assert_eq!(Schedule::new(leap).unwrap().latest_until(Time(5)), None);
        // The calendar ends with the year 9999.
        let (yearly, last) = (Schedule::new("0 0 1 jan *").unwrap(), Time(253_370_764_800_000));
        assert_eq!(
            (yearly.next_after(Time(last.0 - 1)), yearly.next_after(last)),
            (last, Time::NEVER)
        );
        assert_eq!(stamp(last), "999901010000");
    }

    #[test]
    fn what_means_nothing_is_refused_by_field() {
        let check = |text: &str, want: &str| {
            let error = Schedule::new(text).unwrap_err().to_string();
            assert!(error.contains(want), "{error:?} does not say {want:?}");
        };
        check("* * * *", "number of fields \"4\" is not valid; allowed: five");
        check("60 * * * *", "minute \"60\" is not valid; allowed: *, 0 to 59");
        check("* 24 * * *", "hour \"24\"");
        check("* * 0 * *", "day of month \"0\" is not valid; allowed: *, 1 to 31");
        check("* * * 13 *", "month \"13\" is not valid; allowed: *, 1 to 12, jan to dec");
        check("* * * * 8", "day of week \"8\"");
        check("5-1 * * * *", "minute \"5-1\"");
        check("*/0 * * * *", "minute \"*/0\"");
        check("5/2 * * * *", "minute \"5/2\"");
        check("1,,2 * * * *", "minute \"1,,2\"");
        check("+5 * * * *", "minute \"+5\"");
        check("0 0 30 2 *", "day of month \"30\" is not valid; allowed: a day that a month");
        check("0 0 31 4,6,9,11 *", "a day that a month");
        assert!(Schedule::new("0 0 30 2 mon").is_ok(), "Mondays in February exist");
        check(&format!("{} * * * *", "1,".repeat(200)), "length \"408\" is not valid");
        let text = Schedule::new(" 0   3 * * 1-5 ").unwrap();
        assert_eq!(text.as_str(), "0 3 * * 1-5");
    }
}
