//! A replica on a folder, with the cell's own state machine.

use cellwright_cell::command::{Actor, Command, Entry, Request};
use cellwright_cell::encode;
use cellwright_cell::name::Name;
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
use cellwright_master::replicated_state::{View, pack, unpack};
use cellwright_store::{
    CallError, CallFuture, NodeId, Peer, RaftCall, RealDisk, Replica, Role, StateMachine,
    StoreConfig, Transport,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// A temporary folder, removed with the test.
pub struct TempFolder(pub PathBuf);

impl TempFolder {
    pub fn new() -> TempFolder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("cell-past-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        TempFolder(path)
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // What is left behind in the temporary folder does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The cell's state machine without the records around it.
#[derive(Clone)]
pub struct BareStateMachine(pub Arc<Mutex<View>>);

impl StateMachine for BareStateMachine {
    fn apply(&mut self, index: u64, term: u64, payload: &[u8]) -> Vec<u8> {
        let mut view = self.0.lock().unwrap();
        view.state.apply(&encode::load_entry(payload).unwrap(), &mut Vec::new());
        (view.index, view.term) = (index, term);
        Vec::new()
    }

    fn snapshot(&self) -> Box<dyn FnOnce() -> Vec<u8> + Send> {
        let view = self.0.lock().unwrap().clone();
        Box::new(move || pack(&view))
    }

    fn restore(&mut self, _: u64, bytes: &[u8]) -> Result<(), String> {
        *self.0.lock().unwrap() = unpack(bytes)?;
        Ok(())
    }
}

pub struct NoPeers;

impl Transport for NoPeers {
    fn call(&self, _: NodeId, peer: Peer, _: RaftCall) -> CallFuture {
        Box::pin(async move { Err(CallError::Unreachable(peer.address)) })
    }
}

/// A replica that runs on a folder, and the hash of its state after every entry.
pub struct Cell {
    pub replica: Replica,
    machine: BareStateMachine,
    pub after: Vec<(u64, u64)>,
}

impl Cell {
    pub async fn start(dir: &Path, settings: StoreConfig) -> Cell {
        let machine = BareStateMachine(Arc::new(Mutex::new(View {
            state: State::default(),
            index: 0,
            term: 0,
            log_epoch: 0,
        })));
        let disk = Arc::new(RealDisk::open(dir).unwrap());
        let settings = StoreConfig { reserve_bytes: 0, ..settings };
        let opened = Replica::open(1, settings, disk, Arc::new(NoPeers), machine.clone()).await;
        let replica = opened.unwrap();
        let me = Peer { name: "m1".into(), address: "127.0.0.1:1".into() };
        replica.bootstrap(BTreeMap::from([(1, me)])).await.unwrap();
        replica.watch().wait_for(|status| status.role == Role::Leader).await.unwrap();
        Cell { replica, machine, after: Vec::new() }
    }

    /// Adds one entry of two requests, of which the second is rejected. Entry `n` has time `10 n`.
    pub async fn add(&mut self) -> u64 {
        let number = self.after.len() as u64 + 1;
        let user = |name: String| Command::AddUser { name: Name::new(&name).unwrap() };
        let eve = Actor::User(Name::new("eve").unwrap());
        let requests = vec![
            Request { by: Actor::Operator, id: None, command: user(format!("u{number}")) },
            Request { by: eve, id: None, command: user("mallory".into()) },
        ];
        let entry = Entry { now: Time(number * 10), requests };
        let index = self.replica.propose(encode::save_entry(&entry)).await.unwrap().index;
        let hash = self.machine.0.lock().unwrap().state.hash();
        self.after.push((index, hash));
        index
    }

    pub fn view(&self) -> View {
        self.machine.0.lock().unwrap().clone()
    }
}

pub fn hash(view: &View) -> u64 {
    view.state.clone().hash()
}
