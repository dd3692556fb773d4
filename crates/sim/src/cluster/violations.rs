//! Violations in a simulated world besides broken promises.

use cellwright_supervise::{Supervisor, lock};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The first violation: an agent disobeyed, or something panicked.
#[derive(Clone, Default)]
pub struct ViolationLog(Arc<Mutex<Option<String>>>);

impl ViolationLog {
    pub(super) fn record(&self, message: String) {
        lock(&self.0).get_or_insert(message);
    }

    /// A supervisor that records tasks which end when they should not.
    pub(super) fn supervisor(&self, of: String) -> Supervisor {
        let violations = self.clone();
        Supervisor::with_hook(Arc::new(move |why| violations.record(format!("{of}: {why}"))))
    }

    /// The same for a replica, until its own disk makes it stop: a process would have ended then,
    /// with everything in it.
    pub(super) fn replica_supervisor(&self, of: String, failed: Arc<AtomicBool>) -> Supervisor {
        let violations = self.clone();
        Supervisor::with_hook(Arc::new(move |why| {
            if !failed.load(Ordering::SeqCst) {
                violations.record(format!("{of}: {why}"));
            }
        }))
    }

    #[must_use]
    pub fn first(&self) -> Option<String> {
        lock(&self.0).clone()
    }
}
