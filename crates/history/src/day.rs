//! Days, UTC, as text: their text order is their order in time.

use time::{Date, OffsetDateTime};

pub const MILLIS: u64 = 86_400_000;

/// `2026-11-15`. Times beyond the calendar count as the last day of the year 9999.
#[must_use]
pub fn day_of(millis: u64) -> String {
    let seconds = i64::try_from(millis / 1000).unwrap_or(i64::MAX);
    let date = OffsetDateTime::from_unix_timestamp(seconds).map_or(Date::MAX, |at| at.date());
    format!("{:04}-{:02}-{:02}", date.year(), u8::from(date.month()), date.day())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_begin_at_midnight_and_sort_as_text() {
        assert_eq!(day_of(0), "1970-01-01");
        assert_eq!(day_of(MILLIS - 1), "1970-01-01");
        assert_eq!(day_of(MILLIS), "1970-01-02");
        assert_eq!(day_of(1_794_787_200_000), "2026-11-16");
        assert_eq!(day_of(u64::MAX), "9999-12-31");
    }
}
