//! The cache that all watches share: the last events, read and serialized once, and jobs as they
//! are now.
//!
//! A thousand watches that each read the files of the feed after every entry are a thousand threads
//! and a thousand copies of the same text. Here the first one reads for all, and the others take
//! the cached result. A watch that is further behind than the cache reads the files itself.

use super::access::Viewer;
use super::replica_services::{Cursor, EventRecord};
use super::watch::{JobDetail, MAX_BATCH_EVENTS, write_frame};
use super::{Api, records, view};
use bytes::Bytes;
use cellwright_api::error::ApiError;
use cellwright_cell::id::JobId;
use cellwright_cell::label::Labels;
use cellwright_cell::name::Name;
use cellwright_cell::state::State;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of one chunk of a stream. A stalled reader holds this much.
pub(super) const MAX_CHUNK_BYTES: usize = 64 << 10;
/// Limit of cached events.
const MAX_EVENTS: usize = 4096;
const MAX_BYTES: usize = 4 << 20;
/// Entries after which it is not worth catching up: there were no watches for a while.
const MAX_CATCH_UP: u64 = 1024;
/// Limit of cached job renderings.
const MAX_JOB_BYTES: usize = 8 << 20;

/// One event, with its serialized form.
pub(super) struct FeedItem {
    pub record: EventRecord,
    pub text: Bytes,
}

/// A job in its serialized form.
pub(super) struct RenderedJob {
    pub user: Name,
    pub labels: Labels,
    pub json: String,
}

#[derive(Default)]
pub(super) struct Feed {
    recent: tokio::sync::Mutex<RecentEvents>,
    jobs: Mutex<RenderedJobs>,
}

#[derive(Default)]
struct RecentEvents {
    /// Everything after the first cursor up to the second is cached; `None` at first.
    covers: Option<(Cursor, Cursor)>,
    items: VecDeque<Arc<FeedItem>>,
    bytes: usize,
    /// The log index when the files were last read.
    read_index: u64,
}

/// Renderings of jobs at one index of the log.
#[derive(Default)]
struct RenderedJobs {
    index: u64,
    bytes: usize,
    /// By job, detail, and whether the spec is redacted.
    jobs: BTreeMap<(JobId, JobDetail, bool), Arc<RenderedJob>>,
}

/// What followed a cursor in the feed.
pub(super) struct FeedUpdate {
    pub items: Vec<Arc<FeedItem>>,
    pub gap: bool,
}

impl RecentEvents {
    /// Empty so far; a watch that is further behind reads the files until it has caught up.
    fn from_now(applied: u64) -> RecentEvents {
        let now = Cursor::after(applied);
        RecentEvents { covers: Some((now, now)), read_index: applied, ..RecentEvents::default() }
    }

    fn add(&mut self, records: Vec<EventRecord>) {
        for record in records {
            let item = render_item(record);
            self.bytes += item.text.len();
            if let Some((_, to)) = &mut self.covers {
                *to = item.record.cursor;
            }
            self.items.push_back(Arc::new(item));
        }
        while self.items.len() > MAX_EVENTS || self.bytes > MAX_BYTES {
            let Some(dropped) = self.items.pop_front() else { break };
            self.bytes -= dropped.text.len();
            if let Some((from, _)) = &mut self.covers {
                *from = dropped.record.cursor;
            }
        }
    }

    /// One chunk of what follows `cursor`; `None` when that is too long ago.
    fn after(&self, cursor: Cursor) -> Option<Vec<Arc<FeedItem>>> {
        let (from, _) = self.covers.filter(|(from, _)| *from <= cursor)?;
        debug_assert!(self.items.front().is_none_or(|first| first.record.cursor > from));
        let start = self.items.partition_point(|item| item.record.cursor <= cursor);
        Some(take_chunk(self.items.iter().skip(start).cloned()))
    }
}

fn render_item(record: EventRecord) -> FeedItem {
    let mut text = String::new();
    let cursor = record.cursor;
    write_frame(&mut text, "event", Some(cursor), &records::event_view(record.clone()));
    FeedItem { record, text: Bytes::from(text) }
}

/// As many items as fit a chunk, and at least one.
fn take_chunk(items: impl Iterator<Item = Arc<FeedItem>>) -> Vec<Arc<FeedItem>> {
    let (mut chunk, mut bytes) = (Vec::new(), 0);
    for item in items.take(MAX_BATCH_EVENTS) {
        bytes += item.text.len();
        if bytes > MAX_CHUNK_BYTES && !chunk.is_empty() {
            break;
        }
        chunk.push(item);
    }
    chunk
}

impl Api {
    /// One chunk of what followed a cursor in the feed.
    pub(super) async fn feed_after(&self, cursor: Cursor) -> Result<FeedUpdate, ApiError> {
        {
            let mut recent = self.feed.recent.lock().await;
            self.refresh_feed(&mut recent).await?;
            if let Some(items) = recent.after(cursor) {
                return Ok(FeedUpdate { items, gap: false });
            }
        }
        let found = self.events_after(cursor, MAX_BATCH_EVENTS).await?;
        let items = take_chunk(found.items.into_iter().map(render_item).map(Arc::new));
        Ok(FeedUpdate { items, gap: found.gap })
    }

    /// Reads what the feed got since the last refresh.
    async fn refresh_feed(&self, recent: &mut RecentEvents) -> Result<(), ApiError> {
        // Before the files are read: later entries are read by the next refresh.
        let applied = self.handle.replicated().with(|view| view.index);
        if recent.read_index == applied && recent.covers.is_some() {
            return Ok(());
        }
        loop {
            let covered =
                recent.covers.filter(|_| applied.saturating_sub(recent.read_index) <= MAX_CATCH_UP);
            let Some((_, to)) = covered else {
                *recent = RecentEvents::from_now(applied);
                return Ok(());
            };
            let found = self.events_after(to, MAX_EVENTS).await?;
            if found.gap {
                *recent = RecentEvents::from_now(applied);
                return Ok(());
            }
            // A page may end early by its size: only an empty one means the end.
            let is_all = found.items.is_empty();
            recent.add(found.items);
            if is_all {
                recent.read_index = applied;
                return Ok(());
            }
        }
    }

    /// A job as it is now, rendered once for all callers that may see as much of it and ask at this
    /// index.
    pub(super) fn rendered_job(
        &self,
        (state, index): (&State, u64),
        id: JobId,
        detail: JobDetail,
        viewer: &Viewer,
    ) -> Option<Arc<RenderedJob>> {
        let is_inside = viewer.sees_specs(state, state.jobs().get(id)?.user);
        let key = (id, detail, is_inside);
        let cached = |rendered_jobs: &RenderedJobs| {
            if rendered_jobs.index == index { rendered_jobs.jobs.get(&key).cloned() } else { None }
        };
        let lock = || self.feed.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = cached(&lock()) {
            return Some(cached);
        }
        let rendered = Arc::new(render_job(state, viewer, id, detail)?);
        let mut rendered_jobs = lock();
        if rendered_jobs.index < index || rendered_jobs.bytes > MAX_JOB_BYTES {
            *rendered_jobs = RenderedJobs { index, ..RenderedJobs::default() };
        }
        if rendered_jobs.index == index {
            rendered_jobs.bytes += rendered.json.len();
            rendered_jobs.jobs.insert(key, rendered.clone());
        }
        Some(rendered)
    }
}

fn render_job(state: &State, viewer: &Viewer, id: JobId, detail: JobDetail) -> Option<RenderedJob> {
    // Our own types have string keys and no failing serializers.
    match detail {
        JobDetail::Full => {
            let job = view::job(state, viewer, id)?;
            let json = serde_json::to_string(&job).unwrap_or_default();
            Some(RenderedJob { user: job.user, labels: job.spec.labels.clone(), json })
        }
        JobDetail::Row => {
            let job = view::job_row(state, id)?;
            let json = serde_json::to_string(&job).unwrap_or_default();
            Some(RenderedJob { user: job.user, labels: job.labels, json })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::event::EventKind;
    use cellwright_cell::reason::Reason;
    use cellwright_cell::time::Time;

    fn record(index: u64, length: usize) -> EventRecord {
        EventRecord {
            cursor: Cursor { index, position: 0 },
            at: Time(index),
            object: "cell".into(),
            text: "x".repeat(length),
            happened: String::new(),
            machine: None,
            actor: cellwright_cell::command::Actor::Operator,
            kind: EventKind::BoundsChanged,
            reason: Reason::Requested,
        }
    }

    fn recent(lengths: &[usize]) -> RecentEvents {
        let mut recent =
            RecentEvents { covers: Some((Cursor::START, Cursor::START)), ..<_>::default() };
        recent.add((1..).zip(lengths).map(|(index, length)| record(index, *length)).collect());
        recent
    }

    fn indices_after(recent: &RecentEvents, after: u64) -> Option<Vec<u64>> {
        let found = recent.after(Cursor::after(after))?;
        Some(found.iter().map(|item| item.record.cursor.index).collect())
    }

    #[test]
    fn a_reader_gets_what_came_after_its_place_piece_by_piece() {
        let recent = recent(&[10, 10, MAX_CHUNK_BYTES, 10, 10]);
        assert_eq!(indices_after(&recent, 0), Some(vec![1, 2]));
        assert_eq!(indices_after(&recent, 2), Some(vec![3]), "one at least, however large");
        assert_eq!(indices_after(&recent, 3), Some(vec![4, 5]));
        assert_eq!(indices_after(&recent, 5), Some(vec![]));
    }

    #[test]
    fn what_is_kept_is_bounded_and_who_is_behind_it_is_sent_to_the_files() {
        let recent = recent(&vec![10_000; 1000]);
        assert!(recent.bytes <= MAX_BYTES && recent.items.len() > 100);
        assert_eq!(indices_after(&recent, 0), None);
        let first = recent.items[0].record.cursor.index;
        assert_eq!(indices_after(&recent, first - 1).map(|found| found[0]), Some(first));
        assert_eq!(indices_after(&recent, 999), Some(vec![1000]));
    }
}
