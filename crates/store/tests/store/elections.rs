//! Elections: which replica leads, and that a healthy leader is not deposed.

use std::time::Duration;

use cellwright_store::{DiskSpace, MemberError, Peer, ProposeError, Purpose, Role, StoreConfig};

use crate::support::{Cell, number};

const MIB: u64 = 1 << 20;

fn payload(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

async fn sleep_seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_was_cut_off_comes_back_without_a_new_term() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    let before = cell.leader().await.status();
    let away = (1..=3).find(|id| *id != before.id).unwrap();
    for round in 1..=5 {
        cell.net.cut_off(away, 1..=3);
        sleep_seconds(20).await;
        cell.add(round).await;
        cell.net.heal();
        cell.assert_all_equal().await;
        sleep_seconds(2).await;
        let after = cell.leader().await.status();
        assert_eq!((after.id, after.term), (before.id, before.term), "round {round}");
        assert_eq!(cell.replica(away).status().term, before.term, "round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_hears_all_but_the_leader_deposes_nobody() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    let before = cell.leader().await.status();
    let deaf = (1..=3).find(|id| *id != before.id).unwrap();
    cell.net.cut_off(deaf, [before.id]);
    for value in 1..=10 {
        sleep_seconds(1).await;
        cell.replica(before.id).propose(payload(value)).await.unwrap();
    }
    cell.net.heal();
    cell.assert_all_equal().await;
    assert_eq!(cell.leader().await.status().term, before.term);
}

#[tokio::test(start_paused = true)]
async fn a_minority_raises_no_term_however_long_it_waits() {
    let cell = Cell::start(5, StoreConfig::default()).await;
    cell.add(1).await;
    let before = cell.leader().await.status();
    let away: Vec<u64> = (1..=5).filter(|id| *id != before.id).take(2).collect();
    for follower in &away {
        cell.net.cut_off(*follower, (1..=5).filter(|id| !away.contains(id)));
    }
    sleep_seconds(60).await;
    for follower in &away {
        let status = cell.replica(*follower).status();
        assert_eq!((status.term, status.leader), (before.term, None), "it lost its leader");
    }
    cell.net.heal();
    cell.assert_all_equal().await;
    assert_eq!(cell.leader().await.status().term, before.term);
}

/// In virtual time, so the speed of the machine plays no part. In so many failovers some have two
/// replicas that ask for votes in the same moment.
#[tokio::test(start_paused = true)]
async fn no_failover_takes_longer_than_the_lease_and_the_longest_draw() {
    let mut slowest = Duration::ZERO;
    let mut cell = Cell::start(3, StoreConfig::default()).await;
    for value in 1..=200 {
        cell.add(value).await;
        cell.settle().await;
        let old = cell.leader().await.status().id;
        cell.kill(old).await;
        let killed = tokio::time::Instant::now();
        cell.add(100).await;
        slowest = slowest.max(killed.elapsed());
        cell.open(old).await;
        cell.assert_all_equal().await;
    }
    // The leader's lease of 400 ms, a random delay of up to 225 ms, three rounds of messages with
    // their flushes, the write, and checks for the leader that are 5 ms apart. Split votes take
    // longer.
    assert!(slowest <= Duration::from_millis(690), "{slowest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_about_to_stop_leaves_a_cell_with_a_leader() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    let old = cell.leader().await.status();
    let since = tokio::time::Instant::now();
    let replica = cell.replica(old.id);
    let done = async {
        replica.transfer_leadership().await;
        since.elapsed()
    };
    // Writers get an error for a moment, as during an election, and none is left without an answer.
    let writes = async {
        let mut total = 1;
        while cell.leader().await.status().id == old.id {
            match cell.replica(old.id).propose(payload(1)).await {
                Ok(_) => total += 1,
                Err(ProposeError::NotLeader { .. }) => {}
                Err(other) => panic!("{other}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        total
    };
    let (took, total) = tokio::join!(done, writes);
    assert!(took <= Duration::from_millis(600), "{took:?}");
    let new = cell.leader().await.status();
    assert_eq!(new.term, old.term + 1, "one election was enough");
    assert_eq!(number(&cell.add(1).await.reply), total + 1);
    cell.assert_all_equal().await;
}

#[tokio::test(start_paused = true)]
async fn whoever_has_nobody_to_hand_over_to_stops_at_once() {
    let alone = Cell::start(1, StoreConfig::default()).await;
    let cell = Cell::start(3, StoreConfig::default()).await;
    let leader = cell.leader().await.status().id;
    let since = tokio::time::Instant::now();
    alone.replica(1).transfer_leadership().await;
    cell.replica(leader % 3 + 1).transfer_leadership().await;
    assert_eq!(since.elapsed(), Duration::ZERO);
    assert_eq!(cell.leader().await.status().id, leader);
}

#[tokio::test(start_paused = true)]
async fn a_leader_short_of_disk_hands_over_and_writes_go_on() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    let old = cell.leader().await.status();
    cell.disks[&old.id].state().free = 200 * MIB;
    let mut total = 1;
    let since = tokio::time::Instant::now();
    while cell.leader().await.status().id == old.id {
        assert!(since.elapsed() < Duration::from_secs(5), "nobody took over");
        // Rejected, at most, as during an election.
        match cell.replica(old.id).propose(payload(1)).await {
            Ok(_) => total += 1,
            Err(ProposeError::NotLeader { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let disk_space = cell.replica(old.id).disk_space();
    assert_eq!(disk_space, DiskSpace { free: 200 * MIB, reserve: 256 * MIB });
    assert!(disk_space.is_below_reserve());
    let new = cell.leader().await.status();
    assert_eq!(new.term, old.term + 1, "one election was enough");
    assert_eq!(number(&cell.add(1).await.reply), total + 1);
    // With free space again it stays a follower: nothing is wrong with the new leader.
    cell.disks[&old.id].state().free = 1 << 40;
    sleep_seconds(10).await;
    assert_eq!(cell.leader().await.status().id, new.id);
    cell.assert_all_equal().await;
}

#[tokio::test(start_paused = true)]
async fn members_do_not_change_while_the_lead_is_handed_over() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    let old = cell.leader().await.status().id;
    cell.disks[&old].state().free = 200 * MIB;
    let mut rejected = 0;
    for _ in 0..500 {
        // A leader serves no linearizable reads during a leadership transfer.
        let read = cell.replica(old).read_barrier().await;
        let leads = cell.replica(old).status().role == Role::Leader;
        if leads && matches!(read, Err(ProposeError::NotLeader { .. })) {
            let peer = Peer { address: "nobody".to_owned(), ..Peer::default() };
            let change = cell.replica(old).add_learner(9, peer).await;
            assert!(matches!(change, Err(MemberError::Busy)), "{change:?}");
            rejected += 1;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(rejected > 0, "it was never seen handing over");
    assert_ne!(cell.leader().await.status().id, old);
}

/// The disk check runs again after a failure.
#[tokio::test(start_paused = true)]
async fn a_disk_that_was_silent_for_a_while_is_looked_at_again() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    let old = cell.leader().await.status().id;
    cell.disks[&old].state().fail_free_bytes = true;
    sleep_seconds(2).await;
    cell.disks[&old].state().fail_free_bytes = false;
    cell.disks[&old].state().free = 200 * MIB;
    sleep_seconds(5).await;
    assert_ne!(cell.leader().await.status().id, old, "the lead stays where there is no room");
    cell.assert_all_equal().await;
}

#[tokio::test(start_paused = true)]
async fn the_lead_is_handed_to_one_that_has_room() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    let old = cell.leader().await.status().id;
    let short = (1..=3).find(|id| *id != old).unwrap();
    cell.disks[&short].state().free = 300 * MIB;
    cell.disks[&old].state().free = 200 * MIB;
    sleep_seconds(5).await;
    let new = cell.leader().await.status().id;
    assert!(new != old && new != short, "{new} leads, {old} and {short} are short");
    cell.add(1).await;
    cell.assert_all_equal().await;
}

#[tokio::test(start_paused = true)]
async fn removals_are_taken_below_the_reserve_and_writes_are_not() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    cell.disks.values().for_each(|disk| disk.state().free = 100 * MIB);
    sleep_seconds(2).await;
    let leader = cell.leader().await;
    let write = leader.propose(payload(1)).await;
    assert!(matches!(write, Err(ProposeError::DiskFull { .. })), "{write:?}");
    let removed = leader.propose_for(Purpose::Removal, payload(7)).await.unwrap();
    assert_eq!(number(&removed.reply), 8);
    cell.assert_all_equal().await;
    // At the floor nothing but votes is accepted.
    cell.disks.values().for_each(|disk| disk.state().free = 60 * MIB);
    let removal = leader.propose_for(Purpose::Removal, payload(7)).await;
    assert!(matches!(removal, Err(ProposeError::DiskFull { .. })), "{removal:?}");
}
