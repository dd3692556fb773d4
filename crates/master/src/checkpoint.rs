//! Checkpoints: the whole state of a cell in one file, for backups, offline queries and the
//! simulator.
//!
//! A checkpoint is a state with its log index and a hash of itself. From it and the log after it,
//! any later state can be rebuilt: [`replay`] applies entries up to an index or a time, with the
//! very `apply` that made them. From it alone, a new cell can be started when all replicas are
//! lost: [`restore`]. One that is broken can be repaired by hand, as text
//! ([`cellwright_cell::encode::text`]), with what [`read_rows`] returns for it.
//!
//! Restoring uses the store's normal interface: a replica with a single voter is started on the new
//! directory, its state is made a snapshot, and its short log is purged, so that every replica that
//! joins later must be given that snapshot. Rejected: writing the store's files by hand, which
//! would be a second writer of a format that has one.

use crate::clock::{Clock, SystemClock};
use crate::replicated_state::{View, decode_entry, pack};
use cellwright_api::level::known_level;
use cellwright_cell::command::Entry;
use cellwright_cell::encode::{self, LoadError, Rows};
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
use cellwright_identity::private_files::write_private;
use cellwright_store::{
    CallError, CallFuture, Disk, LoggedEntry, NodeId, OpenError, Peer, RaftCall, Replica, Role,
    StateMachine, StoreConfig, Transport,
};
use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"CELLCKPT";
const VERSION: u32 = 1;
/// Magic 8, version 4, index 8, term 8, time 8, hash 8, checksum 8.
const HEADER_LEN: usize = 52;
const EXTENSION: &str = "ckpt";

#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("{path}: {why}")]
    Io { path: PathBuf, why: io::Error },
    #[error("{path} is not a checkpoint: {why}")]
    NotACheckpoint { path: PathBuf, why: &'static str },
    #[error("{path} was written by version {found}; allowed: up to {VERSION}")]
    TooNew { path: PathBuf, found: u32 },
    #[error("{path}: {why}")]
    State { path: PathBuf, why: LoadError },
    #[error("{path}: the state hashes to {found:016x}, the header says {stated:016x}")]
    HashMismatch { path: PathBuf, found: u64, stated: u64 },
    #[error("{path} holds a cell already; restore into an empty directory")]
    NotEmpty { path: String },
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error("the new cell did not start: {0}")]
    Start(String),
}

/// The header in front of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Log index and term of the last entry in it.
    pub index: u64,
    pub term: u64,
    /// Log time of that entry.
    pub at: Time,
    pub hash: u64,
}

/// A checkpoint file as it appears in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointFile {
    pub name: String,
    pub header: Header,
    pub bytes: u64,
}

/// Counts of what a state contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateCounts {
    pub level: u32,
    pub machines: usize,
    pub users: usize,
    pub jobs: usize,
    pub tasks: usize,
    pub crons: usize,
    pub resources: usize,
    pub tokens: usize,
    pub blobs: usize,
}

impl StateCounts {
    #[must_use]
    pub fn of(state: &State) -> StateCounts {
        StateCounts {
            level: state.level(),
            machines: state.machines().len(),
            users: state.users().len(),
            jobs: state.jobs().len(),
            tasks: state.tasks().len(),
            crons: state.crons().len(),
            resources: state.resources().len(),
            tokens: state.tokens().len(),
            blobs: state.blobs().len(),
        }
    }
}

/// The folder of a replica's checkpoints.
pub struct Checkpoints {
    dir: PathBuf,
    max_files: usize,
}

impl Checkpoints {
    /// `keep`: how many checkpoints stay; the oldest are removed first.
    #[must_use]
    pub fn in_data(data: &Path, keep: usize) -> Checkpoints {
        Checkpoints { dir: data.join("checkpoints"), max_files: keep.max(1) }
    }

    /// Saves a state. One of the same index is replaced.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, view: &View) -> Result<CheckpointFile, CheckpointError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.map_err(io_error(&self.dir))?;
        let name = format!("{:020}.{EXTENSION}", view.index);
        let path = self.dir.join(&name);
        let listed = write(view, &path)?;
        for old in self.list()?.iter().rev().skip(self.max_files) {
            let path = self.dir.join(&old.name);
            fs::remove_file(&path).map_err(io_error(&path))?;
        }
        Ok(listed)
    }

    /// All checkpoints here, oldest first. Files that are not checkpoints are skipped.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn list(&self) -> Result<Vec<CheckpointFile>, CheckpointError> {
        let entries = match fs::read_dir(&self.dir) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(io_error(&self.dir))?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let path = entry.map_err(io_error(&self.dir))?.path();
            if path.extension().is_none_or(|extension| extension != EXTENSION) {
                continue;
            }
            match checkpoint_file(&path) {
                Ok(listed) => found.push(listed),
                Err(error) => tracing::warn!(%error, "passed over"),
            }
        }
        found.sort_by_key(|listed| listed.header.index);
        Ok(found)
    }

    /// The path of the checkpoint of that name.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The newest checkpoint that is not beyond the target.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn newest_before(&self, target: ReplayTarget) -> Result<Option<PathBuf>, CheckpointError> {
        let reached = |header: &Header| match target {
            ReplayTarget::Index(index) => header.index <= index,
            ReplayTarget::Time(time) => header.at <= time,
        };
        let list = self.list()?;
        let newest = list.iter().rev().find(|listed| reached(&listed.header));
        Ok(newest.map(|listed| self.dir.join(&listed.name)))
    }
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> CheckpointError {
    let path = path.to_owned();
    move |why| CheckpointError::Io { path: path.clone(), why }
}

/// Writes a checkpoint to the given path: whole, or not at all. Only its owner can read it, because
/// it contains the secrets of tasks.
///
/// # Errors
/// When the file cannot be written.
pub fn write(view: &View, path: &Path) -> Result<CheckpointFile, CheckpointError> {
    let mut view = view.clone();
    let header = Header::of(&mut view);
    let mut bytes = header.encode();
    bytes.extend_from_slice(&encode::save(&view.state));
    let fresh = path.with_extension("unfinished");
    // A file left by a crash may be readable for others, and would stay so.
    match fs::remove_file(&fresh) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(io_error(&fresh)(why)),
        _ => {}
    }
    write_private(&fresh, &bytes).map_err(io_error(&fresh))?;
    fs::rename(&fresh, path).map_err(io_error(path))?;
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        File::open(folder).and_then(|dir| dir.sync_all()).map_err(io_error(folder))?;
    }
    let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    Ok(CheckpointFile { name, header, bytes: bytes.len() as u64 })
}

fn checkpoint_file(path: &Path) -> Result<CheckpointFile, CheckpointError> {
    let mut file = File::open(path).map_err(io_error(path))?;
    let mut head = [0; HEADER_LEN];
    io::Read::read_exact(&mut file, &mut head).map_err(io_error(path))?;
    let header = Header::decode(&head, path)?;
    let bytes = file.metadata().map_err(io_error(path))?.len();
    let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    Ok(CheckpointFile { name, header, bytes })
}

/// Reads the header of a checkpoint, without its state.
///
/// # Errors
/// When it cannot be read or is not a checkpoint.
pub fn header(path: &Path) -> Result<Header, CheckpointError> {
    checkpoint_file(path).map(|listed| listed.header)
}

/// Reads a checkpoint and checks all of it.
///
/// # Errors
/// When anything is wrong with it.
pub fn read(path: &Path) -> Result<(Header, View), CheckpointError> {
    let bytes = fs::read(path).map_err(io_error(path))?;
    let header = Header::decode(&bytes, path)?;
    let mut state = encode::load_known(&bytes[HEADER_LEN..], known_level())
        .map_err(|why| CheckpointError::State { path: path.to_owned(), why })?;
    let (found, stated) = (state.hash(), header.hash);
    if found != stated {
        return Err(CheckpointError::HashMismatch { path: path.to_owned(), found, stated });
    }
    Ok((header, View { state, index: header.index, term: header.term, log_epoch: 0 }))
}

/// The rows of a checkpoint, also of one that no master accepts; in that case with the reason.
///
/// # Errors
/// When its bytes cannot be decoded into rows.
pub fn read_rows(path: &Path) -> Result<(Header, Rows, Option<CheckpointError>), CheckpointError> {
    let bytes = fs::read(path).map_err(io_error(path))?;
    let header = Header::decode(&bytes, path)?;
    let rows = encode::load_rows(&bytes[HEADER_LEN..])
        .map_err(|why| CheckpointError::State { path: path.to_owned(), why })?;
    Ok((header, rows, read(path).err()))
}

impl Header {
    /// The header of a state that is not in a file yet.
    pub fn of(view: &mut View) -> Header {
        let (at, hash) = (view.state.now(), view.state.hash());
        Header { index: view.index, term: view.term, at, hash }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        for word in [self.index, self.term, self.at.0, self.hash] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        let checksum = xxh3_64(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8], path: &Path) -> Result<Header, CheckpointError> {
        let not_one = |why| CheckpointError::NotACheckpoint { path: path.to_owned(), why };
        let head = bytes.first_chunk::<HEADER_LEN>().ok_or_else(|| not_one("it is too short"))?;
        if head[..8] != MAGIC {
            return Err(not_one("it begins otherwise"));
        }
        let word = |from: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&head[from..from + 8]);
            u64::from_le_bytes(eight)
        };
        if xxh3_64(&head[..HEADER_LEN - 8]) != word(HEADER_LEN - 8) {
            return Err(not_one("the checksum of its header does not match"));
        }
        let found = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        if found > VERSION {
            return Err(CheckpointError::TooNew { path: path.to_owned(), found });
        }
        Ok(Header { index: word(12), term: word(20), at: Time(word(28)), hash: word(36) })
    }
}

/// How far to replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayTarget {
    /// Up to and including this log index.
    Index(u64),
    /// Up to and including the last entry of this log time or before.
    Time(Time),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    #[error("the state stands at {at} already, beyond what is asked for; start from an older one")]
    PastTarget { at: u64 },
    #[error("entry {index} cannot be read: {why}")]
    Entry { index: u64, why: LoadError },
    #[error("the entries begin at {first}, the state stands at {at}; entries between are missing")]
    Missing { at: u64, first: u64 },
}

/// Whether a replay needs more entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayProgress {
    NeedsMore,
    TargetReached,
}

/// Continues from `view` with entries of the log, oldest first, until the target is reached.
/// Entries that the state already contains are skipped. `first` is the first index the log still
/// has.
///
/// # Errors
/// When the target lies before the state, or an entry is missing or does not decode.
pub fn replay(
    view: &mut View,
    first: u64,
    entries: &[LoggedEntry],
    target: ReplayTarget,
) -> Result<ReplayProgress, ReplayError> {
    let beyond = match target {
        ReplayTarget::Index(index) => view.index > index,
        ReplayTarget::Time(time) => view.state.now() > time,
    };
    if beyond {
        return Err(ReplayError::PastTarget { at: view.index });
    }
    if first > view.index.saturating_add(1) {
        return Err(ReplayError::Missing { at: view.index, first });
    }
    let current_index = view.index;
    for logged in entries.iter().filter(|logged| logged.index > current_index) {
        let read = decode_entry(&logged.payload);
        let entry = read.map_err(|why| ReplayError::Entry { index: logged.index, why })?;
        let past = match target {
            ReplayTarget::Index(index) => logged.index > index,
            ReplayTarget::Time(time) => entry.now > time,
        };
        if past {
            return Ok(ReplayProgress::TargetReached);
        }
        view.state.apply(&entry, &mut Vec::new());
        (view.index, view.term) = (logged.index, logged.term);
    }
    Ok(match target {
        ReplayTarget::Index(index) if view.index >= index => ReplayProgress::TargetReached,
        _ => ReplayProgress::NeedsMore,
    })
}

/// Creates a new cell of one voter from a state, in an empty directory. The replica `own` can then
/// be started there as usual, and others can join it.
///
/// # Errors
/// When the directory is not empty or the store does not start.
pub fn restore(
    view: View,
    disk: Arc<dyn Disk>,
    own: (NodeId, Peer),
    settings: StoreConfig,
) -> BoxFuture<'static, Result<u64, CheckpointError>> {
    Box::pin(restore_into(view, disk, own, settings))
}

async fn restore_into(
    view: View,
    disk: Arc<dyn Disk>,
    own: (NodeId, Peer),
    mut settings: StoreConfig,
) -> Result<u64, CheckpointError> {
    for folder in ["log", "snap"] {
        let found = disk.list(folder).map_err(io_error(Path::new(folder)))?;
        if !found.is_empty() {
            return Err(CheckpointError::NotEmpty { path: folder.to_owned() });
        }
    }
    let start = |why: &dyn std::fmt::Display| CheckpointError::Start(why.to_string());
    // The log keeps nothing behind the snapshot: a replica that joins must be given the state.
    settings.keep_entries = 0;
    let empty = Entry { now: view.state.now(), requests: Vec::new() };
    let level = view.state.level();
    let (id, peer) = own;
    // Agents that know the old log obey the new one only if its epoch is higher, whatever they have
    // received from the old one since this checkpoint.
    // The clock knows of later epochs than the checkpoint; the checkpoint knows more than a clock
    // that is behind.
    let known = view.log_epoch.max(view.state.now().0).saturating_add(1);
    let log_epoch = SystemClock.wall_time().0.max(known);
    let seed = RestoreStateMachine(View { index: 0, term: 0, log_epoch, ..view });
    let replica = Replica::open(id, settings, disk, Arc::new(NoPeers), seed).await?;
    replica.bootstrap(BTreeMap::from([(id, peer)])).await.map_err(|e| start(&e))?;
    let mut status = replica.watch();
    let leads = status.wait_for(|status| status.role == Role::Leader).await.is_ok();
    if !leads {
        return Err(start(&"it never led"));
    }
    let entry = encode::save_entry_at(&empty, level).map_err(|e| start(&e))?;
    replica.propose(entry).await.map_err(|e| start(&e))?;
    let index = replica.snapshot_now().await.map_err(|e| start(&e))?;
    let purged = status.wait_for(|status| status.purged >= Some(index)).await.is_ok();
    replica.shutdown().await;
    if purged { Ok(index) } else { Err(start(&"its log was not purged")) }
}

/// The state machine of a cell that is being restored: it holds the state and accepts one empty
/// entry, which gives the state its index in the new log.
struct RestoreStateMachine(View);

impl StateMachine for RestoreStateMachine {
    fn apply(&mut self, index: u64, term: u64, payload: &[u8]) -> Vec<u8> {
        if let Ok(entry) = decode_entry(payload) {
            self.0.state.apply(&entry, &mut Vec::new());
            (self.0.index, self.0.term) = (index, term);
        }
        Vec::new()
    }

    fn snapshot(&self) -> Box<dyn FnOnce() -> Vec<u8> + Send> {
        let view = self.0.clone();
        Box::new(move || pack(&view))
    }

    fn restore(&mut self, _: u64, _: &[u8]) -> Result<(), String> {
        Err("a directory that was empty has a snapshot".to_owned())
    }
}

/// A cell of one replica has no peer to call.
struct NoPeers;

impl Transport for NoPeers {
    fn call(&self, _: NodeId, peer: Peer, _: RaftCall) -> CallFuture {
        Box::pin(async move { Err(CallError::Unreachable(peer.address)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempFolder;
    use cellwright_cell::command::{Actor, Command, Request};
    use cellwright_cell::name::Name;

    fn entry(index: u64) -> LoggedEntry {
        let name = Name::new(&format!("u{index}")).unwrap();
        let command = Command::AddUser { name };
        let requests = vec![Request { by: Actor::Operator, id: None, command }];
        let payload = encode::save_entry(&Entry { now: Time(index * 10), requests });
        LoggedEntry { index, term: 1, payload: payload.into() }
    }

    /// The state after the given entries of one user each.
    fn view_after(indexes: impl Iterator<Item = u64>) -> View {
        let mut view = View { state: State::default(), index: 0, term: 0, log_epoch: 0 };
        let entries: Vec<LoggedEntry> = indexes.map(entry).collect();
        replay(&mut view, 1, &entries, ReplayTarget::Index(u64::MAX)).unwrap();
        view
    }

    fn hash(view: &View) -> u64 {
        view.state.clone().hash()
    }

    #[test]
    fn a_checkpoint_comes_back_as_it_was() {
        let folder = TempFolder::new();
        let checkpoints = Checkpoints::in_data(&folder.0, 2);
        assert_eq!(checkpoints.list().unwrap(), []);
        for last in [3, 5, 9] {
            checkpoints.save(&view_after(1..=last)).unwrap();
        }
        let list = checkpoints.list().unwrap();
        let indexes: Vec<u64> = list.iter().map(|listed| listed.header.index).collect();
        assert_eq!(indexes, [5, 9], "the oldest went");
        let path = checkpoints.newest_before(ReplayTarget::Index(8)).unwrap().unwrap();
        let (header, view) = read(&path).unwrap();
        assert_eq!((header.index, header.term, header.at), (5, 1, Time(50)));
        assert_eq!(hash(&view), hash(&view_after(1..=5)));
        assert_eq!(StateCounts::of(&view.state).users, 5);
        assert_eq!(checkpoints.newest_before(ReplayTarget::Time(Time(49))).unwrap(), None);
        let newest = checkpoints.newest_before(ReplayTarget::Time(Time(90))).unwrap().unwrap();
        assert_eq!(read(&newest).unwrap().0.index, 9);
    }

    #[test]
    fn only_its_owner_reads_a_checkpoint_whatever_was_there_before() {
        use std::os::unix::fs::PermissionsExt;
        let folder = TempFolder::new();
        let path = folder.0.join("x.ckpt");
        for old in [&path, &path.with_extension("unfinished")] {
            fs::write(old, "open to all").unwrap();
            fs::set_permissions(old, fs::Permissions::from_mode(0o644)).unwrap();
        }
        write(&view_after(1..=3), &path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode, read(&path).unwrap().0.index), (0o600, 3));
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
    }

    #[test]
    fn a_flipped_byte_anywhere_is_found() {
        let folder = TempFolder::new();
        let path = folder.0.join("x.ckpt");
        write(&view_after(1..=3), &path).unwrap();
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 0x20;
            fs::write(&path, &bytes).unwrap();
            assert!(read(&path).is_err(), "byte {at}");
        }
        fs::write(&path, &good[..good.len() - 1]).unwrap();
        assert!(read(&path).is_err());
    }

    #[test]
    fn any_later_moment_can_be_had_again() {
        let entries: Vec<LoggedEntry> = (4..=9).map(entry).collect();
        let check = |target, expected: u64, progress| {
            let mut view = view_after(1..=5);
            assert_eq!(replay(&mut view, 4, &entries, target), Ok(progress));
            assert_eq!((view.index, hash(&view)), (expected, hash(&view_after(1..=expected))));
        };
        check(ReplayTarget::Index(7), 7, ReplayProgress::TargetReached);
        check(ReplayTarget::Index(5), 5, ReplayProgress::TargetReached);
        check(ReplayTarget::Time(Time(75)), 7, ReplayProgress::TargetReached);
        check(ReplayTarget::Time(Time(80)), 8, ReplayProgress::TargetReached);
        check(ReplayTarget::Index(12), 9, ReplayProgress::NeedsMore);
        check(ReplayTarget::Time(Time(999)), 9, ReplayProgress::NeedsMore);
        let mut view = view_after(1..=5);
        let beyond = replay(&mut view, 4, &entries, ReplayTarget::Index(4));
        assert_eq!(beyond, Err(ReplayError::PastTarget { at: 5 }));
        let missing = replay(&mut view, 7, &entries[3..], ReplayTarget::Index(9));
        assert_eq!(missing, Err(ReplayError::Missing { at: 5, first: 7 }));
    }

    #[tokio::test]
    async fn a_new_cell_starts_from_a_checkpoint_and_its_log_begins_after_it() {
        let folder = TempFolder::new();
        let own = || (7, Peer { name: "m1".into(), address: "127.0.0.1:1".into() });
        let settings = || StoreConfig { cell: [1; 16], ..StoreConfig::default() };
        let index = restore(view_after(1..=5), folder.disk(), own(), settings()).await.unwrap();
        let again = restore(view_after(1..=5), folder.disk(), own(), settings()).await;
        assert!(matches!(again, Err(CheckpointError::NotEmpty { .. })));
        // Receives the state when it is opened.
        struct ProbeMachine(Arc<std::sync::Mutex<Option<View>>>);
        impl StateMachine for ProbeMachine {
            fn apply(&mut self, _: u64, _: u64, _: &[u8]) -> Vec<u8> {
                Vec::new()
            }
            fn snapshot(&self) -> Box<dyn FnOnce() -> Vec<u8> + Send> {
                Box::new(Vec::new)
            }
            fn restore(&mut self, index: u64, bytes: &[u8]) -> Result<(), String> {
                let view = crate::replicated_state::unpack(bytes)?;
                assert!(view.index <= index);
                *self.0.lock().unwrap() = Some(view);
                Ok(())
            }
        }
        let seen = Arc::new(std::sync::Mutex::new(None));
        let (disk, probe) = (folder.disk(), ProbeMachine(seen.clone()));
        let replica = Replica::open(7, settings(), disk, Arc::new(NoPeers), probe).await.unwrap();
        let view = seen.lock().unwrap().take().unwrap();
        assert_eq!(StateCounts::of(&view.state).users, 5);
        assert_eq!(view.index, index);
        assert!(view.log_epoch > 0, "agents of the cell before must take its orders");
        let gone = replica.read_entries(index, 1 << 20).await;
        assert!(gone.is_err(), "the log must not reach back before the state");
        replica.shutdown().await;
    }
}
