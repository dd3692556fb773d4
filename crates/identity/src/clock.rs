//! The one place at which the time of day enters a process: masters, agents, schedulers, shims and
//! the command line all read it here. It dates certificates and what people read, reports each
//! part's clock to the masters, and is the source of log time (`crates/control/src/log_time.rs`);
//! no other decision depends on it, because it may jump.
//!
//! A debug build shifts it by the milliseconds in the file that `CELL_CLOCK_OFFSET_FILE` names,
//! read each time, so that tests move the clock of one process, TLS included, while it runs. A
//! release build ignores that variable.

#![expect(clippy::disallowed_types, reason = "the edge at which the time of day enters")]

use cellwright_cell::time::Time;
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch.
#[must_use]
pub fn wall() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    Time(millis.saturating_add_signed(offset()))
}

/// The same, for comparison with file times.
#[must_use]
pub fn system() -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(wall().0)
}

#[cfg(debug_assertions)]
fn offset() -> i64 {
    let Some(file) = std::env::var_os("CELL_CLOCK_OFFSET_FILE") else { return 0 };
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

#[cfg(not(debug_assertions))]
fn offset() -> i64 {
    0
}

/// The current time as rustls reads it.
#[derive(Debug)]
pub struct TlsTime;

impl TimeProvider for TlsTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_millis(wall().0)))
    }
}
