//! The door of the cell's own parts: who gets in, and what they may say.

use crate::support::{Cell, within};
use axum::body::Body;
use bytes::Bytes;
use cellwright_api::client::internal_calls::POLL_PATH;
use cellwright_api::error::Code;
use cellwright_api::internal::{
    AgentOrders, LeaseRequest, LogAnswer, PassStatistics, Proposal, REPORT_FORMAT,
};
use cellwright_cell::command::{Actor, Command, Request};
use cellwright_cell::name::Name;
use cellwright_cell::plan::Plan;
use cellwright_cell::time::Span;
use cellwright_master::handle::Caller;
use futures::stream;
use serde_json::json;
use std::convert::Infallible;

fn proposal(by: Actor, command: Command) -> Proposal {
    Proposal { requests: vec![Request { by, id: None, command }] }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_follows_and_places_and_does_nothing_else() {
    let cell = Cell::start().await;
    let client = cell.client(Some(&Caller::Scheduler(Name::new("s1").unwrap())));
    cell.must("POST /v1/users", json!({ "name": "ubar" })).await;
    let answer = within(client.log_after(0, Span(10))).await.unwrap();
    match answer {
        LogAnswer::Records(records) => assert!(!records.is_empty()),
        LogAnswer::Snapshot { index, .. } => assert!(index > 0),
    }
    let plan = Plan { made_at: 0, groups: vec![] };
    let scheduler = |name: &str| Actor::Scheduler(Name::new(name).unwrap());
    let placed = proposal(scheduler("s1"), Command::CommitPlan(plan.clone()));
    let verdicts = within(client.propose(&placed)).await.unwrap().verdicts;
    assert!(verdicts[0].is_ok(), "{verdicts:?}");
    let ubar = Name::new("ubar").unwrap();
    let remove = Command::RemoveUser { name: ubar.clone(), expect: None };
    let verdicts = within(client.propose(&proposal(scheduler("s1"), remove))).await.unwrap();
    let rejected = verdicts.verdicts[0].as_ref().unwrap_err().to_string();
    let want = "remove_user is not for scheduler:s1; allowed: users with manage_users";
    assert_eq!(rejected, want);
    // In nobody else's name, not even that of whoever may.
    for (by, code) in [
        (Actor::User(ubar), Code::BadField),
        (Actor::Operator, Code::BadField),
        (scheduler("s2"), Code::NotAllowed),
    ] {
        let bad = proposal(by, Command::CommitPlan(plan.clone()));
        let error = within(client.propose(&bad)).await.unwrap_err();
        assert_eq!(error.code(), Some(code), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_asks_for_leases_in_its_own_name() {
    let cell = Cell::start().await;
    let client = cell.client(Some(&Caller::Scheduler(Name::new("s1").unwrap())));
    let ask = |scheduler: &str| LeaseRequest {
        scheduler: scheduler.into(),
        scheduler_shard: String::new(),
        passes: PassStatistics::default(),
        wall: cellwright_identity::clock::wall(),
    };
    let error = within(client.lease(&ask("s2"))).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::NotAllowed), "{error}");
    assert!(within(client.lease(&ask("s1"))).await.unwrap().granted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_and_agents_do_not_get_in() {
    let cell = Cell::start().await;
    for caller in [Caller::User(Name::new("u").unwrap()), Caller::Agent(Name::new("m").unwrap())] {
        let client = cell.client(Some(&caller));
        let error = within(client.log_after(0, Span(10))).await.unwrap_err();
        assert_eq!(error.code(), Some(Code::NotAllowed), "{error}");
        let empty = Proposal { requests: vec![] };
        let error = within(client.propose(&empty)).await.unwrap_err();
        assert_eq!(error.code(), Some(Code::NotAllowed), "{error}");
    }
}

/// Of another build nothing but the number in front can be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_of_another_build_is_told_both_numbers_and_what_to_do() {
    let cell = Cell::start().await;
    let client = cell.client(Some(&Caller::Agent(Name::new("m").unwrap())));
    for (found, hint) in [(1u32, "restart the agent"), (REPORT_FORMAT + 1, "the masters first")] {
        let report = (found, "made of other parts");
        let call = client.call_internal::<_, AgentOrders>(POLL_PATH, &report);
        let error = within(call).await.unwrap_err();
        let numbers = format!("in format {found}, this master reads format {REPORT_FORMAT}");
        assert!(error.to_string().contains(&numbers), "{error}");
        assert!(error.api().unwrap().hint.contains(hint), "{error:?}");
    }
}

/// Whoever may not ask is told so whatever they send, and before they have sent it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_read_from_those_who_may_not_ask() {
    let cell = Cell::start().await;
    let user = Caller::User(Name::new("u").unwrap());
    let agent = Caller::Agent(Name::new("m").unwrap());
    for (path, caller) in [
        ("poll", &user),
        ("log", &agent),
        ("propose", &agent),
        ("lease", &user),
        ("peer", &agent),
        (&format!("blobs/{}", "0".repeat(64)), &agent),
    ] {
        let method = if path.starts_with("blobs") { "PUT" } else { "POST" };
        let endless = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        let target = format!("{method} /internal/{path}");
        let protocol = [("cell-protocol", "1")];
        let answer = cell.open(Some(caller), &target, &protocol, endless).await;
        assert_eq!(answer.status().as_u16(), 403, "{target}");
    }
}

/// A replica of another protocol is told so by name, before its message is looked at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_of_another_protocol_are_refused_by_name() {
    let cell = Cell::start().await;
    let caller = Caller::Replica(Name::new("m2").unwrap());
    let call = async |protocol: Option<&str>| {
        let headers: Vec<_> =
            protocol.map(|protocol| ("cell-protocol", protocol)).into_iter().collect();
        let got = cell.send(Some(&caller), "POST /internal/peer", &headers, Body::from("?")).await;
        (got.status, got.text)
    };
    for (protocol, name) in [(Some("2"), "2"), (None, "none")] {
        let (status, text) = call(protocol).await;
        assert_eq!(status, 505, "{text}");
        assert!(text.starts_with("this replica speaks protocol 1 (cellwright "), "{text}");
        assert!(text.contains(&format!("the caller protocol {name};")), "{text}");
        assert!(text.ends_with("run builds of one protocol on all replicas"), "{text}");
    }
    let (status, text) = call(Some("1")).await;
    assert_eq!(status, 400, "the message itself is looked at: {text}");
}
