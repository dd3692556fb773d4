//! The record logs that are written beside the state as entries are applied: events for watches and
//! history, and the audit log of requests. Both follow from the log, so they are synced only before
//! the log is purged; when entries are applied again after a crash, those already recorded are
//! skipped.

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

/// How often old segments are trimmed, in log time.
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

    /// Records one entry; `state` is the one after it.
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

    /// Called before the log purges what it has up to `covered`, which was recorded here.
    pub fn sync(&self, covered: u64) {
        self.stop_on_error(self.events.sync(covered), "events");
        self.stop_on_error(self.audit.sync(covered), "audit");
    }

    /// Runs work that blocks on the disk where the disk wants it to run.
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

    /// Ends the replica: going on would make it differ from the others.
    pub fn stop(&self, why: &str) {
        (self.on_fatal)(why);
    }

    fn stop_on_error(&self, done: io::Result<()>, operation: &str) {
        if let Err(error) = done {
            (self.on_fatal)(&format!("{operation} could not be written: {error}"));
        }
    }
}
