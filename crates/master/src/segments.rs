//! Records in files, oldest first, forgotten by age and size: what the event log and the audit log
//! are made of.
//!
//! Records are numbered; numbers grow but need not be dense. A segment's header says which number
//! it comes *after*, so that "nothing happened" and "it was removed" can be told apart, and whether
//! something is missing right before it; and how long the one before it is, so that opening reads
//! heads and the last file, not gigabytes. A segment is synced when the next one is begun, so only
//! the last can be torn; it is cut at the first record that does not pass its checksum, and what is
//! cut is derived again from the replicated log or marked as a gap.
//!
//! Rejected: one file with an index beside it. Forgetting the oldest part would mean rewriting it,
//! and the index would be one more thing that can disagree.

use cellwright_cell::time::{Span, Time};
use cellwright_store::Disk;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const MAGIC: [u8; 8] = *b"CELLREC1";
/// Magic 8, after 8, gap 1, length of the segment before 8, checksum 8.
const HEADER: usize = 33;
/// What the checksum of a header covers.
const HEADER_BODY: usize = 25;
/// Length 4, number 8, time 8, checksum 8.
const HEAD: usize = 28;
/// A reader looks at the file from the last mark before what it wants.
const MARK_EVERY: u64 = 64 << 10;
/// Bytes read from a file at once.
const CHUNK: u64 = 1 << 20;

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    pub segment_bytes: u64,
    /// Of all segments together; the newest segment stays in any case.
    pub total_bytes: u64,
    pub age: Span,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub number: u64,
    pub at: Time,
    pub payload: Vec<u8>,
}

/// A stretch of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stretch {
    pub records: Vec<Record>,
    /// Some that were asked for, before the first of these, are not here.
    pub gap: bool,
}

/// What opening cut off the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    pub file: String,
    pub offset: u64,
    pub bytes: u64,
}

/// A numbered, bounded list of records on disk.
pub struct Segments {
    disk: Arc<dyn Disk>,
    dir: &'static str,
    keep: Keep,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    list: Vec<Segment>,
    last: u64,
    /// A write failed half-way and could not be undone; nothing may follow it.
    broken: bool,
}

#[derive(Clone)]
struct Segment {
    after: u64,
    /// Something is missing between the segment before and this one.
    gap: bool,
    bytes: u64,
    /// Time of its first record.
    since: Option<Time>,
    /// Numbers and where they stand, ascending. Only of segments this process wrote or recovered.
    marks: Vec<(u64, u64)>,
}

impl Segments {
    /// # Errors
    /// When files cannot be read or cut.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &'static str,
        keep: Keep,
    ) -> io::Result<(Segments, Option<Cut>)> {
        let mut names = disk.list(dir)?;
        names.sort();
        let mut inner = Inner::default();
        for name in names.iter().filter(|name| name.len() == 20) {
            let path = format!("{dir}/{name}");
            let Some((after, gap, before)) = read_header(&*disk, &path)? else {
                tracing::error!(path, "no segment header; the file is left alone");
                continue;
            };
            if let Some(complete) = inner.list.last_mut() {
                complete.bytes = before;
            }
            inner.list.push(Segment::new(after, gap));
        }
        let log = Segments { disk, dir, keep, inner: Mutex::default() };
        let newest = inner.list.len().saturating_sub(1);
        let mut cut = None;
        for (at, segment) in inner.list.iter_mut().enumerate() {
            if at == newest {
                (inner.last, cut) = log.recover(segment)?;
            } else {
                log.survey(segment)?;
            }
        }
        *log.lock() = inner;
        Ok((log, cut))
    }

    /// The first record of a segment that is complete.
    fn survey(&self, segment: &mut Segment) -> io::Result<()> {
        if segment.bytes >= (HEADER + HEAD) as u64 {
            let head = self.disk.read_at(&self.path(segment.after), HEADER as u64, HEAD)?;
            segment.since = Some(Time(word(&head, 12)));
        }
        Ok(())
    }

    /// Reads the newest segment to its end and cuts what does not read.
    fn recover(&self, segment: &mut Segment) -> io::Result<(u64, Option<Cut>)> {
        let file = self.path(segment.after);
        let bytes = self.disk.read(&file)?;
        let mut last = segment.after;
        let mut offset = HEADER;
        while let Some(found) = parse(&bytes[offset..], offset as u64, last) {
            segment.note(found.number, found.at, offset as u64);
            last = found.number;
            offset += HEAD + found.payload.len();
        }
        segment.bytes = offset as u64;
        if offset == bytes.len() {
            return Ok((last, None));
        }
        self.disk.truncate(&file, offset as u64)?;
        let cut = Cut { file, offset: offset as u64, bytes: (bytes.len() - offset) as u64 };
        tracing::warn!(?cut, "cut off a torn write");
        Ok((last, Some(cut)))
    }

    /// Writes a record, unless one of its number or a later one is here already. It is durable
    /// after [`Segments::sync`].
    ///
    /// # Errors
    /// When the disk refuses. The records before are unharmed.
    pub fn append(&self, number: u64, at: Time, payload: &[u8]) -> io::Result<bool> {
        let mut inner = self.lock();
        if number <= inner.last {
            return Ok(false);
        }
        if inner.broken {
            return Err(io::Error::other("an earlier write was torn; restart to cut it off"));
        }
        let full = |s: &Segment| s.bytes >= self.keep.segment_bytes && s.since.is_some();
        if inner.list.last().is_none_or(full) {
            self.begin(&mut inner, false)?;
        }
        let Some(segment) = inner.list.last_mut() else {
            return Err(io::Error::other("no segment to write to"));
        };
        let path = self.path(segment.after);
        let record = encode(number, at, payload, segment.bytes)?;
        if let Err(error) = self.disk.append(&path, &record) {
            let undone = self.disk.truncate(&path, segment.bytes);
            inner.broken = undone.is_err();
            return Err(error);
        }
        let offset = segment.bytes;
        segment.note(number, at, offset);
        segment.bytes += record.len() as u64;
        inner.last = number;
        Ok(true)
    }

    /// Whatever lies between the last record and `number` is not here and never will be, because
    /// this replica went on from a snapshot. Readers are told.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn skip_to(&self, number: u64) -> io::Result<()> {
        let mut inner = self.lock();
        if number <= inner.last {
            return Ok(());
        }
        inner.last = number;
        self.begin(&mut inner, true)
    }

    fn begin(&self, inner: &mut Inner, gap: bool) -> io::Result<()> {
        let after = inner.last;
        let mut before = 0;
        if let Some(full) = inner.list.last() {
            self.disk.sync(&self.path(full.after))?;
            before = full.bytes;
        }
        self.disk.write_new(&self.path(after), &header(after, gap, before))?;
        inner.list.push(Segment::new(after, gap));
        Ok(())
    }

    /// Everything appended so far survives a power cut once this returns.
    ///
    /// # Errors
    /// When the disk refuses; then nothing is known of what was written since the last sync.
    pub fn sync(&self) -> io::Result<()> {
        let newest = self.lock().list.last().map(|segment| self.path(segment.after));
        newest.map_or(Ok(()), |path| self.disk.sync(&path))
    }

    /// Forgets the oldest segments beyond the bounds.
    ///
    /// # Errors
    /// When a file cannot be removed.
    pub fn trim(&self, now: Time) -> io::Result<()> {
        let mut inner = self.lock();
        while inner.list.len() > 1 {
            let total: u64 = inner.list.iter().map(|segment| segment.bytes).sum();
            // The next segment began when the oldest one had its last record.
            let ended = inner.list[1].since;
            let old = ended.is_some_and(|ended| now.since(ended) > self.keep.age);
            if total <= self.keep.total_bytes && !old {
                break;
            }
            self.disk.remove(&self.path(inner.list[0].after))?;
            inner.list.remove(0);
        }
        Ok(())
    }

    /// The number of the last record, or of what was skipped to.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.lock().last
    }

    /// Everything after this number is here, apart from gaps inside; nothing if there is no file.
    #[must_use]
    pub fn reaches_back_to(&self) -> Option<u64> {
        self.lock().list.first().map(|segment| segment.after)
    }

    /// Records of this number and later, at least one if there is any, then up to `max_bytes`.
    /// Stops before a gap, so that the next call reports it.
    ///
    /// # Errors
    /// When a file cannot be read, or is damaged inside.
    pub fn read_from(&self, number: u64, max_bytes: usize) -> io::Result<Stretch> {
        // Files are read without the lock, so that readers do not hold up the writer. What is
        // removed meanwhile is found missing and looked up again.
        loop {
            let list = self.lock().list.clone();
            match self.read_list(&list, number, max_bytes) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let still = self.lock().list.first().map(|segment| segment.after);
                    if still == list.first().map(|segment| segment.after) {
                        return Err(error);
                    }
                }
                read => return read,
            }
        }
    }

    fn read_list(&self, list: &[Segment], number: u64, max_bytes: usize) -> io::Result<Stretch> {
        let mut stretch = Stretch::default();
        let mut room = max_bytes;
        let first = list.partition_point(|segment| segment.after < number);
        stretch.gap = first == 0 && !list.is_empty() && number > 0;
        for (at, segment) in list.iter().enumerate().skip(first.saturating_sub(1)) {
            if segment.gap && segment.after >= number && at > 0 {
                if !stretch.records.is_empty() {
                    break;
                }
                stretch.gap = true;
            }
            if !self.read_segment(segment, number, &mut room, &mut stretch.records)? {
                break;
            }
        }
        Ok(stretch)
    }

    /// Returns whether there is room for more.
    fn read_segment(
        &self,
        segment: &Segment,
        number: u64,
        room: &mut usize,
        records: &mut Vec<Record>,
    ) -> io::Result<bool> {
        let path = self.path(segment.after);
        let mark = segment.marks.partition_point(|(marked, _)| *marked <= number);
        let mut offset = match mark {
            0 => HEADER as u64,
            _ => segment.marks[mark - 1].1,
        };
        let mut last = segment.after;
        while offset < segment.bytes {
            let chunk = self.chunk(&path, offset, segment.bytes)?;
            let mut used = 0;
            while let Some(found) = parse(&chunk[used..], offset + used as u64, last) {
                used += HEAD + found.payload.len();
                last = found.number;
                if found.number < number {
                    continue;
                }
                if found.payload.len() > *room && !records.is_empty() {
                    return Ok(false);
                }
                *room = room.saturating_sub(found.payload.len());
                records.push(found);
            }
            if used == 0 {
                let text = format!("{path} is damaged at byte {offset}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            offset += used as u64;
        }
        Ok(true)
    }

    /// From `offset` on, at least one whole record.
    fn chunk(&self, path: &str, offset: u64, end: u64) -> io::Result<Vec<u8>> {
        let left = end - offset;
        let chunk = self.disk.read_at(path, offset, left.min(CHUNK) as usize)?;
        let first = chunk.first_chunk::<4>().map_or(0, |length| u32::from_le_bytes(*length));
        let whole = HEAD as u64 + u64::from(first);
        if whole <= chunk.len() as u64 || whole > left {
            return Ok(chunk);
        }
        self.disk.read_at(path, offset, whole as usize)
    }

    fn path(&self, after: u64) -> String {
        format!("{}/{after:020}", self.dir)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while the list was being changed: what it says of the files may be wrong.
        self.inner.lock().unwrap_or_else(|_| std::process::abort())
    }
}

impl Segment {
    fn new(after: u64, gap: bool) -> Segment {
        Segment { after, gap, bytes: HEADER as u64, since: None, marks: Vec::new() }
    }

    fn note(&mut self, number: u64, at: Time, offset: u64) {
        self.since.get_or_insert(at);
        if self.marks.last().is_none_or(|(_, marked)| offset - marked >= MARK_EVERY) {
            self.marks.push((number, offset));
        }
    }
}

fn header(after: u64, gap: bool, before: u64) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&after.to_le_bytes());
    bytes.push(u8::from(gap));
    bytes.extend_from_slice(&before.to_le_bytes());
    let checksum = xxh3_64_with_seed(&bytes, 0);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

fn read_header(disk: &dyn Disk, path: &str) -> io::Result<Option<(u64, bool, u64)>> {
    let bytes = match disk.read_at(path, 0, HEADER) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    let sum = xxh3_64_with_seed(&bytes[..HEADER_BODY], 0);
    let good = bytes[..8] == MAGIC && sum == word(&bytes, HEADER_BODY);
    Ok(good.then(|| (word(&bytes, 8), bytes[16] == 1, word(&bytes, 17))))
}

fn encode(number: u64, at: Time, payload: &[u8], offset: u64) -> io::Result<Vec<u8>> {
    let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "record of 4 GiB or more");
    let length = u32::try_from(payload.len()).map_err(too_long)?;
    let mut bytes = Vec::with_capacity(HEAD + payload.len());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&at.0.to_le_bytes());
    let checksum = checksum(&bytes, payload, offset);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes.extend_from_slice(payload);
    Ok(bytes)
}

/// The record at the start of `bytes`, if there is a whole and sound one numbered above `last`.
fn parse(bytes: &[u8], offset: u64, last: u64) -> Option<Record> {
    let head = bytes.first_chunk::<HEAD>()?;
    let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let payload = bytes.get(HEAD..HEAD.checked_add(length)?)?;
    let (number, at) = (word(head, 4), Time(word(head, 12)));
    let sound = checksum(&head[..20], payload, offset) == word(head, 20) && number > last;
    sound.then(|| Record { number, at, payload: payload.to_vec() })
}

/// Salted with the place, so that a record that turns up elsewhere does not pass.
fn checksum(head: &[u8], payload: &[u8], offset: u64) -> u64 {
    xxh3_64_with_seed(payload, offset) ^ xxh3_64_with_seed(head, offset).rotate_left(1)
}

/// Eight bytes at `from`; the caller has checked that they are there.
fn word(bytes: &[u8], from: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[from..from + 8]);
    u64::from_le_bytes(eight)
}

#[cfg(test)]
pub(crate) mod tests;
