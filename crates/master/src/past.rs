//! The past of a cell, from the files of one replica and without its help: the state after any
//! entry or at any time that the log still reaches, and the entries themselves.
//!
//! A state is had by starting from the newest one that is not beyond what is asked for (a
//! checkpoint, one of the log's own snapshots, or nothing at all where the log begins at its
//! beginning) and applying the entries after it, with the very `apply` that made them. What cannot
//! be had is said with how far back the log does reach.
//!
//! Rejected: doing this in a running master. The past is asked for when something went wrong, and a
//! replay of a large cell must not take the memory and the core of the one that runs.

use crate::checkpoint::{self, CheckpointError, Checkpoints, Header, ReplayError, Target};
use crate::replicated::{View, readable, unpack};
use cellwright_cell::command::{Entry, Verdict};
use cellwright_cell::encode::LoadError;
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
use cellwright_store::{
    Content, LoggedEntry, NodeId, OfflineEntry, OfflineLog, OfflineSnapshot, OpenError, Peer,
    TornTail,
};
use std::fmt;
use std::path::{Path, PathBuf};

/// Entries are read in stretches of about this much.
const STRETCH: usize = 8 << 20;

#[derive(Debug, thiserror::Error)]
pub enum PastError {
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(
        "{asked} is no longer there: the log reaches back to index {first}, and the oldest state \
         it can be replayed from stands at {}", oldest(.reach)
    )]
    TooOld { asked: Asked, first: u64, reach: Option<(u64, Time)> },
    #[error("index {asked} is not there yet: the log ends at {}", last(.next))]
    NotYet { asked: u64, next: u64 },
    #[error(
        "{path} stands at index {index} of term {found}, where this log has an entry of term \
         {here}: it is of another cell, or of a past that this log does not have"
    )]
    OtherPast { path: PathBuf, index: u64, found: u64, here: u64 },
    #[error("entry {index} cannot be read: {why}")]
    Entry { index: u64, why: LoadError },
}

/// What was asked for, as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked(pub Target);

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Target::Index(index) => write!(f, "index {index}"),
            Target::Time(time) => write!(f, "the state at {} ms since 1970", time.0),
        }
    }
}

fn oldest(reach: &Option<(u64, Time)>) -> String {
    match reach {
        Some((index, at)) => format!("index {index}, {} ms since 1970", at.0),
        None => "none: no checkpoint or snapshot here is whole".to_owned(),
    }
}

fn last(next: &u64) -> String {
    next.checked_sub(1).map_or_else(|| "nothing: it is empty".to_owned(), |last| last.to_string())
}

/// Where a replay began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Base {
    /// The log has its first entry, so it began with nothing.
    Beginning,
    Snapshot(u64),
    Checkpoint(PathBuf),
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Base::Beginning => f.write_str("the beginning of the log"),
            Base::Snapshot(index) => write!(f, "the snapshot at {index}"),
            Base::Checkpoint(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A state of the past and how it was had.
pub struct Replayed {
    pub view: View,
    pub base: Base,
    /// Entries applied on top of the base.
    pub entries: u64,
    /// States that would have been nearer but could not be read, and why.
    pub passed_over: Vec<String>,
}

/// One place of the log, for lists.
#[derive(Debug)]
pub struct Placed {
    pub index: u64,
    pub term: u64,
    /// Whether a quorum is known to have taken it.
    pub is_agreed: bool,
    pub what: What,
}

#[derive(Debug)]
pub enum What {
    Requests {
        entry: Entry,
        /// One for each request; `None` when the state before this entry is not known.
        verdicts: Option<Vec<Verdict>>,
    },
    /// The mark of a new leader.
    Blank,
    Members(Vec<(NodeId, Peer, bool)>),
}

pub struct Past {
    log: OfflineLog,
    checkpoints: Vec<(PathBuf, Header)>,
}

/// A state to begin from, not read yet.
#[derive(Clone)]
enum Candidate {
    Beginning,
    Snapshot(OfflineSnapshot),
    Checkpoint(PathBuf, Header),
}

impl Candidate {
    fn index(&self) -> u64 {
        match self {
            Candidate::Beginning => 0,
            Candidate::Snapshot(snapshot) => snapshot.index,
            Candidate::Checkpoint(_, header) => header.index,
        }
    }
}

impl Past {
    /// Opens a replica's data directory, running or not, and changes nothing in it. `from` is a
    /// checkpoint to consider besides those in the directory.
    ///
    /// # Errors
    /// When there is no log that this build can read.
    pub fn open(data_dir: &Path, from: Option<&Path>) -> Result<Past, PastError> {
        let log = OfflineLog::open(data_dir)?;
        let folder = Checkpoints::in_data(data_dir, 1);
        let listed = folder.list()?.into_iter();
        let mut checkpoints: Vec<(PathBuf, Header)> =
            listed.map(|listed| (folder.path(&listed.name), listed.header)).collect();
        if let Some(path) = from {
            checkpoints.push((path.to_owned(), checkpoint::header(path)?));
        }
        checkpoints.sort_by_key(|(_, header)| header.index);
        let past = Past { log, checkpoints };
        past.check_given(from)?;
        Ok(past)
    }

    /// A checkpoint that was named must be of this log; of those lying around, others are ignored.
    fn check_given(&self, from: Option<&Path>) -> Result<(), PastError> {
        let given = self.checkpoints.iter().find(|(path, _)| Some(path.as_path()) == from);
        if let Some((path, header)) = given
            && let Some(here) = self.log.term_at(header.index)
            && here != header.term
        {
            let (path, index, found) = (path.clone(), header.index, header.term);
            return Err(PastError::OtherPast { path, index, found, here });
        }
        Ok(())
    }

    /// Index of the first entry that is still there.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.log.first()
    }

    /// Index after the last entry.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.log.next()
    }

    /// Index after the last entry that a quorum is known to have taken.
    #[must_use]
    pub fn agreed(&self) -> u64 {
        self.log.agreed()
    }

    #[must_use]
    pub fn torn_tail(&self) -> Option<&TornTail> {
        self.log.torn_tail()
    }

    /// The cell as it was; without a target, as it is at the end of the log.
    ///
    /// # Errors
    /// When the log does not reach that far, or cannot be read.
    pub fn at(&self, target: Option<Target>) -> Result<Replayed, PastError> {
        let next = self.log.next();
        if let Some(Target::Index(asked)) = target
            && asked >= next
        {
            return Err(PastError::NotYet { asked, next });
        }
        let target = target.unwrap_or(Target::Index(next.saturating_sub(1)));
        let mut passed_over = Vec::new();
        let Some((base, view)) = self.base(target, &mut passed_over) else {
            let (asked, first) = (Asked(target), self.log.first());
            return Err(PastError::TooOld { asked, first, reach: self.reach() });
        };
        let mut replayed = Replayed { view, base, entries: 0, passed_over };
        // A base that the log does not go on from was taken because it is what was asked for.
        if self.continues(replayed.view.index) {
            self.go_on(&mut replayed, target)?;
        }
        Ok(replayed)
    }

    fn go_on(&self, replayed: &mut Replayed, target: Target) -> Result<(), PastError> {
        let mut from = replayed.view.index + 1;
        loop {
            let stretch = self.log.read(from, STRETCH)?;
            let Some(last) = stretch.last() else { return Ok(()) };
            from = last.index + 1;
            let payloads: Vec<LoggedEntry> = stretch.into_iter().filter_map(payload).collect();
            let before = replayed.view.state.applied();
            let view = &mut replayed.view;
            let progress = checkpoint::replay(view, self.log.first(), &payloads, target)?;
            replayed.entries += replayed.view.state.applied() - before;
            if progress == checkpoint::Progress::Reached {
                return Ok(());
            }
        }
    }

    /// The newest readable state that is not beyond the target and that the log goes on from.
    fn base(&self, target: Target, passed_over: &mut Vec<String>) -> Option<(Base, View)> {
        let is_at = |index, at| match target {
            Target::Index(asked) => index == asked,
            Target::Time(asked) => at == asked,
        };
        for candidate in self.candidates().into_iter().rev() {
            let index = candidate.index();
            if matches!(target, Target::Index(asked) if index > asked) {
                continue;
            }
            if let Candidate::Checkpoint(_, header) = &candidate
                && let Target::Time(asked) = target
                && header.at > asked
            {
                continue;
            }
            let (base, view) = match self.load(&candidate) {
                Ok(loaded) => loaded,
                Err(why) => {
                    passed_over.push(why.to_string());
                    continue;
                }
            };
            let now = view.state.now();
            let is_beyond = matches!(target, Target::Time(asked) if now > asked);
            if !is_beyond && (self.continues(index) || is_at(index, now)) {
                return Some((base, view));
            }
        }
        None
    }

    fn continues(&self, index: u64) -> bool {
        index.saturating_add(1) >= self.log.first()
    }

    /// All states there are, oldest first. Checkpoints of another past are not among them.
    fn candidates(&self) -> Vec<Candidate> {
        let mut all = Vec::new();
        if self.log.first() == 0 {
            all.push(Candidate::Beginning);
        }
        all.extend(self.log.snapshots().iter().copied().map(Candidate::Snapshot));
        let ours = |header: &Header| {
            header.index < self.log.next()
                && self.log.term_at(header.index).is_none_or(|term| term == header.term)
        };
        let checkpoints = self.checkpoints.iter().filter(|(_, header)| ours(header)).cloned();
        all.extend(checkpoints.map(|(path, header)| Candidate::Checkpoint(path, header)));
        all.sort_by_key(Candidate::index);
        all
    }

    fn load(&self, candidate: &Candidate) -> Result<(Base, View), PastError> {
        match candidate {
            Candidate::Beginning => {
                Ok((Base::Beginning, View { state: State::default(), index: 0, term: 0, era: 0 }))
            }
            Candidate::Checkpoint(path, _) => {
                Ok((Base::Checkpoint(path.clone()), checkpoint::read(path)?.1))
            }
            Candidate::Snapshot(snapshot) => {
                let OfflineSnapshot { index, term } = *snapshot;
                let bytes = self.log.snapshot(*snapshot)?;
                let file = format!("the snapshot at {index}");
                let view = unpack(&bytes).map_err(|why| OpenError::Machine { file, why })?;
                // What lies between its last request and its end are marks of leaders.
                Ok((Base::Snapshot(index), View { index, term, ..view }))
            }
        }
    }

    /// Index and time of the oldest state that the log goes on from.
    fn reach(&self) -> Option<(u64, Time)> {
        let all = self.candidates();
        let mut going_on = all.iter().filter(|candidate| self.continues(candidate.index()));
        going_on.find_map(|candidate| {
            let (_, view) = self.load(candidate).ok()?;
            Some((view.index, view.state.now()))
        })
    }

    /// Shows each place of the log from `from` up to and with `to`, with what became of every
    /// request where a state to judge it by is there.
    ///
    /// # Errors
    /// When the log cannot be read, or `each` says so.
    pub fn entries<E: From<PastError>>(
        &self,
        from: u64,
        to: u64,
        mut each: impl FnMut(Placed) -> Result<(), E>,
    ) -> Result<(), E> {
        let from = from.max(self.log.first());
        let mut judge = self.judge(from)?;
        let mut at = from;
        while at <= to {
            let stretch = self.log.read(at, STRETCH).map_err(PastError::from)?;
            let Some(last) = stretch.last() else { break };
            at = last.index + 1;
            for entry in stretch.into_iter().filter(|entry| entry.index <= to) {
                each(self.placed(entry, &mut judge)?)?;
            }
        }
        Ok(())
    }

    /// The state before the entry at `from`, or the oldest one after it.
    fn judge(&self, from: u64) -> Result<Option<View>, PastError> {
        let before = Target::Index(from.saturating_sub(1));
        match self.at(Some(before)) {
            Ok(replayed) => Ok(Some(replayed.view)),
            Err(PastError::NotYet { .. }) => Ok(None),
            Err(PastError::TooOld { .. }) => {
                let all = self.candidates();
                let mut later = all.iter().filter(|candidate| candidate.index() >= from);
                Ok(later.find_map(|candidate| Some(self.load(candidate).ok()?.1)))
            }
            Err(other) => Err(other),
        }
    }

    fn placed(&self, found: OfflineEntry, judge: &mut Option<View>) -> Result<Placed, PastError> {
        let OfflineEntry { index, term, content } = found;
        let what = match content {
            Content::Blank => What::Blank,
            Content::Members(members) => What::Members(members),
            Content::Payload(payload) => match readable(&payload) {
                Err(why) => return Err(PastError::Entry { index, why }),
                Ok(entry) => {
                    let state = judge.as_mut().filter(|view| view.index < index);
                    let verdicts = state.map(|view| {
                        view.index = index;
                        view.state.apply(&entry, &mut Vec::new())
                    });
                    What::Requests { entry, verdicts }
                }
            },
        };
        Ok(Placed { index, term, is_agreed: index < self.log.agreed(), what })
    }
}

fn payload(entry: OfflineEntry) -> Option<LoggedEntry> {
    let OfflineEntry { index, term, content } = entry;
    match content {
        Content::Payload(payload) => Some(LoggedEntry { index, term, payload }),
        Content::Blank | Content::Members(_) => None,
    }
}
