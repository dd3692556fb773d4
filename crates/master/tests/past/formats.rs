//! The format of what is written follows the level of the cell: a replica that knows a level more
//! writes as before until the cell is raised, and everything in the next format from then on; one
//! that does not know the level refuses what it finds by name and leaves it where it is.

use crate::support::TempFolder;
use crate::versions::{NoBlobPeers, files, settings};
use cellwright_cell::command::{Actor, Command};
use cellwright_cell::encode::FORMAT;
use cellwright_cell::name::Name;
use cellwright_cell::state::{HIGHEST_LEVEL, LEVEL};
use cellwright_master::checkpoint::{CheckpointError, Checkpoints, read};
use cellwright_master::clock::SystemClock;
use cellwright_master::config::MasterConfig;
use cellwright_master::level::{ReplicaIdentity, ReplicaProbe, raise_level};
use cellwright_master::master::{Environment, Master};
use cellwright_store::{OpenError, Peer, RealDisk, Role};
use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// No other replica is there to be asked.
struct NobodyElse;

impl ReplicaProbe for NobodyElse {
    fn identify(&self, address: String) -> BoxFuture<'_, Result<ReplicaIdentity, String>> {
        Box::pin(async move { Err(address) })
    }
}

/// The directory, once the master before has let go of it: its tasks end after it has stopped.
async fn opened(dir: &Path) -> RealDisk {
    loop {
        match RealDisk::open(dir) {
            Err(why) if why.kind() == ErrorKind::WouldBlock => tokio::task::yield_now().await,
            disk => return disk.unwrap(),
        }
    }
}

/// A master of a build that knows levels up to `known_level`, and what made it stop.
async fn start(
    dir: &Path,
    known_level: u32,
) -> Result<(Master, Arc<Mutex<Vec<String>>>), OpenError> {
    let disk = Arc::new(opened(dir).await);
    let world = Environment { disk, peers: Arc::new(NoBlobPeers), clock: Arc::new(SystemClock) };
    let config = MasterConfig { known_level, ..MasterConfig::default() };
    let stopped = Arc::new(Mutex::new(Vec::new()));
    let heard = stopped.clone();
    let mut store = settings();
    store.on_fatal = Arc::new(move |why: &str| heard.lock().unwrap().push(why.to_owned()));
    Ok((Master::start(1, config, store, world).await?, stopped))
}

async fn leads(master: &Master) {
    let mut watch = master.handle().replica().watch();
    watch.wait_for(|status| status.role == Role::Leader).await.unwrap();
    master.handle().replica().read_barrier().await.unwrap();
}

async fn add_user(master: &Master, name: &str) {
    let command = Command::AddUser { name: Name::new(name).unwrap() };
    let done = master.handle().submit(&Actor::Operator, None, command).await.unwrap();
    assert!(done.verdict.is_ok(), "{:?}", done.verdict);
}

/// The formats of all entries in the log, from the envelopes in its files, in order.
fn formats_in_log(dir: &Path) -> Vec<u16> {
    let is_log = |(path, _): &(String, Vec<u8>)| path.starts_with("log/");
    let bytes: Vec<u8> = files(dir).into_iter().filter(is_log).flat_map(|(_, b)| b).collect();
    let entries = bytes.windows(7).filter(|part| part.starts_with(b"CELLE"));
    entries.map(|part| u16::from_le_bytes([part[5], part[6]])).collect()
}

/// A cell that was raised by a build which knows the next level, with a snapshot of before and
/// entries of after.
async fn raised_cell(dir: &Path) {
    let (master, _) = start(dir, HIGHEST_LEVEL).await.unwrap();
    let me = Peer { name: "m1".into(), address: "127.0.0.1:1".into() };
    master.handle().replica().bootstrap(BTreeMap::from([(1, me)])).await.unwrap();
    leads(&master).await;
    add_user(&master, "ann").await;
    assert!(formats_in_log(dir).iter().all(|format| *format == FORMAT), "not before its level");
    assert!(raise_level(master.handle(), &NobodyElse).await, "all know the next level");
    assert!(!raise_level(master.handle(), &NobodyElse).await, "nobody knows more");
    add_user(&master, "bob").await;
    add_user(&master, "cid").await;
    master.stop().await;
}

#[tokio::test]
async fn entries_are_of_the_format_that_the_cells_level_began() {
    let folder = TempFolder::new();
    raised_cell(&folder.0).await;
    let formats = formats_in_log(&folder.0);
    let at = formats.iter().position(|format| *format == FORMAT + 1).expect("it was raised");
    assert!(at >= 2, "the first user and the raise itself are of the old one: {formats:?}");
    assert!(formats[at..].iter().all(|format| *format == FORMAT + 1), "never back: {formats:?}");
    let (master, _) = start(&folder.0, HIGHEST_LEVEL).await.unwrap();
    leads(&master).await;
    let state = master.handle().read().state;
    assert_eq!((state.level(), state.users().len()), (HIGHEST_LEVEL, 3));
    master.stop().await;
}

#[tokio::test]
async fn a_build_that_does_not_know_the_level_stops_by_name_and_changes_nothing() {
    let folder = TempFolder::new();
    raised_cell(&folder.0).await;
    let before = files(&folder.0);
    let (master, stopped) = start(&folder.0, LEVEL).await.unwrap();
    let expected = format!("level {HIGHEST_LEVEL} is not known here; allowed: 1 to {LEVEL}");
    let mut watch = master.handle().replica().watch();
    let told = || stopped.lock().unwrap().iter().any(|why| why.contains(&expected));
    watch.wait_for(|_| told()).await.unwrap();
    assert!(stopped.lock().unwrap()[0].contains("run the newer build"));
    assert_eq!(master.handle().replicated().level(), LEVEL, "nothing beyond it was applied");
    master.kill().await;
    let kept = files(&folder.0);
    assert!(before.iter().all(|(path, bytes)| {
        kept.iter().any(|(name, now)| name == path && now.starts_with(bytes))
    }));
}

#[tokio::test]
async fn a_snapshot_and_a_checkpoint_of_a_raised_cell_are_refused_by_the_build_before() {
    let folder = TempFolder::new();
    raised_cell(&folder.0).await;
    let (master, _) = start(&folder.0, HIGHEST_LEVEL).await.unwrap();
    leads(&master).await;
    master.handle().replica().snapshot_now().await.unwrap();
    let view = master.handle().replicated().view();
    let saved = Checkpoints::in_data(&folder.0, 9).save(&view).unwrap();
    master.stop().await;
    let before = files(&folder.0);
    let refused = start(&folder.0, LEVEL).await.err().unwrap().to_string();
    let expected = format!("format {} is not known here; allowed: 1 to {FORMAT}", FORMAT + 1);
    assert!(refused.contains(&expected) && refused.contains("snap/"), "{refused}");
    assert_eq!(files(&folder.0), before, "it is left as it was");
    // This process is not told to rehearse, as a command of the release before would not be.
    let path = folder.0.join("checkpoints").join(saved.name);
    let error = read(&path).err().unwrap();
    assert!(matches!(error, CheckpointError::State { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&expected) && text.contains(&path.display().to_string()), "{text}");
}
