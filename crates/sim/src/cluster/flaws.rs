//! What goes wrong in a simulated world besides broken promises.

use cellwright_supervise::{Supervisor, lock};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The first thing that was seen to go wrong: an agent disobeyed, or something panicked.
#[derive(Clone, Default)]
pub struct Flaws(Arc<Mutex<Option<String>>>);

impl Flaws {
    pub(super) fn note(&self, what: String) {
        lock(&self.0).get_or_insert(what);
    }

    /// One under which nothing ends that was not to.
    pub(super) fn supervisor(&self, of: String) -> Supervisor {
        let flaws = self.clone();
        Supervisor::telling(Arc::new(move |why| flaws.note(format!("{of}: {why}"))))
    }

    /// The same of a replica, until its own disk tells it to stop: a process would have ended then,
    /// with all that is in it.
    pub(super) fn replica_supervisor(&self, of: String, failed: Arc<AtomicBool>) -> Supervisor {
        let flaws = self.clone();
        Supervisor::telling(Arc::new(move |why| {
            if !failed.load(Ordering::SeqCst) {
                flaws.note(format!("{of}: {why}"));
            }
        }))
    }

    #[must_use]
    pub fn first(&self) -> Option<String> {
        lock(&self.0).clone()
    }
}
