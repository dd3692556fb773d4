//! Log recovery at a start, and how a torn write is distinguished from damage.
//!
//! A power cut leaves the last batch in any state: whole, absent, or in pieces. Its flush had not
//! returned, so nothing in it was acknowledged; it is cut off and reported. Everything before it
//! had been flushed. If that reads wrong, the disk lied or rotted, and the replica must not take
//! part: a quorum may have counted on what is missing.
//!
//! Damage inside the very last batch cannot be distinguished, because nothing after it proves that
//! it had been flushed. It is cut as well; a cell of three survives that.
//!
//! The log itself cannot show that whole writes are missing from its end. Other files can: a
//! snapshot of this replica is of entries that its log had flushed, and a state machine's own
//! records of what it applied come after the flush. A log that ends before either has lost entries,
//! and votes with them. Only a snapshot that another replica sent may be newer, until the log has
//! followed; which one that is, is recorded in a file of its own, written first.
//!
//! A leader that restarts starts a new election and does not resume its term. Resuming, which
//! openraft would do, needs two things that are not certain here: that no index of the term is
//! assigned twice, though followers may hold entries of it that a power cut took from this leader,
//! and that it knows what had been committed, for the recorded commit lags behind and linearizable
//! reads would be stale.

use std::collections::VecDeque;
use std::io;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::disk::Disk;
use crate::error::OpenError;
use crate::log::{EntrySlot, RecordLocation};
use crate::raft::{EntryPayload, LogId, Membership, NodeId, next_index};
use crate::record::{
    DIR, DecodedRecord, HardState, Owner, RECORD_HEADER_LEN, Record, RecordKind, RecordPosition,
    SEGMENT_HEADER_LEN, SegmentHeader, UNKNOWN_KIND, VERSION, segment_path, sequence_of,
};

/// What was cut off the end of the log when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    pub file: String,
    pub offset: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) sequence: u64,
    pub(crate) len: u64,
    /// Index of the next entry at this segment's end.
    pub(crate) next_index: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Recovered {
    pub(crate) segments: Vec<Segment>,
    pub(crate) hard_state: HardState,
    pub(crate) slots: VecDeque<EntrySlot>,
    pub(crate) next_index: u64,
    pub(crate) batch: u64,
    pub(crate) torn_tail: Option<TornTail>,
    /// The cell and replica that these files belong to; `None` when there are no files.
    pub(crate) owner: Option<Owner>,
    /// Membership changes among the entries, with their indexes.
    pub(crate) members: Vec<(u64, Membership)>,
}

/// Reads the log for its replica and cuts off what a torn write left at the end.
pub(crate) fn recover(disk: &dyn Disk, owner: Owner) -> Result<Recovered, OpenError> {
    let mut log = scan(disk, Some(owner))?;
    if let Some(TornTail { file, offset, .. }) = &log.torn_tail {
        let at = |source| OpenError::Disk { path: file.clone(), source };
        disk.truncate(file, *offset).map_err(at)?;
    }
    // A process that was killed between a write and its flush left bytes that read well and may
    // still be lost. From here on everything that was read counts as durable.
    if let Some(newest) = log.segments.last() {
        let path = segment_path(newest.sequence);
        disk.sync(&path).map_err(|source| OpenError::Disk { path, source })?;
    }
    log.check_consistency()?;
    Ok(log)
}

/// Reads all segments and changes nothing. Without an expected owner the first segment says who the
/// owner is.
pub(crate) fn scan(disk: &dyn Disk, expected: Option<Owner>) -> Result<Recovered, OpenError> {
    let at = |path: &str, source| OpenError::Disk { path: path.to_owned(), source };
    let names = disk.list(DIR).map_err(|e| at(DIR, e))?;
    let mut sequences: Vec<u64> = names.iter().filter_map(|name| sequence_of(name)).collect();
    sequences.sort_unstable();
    let mut log = Recovered { owner: expected, ..Recovered::default() };
    for (nth, &sequence) in sequences.iter().enumerate() {
        let path = segment_path(sequence);
        if nth > 0 && sequences[nth - 1] + 1 != sequence {
            let file = segment_path(sequences[nth - 1] + 1);
            return Err(damaged_error(&file, 0, "this segment is missing"));
        }
        let bytes = disk.read(&path).map_err(|e| at(&path, e))?;
        let header = check_header(&bytes, &path, sequence, log.owner)?;
        log.owner = Some(header.owner);
        if nth == 0 {
            log.next_index = header.first_index;
        } else if log.next_index != header.first_index {
            return Err(damaged_error(
                &path,
                24,
                "the segment does not continue the one before it",
            ));
        }
        // Memory is for the newest entries, about a segment of them.
        log.slots.iter_mut().for_each(|slot| slot.entry = None);
        let end = log.read_records(&bytes, &path, sequence, nth + 1 == sequences.len())?;
        if end < bytes.len() {
            let bytes = (bytes.len() - end) as u64;
            log.torn_tail = Some(TornTail { file: path, offset: end as u64, bytes });
        }
        log.segments.push(Segment { sequence, len: end as u64, next_index: log.next_index });
    }
    Ok(log)
}

fn check_header(
    bytes: &[u8],
    path: &str,
    sequence: u64,
    expected: Option<Owner>,
) -> Result<SegmentHeader, OpenError> {
    // A segment is created whole, so its header can be damaged but never torn.
    let header = SegmentHeader::decode(bytes).map_err(|reason| damaged_error(path, 0, reason))?;
    if header.version > VERSION {
        let (file, found) = (path.to_owned(), header.version);
        return Err(OpenError::TooNew { file, found, known: VERSION });
    }
    if let Some(owner) = expected.filter(|owner| *owner != header.owner) {
        let name = |owner: Owner| {
            let cell = u128::from_be_bytes(owner.cell);
            format!("replica {} of cell {cell:032x}", owner.replica)
        };
        let (found, expected) = (name(header.owner), name(owner));
        return Err(OpenError::WrongOwner { file: path.to_owned(), found, expected });
    }
    if header.sequence != sequence {
        return Err(damaged_error(path, 16, "the segment's number is not that of its file"));
    }
    Ok(header)
}

impl Recovered {
    /// Reads the records of one segment; returns where the good part ends.
    fn read_records(
        &mut self,
        bytes: &[u8],
        path: &str,
        sequence: u64,
        last_segment: bool,
    ) -> Result<usize, OpenError> {
        let mut offset = SEGMENT_HEADER_LEN;
        // The batch that a record at `offset` would belong to.
        let mut open_batch = self.batch + 1;
        while offset < bytes.len() {
            let position = RecordPosition { sequence, offset: offset as u64 };
            match Record::decode(&bytes[offset..], position) {
                Ok(found) => {
                    if found.batch < open_batch {
                        return Err(damaged_error(
                            path,
                            position.offset,
                            "a record is out of order",
                        ));
                    }
                    self.apply_record(&found, position)
                        .map_err(|reason| damaged_error(path, position.offset, reason))?;
                    self.batch = found.batch;
                    open_batch = found.batch + u64::from(found.ends_batch);
                    offset += found.len;
                }
                Err(reason) => {
                    // Its checksums are right, so no power cut made it this way.
                    let is_whole = reason == UNKNOWN_KIND;
                    let is_damage = || later_batch_follows(bytes, position, open_batch);
                    if !last_segment || is_whole || is_damage() {
                        return Err(damaged_error(path, position.offset, reason));
                    }
                    self.batch = open_batch;
                    return Ok(offset);
                }
            }
        }
        Ok(offset)
    }

    fn apply_record(
        &mut self,
        found: &DecodedRecord,
        position: RecordPosition,
    ) -> Result<(), &'static str> {
        let record = &found.record;
        match record.kind {
            RecordKind::State => {
                self.hard_state = postcard::from_bytes(&record.body)
                    .map_err(|_| "a state record cannot be decoded")?;
                self.drop_purged();
            }
            RecordKind::Truncate => {
                let kept = self.next_index.saturating_sub(record.index) as usize;
                let len = self.slots.len();
                self.slots.truncate(len - kept.min(len));
                self.next_index = record.index;
                self.members.retain(|(index, _)| *index < record.index);
            }
            RecordKind::Blank | RecordKind::Normal | RecordKind::Membership => {
                if record.index < self.next_index
                    || (record.index > self.next_index && !self.slots.is_empty())
                {
                    return Err("an entry does not follow the one before it");
                }
                let location = RecordLocation { position, len: found.len };
                let entry = record.to_entry()?;
                if let EntryPayload::Membership(members) = &entry.payload {
                    self.members.push((record.index, members.clone()));
                }
                self.slots.push_back(EntrySlot::on_disk(entry, location));
                self.next_index = record.index + 1;
            }
        }
        Ok(())
    }

    fn drop_purged(&mut self) {
        let keep_from = next_index(self.hard_state.purged.as_ref());
        while self.slots.front().is_some_and(|slot| slot.id.index < keep_from) {
            self.slots.pop_front();
        }
        self.next_index = self.next_index.max(keep_from);
    }

    pub(crate) fn check_consistency(&mut self) -> Result<(), OpenError> {
        let purged = next_index(self.hard_state.purged.as_ref());
        let first = self.slots.front().map_or(self.next_index, |slot| slot.id.index);
        if first != purged {
            let reason = format!("entries {purged} to {first} are missing at the start of the log");
            let file = self.segments.first().map(|segment| segment_path(segment.sequence));
            return Err(damaged_error(&file.unwrap_or_else(|| DIR.to_owned()), 0, &reason));
        }
        // Written ahead of the entries it refers to, which a power cut may have taken. The entries
        // that remain are committed: they are on this disk and on those of the others that were
        // counted.
        let last = self.last();
        if next_index(self.hard_state.committed.as_ref()) > self.next_index {
            self.hard_state.committed = last;
        }
        Ok(())
    }

    /// A leader that restarts does not go on leading in its term. Followers may hold entries of
    /// that term that were lost here, and their indexes would be assigned again.
    pub(crate) fn give_up_leadership(&mut self, replica: NodeId) {
        if let Some(vote) = &mut self.hard_state.vote
            && vote.leader_id.node_id == replica
        {
            vote.committed = false;
        }
    }

    pub(crate) fn last(&self) -> Option<LogId> {
        self.slots.back().map(|slot| slot.id).or(self.hard_state.purged)
    }
}

/// Whether anything written after the batch of the bad record at `position` had been flushed.
fn later_batch_follows(bytes: &[u8], position: RecordPosition, batch: u64) -> bool {
    let from = position.offset as usize + 1;
    (from..bytes.len().saturating_sub(RECORD_HEADER_LEN)).any(|offset| {
        let position = RecordPosition { sequence: position.sequence, offset: offset as u64 };
        Record::batch_of_head(&bytes[offset..], position).is_some_and(|found| found > batch)
    })
}

/// The file that says which snapshot of another replica is being saved.
const INSTALL_MARKER: &str = "log/installing";

fn install_marker_bytes(id: &LogId) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32);
    for word in [id.leader_id.term, id.leader_id.node_id, id.index] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    let check = xxh3_64_with_seed(&bytes, 0);
    bytes.extend_from_slice(&check.to_le_bytes());
    bytes
}

/// The index in a valid marker.
fn install_marker_index(marker: &[u8]) -> Option<u64> {
    let (words, check) = marker.split_at_checked(24)?;
    let is_whole = xxh3_64_with_seed(words, 0).to_le_bytes() == check;
    let index = words[16..].try_into().ok().filter(|_| is_whole)?;
    Some(u64::from_le_bytes(index))
}

/// Called before a snapshot of another replica is restored and saved. From here on the log may end
/// before that snapshot, and before what the state machine has on record as applied, which came
/// from the snapshot.
pub(crate) fn begin_install(disk: &dyn Disk, id: &LogId) -> io::Result<()> {
    disk.write_atomic(INSTALL_MARKER, &install_marker_bytes(id))
}

/// Called once the log continues after the snapshot; from then on a log that ends earlier is damage
/// again. `next` is the index of the next entry.
pub(crate) fn end_install(disk: &dyn Disk, next: u64) -> io::Result<()> {
    match disk.read(INSTALL_MARKER) {
        // A marker that does not read allows nothing and can be removed.
        Ok(bytes) => match bytes.get(16..24).and_then(|index| index.try_into().ok()) {
            Some(index) if u64::from_le_bytes(index) >= next => Ok(()),
            _ => disk.remove(INSTALL_MARKER),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// Rejects a log that ends before the snapshot it goes with, or before what the state machine has
/// on record as applied.
pub(crate) fn check_not_truncated(
    disk: &dyn Disk,
    log: &Recovered,
    snapshot: Option<(&str, &LogId)>,
    durable_applied: Option<u64>,
) -> Result<(), OpenError> {
    let Some(newest) = log.segments.last() else { return Ok(()) };
    let file = segment_path(newest.sequence);
    let truncated = |proof: String| {
        let next = log.next_index;
        let reason = format!(
            "the log ends before entry {next}, and {proof}: entries and votes after that are lost"
        );
        Err(damaged_error(&file, newest.len, &reason))
    };
    let marker = match disk.read(INSTALL_MARKER) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(source) => return Err(OpenError::Disk { path: INSTALL_MARKER.to_owned(), source }),
    };
    if let Some((name, id)) = snapshot.filter(|(_, id)| id.index >= log.next_index) {
        if marker != install_marker_bytes(id) {
            return truncated(format!("its snapshot {name} is of entry {}", id.index));
        }
        return Ok(());
    }
    let installing = install_marker_index(&marker).unwrap_or(0);
    match durable_applied.filter(|applied| *applied >= log.next_index && *applied > installing) {
        Some(durable_applied) => {
            truncated(format!("entry {durable_applied} had been applied here"))
        }
        None => Ok(()),
    }
}

fn damaged_error(file: &str, offset: u64, reason: &str) -> OpenError {
    OpenError::Damaged { file: file.to_owned(), offset, what: reason.to_owned() }
}
