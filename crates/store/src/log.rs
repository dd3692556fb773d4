//! The raft log in memory, and openraft's log storage interface on top of it.
//!
//! Every change is made in memory first and queued for the [writer](crate::writer), which turns
//! everything that is queued into one write and one flush. A *ticket* numbers the queued
//! operations; the highest flushed ticket says what is durable.
//!
//! Openraft 0.9 waits for each append before it looks at the next proposal, which would mean a
//! flush per proposal. A leader's own appends are therefore reported as done at once, and are sent
//! to followers while this replica flushes them: the two flushes run in parallel. Openraft then
//! counts the leader for a quorum before its copy is durable, so what openraft calls committed is
//! believed only as far as this replica has flushed:
//!
//! - an entry is applied, and its proposer answered, only when it is durable here
//!   ([`Log::wait_durable`]);
//! - followers learn of commits only as far as they are durable here ([`Log::durable_prefix`]);
//! - members change only when everything that openraft calls committed is durable here
//!   ([`Log::wait_all_durable`]).
//!
//! Entries that a leader loses in a crash may be on followers' disks, and they were acknowledged to
//! no client. A follower's appends are answered after the flush, as always. The argument is in
//! `docs/decisions/0032-flushes-side-by-side.md`. The alternative, packing many proposals into one
//! entry, gives them all one index, and callers want an index of their own.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cellwright_supervise::failpoint;
use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::config::{StoreBugs, StoreConfig};
use crate::disk::DiskHandle;
use crate::raft::{
    Entry, EntryPayload, LogId, NodeId, StorageError, StorageIOError, TypeConfig, Vote, next_index,
};
use crate::record::{
    HardState, RECORD_HEADER_LEN, RECORD_TRAILER_LEN, Record, RecordPosition, segment_path,
};
use crate::recovery::Recovered;
use crate::writer::{Completion, WriteOp};

/// The location of an entry's record on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordLocation {
    pub(crate) position: RecordPosition,
    pub(crate) len: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct EntrySlot {
    pub(crate) id: LogId,
    pub(crate) ticket: u64,
    /// `None` until written.
    pub(crate) location: Option<RecordLocation>,
    /// Invariant: present while `location` is `None`.
    pub(crate) entry: Option<Entry>,
    pub(crate) bytes: usize,
}

impl EntrySlot {
    pub(crate) fn on_disk(entry: Entry, location: RecordLocation) -> EntrySlot {
        let (id, bytes) = (entry.log_id, location.len);
        EntrySlot { id, ticket: 0, location: Some(location), entry: Some(entry), bytes }
    }
}

#[derive(Debug)]
pub(crate) struct InMemoryLog {
    slots: VecDeque<EntrySlot>,
    pub(crate) hard_state: HardState,
    /// Whether `hard_state.committed` is newer than what was last queued.
    pub(crate) is_committed_dirty: bool,
    ticket: u64,
    cached_bytes: usize,
    /// Number of slots at the front whose entry is no longer in memory.
    evicted_slots: usize,
}

impl InMemoryLog {
    fn last(&self) -> Option<LogId> {
        self.slots.back().map(|slot| slot.id).or(self.hard_state.purged)
    }

    /// Index of the next entry to be appended.
    pub(crate) fn next(&self) -> u64 {
        next_index(self.last().as_ref())
    }

    fn first(&self) -> u64 {
        self.slots.front().map_or_else(|| self.next(), |slot| slot.id.index)
    }

    fn slot(&self, index: u64) -> Option<&EntrySlot> {
        self.slots.get(usize::try_from(index.checked_sub(self.first())?).ok()?)
    }

    fn push(&mut self, entry: Entry, bytes: usize, ticket: u64) {
        self.cached_bytes += bytes;
        let id = entry.log_id;
        self.slots.push_back(EntrySlot { id, ticket, location: None, entry: Some(entry), bytes });
    }

    fn truncate_from(&mut self, index: u64) {
        while self.slots.back().is_some_and(|slot| slot.id.index >= index) {
            let removed = self.slots.pop_back();
            self.release_cached(removed);
        }
        self.evicted_slots = self.evicted_slots.min(self.slots.len());
    }

    fn purge_through(&mut self, upto: LogId) {
        while self.slots.front().is_some_and(|slot| slot.id.index <= upto.index) {
            let removed = self.slots.pop_front();
            self.release_cached(removed);
            self.evicted_slots = self.evicted_slots.saturating_sub(1);
        }
        self.hard_state.purged = self.hard_state.purged.max(Some(upto));
    }

    fn release_cached(&mut self, slot: Option<EntrySlot>) {
        if let Some(slot) = slot.filter(|slot| slot.entry.is_some()) {
            self.cached_bytes -= slot.bytes;
        }
    }

    /// Notes where the writer put an entry, unless the log has moved on since.
    pub(crate) fn note_written(&mut self, index: u64, ticket: u64, location: RecordLocation) {
        let first = self.first();
        let at = index.checked_sub(first).and_then(|at| usize::try_from(at).ok());
        if let Some(slot) = at.and_then(|at| self.slots.get_mut(at))
            && slot.ticket == ticket
        {
            slot.location = Some(location);
        }
    }

    pub(crate) fn evict(&mut self, limit: usize) {
        while self.cached_bytes > limit {
            let Some(slot) = self.slots.get_mut(self.evicted_slots) else { return };
            if slot.location.is_none() {
                return;
            }
            if slot.entry.take().is_some() {
                self.cached_bytes -= slot.bytes;
            }
            self.evicted_slots += 1;
        }
    }
}

pub(crate) struct Shared {
    id: NodeId,
    memory: Mutex<InMemoryLog>,
    ops: mpsc::UnboundedSender<WriteOp>,
    durable: watch::Receiver<u64>,
    disk: DiskHandle,
    max_append_bytes: usize,
    /// When the flush that is under way began.
    flush_started: Mutex<Option<Instant>>,
    bugs: StoreBugs,
}

impl Shared {
    /// Records that a flush begins, or that none is under way any more.
    pub(crate) fn set_flush_started(&self, since: Option<Instant>) {
        *self.flush_started.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    fn is_flush_stalled(&self, bound: Duration) -> bool {
        let since = *self.flush_started.lock().unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|since| since.elapsed() >= bound)
    }

    pub(crate) fn memory(&self) -> MutexGuard<'_, InMemoryLog> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The log; clones share it.
#[derive(Clone)]
pub struct Log {
    pub(crate) shared: Arc<Shared>,
}

/// The writer has ended.
#[derive(Debug)]
struct WriterClosed;

impl From<WriterClosed> for StorageError {
    fn from(_: WriterClosed) -> StorageError {
        write_error("the log is closed")
    }
}

impl Log {
    pub(crate) fn new(
        id: NodeId,
        recovered: &mut Recovered,
        ops: mpsc::UnboundedSender<WriteOp>,
        durable: watch::Receiver<u64>,
        disk: DiskHandle,
        settings: &StoreConfig,
    ) -> Log {
        let slots = std::mem::take(&mut recovered.slots);
        let evicted = slots.iter().take_while(|slot| slot.entry.is_none()).count();
        let cached_bytes = slots.iter().skip(evicted).map(|slot| slot.bytes).sum();
        let memory = InMemoryLog {
            slots,
            hard_state: recovered.hard_state.clone(),
            is_committed_dirty: false,
            ticket: 0,
            cached_bytes,
            evicted_slots: evicted,
        };
        let shared = Shared {
            id,
            memory: Mutex::new(memory),
            ops,
            durable,
            disk,
            max_append_bytes: settings.max_append_bytes,
            flush_started: Mutex::default(),
            bugs: settings.bugs,
        };
        Log { shared: Arc::new(shared) }
    }

    /// Queues one operation; memory is locked so that tickets and queue are in the same order.
    fn enqueue(
        &self,
        memory: &mut InMemoryLog,
        op: impl FnOnce(u64) -> WriteOp,
    ) -> Result<(), WriterClosed> {
        memory.ticket += 1;
        self.shared.ops.send(op(memory.ticket)).map_err(|_| WriterClosed)
    }

    /// The last entry, durable or not.
    pub(crate) fn last(&self) -> Option<LogId> {
        self.shared.memory().last()
    }

    /// The term this replica has voted in, or follows a leader of.
    pub(crate) fn term(&self) -> u64 {
        self.shared.memory().hard_state.vote.map_or(0, |vote| vote.leader_id.term)
    }

    /// Index of the first entry still in the log.
    pub(crate) fn first(&self) -> u64 {
        self.shared.memory().first()
    }

    /// Waits until the entry at `index` is durable; entries already removed from the log are.
    pub(crate) async fn wait_durable(&self, index: u64) -> Result<(), StorageError> {
        let ticket = self.shared.memory().slot(index).map_or(0, |slot| slot.ticket);
        self.wait_flushed(ticket).await
    }

    /// The same, for an entry that is about to be applied.
    pub(crate) async fn wait_to_apply(&self, index: u64) -> Result<(), StorageError> {
        if self.shared.bugs.applies_unflushed {
            return Ok(());
        }
        self.wait_durable(index).await
    }

    /// Waits until everything that the log holds now is durable.
    pub(crate) async fn wait_all_durable(&self) -> Result<(), StorageError> {
        let ticket = self.shared.memory().ticket;
        self.wait_flushed(ticket).await
    }

    async fn wait_flushed(&self, ticket: u64) -> Result<(), StorageError> {
        let mut durable = self.shared.durable.clone();
        let reached = durable.wait_for(|flushed| *flushed >= ticket).await;
        reached.map(|_| ()).map_err(|_| write_error("the log stopped before a flush"))
    }

    /// As much of a commit as is durable here, which is what a follower may learn of it.
    pub(crate) fn durable_prefix(&self, commit: Option<LogId>) -> Option<LogId> {
        if self.shared.bugs.announces_unflushed {
            return commit;
        }
        let memory = self.shared.memory();
        let flushed = *self.shared.durable.borrow();
        let durable = memory.slots.partition_point(|slot| slot.ticket <= flushed);
        let last = match durable.checked_sub(1) {
            Some(at) => memory.slots.get(at).map(|slot| slot.id),
            None => memory.hard_state.purged,
        };
        // Both are of one log, where terms rise with the index.
        commit.min(last)
    }

    /// Waits while a flush takes `bound` or longer. A leader whose disk hangs stops its heartbeats,
    /// so that the others elect one that can write.
    pub(crate) async fn wait_while_stalled(&self, bound: Duration) {
        let mut durable = self.shared.durable.clone();
        // An error means that the writer has ended; then there is nothing to wait for.
        let _gone = durable.wait_for(|_| !self.shared.is_flush_stalled(bound)).await;
    }

    /// Entries of `start..end`, as many as fit into `limit` bytes but at least one if there is any.
    async fn scan(&self, start: u64, end: u64, limit: usize) -> Result<Vec<Entry>, StorageError> {
        let slots = self.slots(start, end, limit);
        let begin = slots.first().map_or(start, |slot| slot.id.index);
        let missing = slots.iter().filter(|slot| slot.entry.is_none());
        let locations: Vec<RecordLocation> = missing.filter_map(|slot| slot.location).collect();
        let fetched = match self.read_records(locations).await {
            Ok(fetched) => fetched,
            // Purged while we were reading: the start of the range no longer exists.
            Err(_) if self.first() > begin => return Ok(Vec::new()),
            Err(e) => return Err(StorageIOError::read_logs(&e).into()),
        };
        let mut fetched = fetched.into_iter();
        let entries = slots.into_iter().map(|slot| slot.entry.or_else(|| fetched.next()));
        let entries: Option<Vec<Entry>> = entries.collect();
        entries.ok_or_else(|| read_error("an entry is neither on disk nor in memory"))
    }

    fn slots(&self, start: u64, end: u64, limit: usize) -> Vec<EntrySlot> {
        let memory = self.shared.memory();
        let start = start.max(memory.first());
        let mut bytes = 0;
        let mut slots = Vec::new();
        for index in start..end {
            let Some(slot) = memory.slot(index) else { break };
            bytes += slot.bytes;
            if !slots.is_empty() && bytes > limit {
                break;
            }
            slots.push(slot.clone());
        }
        slots
    }

    async fn read_records(&self, locations: Vec<RecordLocation>) -> io::Result<Vec<Entry>> {
        if locations.is_empty() {
            return Ok(Vec::new());
        }
        let read = move |disk: &dyn crate::Disk| {
            locations.iter().map(|at| read_record(disk, *at)).collect()
        };
        self.shared.disk.run(read).await?
    }

    /// Payload entries of `from..end` and the index to go on from.
    pub(crate) async fn read_payloads(
        &self,
        from: u64,
        end: u64,
        max_bytes: usize,
    ) -> Result<(Vec<(LogId, bytes::Bytes)>, u64), StorageError> {
        let entries = self.scan(from, end, max_bytes).await?;
        let next = entries.last().map_or(from, |entry| entry.log_id.index + 1);
        let payloads = entries.into_iter().filter_map(|entry| match entry.payload {
            EntryPayload::Normal(payload) => Some((entry.log_id, payload.0)),
            EntryPayload::Blank | EntryPayload::Membership(_) => None,
        });
        Ok((payloads.collect(), next))
    }

    /// Whether `id` was made by this replica in the term it leads now, so that the append is its
    /// own.
    fn is_own_append(&self, memory: &InMemoryLog, id: &LogId) -> bool {
        memory.hard_state.vote.as_ref().is_some_and(|vote| {
            let leader = &vote.leader_id;
            leader.node_id == self.shared.id
                && (leader.term, leader.node_id) == (id.leader_id.term, id.leader_id.node_id)
        })
    }
}

fn read_record(disk: &dyn crate::Disk, location: RecordLocation) -> io::Result<Entry> {
    let path = segment_path(location.position.sequence);
    let bytes = disk.read_at(&path, location.position.offset, location.len)?;
    let wrong = |reason: &str| {
        let at = location.position.offset;
        io::Error::new(io::ErrorKind::InvalidData, format!("{path} at byte {at}: {reason}"))
    };
    let found = Record::decode(&bytes, location.position).map_err(wrong)?;
    found.record.to_entry().map_err(wrong)
}

fn range_of(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    (start, end)
}

impl RaftLogReader<TypeConfig> for Log {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, StorageError> {
        let (start, end) = range_of(&range);
        self.scan(start, end, usize::MAX).await
    }

    /// For followers, whether the entries are durable here or not.
    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry>, StorageError> {
        self.scan(start, end, self.shared.max_append_bytes).await
    }
}

impl RaftLogStorage<TypeConfig> for Log {
    type LogReader = Log;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, StorageError> {
        let memory = self.shared.memory();
        Ok(LogState { last_purged_log_id: memory.hard_state.purged, last_log_id: memory.last() })
    }

    async fn get_log_reader(&mut self) -> Log {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        let (tx, rx) = oneshot::channel();
        {
            let mut memory = self.shared.memory();
            memory.hard_state.vote = Some(*vote);
            self.enqueue(&mut memory, |ticket| WriteOp::State {
                ticket,
                done: Completion::Waiter(tx),
            })?;
        }
        rx.await.map_err(|_| write_error("the log stopped before the vote was flushed"))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        Ok(self.shared.memory().hard_state.vote)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        let mut memory = self.shared.memory();
        memory.is_committed_dirty |= memory.hard_state.committed != committed;
        memory.hard_state.committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, StorageError> {
        Ok(self.shared.memory().hard_state.committed)
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<TypeConfig>,
    ) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        failpoint("raft");
        let mut own = true;
        let mut records = Vec::new();
        let mut memory = self.shared.memory();
        let ticket = memory.ticket + 1;
        for entry in entries {
            let index = entry.log_id.index;
            if !memory.slots.is_empty() && index != memory.next() {
                let text = format!("entry {index} would leave a hole after {}", memory.next());
                return Err(write_error(&text));
            }
            own &= self.is_own_append(&memory, &entry.log_id);
            let record = Record::from_entry(&entry).map_err(|e| write_error(&e.to_string()))?;
            memory.push(entry, RECORD_HEADER_LEN + record.body.len() + RECORD_TRAILER_LEN, ticket);
            records.push(record);
        }
        let (now, later) = if own { (Some(callback), None) } else { (None, Some(callback)) };
        let done = later.map_or(Completion::Ignored, Completion::Flushed);
        self.enqueue(&mut memory, |ticket| WriteOp::Append { ticket, records, done })?;
        drop(memory);
        if let Some(callback) = now {
            callback.log_io_completed(Ok(()));
        }
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let mut memory = self.shared.memory();
        memory.truncate_from(log_id.index);
        let records = vec![Record::truncate(log_id.index)];
        self.enqueue(&mut memory, |ticket| WriteOp::Append {
            ticket,
            records,
            done: Completion::Ignored,
        })?;
        Ok(())
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let mut memory = self.shared.memory();
        memory.purge_through(log_id);
        self.enqueue(&mut memory, |ticket| WriteOp::Purge { ticket, upto: log_id })?;
        Ok(())
    }
}

fn write_error(why: &str) -> StorageError {
    StorageIOError::write_logs(&io::Error::other(why.to_owned())).into()
}

fn read_error(why: &str) -> StorageError {
    StorageIOError::read_logs(&io::Error::other(why.to_owned())).into()
}
