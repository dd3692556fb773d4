//! Test support: a disk in memory, a network in memory, a state machine that adds, and a cell made
//! of them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cellwright_store::{
    AppliedProposal, CallError, CallFuture, Disk, DiskFuture, NodeId, Peer, ProposeError,
    RaftAnswer, RaftCall, Replica, Role, SenderIdentity, StateMachine, StoreConfig, Transport,
};
use tokio::sync::watch;

#[derive(Clone, Default)]
pub struct File {
    pub bytes: Vec<u8>,
    pub synced: usize,
}

#[derive(Default)]
pub struct DiskState {
    pub files: BTreeMap<String, File>,
    pub syncs: u64,
    pub free: u64,
    pub fail_free_bytes: bool,
    pub fail_syncs: bool,
    pub refuse_appends: bool,
}

/// Keeps files in memory, remembers what was synced, and takes a virtual millisecond per job.
#[derive(Clone)]
pub struct MemoryDisk {
    state: Arc<Mutex<DiskState>>,
    stalled: Arc<watch::Sender<bool>>,
}

impl MemoryDisk {
    pub fn new() -> MemoryDisk {
        let state = DiskState { free: 1 << 40, ..DiskState::default() };
        let stalled = Arc::new(watch::channel(false).0);
        MemoryDisk { state: Arc::new(Mutex::new(state)), stalled }
    }

    pub fn state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap()
    }

    /// A disk of its own with the same files.
    pub fn copy(&self) -> MemoryDisk {
        let copy = MemoryDisk::new();
        copy.state().files = self.state().files.clone();
        copy
    }

    /// Forgets what was not synced.
    pub fn cut_power(&self) {
        for file in self.state().files.values_mut() {
            file.bytes.truncate(file.synced);
        }
    }

    pub fn stall(&self, stalled: bool) {
        self.stalled.send_replace(stalled);
    }

    pub fn names(&self, dir: &str) -> Vec<String> {
        self.list(dir).unwrap()
    }
}

fn missing(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, path.to_owned())
}

impl Disk for MemoryDisk {
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let prefix = format!("{dir}/");
        let names = |path: &String| path.strip_prefix(&prefix).map(str::to_owned);
        Ok(self.state().files.keys().filter_map(names).collect())
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let state = self.state();
        state.files.get(path).map(|file| file.bytes.clone()).ok_or_else(|| missing(path))
    }

    fn read_at(&self, path: &str, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let (bytes, offset) = (self.read(path)?, offset as usize);
        let found = bytes.get(offset..offset + len).map(<[u8]>::to_vec);
        found.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn size(&self, path: &str) -> io::Result<u64> {
        Ok(self.read(path)?.len() as u64)
    }

    fn append(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let refuse = state.refuse_appends;
        let file = state.files.entry(path.to_owned()).or_default();
        if refuse {
            // As a real disk would: some of it fits.
            file.bytes.extend_from_slice(&bytes[..bytes.len() / 2]);
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&self, path: &str) -> io::Result<()> {
        let mut state = self.state();
        state.syncs += 1;
        if state.fail_syncs {
            return Err(io::Error::other("input/output error"));
        }
        let file = state.files.get_mut(path).ok_or_else(|| missing(path))?;
        file.synced = file.bytes.len();
        Ok(())
    }

    fn truncate(&self, path: &str, len: u64) -> io::Result<()> {
        let mut state = self.state();
        let file = state.files.get_mut(path).ok_or_else(|| missing(path))?;
        file.bytes.truncate(len as usize);
        file.synced = file.synced.min(file.bytes.len());
        Ok(())
    }

    fn write_atomic(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let file = File { bytes: bytes.to_vec(), synced: bytes.len() };
        self.state().files.insert(path.to_owned(), file);
        Ok(())
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.state().files.remove(path).map(|_| ()).ok_or_else(|| missing(path))
    }

    fn sync_dir(&self, _dir: &str) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let state = self.state();
        if state.fail_free_bytes {
            Err(io::Error::other("input/output error"))
        } else {
            Ok(state.free)
        }
    }

    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) -> DiskFuture {
        let mut stalled = self.stalled.subscribe();
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let _gone = stalled.wait_for(|stalled| !stalled).await;
            work();
        })
    }
}

/// Sums numbers and remembers each one with its index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdderState {
    pub total: u64,
    pub seen: Vec<(u64, u64)>,
}

#[derive(Clone, Default)]
pub struct Adder(pub Arc<Mutex<AdderState>>);

pub fn number(payload: &[u8]) -> u64 {
    u64::from_le_bytes(payload.try_into().expect("tests propose eight bytes"))
}

impl StateMachine for Adder {
    fn apply(&mut self, index: u64, _term: u64, payload: &[u8]) -> Vec<u8> {
        let mut sums = self.0.lock().unwrap();
        sums.total += number(payload);
        sums.seen.push((index, number(payload)));
        sums.total.to_le_bytes().to_vec()
    }

    fn snapshot(&self) -> Box<dyn FnOnce() -> Vec<u8> + Send> {
        let sums = self.0.lock().unwrap().clone();
        Box::new(move || {
            let words = sums.seen.iter().flat_map(|(index, value)| [*index, *value]);
            words.flat_map(u64::to_le_bytes).collect()
        })
    }

    fn restore(&mut self, _index: u64, bytes: &[u8]) -> Result<(), String> {
        if !bytes.len().is_multiple_of(16) {
            return Err(format!("{} bytes are not pairs of numbers", bytes.len()));
        }
        let pair = |pair: &[u8]| (number(&pair[..8]), number(&pair[8..]));
        let seen: Vec<(u64, u64)> = bytes.chunks(16).map(pair).collect();
        let total = seen.iter().map(|(_, value)| value).sum();
        *self.0.lock().unwrap() = AdderState { total, seen };
        Ok(())
    }
}

#[derive(Default)]
struct NetState {
    replicas: BTreeMap<NodeId, Arc<Replica>>,
    cut: BTreeSet<(NodeId, NodeId)>,
    read_indexes: u64,
}

/// Delivers calls between replicas of one process, through their binary form.
#[derive(Clone, Default)]
pub struct VirtualNet(Arc<Mutex<NetState>>);

impl VirtualNet {
    pub fn cut_off(&self, id: NodeId, others: impl IntoIterator<Item = NodeId>) {
        let mut state = self.0.lock().unwrap();
        for other in others.into_iter().filter(|other| *other != id) {
            state.cut.extend([(id, other), (other, id)]);
        }
    }

    pub fn heal(&self) {
        self.0.lock().unwrap().cut.clear();
    }

    /// How often a leader was asked for its read index.
    pub fn read_indexes(&self) -> u64 {
        self.0.lock().unwrap().read_indexes
    }

    fn target(&self, from: NodeId, to: NodeId) -> Option<Arc<Replica>> {
        let state = self.0.lock().unwrap();
        state.replicas.get(&to).filter(|_| !state.cut.contains(&(from, to))).cloned()
    }
}

struct NetEndpoint {
    net: VirtualNet,
    from: NodeId,
}

impl Transport for NetEndpoint {
    fn call(&self, to: NodeId, _peer: Peer, call: RaftCall) -> CallFuture {
        let (net, from) = (self.net.clone(), self.from);
        net.0.lock().unwrap().read_indexes += u64::from(matches!(call, RaftCall::ReadIndex));
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let away = || CallError::Unreachable(format!("no way from {from} to {to}"));
            let replica = net.target(from, to).ok_or_else(away)?;
            let sender = SenderIdentity { id: from, name: Some(peer(from).name) };
            let answer = replica.handle(&sender, RaftCall::from_bytes(&call.to_bytes()?)?).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
            net.target(to, from).ok_or_else(away)?;
            RaftAnswer::from_bytes(&answer.to_bytes()?)
        })
    }
}

pub fn peer(id: NodeId) -> Peer {
    Peer { name: format!("m{id}"), address: format!("10.0.0.{id}:1") }
}

/// A cell in one process; replicas come and go, their disks stay.
pub struct Cell {
    pub net: VirtualNet,
    pub disks: BTreeMap<NodeId, MemoryDisk>,
    pub machines: BTreeMap<NodeId, Adder>,
    pub settings: StoreConfig,
    pub fatal: Arc<Mutex<Vec<String>>>,
}

impl Cell {
    pub fn with(settings: StoreConfig) -> Cell {
        cellwright_store::seed_rng(7);
        let fatal = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&fatal);
        let on_fatal = move |why: &str| recorded.lock().unwrap().push(why.to_owned());
        let settings = StoreConfig { on_fatal: Arc::new(on_fatal), ..settings };
        let (disks, machines) = (BTreeMap::new(), BTreeMap::new());
        Cell { net: VirtualNet::default(), disks, machines, settings, fatal }
    }

    /// `count` voters with an elected leader.
    pub async fn start(count: NodeId, settings: StoreConfig) -> Cell {
        let mut cell = Cell::with(settings);
        for id in 1..=count {
            cell.open(id).await;
        }
        let peers: BTreeMap<NodeId, Peer> = (1..=count).map(|id| (id, peer(id))).collect();
        cell.replica(1).bootstrap(peers).await.unwrap();
        cell.leader().await;
        cell
    }

    pub async fn open(&mut self, id: NodeId) {
        let disk = self.disks.entry(id).or_insert_with(MemoryDisk::new).clone();
        let machine = Adder::default();
        self.machines.insert(id, machine.clone());
        let port = Arc::new(NetEndpoint { net: self.net.clone(), from: id });
        let settings = self.settings.clone();
        let replica = Replica::open(id, settings, Arc::new(disk), port, machine).await.unwrap();
        self.net.0.lock().unwrap().replicas.insert(id, Arc::new(replica));
    }

    pub fn replica(&self, id: NodeId) -> Arc<Replica> {
        Arc::clone(&self.net.0.lock().unwrap().replicas[&id])
    }

    pub fn ids(&self) -> Vec<NodeId> {
        self.net.0.lock().unwrap().replicas.keys().copied().collect()
    }

    pub fn adder_state(&self, id: NodeId) -> AdderState {
        self.machines[&id].0.lock().unwrap().clone()
    }

    /// Cuts the power of one replica.
    pub async fn kill(&self, id: NodeId) {
        let replica = self.net.0.lock().unwrap().replicas.remove(&id).unwrap();
        replica.kill().await;
        self.disks[&id].cut_power();
    }

    /// The leader that a majority of the running replicas agree on.
    pub async fn leader(&self) -> Arc<Replica> {
        for _ in 0..10_000 {
            let all: Vec<_> = self.ids().into_iter().map(|id| self.replica(id)).collect();
            for replica in &all {
                let status = replica.status();
                let follow = |other: &&Arc<Replica>| {
                    let seen = other.status();
                    (seen.leader, seen.term) == (Some(status.id), status.term)
                };
                let agree = all.iter().filter(follow).count();
                if status.role == Role::Leader && agree * 2 > all.len() {
                    return Arc::clone(replica);
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("no leader after 50 virtual seconds");
    }

    /// Proposes at the current leader, and retries while there is an election.
    pub async fn add(&self, value: u64) -> AppliedProposal {
        for _ in 0..100 {
            let leader = self.leader().await;
            match leader.propose(value.to_le_bytes().to_vec()).await {
                Ok(proposed) => return proposed,
                Err(ProposeError::NotLeader { .. } | ProposeError::Fenced { .. }) => {}
                Err(e) => panic!("{e}"),
            }
        }
        panic!("nobody took the proposal");
    }

    /// Waits until every running replica has applied all that was acknowledged.
    pub async fn settle(&self) {
        let leader = self.leader().await;
        let index = leader.read_barrier().await.unwrap();
        for id in self.ids() {
            let mut watch = self.replica(id).watch();
            watch.wait_for(|status| status.applied >= Some(index)).await.unwrap();
        }
    }

    pub async fn assert_all_equal(&self) {
        self.settle().await;
        let ids = self.ids();
        for id in &ids {
            assert_eq!(
                self.adder_state(*id),
                self.adder_state(ids[0]),
                "replicas {id} and {}",
                ids[0]
            );
        }
        assert_eq!(*self.fatal.lock().unwrap(), Vec::<String>::new());
    }
}
