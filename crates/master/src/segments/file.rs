//! The file format of a segment: its header, its records, the seal at its end, and the sync mark
//! beside the segments, which contains how far they had been synced.

use super::Record;
use cellwright_cell::time::Time;
use cellwright_store::Disk;
use cellwright_store::frame::{self, FilePosition, Frame, HEADER_LEN, TRAILER_LEN};
use std::io;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const MAGIC: [u8; 7] = *b"CELLREC";
/// A digit behind the magic.
const VERSION: u8 = b'1';
/// Magic 7, version 1, after 8, gap 1, checksum 8.
pub(super) const SEGMENT_HEADER_LEN: usize = 25;
/// What the checksum of a header covers.
const HEADER_BODY_LEN: usize = 17;
/// A seal has no payload.
pub(super) const SEAL_LEN: usize = HEADER_LEN + TRAILER_LEN;
/// Stored beside the segments; its name is shorter than a segment's.
pub(super) const SYNC_MARK_FILE: &str = "synced";

const MARK_MAGIC: [u8; 7] = *b"CELLSYN";
/// Magic 7, version 1, four words, checksum 8.
const MARK_LEN: usize = 48;

/// Digits of a segment's name.
pub(super) const NAME_DIGITS: usize = 20;

pub(super) fn segment_number(name: &str) -> Option<u64> {
    (name.len() == NAME_DIGITS).then(|| name.parse().ok()).flatten()
}

pub(super) fn header(after: u64, has_gap: bool) -> Vec<u8> {
    let mut bytes = [&MAGIC[..], &[VERSION]].concat();
    bytes.extend_from_slice(&after.to_le_bytes());
    bytes.push(u8::from(has_gap));
    let checksum = xxh3_64_with_seed(&bytes, 0);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Whether something is missing before the segment `after`; nothing if the header is damaged.
pub(super) fn read_header(disk: &dyn Disk, path: &str, after: u64) -> io::Result<Option<bool>> {
    let bytes = match disk.read_at(path, 0, SEGMENT_HEADER_LEN) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    let sum = xxh3_64_with_seed(&bytes[..HEADER_BODY_LEN], 0);
    let whole = bytes[..7] == MAGIC && sum == u64_at(&bytes, HEADER_BODY_LEN);
    let good = whole && u64_at(&bytes, 8) == after;
    if whole {
        check_version(path, bytes[7])?;
    }
    Ok(good.then(|| bytes[16] == 1))
}

/// What a newer build wrote is not damaged: it is refused, and never taken for a hole to be filled.
fn check_version(path: &str, found: u8) -> io::Result<()> {
    if found <= VERSION {
        return Ok(());
    }
    let why = format!(
        "{path} has format version {}, this build reads up to {}; run a newer one",
        found.saturating_sub(b'0'),
        VERSION - b'0'
    );
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}

pub(super) fn record(after: u64, offset: u64, record: &Record) -> io::Result<Vec<u8>> {
    let frame = Frame {
        is_seal: false,
        number: record.number,
        time_millis: record.at.0,
        payload: record.payload.as_slice(),
    };
    frame.encode(FilePosition { file: after, offset })
}

/// The seal of a complete segment; `last` is the last number that it covers.
pub(super) fn seal(after: u64, offset: u64, last: u64) -> io::Result<Vec<u8>> {
    let frame = Frame { is_seal: true, number: last, time_millis: 0, payload: &[] };
    frame.encode(FilePosition { file: after, offset })
}

/// The last number in the seal at the end of a file.
pub(super) fn read_seal(
    disk: &dyn Disk,
    path: &str,
    after: u64,
    bytes: u64,
) -> io::Result<Option<u64>> {
    let Some(offset) = bytes.checked_sub(SEAL_LEN as u64) else { return Ok(None) };
    let tail = disk.read_at(path, offset, SEAL_LEN)?;
    let frame = frame::decode(&tail, FilePosition { file: after, offset });
    Ok(frame.filter(|frame| frame.is_seal).map(|frame| frame.number))
}

/// What is found at an offset of a segment.
pub(super) enum ScanStep {
    Record {
        record: Record,
        size: usize,
    },
    Seal {
        last: u64,
    },
    /// Nothing sound; where the next sound frame begins, if there is one.
    Damage {
        next: Option<usize>,
    },
}

/// Examines `bytes`, which begin at `offset` of the segment, `at` bytes in. Numbers increase: a
/// frame with a number up to `last` is from an earlier use of the space.
pub(super) fn scan_step(bytes: &[u8], after: u64, offset: u64, at: usize, last: u64) -> ScanStep {
    let position = |at: usize| FilePosition { file: after, offset: offset + at as u64 };
    let sound = |at: usize| {
        let frame = frame::decode(&bytes[at..], position(at))?;
        (frame.is_seal || frame.number > last).then_some(frame)
    };
    if let Some(frame) = sound(at) {
        if frame.is_seal {
            return ScanStep::Seal { last: frame.number };
        }
        let payload = frame.payload.to_vec();
        let record = Record { number: frame.number, at: Time(frame.time_millis), payload };
        return ScanStep::Record { record, size: frame.size() };
    }
    let start = position(0);
    let mut next = frame::find_next(bytes, start, at + 1);
    while let Some(found) = next.filter(|found| sound(*found).is_none()) {
        next = frame::find_next(bytes, start, found + 1);
    }
    ScanStep::Damage { next }
}

/// The record `at` bytes into `bytes`, which begin at `offset`, and how many bytes it takes.
pub(super) fn record_at(
    bytes: &[u8],
    after: u64,
    offset: u64,
    at: usize,
    last: u64,
) -> Option<(Record, usize)> {
    let position = FilePosition { file: after, offset: offset + at as u64 };
    let frame = frame::decode(bytes.get(at..)?, position)?;
    let sound = !frame.is_seal && frame.number > last;
    let payload = || frame.payload.to_vec();
    let record =
        || Record { number: frame.number, at: Time(frame.time_millis), payload: payload() };
    sound.then(|| (record(), frame.size()))
}

/// The length of the frame at the start of `bytes`, according to its header.
pub(super) fn frame_size(bytes: &[u8]) -> u64 {
    let length = bytes.get(4..8).and_then(|length| length.try_into().ok());
    length.map_or(0, |length| {
        (HEADER_LEN + TRAILER_LEN) as u64 + u64::from(u32::from_le_bytes(length))
    })
}

/// How far the records had been synced, and what they covered by then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SyncMark {
    /// The segment that was the newest.
    pub after: u64,
    pub bytes: u64,
    /// The last number in it.
    pub last: u64,
    /// Log index up to which everything had been recorded.
    pub covered: u64,
}

impl SyncMark {
    pub(super) fn encode(self) -> Vec<u8> {
        let words = [self.after, self.bytes, self.last, self.covered];
        let mut bytes = [&MARK_MAGIC[..], &[VERSION]].concat();
        bytes.extend(words.into_iter().flat_map(u64::to_le_bytes));
        let sum = xxh3_64_with_seed(&bytes, 1);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None` where there is no mark, or one that does not read: then nothing is known to be
    /// synced.
    pub(super) fn read(disk: &dyn Disk, path: &str) -> io::Result<Option<SyncMark>> {
        let bytes = match disk.read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let (body, sum) = bytes.split_at(bytes.len().saturating_sub(8));
        let is_whole = sum.len() == 8
            && body.starts_with(&MARK_MAGIC)
            && xxh3_64_with_seed(body, 1) == u64_at(sum, 0);
        if is_whole {
            check_version(path, body.get(7).copied().unwrap_or_default())?;
        }
        if !is_whole || bytes.len() != MARK_LEN {
            tracing::error!(path, "damaged; what had been synced is not known");
            return Ok(None);
        }
        let [after, bytes, last, covered] = [8, 16, 24, 32].map(|at| u64_at(&bytes, at));
        Ok(Some(SyncMark { after, bytes, last, covered }))
    }
}

pub(super) fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Eight bytes at `from`; the caller has checked that they are there.
fn u64_at(bytes: &[u8], from: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[from..from + 8]);
    u64::from_le_bytes(eight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_version_is_named_and_not_taken_for_damage() {
        let error = check_version("events/0", VERSION + 1).unwrap_err().to_string();
        let expected = "events/0 has format version 2, this build reads up to 1; run a newer one";
        assert_eq!(error, expected);
        assert!(check_version("events/0", VERSION).is_ok());
        let mark = SyncMark { after: 1, bytes: 2, last: 3, covered: 4 }.encode();
        assert_eq!((mark.len(), &mark[..8]), (MARK_LEN, b"CELLSYN1".as_slice()));
    }
}
