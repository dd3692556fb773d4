//! Holes in the record files: what is known of them, and how they are filled.

use super::file::{self, SEGMENT_HEADER_LEN, SYNC_MARK_FILE, ScanStep, SyncMark};
use super::{Hole, Record, Segment, Segments, SegmentsState};
use cellwright_cell::time::Time;
use std::io;

/// Whether a hole was filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillResult {
    Done,
    /// The list changed in the meantime, or has more holes there: try again.
    Retry,
}

impl Segments {
    /// Adds damage to the list of holes, once.
    pub(super) fn note_damage(
        &self,
        state: &mut SegmentsState,
        segment: u64,
        offset: u64,
        after: u64,
        until: u64,
    ) {
        let file = self.path(segment);
        if state.holes.iter().any(|hole| hole.file == file && hole.offset == offset) {
            return;
        }
        tracing::error!(
            file,
            offset,
            after,
            until,
            "damaged; a gap until another replica fills it"
        );
        state.holes.push(Hole { after, until, file, offset, is_damage: true });
        state.holes.sort_by_key(|hole| (hole.after, hole.offset));
    }

    /// Numbers that are missing, oldest first: because of damage, or because this replica continued
    /// from a snapshot. Records before the oldest that is kept are no hole.
    #[must_use]
    pub fn holes(&self) -> Vec<Hole> {
        let state = self.lock();
        let mut holes = state.holes.clone();
        for pair in state.segments.windows(2) {
            let (before, segment) = (&pair[0], &pair[1]);
            let (Some(after), true) = (before.sealed_at, segment.has_gap) else { continue };
            let until = segment.after + 1;
            if !holes.iter().any(|hole| hole.until == until) {
                let file = self.path(segment.after);
                holes.push(Hole { after, until, file, offset: 0, is_damage: false });
            }
        }
        holes.sort_by_key(|hole| (hole.after, hole.until));
        holes
    }

    /// Puts records into the holes of one segment, which is rewritten. All holes are filled at
    /// once, so that no damage is removed together with what it hid; `holes` are those of
    /// [`Segments::holes`] that belong together according to [`Segments::is_same_segment`].
    ///
    /// # Errors
    /// When the disk fails; then everything is as it was.
    pub fn fill_inside(&self, holes: &[Hole], records: &[Record]) -> io::Result<FillResult> {
        let mut state = self.lock();
        let Some(at) = holes.first().and_then(|hole| self.segment_to_rewrite(&state, hole)) else {
            return Ok(FillResult::Retry);
        };
        let of_it = |hole: &&Hole| {
            self.segment_to_rewrite(&state, hole) == Some(at)
                && self.segment_before(&state, hole).is_none()
        };
        let all_known = state.holes.iter().filter(of_it).all(|hole| holes.contains(hole));
        if state.is_broken || !all_known || !holes.iter().all(|hole| of_it(&hole)) {
            return Ok(FillResult::Retry);
        }
        let segment = state.segments[at].clone();
        let path = self.path(segment.after);
        let end = segment.sealed_at.unwrap_or(state.last);
        let is_all = |h: &Hole| h.after == segment.after && h.until > end && h.offset > 0;
        let mut all = match self.disk.read(&path) {
            // None of it is relied on: it is replaced by what peers have.
            Err(_) if holes.iter().any(is_all) => Vec::new(),
            read => sound_records(&read?, &segment),
        };
        let missing = |record: &&Record| {
            holes.iter().any(|h| h.after < record.number && record.number < h.until)
        };
        all.extend(records.iter().filter(missing).cloned());
        all.sort_by_key(|record| record.number);
        all.dedup_by_key(|record| record.number);
        let next = state.segments.get(at + 1).cloned();
        let reaches = |next: &Segment| holes.iter().any(|hole| hole.until == next.after + 1);
        let joined = next.filter(|next| reaches(next) || segment.sealed_at.is_none());
        let sealed = joined.as_ref().map(|next| next.after).or(segment.sealed_at);
        let (bytes, fresh) = encode_segment(&segment, &all, sealed)?;
        self.disk.write_atomic(&path, &bytes)?;
        state.rewrites += 1;
        state.segments[at] = fresh;
        if let Some(next) = joined.filter(|next| next.has_gap) {
            let path = self.path(next.after);
            let rest = self.disk.read(&path)?;
            let whole =
                [&file::header(next.after, false), rest.get(SEGMENT_HEADER_LEN..).unwrap_or(&[])];
            self.disk.write_atomic(&path, &whole.concat())?;
            state.segments[at + 1].has_gap = false;
        }
        state.holes.retain(|hole| !holes.contains(hole));
        Ok(FillResult::Done)
    }

    /// Whether the missing records belong between two segments, neither of which need be touched.
    #[must_use]
    pub fn is_between(&self, hole: &Hole) -> bool {
        self.segment_before(&self.lock(), hole).is_some()
    }

    /// The segment before a hole that lies between two.
    fn segment_before(&self, state: &SegmentsState, hole: &Hole) -> Option<usize> {
        let at = state.segments.partition_point(|s| s.after < hole.after).checked_sub(1)?;
        let next = state.segments.get(at + 1)?;
        let is_there = state.segments[at].sealed_at == Some(hole.after)
            && hole.after < next.after
            && hole.until == next.after + 1;
        is_there.then_some(at)
    }

    /// Puts records at the start of a hole between two segments, and marks that there are no others
    /// up to `last`. They become a segment of their own, so that a hole of any size is filled step
    /// by step, and the writer never waits for the file.
    ///
    /// # Errors
    /// When the disk fails; then everything is as it was.
    pub fn fill_between(
        &self,
        hole: &Hole,
        records: &[Record],
        last: u64,
    ) -> io::Result<FillResult> {
        let fits = |record: &Record| hole.after < record.number && record.number <= last;
        let is_inside = hole.after < last && last < hole.until && records.iter().all(fits);
        if !is_inside || !self.is_between(hole) {
            return Ok(FillResult::Retry);
        }
        let (bytes, fresh) = encode_segment(&Segment::new(hole.after, false), records, Some(last))?;
        let path = self.path(hole.after);
        // If it gets no further than this, the next start finds the file there.
        self.disk.write_atomic(&path, &bytes)?;
        let mut state = self.lock();
        let Some(at) = self.segment_before(&state, hole) else {
            // The oldest segments were removed in the meantime, up to here or further.
            if state.segments.iter().all(|segment| segment.after != hole.after) {
                self.disk.remove(&path)?;
            }
            return Ok(FillResult::Retry);
        };
        state.segments.insert(at + 1, fresh);
        let next = &mut state.segments[at + 2];
        next.has_gap = next.after != last;
        let same = |known: &&mut Hole| known.until == hole.until && known.after == hole.after;
        for known in state.holes.iter_mut().filter(same) {
            known.after = last;
        }
        Ok(FillResult::Done)
    }

    /// The records on both sides of a hole, searched from there and not from the oldest on.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn neighbours(&self, hole: &Hole) -> io::Result<(Option<Record>, Option<Record>)> {
        let list = self.lock().segments.clone();
        let mut before = None;
        for segment in list.iter().rev().filter(|segment| segment.after < hole.after) {
            let records = match self.disk.read(&self.path(segment.after)) {
                // Removed in the meantime, with all segments before it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                read => sound_records(&read?, segment),
            };
            before = records.into_iter().rfind(|record| record.number <= hole.after);
            if before.is_some() {
                break;
            }
        }
        let next = self.read_from(hole.until, 0)?.records.into_iter().next();
        Ok((before, next))
    }

    /// The size at which the next segment is begun.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        self.retention.segment_bytes
    }

    /// The last record that reads.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn last_record(&self) -> io::Result<Option<Record>> {
        let list = self.lock().segments.clone();
        for segment in list.iter().rev() {
            let records = sound_records(&self.disk.read(&self.path(segment.after))?, segment);
            if let Some(last) = records.into_iter().next_back() {
                return Ok(Some(last));
            }
        }
        Ok(None)
    }

    /// Whether two holes are in one segment and must be filled together.
    #[must_use]
    pub fn is_same_segment(&self, first: &Hole, other: &Hole) -> bool {
        let state = self.lock();
        let is_apart = |hole: &Hole| self.segment_before(&state, hole).is_some();
        first == other
            || (!is_apart(first)
                && !is_apart(other)
                && self.segment_to_rewrite(&state, first) == self.segment_to_rewrite(&state, other))
    }

    /// Goes back to before the first damage behind `from`, because everything after `from` is about
    /// to be appended once more.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn rewind(&self, from: u64) -> io::Result<()> {
        let mut state = self.lock();
        let Some(hole) = state.holes.iter().find(|hole| hole.after >= from).cloned() else {
            return Ok(());
        };
        let Some(at) = state.segments.iter().position(|s| self.path(s.after) == hole.file) else {
            return Ok(());
        };
        let after = state.segments[at].after;
        let offset = hole.offset.max(SEGMENT_HEADER_LEN as u64);
        let covered = state.synced.map_or(0, |synced| synced.covered).min(hole.after);
        // Written first: what is removed below must not appear lost after a crash.
        let synced = SyncMark { after, bytes: offset, last: hole.after, covered };
        self.disk.write_atomic(&format!("{}/{SYNC_MARK_FILE}", self.dir), &synced.encode())?;
        state.synced = Some(synced);
        while state.segments.len() > at + 1 {
            let Some(newest) = state.segments.pop() else { break };
            self.disk.remove(&self.path(newest.after))?;
        }
        let gap = state.segments[at].has_gap;
        if hole.offset < SEGMENT_HEADER_LEN as u64 {
            self.disk.write_atomic(&hole.file, &file::header(after, gap))?;
        } else {
            self.disk.truncate(&hole.file, offset)?;
        }
        let segment = &mut state.segments[at];
        segment.bytes = offset;
        segment.sealed_at = None;
        segment.marks.retain(|(_, marked)| *marked < offset);
        if offset == SEGMENT_HEADER_LEN as u64 {
            segment.first_record_at = None;
        }
        state.rewrites += 1;
        state.last = hole.after.max(after);
        let before = hole.after;
        state.holes.retain(|hole| hole.after < before);
        tracing::warn!(hole.file, offset, "taken down again from the replicated log");
        Ok(())
    }

    /// Scrubs the segment that comes after this number, or the first one after it, and adds damage
    /// to the list of holes. Returns where to continue; nothing after the last one. A segment that
    /// the disk cannot read is a hole as a whole.
    pub fn scrub(&self, from: u64) -> Option<u64> {
        let (segment, rewritten) = {
            let state = self.lock();
            let segment = state.segments.iter().find(|segment| segment.after >= from)?;
            (segment.clone(), state.rewrites)
        };
        let next = Some(segment.after + 1);
        let path = self.path(segment.after);
        let header = file::read_header(&*self.disk, &path, segment.after);
        let (header, bytes) = match header.and_then(|ok| Ok((ok, self.disk.read(&path)?))) {
            // Removed in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return next,
            Err(error) => {
                self.note_unreadable(&segment, &error);
                return next;
            }
            Ok(read) => read,
        };
        let end = usize::try_from(segment.bytes).unwrap_or(usize::MAX).min(bytes.len());
        let (mut copy, mut seen) =
            (Segment::new(segment.after, segment.has_gap), SegmentsState::default());
        let (last, sound) = self.scan(&mut seen, &mut copy, &bytes[..end]);
        let mut state = self.lock();
        if state.rewrites != rewritten {
            return Some(segment.after);
        }
        if header.is_none() {
            self.note_damage(&mut state, segment.after, 0, segment.after, segment.after + 1);
        }
        let (at, until) = (sound as u64, segment.sealed_at.unwrap_or(state.last) + 1);
        if at < segment.bytes {
            self.note_damage(&mut state, segment.after, at, last, until);
        }
        for hole in seen.holes {
            self.note_damage(&mut state, segment.after, hole.offset, hole.after, hole.until);
        }
        next
    }

    fn note_unreadable(&self, segment: &Segment, error: &io::Error) {
        let file = self.path(segment.after);
        tracing::error!(file, %error, "cannot be read");
        let mut state = self.lock();
        let Some(now) = state.segments.iter().find(|s| s.after == segment.after) else { return };
        let until = now.sealed_at.unwrap_or(state.last) + 1;
        // Any other damage inside it is part of this hole.
        state.holes.retain(|hole| hole.file != file || hole.offset == 0);
        self.note_damage(
            &mut state,
            segment.after,
            SEGMENT_HEADER_LEN as u64,
            segment.after,
            until,
        );
    }

    /// The segment that is rewritten to fill a hole: the one with the damage, or the one before the
    /// missing records.
    fn segment_to_rewrite(&self, state: &SegmentsState, hole: &Hole) -> Option<usize> {
        if hole.is_damage && hole.offset > 0 {
            return state.segments.iter().position(|segment| self.path(segment.after) == hole.file);
        }
        state.segments.partition_point(|segment| segment.after <= hole.after).checked_sub(1)
    }
}

/// All records of a segment that read.
fn sound_records(bytes: &[u8], segment: &Segment) -> Vec<Record> {
    let (mut records, mut at, mut last) = (Vec::new(), SEGMENT_HEADER_LEN, segment.after);
    while at < bytes.len() {
        match file::scan_step(bytes, segment.after, 0, at, last) {
            ScanStep::Record { record, size } => {
                last = record.number;
                at += size;
                records.push(record);
            }
            ScanStep::Damage { next: Some(next) } => at = next,
            ScanStep::Seal { .. } | ScanStep::Damage { next: None } => break,
        }
    }
    records
}

/// Encodes a segment of these records, with the metadata to keep in memory.
fn encode_segment(
    segment: &Segment,
    records: &[Record],
    sealed: Option<u64>,
) -> io::Result<(Vec<u8>, Segment)> {
    let mut fresh = Segment { sealed_at: sealed, ..Segment::new(segment.after, segment.has_gap) };
    let mut bytes = file::header(segment.after, segment.has_gap);
    for record in records {
        fresh.add_mark(record.number, Time(record.at.0), bytes.len() as u64);
        let more = file::record(segment.after, bytes.len() as u64, record)?;
        bytes.extend_from_slice(&more);
    }
    fresh.bytes = bytes.len() as u64;
    if let Some(last) = sealed {
        bytes.extend_from_slice(&file::seal(segment.after, fresh.bytes, last)?);
    }
    Ok((bytes, fresh))
}
