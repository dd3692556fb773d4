//! Which clock a replica asks for the time of day. Elapsed time (leases, silence, timeouts) is
//! tokio's monotonic clock, which the simulator pauses; the wall clock dates certificates and leads
//! log time (`crates/control/src/log_time.rs`). Whatever is compared with rows is compared with log
//! time (`crates/master/src/replicated_state.rs`).

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
