//! The directory as shared within a process: one writer follows the log, many readers query.

use crate::directory::Directory;
use cellwright_cell::event::Event;
use cellwright_cell::state::State;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::watch;

/// Cheap to clone; clones are the same directory.
#[derive(Clone)]
pub struct SharedDirectory {
    directory: Arc<RwLock<Directory>>,
    version: Arc<watch::Sender<u64>>,
}

impl Default for SharedDirectory {
    fn default() -> SharedDirectory {
        let version = Arc::new(watch::Sender::new(0));
        SharedDirectory { directory: Arc::default(), version }
    }
}

impl SharedDirectory {
    /// Replaces the content with that of a state: after a snapshot, at a restart.
    pub fn reset(&self, state: &State, index: u64) {
        let fresh = Directory::from_state(state, index);
        *self.directory.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        self.version.send_replace(index);
    }

    /// Applies one entry of the log.
    pub fn apply_events(&self, state: &State, events: &[Event], index: u64) {
        let mut directory = self.directory.write().unwrap_or_else(PoisonError::into_inner);
        directory.apply_events(state, events, index);
        drop(directory);
        self.version.send_replace(index);
    }

    /// Reads without copying. Keep it short: entries wait meanwhile.
    pub fn read<T>(&self, read: impl FnOnce(&Directory) -> T) -> T {
        read(&self.directory.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notifies of the log index whenever it moves.
    #[must_use]
    pub fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}
