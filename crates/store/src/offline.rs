//! Read-only access to a replica's log and snapshots from outside, for queries about the past.
//!
//! It takes no lock and changes no byte, so it works beside a running master and on a copy of a
//! data directory. The scan is the one that opens the log for a replica; only what a replica would
//! repair (a torn tail, a damaged snapshot) is left as it is and reported.
//!
//! A running master may remove an old segment between the listing and the reading, so opening tries
//! again a few times, and every file stays open once it was seen: what this log reported as present
//! can be read until it is closed. Rejected: asking the master to pause, because then the past of a
//! cell that does not start could not be read, and that is when people want it most.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::disk::{Disk, DiskFuture};
use crate::error::OpenError;
use crate::log::EntrySlot;
use crate::raft::{Membership, NodeId, Peer, next_index};
use crate::record::{Owner, Record, RecordKind, segment_path};
use crate::recovery::{Recovered, TornTail, check_not_truncated, scan};
use crate::snapshot::{self, LoadedSnapshot};

/// How many times opening tries again when the files change under it.
const OPEN_ATTEMPTS: usize = 4;

/// The content of one log entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfflineEntry {
    pub index: u64,
    pub term: u64,
    pub content: EntryContent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryContent {
    /// What the state machine applies.
    Payload(Bytes),
    /// The entry that a new leader writes.
    Blank,
    /// The members of the cell from here on, and which of them vote.
    Members(Vec<(NodeId, Peer, bool)>),
}

/// A snapshot as described by its file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OfflineSnapshot {
    pub index: u64,
    pub term: u64,
}

pub struct OfflineLog {
    disk: ReadOnlyDisk,
    owner: Owner,
    slots: Vec<EntrySlot>,
    next_index: u64,
    committed_end: u64,
    torn_tail: Option<TornTail>,
    snapshots: Vec<OfflineSnapshot>,
}

impl OfflineLog {
    /// Finds where everything is, without reading the bodies. `dir` is a replica's data directory.
    ///
    /// # Errors
    /// When there is no log, it is damaged before its tail, or was written by a newer version.
    pub fn open(dir: &Path) -> Result<OfflineLog, OpenError> {
        let mut attempt = OfflineLog::try_open(dir);
        for _ in 1..OPEN_ATTEMPTS {
            match &attempt {
                Err(OpenError::Damaged { .. }) => {}
                Err(OpenError::Disk { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                }
                _ => break,
            }
            attempt = OfflineLog::try_open(dir);
        }
        attempt
    }

    fn try_open(dir: &Path) -> Result<OfflineLog, OpenError> {
        let disk = ReadOnlyDisk { root: dir.to_path_buf(), open: Mutex::default() };
        let mut found = scan(&disk, None)?;
        let Some(owner) = found.owner else {
            let source = io::Error::new(io::ErrorKind::NotFound, "there is no log in it");
            return Err(OpenError::Disk { path: dir.display().to_string(), source });
        };
        found.check_consistency()?;
        let snapshots = snapshot::list(&disk)?;
        // Rejected as a replica would reject it; an unreadable snapshot is reported when it is
        // requested.
        if let Ok((Some(LoadedSnapshot { name, meta, .. }), _)) =
            snapshot::load(&disk, owner.cell, 0)
            && let Some(id) = &meta.last_log_id
        {
            check_not_truncated(&disk, &found, Some((&name, id)), None)?;
        }
        let agreed = find_committed_end(&disk, &found, owner);
        let (next, torn) = (found.next_index, found.torn_tail.take());
        // Only the metadata of each entry is kept; bodies are read on request.
        let slots = found.slots.into_iter().map(|slot| EntrySlot { entry: None, ..slot }).collect();
        Ok(OfflineLog {
            disk,
            owner,
            slots,
            next_index: next,
            committed_end: agreed,
            torn_tail: torn,
            snapshots,
        })
    }

    /// The replica that the log belongs to.
    #[must_use]
    pub fn replica(&self) -> NodeId {
        self.owner.replica
    }

    /// Index of the first entry that the log still has; [`OfflineLog::next_index`] if it has none.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.slots.first().map_or(self.next_index, |slot| slot.id.index)
    }

    /// Index after the last entry.
    #[must_use]
    pub fn next_index(&self) -> u64 {
        self.next_index
    }

    /// Index after the last entry that is known to be committed. Entries from here on are on this
    /// replica's disk, and a quorum may or may not have accepted them.
    #[must_use]
    pub fn committed_end(&self) -> u64 {
        self.committed_end
    }

    /// Bytes at the end that are not a whole write: torn, or being written right now.
    #[must_use]
    pub fn torn_tail(&self) -> Option<&TornTail> {
        self.torn_tail.as_ref()
    }

    #[must_use]
    pub fn term_at(&self, index: u64) -> Option<u64> {
        let at = usize::try_from(index.checked_sub(self.first())?).ok()?;
        Some(self.slots.get(at)?.id.leader_id.term)
    }

    /// Entries from `from` on, in order, as many as `max_bytes` allow but at least one if there is
    /// any. Entries before [`OfflineLog::first`] are missing.
    ///
    /// # Errors
    /// When the disk does not return them as they were written.
    pub fn read(&self, from: u64, max_bytes: usize) -> Result<Vec<OfflineEntry>, OpenError> {
        let begin = usize::try_from(from.saturating_sub(self.first())).unwrap_or(usize::MAX);
        let mut entries = Vec::new();
        let mut bytes = 0;
        for slot in self.slots.iter().skip(begin) {
            bytes += slot.bytes;
            if bytes > max_bytes && !entries.is_empty() {
                break;
            }
            entries.push(self.entry(slot)?);
        }
        Ok(entries)
    }

    fn entry(&self, slot: &EntrySlot) -> Result<OfflineEntry, OpenError> {
        let (index, term) = (slot.id.index, slot.id.leader_id.term);
        let missing = || damaged_error("log", 0, "an entry has no place in it");
        let location = slot.location.ok_or_else(missing)?;
        let path = segment_path(location.position.sequence);
        let bytes = self.disk.read_at(&path, location.position.offset, location.len);
        let bytes = bytes.map_err(|source| OpenError::Disk { path: path.clone(), source })?;
        let wrong = |reason| damaged_error(&path, location.position.offset, reason);
        let record = Record::decode(&bytes, location.position).map_err(wrong)?.record;
        let content = match record.kind {
            RecordKind::Normal => EntryContent::Payload(record.body),
            RecordKind::Membership => {
                let members: Membership = postcard::from_bytes(&record.body)
                    .map_err(|_| wrong("a membership entry cannot be decoded"))?;
                EntryContent::Members(member_list(&members))
            }
            RecordKind::Blank | RecordKind::Truncate | RecordKind::State => EntryContent::Blank,
        };
        Ok(OfflineEntry { index, term, content })
    }

    /// Snapshots beside the log, oldest first.
    #[must_use]
    pub fn snapshots(&self) -> &[OfflineSnapshot] {
        &self.snapshots
    }

    /// The state machine's bytes in a snapshot.
    ///
    /// # Errors
    /// When it is missing, damaged, of another cell or of a newer version.
    pub fn snapshot(&self, wanted: OfflineSnapshot) -> Result<Vec<u8>, OpenError> {
        let name = snapshot::file_name_at(wanted.index, wanted.term);
        let loaded = snapshot::load_one(&self.disk, self.owner.cell, &name)?;
        Ok(loaded.body)
    }
}

/// A single voter has committed an entry as soon as its disk has it. For others only the recorded
/// commit index counts, which lags behind by a write.
fn find_committed_end(disk: &ReadOnlyDisk, found: &Recovered, owner: Owner) -> u64 {
    let recorded = next_index(found.hard_state.committed.as_ref());
    let alone = |members: &Membership| members.voter_ids().eq([owner.replica]);
    let is_alone = match found.members.last() {
        Some((_, members)) => alone(members),
        None => match snapshot::load(disk, owner.cell, 0) {
            Ok((Some(loaded), _)) => alone(loaded.meta.last_membership.membership()),
            _ => false,
        },
    };
    if is_alone {
        found.next_index
    } else {
        recorded.max(next_index(found.hard_state.purged.as_ref()))
    }
}

fn member_list(members: &Membership) -> Vec<(NodeId, Peer, bool)> {
    let votes = |id: NodeId| members.voter_ids().any(|voter| voter == id);
    members.nodes().map(|(id, peer)| (*id, peer.clone(), votes(*id))).collect()
}

fn damaged_error(file: &str, offset: u64, reason: &str) -> OpenError {
    OpenError::Damaged { file: file.to_owned(), offset, what: reason.to_owned() }
}

/// A directory that is only read. A file that was read once stays open.
struct ReadOnlyDisk {
    root: PathBuf,
    open: Mutex<BTreeMap<String, Arc<File>>>,
}

impl ReadOnlyDisk {
    fn file(&self, path: &str) -> io::Result<Arc<File>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(path) {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(File::open(self.root.join(path))?);
        open.insert(path.to_owned(), Arc::clone(&file));
        Ok(file)
    }
}

fn read_only<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the log is only looked at"))
}

impl Disk for ReadOnlyDisk {
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.root.join(dir)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let file = self.file(path)?;
        // Bytes appended after this point are ignored.
        let mut bytes = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    fn read_at(&self, path: &str, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.file(path)?.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn size(&self, path: &str) -> io::Result<u64> {
        Ok(self.file(path)?.metadata()?.len())
    }

    fn append(&self, _: &str, _: &[u8]) -> io::Result<()> {
        read_only()
    }

    fn sync(&self, _: &str) -> io::Result<()> {
        read_only()
    }

    fn truncate(&self, _: &str, _: u64) -> io::Result<()> {
        read_only()
    }

    fn write_atomic(&self, _: &str, _: &[u8]) -> io::Result<()> {
        read_only()
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        read_only()
    }

    fn sync_dir(&self, _: &str) -> io::Result<()> {
        read_only()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        read_only()
    }

    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) -> DiskFuture {
        work();
        Box::pin(async {})
    }
}
