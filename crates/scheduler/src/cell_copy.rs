//! The cached copy of the cell: the state, and the cluster snapshot that the solver works on.
//!
//! The copy applies the same entries as the master, in the same order, with the same code, so it
//! *is* the master's state at an earlier index; nothing is interpreted twice. Rejected: feeding a
//! snapshot from a stream of events. It is less work per entry, but every event would have to carry
//! all that the solver needs, and a forgotten field would show only as strange placements.
//!
//! The cluster snapshot catches up when the caller chooses ([`CellCopy::sync`]): while a plan is in
//! flight there is no point in reading again what the plan wrote.

use cellwright_api::level::known_level;
use cellwright_cell::encode::{self, LoadError};
use cellwright_cell::event::{Event, EventKind, JobChange, MachineChange, TaskChange};
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
use cellwright_messages::LogRecord;
use cellwright_sched::ClusterSnapshot;

/// Why the copy cannot follow the log any further. It has to start again from a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FollowError {
    #[error("record {index} follows {previous}, the copy stands at {have}")]
    Gap { index: u64, previous: u64, have: u64 },
    #[error("record {index} is of term {found}, older than {have}: it is of another log")]
    OlderTerm { index: u64, have: u64, found: u64 },
    #[error("record {index} cannot be read: {why}")]
    Unreadable { index: u64, why: LoadError },
    #[error(
        "record {index} raises the cell to level {found}, allowed: up to {known}; run the newer \
         build"
    )]
    UnknownLevel { index: u64, found: u32, known: u32 },
}

pub struct CellCopy {
    state: State,
    snapshot: ClusterSnapshot,
    index: u64,
    term: u64,
    /// Events that the cluster snapshot has not seen yet.
    unsynced_events: Vec<Event>,
    /// Whether, since the last check, something happened that may let a pending task be placed.
    has_changes: bool,
    /// The newest level of the cell that this scheduler knows.
    known_level: u32,
}

impl Default for CellCopy {
    fn default() -> CellCopy {
        CellCopy::knowing(known_level())
    }
}

impl CellCopy {
    /// The cell before the first entry, for a scheduler that knows levels up to `known_level`.
    #[must_use]
    pub fn knowing(known_level: u32) -> CellCopy {
        CellCopy::of(0, 0, State::default(), known_level)
    }

    fn of(index: u64, term: u64, state: State, known_level: u32) -> CellCopy {
        let snapshot = ClusterSnapshot::from_state(&state);
        let unsynced_events = Vec::new();
        CellCopy { state, snapshot, index, term, unsynced_events, has_changes: true, known_level }
    }

    /// The cell as restored from a snapshot of the state.
    ///
    /// # Errors
    /// When the bytes are not a state.
    pub fn load(index: u64, term: u64, snapshot: &[u8]) -> Result<CellCopy, LoadError> {
        CellCopy::default().reloaded(index, term, snapshot)
    }

    /// As [`CellCopy::load`], for the scheduler that this copy is of.
    pub(crate) fn reloaded(
        &self,
        index: u64,
        term: u64,
        snapshot: &[u8],
    ) -> Result<CellCopy, LoadError> {
        let known = self.known_level;
        Ok(CellCopy::of(index, term, encode::load_known(snapshot, known)?, known))
    }

    /// Applies one record of the log. The cluster snapshot sees it at the next [`CellCopy::sync`].
    ///
    /// # Errors
    /// When the record cannot follow the records applied so far; the copy is unchanged.
    pub fn apply_record(&mut self, record: &LogRecord) -> Result<(), FollowError> {
        let LogRecord { index, previous, term, .. } = *record;
        if previous != self.index || index <= previous {
            return Err(FollowError::Gap { index, previous, have: self.index });
        }
        if term < self.term {
            return Err(FollowError::OlderTerm { index, have: self.term, found: term });
        }
        let entry = encode::load_entry_known(&record.entry, self.known_level);
        let entry = entry.map_err(|why| FollowError::Unreadable { index, why })?;
        if let Some(found) = entry.level_beyond(self.known_level) {
            return Err(FollowError::UnknownLevel { index, found, known: self.known_level });
        }
        let before = self.unsynced_events.len();
        self.state.apply(&entry, &mut self.unsynced_events);
        (self.index, self.term) = (index, term);
        let state = &self.state;
        self.has_changes = self.has_changes
            || self.unsynced_events[before..].iter().any(|event| may_unblock(state, event));
        Ok(())
    }

    /// Brings the cluster snapshot up to date. Rows written by a pass are replaced by what the
    /// state has.
    pub fn sync(&mut self) {
        self.snapshot.sync(&self.state, &self.unsynced_events);
        self.unsynced_events.clear();
    }

    /// Whether, since the last call, something happened that may let a pending task be placed.
    pub fn take_changes(&mut self) -> bool {
        std::mem::take(&mut self.has_changes)
    }

    #[must_use]
    pub fn index(&self) -> u64 {
        self.index
    }

    #[must_use]
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Time of the last entry.
    #[must_use]
    pub fn now(&self) -> Time {
        self.state.now()
    }

    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    #[must_use]
    pub fn snapshot(&self) -> &ClusterSnapshot {
        &self.snapshot
    }

    pub(crate) fn snapshot_mut(&mut self) -> &mut ClusterSnapshot {
        &mut self.snapshot
    }

    /// Hash of the state; equal to the master's at the same index.
    pub fn hash(&mut self) -> u64 {
        self.state.hash()
    }
}

/// Whether an event can make a pending task placeable: it adds a pending task, frees something, or
/// allows more evictions. When in doubt, yes: a superfluous pass costs time, a missing one delays a
/// task.
fn may_unblock(state: &State, event: &Event) -> bool {
    match &event.kind {
        EventKind::Task { job, change, .. } => match change {
            TaskChange::Scheduled { .. }
            | TaskChange::HoldReserved { .. }
            | TaskChange::UpdateSkipped
            | TaskChange::RestartDue
            | TaskChange::LogSaverFailed { .. }
            // The consequences have events of their own.
            | TaskChange::Left { .. } => false,
            // One more task of the job runs, so one more of it may be evicted.
            TaskChange::Started { .. } => {
                state.jobs().get(*job).is_some_and(|row| row.spec().max_down.is_some())
            }
            _ => true,
        },
        // Submitted tasks have events of their own.
        EventKind::Job { change, .. } => {
            !matches!(change, JobChange::Submitted | JobChange::Accepted)
        }
        EventKind::Machine { change, .. } => !matches!(
            change,
            MachineChange::Down
                | MachineChange::DrainStarted
                | MachineChange::OverCommitted
                | MachineChange::DiskRetained { .. }
                | MachineChange::PressureReported { .. }
                | MachineChange::PressureEvicted { .. }
                | MachineChange::PressureEased { .. }
        ),
        EventKind::Component(event) => event.as_component().may_free_room(),
        _ => false,
    }
}
