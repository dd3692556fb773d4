//! Replicas that send invalid messages: absurd terms, the names of others, no membership at all.

use std::time::Duration;

use cellwright_store::{NodeId, RaftAnswer, RaftCall, SenderIdentity, StoreConfig, TypeConfig};
use openraft::raft::{AppendEntriesRequest, InstallSnapshotRequest, VoteRequest};
use openraft::{SnapshotMeta, Vote};

use crate::support::{Cell, peer};

fn sender(id: NodeId, name: &str) -> SenderIdentity {
    SenderIdentity { id, name: Some(name.to_owned()) }
}

fn vote(term: u64, id: NodeId) -> RaftCall {
    RaftCall::Vote(VoteRequest::new(Vote::new(term, id), None))
}

fn append(term: u64, id: NodeId) -> RaftCall {
    RaftCall::Append(AppendEntriesRequest::<TypeConfig> {
        vote: Vote::new_committed(term, id),
        prev_log_id: None,
        entries: Vec::new(),
        leader_commit: None,
    })
}

fn snapshot(term: u64, id: NodeId) -> RaftCall {
    RaftCall::Snapshot(InstallSnapshotRequest::<TypeConfig> {
        vote: Vote::new_committed(term, id),
        meta: SnapshotMeta::default(),
        offset: 0,
        data: vec![1, 2, 3],
        done: true,
    })
}

/// Sends the call to every replica; all reject it, for a reason that contains `word`.
async fn check(cell: &Cell, from: &SenderIdentity, call: RaftCall, word: &str) {
    let before = cell.leader().await.status();
    for id in cell.ids() {
        // The same as over a connection, so that nothing is lost in the encoding.
        let call = RaftCall::from_bytes(&call.to_bytes().unwrap()).unwrap();
        match cell.replica(id).handle(from, call).await {
            RaftAnswer::Rejected { why } => assert!(why.contains(word), "{id}: {why}"),
            other => panic!("replica {id} answers {other:?}"),
        }
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = cell.leader().await.status();
    assert_eq!((before.id, before.term), (after.id, after.term));
    cell.add(1).await;
}

#[tokio::test(start_paused = true)]
async fn strangers_and_absurd_terms_reach_no_replica_also_after_a_restart() {
    for count in [1, 3] {
        let mut cell = Cell::start(count, StoreConfig::default()).await;
        cell.add(1).await;
        let term = cell.leader().await.status().term;
        let nine = sender(9, "m9");
        check(&cell, &nine, vote(u64::MAX, 9), "out of reach").await;
        check(&cell, &nine, append(u64::MAX, 9), "out of reach").await;
        check(&cell, &nine, snapshot(u64::MAX, 9), "out of reach").await;
        check(&cell, &nine, vote(term + 7, 9), "replica 9 is no member").await;
        check(&cell, &nine, append(term + 7, 9), "replica 9 is no member").await;
        check(&cell, &nine, snapshot(term + 7, 9), "replica 9 is no member").await;
        check(&cell, &SenderIdentity { id: 9, name: None }, vote(term + 7, 9), "no member").await;
        check(&cell, &sender(2, "m9"), vote(term + 7, 1), "in the name of replica 1").await;
        check(&cell, &sender(1, "m1"), vote(u64::MAX, 1), "out of reach").await;
        let answer = cell.replica(1).handle(&sender(1, "m1"), append(term + 7, 1)).await;
        assert!(matches!(&answer, RaftAnswer::Rejected { why } if why.contains("this one")));
        if count == 3 {
            let answer = cell.replica(1).handle(&sender(2, "m9"), append(term + 7, 2)).await;
            let is_named = |why: &str| why.contains("replica 2 is m2; the certificate is of m9");
            assert!(matches!(&answer, RaftAnswer::Rejected { why } if is_named(why)), "{answer:?}");
        }
        for id in cell.ids() {
            cell.kill(id).await;
        }
        for id in 1..=count {
            cell.open(id).await;
        }
        // Right after the start, before any replica has heard of a leader.
        for id in 1..=count {
            for call in [vote(u64::MAX, 9), vote(term + 7, 9), append(term + 7, 9)] {
                let answer = cell.replica(id).handle(&nine, call).await;
                assert!(matches!(answer, RaftAnswer::Rejected { .. }), "{answer:?}");
            }
        }
        cell.add(1).await;
        cell.assert_all_equal().await;
    }
}

/// A follower that missed a membership change accepts the new replica, because another voter
/// vouches for it, and accepts no other.
#[tokio::test(start_paused = true)]
async fn a_voter_that_is_not_known_yet_is_vouched_for() {
    let mut cell = Cell::start(3, StoreConfig::default()).await;
    cell.add(1).await;
    let leader = cell.leader().await;
    let behind = (1..=3).find(|id| *id != leader.status().id).unwrap();
    cell.net.cut_off(behind, [leader.status().id]);
    cell.open(4).await;
    leader.add_learner(4, peer(4)).await.unwrap();
    leader.promote(4).await.unwrap();
    assert!(!cell.replica(behind).status().members.contains_key(&4));
    let ask = |from| {
        let replica = cell.replica(behind);
        async move { replica.handle(&from, vote(1, from.id)).await }
    };
    let answer = ask(sender(4, "m4")).await;
    assert!(matches!(answer, RaftAnswer::Vote(_)), "{answer:?}");
    for stranger in [sender(4, "m5"), sender(5, "m5")] {
        let answer = ask(stranger.clone()).await;
        assert!(matches!(answer, RaftAnswer::Rejected { .. }), "{stranger:?}: {answer:?}");
    }
    cell.net.heal();
    cell.assert_all_equal().await;
}
