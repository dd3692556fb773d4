//! Followers flush while their leader does: what each of them may report before the leader has
//! flushed.

use std::time::Duration;

use cellwright_store::{Peer, StoreConfig};
use tokio::time::Instant;

use crate::support::{Cell, number};

fn payload(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

async fn sleep_millis(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// The followers of a leader.
fn others(leader: u64) -> [u64; 2] {
    [leader % 3 + 1, (leader + 1) % 3 + 1]
}

#[tokio::test(start_paused = true)]
async fn followers_flush_while_the_leader_does_and_nothing_is_applied_before_it_has() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    cell.settle().await;
    let leader = cell.leader().await;
    let id = leader.status().id;
    let last = leader.status().last_log;
    cell.disks[&id].stall(true);
    let write = leader.propose(payload(10));
    tokio::pin!(write);
    tokio::select! {
        done = &mut write => panic!("answered before the flush: {done:?}"),
        () = sleep_millis(150) => {}
    }
    assert_eq!(cell.adder_state(id).total, 1, "the leader applied it");
    for other in others(id) {
        let status = cell.replica(other).status();
        assert_eq!(status.last_log, last.map(|last| last + 1), "replica {other} was not sent it");
        assert_eq!(
            cell.adder_state(other).total,
            1,
            "replica {other} was told that it is committed"
        );
    }
    cell.disks[&id].stall(false);
    assert_eq!(number(&write.await.unwrap().reply), 11);
    cell.assert_all_equal().await;
}

/// A commit that had to wait for the leader's flush does not wait for the next heartbeat as well.
#[tokio::test(start_paused = true)]
async fn followers_hear_of_a_commit_as_soon_as_the_leader_has_flushed_it() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    let leader = cell.leader().await;
    let id = leader.status().id;
    for value in 0..20 {
        cell.disks[&id].stall(true);
        let write = leader.propose(payload(value));
        let release = async {
            sleep_millis(15).await;
            cell.disks[&id].stall(false);
        };
        let (written, ()) = tokio::join!(write, release);
        let (index, answered) = (written.unwrap().index, Instant::now());
        for other in others(id) {
            let mut watch = cell.replica(other).watch();
            watch.wait_for(|status| status.applied >= Some(index)).await.unwrap();
        }
        let late = answered.elapsed();
        assert!(late <= Duration::from_millis(10), "{late:?} after the answer");
    }
}

/// The leader comes back without an entry that a follower holds, and continues with the follower
/// that has never seen it. The entry was never acknowledged; the follower drops it.
#[tokio::test(start_paused = true)]
async fn what_a_leader_lost_before_its_flush_gives_way_to_what_comes_after() {
    let mut cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    cell.settle().await;
    let leader = cell.leader().await;
    let id = leader.status().id;
    let [sent, unsent] = others(id);
    cell.net.cut_off(unsent, [id, sent]);
    cell.disks[&id].stall(true);
    let write = tokio::spawn({
        let leader = leader.clone();
        async move { leader.propose(payload(10)).await }
    });
    let next = leader.status().last_log.map(|last| last + 1);
    let mut watch = cell.replica(sent).watch();
    watch.wait_for(|status| status.last_log >= next).await.unwrap();
    sleep_millis(50).await;
    assert_eq!(cell.adder_state(sent).total, 1);
    drop(leader);
    cell.kill(id).await;
    cell.kill(sent).await;
    assert!(write.await.unwrap().is_err(), "it was answered");
    // The flush that hangs never returns.
    let disk = cell.disks[&id].copy();
    cell.disks.insert(id, disk);
    cell.net.heal();
    cell.open(id).await;
    assert_eq!(number(&cell.add(100).await.reply), 101);
    cell.open(sent).await;
    cell.assert_all_equal().await;
    assert_eq!(cell.adder_state(sent).total, 101);
}

/// Openraft accepts a membership change when it calls the one before committed, which it does
/// before the leader has flushed it.
#[tokio::test(start_paused = true)]
async fn members_do_not_change_before_all_before_it_is_flushed() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    cell.settle().await;
    let leader = cell.leader().await;
    let id = leader.status().id;
    let next = leader.status().last_log.map(|last| last + 1);
    cell.disks[&id].stall(true);
    let write = tokio::spawn({
        let leader = leader.clone();
        async move { leader.propose(payload(10)).await }
    });
    let mut watch = leader.watch();
    watch.wait_for(|status| status.last_log >= next).await.unwrap();
    let change = leader.add_learner(9, Peer { address: "nobody".to_owned(), ..Peer::default() });
    tokio::pin!(change);
    tokio::select! {
        _ = &mut change => panic!("done before the flush"),
        () = sleep_millis(150) => {}
    }
    for other in others(id) {
        assert_eq!(cell.replica(other).status().last_log, next, "replica {other} got the change");
    }
    cell.disks[&id].stall(false);
    assert_eq!(number(&write.await.unwrap().unwrap().reply), 11);
    change.await.unwrap();
}

/// What was written and not flushed when a process was killed is flushed at the next start before
/// it counts.
#[tokio::test(start_paused = true)]
async fn what_is_read_at_a_start_is_flushed_before_it_counts() {
    let mut cell = Cell::start(1, StoreConfig::default()).await;
    cell.add(1).await;
    cell.kill(1).await;
    for file in cell.disks[&1].state().files.values_mut() {
        file.synced = file.synced.min(64);
    }
    cell.open(1).await;
    let platter = cell.disks[&1].state();
    assert!(platter.files.values().all(|file| file.synced == file.bytes.len()));
}
