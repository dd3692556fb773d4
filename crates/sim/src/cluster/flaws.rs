//! What goes wrong in a simulated world besides broken promises.

use cellwright_supervise::{Supervisor, lock};
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

    #[must_use]
    pub fn first(&self) -> Option<String> {
        lock(&self.0).clone()
    }
}
