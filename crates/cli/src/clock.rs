//! The one place where the time of day is asked for: people are told how long ago something was,
//! and when it is tried again, by their own clock.
#![expect(clippy::disallowed_types, reason = "the edge of the program: what is shown is of now")]

use cellwright_cell::time::Time;
use std::time::{SystemTime, UNIX_EPOCH};

pub fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
