//! A revoked part is rejected until it joins again; and the level of the cell, which replicas of
//! older builds hold back.

use crate::support::{Cell, CellOptions, digest_of, machine, within};
use cellwright_cell::command::Command;
use cellwright_cell::credential::{PartKind, SecretHash, TokenKind};
use cellwright_cell::name::Name;
use cellwright_cell::state::LEVEL;
use cellwright_cell::time::Span;
use cellwright_master::handle::Caller;
use cellwright_master::level;
use cellwright_master::level::{ReplicaIdentity, ReplicaProbe};
use cellwright_messages::{AgentOrders, AgentReport, Epoch};
use futures::future::BoxFuture;
use serde_json::{Value, json};

const NONE: Value = Value::Null;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A poll of the agent of `m7` that describes its machine and has orders with this digest.
async fn poll(cell: &Cell, number: u64, orders_digest: u64) -> AgentOrders {
    let report = AgentReport {
        machine: name("m7"),
        incarnation: 1,
        number,
        taken: Epoch::default(),
        hang: false,
        orders_digest,
        spec: Some(serde_json::from_value(machine("m7")).unwrap()),
        tasks: vec![],
        packages: None,
        usage: vec![],
        resource_pressure: vec![],
        wall: cellwright_identity::clock::wall(),
        book: Default::default(),
        numbers: Vec::new(),
    };
    let agent = cell.client(Some(&Caller::Agent(name("m7"))));
    within(agent.poll(&cell.address, &report, Span(0))).await.unwrap()
}

fn is_there(cell: &Cell) -> bool {
    cell.handle().read().state.machine_named(&name("m7")).is_some()
}

async fn submit(cell: &Cell, command: Command) {
    let by = Caller::default_sender(&command, &cell.handle().read().state);
    let answer = within(cell.handle().submit(&by, None, command)).await.unwrap();
    answer.verdict.unwrap();
}

/// Polls until the machine has its row; reports are numbered from `number` on.
async fn register_machine(cell: &Cell, mut number: u64) {
    let polling = async {
        while !is_there(cell) {
            number += 1;
            poll(cell, number, 0).await;
        }
    };
    within(polling).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_was_removed_stays_away_however_often_its_agent_polls() {
    let cell = Cell::start().await;
    register_machine(&cell, 0).await;
    cell.must("DELETE /v1/machines/m7", NONE).await;
    let orders = poll(&cell, 1_000_000, 77).await;
    assert_eq!(orders.tasks, Some(vec![]), "what still runs there is to end");
    assert!(orders.epoch > Epoch::default());
    let before = cell.handle().read().index;
    for number in 0..20 {
        assert_eq!(poll(&cell, 1_000_001 + number, 0).await.tasks, None, "it was told");
    }
    cell.must("POST /v1/users", json!({ "name": "later" })).await;
    assert!(!is_there(&cell));
    assert!(cell.handle().read().index < before + 10, "nor does it fill the log");
    let agent = Caller::Agent(name("m7"));
    let blob = format!("GET /v1/blobs/{}", digest_of(b"x"));
    let got = cell.ask_as(&agent, &blob, &[], NONE).await;
    assert_eq!((got.status, got.code()), (403, "not-allowed"), "{}", got.text);
    assert!(got.text.contains("cell token create --agent m7"), "{}", got.text);
    let (id, secret_hash) = (name("join-7"), SecretHash([7; 32]));
    let kind = TokenKind::JoinAgent { machine: name("m7") };
    let (valid_for, parent) = (Span::seconds(600), None);
    let made = Command::AddToken { id: id.clone(), kind, secret_hash, valid_for, parent };
    submit(&cell, made).await;
    submit(&cell, Command::UseJoinToken { id, secret_hash, newcomer: None }).await;
    register_machine(&cell, 2_000_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_and_schedulers_that_were_sent_away_are_remembered() {
    let cell = Cell::start().await;
    let second = Cell::start_with_options(CellOptions {
        id: 2,
        begins_cell: false,
        ..CellOptions::default()
    })
    .await;
    let member = json!({ "id": 2, "name": "m2", "address": second.address });
    cell.must("POST /v1/masters", member).await;
    let got = cell.ask("POST /v1/revocations", json!({ "part": "replica", "name": "m2" })).await;
    assert_eq!((got.status, got.code()), (409, "wrong-state"), "a member: {}", got.text);
    cell.must("DELETE /v1/masters/2", NONE).await;
    cell.must("POST /v1/revocations", json!({ "part": "scheduler", "name": "s1" })).await;
    let state = cell.handle().read().state;
    assert!(state.is_revoked(PartKind::Replica, &name("m2")));
    assert!(state.is_revoked(PartKind::Scheduler, &name("s1")));
    assert!(!state.is_revoked(PartKind::Replica, &name("m1")));
    // A user with the capability revokes it like any token.
    let listed = cell.must("GET /v1/tokens", NONE).await.body;
    let rows = listed["items"].as_array().unwrap();
    let row = rows.iter().find(|row| row["kind"]["revocation"]["name"] == "s1").unwrap();
    cell.must(&format!("DELETE /v1/tokens/{}", row["id"].as_str().unwrap()), NONE).await;
    assert!(!cell.handle().read().state.is_revoked(PartKind::Scheduler, &name("s1")));
}

/// Replicas that all report the same identity.
struct FixedCandidate(ReplicaIdentity);

impl ReplicaProbe for FixedCandidate {
    fn identify(&self, _: String) -> BoxFuture<'_, Result<ReplicaIdentity, String>> {
        Box::pin(async { Ok(self.0) })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cell_is_raised_when_every_voter_knows_the_level() {
    let cell = Cell::start().await;
    let second = Cell::start_with_options(CellOptions {
        id: 2,
        begins_cell: false,
        ..CellOptions::default()
    })
    .await;
    let member = json!({ "id": 2, "name": "m2", "address": second.address });
    cell.must("POST /v1/masters", member).await;
    assert_eq!(cell.handle().read().state.level(), 1, "as every cell begins");
    // Requested as if by the next build, which supports one level more.
    let (next, handle) = (LEVEL + 1, cell.handle());
    let at = |id, level| FixedCandidate(ReplicaIdentity { id, level });
    let found = level::next_level(handle, &at(2, LEVEL), next).await;
    assert_eq!(found, None, "an older build");
    let found = level::next_level(handle, &at(3, next), next).await;
    assert_eq!(found, None, "another replica answers");
    let found = level::next_level(handle, &at(2, next), LEVEL).await;
    assert_eq!(found, None, "its own build does not know it");
    let found = level::next_level(second.handle(), &at(1, next), next).await;
    assert_eq!(found, None, "it does not lead");
    assert_eq!(level::next_level(handle, &at(2, next), next).await, Some(next));
    assert!(
        !level::raise_level(handle, cell.blob_peers.as_ref()).await,
        "nobody knows more than it is at"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_an_older_build_is_not_taken_into_a_cell_that_was_raised() {
    let cell = Cell::start().await;
    let peer = cellwright_store::Peer { name: "m2".into(), address: "127.0.0.1:1".into() };
    let older = FixedCandidate(ReplicaIdentity { id: 2, level: LEVEL - 1 });
    let rejected = cellwright_gateway::membership::admit(cell.handle(), &older, 2, peer).await;
    let error = rejected.unwrap_err();
    assert_eq!(error.code.as_str(), "wrong-state");
    let expected = format!("the cell is at {LEVEL}");
    assert!(error.message.contains(&expected), "{}", error.message);
}
