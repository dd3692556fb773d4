//! The answers of routes, by kind of object. `every_route` makes sure that none is forgotten.

use crate::support::{Cell, CellOptions, digest_of, job, machine, user};
use axum::body::Body;
use cellwright_gateway::http::ApiConfig;
use cellwright_master::handle::Caller;
use cellwright_store::Role;
use cellwright_supervise::Supervisor;
use serde_json::{Value, json};
use std::sync::Arc;

const NONE: Value = Value::Null;

async fn jobs(cell: &Cell) {
    let listed = cell.must("GET /v1/jobs", NONE).await;
    assert_eq!(listed.body["items"][0]["name"], "jfoo");
    let got = cell.must("GET /v1/jobs/ubar/jfoo", NONE).await;
    assert_eq!(got.body["item"]["tasks"]["pending"], 3);
    assert_eq!(got.body["item"]["spec"]["task"]["notice"], 10_000);
    let tasks = cell.must("GET /v1/jobs/ubar/jfoo/tasks?state=pending", NONE).await;
    assert_eq!(tasks.body["items"].as_array().unwrap().len(), 3);
    let task = cell.must("GET /v1/jobs/ubar/jfoo/tasks/2", NONE).await;
    assert_eq!(task.body["item"]["name"], "ubar/jfoo/2");
    let why = cell.must("GET /v1/jobs/ubar/jfoo/tasks/2/explain", NONE).await;
    // Its only machine has never been heard from.
    let down = json!([{ "code": "machine-down", "machines": 1, "detail": null,
        "text": "1 is down", "about": "is down" }]);
    assert_eq!(why.body["item"]["reasons"], down);
    assert_eq!(why.body["item"]["position"], 3);
    let sized = cell.must("POST /v1/jobs/ubar/jfoo/resize", json!({ "count": 2 })).await;
    assert_eq!(sized.body["became"], "resized");
    let mut spec = job("jfoo", 2);
    spec["task"]["command"] = json!(["/bin/false"]);
    let updated = cell.must("PUT /v1/jobs/ubar/jfoo", spec.clone()).await;
    assert!(updated.body["version"].as_u64().is_some(), "{}", updated.text);
    cell.must("POST /v1/jobs/ubar/jfoo/undo", NONE).await;
    cell.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": job("jbar", 1) })).await;
    let mut other = job("jbar", 1);
    other["task"]["command"] = json!(["/bin/false"]);
    cell.must("PUT /v1/jobs/ubar/jbar", other).await;
    cell.must("POST /v1/jobs/ubar/jbar/close", NONE).await;
    cell.must("DELETE /v1/jobs/ubar/jfoo", NONE).await;
    let dead = cell.must("GET /v1/jobs?state=dead", NONE).await;
    assert_eq!(dead.body["items"][0]["name"], "jfoo");
}

async fn machines(cell: &Cell) {
    let listed = cell.must("GET /v1/machines?selector=zone%3Da", NONE).await;
    assert_eq!(listed.body["items"].as_array().unwrap().len(), 1);
    cell.must("POST /v1/machines", machine("m2")).await;
    let mut bigger = machine("m2");
    bigger["capacity"]["cpu"] = json!(2000);
    cell.must("PUT /v1/machines/m2", bigger).await;
    cell.must("POST /v1/machines/m2/drain", NONE).await;
    let got = cell.must("GET /v1/machines/m2", NONE).await;
    assert_eq!(got.body["item"]["draining"], true);
    assert_eq!(got.body["item"]["spec"]["capacity"]["cpu"], 2000);
    cell.must("POST /v1/machines/m2/undrain", NONE).await;
    let status = cell.must("GET /v1/cluster_status", NONE).await;
    assert_eq!(status.body["failed"], json!(["m1", "m2"]));
    assert_eq!(status.body["capacity"]["cpu"], 3000);
    cell.must("DELETE /v1/machines/m2", NONE).await;
}

async fn users(cell: &Cell) {
    cell.must("POST /v1/users", json!({ "name": "ufoo" })).await;
    let all = json!({ "capabilities": ["manage_users", "administrate_jobs"] });
    cell.must("PUT /v1/users/ufoo/capabilities", all).await;
    let got = cell.must("GET /v1/users/ufoo", NONE).await;
    assert_eq!(got.body["item"]["capabilities"], json!(["administrate_jobs", "manage_users"]));
    let quota = json!({ "amount": { "cpu": 5, "ram": 5 } });
    cell.must("PUT /v1/users/ufoo/quota/batch", quota).await;
    cell.must("DELETE /v1/users/ufoo/quota/batch", NONE).await;
    let made = cell.must("POST /v1/users/ufoo/tokens", json!({ "valid_for": 60_000 })).await;
    let id = made.body["id"].as_str().unwrap().to_owned();
    assert!(made.body["token"].as_str().unwrap().starts_with(&format!("{id}.")));
    let listed = cell.must("GET /v1/users/ufoo/tokens", NONE).await;
    assert_eq!(listed.body["items"][0]["id"], id.as_str());
    assert!(!listed.text.contains("secret"), "{}", listed.text);
    cell.must(&format!("DELETE /v1/tokens/{id}"), NONE).await;
    let join = json!({ "joiner": "agent", "name": "m9", "valid_for": 60_000 });
    let joins = cell.must("POST /v1/tokens/join", join).await;
    assert!(joins.body["token"].as_str().unwrap().starts_with("CELL-JOIN.agent.m9."));
    let tokens = cell.must("GET /v1/tokens", NONE).await;
    let kinds = tokens.body["items"].as_array().unwrap().iter().map(|token| &token["kind"]);
    let kinds: Vec<&Value> = kinds.collect();
    // The certificates of the removed machine are revoked by the other request.
    let kept_out = json!({ "revocation": { "part": "agent", "name": "m2" } });
    let invited = json!({ "join_agent": { "machine": "m9" } });
    assert_eq!(kinds, [&kept_out, &invited], "{}", tokens.text);
    cell.must("DELETE /v1/users/ufoo", NONE).await;
    let left = cell.must("GET /v1/users", NONE).await;
    assert_eq!(left.body["items"].as_array().unwrap().len(), 1);
}

async fn crons_and_resources(cell: &Cell) {
    let cron = json!({ "name": "tick", "schedule": "*/5 * * * *", "job": job("tick", 1) });
    cell.must("PUT /v1/crons/ubar/tick", cron).await;
    let got = cell.must("GET /v1/crons/ubar/tick", NONE).await;
    assert!(got.body["item"]["next_slot"].as_u64().unwrap() % 300_000 == 0);
    let listed = cell.must("GET /v1/crons?user=ubar", NONE).await;
    assert_eq!(listed.body["items"].as_array().unwrap().len(), 1);
    cell.must("DELETE /v1/crons/ubar/tick", NONE).await;

    let set = json!({ "capacity": { "add": 3 }, "nodes": { "node": "m1" } });
    cell.must("PUT /v1/resources/app/slot", set).await;
    let got = cell.must("GET /v1/resources/app/slot", NONE).await;
    let places = json!([{ "machine": "m1", "capacity": 3, "used": 0 }]);
    assert_eq!(got.body["item"]["machines"], places);
    let listed = cell.must("GET /v1/resources", NONE).await;
    assert_eq!(listed.body["items"].as_array().unwrap().len(), 1);
    cell.must("DELETE /v1/resources/app/slot", NONE).await;
}

async fn records(cell: &Cell) {
    let items = json!([
        { "add_user": { "name": "one" } },
        { "add_user": { "name": "one" } },
        { "stop_job": { "job": { "user": "ubar", "job": "nope" } } },
    ]);
    let batch = cell.must("POST /v1/batch", json!({ "items": items })).await;
    let verdicts = &batch.body["verdicts"];
    assert_eq!(verdicts[0]["done"]["changed"], true, "{}", batch.text);
    assert_eq!(verdicts[2]["rejected"]["code"], "no-such-job");
    let events = cell.must("GET /v1/events?limit=1000", NONE).await;
    let texts: Vec<&str> = events.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|e| e["text"].as_str())
        .collect();
    assert!(texts.iter().any(|text| text.starts_with("ubar/jfoo submitted")), "{texts:#?}");
    let caller = user("ubar");
    cell.ask_as(&caller, "DELETE /v1/machines/m1", &[], NONE).await;
    let audit = cell.must("GET /v1/audit?limit=1000", NONE).await;
    let last = audit.body["items"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["caller"], &last["verdict"]), (&json!("user:ubar"), &json!("not-allowed")));
    assert_eq!(last["command"], "remove_machine");
    cell.must("POST /v1/checkpoints", NONE).await;
    let saved = cell.must("GET /v1/checkpoints", NONE).await;
    assert_eq!(saved.body["items"].as_array().unwrap().len(), 1);
    assert_ne!(saved.body["items"][0]["path"], "");
    let seen = cell.ask_as(&caller, "GET /v1/checkpoints", &[], NONE).await;
    assert_eq!(seen.body["items"][0]["path"], "", "{}", seen.text);
    let masters = cell.must("GET /v1/masters", NONE).await;
    assert_eq!(masters.body["role"], "leader");
    assert_eq!(masters.body["members"][0]["address"], cell.address);
}

async fn blobs(cell: &Cell) {
    let content = b"some bytes";
    let path = format!("/v1/blobs/{}", digest_of(content));
    let put = format!("PUT {path}");
    let stored = cell.send(Some(&Caller::Operator), &put, &[], Body::from(&content[..])).await;
    assert_eq!(stored.status, 200, "{}", stored.text);
    let listed = cell.must("GET /v1/blobs", NONE).await;
    assert_eq!(listed.body["items"][0]["bytes"], 10);
    assert_eq!(cell.must(&format!("GET {path}"), NONE).await.text, "some bytes");
    cell.must(&format!("DELETE {path}"), NONE).await;
}

async fn service(cell: &Cell) {
    let document = cell.must("GET /v1/openapi.json", NONE).await;
    assert_eq!(document.body["openapi"], "3.1.0");
    let metrics = cell.must("GET /metrics", NONE).await;
    assert!(metrics.text.contains("cell_raft_role{role=\"leader\"} 1"), "{}", metrics.text);
    let drains = "cell_controller_commands_total{controller=\"drain\"} ";
    assert!(metrics.text.contains(drains), "{}", metrics.text);
    let submitted = "cell_api_requests_total{operation=\"submitJob\",status=\"201\"} 2";
    assert!(metrics.text.contains(submitted), "{}", metrics.text);
    assert_eq!(cell.must("GET /healthz", NONE).await.text, "ok\n");
    assert_eq!(cell.must("GET /readyz", NONE).await.text, "ready\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nouns_are_made_changed_read_and_removed() {
    let authority = Some("ab".repeat(32));
    let cell = Cell::start_with(ApiConfig { authority, ..ApiConfig::default() }).await;
    cell.furnish(3).await;
    jobs(&cell).await;
    machines(&cell).await;
    users(&cell).await;
    crons_and_resources(&cell).await;
    records(&cell).await;
    blobs(&cell).await;
    service(&cell).await;
    let bad = json!({ "id": 1, "name": "m1", "address": "127.0.0.1:9" });
    assert_eq!(cell.ask("POST /v1/masters", bad).await.code(), "exists");
    assert_eq!(cell.ask("DELETE /v1/masters/7", NONE).await.code(), "no-such-replica");
    assert_eq!(cell.ask("DELETE /v1/masters/1", NONE).await.code(), "wrong-state");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_tells_that_something_essential_is_over() {
    // In production the process ends here; callers before that get an error.
    let supervisor = Supervisor::with_hook(Arc::new(|_| {}));
    let cell = Cell::start_with_options(CellOptions {
        supervisor: supervisor.clone(),
        ..CellOptions::default()
    })
    .await;
    assert_eq!(cell.must("GET /healthz", NONE).await.text, "ok\n");
    supervisor.report_failure("the core loop ended");
    let got = cell.send(None, "GET /healthz", &[], Body::empty()).await;
    assert_eq!((got.status, got.code()), (503, "not-ready"), "{}", got.text);
    assert!(got.text.contains("the core loop ended"), "{}", got.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_tells_that_consensus_is_over() {
    let supervisor = Supervisor::with_hook(Arc::new(|_| {}));
    let cell = Cell::start_with_options(CellOptions { supervisor, ..CellOptions::default() }).await;
    cell.handle().replica().shutdown().await;
    let mut status = cell.handle().watch();
    status.wait_for(|status| status.role == Role::Stopped).await.unwrap();
    let got = cell.send(None, "GET /healthz", &[], Body::empty()).await;
    assert_eq!(got.status, 503, "{}", got.text);
}
