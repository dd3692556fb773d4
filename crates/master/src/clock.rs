//! The wall clock of a replica. Elapsed time (leases, silence, timeouts) is measured with tokio's
//! monotonic clock, which the simulator pauses; the wall clock dates certificates and drives log
//! time (`crates/control/src/log_time.rs`). Times that are compared with rows are log times
//! (`crates/master/src/replicated_state.rs`).

use cellwright_cell::time::Time;

pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since the Unix epoch.
    fn wall_time(&self) -> Time;
}

/// The machine's own clock.
pub struct SystemClock;

impl Clock for SystemClock {
    fn wall_time(&self) -> Time {
        cellwright_identity::clock::wall()
    }
}
