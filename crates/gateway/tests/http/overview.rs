//! The overview of the whole cell, its updates, and the console that draws it.

use crate::support::{Cell, machine, within};
use axum::body::Body;
use cellwright_cell::machine::ResourcePressureReport;
use cellwright_cell::name::Name;
use cellwright_cell::resource::Dimension;
use cellwright_cell::time::Span;
use cellwright_master::handle::Caller;
use cellwright_messages::{AgentReport, Epoch};
use http_body_util::BodyExt;
use serde_json::{Value, json};

const NONE: Value = Value::Null;

/// The next overview of a watch.
async fn next(answer: &mut axum::http::Response<hyper::body::Incoming>) -> Value {
    loop {
        let frame = within(answer.frame()).await.unwrap().unwrap();
        let text = String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap();
        if let Some((_, data)) = text.split_once("event: overview\ndata: ") {
            return serde_json::from_str(data.trim()).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_sends_the_whole_picture_and_then_what_differs() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    let now = cell.must("GET /v1/overview", NONE).await.body;
    assert_eq!(now["machines"]["name"], json!(["m1"]));
    assert_eq!(now["machines"]["state"], json!([1]), "no agent has spoken for it yet");
    assert_eq!(now["machines"]["cpu_used"], json!([null]));
    assert_eq!((&now["machines_total"], &now["machines_up"]), (&json!(1), &json!(0)));
    let mut watch =
        cell.open(Some(&Caller::Operator), "GET /v1/watch/overview", &[], Body::empty()).await;
    let first = next(&mut watch).await;
    assert_eq!((&first["whole"], &first["machines"]["name"]), (&json!(true), &json!(["m1"])));
    cell.must("POST /v1/machines", machine("m2")).await;
    let second = next(&mut watch).await;
    assert_eq!((&second["whole"], &second["machines"]["name"]), (&json!(false), &json!(["m2"])));
    assert_eq!(second["machines_total"], 2);
    cell.must("POST /v1/machines/m1/drain", NONE).await;
    let third = next(&mut watch).await;
    assert_eq!(third["machines"]["name"], json!(["m1"]), "and not the other, which is as it was");
    assert_eq!(third["machines"]["state"], json!([3]));
    cell.must("DELETE /v1/machines/m2", NONE).await;
    let fourth = next(&mut watch).await;
    assert_eq!(fourth["gone"], second["machines"]["id"]);
}

/// A poll of the agent of `m1` without usage, because nothing runs there.
async fn poll_measured(cell: &Cell, number: u64) {
    poll_agent(cell, number, vec![]).await;
}

async fn poll_agent(cell: &Cell, number: u64, resource_pressure: Vec<ResourcePressureReport>) {
    let report = AgentReport {
        machine: Name::new("m1").unwrap(),
        incarnation: 1,
        number,
        taken: Epoch::default(),
        hang: true,
        orders_digest: 7,
        spec: Some(serde_json::from_value(machine("m1")).unwrap()),
        tasks: vec![],
        packages: None,
        usage: vec![],
        resource_pressure,
        wall: cellwright_identity::clock::wall(),
        book: Default::default(),
        numbers: Vec::new(),
    };
    let agent = cell.client(Some(&Caller::Agent(Name::new("m1").unwrap())));
    within(agent.poll(&cell.address, &report, Span(0))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_agents_measure_is_in_the_picture_and_at_the_machine() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    let before = cell.must("GET /v1/machines/m1", NONE).await;
    assert_eq!(before.body["item"]["used"], NONE);
    poll_measured(&cell, 1).await;
    let after = cell.must("GET /v1/machines/m1", NONE).await;
    assert_eq!(after.body["item"]["used"]["cpu"], 0, "known, and nothing");
    let overview = cell.must("GET /v1/overview", NONE).await.body;
    assert_eq!(overview["machines"]["cpu_used"], json!([0]));
    assert_eq!(overview["machines_measured"], 1);
    let tasks = cell.must("GET /v1/machines/m1/tasks", NONE).await;
    assert_eq!(tasks.body["items"], json!([]));
    let missing = cell.ask("GET /v1/machines/nowhere/tasks", NONE).await;
    assert_eq!((missing.status, missing.code()), (404, "no-such-machine"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_machine_is_short_of_is_in_the_picture_and_at_the_machine() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    let (dimension, lasted) = (Dimension::DiskRate, Span::seconds(60));
    let mut applied = cell.handle().watch_applied();
    let mut number = 0;
    let machine = loop {
        number += 1;
        poll_agent(&cell, number, vec![ResourcePressureReport { dimension, lasted, requested: 1 }])
            .await;
        let machine = cell.must("GET /v1/machines/m1", NONE).await.body["item"].clone();
        if machine["resource_pressure"] != json!([]) {
            break machine;
        }
        within(applied.changed()).await.unwrap();
    };
    let short = &machine["resource_pressure"][0];
    assert_eq!((&short["dimension"], &short["over"]), (&json!("disk_rate"), &json!(false)));
    assert_eq!(machine["available"]["cpu"], 0, "nothing for others");
    assert_ne!(machine["available_prod"]["cpu"], 0);
    let overview = cell.must("GET /v1/overview", NONE).await.body;
    assert_eq!(overview["machines"]["state"], json!([8]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_is_given_to_anybody_and_the_api_is_not() {
    let cell = Cell::start().await;
    let home = cell.send(None, "GET /", &[], Body::empty()).await;
    assert_eq!((home.status, home.header("location")), (307, "/console/"));
    let page = cell.send(None, "GET /console/jobs/ann/web", &[], Body::empty()).await;
    assert_eq!(page.status, 200);
    assert!(page.text.contains("<script type=\"module\" src=\"/console/main.js\">"));
    assert!(page.header("content-security-policy").contains("default-src 'none'"));
    let tag = page.header("etag").to_owned();
    let seen = [("if-none-match", tag.as_str())];
    let again = cell.send(None, "GET /console/", &seen, Body::empty()).await;
    assert_eq!((again.status, again.text.as_str()), (304, ""));
}
