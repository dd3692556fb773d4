//! The writer of the archive: the leading master puts every job that has ended, the output that its
//! job asked to keep, and days of history that are files already into the store, and says to the
//! core how far it has come. No job is forgotten before it is in there (`purge.rs` of `control`).
//!
//! What is on its way is in the state itself and in the store, never only here: a new leader takes
//! up where the last one told the store that it was, and writes again what it is not sure of, under
//! the same names. A store that fails is tried again and again, later and later; jobs wait on the
//! record meanwhile, for as long as is configured, and everything else goes on.
//!
//! Rejected: a durable mark in each job's row. It would be one more command for every job that
//! ends, and says no more than the time up to which all of them are there.

mod days;
mod jobs;
mod logs;
pub mod restore;
mod retention;

use crate::http::master_services::MasterServices;
use cellwright_api::client::agent::AgentDialler;
use cellwright_api::types::ArchiveStatus;
use cellwright_archive::{ArchivePlace, ObjectStore, StoreError};
use cellwright_cell::name::Name;
use cellwright_cell::time::{Span, Time};
use cellwright_control::input::{ArchiveProgress, ArchiveTrouble};
use cellwright_master::handle::MasterHandle;
use cellwright_store::Role;
use cellwright_supervise::{failpoint, lock};
use days::DayBacklog;
use jobs::JobBacklog;
use logs::LogBacklog;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Between two looks at what has ended.
const MIN_PAUSE: Duration = Duration::from_millis(500);
/// The same when nothing happens: agents that were silent may have come back.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// After a failure, doubled with each further one.
const MIN_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// A shorter trouble is none that a person should look at.
const MIN_TROUBLE: Span = Span::seconds(3);
/// What was lost is an alarm for so long, and in the status for as long as this master leads.
const LOSS_IS_TROUBLE: Duration = Duration::from_secs(24 * 3600);

/// What the masters are told of the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveConfig {
    pub place: ArchivePlace,
    /// How much longer jobs wait for an archive that cannot be written.
    pub wait: Span,
    /// `None`: for ever.
    pub keep_jobs: Option<Span>,
    pub keep_logs: Option<Span>,
    pub keep_history: Option<Span>,
}

impl ArchiveConfig {
    /// One that keeps everything for ever, and is waited for for a week.
    #[must_use]
    pub fn keeping_all(place: ArchivePlace) -> ArchiveConfig {
        let wait = Span::seconds(7 * 24 * 3600);
        ArchiveConfig { place, wait, keep_jobs: None, keep_logs: None, keep_history: None }
    }
}

/// The archive of the cell, for its writer and its readers. Cheap to clone.
#[derive(Clone)]
pub struct Archive(Arc<ArchiveParts>);

struct ArchiveParts {
    cell: Name,
    config: ArchiveConfig,
    store: Arc<dyn ObjectStore>,
    status: Mutex<ArchiveStatus>,
}

impl Archive {
    #[must_use]
    pub fn new(cell: Name, config: ArchiveConfig) -> Archive {
        let store = config.place.open(&cell);
        let status = ArchiveStatus { place: Some(store.place()), ..ArchiveStatus::default() };
        Archive(Arc::new(ArchiveParts { cell, config, store, status: Mutex::new(status) }))
    }

    #[must_use]
    pub fn store(&self) -> &dyn ObjectStore {
        self.0.store.as_ref()
    }

    /// How it is doing; only the leader knows.
    #[must_use]
    pub fn status(&self) -> ArchiveStatus {
        lock(&self.0.status).clone()
    }

    fn edit_status(&self, change: impl FnOnce(&mut ArchiveStatus)) {
        change(&mut lock(&self.0.status));
    }
}

/// What the writer works with.
#[derive(Clone)]
pub struct Archiver {
    pub archive: Archive,
    pub handle: MasterHandle,
    pub services: Arc<MasterServices>,
    pub agents: AgentDialler,
    /// The folder of this replica's history.
    pub history: PathBuf,
}

impl Archiver {
    /// Runs for as long as the replica runs; writes while it leads.
    pub async fn run(self) {
        let mut status = self.handle.replica().watch();
        loop {
            let leads = status.wait_for(|status| status.role == Role::Leader).await;
            let Ok(term) = leads.map(|status| status.term) else { return };
            Leadership::new(self.clone(), term).run().await;
        }
    }
}

/// What is known under one leader.
struct Leadership {
    archiver: Archiver,
    term: u64,
    jobs: JobBacklog,
    logs: LogBacklog,
    days: DayBacklog,
    retention: retention::Retention,
    failing_since: Option<Instant>,
    /// How many jobs and logs were lost, and when that number last rose.
    lost: (u64, Option<Instant>),
    backoff: Duration,
}

impl Leadership {
    fn new(archiver: Archiver, term: u64) -> Leadership {
        let place = Some(archiver.archive.store().place());
        archiver.archive.edit_status(|status| {
            *status = ArchiveStatus { place, ..ArchiveStatus::default() };
        });
        Leadership {
            archiver,
            term,
            jobs: JobBacklog::default(),
            logs: LogBacklog::default(),
            days: DayBacklog::default(),
            retention: retention::Retention::default(),
            failing_since: None,
            lost: (0, None),
            backoff: MIN_BACKOFF,
        }
    }

    fn leads(&self) -> bool {
        let status = self.archiver.handle.status();
        status.role == Role::Leader && status.term == self.term
    }

    async fn run(mut self) {
        let mut applied = self.archiver.handle.watch_applied();
        while self.leads() {
            failpoint("archive");
            applied.mark_unchanged();
            let before = self.observe();
            let done = self.write().await;
            self.settle(done.err());
            self.publish(before);
            if self.failing_since.is_some() {
                sleep(self.backoff).await;
                continue;
            }
            sleep(MIN_PAUSE).await;
            if !self.jobs.has_more() {
                // A cell that stops ends this by itself.
                drop(timeout(MAX_PAUSE, applied.changed()).await);
            }
        }
    }

    /// Takes up what has ended. Returns the time before which nothing can end any more.
    fn observe(&mut self) -> Time {
        let view = self.archiver.handle.read();
        self.jobs.observe(&self.archiver.archive.0.cell, &view.state);
        self.logs.observe(&view.state);
        view.state.now()
    }

    /// Writes a part of what waits; the rest has its turn in the next round.
    async fn write(&mut self) -> Result<(), StoreError> {
        let archive = self.archiver.archive.clone();
        self.jobs.begin(&archive).await?;
        let written = self.jobs.write(&archive).await?;
        archive.edit_status(|status| status.jobs_archived += written);
        let written = self.logs.write(&self.archiver).await?;
        archive.edit_status(|status| status.logs_archived += written);
        let written = self.days.write(&archive, &self.archiver).await?;
        archive.edit_status(|status| status.days_archived += written);
        let now = self.archiver.handle.log_time();
        let removed = self.retention.enforce(&archive, now).await?;
        archive.edit_status(|status| status.removed += removed);
        Ok(())
    }

    fn settle(&mut self, error: Option<StoreError>) {
        let now = self.archiver.handle.log_time();
        let archive = &self.archiver.archive;
        match error {
            None => {
                self.failing_since = None;
                self.backoff = MIN_BACKOFF;
                archive.edit_status(|status| {
                    status.last_success = Some(now);
                    status.failing_since = None;
                });
            }
            Some(error) => {
                tracing::error!(%error, "the archive was not written");
                if self.failing_since.is_some() {
                    self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
                }
                self.failing_since.get_or_insert_with(Instant::now);
                archive.edit_status(|status| {
                    status.last_error = Some(error.to_string());
                    status.failing_since.get_or_insert(now);
                });
            }
        }
    }

    /// Says how far the archive has come. `now`: nothing that is not known here ended before.
    fn publish(&mut self, now: Time) {
        let firsts = [self.jobs.oldest_waiting(), self.logs.oldest_waiting()];
        let oldest = firsts.into_iter().flatten().min();
        self.jobs.note_progress(oldest.map_or(now, |oldest| oldest.min(now)));
        // What ended at that very time is known too: in a cell where nothing happens any more it
        // would wait for the next entry. Another entry of the same millisecond is seen in the next
        // round, long before what ended in it is old.
        let before = oldest.unwrap_or(now.plus(Span(1)));
        // Until the first look at the store, all is open.
        let before = if self.jobs.has_begun() { before } else { Time::ZERO };
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let (jobs, logs) = (count(self.jobs.waiting()), count(self.logs.waiting()));
        let lost = self.jobs.lost + self.logs.lost;
        self.archiver.archive.edit_status(|status| {
            status.archived_before = self.jobs.has_begun().then_some(before);
            (status.jobs_waiting, status.logs_waiting) = (jobs, logs);
            status.days_waiting = count(self.days.waiting());
            status.lost = lost;
        });
        let lasts = self.failing_since.map_or(Span::ZERO, |since| {
            Span(u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX))
        });
        if lost > self.lost.0 {
            self.lost = (lost, Some(Instant::now()));
        }
        let was_lost = self.lost.1.is_some_and(|at| at.elapsed() < LOSS_IS_TROUBLE);
        let is_trouble = lasts >= MIN_TROUBLE || was_lost;
        let lost = u32::try_from(lost).unwrap_or(u32::MAX);
        let waiting = jobs.saturating_add(logs);
        let trouble = is_trouble.then_some(ArchiveTrouble { lasts, waiting, lost });
        self.archiver.handle.set_archive_progress(ArchiveProgress { before, trouble });
    }
}
