//! Panic and restart counters of this process, for its metrics page. The counters are global to the
//! process, because code that panics is never sure to hold a handle to anything.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

static PANICS: AtomicU64 = AtomicU64::new(0);
static HANDLER_PANICS: AtomicU64 = AtomicU64::new(0);
static RESTARTS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

pub(crate) fn add_panic() {
    PANICS.fetch_add(1, Ordering::Relaxed);
}

/// Counts a restart; returns the new count.
pub(crate) fn add_restart(task: &'static str) -> u64 {
    let mut all = RESTARTS.lock().unwrap_or_else(PoisonError::into_inner);
    let count = all.entry(task).or_default();
    *count += 1;
    *count
}

/// A request was answered with an error because its handler panicked.
pub fn note_handler_panic() {
    HANDLER_PANICS.fetch_add(1, Ordering::Relaxed);
}

/// Panics of all kinds, because panics are reported together in one metric.
#[must_use]
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

#[must_use]
pub fn handler_panics() -> u64 {
    HANDLER_PANICS.load(Ordering::Relaxed)
}

/// Restarts by task.
#[must_use]
pub fn restarts() -> BTreeMap<&'static str, u64> {
    RESTARTS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
