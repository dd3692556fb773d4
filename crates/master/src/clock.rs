//! Where log time comes from. Elapsed time (leases, silence, timeouts) is tokio's monotonic clock,
//! which the simulator pauses; the wall clock only dates log entries, and the core never lets it
//! run backwards.

#![expect(clippy::disallowed_types, reason = "this is the edge at which the time of day enters")]

use cellwright_cell::time::Time;
use std::time::{SystemTime, UNIX_EPOCH};

pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since the Unix epoch.
    fn wall(&self) -> Time;
}

/// The machine's own clock.
pub struct SystemClock;

impl Clock for SystemClock {
    fn wall(&self) -> Time {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}
