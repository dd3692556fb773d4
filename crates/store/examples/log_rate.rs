//! Benchmark: how many proposals a second one voter makes durable on this machine's disk.
//!
//! `cargo run --release -p cellwright-store --example log_rate [directory]`
//!
//! The directory must be on the disk to be measured; its subdirectory `log_rate` is replaced.
//! Printed for 1, 64 and 1000 callers at a time: proposals a second, flushes a second, proposals
//! per flush, and the median time of a flush.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cellwright_store::{
    CallError, CallFuture, Disk, DiskFuture, NodeId, Peer, RaftCall, RealDisk, Replica, Role,
    StateMachine, StoreConfig, Transport, wipe,
};

/// A real disk that remembers how long each flush took.
struct TimedDisk {
    inner: RealDisk,
    flushes: Arc<Mutex<Vec<Duration>>>,
}

impl Disk for TimedDisk {
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.inner.list(dir)
    }
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.inner.read(path)
    }
    fn read_at(&self, path: &str, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.inner.read_at(path, offset, len)
    }
    fn size(&self, path: &str) -> io::Result<u64> {
        self.inner.size(path)
    }
    fn append(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.inner.append(path, bytes)
    }
    fn sync(&self, path: &str) -> io::Result<()> {
        let start = Instant::now();
        let result = self.inner.sync(path);
        self.flushes.lock().expect("no holder panics").push(start.elapsed());
        result
    }
    fn truncate(&self, path: &str, len: u64) -> io::Result<()> {
        self.inner.truncate(path, len)
    }
    fn write_atomic(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_atomic(path, bytes)
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        self.inner.remove(path)
    }
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.inner.free_bytes()
    }
    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) -> DiskFuture {
        self.inner.run_blocking(work)
    }
}

struct Counter(u64);

impl StateMachine for Counter {
    fn apply(&mut self, _index: u64, _term: u64, _payload: &[u8]) -> Vec<u8> {
        self.0 += 1;
        Vec::new()
    }
    fn snapshot(&self) -> Box<dyn FnOnce() -> Vec<u8> + Send> {
        let count = self.0;
        Box::new(move || count.to_le_bytes().to_vec())
    }
    fn restore(&mut self, _index: u64, bytes: &[u8]) -> Result<(), String> {
        let word = bytes.try_into().map_err(|_| format!("{} bytes, expected 8", bytes.len()))?;
        self.0 = u64::from_le_bytes(word);
        Ok(())
    }
}

struct NoPeers;

impl Transport for NoPeers {
    fn call(&self, to: NodeId, _peer: Peer, _call: RaftCall) -> CallFuture {
        Box::pin(async move { Err(CallError::Unreachable(format!("there is no replica {to}"))) })
    }
}

const PAYLOAD: usize = 256;
const ROUND_TIME: Duration = Duration::from_secs(3);

async fn measure_rate(replica: &Arc<Replica>, callers: usize, flushes: &Mutex<Vec<Duration>>) {
    flushes.lock().expect("no holder panics").clear();
    let start = Instant::now();
    let caller = |replica: Arc<Replica>| async move {
        let mut done = 0_u64;
        while start.elapsed() < ROUND_TIME {
            replica.propose(vec![7; PAYLOAD]).await.expect("a single voter takes every proposal");
            done += 1;
        }
        done
    };
    let tasks: Vec<_> = (0..callers).map(|_| tokio::spawn(caller(Arc::clone(replica)))).collect();
    let mut done = 0;
    for task in tasks {
        done += task.await.expect("a caller does not panic");
    }
    let seconds = start.elapsed().as_secs_f64();
    let mut flushes = std::mem::take(&mut *flushes.lock().expect("no holder panics"));
    flushes.sort();
    println!(
        "{callers:>7} {:>11.0} {:>10.0} {:>13.1} {:>10.0?}",
        done as f64 / seconds,
        flushes.len() as f64 / seconds,
        done as f64 / flushes.len() as f64,
        flushes[flushes.len() / 2],
    );
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = root.join("log_rate");
    let flushes = Arc::new(Mutex::new(Vec::new()));
    let disk = TimedDisk { inner: RealDisk::open(&folder)?, flushes: Arc::clone(&flushes) };
    wipe(&disk)?;
    let settings = StoreConfig::default();
    let machine = Counter(0);
    let replica = Replica::open(1, settings, Arc::new(disk), Arc::new(NoPeers), machine).await?;
    let peer = Peer { name: "alone".to_owned(), address: "none".to_owned() };
    replica.bootstrap([(1, peer)].into()).await?;
    replica.watch().wait_for(|status| status.role == Role::Leader).await?;
    let replica = Arc::new(replica);
    println!("{} payload bytes, files in {}", PAYLOAD, folder.display());
    println!("callers proposals/s  flushes/s proposals/fl. flush p50");
    for callers in [1, 64, 1000] {
        measure_rate(&replica, callers, &flushes).await;
    }
    replica.shutdown().await;
    std::fs::remove_dir_all(folder)?;
    Ok(())
}
