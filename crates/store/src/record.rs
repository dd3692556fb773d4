//! The on-disk format of the log: segment headers and records.
//!
//! A record has a header of fixed size with a checksum of its own and a body with another, so that
//! a reader that met bad bytes can find the next header without trusting any length. Both checksums
//! are salted with the position the record was written to; a record that turns up somewhere else,
//! for instance in a recycled block, is not accepted.
//!
//! Each record carries the number of the *batch* it was written in and whether it ends it. A batch
//! is written with one flush, and the next one starts only after that flush succeeded. A bad record
//! is therefore the tail of a write that a power cut tore apart if nothing of a later batch follows
//! it, and damage otherwise; records of its own batch may well have reached the disk before it.
//! Checksums chained from record to record, the usual way, cannot distinguish these two.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::raft::{Entry, EntryPayload, LeaderId, LogId, Membership, NodeId, Payload, Vote};

/// The folder of the segments.
pub(crate) const DIR: &str = "log";
pub(crate) const VERSION: u32 = 1;
pub(crate) const SEGMENT_HEADER_LEN: usize = 64;
pub(crate) const RECORD_HEADER_LEN: usize = 48;
pub(crate) const RECORD_TRAILER_LEN: usize = 8;
const SEGMENT_MAGIC: &[u8; 8] = b"CELLWLOG";
const RECORD_MAGIC: u32 = 0x4345_4c52;
const ENDS_BATCH: u8 = 1;
/// The error for a record of an unknown kind that is valid in every other way.
pub(crate) const UNKNOWN_KIND: &str =
    "a record has a kind this build cannot read; run the newer one that wrote it";

pub(crate) fn segment_path(sequence: u64) -> String {
    format!("{DIR}/{sequence:016x}")
}

pub(crate) fn sequence_of(name: &str) -> Option<u64> {
    (name.len() == 16).then(|| u64::from_str_radix(name, 16).ok()).flatten()
}

/// The cell and replica that these files belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) cell: [u8; 16],
    pub(crate) replica: NodeId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) version: u32,
    pub(crate) sequence: u64,
    /// Index of the next entry when the segment was begun.
    pub(crate) first_index: u64,
    pub(crate) owner: Owner,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SEGMENT_HEADER_LEN);
        out.extend_from_slice(SEGMENT_MAGIC);
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.first_index.to_le_bytes());
        out.extend_from_slice(&self.owner.replica.to_le_bytes());
        out.extend_from_slice(&self.owner.cell);
        let check = xxh3_64_with_seed(&out, 0);
        out.extend_from_slice(&check.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<SegmentHeader, &'static str> {
        let bytes = bytes.get(..SEGMENT_HEADER_LEN).ok_or("the segment header is cut short")?;
        if &bytes[..8] != SEGMENT_MAGIC {
            return Err("this is not a log segment");
        }
        if xxh3_64_with_seed(&bytes[..56], 0) != u64_at(bytes, 56) {
            return Err("the checksum of the segment header does not match");
        }
        let mut cell = [0; 16];
        cell.copy_from_slice(&bytes[40..56]);
        Ok(SegmentHeader {
            version: u32_at(bytes, 8),
            sequence: u64_at(bytes, 16),
            first_index: u64_at(bytes, 24),
            owner: Owner { cell, replica: u64_at(bytes, 32) },
        })
    }
}

/// What raft must not lose besides the entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HardState {
    pub(crate) vote: Option<Vote>,
    /// A hint: written along with the next batch, so it may lag behind.
    pub(crate) committed: Option<LogId>,
    pub(crate) purged: Option<LogId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    Blank = 1,
    Normal = 2,
    Membership = 3,
    /// Entries from `index` on are void.
    Truncate = 4,
    /// The body is a [`HardState`], which replaces the previous one.
    State = 5,
}

impl RecordKind {
    fn from_byte(byte: u8) -> Option<RecordKind> {
        [
            RecordKind::Blank,
            RecordKind::Normal,
            RecordKind::Membership,
            RecordKind::Truncate,
            RecordKind::State,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }

    pub(crate) fn is_entry(self) -> bool {
        matches!(self, RecordKind::Blank | RecordKind::Normal | RecordKind::Membership)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: RecordKind,
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) node: NodeId,
    pub(crate) body: Bytes,
}

/// The position of a record; also the salt of its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordPosition {
    pub(crate) sequence: u64,
    pub(crate) offset: u64,
}

impl RecordPosition {
    fn salt(self) -> u64 {
        self.sequence.rotate_left(40) ^ self.offset
    }
}

/// A record as found on disk.
#[derive(Clone, Debug)]
pub(crate) struct DecodedRecord {
    pub(crate) record: Record,
    pub(crate) batch: u64,
    pub(crate) ends_batch: bool,
    pub(crate) len: usize,
}

impl Record {
    pub(crate) fn from_entry(entry: &Entry) -> Result<Record, postcard::Error> {
        let (kind, body) = match &entry.payload {
            EntryPayload::Blank => (RecordKind::Blank, Bytes::new()),
            EntryPayload::Normal(payload) => (RecordKind::Normal, payload.0.clone()),
            EntryPayload::Membership(members) => {
                (RecordKind::Membership, postcard::to_stdvec(members)?.into())
            }
        };
        let LogId { leader_id, index } = entry.log_id;
        Ok(Record { kind, index, term: leader_id.term, node: leader_id.node_id, body })
    }

    pub(crate) fn truncate(from: u64) -> Record {
        Record { kind: RecordKind::Truncate, index: from, term: 0, node: 0, body: Bytes::new() }
    }

    pub(crate) fn state(state: &HardState) -> Result<Record, postcard::Error> {
        let body = postcard::to_stdvec(state)?.into();
        Ok(Record { kind: RecordKind::State, index: 0, term: 0, node: 0, body })
    }

    pub(crate) fn log_id(&self) -> LogId {
        LogId::new(LeaderId::new(self.term, self.node), self.index)
    }

    pub(crate) fn to_entry(&self) -> Result<Entry, &'static str> {
        let payload = match self.kind {
            RecordKind::Blank => EntryPayload::Blank,
            RecordKind::Normal => EntryPayload::Normal(Payload(self.body.clone())),
            RecordKind::Membership => {
                let members: Membership = postcard::from_bytes(&self.body)
                    .map_err(|_| "a membership entry cannot be decoded")?;
                EntryPayload::Membership(members)
            }
            RecordKind::Truncate | RecordKind::State => return Err("this record is not an entry"),
        };
        Ok(Entry { log_id: self.log_id(), payload })
    }

    pub(crate) fn encoded_len(&self) -> usize {
        RECORD_HEADER_LEN + self.body.len() + RECORD_TRAILER_LEN
    }

    pub(crate) fn encode(
        &self,
        out: &mut Vec<u8>,
        position: RecordPosition,
        batch: u64,
        ends_batch: bool,
    ) {
        let start = out.len();
        out.extend_from_slice(&RECORD_MAGIC.to_le_bytes());
        out.extend_from_slice(&[self.kind as u8, if ends_batch { ENDS_BATCH } else { 0 }, 0, 0]);
        // `StoreConfig` keeps payloads below 2^30 bytes.
        out.extend_from_slice(&(self.body.len() as u32).to_le_bytes());
        for word in [batch, self.index, self.term, self.node] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        let check = xxh3_64_with_seed(&out[start..], position.salt());
        out.extend_from_slice(&(check as u32).to_le_bytes());
        out.extend_from_slice(&self.body);
        out.extend_from_slice(&xxh3_64_with_seed(&self.body, check).to_le_bytes());
    }

    /// Reads the record at the start of `bytes`, which were found at `position`.
    pub(crate) fn decode(
        bytes: &[u8],
        position: RecordPosition,
    ) -> Result<DecodedRecord, &'static str> {
        let head = bytes.get(..RECORD_HEADER_LEN).ok_or("a record is cut short")?;
        if u32_at(head, 0) != RECORD_MAGIC {
            return Err("there is no record here");
        }
        let check = xxh3_64_with_seed(&head[..RECORD_HEADER_LEN - 4], position.salt());
        if check as u32 != u32_at(head, RECORD_HEADER_LEN - 4) {
            return Err("the checksum of a record's head does not match");
        }
        let body_len = u32_at(head, 8) as usize;
        let len = RECORD_HEADER_LEN + body_len + RECORD_TRAILER_LEN;
        let body = bytes.get(RECORD_HEADER_LEN..len).ok_or("a record is cut short")?;
        let (body, tail) = body.split_at(body_len);
        if xxh3_64_with_seed(body, check) != u64_at(tail, 0) {
            return Err("the checksum of a record's body does not match");
        }
        let kind = RecordKind::from_byte(head[4]).ok_or(UNKNOWN_KIND)?;
        let record = Record {
            kind,
            index: u64_at(head, 20),
            term: u64_at(head, 28),
            node: u64_at(head, 36),
            body: Bytes::copy_from_slice(body),
        };
        let ends_batch = head[5] & ENDS_BATCH != 0;
        Ok(DecodedRecord { record, batch: u64_at(head, 12), ends_batch, len })
    }

    /// The batch of the record whose header is at the start of `bytes`, whatever became of its
    /// body.
    pub(crate) fn batch_of_head(bytes: &[u8], position: RecordPosition) -> Option<u64> {
        let head = bytes.get(..RECORD_HEADER_LEN)?;
        if u32_at(head, 0) != RECORD_MAGIC {
            return None;
        }
        let check = xxh3_64_with_seed(&head[..RECORD_HEADER_LEN - 4], position.salt());
        (check as u32 == u32_at(head, RECORD_HEADER_LEN - 4)).then(|| u64_at(head, 12))
    }
}

/// Callers have checked the length.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;

    fn sample() -> Record {
        let body = Bytes::from_static(b"some payload");
        Record { kind: RecordKind::Normal, index: 9, term: 3, node: 2, body }
    }

    /// The format is durable: these bytes were written by the first release of it.
    #[test]
    fn bytes_are_pinned() {
        let mut out = Vec::new();
        sample().encode(&mut out, RecordPosition { sequence: 1, offset: 64 }, 5, true);
        let text: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, PINNED_RECORD);
        let owner = Owner { cell: *b"0123456789abcdef", replica: 7 };
        let header = SegmentHeader { version: 1, sequence: 4, first_index: 100, owner };
        let text: String = header.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, PINNED_HEADER);
        assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
    }

    const PINNED_RECORD: &str = concat!(
        "524c4543020100000c00000005000000000000000900000000000000030000000000000002000000",
        "00000000cd8d29db736f6d65207061796c6f6164de34988f6d4eb694",
    );
    const PINNED_HEADER: &str = concat!(
        "43454c4c574c4f47010000000000000004000000000000006400000000000000",
        "07000000000000003031323334353637383961626364656670c18446f1ea9b82",
    );

    #[test]
    fn every_flipped_bit_is_seen() {
        let position = RecordPosition { sequence: 1, offset: 64 };
        let mut out = Vec::new();
        sample().encode(&mut out, position, 5, true);
        assert!(Record::decode(&out, position).is_ok_and(|found| found.record == sample()));
        for bit in 0..out.len() * 8 {
            let mut bad = out.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Record::decode(&bad, position).is_err(), "bit {bit} went unnoticed");
        }
    }

    #[test]
    fn a_record_is_valid_only_where_it_was_written() {
        let mut out = Vec::new();
        sample().encode(&mut out, RecordPosition { sequence: 1, offset: 64 }, 5, true);
        for position in
            [RecordPosition { sequence: 1, offset: 65 }, RecordPosition { sequence: 2, offset: 64 }]
        {
            assert!(Record::decode(&out, position).is_err());
        }
    }

    /// A record of a kind that a later build may have; whole in every other way.
    fn record_of_kind(kind: u8, position: RecordPosition) -> Vec<u8> {
        let mut out = Vec::new();
        sample().encode(&mut out, position, 5, true);
        out[4] = kind;
        let check = xxh3_64_with_seed(&out[..RECORD_HEADER_LEN - 4], position.salt());
        out[RECORD_HEADER_LEN - 4..RECORD_HEADER_LEN]
            .copy_from_slice(&(check as u32).to_le_bytes());
        let end = out.len() - RECORD_TRAILER_LEN;
        let sum = xxh3_64_with_seed(&out[RECORD_HEADER_LEN..end], check);
        out[end..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// The error of opening a log of one segment, and the segment afterwards.
    fn open_error(name: &str, version: u32, record: &[u8]) -> (String, Vec<u8>) {
        let owner = Owner { cell: [1; 16], replica: 7 };
        let header = SegmentHeader { version, sequence: 1, first_index: 0, owner };
        let dir = std::env::temp_dir().join(format!("cell-record-{name}-{}", std::process::id()));
        let disk = crate::RealDisk::open(&dir).unwrap();
        let path = segment_path(1);
        disk.write_atomic(&path, &[header.encode(), record.to_vec()].concat()).unwrap();
        let error = crate::recovery::recover(&disk, owner).map(drop).unwrap_err().to_string();
        let remaining = disk.read(&path).unwrap();
        // What is left behind in the temporary folder does no harm.
        let _ = std::fs::remove_dir_all(&dir);
        (error, remaining)
    }

    #[test]
    fn what_a_newer_build_wrote_is_refused_by_name_and_never_cut_off() {
        let (error, _) = open_error("version", VERSION + 1, &[]);
        let expected = "log/0000000000000001 has format version 2, this build reads up to 1; run \
                        a newer one";
        assert_eq!(error, expected);
        let record =
            record_of_kind(9, RecordPosition { sequence: 1, offset: SEGMENT_HEADER_LEN as u64 });
        let (error, remaining) = open_error("kind", VERSION, &record);
        assert!(error.contains("a kind this build cannot read; run the newer one"), "{error}");
        assert_eq!(remaining.len(), SEGMENT_HEADER_LEN + record.len(), "it is not a torn tail");
    }
}
