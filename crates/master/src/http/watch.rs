//! Watches: server-sent events that go on for as long as the client listens. Nothing is queued for
//! a slow reader; each turn takes what the feed holds by then, and for jobs what the state says by
//! then, so a reader that falls behind gets fewer and fresher pictures of the same job.
//!
//! A watch ends when whoever asked for it would not be let in any more.

use super::backstage::{Cursor, EventRecord};
use super::call::Call;
use super::{Answered, Api, records, view};
use crate::identity::listener::Proof;
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;
use cellwright_api::error::ApiError;
use cellwright_api::routes::LAST_EVENT_ID;
use cellwright_api::types::{JobRow, JobView};
use cellwright_cell::event::What;
use cellwright_cell::id::JobId;
use cellwright_cell::label::{self, LabelTerm};
use cellwright_cell::name::Name;
use cellwright_cell::state::State;
use futures::stream;
use serde::Serialize;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::{Display, Write};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// A sign of life when nothing happens, well below what proxies and our client take for death.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How often it is asked whether the reader is still let in, when nothing else happens.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Events taken from the feed at a time.
const TURN: usize = 512;
/// Jobs sent at a time when all are sent.
const JOBS: usize = 256;

/// Text of one event on the stream.
pub(super) fn frame<T: Serialize>(
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
    let _ = write!(out, "event: {kind}\ndata: {data}\n\n");
}

pub(super) fn streaming(
    chunks: impl futures::Stream<Item = Result<Bytes, Infallible>> + Send + 'static,
) -> Response<Body> {
    let mut response = Response::new(Body::from_stream(chunks));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Where the client left off.
fn resume(call: &Call) -> Result<Option<Cursor>, ApiError> {
    if let Some(text) = call.header(LAST_EVENT_ID) {
        return Cursor::parse(LAST_EVENT_ID, text).map(Some);
    }
    call.query("after").map(|text| Cursor::parse("after", text)).transpose()
}

/// Tells a watch when the state has changed, for as long as its reader is let in.
pub(super) struct Pulse {
    changed: watch::Receiver<u64>,
    proof: Option<Proof>,
}

pub(super) enum Beat {
    Changed,
    /// For so long that the reader needs a sign of life.
    Quiet,
}

impl Pulse {
    pub fn new(api: &Api, call: &Call) -> Pulse {
        Pulse { changed: api.handle.changed(), proof: call.proof.clone() }
    }

    /// To be called before the state is read, so that nothing falls between.
    pub fn take(&mut self) {
        self.changed.mark_unchanged();
    }

    pub fn is_let_in(&self) -> bool {
        self.proof.as_ref().is_none_or(Proof::stands)
    }

    /// Nothing when the watch is over.
    pub async fn next(&mut self) -> Option<Beat> {
        for _ in 0..KEEP_ALIVE.as_secs() / LOOK_AGAIN.as_secs() {
            match timeout(LOOK_AGAIN, self.changed.changed()).await {
                Ok(Ok(())) => return self.is_let_in().then_some(Beat::Changed),
                Ok(Err(_)) => return None,
                Err(_) if !self.is_let_in() => return None,
                Err(_) => {}
            }
        }
        Some(Beat::Quiet)
    }
}

/// What both watches of the feed have: a place in it and a sign when there is more.
struct Follower {
    api: Api,
    pulse: Pulse,
    at: Cursor,
}

enum Turn {
    Events(Vec<EventRecord>, bool),
    Idle,
    Over,
}

impl Follower {
    /// What came after `at`, or nothing for a while.
    async fn turn(&mut self) -> Turn {
        if !self.pulse.is_let_in() {
            return Turn::Over;
        }
        self.pulse.take();
        match self.api.events_after(self.at, TURN).await {
            Ok(found) if found.items.is_empty() => {}
            Ok(found) => {
                self.at = found.items.last().map_or(self.at, |record| record.cursor);
                return Turn::Events(found.items, found.gap);
            }
            // The reader comes back, and by then the files may be readable.
            Err(error) => {
                tracing::warn!(%error, "the event feed could not be read");
                return Turn::Over;
            }
        }
        match self.pulse.next().await {
            Some(Beat::Changed | Beat::Quiet) => Turn::Idle,
            None => Turn::Over,
        }
    }
}

impl Api {
    fn follower(&self, call: &Call, at: Cursor) -> Follower {
        Follower { api: self.clone(), pulse: Pulse::new(self, call), at }
    }

    pub(super) async fn watch_events(&self, call: Call) -> Answered {
        let now = self.handle.replicated().with(|view| view.index);
        let at = resume(&call)?.unwrap_or(Cursor::after(now));
        let chunks = stream::unfold(self.follower(&call, at), |mut follower| async move {
            let mut out = String::new();
            match follower.turn().await {
                Turn::Over => return None,
                Turn::Idle => out.push_str(": still here\n\n"),
                Turn::Events(records, gap) => {
                    if gap {
                        frame(&mut out, "reset", None::<Cursor>, &serde_json::json!({}));
                    }
                    for record in records {
                        let cursor = record.cursor;
                        frame(&mut out, "event", Some(cursor), &records::shown(record));
                    }
                }
            }
            Some((Ok(Bytes::from(out)), follower))
        });
        Ok(streaming(chunks))
    }

    pub(super) async fn watch_jobs(&self, call: Call, picture: Picture) -> Answered {
        let filter = JobsWanted {
            picture,
            terms: call.selector()?,
            user: call.query("user").map(Name::new).transpose().ok().flatten(),
        };
        let after = resume(&call)?;
        let view = self.handle.read();
        let follower = self.follower(&call, after.unwrap_or(Cursor::after(view.index)));
        let all = after.is_none().then(|| Listing::of(view.state));
        let watch = JobWatch { follower, filter, all };
        let chunks = stream::unfold(watch, |mut watch| async move {
            let out = watch.turn().await?;
            Some((Ok(Bytes::from(out)), watch))
        });
        Ok(streaming(chunks))
    }
}

/// How much of a job a watch sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Picture {
    Whole,
    Short,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Shown {
    Whole(Box<JobView>),
    Short(JobRow),
}

struct JobsWanted {
    picture: Picture,
    terms: Vec<LabelTerm>,
    user: Option<Name>,
}

impl JobsWanted {
    fn show(&self, state: &State, id: JobId) -> Option<Shown> {
        match self.picture {
            Picture::Whole => view::job(state, id).map(Box::new).map(Shown::Whole),
            Picture::Short => view::job_row(state, id).map(Shown::Short),
        }
    }

    fn wants(&self, job: &Shown) -> bool {
        let (owner, labels) = match job {
            Shown::Whole(job) => (&job.user, &job.spec.labels),
            Shown::Short(job) => (&job.user, &job.labels),
        };
        self.user.as_ref().is_none_or(|user| user == owner) && label::selects(&self.terms, labels)
    }
}

/// All jobs of one picture of the state, on their way out.
struct Listing {
    state: State,
    next: u32,
}

impl Listing {
    fn of(state: State) -> Listing {
        Listing { state, next: 0 }
    }
}

struct JobWatch {
    follower: Follower,
    filter: JobsWanted,
    all: Option<Listing>,
}

impl JobWatch {
    async fn turn(&mut self) -> Option<String> {
        let mut out = String::new();
        if let Some(listing) = &mut self.all {
            let end = listing.state.jobs().slots() as u32;
            let stop = end.min(listing.next.saturating_add(JOBS as u32));
            let ids = (listing.next..stop).map(JobId);
            let jobs = ids.filter_map(|id| self.filter.show(&listing.state, id));
            jobs.filter(|job| self.filter.wants(job)).for_each(|job| {
                frame(&mut out, "job", None::<Cursor>, &job);
            });
            listing.next = stop;
            if stop == end {
                self.all = None;
                let at = self.follower.at;
                frame(&mut out, "synced", Some(at), &serde_json::json!({ "index": at.index }));
            }
            return Some(out);
        }
        match self.follower.turn().await {
            Turn::Over => None,
            Turn::Idle => Some(": still here\n\n".into()),
            // Some changes are gone for good: the whole is sent again.
            Turn::Events(_, true) => {
                let view = self.follower.api.handle.read();
                self.follower.at = Cursor::after(view.index);
                self.all = Some(Listing::of(view.state));
                frame(&mut out, "reset", None::<Cursor>, &serde_json::json!({}));
                Some(out)
            }
            Turn::Events(records, false) => {
                self.changes(&records, &mut out);
                Some(out)
            }
        }
    }

    /// The jobs these events are about, as they are now; the last frame carries the cursor.
    fn changes(&self, records: &[EventRecord], out: &mut String) {
        let mut touched: BTreeMap<JobId, &EventRecord> = BTreeMap::new();
        for record in records {
            if let What::Job { job, .. } | What::Task { job, .. } = &record.what {
                touched.insert(*job, record);
            }
        }
        let view = self.follower.api.handle.read();
        let mut frames: Vec<(&str, serde_json::Value)> = Vec::new();
        for (job, record) in touched {
            match self.filter.show(&view.state, job) {
                Some(job) if self.filter.wants(&job) => {
                    frames.push(("job", serde_json::to_value(job).unwrap_or_default()));
                }
                Some(_) => {}
                None => {
                    let key = record.object.splitn(3, '/').take(2).collect::<Vec<_>>();
                    if let [user, job] = key[..] {
                        frames.push(("gone", serde_json::json!({ "user": user, "job": job })));
                    }
                }
            }
        }
        let last = frames.len().checked_sub(1);
        for (at, (kind, data)) in frames.iter().enumerate() {
            let id = (Some(at) == last).then_some(self.follower.at);
            frame(out, kind, id, data);
        }
        if frames.is_empty() {
            out.push_str(": nothing of interest\n\n");
        }
    }
}
