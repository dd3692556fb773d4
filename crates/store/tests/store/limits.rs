//! Flushes: how few, how honest, and what happens when the disk is full, slow or broken.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cellwright_store::{
    CallError, CallFuture, Disk, Peer, ProposeError, RaftCall, RealDisk, Replica, Role,
    StoreConfig, Transport,
};

use crate::suite::TempFolder;
use crate::support::{Adder, Cell, MemoryDisk, number, peer};

fn payload(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

#[tokio::test(start_paused = true)]
async fn concurrent_proposals_share_flushes() {
    let cell = Cell::start(1, StoreConfig::default()).await;
    let before = cell.disks[&1].state().syncs;
    let replica = cell.replica(1);
    let all = futures::future::join_all((0..1000).map(|_| replica.propose(payload(1)))).await;
    let indices: BTreeSet<u64> = all.iter().map(|done| done.as_ref().unwrap().index).collect();
    let totals: BTreeSet<u64> =
        all.iter().map(|done| number(&done.as_ref().unwrap().reply)).collect();
    assert_eq!(indices.len(), 1000, "each proposal has an index of its own");
    assert_eq!(totals, (1..=1000).collect());
    let flushes = cell.disks[&1].state().syncs - before;
    assert!(flushes <= 20, "{flushes} flushes for 1000 proposals");
}

#[tokio::test(start_paused = true)]
async fn followers_flush_many_entries_at_once() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    let leader = cell.leader().await;
    let follower = (1..=3).find(|id| *id != leader.status().id).unwrap();
    let before = cell.disks[&follower].state().syncs;
    let all = futures::future::join_all((0..1000).map(|_| leader.propose(payload(1)))).await;
    assert!(all.iter().all(Result::is_ok));
    cell.assert_all_equal().await;
    let flushes = cell.disks[&follower].state().syncs - before;
    assert!(flushes <= 40, "{flushes} flushes for 1000 entries");
}

#[tokio::test(start_paused = true)]
async fn a_leader_with_a_stalled_disk_is_replaced() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    let old = cell.leader().await;
    let id = old.status().id;
    cell.disks[&id].stall(true);
    let write = old.propose(payload(10)).await;
    assert!(matches!(write, Err(ProposeError::OutcomeUnknown { .. })), "{write:?}");
    let total = number(&cell.add(100).await.reply);
    assert!(total == 101 || total == 111, "{total}");
    cell.disks[&id].stall(false);
    cell.assert_all_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_flush_ends_the_replica_once_and_for_all() {
    let cell = Cell::start(1, StoreConfig::default()).await;
    let replica = cell.replica(1);
    cell.disks[&1].state().fail_syncs = true;
    let before = cell.disks[&1].state().syncs;
    let write = replica.propose(payload(1)).await;
    assert!(matches!(write, Err(ProposeError::Fatal { .. })), "{write:?}");
    assert_eq!(cell.disks[&1].state().syncs, before + 1, "a flush must not be tried again");
    assert_eq!(cell.adder_state(1).total, 0);
    let fatal = cell.fatal.lock().unwrap().clone();
    assert_eq!(fatal.len(), 1, "{fatal:?}");
    assert!(fatal[0].contains("flushing the log failed: input/output error"), "{fatal:?}");
}

#[tokio::test(start_paused = true)]
async fn a_nearly_full_disk_refuses_writes_and_recovers() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    let leader = cell.leader().await;
    cell.disks.values().for_each(|disk| disk.state().free = 1000);
    // Until it is known that no peer has more space, the error is the same as during an election.
    let write = loop {
        match leader.propose(payload(1)).await {
            Err(ProposeError::NotLeader { leader: None }) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            other => break other,
        }
    };
    let needed = (256 << 20) + 8;
    assert!(
        matches!(write, Err(ProposeError::DiskFull { free: 1000, needed: n }) if n == needed),
        "{write:?}"
    );
    leader.read_barrier().await.unwrap();
    assert_eq!(leader.status().id, cell.leader().await.status().id);
    cell.disks.values().for_each(|disk| disk.state().free = 1 << 40);
    assert_eq!(number(&leader.propose(payload(1)).await.unwrap().reply), 2);
}

#[tokio::test(start_paused = true)]
async fn a_full_follower_holds_nobody_up_and_catches_up_later() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    let leader = cell.leader().await.status().id;
    let full = (1..=3).find(|id| *id != leader).unwrap();
    cell.settle().await;
    cell.disks[&full].state().free = 1000;
    for value in 1..=20 {
        cell.add(value).await;
    }
    assert_eq!(cell.adder_state(full).total, 0);
    assert_eq!(cell.leader().await.status().id, leader);
    cell.disks[&full].state().free = 1 << 40;
    cell.assert_all_equal().await;
    assert_eq!(cell.adder_state(full).total, 210);
}

#[tokio::test(start_paused = true)]
async fn a_write_without_room_is_retried_until_there_is() {
    let cell = Cell::start(1, StoreConfig::default()).await;
    let replica = cell.replica(1);
    cell.disks[&1].state().refuse_appends = true;
    let free_space = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        cell.disks[&1].state().refuse_appends = false;
    };
    let (write, ()) = tokio::join!(replica.propose(payload(4)), free_space);
    assert_eq!(number(&write.unwrap().reply), 4);
    assert_eq!(*cell.fatal.lock().unwrap(), Vec::<String>::new());
    // The half-written batches are gone: the log opens without a torn tail.
    replica.shutdown().await;
    let mut cell = cell;
    cell.open(1).await;
    assert_eq!(cell.replica(1).recovery(), &Default::default());
    cell.settle().await;
    assert_eq!(cell.adder_state(1).total, 4);
}

#[tokio::test(start_paused = true)]
async fn a_payload_too_large_is_refused() {
    let cell =
        Cell::start(1, StoreConfig { max_payload_bytes: 10, ..StoreConfig::default() }).await;
    let write = cell.replica(1).propose(vec![0; 11]).await;
    assert!(matches!(write, Err(ProposeError::TooLarge { bytes: 11, allowed: 10 })), "{write:?}");
}

#[tokio::test(start_paused = true)]
async fn settings_that_cannot_work_are_named() {
    let settings =
        StoreConfig { election_min: Duration::from_millis(100), ..StoreConfig::default() };
    let (disk, machine) = (Arc::new(MemoryDisk::new()), Adder::default());
    let opened = Replica::open(1, settings, disk, Arc::new(NoPeers), machine).await;
    let text = "setting election_min is 100ms, allowed: at least twice the heartbeat (75ms)";
    assert_eq!(opened.map(|_| ()).unwrap_err().to_string(), text);
}

#[tokio::test]
async fn real_files_are_locked_and_survive_a_restart() {
    let folder = TempFolder::new();
    for total in 1..=3 {
        let disk = Arc::new(RealDisk::open(&folder.0).unwrap());
        let locked = RealDisk::open(&folder.0).map(|_| ()).unwrap_err().to_string();
        assert!(locked.contains("in use by another process"), "{locked}");
        assert!(disk.read("../LOCK").is_err() && disk.read("/etc/hostname").is_err());
        let replica = open_single_voter(disk).await;
        let done = replica.propose(payload(1)).await.unwrap();
        assert_eq!(number(&done.reply), total);
        replica.snapshot_now().await.unwrap();
        replica.shutdown().await;
    }
}

struct NoPeers;

impl Transport for NoPeers {
    fn call(&self, to: u64, _peer: Peer, _call: RaftCall) -> CallFuture {
        let error = CallError::Unreachable(format!("there is no {to}"));
        Box::pin(async move { Err(error) })
    }
}

/// A single voter on real files, which leads.
async fn open_single_voter(disk: Arc<RealDisk>) -> Replica {
    let settings = StoreConfig { reserve_bytes: 0, ..StoreConfig::default() };
    let machine = Adder::default();
    let replica = Replica::open(1, settings, disk, Arc::new(NoPeers), machine).await.unwrap();
    let _known_already = replica.bootstrap([(1, peer(1))].into()).await;
    let mut watch = replica.watch();
    watch.wait_for(|status| status.role == Role::Leader).await.unwrap();
    replica
}
