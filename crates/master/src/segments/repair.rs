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
        let of_it = |hole: &&Hole| self.home(&inner, hole) == Some(at);
        let all_known = inner.holes.iter().filter(of_it).all(|hole| holes.contains(hole));
        if inner.broken || !all_known || !holes.iter().all(|hole| of_it(&hole)) {
            return Ok(Filled::Again);
        }
        let segment = inner.list[at].clone();
        let path = self.path(segment.after);
        let mut all = sound(&self.disk.read(&path)?, &segment);
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
        self.home(&inner, one) == self.home(&inner, other)
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
    /// on the list. Says where to go on; nothing after the last one.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn scrub(&self, from: u64) -> io::Result<Option<u64>> {
        let (segment, rewritten) = {
            let inner = self.lock();
            let Some(segment) = inner.list.iter().find(|segment| segment.after >= from) else {
                return Ok(None);
            };
            (segment.clone(), inner.rewritten)
        };
        let next = Some(segment.after + 1);
        let path = self.path(segment.after);
        let header = file::read_header(&*self.disk, &path, segment.after);
        let (header, bytes) = match header.and_then(|ok| Ok((ok, self.disk.read(&path)?))) {
            // Forgotten meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(next),
            read => read?,
        };
        let end = usize::try_from(segment.bytes).unwrap_or(usize::MAX).min(bytes.len());
        let (mut copy, mut seen) = (Segment::new(segment.after, segment.gap), Inner::default());
        let (last, sound) = self.scan(&mut seen, &mut copy, &bytes[..end]);
        let mut inner = self.lock();
        if inner.rewritten != rewritten {
            return Ok(Some(segment.after));
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
        Ok(next)
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
