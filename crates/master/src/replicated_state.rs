//! The replicated state on this replica: every committed entry is applied to the cell's state, its
//! events are recorded, and tasks that wait for a change are woken.
//!
//! Readers take a clone of the state under a read lock. A clone is a handful of reference counts,
//! and the next entry pays for the chunks it touches; nothing is copied without a reader. Rejected:
//! publishing a clone after every entry, which makes every entry copy its chunks.

use crate::poll_wakers::Wakers;
use crate::record_logs::RecordLogs;
use cellwright_api::level::known_level;
use cellwright_cell::command::{Entry, Verdict};
use cellwright_cell::encode::{self, LoadError};
use cellwright_cell::event::Event;
use cellwright_cell::state::State;
use cellwright_cell::time::{Span, Time};
use cellwright_names::SharedDirectory;
use cellwright_supervise::exit_on_poisoned_lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use tokio::sync::watch;
use tokio::time::Instant;

/// Number of state hashes kept, to compare replicas with each other.
const MAX_HASHES: usize = 4096;
/// Bytes of recent entries kept in memory for followers of the log.
const MAX_RECENT_BYTES: usize = 64 << 20;

/// A reader's copy of the cell.
#[derive(Clone)]
pub struct View {
    pub state: State,
    pub index: u64,
    pub term: u64,
    /// Identifies the log that the index counts in: a cell restored from a checkpoint begins a new
    /// one, with a higher number. Zero in a cell that was never restored.
    pub log_epoch: u64,
}

/// An entry as followers of the log receive it.
#[derive(Clone)]
pub struct RecentEntry {
    pub index: u64,
    pub previous: u64,
    pub term: u64,
    pub payload: Arc<[u8]>,
}

/// Events kept for the query mirror. A mirror that falls further behind starts anew.
const MAX_UNREAD_EVENTS: usize = 200_000;

/// The changes since the query mirror last read them.
#[derive(Debug)]
pub enum StateChanges {
    Events(Vec<Event>),
    /// Not all of them were kept: start from the state.
    Lost,
}

/// What one replica holds of the cell, shared by its parts.
pub struct ReplicatedState {
    view: RwLock<View>,
    /// `None` while there is no follower; changed only while `current` is locked, so that both
    /// agree.
    unread_events: Mutex<Option<Vec<Event>>>,
    recent: RwLock<(VecDeque<RecentEntry>, usize)>,
    hashes: RwLock<VecDeque<(u64, u64)>>,
    applied: watch::Sender<u64>,
    /// A log time and the instant at which it was current.
    log_clock: Mutex<(Time, Instant)>,
    pub wakers: Wakers,
    pub records: RecordLogs,
    /// The addresses of tasks, for DNS.
    pub names: SharedDirectory,
    /// The newest level that this replica knows. What the log holds beyond it is of a newer build.
    known_level: u32,
}

/// The entries after an index.
pub enum LogTail {
    Entries(Vec<RecentEntry>),
    /// Not kept any more: start from the state.
    Purged,
}

impl ReplicatedState {
    #[must_use]
    pub fn new(records: RecordLogs) -> Arc<ReplicatedState> {
        ReplicatedState::with_known_level(records, known_level())
    }

    /// That of a replica which knows levels up to `known_level`.
    #[must_use]
    pub fn with_known_level(records: RecordLogs, known_level: u32) -> Arc<ReplicatedState> {
        Arc::new(ReplicatedState {
            view: RwLock::new(View { state: State::default(), index: 0, term: 0, log_epoch: 0 }),
            unread_events: Mutex::default(),
            recent: RwLock::default(),
            hashes: RwLock::default(),
            applied: watch::Sender::new(0),
            log_clock: Mutex::new((Time::ZERO, Instant::now())),
            wakers: Wakers::default(),
            records,
            names: SharedDirectory::default(),
            known_level,
        })
    }

    /// The newest level of the cell that this replica knows.
    #[must_use]
    pub fn known_level(&self) -> u32 {
        self.known_level
    }

    /// The level of the cell, which decides in which format is written.
    #[must_use]
    pub fn level(&self) -> u32 {
        self.with(|view| view.state.level())
    }

    /// The cell as this replica knows it now.
    #[must_use]
    pub fn view(&self) -> View {
        read(&self.view).clone()
    }

    /// The cell as this replica knows it now, with all events since the last call: for one
    /// follower, the query mirror.
    #[must_use]
    pub fn view_and_changes(&self) -> (View, StateChanges) {
        let current = read(&self.view);
        let unread_events = lock(&self.unread_events).replace(Vec::new());
        (current.clone(), unread_events.map_or(StateChanges::Lost, StateChanges::Events))
    }

    /// The current log time: that of the newest entry, plus the time that has passed since.
    /// Everything that is compared with times of rows is compared with this, on leaders and
    /// followers, and never with a clock that may jump. After a stop of the whole cell it is the
    /// time at the end of the log, until a leader advances it.
    #[must_use]
    pub fn log_time(&self) -> Time {
        let (time, at) = *lock(&self.log_clock);
        time.plus(Span(u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX)))
    }

    pub(crate) fn set_log_time(&self, time: Time) {
        *lock(&self.log_clock) = (time, Instant::now());
    }

    /// Reads the state without cloning it. Keep it short: entries wait in the meantime.
    pub fn with<T>(&self, inspect: impl FnOnce(&View) -> T) -> T {
        inspect(&read(&self.view))
    }

    #[must_use]
    pub fn applied(&self) -> watch::Receiver<u64> {
        self.applied.subscribe()
    }

    /// The last entry whose events and audit lines were written.
    #[must_use]
    pub fn last_recorded(&self) -> u64 {
        *self.applied.borrow()
    }

    /// Hash of the state after the entry at `index`, if still kept.
    #[must_use]
    pub fn hash_at(&self, index: u64) -> Option<u64> {
        let hashes = read(&self.hashes);
        let at = hashes.binary_search_by_key(&index, |(i, _)| *i).ok()?;
        Some(hashes[at].1)
    }

    /// The newest index and hash.
    #[must_use]
    pub fn last_hash(&self) -> Option<(u64, u64)> {
        read(&self.hashes).back().copied()
    }

    /// Entries after `index`, oldest first, at most about `max_bytes`.
    #[must_use]
    pub fn entries_after(&self, index: u64, max_bytes: usize) -> LogTail {
        let recent = read(&self.recent);
        let entries = &recent.0;
        let known = entries.front().is_some_and(|first| first.previous <= index);
        if !known && self.with(|view| view.index) > index {
            return LogTail::Purged;
        }
        let from = entries.partition_point(|entry| entry.index <= index);
        let mut bytes = 0;
        let fits = |entry: &&RecentEntry| {
            let first = bytes == 0;
            bytes += entry.payload.len();
            first || bytes <= max_bytes
        };
        LogTail::Entries(entries.range(from..).take_while(fits).cloned().collect())
    }

    fn keep_recent(&self, recent: RecentEntry) {
        let mut recent_entries = write(&self.recent);
        recent_entries.1 += recent.payload.len();
        recent_entries.0.push_back(recent);
        while recent_entries.1 > MAX_RECENT_BYTES && recent_entries.0.len() > 1 {
            let Some(oldest) = recent_entries.0.pop_front() else { break };
            recent_entries.1 -= oldest.payload.len();
        }
    }

    fn apply_entry(&self, index: u64, term: u64, entry: &Entry) -> (Vec<Verdict>, Vec<Event>, u64) {
        let mut events = Vec::new();
        let mut current = write(&self.view);
        let verdicts = current.state.apply(entry, &mut events);
        self.set_log_time(current.state.now());
        let previous = std::mem::replace(&mut current.index, index);
        current.term = term;
        let hash = current.state.hash();
        let mut unread_events = lock(&self.unread_events);
        if let Some(unread) = unread_events.as_mut() {
            unread.extend_from_slice(&events);
        }
        unread_events.take_if(|unread| unread.len() > MAX_UNREAD_EVENTS);
        drop(unread_events);
        drop(current);
        let mut hashes = write(&self.hashes);
        hashes.push_back((index, hash));
        if hashes.len() > MAX_HASHES {
            hashes.pop_front();
        }
        (verdicts, events, previous)
    }
}

/// The state machine that the store applies entries to.
pub struct CellStateMachine(pub Arc<ReplicatedState>);

impl cellwright_store::StateMachine for CellStateMachine {
    fn apply(&mut self, index: u64, term: u64, payload: &[u8]) -> Vec<u8> {
        let shared = &self.0;
        let entry = match encode::load_entry_known(payload, shared.known_level) {
            Ok(entry) => entry,
            Err(error) => {
                shared.records.stop(&format!("log entry {index} cannot be applied: {error}"));
                return Vec::new();
            }
        };
        let known = shared.known_level;
        if let Some(level) = entry.level_beyond(known) {
            let why = format!("level {level} is not known here; allowed: 1 to {known}");
            shared
                .records
                .stop(&format!("log entry {index} cannot be applied: {why}; run the newer build"));
            return Vec::new();
        }
        let (verdicts, events, previous) = shared.apply_entry(index, term, &entry);
        shared.keep_recent(RecentEntry { index, previous, term, payload: payload.into() });
        shared.with(|view| {
            shared.records.write(index, &entry, &verdicts, &events, &view.state);
            shared.names.apply_events(&view.state, &events, index);
            shared.wakers.wake_affected(&events, &view.state);
        });
        shared.applied.send_replace(index);
        postcard::to_stdvec(&verdicts).unwrap_or_default()
    }

    fn snapshot(&self) -> Box<dyn FnOnce() -> Vec<u8> + Send> {
        let shared = self.0.clone();
        let view = shared.view();
        Box::new(move || {
            // Once the log is purged up to here, these cannot be derived again.
            shared.records.sync(view.index);
            pack(&view)
        })
    }

    fn restore(&mut self, index: u64, bytes: &[u8]) -> Result<(), String> {
        let mut view = unpack_known(bytes, self.0.known_level)?;
        if view.index > index {
            return Err(format!("snapshot of index {index} holds a state of {}", view.index));
        }
        let hash = view.state.hash();
        let at = view.index;
        self.0.set_log_time(view.state.now());
        self.0.records.restore_from_snapshot(at, &view.state);
        self.0.names.reset(&view.state, at);
        let mut current = write(&self.0.view);
        *current = view;
        *lock(&self.0.unread_events) = None;
        drop(current);
        *write(&self.0.recent) = Default::default();
        *write(&self.0.hashes) = VecDeque::from([(at, hash)]);
        self.0.wakers.wake_all();
        self.0.applied.send_replace(at);
        Ok(())
    }

    fn durable_applied(&self) -> Option<u64> {
        Some(self.0.records.events.durable_applied()).filter(|index| *index > 0)
    }
}

/// Decodes an entry of the log.
///
/// The build that wrote these bytes could read them, and acknowledged changes are in them. A
/// replica that cannot read them and went on would diverge and lose what a client was told is done,
/// so it must stop.
///
/// # Errors
/// When another build wrote the entry, or the bytes are not an entry.
pub fn decode_entry(payload: &[u8]) -> Result<Entry, LoadError> {
    encode::load_entry_known(payload, known_level())
}

/// Encodes a state with its log index: the payload of snapshots and checkpoints.
#[must_use]
pub fn pack(view: &View) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&view.index.to_le_bytes());
    bytes.extend_from_slice(&view.term.to_le_bytes());
    bytes.extend_from_slice(&view.log_epoch.to_le_bytes());
    bytes.extend_from_slice(&encode::save(&view.state));
    bytes
}

/// # Errors
/// When the bytes are not what [`pack`] writes.
pub fn unpack(bytes: &[u8]) -> Result<View, String> {
    unpack_known(bytes, known_level())
}

/// # Errors
/// As [`unpack`], and when a build wrote them that knows more levels than `known`.
pub fn unpack_known(bytes: &[u8], known: u32) -> Result<View, String> {
    let word = |at: usize| {
        let part: [u8; 8] = bytes.get(at..at + 8)?.try_into().ok()?;
        Some(u64::from_le_bytes(part))
    };
    let (Some(index), Some(term), Some(log_epoch)) = (word(0), word(8), word(16)) else {
        return Err(format!("a state of {} bytes is too short", bytes.len()));
    };
    let state = encode::load_known(&bytes[24..], known).map_err(|error| error.to_string())?;
    Ok(View { state, index, term, log_epoch })
}

// A poisoned lock means a panic while the state was being changed: nothing read after it could be
// trusted, so the process ends and recovers from its log. Readers do not poison it.
fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(|_| exit_on_poisoned_lock("the state"))
}

fn lock<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(|_| exit_on_poisoned_lock("the state"))
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(|_| exit_on_poisoned_lock("the state"))
}
