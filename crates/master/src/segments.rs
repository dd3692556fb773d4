//! Segmented record files with retention by age and size: the storage of event and audit logs.
//!
//! Records are numbered; numbers increase but need not be dense. A segment's header contains the
//! number it comes *after*, so that "nothing happened" and "it was removed" can be distinguished,
//! and whether something is missing right before it. A segment is sealed and synced before the next
//! one is begun, so opening reads both ends of the older ones and all of the last, not gigabytes.
//!
//! Bytes that do not read are a torn write only at the end of the newest segment, where nothing
//! sound follows and nothing had been synced: only that is cut. Everything else is a *hole*: what
//! is sound on both sides of it stays and is read, readers across it get a gap, and it is on the
//! list of [`Segments::holes`] until it has been filled from another replica
//! ([`Segments::fill_inside`], [`Segments::fill_between`]).
//!
//! Rejected: one file with an index beside it. Removing the oldest part would mean rewriting it,
//! and the index would be one more thing that can disagree. Rejected: refusing a segment with a
//! hole. The replicated log is whole, and a cell must not stop for its records.

mod file;
mod repair;

use cellwright_cell::time::{Span, Time};
use cellwright_store::Disk;
use cellwright_supervise::lock;
use file::{NAME_DIGITS, SEGMENT_HEADER_LEN, SYNC_MARK_FILE, ScanStep, SyncMark};
pub use repair::FillResult;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

/// A read starts in the file at the last mark before the number it wants.
const MARK_INTERVAL: u64 = 64 << 10;
/// Bytes read from a file at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// Limits on what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionLimits {
    pub segment_bytes: u64,
    /// Bytes of all segments together; the newest segment stays in any case.
    pub total_bytes: u64,
    pub age: Span,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub number: u64,
    pub at: Time,
    pub payload: Vec<u8>,
}

/// Consecutive records from one read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordBatch {
    pub records: Vec<Record>,
    /// Some of the requested records, before the first of these, are missing.
    pub has_gap: bool,
}

/// Numbers whose records are missing though they should be present: those between, exclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hole {
    pub after: u64,
    pub until: u64,
    pub file: String,
    pub offset: u64,
    /// True for bytes that do not read; false where the replica never had the records.
    pub is_damage: bool,
}

/// What opening found at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Bytes of a torn write that were cut off.
    pub torn: u64,
    /// Records up to this number had been synced and are missing from the end.
    pub lost: Option<u64>,
    /// Log index up to which everything had been recorded.
    pub covered: u64,
}

/// A numbered, bounded list of records on disk.
pub struct Segments {
    disk: Arc<dyn Disk>,
    dir: &'static str,
    retention: RetentionLimits,
    state: Mutex<SegmentsState>,
}

#[derive(Default)]
struct SegmentsState {
    segments: Vec<Segment>,
    last: u64,
    /// A write failed half-way and could not be undone; nothing may be written after it.
    is_broken: bool,
    /// Damage inside segments.
    holes: Vec<Hole>,
    /// Counts segments that were rewritten: a position read from one before may have moved.
    rewrites: u64,
    synced: Option<SyncMark>,
}

#[derive(Clone)]
struct Segment {
    after: u64,
    /// Something is missing between the segment before and this one.
    has_gap: bool,
    /// The offset at which its records end.
    bytes: u64,
    /// Set when it is complete: the last number that it covers.
    sealed_at: Option<u64>,
    /// Time of its first record.
    first_record_at: Option<Time>,
    /// Numbers and their offsets, ascending. Only for segments this process wrote or recovered.
    marks: Vec<(u64, u64)>,
}

impl Segments {
    /// # Errors
    /// When files cannot be read or cut.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &'static str,
        retention: RetentionLimits,
    ) -> io::Result<(Segments, OpenReport)> {
        let mut afters: Vec<u64> =
            disk.list(dir)?.iter().filter_map(|n| file::segment_number(n)).collect();
        afters.sort_unstable();
        let synced = SyncMark::read(&*disk, &format!("{dir}/{SYNC_MARK_FILE}"))?;
        let log = Segments { disk, dir, retention, state: Mutex::default() };
        let mut state = SegmentsState { synced, ..SegmentsState::default() };
        let mut found = OpenReport::default();
        for (at, after) in afters.iter().enumerate() {
            match afters.get(at + 1) {
                Some(next) => log.scan_old_segment(&mut state, *after, *next)?,
                None => found = log.recover(&mut state, *after)?,
            }
        }
        if state.segments.is_empty() {
            found.lost = state.synced.filter(|synced| synced.last > 0).map(|synced| synced.last);
        }
        if let Some(synced) = state.synced.filter(|_| found.lost.is_none()) {
            found.covered = synced.covered;
        }
        if let Some(lost) = found.lost {
            let (dir, last) = (log.dir, state.last);
            tracing::error!(dir, last, lost, "records that had been synced are gone from the end");
        }
        *log.lock() = state;
        Ok((log, found))
    }

    /// Scans a segment before the newest: both its ends, or all of it if one end is bad.
    fn scan_old_segment(&self, state: &mut SegmentsState, after: u64, next: u64) -> io::Result<()> {
        let path = self.path(after);
        let size = self.disk.size(&path)?;
        let header = file::read_header(&*self.disk, &path, after)?;
        let mut segment = self.next_segment(state, after, header);
        let sealed = file::read_seal(&*self.disk, &path, after, size)?;
        if header.is_some() && sealed.is_some() {
            segment.sealed_at = sealed;
            segment.bytes = size - file::SEAL_LEN as u64;
            if segment.bytes > SEGMENT_HEADER_LEN as u64 {
                let first = self.chunk(&path, SEGMENT_HEADER_LEN as u64, segment.bytes)?;
                let first = file::record_at(&first, after, SEGMENT_HEADER_LEN as u64, 0, after);
                segment.first_record_at = first.map(|(record, _)| record.at);
            }
        } else {
            let bytes = self.disk.read(&path)?;
            let (last, end) = self.scan(state, &mut segment, &bytes);
            if segment.sealed_at.is_none() {
                // Its end is missing, and with it whatever came before the next one.
                self.note_damage(state, after, end as u64, last, next + 1);
            }
        }
        state.last = segment.sealed_at.unwrap_or(next);
        state.segments.push(segment);
        Ok(())
    }

    /// Makes a segment the next one of the list. Where the one before does not end with the number
    /// that this one comes after, something is missing between them.
    fn next_segment(&self, state: &mut SegmentsState, after: u64, header: Option<bool>) -> Segment {
        let mut segment = Segment::new(after, header == Some(true));
        let mut damaged = header.is_none();
        // Nothing is missing before the oldest segment that is kept.
        let from = state.segments.last().map_or(after, |_| state.last.min(after));
        match state.segments.last() {
            // The records that its header marks as missing were put between them later.
            Some(before) if before.sealed_at == Some(after) => segment.has_gap = false,
            // A gap that it already marks is no new one; nor is one that was noted with the end
            // before it.
            Some(before) => {
                damaged |= before.sealed_at.is_some() && !segment.has_gap;
                segment.has_gap = true;
            }
            None => {}
        }
        if damaged {
            self.note_damage(state, after, 0, from, after + 1);
        }
        segment
    }

    /// Reads the newest segment to its end and cuts off a torn write.
    fn recover(&self, state: &mut SegmentsState, after: u64) -> io::Result<OpenReport> {
        let path = self.path(after);
        let header = file::read_header(&*self.disk, &path, after)?;
        let mut segment = self.next_segment(state, after, header);
        let mut bytes = self.disk.read(&path)?;
        if bytes.len() < SEGMENT_HEADER_LEN {
            bytes = file::header(after, segment.has_gap);
            self.disk.write_atomic(&path, &bytes)?;
        }
        let (last, end) = self.scan(state, &mut segment, &bytes);
        let mut found = OpenReport::default();
        let lost = state.synced.filter(|synced| {
            // A segment that had been begun later is missing altogether, or this one is short.
            let short = synced.after == after && synced.bytes > end as u64;
            (synced.after > after || short) && synced.last > last
        });
        found.lost = lost.map(|synced| synced.last);
        if end < bytes.len() && segment.sealed_at.is_none() {
            self.disk.truncate(&path, end as u64)?;
            found.torn = (bytes.len() - end) as u64;
            tracing::warn!(path, end, found.torn, "cut off what does not read at the end");
        }
        state.last = last;
        let synced = state.synced.filter(|synced| synced.after == after && lost.is_none());
        state.last = state.last.max(synced.map_or(0, |synced| synced.last));
        state.segments.push(segment);
        Ok(found)
    }

    /// Reads the records of a segment; returns its last number and where the sound part ends.
    /// Damage with something sound behind it becomes a hole.
    fn scan(&self, state: &mut SegmentsState, segment: &mut Segment, bytes: &[u8]) -> (u64, usize) {
        let (mut last, mut at) = (segment.after, SEGMENT_HEADER_LEN);
        while at < bytes.len() {
            match file::scan_step(bytes, segment.after, 0, at, last) {
                ScanStep::Record { record, size } => {
                    segment.add_mark(record.number, record.at, at as u64);
                    last = record.number;
                    at += size;
                }
                ScanStep::Seal { last: end } => {
                    segment.sealed_at = Some(end);
                    segment.bytes = at as u64;
                    return (last.max(end), at);
                }
                ScanStep::Damage { next: None } => break,
                ScanStep::Damage { next: Some(next) } => {
                    let until = match file::scan_step(bytes, segment.after, 0, next, last) {
                        ScanStep::Record { record, .. } => record.number,
                        ScanStep::Seal { last: end } => end + 1,
                        ScanStep::Damage { .. } => last + 1,
                    };
                    self.note_damage(state, segment.after, at as u64, last, until);
                    at = next;
                }
            }
        }
        segment.bytes = at as u64;
        (last, at)
    }

    /// Writes a record, unless one of its number or a later one is here already. It is durable
    /// after [`Segments::sync`].
    ///
    /// # Errors
    /// When the disk fails. The records before are unharmed.
    pub fn append(&self, number: u64, at: Time, payload: &[u8]) -> io::Result<bool> {
        let mut state = self.lock();
        if number <= state.last {
            return Ok(false);
        }
        if state.is_broken {
            return Err(io::Error::other("an earlier write was torn; restart to cut it off"));
        }
        let full = |s: &Segment| {
            s.sealed_at.is_some()
                || (s.bytes >= self.retention.segment_bytes && s.first_record_at.is_some())
        };
        if state.segments.last().is_none_or(full) {
            self.begin_segment(&mut state, false)?;
        }
        let Some(segment) = state.segments.last() else {
            return Err(io::Error::other("no segment to write to"));
        };
        let path = self.path(segment.after);
        let record = Record { number, at, payload: payload.to_vec() };
        let bytes = file::record(segment.after, segment.bytes, &record)?;
        let offset = segment.bytes;
        // Set until the write is done: a panic here leaves a record of unknown length.
        state.is_broken = true;
        if let Err(error) = self.disk.append(&path, &bytes) {
            let undone = self.disk.truncate(&path, offset);
            state.is_broken = undone.is_err();
            return Err(error);
        }
        if let Some(segment) = state.segments.last_mut() {
            segment.add_mark(number, at, offset);
            segment.bytes += bytes.len() as u64;
        }
        state.last = number;
        state.is_broken = false;
        Ok(true)
    }

    /// Marks everything between the last record and `number` as missing, because this replica
    /// continued from a snapshot or lost it. Readers get a gap.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn skip_to(&self, number: u64) -> io::Result<()> {
        let mut state = self.lock();
        if number <= state.last {
            return Ok(());
        }
        self.seal(&mut state)?;
        state.last = number;
        self.begin_segment(&mut state, true)
    }

    /// Ends the newest segment: nothing is written to it any more.
    fn seal(&self, state: &mut SegmentsState) -> io::Result<()> {
        let last = state.last;
        let Some(full) = state.segments.last_mut().filter(|full| full.sealed_at.is_none()) else {
            return Ok(());
        };
        let path = self.path(full.after);
        if let Err(error) = self.disk.append(&path, &file::seal(full.after, full.bytes, last)?) {
            let undone = self.disk.truncate(&path, full.bytes);
            state.is_broken = undone.is_err();
            return Err(error);
        }
        full.sealed_at = Some(last);
        self.disk.sync(&path)
    }

    fn begin_segment(&self, state: &mut SegmentsState, has_gap: bool) -> io::Result<()> {
        self.seal(state)?;
        let after = state.last;
        // A segment without records is begun again.
        let empty = state.segments.pop_if(|newest| newest.after == after);
        let has_gap = has_gap || empty.is_some_and(|empty| empty.has_gap);
        self.disk.write_atomic(&self.path(after), &file::header(after, has_gap))?;
        state.segments.push(Segment::new(after, has_gap));
        Ok(())
    }

    /// Everything appended so far survives a power cut once this returns; if it is missing later,
    /// it was damaged and not torn. Everything of the log up to `covered` had been recorded.
    ///
    /// # Errors
    /// When the disk fails; then nothing is known of what was written since the last sync.
    pub fn sync(&self, covered: u64) -> io::Result<()> {
        let (newest, synced) = {
            let state = self.lock();
            let Some(newest) = state.segments.last() else { return Ok(()) };
            let (after, bytes, last) = (newest.after, newest.bytes, state.last);
            let before = state.synced.map_or(0, |synced| synced.covered);
            let synced = SyncMark { after, bytes, last, covered: covered.max(before) };
            if state.synced == Some(synced) {
                return Ok(());
            }
            (self.path(after), synced)
        };
        match self.disk.sync(&newest) {
            // A newer one was begun in the meantime, which synced this one, and this one was
            // removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            done => done?,
        }
        match self.disk.write_atomic(&format!("{}/{SYNC_MARK_FILE}", self.dir), &synced.encode()) {
            // The older sync mark covers less, and a full disk must not end the replica.
            Err(error) if file::is_disk_full(&error) => {
                tracing::warn!(%error, self.dir, "what was synced is not noted");
            }
            noted => {
                noted?;
                self.lock().synced = Some(synced);
            }
        }
        Ok(())
    }

    /// Removes the oldest segments beyond the limits.
    ///
    /// # Errors
    /// When a file cannot be removed.
    pub fn trim(&self, now: Time) -> io::Result<()> {
        let mut state = self.lock();
        while state.segments.len() > 1 {
            let total: u64 = state.segments.iter().map(|segment| segment.bytes).sum();
            // The next segment began when the oldest one had its last record.
            let ended = state.segments[1].first_record_at;
            let old = ended.is_some_and(|ended| now.since(ended) > self.retention.age);
            if total <= self.retention.total_bytes && !old {
                break;
            }
            let path = self.path(state.segments[0].after);
            self.disk.remove(&path)?;
            state.segments.remove(0);
            state.holes.retain(|hole| hole.file != path);
            let oldest = state.segments[0].after;
            for hole in state.holes.iter_mut().filter(|hole| hole.until == oldest + 1) {
                hole.after = oldest;
            }
        }
        Ok(())
    }

    /// The number of the last record, or the number that was skipped to.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.lock().last
    }

    /// Everything after this number is present, apart from gaps inside; nothing if there is no
    /// file.
    #[must_use]
    pub fn reaches_back_to(&self) -> Option<u64> {
        self.lock().segments.first().map(|segment| segment.after)
    }

    /// Records of this number and later, at least one if there is any, then up to `max_bytes`.
    /// Stops before a gap, so that the next call reports it.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn read_from(&self, number: u64, max_bytes: usize) -> io::Result<RecordBatch> {
        // Files are read without the lock, so that readers do not hold up the writer. Segments that
        // are removed or replaced in the meantime are looked up again.
        loop {
            let (list, last, rewritten) = {
                let state = self.lock();
                (state.segments.clone(), state.last, state.rewrites)
            };
            let batch = RecordBatch::default();
            let mut read =
                ReadProgress { number, bytes_left: max_bytes, rewrites: rewritten, batch };
            let done = self.read_list(&list, last, &mut read);
            let first = list.first().map(|segment| segment.after);
            let is_same = || self.lock().segments.first().map(|segment| segment.after) == first;
            match done {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound && !is_same() => {}
                done => return done.map(|()| read.batch),
            }
        }
    }

    fn read_list(&self, list: &[Segment], last: u64, read: &mut ReadProgress) -> io::Result<()> {
        let number = read.number;
        let first = list.partition_point(|segment| segment.after < number);
        read.batch.has_gap = first == 0 && !list.is_empty() && number > 0;
        for (at, segment) in list.iter().enumerate().skip(first.saturating_sub(1)) {
            if segment.has_gap && segment.after >= number && at > 0 && !read.cross_gap() {
                break;
            }
            let end = list.get(at + 1).map_or(last, |next| next.after);
            if !self.read_segment(segment, end, read)? {
                break;
            }
        }
        Ok(())
    }

    /// Returns whether there is space for more. `end` is the last number it can contain.
    fn read_segment(
        &self,
        segment: &Segment,
        end: u64,
        read: &mut ReadProgress,
    ) -> io::Result<bool> {
        let path = self.path(segment.after);
        let mark = segment.marks.partition_point(|(marked, _)| *marked <= read.number);
        let (mut last, mut offset) = match mark {
            0 => (segment.after, SEGMENT_HEADER_LEN as u64),
            _ => (segment.marks[mark - 1].0 - 1, segment.marks[mark - 1].1),
        };
        while offset < segment.bytes {
            let chunk = self.chunk(&path, offset, segment.bytes)?;
            let mut used = 0;
            while let Some((record, size)) =
                file::record_at(&chunk, segment.after, offset, used, last)
            {
                used += size;
                last = record.number;
                if record.number >= read.number && !read.accept(record) {
                    return Ok(false);
                }
            }
            offset += used as u64;
            if used > 0 {
                continue;
            }
            // The next record is damaged here.
            let (next, until) = self.next_sound(segment, offset, last, end, read.rewrites)?;
            if until > read.number && until > last + 1 && !read.cross_gap() {
                return Ok(false);
            }
            offset = next;
        }
        Ok(true)
    }

    /// Where the next sound record begins behind damage at `offset`, and its number.
    fn next_sound(
        &self,
        segment: &Segment,
        offset: u64,
        last: u64,
        end: u64,
        rewritten: u64,
    ) -> io::Result<(u64, u64)> {
        let bytes = self.disk.read(&self.path(segment.after))?;
        let mut state = self.lock();
        if state.rewrites != rewritten {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let at = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let next = match file::scan_step(&bytes, segment.after, 0, at, last) {
            ScanStep::Damage { next } => next,
            ScanStep::Record { .. } | ScanStep::Seal { .. } => Some(at),
        };
        let record = next.and_then(|next| file::record_at(&bytes, segment.after, 0, next, last));
        let (next, until) = match (next, record) {
            (Some(next), Some((record, _))) => (next as u64, record.number),
            _ => (segment.bytes, end + 1),
        };
        self.note_damage(&mut state, segment.after, offset, last, until);
        Ok((next, until))
    }

    /// Reads from `offset` on, at least one whole record.
    fn chunk(&self, path: &str, offset: u64, end: u64) -> io::Result<Vec<u8>> {
        let left = end - offset;
        let read = |length: u64| match self.disk.read_at(path, offset, length as usize) {
            // The file was cut short.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Vec::new()),
            read => read,
        };
        let chunk = read(left.min(CHUNK_BYTES))?;
        let whole = file::frame_size(&chunk);
        if whole <= chunk.len() as u64 || whole > left {
            return Ok(chunk);
        }
        read(whole)
    }

    fn path(&self, after: u64) -> String {
        format!("{}/{after:0NAME_DIGITS$}", self.dir)
    }

    fn lock(&self) -> MutexGuard<'_, SegmentsState> {
        // A panic while the list was being changed: it may no longer match the files.
        lock(&self.state)
    }
}

/// What a reader requested and has so far.
struct ReadProgress {
    number: u64,
    bytes_left: usize,
    /// How many segments had been rewritten when it began.
    rewrites: u64,
    batch: RecordBatch,
}

impl ReadProgress {
    /// Continues behind a gap, if nothing was read before it.
    fn cross_gap(&mut self) -> bool {
        self.batch.has_gap |= self.batch.records.is_empty();
        self.batch.records.is_empty()
    }

    fn accept(&mut self, record: Record) -> bool {
        if record.payload.len() > self.bytes_left && !self.batch.records.is_empty() {
            return false;
        }
        self.bytes_left = self.bytes_left.saturating_sub(record.payload.len());
        self.batch.records.push(record);
        true
    }
}

impl Segment {
    fn new(after: u64, has_gap: bool) -> Segment {
        let bytes = SEGMENT_HEADER_LEN as u64;
        Segment { after, has_gap, bytes, sealed_at: None, first_record_at: None, marks: Vec::new() }
    }

    fn add_mark(&mut self, number: u64, at: Time, offset: u64) {
        self.first_record_at.get_or_insert(at);
        if self.marks.last().is_none_or(|(_, marked)| offset - marked >= MARK_INTERVAL) {
            self.marks.push((number, offset));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
