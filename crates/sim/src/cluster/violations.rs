//! What goes wrong in a simulated world besides broken promises.

use cellwright_supervise::{Supervisor, lock};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The first thing that was seen to go wrong: an agent disobeyed, or something panicked.
#[derive(Clone, Default)]
pub struct ViolationLog(Arc<Mutex<Option<String>>>);

impl ViolationLog {
    pub(super) fn record(&self, message: String) {
        lock(&self.0).get_or_insert(message);
    }

    /// One under which nothing ends that was not to.
    pub(super) fn supervisor(&self, of: String) -> Supervisor {
        let violations = self.clone();
        Supervisor::with_hook(Arc::new(move |why| violations.record(format!("{of}: {why}"))))
    }

    /// The same of a replica, until its own disk tells it to stop: a process would have ended then,
    /// with all that is in it.
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
