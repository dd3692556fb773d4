//! The boot clock and the ID of this boot. All times of agents and shims are milliseconds on the
//! boot clock, which goes on while the machine sleeps and cannot be set: leases are safe on it, and
//! both sides read the same one.

use rustix::time::{ClockId, clock_gettime};

/// The kernel's file with the boot ID.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Milliseconds since the machine booted.
#[must_use]
pub fn now() -> u64 {
    let at = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(at.tv_sec).unwrap_or(0);
    seconds * 1000 + u64::try_from(at.tv_nsec).unwrap_or(0) / 1_000_000
}

/// Milliseconds since 1970 by the clock of the machine, which can be set: for people, to say when
/// something was written, and for no decision.
#[must_use]
pub fn wall() -> u64 {
    let at = clock_gettime(ClockId::Realtime);
    let seconds = u64::try_from(at.tv_sec).unwrap_or(0);
    seconds * 1000 + u64::try_from(at.tv_nsec).unwrap_or(0) / 1_000_000
}

/// The kernel's ID of this boot.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn boot_id() -> std::io::Result<String> {
    std::fs::read_to_string(BOOT_ID).map(|text| text.trim().to_owned())
}
