//! A cell restored from a checkpoint and the cell it replaces, when a replica of the old one still
//! runs: same names, same ids, same certificates, and yet two logs.

use crate::support::{BareStateMachine, TempFolder};
use crate::versions::{settings, start_master};
use cellwright_cell::state::State;
use cellwright_master::checkpoint::restore;
use cellwright_master::peers::{PeerAnswer, PeerCall};
use cellwright_master::replicated_state::View;
use cellwright_store::{
    CallError, CallFuture, NodeId, Peer, RaftCall, RealDisk, Replica, Transport,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;

/// Records what a replica sends to others, and answers nothing.
struct RecordingTransport(mpsc::UnboundedSender<RaftCall>);

impl Transport for RecordingTransport {
    fn call(&self, _: NodeId, peer: Peer, call: RaftCall) -> CallFuture {
        let _ = self.0.send(call);
        Box::pin(async move { Err(CallError::Unreachable(peer.address)) })
    }
}

fn peer(name: &str) -> Peer {
    Peer { name: name.into(), address: "127.0.0.1:1".into() }
}

fn empty() -> View {
    View { state: State::default(), index: 0, term: 0, log_epoch: 0 }
}

#[tokio::test]
async fn a_restored_cell_takes_no_part_in_the_log_of_the_one_before() {
    let (before, after, fresh) = (TempFolder::new(), TempFolder::new(), TempFolder::new());
    // One of the two old replicas, asking the other for its vote.
    let (sender, mut calls) = mpsc::unbounded_channel();
    let kept = BareStateMachine(Arc::new(Mutex::new(empty())));
    let disk = Arc::new(RealDisk::open(&before.0).unwrap());
    let old = Replica::open(2, settings(), disk, Arc::new(RecordingTransport(sender)), kept)
        .await
        .unwrap();
    old.bootstrap(BTreeMap::from([(1, peer("m1")), (2, peer("m2"))])).await.unwrap();
    let call = calls.recv().await.unwrap();
    old.shutdown().await;

    let disk = Arc::new(RealDisk::open(&after.0).unwrap());
    restore(empty(), disk, (1, peer("m1")), settings()).await.unwrap();
    let restored = start_master(&after.0).await.unwrap();
    let term = restored.handle().status().term;
    let log_epoch = restored.handle().replicated().with(|view| view.log_epoch);
    let raft_call = |log_epoch| PeerCall::Raft { log_epoch, from: 2, call: call.clone() };
    let answer = restored.handle().handle_peer_call(Some("m2"), raft_call(0)).await;
    assert!(matches!(&answer, PeerAnswer::WrongLog(why) if why.contains("restored")), "{answer:?}");
    assert_eq!(restored.handle().status().term, term, "the vote asked for did not reach it");
    let answer = restored.handle().handle_peer_call(Some("m2"), raft_call(log_epoch)).await;
    assert!(matches!(answer, PeerAnswer::Raft(_)), "its own replicas are heard: {answer:?}");
    restored.stop().await;

    // A replica that holds nothing belongs to no log yet.
    let joining = start_master(&fresh.0).await.unwrap();
    let answer = joining.handle().handle_peer_call(Some("m2"), raft_call(log_epoch)).await;
    assert!(matches!(answer, PeerAnswer::Raft(_)), "{answer:?}");
    joining.stop().await;
}
