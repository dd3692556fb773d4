//! Watches: server-sent events that go on for as long as the client listens. Nothing is queued for
//! a slow reader; each turn takes what the feed holds by then, and for jobs what the state says by
//! then, so a reader that falls behind gets fewer and fresher pictures of the same job. What many
//! watch is read and written down once (`feed`), and goes out in pieces.
//!
//! A watch ends when whoever asked for it would not be let in any more.

use super::access::Viewer;
use super::backstage::Cursor;
use super::call::Call;
use super::feed::{PIECE, Pictured, Told};
use super::{Answered, Api};
use crate::access::listener::Proof;
use bytes::Bytes;
use cellwright_api::error::ApiError;
use cellwright_api::routes::LAST_EVENT_ID;
use cellwright_cell::event::What;
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

/// A sign of life when nothing happens, well below what proxies and our client take for death.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How often it is asked whether the reader is still let in, when nothing else happens.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Events taken from the feed at a time.
pub(super) const TURN: usize = 512;
/// Jobs looked at at a time when all are sent.
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
    framed(out, kind, &data);
}

/// The rest of an event whose data is written down already.
fn framed(out: &mut String, kind: &str, data: &str) {
    let _ = write!(out, "event: {kind}\ndata: {data}\n\n");
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
    Events(Vec<Arc<Told>>, bool),
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
        match self.api.news(self.at).await {
            Ok(found) if found.items.is_empty() => {}
            Ok(found) => {
                self.at = found.items.last().map_or(self.at, |told| told.record.cursor);
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
            let out = match follower.turn().await {
                Turn::Over => return None,
                Turn::Idle => Bytes::from_static(b": still here\n\n"),
                Turn::Events(told, gap) => together(&told, gap),
            };
            Some((out, follower))
        });
        self.streaming(&call, chunks)
    }

    pub(super) async fn watch_jobs(&self, call: Call, picture: Picture) -> Answered {
        let filter = JobsWanted {
            picture,
            viewer: call.viewer()?,
            terms: call.selector()?,
            user: call.query("user").map(Name::new).transpose().ok().flatten(),
        };
        let after = resume(&call)?;
        let view = self.handle.read();
        let follower = self.follower(&call, after.unwrap_or(Cursor::after(view.index)));
        let all = after.is_none().then(|| Listing::of(view.state, view.index));
        let watch = JobWatch { follower, filter, all, touched: VecDeque::new() };
        let chunks = stream::unfold(watch, |mut watch| async move {
            let out = watch.turn().await?;
            Some((Bytes::from(out), watch))
        });
        self.streaming(&call, chunks)
    }
}

/// How much of a job a watch sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Picture {
    Whole,
    Short,
}

/// Events as they go out; those that come alone are shared by all who watch.
fn together(told: &[Arc<Told>], gap: bool) -> Bytes {
    if let ([only], false) = (told, gap) {
        return only.text.clone();
    }
    let mut reset = String::new();
    if gap {
        frame(&mut reset, "reset", None::<Cursor>, &serde_json::json!({}));
    }
    let texts = told.iter().map(|told| told.text.as_ref());
    std::iter::once(reset.as_bytes()).chain(texts).collect::<Vec<_>>().concat().into()
}

struct JobsWanted {
    picture: Picture,
    viewer: Viewer,
    terms: Vec<LabelTerm>,
    user: Option<Name>,
}

impl JobsWanted {
    fn wants(&self, job: &Pictured) -> bool {
        self.user.as_ref().is_none_or(|user| *user == job.user)
            && label::selects(&self.terms, &job.labels)
    }
}

/// All jobs of one picture of the state, on their way out.
struct Listing {
    state: State,
    index: u64,
    next: u32,
}

impl Listing {
    fn of(state: State, index: u64) -> Listing {
        Listing { state, index, next: 0 }
    }
}

struct JobWatch {
    follower: Follower,
    filter: JobsWanted,
    all: Option<Listing>,
    /// Jobs that events were about and that were not sent since, with their names.
    touched: VecDeque<(JobId, String)>,
}

impl JobWatch {
    async fn turn(&mut self) -> Option<String> {
        let mut out = String::new();
        if !self.touched.is_empty() {
            self.send_touched(&mut out);
            return Some(out);
        }
        if let Some(listing) = &mut self.all {
            let end = listing.state.jobs().slots() as u32;
            let stop = end.min(listing.next.saturating_add(JOBS as u32));
            let at = (&listing.state, listing.index);
            while listing.next < stop && out.len() < PIECE {
                let id = JobId(listing.next);
                let job =
                    self.follower.api.pictured(at, id, self.filter.picture, &self.filter.viewer);
                if let Some(job) = job.filter(|job| self.filter.wants(job)) {
                    framed(&mut out, "job", &job.json);
                }
                listing.next += 1;
            }
            if listing.next == end {
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
                self.all = Some(Listing::of(view.state, view.index));
                frame(&mut out, "reset", None::<Cursor>, &serde_json::json!({}));
                Some(out)
            }
            Turn::Events(told, false) => {
                self.touch(&told);
                self.send_touched(&mut out);
                Some(out)
            }
        }
    }

    /// Takes down the jobs these events are about.
    fn touch(&mut self, told: &[Arc<Told>]) {
        let mut touched: BTreeMap<JobId, &str> = BTreeMap::new();
        for record in told.iter().map(|told| &told.record) {
            if let What::Job { job, .. } | What::Task { job, .. } = &record.what {
                touched.insert(*job, &record.object);
            }
        }
        self.touched.extend(touched.into_iter().map(|(job, name)| (job, name.to_owned())));
    }

    /// A piece of what was touched, as it is now; the last frame of all carries the cursor.
    fn send_touched(&mut self, out: &mut String) {
        let view = self.follower.api.handle.read();
        let mut frames: Vec<(&str, String)> = Vec::new();
        let mut bytes = 0;
        while bytes < PIECE {
            let Some((id, name)) = self.touched.pop_front() else { break };
            let at = (&view.state, view.index);
            let JobsWanted { picture, viewer, .. } = &self.filter;
            let sent = match self.follower.api.pictured(at, id, *picture, viewer) {
                Some(job) if self.filter.wants(&job) => ("job", job.json.clone()),
                Some(_) => continue,
                None => match name.splitn(3, '/').take(2).collect::<Vec<_>>()[..] {
                    [user, job] => {
                        let gone = serde_json::json!({ "user": user, "job": job });
                        ("gone", gone.to_string())
                    }
                    _ => continue,
                },
            };
            bytes += sent.1.len();
            frames.push(sent);
        }
        let last = frames.len().checked_sub(1).filter(|_| self.touched.is_empty());
        for (at, (kind, data)) in frames.iter().enumerate() {
            if Some(at) == last {
                // Writing to a string cannot fail.
                let _ = writeln!(out, "id: {}", self.follower.at);
            }
            framed(out, kind, data);
        }
        if frames.is_empty() {
            out.push_str(": nothing of interest\n\n");
        }
    }
}
