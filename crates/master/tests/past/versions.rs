//! Files and replicas of other versions: older ones are read, newer ones are rejected by name with
//! what to do, and nothing of theirs is cut, removed or skipped.

use crate::support::{BareStateMachine, Cell, NoPeers, TempFolder, hash};
use cellwright_cell::command::Entry;
use cellwright_cell::encode;
use cellwright_cell::state::State;
use cellwright_cell::time::{Span, Time};
use cellwright_master::checkpoint::Checkpoints;
use cellwright_master::clock::SystemClock;
use cellwright_master::log_replay::LogReplayer;
use cellwright_master::master::{Environment, Master};
use cellwright_master::peers::{PeerAnswer, PeerCall, Peers};
use cellwright_master::record_logs::RecordLogs;
use cellwright_master::replicated_state::{CellStateMachine, ReplicatedState, View, pack};
use cellwright_master::segments::RetentionLimits;
use cellwright_store::{
    CallError, Disk, NodeId, Peer, RealDisk, Replica, Role, StateMachine, StoreConfig,
};
use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use xxhash_rust::xxh3::xxh3_64;

/// The same value as a build of another format would have written it.
fn with_format(format: u16, mut bytes: Vec<u8>) -> Vec<u8> {
    let (checksum, header) = (15, encode::HEADER);
    bytes[5..7].copy_from_slice(&format.to_le_bytes());
    let sum = xxh3_64(&bytes[header..]) ^ xxh3_64(&bytes[..checksum]).rotate_left(1);
    bytes[checksum..header].copy_from_slice(&sum.to_le_bytes());
    bytes
}

pub fn settings() -> StoreConfig {
    StoreConfig { reserve_bytes: 0, ..StoreConfig::default() }
}

pub struct NoBlobPeers;

impl Peers for NoBlobPeers {
    fn call(
        &self,
        _: NodeId,
        peer: Peer,
        _: PeerCall,
    ) -> BoxFuture<'static, Result<PeerAnswer, CallError>> {
        Box::pin(async move { Err(CallError::Unreachable(peer.address)) })
    }
}

pub async fn start_master(dir: &Path) -> Result<Master, cellwright_store::OpenError> {
    let disk = Arc::new(RealDisk::open(dir).unwrap());
    let world = Environment { disk, peers: Arc::new(NoBlobPeers), clock: Arc::new(SystemClock) };
    Master::start(1, Default::default(), settings(), world).await
}

/// A replica's state, and what made it stop.
fn replicated(folder: &TempFolder) -> (Arc<ReplicatedState>, Arc<Mutex<Vec<String>>>) {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(&folder.0).unwrap());
    let stop_reason = Arc::new(Mutex::new(Vec::new()));
    let hear = stop_reason.clone();
    let keep =
        RetentionLimits { segment_bytes: 1 << 20, total_bytes: 1 << 20, age: Span::seconds(60) };
    let hook: cellwright_store::FatalHook =
        Arc::new(move |why| hear.lock().unwrap().push(why.to_owned()));
    (ReplicatedState::new(RecordLogs::open(&disk, keep, keep, hook).unwrap()), stop_reason)
}

#[test]
fn an_entry_of_a_newer_build_stops_the_replica_and_is_not_skipped() {
    let folder = TempFolder::new();
    let (replicated, stop_reason) = replicated(&folder);
    let mut machine = CellStateMachine(replicated.clone());
    let entry = encode::save_entry(&Entry { now: Time(5), requests: vec![] });
    machine.apply(3, 1, &entry);
    assert_eq!((replicated.view().index, stop_reason.lock().unwrap().len()), (3, 0));
    let newer = encode::FORMAT + 1;
    machine.apply(4, 1, &with_format(newer, entry));
    assert_eq!(replicated.view().index, 3, "it must not count as applied");
    let expected = format!(
        "log entry 4 cannot be applied: format {newer} is not known here; allowed: 1 to {}; run \
         the newer build",
        encode::FORMAT
    );
    assert_eq!(*stop_reason.lock().unwrap(), [expected]);
}

#[test]
fn an_entry_that_does_not_decode_stops_the_replica_too() {
    let folder = TempFolder::new();
    let (replicated, stop_reason) = replicated(&folder);
    let mut machine = CellStateMachine(replicated.clone());
    let entry = encode::save_entry(&Entry { now: Time(5), requests: vec![] });
    machine.apply(3, 1, &entry);
    // An entry of another build of the same format: whole, but with other fields.
    let mut longer = entry.clone();
    longer.push(0);
    let length = (longer.len() - encode::HEADER) as u64;
    longer[7..15].copy_from_slice(&length.to_le_bytes());
    machine.apply(4, 1, &with_format(encode::FORMAT, longer));
    assert_eq!(replicated.view().index, 3, "it must not count as applied");
    let stop_reason = stop_reason.lock().unwrap();
    let expected = "log entry 4 cannot be applied: 1 bytes follow the end";
    assert!(stop_reason.len() == 1 && stop_reason[0].starts_with(expected), "{stop_reason:?}");
}

/// A state machine whose snapshots are of a newer format.
struct NewerStateMachine(BareStateMachine);

impl StateMachine for NewerStateMachine {
    fn apply(&mut self, index: u64, term: u64, payload: &[u8]) -> Vec<u8> {
        self.0.apply(index, term, payload)
    }

    fn snapshot(&self) -> Box<dyn FnOnce() -> Vec<u8> + Send> {
        let view = self.0.0.lock().unwrap().clone();
        let state = encode::save(&view.state);
        let packed = pack(&view);
        let head = packed[..packed.len() - state.len()].to_vec();
        Box::new(move || [head, with_format(encode::FORMAT + 1, state)].concat())
    }

    fn restore(&mut self, index: u64, bytes: &[u8]) -> Result<(), String> {
        self.0.restore(index, bytes)
    }
}

#[tokio::test]
async fn a_snapshot_of_a_newer_build_is_refused_and_left_where_it_is() {
    let folder = TempFolder::new();
    let view = View { state: State::default(), index: 0, term: 0, log_epoch: 0 };
    let kept = NewerStateMachine(BareStateMachine(Arc::new(Mutex::new(view))));
    let disk = Arc::new(RealDisk::open(&folder.0).unwrap());
    let replica = Replica::open(1, settings(), disk, Arc::new(NoPeers), kept).await.unwrap();
    let me = Peer { name: "m1".into(), address: "127.0.0.1:1".into() };
    replica.bootstrap(BTreeMap::from([(1, me)])).await.unwrap();
    replica.watch().wait_for(|status| status.role == Role::Leader).await.unwrap();
    let entry = encode::save_entry(&Entry { now: Time(5), requests: vec![] });
    replica.propose(entry).await.unwrap();
    replica.snapshot_now().await.unwrap();
    replica.shutdown().await;
    let before = files(&folder.0);
    let refused = start_master(&folder.0).await.err().unwrap().to_string();
    assert!(refused.contains("format 2 is not known here"), "{refused}");
    assert!(refused.contains("run the newer build"), "{refused}");
    assert_eq!(files(&folder.0), before);
}

/// All files of log, snapshots and checkpoints, by path.
pub fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for folder in ["log", "snap", "checkpoints"] {
        let Ok(entries) = std::fs::read_dir(dir.join(folder)) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            found.push((format!("{folder}/{name}"), std::fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}

fn pinned_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/past/data-1.txt")
}

/// A data directory as text: the hash of its state, then each file in hexadecimal.
async fn data_dir_text() -> String {
    let folder = TempFolder::new();
    let mut cell = Cell::start(&folder.0, settings()).await;
    for number in 1..=6 {
        cell.add().await;
        if number == 3 {
            cell.replica.snapshot_now().await.unwrap();
        }
        if number == 4 {
            Checkpoints::in_data(&folder.0, 9).save(&cell.view()).unwrap();
        }
    }
    cell.replica.shutdown().await;
    let mut text = format!("hash {:016x}\n", cell.after[5].1);
    for (path, bytes) in files(&folder.0) {
        writeln!(text, "{path}").unwrap();
        for part in bytes.chunks(40) {
            let hex: String = part.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(text, "  {hex}").unwrap();
        }
    }
    text
}

/// Writes the directory from the text; returns the hash of its state.
fn write_data_dir(text: &str, dir: &Path) -> u64 {
    let mut lines = text.lines();
    let hash = lines.next().and_then(|line| line.strip_prefix("hash ")).unwrap();
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    for line in lines {
        match line.strip_prefix("  ") {
            None => all.push((line.to_owned(), Vec::new())),
            Some(hex) => {
                let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
                all.last_mut().unwrap().1.extend((0..hex.len()).step_by(2).map(byte));
            }
        }
    }
    for (path, bytes) in all {
        let path = dir.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    u64::from_str_radix(hash, 16).unwrap()
}

/// The directory was written by the first build of these formats. When one of them changes before
/// the first release, `UPDATE_WIRE=1` regenerates it; after that, an upgrade is needed instead.
#[tokio::test]
async fn a_data_directory_of_the_first_build_is_read_and_goes_on() {
    if std::env::var_os("UPDATE_WIRE").is_some() {
        std::fs::write(pinned_file(), data_dir_text().await).unwrap();
    }
    let folder = TempFolder::new();
    let expected = write_data_dir(&std::fs::read_to_string(pinned_file()).unwrap(), &folder.0);
    let past = LogReplayer::open(&folder.0, None).unwrap();
    let end = past.state_at(None).unwrap();
    assert_eq!((hash(&end.view), end.view.state.users().len()), (expected, 6));
    let checkpoint = Checkpoints::in_data(&folder.0, 9).list().unwrap().remove(0);
    assert_eq!(checkpoint.header.at, Time(40));
    drop(past);
    let master = start_master(&folder.0).await.unwrap();
    let handle = master.handle().clone();
    let mut watch = handle.replica().watch();
    watch.wait_for(|status| status.role == Role::Leader).await.unwrap();
    handle.replica().read_barrier().await.unwrap();
    assert_eq!(handle.read().state.users().len(), 6);
    master.stop().await;
}
