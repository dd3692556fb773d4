//! Internal routes: which parts are admitted, and what they may send.

use crate::support::{Cell, within};
use axum::body::Body;
use bytes::Bytes;
use cellwright_api::error::Code;
use cellwright_api::wire::{NEWEST, WireRange, WireVersion};
use cellwright_cell::command::{Actor, Command, Request};
use cellwright_cell::name::Name;
use cellwright_cell::plan::Plan;
use cellwright_cell::time::Span;
use cellwright_master::handle::Caller;
use cellwright_messages::{AgentReport, LeaseRequest, LogAnswer, PassStatistics, Proposal};
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
    // In no other name, not even that of a caller that may.
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
        level: 1,
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

/// As a build speaks that is ahead by so many releases.
fn ahead(releases: u16) -> WireRange {
    WireRange::of_release(WireVersion(NEWEST.0 + releases))
}

fn report_of(machine: &str) -> AgentReport {
    let report = json!({
        "machine": machine, "incarnation": 1, "number": 1, "taken": { "log_epoch": 0, "index": 0 },
        "hang": false, "orders_digest": 0, "spec": null, "tasks": [], "packages": null,
        "usage": [], "resource_pressure": [], "wall": 1,
    });
    serde_json::from_value(report).unwrap()
}

/// Its first message is one that the release before it reads, and so are all others until it has
/// met somebody who reads its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_the_next_release_are_understood() {
    let cell = Cell::start().await;
    let scheduler = Caller::Scheduler(Name::new("s1").unwrap());
    let client = cell.client_of(Some(&scheduler), ahead(1));
    for _ in 0..2 {
        assert!(within(client.log_after(0, Span(10))).await.is_ok());
    }
    let agent = cell.client_of(Some(&Caller::Agent(Name::new("m").unwrap())), ahead(1));
    let report = report_of("m");
    within(agent.poll(&cell.address, &report, Span(10))).await.unwrap();
}

/// Two releases apart nothing but the headers can be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_is_two_releases_ahead_is_told_both_ranges_and_what_to_do() {
    let cell = Cell::start().await;
    let (caller, range) = (Caller::Agent(Name::new("m").unwrap()), ahead(2));
    let client = cell.client_of(Some(&caller), range);
    let refused = within(client.poll(&cell.address, &report_of("m"), Span(10))).await;
    let error = refused.unwrap_err();
    assert_eq!(error.code(), Some(Code::OtherWire), "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("agent:m speaks wire {range}")), "{text}");
    assert!(text.contains(&format!("this master speaks wire {}", WireRange::BUILT)), "{text}");
    assert!(error.api().unwrap().hint.contains("upgrade the masters first"), "{error:?}");
}

/// A caller that may not call is rejected whatever it sends, and before it has sent it.
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
        let answer = cell.open(Some(caller), &target, &[], endless).await;
        assert_eq!(answer.status().as_u16(), 403, "{target}");
    }
}

/// The version is checked before a byte of the message is decoded, also for replicas.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_is_not_spoken_is_refused_before_the_message_is_read() {
    let cell = Cell::start().await;
    let caller = Caller::Replica(Name::new("m2").unwrap());
    let built = WireRange::BUILT.to_string();
    for (version, range, said) in [
        ("9", "8-9", "replica:m2 speaks wire 8-9 and wrote version 9"),
        ("9", built.as_str(), "and wrote version 9"),
        ("1", "9-8", "names no wire version"),
        ("0", built.as_str(), "and wrote version 0"),
        ("", "", "names no wire version"),
    ] {
        let headers = [("cell-wire", version), ("cell-wire-range", range)];
        let endless = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        let got = cell.send(Some(&caller), "POST /internal/peer", &headers, endless).await;
        assert_eq!((got.status, got.code()), (505, "other-wire"), "{}", got.text);
        assert!(got.text.contains(said), "{}", got.text);
        assert_eq!(got.body["details"]["speaks"], built, "{}", got.text);
    }
    let got = cell.send(Some(&caller), "POST /internal/peer", &[], Body::from("?")).await;
    assert_eq!((got.status, got.code()), (400, "bad-body"), "the message is read: {}", got.text);
}
