//! Holes in the list: what is known of them, and how they are filled.

use super::file::{self, HEADER, SYNCED, Step, Synced};
use super::{Hole, Inner, Record, Segment, Segments};
use cellwright_cell::time::Time;
use std::io;

/// Whether a hole was filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    Done,
    /// The list changed meanwhile, or has more holes there: look again.
    Again,
}

impl Segments {
    /// Puts damage on the list, once.
    pub(super) fn note(
        &self,
        inner: &mut Inner,
        segment: u64,
        offset: u64,
        after: u64,
        until: u64,
    ) {
        let file = self.path(segment);
        if inner.holes.iter().any(|hole| hole.file == file && hole.offset == offset) {
            return;
        }
        tracing::error!(
            file,
            offset,
            after,
            until,
            "damaged; a gap until another replica fills it"
        );
        inner.holes.push(Hole { after, until, file, offset, is_damage: true });
        inner.holes.sort_by_key(|hole| (hole.after, hole.offset));
    }

    /// Numbers that are missing, oldest first: by damage, or because this replica went on from a
    /// snapshot. What lies before everything that is kept is no hole.
    #[must_use]
    pub fn holes(&self) -> Vec<Hole> {
        let inner = self.lock();
        let mut holes = inner.holes.clone();
        for pair in inner.list.windows(2) {
            let (before, segment) = (&pair[0], &pair[1]);
            let (Some(after), true) = (before.sealed, segment.gap) else { continue };
            let until = segment.after + 1;
            if !holes.iter().any(|hole| hole.until == until) {
                let file = self.path(segment.after);
                holes.push(Hole { after, until, file, offset: 0, is_damage: false });
            }
        }
        holes.sort_by_key(|hole| (hole.after, hole.until));
        holes
    }

    /// Puts records into the holes of one segment, which is written anew. All of them at once, so
    /// that no damage goes away with what it hid; `holes` are those of [`Segments::holes`] that
    /// [`Segments::is_of_one`] says belong together.
    ///
    /// # Errors
    /// When the disk refuses; then everything is as it was.
    pub fn fill(&self, holes: &[Hole], records: &[Record]) -> io::Result<Filled> {
        let mut inner = self.lock();
        let Some(at) = holes.first().and_then(|hole| self.home(&inner, hole)) else {
            return Ok(Filled::Again);
        };
        let of_it = |hole: &&Hole| {
            self.home(&inner, hole) == Some(at) && self.between(&inner, hole).is_none()
        };
        let all_known = inner.holes.iter().filter(of_it).all(|hole| holes.contains(hole));
        if inner.broken || !all_known || !holes.iter().all(|hole| of_it(&hole)) {
            return Ok(Filled::Again);
        }
        let segment = inner.list[at].clone();
        let path = self.path(segment.after);
        let end = segment.sealed.unwrap_or(inner.last);
        let is_all = |h: &Hole| h.after == segment.after && h.until > end && h.offset > 0;
        let mut all = match self.disk.read(&path) {
            // Nothing of it is counted on: it is replaced by what others have.
            Err(_) if holes.iter().any(is_all) => Vec::new(),
            read => sound(&read?, &segment),
        };
        let missing = |record: &&Record| {
            holes.iter().any(|h| h.after < record.number && record.number < h.until)
        };
        all.extend(records.iter().filter(missing).cloned());
        all.sort_by_key(|record| record.number);
        all.dedup_by_key(|record| record.number);
        let next = inner.list.get(at + 1).cloned();
        let reaches = |next: &Segment| holes.iter().any(|hole| hole.until == next.after + 1);
        let joined = next.filter(|next| reaches(next) || segment.sealed.is_none());
        let sealed = joined.as_ref().map(|next| next.after).or(segment.sealed);
        let (bytes, fresh) = encoded(&segment, &all, sealed)?;
        self.disk.write_new(&path, &bytes)?;
        inner.rewritten += 1;
        inner.list[at] = fresh;
        if let Some(next) = joined.filter(|next| next.gap) {
            let path = self.path(next.after);
            let rest = self.disk.read(&path)?;
            let whole = [&file::header(next.after, false), rest.get(HEADER..).unwrap_or(&[])];
            self.disk.write_new(&path, &whole.concat())?;
            inner.list[at + 1].gap = false;
        }
        inner.holes.retain(|hole| !holes.contains(hole));
        Ok(Filled::Done)
    }

    /// Whether what is missing belongs between two segments, neither of which need be touched.
    #[must_use]
    pub fn is_between(&self, hole: &Hole) -> bool {
        self.between(&self.lock(), hole).is_some()
    }

    /// The segment before a hole that lies between two.
    fn between(&self, inner: &Inner, hole: &Hole) -> Option<usize> {
        let at = inner.list.partition_point(|s| s.after < hole.after).checked_sub(1)?;
        let next = inner.list.get(at + 1)?;
        let is_there = inner.list[at].sealed == Some(hole.after)
            && hole.after < next.after
            && hole.until == next.after + 1;
        is_there.then_some(at)
    }

    /// Puts records, and that there are no others up to `last`, at the start of a hole between two
    /// segments. They become a segment of their own, so that a hole of any size is filled piece by
    /// piece, and the writer never waits for the file.
    ///
    /// # Errors
    /// When the disk refuses; then everything is as it was.
    pub fn put_between(&self, hole: &Hole, records: &[Record], last: u64) -> io::Result<Filled> {
        let fits = |record: &Record| hole.after < record.number && record.number <= last;
        let is_inside = hole.after < last && last < hole.until && records.iter().all(fits);
        if !is_inside || !self.is_between(hole) {
            return Ok(Filled::Again);
        }
        let (bytes, fresh) = encoded(&Segment::new(hole.after, false), records, Some(last))?;
        let path = self.path(hole.after);
        // Should this be as far as it gets, it is found there by the next start.
        self.disk.write_new(&path, &bytes)?;
        let mut inner = self.lock();
        let Some(at) = self.between(&inner, hole) else {
            // The oldest segments were forgotten meanwhile, up to here or further.
            if inner.list.iter().all(|segment| segment.after != hole.after) {
                self.disk.remove(&path)?;
            }
            return Ok(Filled::Again);
        };
        inner.list.insert(at + 1, fresh);
        let next = &mut inner.list[at + 2];
        next.gap = next.after != last;
        let same = |known: &&mut Hole| known.until == hole.until && known.after == hole.after;
        for known in inner.holes.iter_mut().filter(same) {
            known.after = last;
        }
        Ok(Filled::Done)
    }

    /// The records on both sides of a hole, looked for from there and not from the oldest on.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn around(&self, hole: &Hole) -> io::Result<(Option<Record>, Option<Record>)> {
        let list = self.lock().list.clone();
        let mut before = None;
        for segment in list.iter().rev().filter(|segment| segment.after < hole.after) {
            let records = match self.disk.read(&self.path(segment.after)) {
                // Forgotten meanwhile, and all before it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                read => sound(&read?, segment),
            };
            before = records.into_iter().rfind(|record| record.number <= hole.after);
            if before.is_some() {
                break;
            }
        }
        let next = self.read_from(hole.until, 0)?.records.into_iter().next();
        Ok((before, next))
    }

    /// How large a segment becomes before the next is begun.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        self.keep.segment_bytes
    }

    /// The last record that reads.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn last_record(&self) -> io::Result<Option<Record>> {
        let list = self.lock().list.clone();
        for segment in list.iter().rev() {
            let records = sound(&self.disk.read(&self.path(segment.after))?, segment);
            if let Some(last) = records.into_iter().next_back() {
                return Ok(Some(last));
            }
        }
        Ok(None)
    }

    /// Whether two holes are of one segment and are to be filled together.
    #[must_use]
    pub fn is_of_one(&self, one: &Hole, other: &Hole) -> bool {
        let inner = self.lock();
        let is_apart = |hole: &Hole| self.between(&inner, hole).is_some();
        one == other
            || (!is_apart(one)
                && !is_apart(other)
                && self.home(&inner, one) == self.home(&inner, other))
    }

    /// Goes back to before the first damage behind `from`, because everything after `from` is
    /// about to be appended once more.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn rewind(&self, from: u64) -> io::Result<()> {
        let mut inner = self.lock();
        let Some(hole) = inner.holes.iter().find(|hole| hole.after >= from).cloned() else {
            return Ok(());
        };
        let Some(at) = inner.list.iter().position(|s| self.path(s.after) == hole.file) else {
            return Ok(());
        };
        let after = inner.list[at].after;
        let offset = hole.offset.max(HEADER as u64);
        let covered = inner.synced.map_or(0, |synced| synced.covered).min(hole.after);
        // First: what is removed below must not be missed after a crash.
        let synced = Synced { after, bytes: offset, last: hole.after, covered };
        self.disk.write_new(&format!("{}/{SYNCED}", self.dir), &synced.encode())?;
        inner.synced = Some(synced);
        while inner.list.len() > at + 1 {
            let Some(newest) = inner.list.pop() else { break };
            self.disk.remove(&self.path(newest.after))?;
        }
        let gap = inner.list[at].gap;
        if hole.offset < HEADER as u64 {
            self.disk.write_new(&hole.file, &file::header(after, gap))?;
        } else {
            self.disk.truncate(&hole.file, offset)?;
        }
        let segment = &mut inner.list[at];
        segment.bytes = offset;
        segment.sealed = None;
        segment.marks.retain(|(_, marked)| *marked < offset);
        if offset == HEADER as u64 {
            segment.since = None;
        }
        inner.rewritten += 1;
        inner.last = hole.after.max(after);
        let before = hole.after;
        inner.holes.retain(|hole| hole.after < before);
        tracing::warn!(hole.file, offset, "taken down again from the replicated log");
        Ok(())
    }

    /// Reads the segment that comes after this number, or the first one after it, and puts damage
    /// on the list. Says where to go on; nothing after the last one. A segment that the disk does
    /// not give back is a hole as a whole.
    pub fn scrub(&self, from: u64) -> Option<u64> {
        let (segment, rewritten) = {
            let inner = self.lock();
            let segment = inner.list.iter().find(|segment| segment.after >= from)?;
            (segment.clone(), inner.rewritten)
        };
        let next = Some(segment.after + 1);
        let path = self.path(segment.after);
        let header = file::read_header(&*self.disk, &path, segment.after);
        let (header, bytes) = match header.and_then(|ok| Ok((ok, self.disk.read(&path)?))) {
            // Forgotten meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return next,
            Err(error) => {
                self.note_unread(&segment, &error);
                return next;
            }
            Ok(read) => read,
        };
        let end = usize::try_from(segment.bytes).unwrap_or(usize::MAX).min(bytes.len());
        let (mut copy, mut seen) = (Segment::new(segment.after, segment.gap), Inner::default());
        let (last, sound) = self.scan(&mut seen, &mut copy, &bytes[..end]);
        let mut inner = self.lock();
        if inner.rewritten != rewritten {
            return Some(segment.after);
        }
        if header.is_none() {
            self.note(&mut inner, segment.after, 0, segment.after, segment.after + 1);
        }
        let (at, until) = (sound as u64, segment.sealed.unwrap_or(inner.last) + 1);
        if at < segment.bytes {
            self.note(&mut inner, segment.after, at, last, until);
        }
        for hole in seen.holes {
            self.note(&mut inner, segment.after, hole.offset, hole.after, hole.until);
        }
        next
    }

    fn note_unread(&self, segment: &Segment, error: &io::Error) {
        let file = self.path(segment.after);
        tracing::error!(file, %error, "cannot be read");
        let mut inner = self.lock();
        let Some(now) = inner.list.iter().find(|s| s.after == segment.after) else { return };
        let until = now.sealed.unwrap_or(inner.last) + 1;
        // Whatever else was wrong inside it is part of this.
        inner.holes.retain(|hole| hole.file != file || hole.offset == 0);
        self.note(&mut inner, segment.after, HEADER as u64, segment.after, until);
    }

    /// Which segment is to be written anew to fill a hole: that with the damage, or the one before
    /// what is missing.
    fn home(&self, inner: &Inner, hole: &Hole) -> Option<usize> {
        if hole.is_damage && hole.offset > 0 {
            return inner.list.iter().position(|segment| self.path(segment.after) == hole.file);
        }
        inner.list.partition_point(|segment| segment.after <= hole.after).checked_sub(1)
    }
}

/// Everything of a segment that reads.
fn sound(bytes: &[u8], segment: &Segment) -> Vec<Record> {
    let (mut records, mut at, mut last) = (Vec::new(), HEADER, segment.after);
    while at < bytes.len() {
        match file::step(bytes, segment.after, 0, at, last) {
            Step::Record { record, size } => {
                last = record.number;
                at += size;
                records.push(record);
            }
            Step::Damage { next: Some(next) } => at = next,
            Step::Seal { .. } | Step::Damage { next: None } => break,
        }
    }
    records
}

/// A segment of these records, and what is to be remembered of it.
fn encoded(
    segment: &Segment,
    records: &[Record],
    sealed: Option<u64>,
) -> io::Result<(Vec<u8>, Segment)> {
    let mut fresh = Segment { sealed, ..Segment::new(segment.after, segment.gap) };
    let mut bytes = file::header(segment.after, segment.gap);
    for record in records {
        fresh.note(record.number, Time(record.at.0), bytes.len() as u64);
        let more = file::record(segment.after, bytes.len() as u64, record)?;
        bytes.extend_from_slice(&more);
    }
    fresh.bytes = bytes.len() as u64;
    if let Some(last) = sealed {
        bytes.extend_from_slice(&file::seal(segment.after, fresh.bytes, last)?);
    }
    Ok((bytes, fresh))
}
