//! What all watches share: the last events, read and written down once, and jobs as they are now.
//!
//! A thousand watches that each read the files of the feed after every entry are a thousand threads
//! and a thousand copies of the same text. Here whoever comes first reads for all, and the others
//! take what is there. Who is further behind than what is kept reads the files, as before.

use super::access::Viewer;
use super::backstage::{Cursor, EventRecord};
use super::watch::{Picture, TURN, frame};
use super::{Api, records, view};
use bytes::Bytes;
use cellwright_api::error::ApiError;
use cellwright_cell::id::JobId;
use cellwright_cell::label::Labels;
use cellwright_cell::name::Name;
use cellwright_cell::state::State;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of one piece of a stream. It is what a reader that does not read holds.
pub(super) const PIECE: usize = 64 << 10;
/// What is kept of the feed.
const MOST_EVENTS: usize = 4096;
const MOST_BYTES: usize = 4 << 20;
/// Entries after which it is not worth catching up: nobody has watched for a while.
const FAR: u64 = 1024;
/// What is kept of jobs written down.
const MOST_JOBS: usize = 8 << 20;

/// One event, and as it stands on streams.
pub(super) struct Told {
    pub record: EventRecord,
    pub text: Bytes,
}

/// A job as it stands on streams.
pub(super) struct Pictured {
    pub user: Name,
    pub labels: Labels,
    pub json: String,
}

#[derive(Default)]
pub(super) struct Feed {
    recent: tokio::sync::Mutex<Recent>,
    jobs: Mutex<Pictures>,
}

#[derive(Default)]
struct Recent {
    /// Everything after the first place up to the second is here; nothing is known at first.
    covers: Option<(Cursor, Cursor)>,
    items: VecDeque<Arc<Told>>,
    bytes: usize,
    /// The log's index when the files were last looked at.
    looked: u64,
}

/// Jobs as they were at one index of the log.
#[derive(Default)]
struct Pictures {
    index: u64,
    bytes: usize,
    /// With what they run, or without: as whoever asks may see it.
    jobs: BTreeMap<(JobId, Picture, bool), Arc<Pictured>>,
}

/// What came after a place in the feed.
pub(super) struct News {
    pub items: Vec<Arc<Told>>,
    pub gap: bool,
}

impl Recent {
    /// Nothing yet; who is further behind reads the files until it has come here.
    fn from_now(applied: u64) -> Recent {
        let now = Cursor::after(applied);
        Recent { covers: Some((now, now)), looked: applied, ..Recent::default() }
    }

    fn add(&mut self, records: Vec<EventRecord>) {
        for record in records {
            let told = told(record);
            self.bytes += told.text.len();
            if let Some((_, to)) = &mut self.covers {
                *to = told.record.cursor;
            }
            self.items.push_back(Arc::new(told));
        }
        while self.items.len() > MOST_EVENTS || self.bytes > MOST_BYTES {
            let Some(gone) = self.items.pop_front() else { break };
            self.bytes -= gone.text.len();
            if let Some((from, _)) = &mut self.covers {
                *from = gone.record.cursor;
            }
        }
    }

    /// What comes after `at`, a piece of it; nothing when that is too long ago.
    fn after(&self, at: Cursor) -> Option<Vec<Arc<Told>>> {
        let (from, _) = self.covers.filter(|(from, _)| *from <= at)?;
        debug_assert!(self.items.front().is_none_or(|first| first.record.cursor > from));
        let start = self.items.partition_point(|told| told.record.cursor <= at);
        Some(one_piece(self.items.iter().skip(start).cloned()))
    }
}

fn told(record: EventRecord) -> Told {
    let mut text = String::new();
    let cursor = record.cursor;
    frame(&mut text, "event", Some(cursor), &records::shown(record.clone()));
    Told { record, text: Bytes::from(text) }
}

/// As many as make a piece, and one at least.
fn one_piece(items: impl Iterator<Item = Arc<Told>>) -> Vec<Arc<Told>> {
    let (mut piece, mut bytes) = (Vec::new(), 0);
    for told in items.take(TURN) {
        bytes += told.text.len();
        if bytes > PIECE && !piece.is_empty() {
            break;
        }
        piece.push(told);
    }
    piece
}

impl Api {
    /// What came after a place in the feed, a piece of it.
    pub(super) async fn news(&self, at: Cursor) -> Result<News, ApiError> {
        {
            let mut recent = self.feed.recent.lock().await;
            self.look(&mut recent).await?;
            if let Some(items) = recent.after(at) {
                return Ok(News { items, gap: false });
            }
        }
        let found = self.events_after(at, TURN).await?;
        let items = one_piece(found.items.into_iter().map(told).map(Arc::new));
        Ok(News { items, gap: found.gap })
    }

    /// Reads what the log has got since somebody looked.
    async fn look(&self, recent: &mut Recent) -> Result<(), ApiError> {
        // Before the files are read: what comes after this is looked for again.
        let applied = self.handle.replicated().with(|view| view.index);
        if recent.looked == applied && recent.covers.is_some() {
            return Ok(());
        }
        loop {
            let place = recent.covers.filter(|_| applied.saturating_sub(recent.looked) <= FAR);
            let Some((_, to)) = place else {
                *recent = Recent::from_now(applied);
                return Ok(());
            };
            let found = self.events_after(to, MOST_EVENTS).await?;
            if found.gap {
                *recent = Recent::from_now(applied);
                return Ok(());
            }
            // A stretch may end early by its size: only an empty one says that there is no more.
            let is_all = found.items.is_empty();
            recent.add(found.items);
            if is_all {
                recent.looked = applied;
                return Ok(());
            }
        }
    }

    /// A job as it is, written down once for all who may see as much of it and ask at this index.
    pub(super) fn pictured(
        &self,
        (state, index): (&State, u64),
        id: JobId,
        picture: Picture,
        viewer: &Viewer,
    ) -> Option<Arc<Pictured>> {
        let is_inside = viewer.sees_inside(state, state.jobs().get(id)?.user);
        let key = (id, picture, is_inside);
        let known = |pictures: &Pictures| match pictures.index == index {
            true => pictures.jobs.get(&key).cloned(),
            false => None,
        };
        let lock = || self.feed.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known(&lock()) {
            return Some(known);
        }
        let made = Arc::new(drawn(state, viewer, id, picture)?);
        let mut pictures = lock();
        if pictures.index < index || pictures.bytes > MOST_JOBS {
            *pictures = Pictures { index, ..Pictures::default() };
        }
        if pictures.index == index {
            pictures.bytes += made.json.len();
            pictures.jobs.insert(key, made.clone());
        }
        Some(made)
    }
}

fn drawn(state: &State, viewer: &Viewer, id: JobId, picture: Picture) -> Option<Pictured> {
    // Our own types have string keys and no failing serializers.
    match picture {
        Picture::Whole => {
            let job = view::job(state, viewer, id)?;
            let json = serde_json::to_string(&job).unwrap_or_default();
            Some(Pictured { user: job.user, labels: job.spec.labels.clone(), json })
        }
        Picture::Short => {
            let job = view::job_row(state, id)?;
            let json = serde_json::to_string(&job).unwrap_or_default();
            Some(Pictured { user: job.user, labels: job.labels, json })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::event::What;
    use cellwright_cell::reason::Reason;
    use cellwright_cell::time::Time;

    fn record(index: u64, length: usize) -> EventRecord {
        EventRecord {
            cursor: Cursor { index, position: 0 },
            at: Time(index),
            object: "cell".into(),
            text: "x".repeat(length),
            by: cellwright_cell::command::Actor::Operator,
            what: What::BoundsChanged,
            reason: Reason::Requested,
        }
    }

    fn recent(lengths: &[usize]) -> Recent {
        let mut recent = Recent { covers: Some((Cursor::START, Cursor::START)), ..<_>::default() };
        recent.add((1..).zip(lengths).map(|(index, length)| record(index, *length)).collect());
        recent
    }

    fn seen(recent: &Recent, after: u64) -> Option<Vec<u64>> {
        let found = recent.after(Cursor::after(after))?;
        Some(found.iter().map(|told| told.record.cursor.index).collect())
    }

    #[test]
    fn a_reader_gets_what_came_after_its_place_piece_by_piece() {
        let recent = recent(&[10, 10, PIECE, 10, 10]);
        assert_eq!(seen(&recent, 0), Some(vec![1, 2]));
        assert_eq!(seen(&recent, 2), Some(vec![3]), "one at least, however large");
        assert_eq!(seen(&recent, 3), Some(vec![4, 5]));
        assert_eq!(seen(&recent, 5), Some(vec![]));
    }

    #[test]
    fn what_is_kept_is_bounded_and_who_is_behind_it_is_sent_to_the_files() {
        let recent = recent(&vec![10_000; 1000]);
        assert!(recent.bytes <= MOST_BYTES && recent.items.len() > 100);
        assert_eq!(seen(&recent, 0), None);
        let first = recent.items[0].record.cursor.index;
        assert_eq!(seen(&recent, first - 1).map(|found| found[0]), Some(first));
        assert_eq!(seen(&recent, 999), Some(vec![1000]));
    }
}
