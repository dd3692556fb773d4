//! Membership of replicas: who is added, and who is not. A vote for an address where nothing casts
//! it would cost the cell its majority.

use crate::support::{Cell, CellOptions, PEER, TestResponse, within};
use cellwright_api::error::Code;
use cellwright_cell::name::{Name, Token};
use cellwright_cell::time::Span;
use cellwright_gateway::http_peers::HttpPeers;
use cellwright_master::peers::{PeerAnswer, PeerCall, Peers};
use cellwright_messages::{HoldersRequest, LinkShardReport};
use cellwright_store::{Peer, RaftAnswer, RaftCall};
use serde_json::{Value, json};
use tokio::net::TcpListener;

const NONE: Value = Value::Null;

async fn waiting_replica(id: u64) -> Cell {
    Cell::start_with_options(CellOptions { id, begins_cell: false, ..CellOptions::default() }).await
}

async fn add(cell: &Cell, id: u64, name: &str, address: &str) -> TestResponse {
    cell.ask("POST /v1/masters", json!({ "id": id, "name": name, "address": address })).await
}

async fn voters(cell: &Cell) -> Vec<u64> {
    let status = cell.must("GET /v1/masters", NONE).await.body;
    let members = status["members"].as_array().unwrap();
    members.iter().filter(|m| m["voter"] == true).map(|m| m["id"].as_u64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_not_there_gets_no_vote() {
    let cell = Cell::start().await;
    let third = waiting_replica(3).await;
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let cases = [
        // The leader itself under another number.
        (2, "m2", cell.address.clone(), "exists", "replica 1 is a member already, as m1"),
        (2, "m1", gone.clone(), "exists", "replica 1 is a member already, as m1"),
        (1, "m1", gone.clone(), "exists", "replica 1 is a member already"),
        (2, "m2", gone, "wrong-state", "replica 2 does not answer at"),
        (2, "m2", third.address.clone(), "wrong-state", "replica 3 answers at"),
    ];
    for (id, name, address, code, says) in cases {
        let got = add(&cell, id, name, &address).await;
        assert_eq!((got.status, got.code()), (409, code), "{}", got.text);
        assert!(got.body["message"].as_str().unwrap().contains(says), "{}", got.text);
    }
    assert_eq!(voters(&cell).await, [1]);
    cell.must("POST /v1/users", json!({ "name": "still-served" })).await;
}

/// Over a connection and from within, in any name: no vote, no term, no panic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_and_absurd_terms_change_nothing() {
    let cell = Cell::start().await;
    let handle = cell.handle();
    let before = handle.status();
    let log_epoch = handle.replicated().with(|view| view.log_epoch);
    let peers = HttpPeers::new(None);
    let here = Peer { name: "m1".into(), address: cell.address.clone() };
    for (from, claimed) in [(9, 9), (9, 1), (1, 1)] {
        for term in [before.term + 5, u64::MAX] {
            for call in [RaftCall::vote_request(term, claimed), RaftCall::heartbeat(term, claimed)]
            {
                let call = PeerCall::Raft { log_epoch, from, call };
                for answer in [
                    peers.call(1, here.clone(), call.clone()).await.unwrap(),
                    handle.handle_peer_call(Some("m9"), call).await,
                ] {
                    let is_refused =
                        matches!(answer, PeerAnswer::Raft(RaftAnswer::Rejected { .. }));
                    assert!(is_refused, "{from} as {claimed}: {answer:?}");
                }
            }
        }
    }
    let (shard, term) = (1, before.term);
    let forward = LinkShardReport { shard, term, ..LinkShardReport::default() };
    let answer = handle.handle_peer_call(Some("m9"), PeerCall::Forward(forward)).await;
    assert!(matches!(answer, PeerAnswer::Forwarded(false)), "in another's name: {answer:?}");
    cell.must("POST /v1/users", json!({ "name": "still-served" })).await;
    assert_eq!(handle.status().term, before.term);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_answers_is_taken_in_and_let_go() {
    let cell = Cell::start().await;
    cell.must("POST /v1/users", json!({ "name": "before" })).await;
    let second = waiting_replica(2).await;
    let got = add(&cell, 2, "m2", &second.address).await;
    assert_eq!(got.status, 200, "{}", got.text);
    assert_eq!(voters(&cell).await, [1, 2]);
    let again = add(&cell, 2, "m2", &second.address).await;
    assert_eq!(again.status, 200, "asking again does no harm: {}", again.text);
    // The other one has the earlier changes, and redirects new ones to the leader.
    let moved = second.ask("POST /v1/users", json!({ "name": "after" })).await;
    assert_eq!((moved.status, moved.code()), (307, "not-leader"), "{}", moved.text);
    assert_eq!(moved.header("location"), format!("http://{}/v1/users", cell.address));
    let index = cell.must("POST /v1/users", json!({ "name": "after" })).await.body["index"].clone();
    let mut applied = second.handle().watch_applied();
    let index = index.as_u64().unwrap();
    within(applied.wait_for(|at| *at >= index)).await.unwrap();
    for name in ["before", "after"] {
        second.must(&format!("GET /v1/users/{name}"), NONE).await;
    }
    cell.must("DELETE /v1/masters/2", NONE).await;
    assert_eq!(voters(&cell).await, [1]);
    cell.must("POST /v1/users", json!({ "name": "alone" })).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_was_removed_and_runs_on_says_so_and_answers_nothing_else() {
    let cell = Cell::start().await;
    cell.must("POST /v1/users", json!({ "name": "ubar" })).await;
    let second = waiting_replica(2).await;
    assert_eq!(add(&cell, 2, "m2", &second.address).await.status, 200);
    let index = cell.handle().read().index;
    let mut applied = second.handle().watch_applied();
    within(applied.wait_for(|at| *at >= index)).await.unwrap();
    second.must("GET /v1/users/ubar", NONE).await;
    assert_eq!(second.must("GET /readyz", NONE).await.text, "ready\n");
    cell.must("DELETE /v1/masters/2", NONE).await;
    // The effect of the cell's certificates on a removed replica.
    cell.barred.lock().unwrap().insert(PEER.to_owned());
    let noticed = async {
        while !second.handle().is_removed() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    within(noticed).await;
    for target in ["GET /readyz", "GET /v1/users", "GET /v1/cluster_status", "GET /v1/jobs"] {
        let got = second.ask(target, NONE).await;
        assert_eq!((got.status, got.code()), (503, "not-ready"), "{target}: {}", got.text);
        assert!(got.text.contains("this replica was removed from the cell"), "{}", got.text);
    }
    let client = second.client(None);
    let machine = Name::new("m1").unwrap();
    let digest = Token::new(&"ab".repeat(32)).unwrap();
    let request = HoldersRequest { machine, digest, task: None };
    let log = within(client.log_after(0, Span(10))).await.map(drop);
    let holders = within(client.holders(&request)).await.map(drop);
    for response in [log, holders] {
        assert_eq!(response.unwrap_err().code(), Some(Code::NotReady));
    }
    assert_eq!(second.must("GET /v1/masters", NONE).await.body["role"], "removed");
    assert_eq!(second.must("GET /healthz", NONE).await.text, "ok\n");
    // Clients without another master get the error at once, the others continue.
    let error = within(second.client(None).get::<Value>("/v1/users")).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("this replica was removed"), "{error}");
}
