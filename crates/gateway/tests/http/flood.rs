//! Overload: a caller that floods is told to retry later, and no other caller is affected. The disk
//! is halted meanwhile, so that the length of queues does not depend on the speed of the machine.

use crate::support::{Cell, CellOptions, TestResponse, user, within};
use cellwright_cell::name::Name;
use cellwright_cell::time::Span;
use cellwright_master::config::MasterConfig;
use cellwright_master::handle::Caller;
use cellwright_messages::{AgentReport, Epoch};
use cellwright_store::{Disk, DiskFuture, RealDisk};
use futures::future::join_all;
use serde_json::{Value, json};
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use tokio::task::JoinSet;

const NONE: Value = Value::Null;

static HALTED: Mutex<bool> = Mutex::new(false);
static RESUMED: Condvar = Condvar::new();

/// Halts the flushes of this test's disks until it is dropped.
struct DiskHalt;

impl DiskHalt {
    fn begin() -> DiskHalt {
        *HALTED.lock().unwrap() = true;
        DiskHalt
    }
}

impl Drop for DiskHalt {
    fn drop(&mut self) {
        *HALTED.lock().unwrap_or_else(PoisonError::into_inner) = false;
        RESUMED.notify_all();
    }
}

/// A disk whose flushes wait while it is halted.
struct HaltingDisk(RealDisk);

impl Disk for HaltingDisk {
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.0.list(dir)
    }
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.0.read(path)
    }
    fn read_at(&self, path: &str, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.0.read_at(path, offset, len)
    }
    fn size(&self, path: &str) -> io::Result<u64> {
        self.0.size(path)
    }
    fn append(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.0.append(path, bytes)
    }
    fn sync(&self, path: &str) -> io::Result<()> {
        drop(RESUMED.wait_while(HALTED.lock().unwrap(), |halted| *halted).unwrap());
        self.0.sync(path)
    }
    fn truncate(&self, path: &str, len: u64) -> io::Result<()> {
        self.0.truncate(path, len)
    }
    fn write_atomic(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.0.write_atomic(path, bytes)
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        self.0.remove(path)
    }
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.0.sync_dir(dir)
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.0.free_bytes()
    }
    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) -> DiskFuture {
        self.0.run_blocking(work)
    }
}

fn report() -> AgentReport {
    AgentReport {
        machine: Name::new("m1").unwrap(),
        incarnation: 1,
        number: 1,
        taken: Epoch::default(),
        hang: false,
        orders_digest: 0,
        spec: None,
        tasks: vec![],
        packages: None,
        usage: vec![],
        resource_pressure: vec![],
        wall: cellwright_identity::clock::wall(),
        book: Default::default(),
        numbers: Vec::new(),
    }
}

async fn add(cell: &Cell, caller: &Caller, name: String) -> TestResponse {
    cell.ask_as(caller, "POST /v1/users", &[], json!({ "name": name })).await
}

async fn prepared_cell() -> Cell {
    let mut master = MasterConfig::default();
    master.core.admission.per_level.items = 64;
    let disk: fn(RealDisk) -> Arc<dyn Disk> = |disk| Arc::new(HaltingDisk(disk));
    let cell = Cell::start_with_options(CellOptions {
        master,
        disk: Some(disk),
        ..CellOptions::default()
    })
    .await;
    for name in ["flooder", "other"] {
        cell.must("POST /v1/users", json!({ "name": name })).await;
        let rights = json!({ "capabilities": ["manage_users", "manage_machines"] });
        cell.must(&format!("PUT /v1/users/{name}/capabilities"), rights).await;
    }
    cell.must("POST /v1/machines", crate::support::machine("m1")).await;
    cell
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flooder_is_told_to_wait_and_others_are_served() {
    let cell = Arc::new(prepared_cell().await);
    let (flooder, other) = (user("flooder"), user("other"));
    let standstill = DiskHalt::begin();
    let mut flooding = JoinSet::new();
    for n in 0..300 {
        let (cell, flooder) = (cell.clone(), flooder.clone());
        flooding.spawn(async move { add(&cell, &flooder, format!("f{n}")).await });
    }
    // The only answers while nothing can be written are rejections.
    let rejected = within(flooding.join_next()).await.unwrap().unwrap();
    assert_eq!((rejected.status, rejected.code()), (429, "overloaded"), "{}", rejected.text);
    assert!(rejected.header("retry-after").parse::<u64>().unwrap() >= 1);
    assert_eq!(rejected.body["details"]["retry_after_ms"], 1000);
    assert!(rejected.text.contains("user flooder"), "{}", rejected.text);
    // Reads and agents' polls are answered meanwhile.
    let read = cell.ask_as(&other, "GET /v1/machines", &[], NONE).await;
    assert_eq!(read.status, 200, "{}", read.text);
    let agent = cell.client(Some(&Caller::Agent(Name::new("m1").unwrap())));
    let orders = within(agent.poll(&cell.address, &report(), Span(0))).await.unwrap();
    assert!(orders.epoch > Epoch::default(), "{orders:?}");
    // A caller that sends little is admitted, however full the flooder's queue is.
    let others = join_all((0..4).map(|n| add(&cell, &other, format!("o{n}"))));
    let released = async { drop(standstill) };
    let (others, ()) = within(futures::future::join(others, released)).await;
    for got in others {
        assert_eq!(got.status, 201, "{}", got.text);
    }
    let rest: Vec<TestResponse> = within(flooding.join_all()).await;
    let served = rest.iter().filter(|got| got.status == 201).count();
    let rejected_count = rest.iter().filter(|got| got.status == 429).count();
    assert_eq!(served + rejected_count, 299, "everybody is answered, one way or the other");
    assert!(served > 0 && rejected_count > 0, "{served} served, {rejected_count} told to wait");
    assert_eq!(cell.handle().read().state.users().len(), 2 + 4 + served);
}
