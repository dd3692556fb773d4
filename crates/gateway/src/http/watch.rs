//! Watches: server-sent events for as long as the client listens. Nothing is queued for a slow
//! reader; each turn takes what the feed holds by then, and for jobs what the state says by then,
//! so a reader that falls behind gets fewer and fresher views of the same job. What many watch is
//! read and serialized once (`feed`), and sent in chunks.
//!
//! A watch ends when its caller would no longer be admitted.

use super::access::Viewer;
use super::call::Call;
use super::feed::{FeedItem, MAX_CHUNK_BYTES, RenderedJob};
use super::replica_services::Cursor;
use super::{Api, ApiResult};
use crate::access::listener::CallerProof;
use bytes::Bytes;
use cellwright_api::error::ApiError;
use cellwright_api::routes::LAST_EVENT_ID;
use cellwright_cell::event::EventKind;
use cellwright_cell::id::JobId;
use cellwright_cell::label::{self, LabelTerm};
use cellwright_cell::name::Name;
use cellwright_cell::state::State;
use futures::stream;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::{Display, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// Interval of keep-alives when nothing happens, well below the idle timeouts of proxies and our
/// client.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Interval of checking whether the caller is still admitted, when nothing else happens.
const AUTH_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Events read from the feed at a time.
pub(super) const MAX_BATCH_EVENTS: usize = 512;
/// Jobs examined at a time when all are sent.
const MAX_BATCH_JOBS: usize = 256;

/// Writes one event to the stream.
pub(super) fn write_frame<T: Serialize>(
    out: &mut String,
    kind: &str,
    id: Option<impl Display>,
    data: &T,
) {
    if let Some(id) = id {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "id: {id}");
    }
    let data = serde_json::to_string(data).unwrap_or_default();
    write_raw_frame(out, kind, &data);
}

/// Writes the rest of an event whose data is serialized already.
fn write_raw_frame(out: &mut String, kind: &str, data: &str) {
    let _ = write!(out, "event: {kind}\ndata: {data}\n\n");
}

/// The client's resume position.
fn resume_cursor(call: &Call) -> Result<Option<Cursor>, ApiError> {
    if let Some(text) = call.header(LAST_EVENT_ID) {
        return Cursor::parse(LAST_EVENT_ID, text).map(Some);
    }
    call.query("after").map(|text| Cursor::parse("after", text)).transpose()
}

/// Signals a watch when the state has changed, for as long as its caller is admitted.
pub(super) struct ChangeWatch {
    changed: watch::Receiver<u64>,
    proof: Option<CallerProof>,
}

pub(super) enum ChangeSignal {
    Changed,
    /// Nothing changed for so long that the reader needs a keep-alive.
    Idle,
}

impl ChangeWatch {
    pub fn new(api: &Api, call: &Call) -> ChangeWatch {
        ChangeWatch { changed: api.handle.watch_applied(), proof: call.proof.clone() }
    }

    /// To be called before the state is read, so that no change is missed.
    pub fn mark_seen(&mut self) {
        self.changed.mark_unchanged();
    }

    pub fn is_admitted(&self) -> bool {
        self.proof.as_ref().is_none_or(CallerProof::is_valid)
    }

    /// `None` when the watch is over.
    pub async fn next(&mut self) -> Option<ChangeSignal> {
        for _ in 0..KEEP_ALIVE.as_secs() / AUTH_CHECK_INTERVAL.as_secs() {
            match timeout(AUTH_CHECK_INTERVAL, self.changed.changed()).await {
                Ok(Ok(())) => return self.is_admitted().then_some(ChangeSignal::Changed),
                Ok(Err(_)) => return None,
                Err(_) if !self.is_admitted() => return None,
                Err(_) => {}
            }
        }
        Some(ChangeSignal::Idle)
    }
}

/// Common to both watches of the feed: a cursor and a change signal.
struct FeedFollower {
    api: Api,
    changes: ChangeWatch,
    cursor: Cursor,
}

enum FeedTurn {
    Events(Vec<Arc<FeedItem>>, bool),
    Idle,
    Over,
}

impl FeedFollower {
    /// What followed `cursor`, or nothing for a while.
    async fn next_events(&mut self) -> FeedTurn {
        if !self.changes.is_admitted() {
            return FeedTurn::Over;
        }
        self.changes.mark_seen();
        match self.api.feed_after(self.cursor).await {
            Ok(found) if found.items.is_empty() => {}
            Ok(found) => {
                self.cursor = found.items.last().map_or(self.cursor, |item| item.record.cursor);
                return FeedTurn::Events(found.items, found.gap);
            }
            // The reader reconnects, and by then the files may be readable.
            Err(error) => {
                tracing::warn!(%error, "the event feed could not be read");
                return FeedTurn::Over;
            }
        }
        match self.changes.next().await {
            Some(ChangeSignal::Changed | ChangeSignal::Idle) => FeedTurn::Idle,
            None => FeedTurn::Over,
        }
    }
}

impl Api {
    fn feed_follower(&self, call: &Call, cursor: Cursor) -> FeedFollower {
        FeedFollower { api: self.clone(), changes: ChangeWatch::new(self, call), cursor }
    }

    pub(super) async fn watch_events(&self, call: Call) -> ApiResult {
        let now = self.handle.replicated().with(|view| view.index);
        let cursor = resume_cursor(&call)?.unwrap_or(Cursor::after(now));
        let chunks = stream::unfold(self.feed_follower(&call, cursor), |mut follower| async move {
            let out = match follower.next_events().await {
                FeedTurn::Over => return None,
                FeedTurn::Idle => Bytes::from_static(b": still here\n\n"),
                FeedTurn::Events(items, gap) => join_items(&items, gap),
            };
            Some((out, follower))
        });
        self.stream_response(&call, chunks)
    }

    pub(super) async fn watch_jobs(&self, call: Call, detail: JobDetail) -> ApiResult {
        let filter = WatchFilter {
            detail,
            viewer: call.viewer()?,
            terms: call.selector()?,
            user: call.query("user").map(Name::new).transpose().ok().flatten(),
        };
        let after = resume_cursor(&call)?;
        let view = self.handle.read();
        let follower = self.feed_follower(&call, after.unwrap_or(Cursor::after(view.index)));
        let all = after.is_none().then(|| JobListing::of(view.state, view.index));
        let watch = JobWatch { follower, filter, listing: all, touched: VecDeque::new() };
        let chunks = stream::unfold(watch, |mut watch| async move {
            let out = watch.next_frame().await?;
            Some((Bytes::from(out), watch))
        });
        self.stream_response(&call, chunks)
    }
}

/// How much of a job a watch sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum JobDetail {
    Full,
    Row,
}

/// Events as they are sent; single ones are shared by all watches.
fn join_items(items: &[Arc<FeedItem>], gap: bool) -> Bytes {
    if let ([only], false) = (items, gap) {
        return only.text.clone();
    }
    let mut reset = String::new();
    if gap {
        write_frame(&mut reset, "reset", None::<Cursor>, &serde_json::json!({}));
    }
    let texts = items.iter().map(|item| item.text.as_ref());
    std::iter::once(reset.as_bytes()).chain(texts).collect::<Vec<_>>().concat().into()
}

struct WatchFilter {
    detail: JobDetail,
    viewer: Viewer,
    terms: Vec<LabelTerm>,
    user: Option<Name>,
}

impl WatchFilter {
    fn matches(&self, job: &RenderedJob) -> bool {
        self.user.as_ref().is_none_or(|user| *user == job.user)
            && label::selects(&self.terms, &job.labels)
    }
}

/// The listing of all jobs of one state, as it is being sent.
struct JobListing {
    state: State,
    index: u64,
    next: u32,
}

impl JobListing {
    fn of(state: State, index: u64) -> JobListing {
        JobListing { state, index, next: 0 }
    }
}

struct JobWatch {
    follower: FeedFollower,
    filter: WatchFilter,
    listing: Option<JobListing>,
    /// Jobs that events were about and that were not sent since, by name.
    touched: VecDeque<(JobId, String)>,
}

impl JobWatch {
    async fn next_frame(&mut self) -> Option<String> {
        let mut out = String::new();
        if !self.touched.is_empty() {
            self.send_touched(&mut out);
            return Some(out);
        }
        if let Some(listing) = &mut self.listing {
            let end = listing.state.jobs().slots() as u32;
            let stop = end.min(listing.next.saturating_add(MAX_BATCH_JOBS as u32));
            let at = (&listing.state, listing.index);
            while listing.next < stop && out.len() < MAX_CHUNK_BYTES {
                let id = JobId(listing.next);
                let job =
                    self.follower.api.rendered_job(at, id, self.filter.detail, &self.filter.viewer);
                if let Some(job) = job.filter(|job| self.filter.matches(job)) {
                    write_raw_frame(&mut out, "job", &job.json);
                }
                listing.next += 1;
            }
            if listing.next == end {
                self.listing = None;
                let at = self.follower.cursor;
                write_frame(
                    &mut out,
                    "synced",
                    Some(at),
                    &serde_json::json!({ "index": at.index }),
                );
            }
            return Some(out);
        }
        match self.follower.next_events().await {
            FeedTurn::Over => None,
            FeedTurn::Idle => Some(": still here\n\n".into()),
            // Some changes are no longer available: all jobs are sent again.
            FeedTurn::Events(_, true) => {
                let view = self.follower.api.handle.read();
                self.follower.cursor = Cursor::after(view.index);
                self.listing = Some(JobListing::of(view.state, view.index));
                write_frame(&mut out, "reset", None::<Cursor>, &serde_json::json!({}));
                Some(out)
            }
            FeedTurn::Events(items, false) => {
                self.collect_touched(&items);
                self.send_touched(&mut out);
                Some(out)
            }
        }
    }

    /// Collects the jobs these events are about.
    fn collect_touched(&mut self, items: &[Arc<FeedItem>]) {
        let mut touched: BTreeMap<JobId, &str> = BTreeMap::new();
        for record in items.iter().map(|item| &item.record) {
            if let EventKind::Job { job, .. } | EventKind::Task { job, .. } = &record.kind {
                touched.insert(*job, &record.object);
            }
        }
        self.touched.extend(touched.into_iter().map(|(job, name)| (job, name.to_owned())));
    }

    /// Writes one chunk of the touched jobs, as they are now; the last frame of all carries the
    /// cursor.
    fn send_touched(&mut self, out: &mut String) {
        let view = self.follower.api.handle.read();
        let mut frames: Vec<(&str, String)> = Vec::new();
        let mut bytes = 0;
        while bytes < MAX_CHUNK_BYTES {
            let Some((id, name)) = self.touched.pop_front() else { break };
            let at = (&view.state, view.index);
            let WatchFilter { detail, viewer, .. } = &self.filter;
            let frame = match self.follower.api.rendered_job(at, id, *detail, viewer) {
                Some(job) if self.filter.matches(&job) => ("job", job.json.clone()),
                Some(_) => continue,
                None => match name.splitn(3, '/').take(2).collect::<Vec<_>>()[..] {
                    [user, job] => {
                        let gone = serde_json::json!({ "user": user, "job": job });
                        ("gone", gone.to_string())
                    }
                    _ => continue,
                },
            };
            bytes += frame.1.len();
            frames.push(frame);
        }
        let last = frames.len().checked_sub(1).filter(|_| self.touched.is_empty());
        for (at, (kind, data)) in frames.iter().enumerate() {
            if Some(at) == last {
                // Writing to a string cannot fail.
                let _ = writeln!(out, "id: {}", self.follower.cursor);
            }
            write_raw_frame(out, kind, data);
        }
        if frames.is_empty() {
            out.push_str(": nothing of interest\n\n");
        }
    }
}
