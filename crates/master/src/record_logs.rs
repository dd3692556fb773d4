//! What is written down beside the state as entries are applied: events for watchers and history,
//! and the audit of what people asked for. Both follow from the log, so they are synced only before
//! the log forgets; applied again after a crash, entries that are here already are passed over.

use crate::audit::AuditLog;
use crate::events::EventLog;
use crate::segments::RetentionLimits;
use cellwright_cell::command::{Entry, Verdict};
use cellwright_cell::event::Event;
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
use cellwright_store::{Disk, FatalHook};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Old segments are looked for this often, in log time.
const TRIM_INTERVAL_MILLIS: u64 = 60_000;

pub struct RecordLogs {
    pub events: Arc<EventLog>,
    pub audit: Arc<AuditLog>,
    disk: Arc<dyn Disk>,
    /// A feed with a hole is worse than a replica that starts again from its log.
    on_fatal: FatalHook,
    trimmed_at: AtomicU64,
}

impl RecordLogs {
    /// # Errors
    /// When the files cannot be read.
    pub fn open(
        disk: &Arc<dyn Disk>,
        events: RetentionLimits,
        audit: RetentionLimits,
        on_fatal: FatalHook,
    ) -> io::Result<RecordLogs> {
        Ok(RecordLogs {
            events: Arc::new(EventLog::open(disk.clone(), events)?),
            audit: Arc::new(AuditLog::open(disk.clone(), audit)?),
            disk: disk.clone(),
            on_fatal,
            trimmed_at: AtomicU64::new(0),
        })
    }

    /// Takes down one entry; `state` is the one after it.
    pub fn write(
        &self,
        index: u64,
        entry: &Entry,
        verdicts: &[Verdict],
        events: &[Event],
        state: &State,
    ) {
        let at = state.now();
        self.stop_on_error(self.events.append(index, at, events, state), "events");
        self.stop_on_error(self.audit.append(index, entry, verdicts), "audit");
        self.trim(at);
    }

    /// This replica starts from a snapshot.
    pub fn restore_from_snapshot(&self, index: u64, state: &State) {
        self.stop_on_error(self.events.restore_names(index, state), "events");
        self.stop_on_error(self.audit.skip_to_snapshot(index), "audit");
    }

    /// Before the log forgets what it has up to `covered`, which was taken down here.
    pub fn sync(&self, covered: u64) {
        self.stop_on_error(self.events.sync(covered), "events");
        self.stop_on_error(self.audit.sync(covered), "audit");
    }

    /// Runs work that waits for the disk where the disk wants it to run.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (done, result) = tokio::sync::oneshot::channel();
        self.disk.run_blocking(Box::new(move || drop(done.send(work())))).await;
        result.await.ok()
    }

    fn trim(&self, now: Time) {
        let last = self.trimmed_at.load(Ordering::Relaxed);
        if now.0 < last.saturating_add(TRIM_INTERVAL_MILLIS) {
            return;
        }
        self.trimmed_at.store(now.0, Ordering::Relaxed);
        let trimmed = self.events.trim(now).and_then(|()| self.audit.trim(now));
        if let Err(error) = trimmed {
            tracing::warn!(%error, "old events or audit lines could not be removed");
        }
    }

    /// Going on would make this replica differ from the others.
    pub fn stop(&self, why: &str) {
        (self.on_fatal)(why);
    }

    fn stop_on_error(&self, done: io::Result<()>, operation: &str) {
        if let Err(error) = done {
            (self.on_fatal)(&format!("{operation} could not be written: {error}"));
        }
    }
}
