//! Overload: whoever floods is told to come back later, and nobody else notices. The disk stands
//! still meanwhile, so that what waits at the door does not depend on how fast the machine is.

use crate::support::{Cell, Got, Plan, user, within};
use cellwright_api::internal::{AgentReport, Epoch, REPORT_FORMAT};
use cellwright_cell::name::Name;
use cellwright_cell::time::Span;
use cellwright_master::handle::Caller;
use cellwright_master::settings::Settings;
use cellwright_store::{Disk, DiskFuture, RealDisk};
use futures::future::join_all;
use serde_json::{Value, json};
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use tokio::task::JoinSet;

const NONE: Value = Value::Null;

static STANDING: Mutex<bool> = Mutex::new(false);
static MOVED: Condvar = Condvar::new();

/// Keeps the disks of this test from flushing until it is dropped.
struct Standstill;

impl Standstill {
    fn begin() -> Standstill {
        *STANDING.lock().unwrap() = true;
        Standstill
    }
}

impl Drop for Standstill {
    fn drop(&mut self) {
        *STANDING.lock().unwrap_or_else(PoisonError::into_inner) = false;
        MOVED.notify_all();
    }
}

/// A disk whose flushes wait while it stands still.
struct Halting(RealDisk);

impl Disk for Halting {
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
        drop(MOVED.wait_while(STANDING.lock().unwrap(), |standing| *standing).unwrap());
        self.0.sync(path)
    }
    fn truncate(&self, path: &str, len: u64) -> io::Result<()> {
        self.0.truncate(path, len)
    }
    fn write_new(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.0.write_new(path, bytes)
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
    fn run(&self, work: Box<dyn FnOnce() + Send>) -> DiskFuture {
        self.0.run(work)
    }
}

fn report() -> AgentReport {
    AgentReport {
        format: REPORT_FORMAT,
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
        shortages: vec![],
        wall: cellwright_identity::clock::wall(),
    }
}

async fn add(cell: &Cell, caller: &Caller, name: String) -> Got {
    cell.ask_as(caller, "POST /v1/users", &[], json!({ "name": name })).await
}

async fn furnished() -> Cell {
    let mut master = Settings::default();
    master.core.admission.lane.items = 64;
    let disk: fn(RealDisk) -> Arc<dyn Disk> = |disk| Arc::new(Halting(disk));
    let cell = Cell::planned(Plan { master, disk: Some(disk), ..Plan::default() }).await;
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
    let cell = Arc::new(furnished().await);
    let (flooder, other) = (user("flooder"), user("other"));
    let standstill = Standstill::begin();
    let mut flooding = JoinSet::new();
    for n in 0..300 {
        let (cell, flooder) = (cell.clone(), flooder.clone());
        flooding.spawn(async move { add(&cell, &flooder, format!("f{n}")).await });
    }
    // What is answered while nothing can be written is a refusal.
    let refused = within(flooding.join_next()).await.unwrap().unwrap();
    assert_eq!((refused.status, refused.code()), (429, "overloaded"), "{}", refused.text);
    assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1);
    assert_eq!(refused.body["details"]["retry_after_ms"], 1000);
    assert!(refused.text.contains("user flooder"), "{}", refused.text);
    // Reads and agents' polls are answered all the while.
    let read = cell.ask_as(&other, "GET /v1/machines", &[], NONE).await;
    assert_eq!(read.status, 200, "{}", read.text);
    let agent = cell.client(Some(&Caller::Agent(Name::new("m1").unwrap())));
    let orders = within(agent.poll(&cell.address, &report(), Span(0))).await.unwrap();
    assert!(orders.epoch > Epoch::default(), "{orders:?}");
    // Whoever sends little finds the door open, however full the flooder's queue is.
    let others = join_all((0..4).map(|n| add(&cell, &other, format!("o{n}"))));
    let released = async { drop(standstill) };
    let (others, ()) = within(futures::future::join(others, released)).await;
    for got in others {
        assert_eq!(got.status, 201, "{}", got.text);
    }
    let rest: Vec<Got> = within(flooding.join_all()).await;
    let served = rest.iter().filter(|got| got.status == 201).count();
    let told_off = rest.iter().filter(|got| got.status == 429).count();
    assert_eq!(served + told_off, 299, "everybody is answered, one way or the other");
    assert!(served > 0 && told_off > 0, "{served} served, {told_off} told to wait");
    assert_eq!(cell.handle().read().state.users().len(), 2 + 4 + served);
}
