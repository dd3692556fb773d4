//! Three replicas and more: leaders crash, followers fall behind, members change.

use std::time::Duration;

use cellwright_store::{MemberError, ProposeError, ReadEntriesError, Role, Status, StoreConfig};

use crate::support::{Cell, number, peer};

#[tokio::test(start_paused = true)]
async fn a_leader_dies_and_nothing_acknowledged_is_lost() {
    let mut cell = Cell::start(3, StoreConfig::default()).await;
    for value in 1..=10 {
        assert_eq!(cell.add(value).await.reply, (1..=value).sum::<u64>().to_le_bytes());
    }
    let old = cell.leader().await.status();
    cell.kill(old.id).await;
    assert_eq!(number(&cell.add(100).await.reply), 155);
    let new = cell.leader().await.status();
    assert!(new.id != old.id && new.term > old.term);
    cell.open(old.id).await;
    cell.assert_all_equal().await;
    assert_eq!(cell.adder_state(old.id).total, 155);
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_of_all_keeps_every_acknowledged_write() {
    let mut cell = Cell::start(3, StoreConfig::default()).await;
    for round in 1..=5 {
        let leader = cell.leader().await;
        let adds = (0..50).map(|_| leader.propose(1_u64.to_le_bytes().to_vec()));
        let adds = futures::future::join_all(adds);
        // Cut in the middle of it: some are acknowledged, some are not.
        let acknowledged = tokio::select! {
            results = adds => results.iter().filter(|result| result.is_ok()).count() as u64,
            () = tokio::time::sleep(Duration::from_millis(round)) => 0,
        };
        let before = cell.adder_state(leader.status().id).total;
        for id in 1..=3 {
            cell.kill(id).await;
        }
        for id in 1..=3 {
            cell.open(id).await;
        }
        cell.assert_all_equal().await;
        assert!(cell.adder_state(1).total >= before.max(acknowledged), "round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_follower_far_behind_catches_up_by_snapshot() {
    let settings = StoreConfig {
        snapshot_entries: 20,
        keep_entries: 5,
        snapshot_chunk_bytes: 100,
        ..StoreConfig::default()
    };
    let mut cell = Cell::start(3, settings).await;
    let leader = cell.leader().await.status().id;
    let behind = (1..=3).find(|id| *id != leader).unwrap();
    cell.kill(behind).await;
    for value in 1..=100 {
        cell.add(value).await;
    }
    cell.leader().await.snapshot_now().await.unwrap();
    let purged = cell.leader().await.status().purged.unwrap();
    assert!(purged > 50, "purged up to {purged} only");
    cell.open(behind).await;
    cell.assert_all_equal().await;
    assert!(cell.replica(behind).status().snapshot.unwrap() >= purged);
    // What it has on disk now is enough to start from.
    cell.kill(behind).await;
    cell.open(behind).await;
    cell.assert_all_equal().await;
    assert_eq!(cell.adder_state(behind).total, 5050);
}

#[tokio::test(start_paused = true)]
async fn members_change_online() {
    let mut cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    cell.open(4).await;
    let leader = cell.leader().await;
    assert!(matches!(leader.promote(4).await, Err(MemberError::Unknown { id: 4 })));
    leader.add_learner(4, peer(4)).await.unwrap();
    leader.add_learner(4, peer(4)).await.unwrap();
    let elsewhere = leader.add_learner(4, peer(9)).await;
    assert!(matches!(elsewhere, Err(MemberError::Exists { id: 4, .. })));
    leader.promote(4).await.unwrap();
    let out = leader.status().id;
    leader.remove(out).await.unwrap();
    cell.kill(out).await;
    cell.add(2).await;
    cell.assert_all_equal().await;
    let members = cell.leader().await.status().members;
    let voters: Vec<u64> = members.iter().filter(|(_, m)| m.voter).map(|(id, _)| *id).collect();
    let expected: Vec<u64> = (1..=4).filter(|id| *id != out).collect();
    assert_eq!(voters, expected);
    assert_eq!(members[&4].peer, peer(4));
    assert_eq!(cell.adder_state(4).total, 3);
}

#[tokio::test(start_paused = true)]
async fn a_voter_whom_the_others_cannot_do_without_stays() {
    let mut cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    let leader = cell.leader().await;
    let own = leader.status().id;
    let others: Vec<u64> = (1..=3).filter(|id| *id != own).collect();
    cell.kill(others[0]).await;
    for id in [others[1], own] {
        let rejection = leader.remove(id).await.unwrap_err();
        let MemberError::NoMajorityLeft { answering: 1, voters: 2, .. } = rejection else {
            panic!("{rejection}")
        };
    }
    assert_eq!(number(&cell.add(2).await.reply), 3, "nothing was begun");
    // The replica that is down can be removed, and so can any other once it is up.
    leader.remove(others[0]).await.unwrap();
    cell.open(others[0]).await;
    leader.add_learner(others[0], peer(others[0])).await.unwrap();
    leader.promote(others[0]).await.unwrap();
    leader.remove(others[1]).await.unwrap();
    assert_eq!(number(&cell.add(3).await.reply), 6);
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_learner_gets_no_vote() {
    let settings = StoreConfig {
        promote_lag: 0,
        promote_timeout: Duration::from_secs(5),
        ..StoreConfig::default()
    };
    let cell = Cell::start(1, settings).await;
    let leader = cell.leader().await;
    leader.add_learner(2, peer(2)).await.unwrap();
    assert!(matches!(leader.promote(2).await, Err(MemberError::NotCaughtUp { id: 2, .. })));
    assert!(matches!(leader.remove(1).await, Err(MemberError::LastVoter { id: 1 })));
    leader.remove(2).await.unwrap();
    assert_eq!(cell.add(5).await.reply, 5_u64.to_le_bytes());
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_a_quorum_is_fenced_and_recovers() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    let old = cell.leader().await;
    let id = old.status().id;
    cell.net.cut_off(id, 1..=3);
    let write = old.propose(2_u64.to_le_bytes().to_vec()).await;
    assert!(matches!(write, Err(ProposeError::OutcomeUnknown { .. })), "{write:?}");
    if old.status().role == Role::Leader {
        let write = old.propose(3_u64.to_le_bytes().to_vec()).await;
        assert!(matches!(write, Err(ProposeError::Fenced { .. })), "{write:?}");
    }
    assert!(old.read_barrier().await.is_err());
    // The other two go on.
    assert_eq!(number(&cell.add(10).await.reply), 11);
    cell.net.heal();
    cell.assert_all_equal().await;
    assert_eq!(
        cell.adder_state(id).total,
        11,
        "a write refused by a lost leader must not come back"
    );
}

/// It was in a log and may be in another: no client may be told that nothing happened.
#[tokio::test(start_paused = true)]
async fn what_a_new_leader_overwrote_is_told_as_open() {
    let settings = StoreConfig { fence_after: Duration::from_secs(600), ..StoreConfig::default() };
    let cell = Cell::start(3, settings).await;
    cell.add(1).await;
    let old = cell.leader().await;
    let id = old.status().id;
    cell.net.cut_off(id, 1..=3);
    let last = old.status().last_log;
    let pending = tokio::spawn(async move { old.propose(2_u64.to_le_bytes().to_vec()).await });
    let appended = |status: &Status| status.last_log > last;
    cell.replica(id).watch().wait_for(appended).await.unwrap();
    let other = cell.replica((1..=3).find(|other| *other != id).unwrap());
    let replaced = |status: &Status| status.leader.is_some_and(|leader| leader != id);
    other.watch().wait_for(replaced).await.unwrap();
    assert_eq!(number(&cell.add(10).await.reply), 11);
    cell.net.heal();
    let write = pending.await.unwrap();
    assert!(matches!(write, Err(ProposeError::Deposed { leader: Some(_) })), "{write:?}");
    cell.assert_all_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_follower_sends_writers_to_the_leader() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    cell.settle().await;
    let leader = cell.leader().await.status().id;
    let other = cell.replica((1..=3).find(|id| *id != leader).unwrap());
    for error in [
        other.propose(vec![0; 8]).await.map(|_| ()).unwrap_err(),
        other.read_barrier().await.map(|_| ()).unwrap_err(),
    ] {
        let ProposeError::NotLeader { leader: Some(named) } = &error else { panic!("{error}") };
        assert_eq!(*named, (leader, peer(leader)));
        assert!(error.to_string().contains(&peer(leader).address));
    }
}

#[tokio::test(start_paused = true)]
async fn entries_can_be_read_until_they_are_purged() {
    let settings = StoreConfig {
        cache_bytes: 0,
        segment_bytes: 2000,
        snapshot_entries: 1000,
        keep_entries: 10,
        ..StoreConfig::default()
    };
    let cell = Cell::start(1, settings).await;
    for value in 1..=50 {
        cell.add(value).await;
    }
    cell.settle().await;
    let replica = cell.replica(1);
    let (mut from, mut read) = (0, Vec::new());
    while from <= replica.status().applied.unwrap() {
        let batch = replica.read_entries(from, 300).await.unwrap();
        assert!(batch.next > from && batch.entries.len() <= 10);
        read.extend(batch.entries.iter().map(|entry| (entry.index, number(&entry.payload))));
        from = batch.next;
    }
    assert_eq!(read, cell.adder_state(1).seen);
    replica.snapshot_now().await.unwrap();
    replica.watch().wait_for(|status| status.purged > Some(30)).await.unwrap();
    let gone = replica.read_entries(1, 300).await;
    assert!(matches!(gone, Err(ReadEntriesError::Purged { requested: 1, .. })), "{gone:?}");
}

#[tokio::test(start_paused = true)]
async fn every_member_shows_that_it_is_current_and_knows_what_was_acknowledged() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    for value in 1..=20 {
        let index = cell.add(value).await.index;
        for id in 1..=3 {
            let confirmed = cell.replica(id).confirm_current().await.unwrap();
            assert!(confirmed >= index, "{id}: {confirmed} {index}");
            assert!(cell.adder_state(id).seen.iter().any(|(at, _)| *at == index), "{id} knows it");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_was_removed_or_cut_off_is_not_current_even_before_it_notices() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    let leader = cell.leader().await;
    let mut others = (1..=3).filter(|id| *id != leader.status().id);
    let (gone, cut) = (others.next().unwrap(), others.next().unwrap());
    leader.remove(gone).await.unwrap();
    cell.add(2).await;
    let status = cell.replica(gone).status();
    assert_eq!(status.leader, Some(leader.status().id), "it has not noticed");
    assert!(cell.replica(gone).confirm_current().await.is_err());
    // A leader that was partitioned is not current either, even before it notices.
    cell.replica(cut).confirm_current().await.unwrap();
    cell.net.cut_off(leader.status().id, [cut]);
    assert_eq!(leader.status().role, Role::Leader);
    assert!(leader.confirm_current().await.is_err());
    assert!(cell.replica(cut).confirm_current().await.is_err());
}

/// However many callers ask, the leader is asked only once in a while.
#[tokio::test(start_paused = true)]
async fn a_flood_of_questions_is_a_few_rounds() {
    let cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    cell.settle().await;
    let leader = cell.leader().await.status().id;
    let follower = cell.replica((1..=3).find(|id| *id != leader).unwrap());
    let began = tokio::time::Instant::now();
    let mut askers = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let follower = follower.clone();
        askers.spawn(async move {
            for _ in 0..20 {
                follower.confirm_current().await.unwrap();
            }
        });
    }
    while let Some(asker) = askers.join_next().await {
        asker.unwrap();
    }
    let (rounds, millis) = (cell.net.read_indexes(), began.elapsed().as_millis());
    assert!(rounds >= 20, "each question is answered by a round that began after it: {rounds}");
    assert!(u128::from(rounds) <= millis / 20 + 1, "{rounds} rounds in {millis} ms");
}
