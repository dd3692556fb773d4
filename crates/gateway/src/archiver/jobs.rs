//! Jobs that have ended and are not in the archive yet.
//!
//! A job is made into bytes when it is first seen to have ended. Most jobs stay on the record until
//! they are archived, but an owner who is at the limit of his jobs, a cron that keeps few runs, and
//! a user who is removed take theirs off it at once: these are written all the same.

use super::Archive;
use crate::http::archived_job::archived_job;
use bytes::Bytes;
use cellwright_archive::names::{ARCHIVED_BEFORE, JobObject};
use cellwright_archive::{StoreError, compress};
use cellwright_cell::id::JobId;
use cellwright_cell::name::Name;
use cellwright_cell::state::State;
use cellwright_cell::time::{Span, Time};
use futures::{StreamExt, stream};
use std::collections::{BTreeMap, BTreeSet};

/// Jobs that are written in one round, and of these at a time.
const PER_ROUND: usize = 256;
const AT_A_TIME: usize = 4;
/// Bytes of jobs that are held here; of more than that only the names, while their rows last.
const MAX_HELD_BYTES: usize = 64 << 20;
/// How far the archive has come is told to the store so often.
const TELL_EVERY: Span = Span::seconds(10);

/// An end of a job.
type End = (Time, JobId);

struct WaitingJob {
    object: JobObject,
    content: Option<Bytes>,
}

#[derive(Default)]
pub(super) struct JobBacklog {
    /// What ended before was archived under an earlier leader. Absent until the store was asked.
    floor: Option<Time>,
    waiting: BTreeMap<End, WaitingJob>,
    /// Those on the record that were written under this leader.
    done: BTreeSet<End>,
    held_bytes: usize,
    /// How far the archive has come, and what of it the store was told.
    before: Time,
    told: Time,
    pub lost: u64,
}

impl JobBacklog {
    /// Asks the store how far the leader before has come.
    pub async fn begin(&mut self, archive: &Archive) -> Result<(), StoreError> {
        if self.floor.is_none() {
            let found = archive.store().get(ARCHIVED_BEFORE).await?;
            let text = found.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
            // What is no time is as good as nothing: all is written again.
            let floor = text.and_then(|text| text.parse().ok()).map_or(Time::ZERO, Time);
            self.floor = Some(floor);
            self.waiting.retain(|(ended, _), _| *ended >= floor);
            self.held_bytes = self.waiting.values().map(WaitingJob::held).sum();
        }
        Ok(())
    }

    pub fn has_begun(&self) -> bool {
        self.floor.is_some()
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether there is more to do at once.
    pub fn has_more(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub fn oldest_waiting(&self) -> Option<Time> {
        self.waiting.first_key_value().map(|((ended, _), _)| *ended)
    }

    pub fn note_progress(&mut self, before: Time) {
        self.before = self.before.max(before);
    }

    /// Takes up the jobs that have ended.
    pub fn observe(&mut self, cell: &Name, state: &State) {
        let floor = self.floor.unwrap_or(Time::ZERO);
        let mut present = BTreeSet::new();
        for (id, job) in state.jobs().iter() {
            let Some(ended) = job.ended_at.filter(|ended| *ended >= floor) else { continue };
            let end = (ended, id);
            present.insert(end);
            if self.done.contains(&end) {
                continue;
            }
            let held = self.held_bytes;
            let waiting = self.waiting.entry(end).or_insert_with(|| {
                let content = None;
                let key = state.job_key(id);
                let key = key.unwrap_or_else(|| unnamed(cell, job));
                let submitted = job.submitted_at;
                WaitingJob { object: JobObject { job: key, submitted, ended }, content }
            });
            if waiting.content.is_none() && held < MAX_HELD_BYTES {
                waiting.content = render(cell, state, id);
                self.held_bytes += waiting.held();
            }
        }
        self.done.retain(|end| present.contains(end));
        let before = self.waiting.len();
        self.waiting.retain(|end, job| job.content.is_some() || present.contains(end));
        self.lost += (before - self.waiting.len()) as u64;
    }

    /// Writes the oldest of them. Returns how many.
    pub async fn write(&mut self, archive: &Archive) -> Result<u64, StoreError> {
        let ready = self
            .waiting
            .iter()
            .filter_map(|(end, job)| Some((*end, job.object.name(), job.content.clone()?)));
        let ready: Vec<(End, String, Bytes)> = ready.take(PER_ROUND).collect();
        let put = |(end, name, content): (End, String, Bytes)| async move {
            archive.store().put(&name, content).await.map(|()| end)
        };
        let mut results = stream::iter(ready).map(put).buffer_unordered(AT_A_TIME);
        let (mut written, mut failed) = (0, None);
        while let Some(result) = results.next().await {
            match result {
                Ok(end) => {
                    written += 1;
                    if let Some(job) = self.waiting.remove(&end) {
                        self.held_bytes -= job.held();
                    }
                    self.done.insert(end);
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        drop(results);
        if let Some(error) = failed {
            return Err(error);
        }
        self.tell(archive).await?;
        Ok(written)
    }

    /// Tells the store how far the archive has come, for the next leader.
    async fn tell(&mut self, archive: &Archive) -> Result<(), StoreError> {
        let is_first = self.told == Time::ZERO && self.before > Time::ZERO;
        if is_first || self.before.since(self.told) >= TELL_EVERY {
            let text = Bytes::from(format!("{}\n", self.before.0));
            archive.store().put(ARCHIVED_BEFORE, text).await?;
            self.told = self.before;
        }
        Ok(())
    }
}

impl WaitingJob {
    fn held(&self) -> usize {
        self.content.as_ref().map_or(0, Bytes::len)
    }
}

/// A job whose owner has no row does not occur in a checked state.
fn unnamed(cell: &Name, job: &cellwright_cell::job::Job) -> cellwright_cell::name::JobKey {
    cellwright_cell::name::JobKey { user: cell.clone(), job: job.name.clone() }
}

fn render(cell: &Name, state: &State, id: JobId) -> Option<Bytes> {
    let job = archived_job(cell, state, id)?;
    Some(compress(&serde_json::to_vec(&job).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archiver::ArchiveConfig;
    use cellwright_api::types::ArchivedJob;
    use cellwright_archive::{ArchivePlace, decompress};
    use cellwright_cell::command::Command;
    use cellwright_control::controller::testing::{Cell, job, key, name};
    use std::path::PathBuf;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(label: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("jobs-{label}-{}", std::process::id()));
            drop(std::fs::remove_dir_all(&path));
            Scratch(path)
        }

        fn archive(&self) -> Archive {
            let place = ArchivePlace::Folder(self.0.clone());
            let (keep_jobs, keep_logs, keep_history) = (None, None, None);
            let wait = Span::seconds(1);
            let config = ArchiveConfig { place, wait, keep_jobs, keep_logs, keep_history };
            Archive::new(name("aa"), config)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            drop(std::fs::remove_dir_all(&self.0));
        }
    }

    fn ended(cell: &mut Cell, job_name: &str) {
        cell.submit(&job(job_name, 1));
        cell.ok(Command::StopJob { job: key(job_name), expect: None });
    }

    async fn round(
        backlog: &mut JobBacklog,
        archive: &Archive,
        cell: &Cell,
    ) -> Result<u64, String> {
        backlog.observe(&name("aa"), &cell.state);
        let text = |why: StoreError| why.to_string();
        backlog.begin(archive).await.map_err(text)?;
        backlog.write(archive).await.map_err(text)
    }

    async fn names(archive: &Archive) -> Vec<String> {
        let found = archive.store().list("jobs/", "", 100).await.unwrap();
        found.into_iter().map(|object| object.name).collect()
    }

    #[tokio::test]
    async fn a_job_that_ended_is_written_once_and_says_what_it_was() {
        let scratch = Scratch::new("once");
        let archive = scratch.archive();
        let mut cell = Cell::with_machines(1);
        ended(&mut cell, "first");
        cell.submit(&job("lives", 1));
        let mut backlog = JobBacklog::default();
        assert_eq!(round(&mut backlog, &archive, &cell).await, Ok(1));
        assert_eq!(round(&mut backlog, &archive, &cell).await, Ok(0));
        let stored = names(&archive).await;
        assert_eq!(stored.len(), 1);
        let object = JobObject::parse(&stored[0]).unwrap();
        assert_eq!(object.job, key("first"));
        let bytes = archive.store().get(&stored[0]).await.unwrap().unwrap();
        let text = decompress(&stored[0], &bytes, 1 << 20).unwrap();
        let read: ArchivedJob = serde_json::from_slice(&text).unwrap();
        assert_eq!((read.job.name.as_str(), read.tasks.len()), ("first", 1));
        assert_eq!(read.job.ended_at, Some(object.ended));
        assert_eq!(read.versions.len(), 1);
        // A new leader knows nothing of that, writes it again, and doubles nothing.
        assert_eq!(round(&mut JobBacklog::default(), &archive, &cell).await, Ok(1));
        assert_eq!(names(&archive).await, stored);
    }

    #[tokio::test]
    async fn a_new_leader_begins_where_the_store_was_told_and_not_later() {
        let scratch = Scratch::new("floor");
        let archive = scratch.archive();
        let mut cell = Cell::with_machines(1);
        cell.now = 1_000_000;
        ended(&mut cell, "first");
        let mut backlog = JobBacklog::default();
        round(&mut backlog, &archive, &cell).await.unwrap();
        cell.submit(&job("lives", 1));
        backlog.note_progress(cell.state.now());
        round(&mut backlog, &archive, &cell).await.unwrap();
        ended(&mut cell, "second");
        let mut next = JobBacklog::default();
        assert_eq!(round(&mut next, &archive, &cell).await, Ok(1), "the second alone");
        assert_eq!(names(&archive).await.len(), 2);
    }

    #[tokio::test]
    async fn what_a_store_did_not_take_is_kept_and_written_when_it_is_back() {
        let scratch = Scratch::new("away");
        let archive = scratch.archive();
        std::fs::write(&scratch.0, "no folder").unwrap();
        let mut cell = Cell::with_machines(1);
        ended(&mut cell, "first");
        let mut backlog = JobBacklog::default();
        assert!(round(&mut backlog, &archive, &cell).await.is_err());
        assert!(!backlog.has_begun());
        // The record forgets it meanwhile.
        cell.ok(Command::PurgeJobs { ended_before: Time::NEVER });
        assert_eq!(cell.state.jobs().len(), 0);
        std::fs::remove_file(&scratch.0).unwrap();
        assert_eq!(round(&mut backlog, &archive, &cell).await, Ok(1));
        assert_eq!((backlog.waiting(), backlog.lost, backlog.held_bytes), (0, 0, 0));
        assert_eq!(names(&archive).await.len(), 1);
    }

    #[tokio::test]
    async fn what_does_not_fit_is_lost_only_with_its_row() {
        let scratch = Scratch::new("lost");
        let archive = scratch.archive();
        let mut cell = Cell::with_machines(1);
        ended(&mut cell, "first");
        let mut backlog = JobBacklog { held_bytes: MAX_HELD_BYTES, ..JobBacklog::default() };
        backlog.observe(&name("aa"), &cell.state);
        assert_eq!((backlog.waiting(), backlog.lost), (1, 0));
        assert_eq!(backlog.write(&archive).await.unwrap(), 0);
        cell.ok(Command::PurgeJobs { ended_before: Time::NEVER });
        backlog.observe(&name("aa"), &cell.state);
        assert_eq!((backlog.waiting(), backlog.lost), (0, 1));
    }
}
