//! Replays the log of a cell from the files of one replica, without its help: the state after any
//! entry or at any time that the log still reaches, and the entries themselves.
//!
//! A state is rebuilt by starting from the newest one that is not beyond the target (a checkpoint,
//! one of the log's own snapshots, or the empty state where the log still has its first entry) and
//! applying the entries after it, with the very `apply` that made them. When the target cannot be
//! reached, the error contains how far back the log does reach.
//!
//! Rejected: doing this in a running master. The past is queried when something went wrong, and a
//! replay of a large cell must not take the memory and the core of the master that runs.

use crate::checkpoint::{self, CheckpointError, Checkpoints, Header, ReplayError, ReplayTarget};
use crate::replicated_state::{View, decode_entry, unpack};
use cellwright_cell::command::{Entry, Verdict};
use cellwright_cell::encode::LoadError;
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
use cellwright_store::{
    EntryContent, LoggedEntry, NodeId, OfflineEntry, OfflineLog, OfflineSnapshot, OpenError, Peer,
    TornTail,
};
use std::fmt;
use std::path::{Path, PathBuf};

/// Entries are read in batches of about this much.
const READ_BYTES: usize = 8 << 20;

#[derive(Debug, thiserror::Error)]
pub enum LogReplayError {
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(
        "{requested} is no longer there: the log reaches back to index {first}, and the oldest \
         state it can be replayed from stands at {}", oldest_text(.reach)
    )]
    BeforeStart { requested: RequestedTarget, first: u64, reach: Option<(u64, Time)> },
    #[error("index {requested} is not there yet: the log ends at {}", last_text(.next))]
    BeyondEnd { requested: u64, next: u64 },
    #[error(
        "{path} stands at index {index} of term {found}, where this log has an entry of term \
         {here}: it is of another cell, or of a past that this log does not have"
    )]
    OtherHistory { path: PathBuf, index: u64, found: u64, here: u64 },
    #[error("entry {index} cannot be read: {why}")]
    Entry { index: u64, why: LoadError },
}

/// The requested target, in the form that people write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedTarget(pub ReplayTarget);

impl fmt::Display for RequestedTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ReplayTarget::Index(index) => write!(f, "index {index}"),
            ReplayTarget::Time(time) => write!(f, "the state at {} ms since 1970", time.0),
        }
    }
}

fn oldest_text(reach: &Option<(u64, Time)>) -> String {
    match reach {
        Some((index, at)) => format!("index {index}, {} ms since 1970", at.0),
        None => "none: no checkpoint or snapshot here is whole".to_owned(),
    }
}

fn last_text(next: &u64) -> String {
    next.checked_sub(1).map_or_else(|| "nothing: it is empty".to_owned(), |last| last.to_string())
}

/// Where a replay starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayBase {
    /// The log has its first entry, so the replay starts with the empty state.
    Beginning,
    Snapshot(u64),
    Checkpoint(PathBuf),
}

impl fmt::Display for ReplayBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayBase::Beginning => f.write_str("the beginning of the log"),
            ReplayBase::Snapshot(index) => write!(f, "the snapshot at {index}"),
            ReplayBase::Checkpoint(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A past state and how it was rebuilt.
pub struct ReplayedState {
    pub view: View,
    pub base: ReplayBase,
    /// Entries applied on top of the base.
    pub entries: u64,
    /// States that would have been nearer but could not be read, and why.
    pub skipped: Vec<String>,
}

/// One log entry, for lists.
#[derive(Debug)]
pub struct ReplayedEntry {
    pub index: u64,
    pub term: u64,
    /// Whether a quorum is known to have accepted it.
    pub is_committed: bool,
    pub content: ReplayedContent,
}

#[derive(Debug)]
pub enum ReplayedContent {
    Requests {
        entry: Entry,
        /// One for each request; `None` when the state before this entry is not known.
        verdicts: Option<Vec<Verdict>>,
    },
    /// The entry that a new leader writes.
    Blank,
    Members(Vec<(NodeId, Peer, bool)>),
}

pub struct LogReplayer {
    log: OfflineLog,
    checkpoints: Vec<(PathBuf, Header)>,
}

/// A state to start from, not read yet.
#[derive(Clone)]
enum BaseCandidate {
    Beginning,
    Snapshot(OfflineSnapshot),
    Checkpoint(PathBuf, Header),
}

impl BaseCandidate {
    fn index(&self) -> u64 {
        match self {
            BaseCandidate::Beginning => 0,
            BaseCandidate::Snapshot(snapshot) => snapshot.index,
            BaseCandidate::Checkpoint(_, header) => header.index,
        }
    }
}

impl LogReplayer {
    /// Opens a replica's data directory, running or not, and changes nothing in it. `from` is a
    /// checkpoint to consider besides those in the directory.
    ///
    /// # Errors
    /// When there is no log that this build can read.
    pub fn open(data_dir: &Path, from: Option<&Path>) -> Result<LogReplayer, LogReplayError> {
        let log = OfflineLog::open(data_dir)?;
        let folder = Checkpoints::in_data(data_dir, 1);
        let listed = folder.list()?.into_iter();
        let mut checkpoints: Vec<(PathBuf, Header)> =
            listed.map(|listed| (folder.path(&listed.name), listed.header)).collect();
        if let Some(path) = from {
            checkpoints.push((path.to_owned(), checkpoint::header(path)?));
        }
        checkpoints.sort_by_key(|(_, header)| header.index);
        let past = LogReplayer { log, checkpoints };
        past.check_checkpoint(from)?;
        Ok(past)
    }

    /// A checkpoint that was named explicitly must be of this log; others found in the directory
    /// are ignored.
    fn check_checkpoint(&self, from: Option<&Path>) -> Result<(), LogReplayError> {
        let given = self.checkpoints.iter().find(|(path, _)| Some(path.as_path()) == from);
        if let Some((path, header)) = given
            && let Some(here) = self.log.term_at(header.index)
            && here != header.term
        {
            let (path, index, found) = (path.clone(), header.index, header.term);
            return Err(LogReplayError::OtherHistory { path, index, found, here });
        }
        Ok(())
    }

    /// Index of the first entry that is still in the log.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.log.first()
    }

    /// Index after the last entry.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.log.next_index()
    }

    /// Index after the last entry that a quorum is known to have accepted.
    #[must_use]
    pub fn committed_end(&self) -> u64 {
        self.log.committed_end()
    }

    #[must_use]
    pub fn torn_tail(&self) -> Option<&TornTail> {
        self.log.torn_tail()
    }

    /// The past state of the cell; without a target, the state at the end of the log.
    ///
    /// # Errors
    /// When the log does not reach that far, or cannot be read.
    pub fn state_at(&self, target: Option<ReplayTarget>) -> Result<ReplayedState, LogReplayError> {
        let next = self.log.next_index();
        if let Some(ReplayTarget::Index(wanted)) = target
            && wanted >= next
        {
            return Err(LogReplayError::BeyondEnd { requested: wanted, next });
        }
        let target = target.unwrap_or(ReplayTarget::Index(next.saturating_sub(1)));
        let mut skipped = Vec::new();
        let Some((base, view)) = self.load_base(target, &mut skipped) else {
            let (wanted, first) = (RequestedTarget(target), self.log.first());
            return Err(LogReplayError::BeforeStart {
                requested: wanted,
                first,
                reach: self.oldest_reachable(),
            });
        };
        let mut replayed = ReplayedState { view, base, entries: 0, skipped };
        // A base that the log does not continue was chosen because it is exactly the target.
        if self.is_continued_by_log(replayed.view.index) {
            self.apply_up_to(&mut replayed, target)?;
        }
        Ok(replayed)
    }

    fn apply_up_to(
        &self,
        replayed: &mut ReplayedState,
        target: ReplayTarget,
    ) -> Result<(), LogReplayError> {
        let mut from = replayed.view.index + 1;
        loop {
            let batch = self.log.read(from, READ_BYTES)?;
            let Some(last) = batch.last() else { return Ok(()) };
            from = last.index + 1;
            let payloads: Vec<LoggedEntry> = batch.into_iter().filter_map(logged_entry).collect();
            let before = replayed.view.state.applied();
            let view = &mut replayed.view;
            let progress = checkpoint::replay(view, self.log.first(), &payloads, target)?;
            replayed.entries += replayed.view.state.applied() - before;
            if progress == checkpoint::ReplayProgress::TargetReached {
                return Ok(());
            }
        }
    }

    /// The newest readable state that is not beyond the target and that the log continues.
    fn load_base(
        &self,
        target: ReplayTarget,
        skipped: &mut Vec<String>,
    ) -> Option<(ReplayBase, View)> {
        let is_at = |index, at| match target {
            ReplayTarget::Index(wanted) => index == wanted,
            ReplayTarget::Time(wanted) => at == wanted,
        };
        for candidate in self.candidates().into_iter().rev() {
            let index = candidate.index();
            if matches!(target, ReplayTarget::Index(wanted) if index > wanted) {
                continue;
            }
            if let BaseCandidate::Checkpoint(_, header) = &candidate
                && let ReplayTarget::Time(wanted) = target
                && header.at > wanted
            {
                continue;
            }
            let (base, view) = match self.load_candidate(&candidate) {
                Ok(loaded) => loaded,
                Err(why) => {
                    skipped.push(why.to_string());
                    continue;
                }
            };
            let now = view.state.now();
            let is_beyond = matches!(target, ReplayTarget::Time(wanted) if now > wanted);
            if !is_beyond && (self.is_continued_by_log(index) || is_at(index, now)) {
                return Some((base, view));
            }
        }
        None
    }

    fn is_continued_by_log(&self, index: u64) -> bool {
        index.saturating_add(1) >= self.log.first()
    }

    /// All states there are, oldest first. Checkpoints of another cell history are not among them.
    fn candidates(&self) -> Vec<BaseCandidate> {
        let mut all = Vec::new();
        if self.log.first() == 0 {
            all.push(BaseCandidate::Beginning);
        }
        all.extend(self.log.snapshots().iter().copied().map(BaseCandidate::Snapshot));
        let ours = |header: &Header| {
            header.index < self.log.next_index()
                && self.log.term_at(header.index).is_none_or(|term| term == header.term)
        };
        let checkpoints = self.checkpoints.iter().filter(|(_, header)| ours(header)).cloned();
        all.extend(checkpoints.map(|(path, header)| BaseCandidate::Checkpoint(path, header)));
        all.sort_by_key(BaseCandidate::index);
        all
    }

    fn load_candidate(
        &self,
        candidate: &BaseCandidate,
    ) -> Result<(ReplayBase, View), LogReplayError> {
        match candidate {
            BaseCandidate::Beginning => Ok((
                ReplayBase::Beginning,
                View { state: State::default(), index: 0, term: 0, log_epoch: 0 },
            )),
            BaseCandidate::Checkpoint(path, _) => {
                Ok((ReplayBase::Checkpoint(path.clone()), checkpoint::read(path)?.1))
            }
            BaseCandidate::Snapshot(snapshot) => {
                let OfflineSnapshot { index, term } = *snapshot;
                let bytes = self.log.snapshot(*snapshot)?;
                let file = format!("the snapshot at {index}");
                let view = unpack(&bytes).map_err(|why| OpenError::Machine { file, why })?;
                // Between its last request and its end there are only entries of new leaders.
                Ok((ReplayBase::Snapshot(index), View { index, term, ..view }))
            }
        }
    }

    /// Index and time of the oldest state that the log continues.
    fn oldest_reachable(&self) -> Option<(u64, Time)> {
        let all = self.candidates();
        let mut going_on =
            all.iter().filter(|candidate| self.is_continued_by_log(candidate.index()));
        going_on.find_map(|candidate| {
            let (_, view) = self.load_candidate(candidate).ok()?;
            Some((view.index, view.state.now()))
        })
    }

    /// Passes each log entry from `from` up to and including `to` to `each`, with the verdict of
    /// every request where the state to compute it is available.
    ///
    /// # Errors
    /// When the log cannot be read, or `each` returns an error.
    pub fn entries<E: From<LogReplayError>>(
        &self,
        from: u64,
        to: u64,
        mut each: impl FnMut(ReplayedEntry) -> Result<(), E>,
    ) -> Result<(), E> {
        let from = from.max(self.log.first());
        let mut verdict_view = self.view_before(from)?;
        let mut at = from;
        while at <= to {
            let batch = self.log.read(at, READ_BYTES).map_err(LogReplayError::from)?;
            let Some(last) = batch.last() else { break };
            at = last.index + 1;
            for entry in batch.into_iter().filter(|entry| entry.index <= to) {
                each(self.to_replayed_entry(entry, &mut verdict_view)?)?;
            }
        }
        Ok(())
    }

    /// The state before the entry at `from`, or the oldest one after it.
    fn view_before(&self, from: u64) -> Result<Option<View>, LogReplayError> {
        let before = ReplayTarget::Index(from.saturating_sub(1));
        match self.state_at(Some(before)) {
            Ok(replayed) => Ok(Some(replayed.view)),
            Err(LogReplayError::BeyondEnd { .. }) => Ok(None),
            Err(LogReplayError::BeforeStart { .. }) => {
                let all = self.candidates();
                let mut later = all.iter().filter(|candidate| candidate.index() >= from);
                Ok(later.find_map(|candidate| Some(self.load_candidate(candidate).ok()?.1)))
            }
            Err(other) => Err(other),
        }
    }

    fn to_replayed_entry(
        &self,
        found: OfflineEntry,
        verdict_view: &mut Option<View>,
    ) -> Result<ReplayedEntry, LogReplayError> {
        let OfflineEntry { index, term, content } = found;
        let content = match content {
            EntryContent::Blank => ReplayedContent::Blank,
            EntryContent::Members(members) => ReplayedContent::Members(members),
            EntryContent::Payload(payload) => match decode_entry(&payload) {
                Err(why) => return Err(LogReplayError::Entry { index, why }),
                Ok(entry) => {
                    let state = verdict_view.as_mut().filter(|view| view.index < index);
                    let verdicts = state.map(|view| {
                        view.index = index;
                        view.state.apply(&entry, &mut Vec::new())
                    });
                    ReplayedContent::Requests { entry, verdicts }
                }
            },
        };
        Ok(ReplayedEntry { index, term, is_committed: index < self.log.committed_end(), content })
    }
}

fn logged_entry(entry: OfflineEntry) -> Option<LoggedEntry> {
    let OfflineEntry { index, term, content } = entry;
    match content {
        EntryContent::Payload(payload) => Some(LoggedEntry { index, term, payload }),
        EntryContent::Blank | EntryContent::Members(_) => None,
    }
}
