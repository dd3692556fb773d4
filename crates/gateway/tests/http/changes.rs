//! Changes over HTTP: versions, idempotency keys, resources on chosen nodes.

use crate::support::{Cell, job, machine, user};
use cellwright_cell::command::Command;
use cellwright_master::handle::Caller;
use serde_json::{Value, json};

const NONE: Value = Value::Null;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_makes_a_change_happen_once() {
    let cell = Cell::start().await;
    let caller = Caller::Operator;
    for key in ["00ff-1", "any text that is short".replace(' ', "-").as_str()] {
        let name = format!("u{}", key.len());
        let headers = [("idempotency-key", key)];
        let body = json!({ "name": name });
        let first = cell.ask_as(&caller, "POST /v1/users", &headers, body.clone()).await;
        assert_eq!((first.status, &first.body["changed"]), (201, &json!(true)), "{}", first.text);
        let again = cell.ask_as(&caller, "POST /v1/users", &headers, body).await;
        assert_eq!(again.body["changed"], true, "the answer is the first one: {}", again.text);
        let other = json!({ "name": "other" });
        let reused = cell.ask_as(&caller, "POST /v1/users", &headers, other).await;
        assert_eq!((reused.status, reused.code()), (422, "key-reused"));
    }
    let again = cell.ask("POST /v1/users", json!({ "name": "u6" })).await;
    assert!(again.code() == "exists" || again.body["changed"] == false, "{}", again.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_with_a_key_happens_once() {
    let cell = Cell::start().await;
    let items: Vec<Value> =
        (0..600).map(|n| json!({ "add_user": { "name": format!("u{n}") } })).collect();
    let body = json!({ "items": items });
    let headers = [("idempotency-key", "batch-one")];
    let first = cell.ask_as(&Caller::Operator, "POST /v1/batch", &headers, body.clone()).await;
    let again = cell.ask_as(&Caller::Operator, "POST /v1/batch", &headers, body).await;
    for got in [&first, &again] {
        let verdicts = got.body["verdicts"].as_array().unwrap();
        assert_eq!(verdicts.len(), 600);
        assert!(verdicts.iter().all(|v| v["done"]["changed"] == true), "{}", got.text);
    }
    assert_eq!(cell.handle().read().state.users().len(), 600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_guard_changes() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    let caller = user("ubar");
    let version = cell.must("GET /v1/jobs/ubar/jfoo", NONE).await.body["item"]["version"].clone();
    let wrong = version.as_u64().unwrap() + 5;
    let body = json!({ "count": 2 });
    let resize = "POST /v1/jobs/ubar/jfoo/resize";
    let stale = format!("\"{wrong}\"");
    let got = cell.ask_as(&caller, resize, &[("if-match", &stale)], body.clone()).await;
    assert_eq!((got.status, got.code()), (412, "stale-version"), "{}", got.text);
    assert_eq!(got.body["details"]["found"], version);
    let both = format!("{resize}?expect={wrong}");
    let current = version.to_string();
    let got = cell.ask_as(&caller, &both, &[("if-match", &current)], body.clone()).await;
    assert_eq!((got.status, got.code()), (400, "bad-parameter"), "{}", got.text);
    let got = cell.ask_as(&caller, resize, &[("if-match", &current)], body).await;
    assert_eq!((got.status, &got.body["became"]), (200, &json!("resized")), "{}", got.text);
    let bad = cell.ask_as(&caller, resize, &[("if-match", "*")], json!({ "count": 2 })).await;
    assert_eq!(bad.code(), "bad-parameter");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resources_go_to_nodes_with_room() {
    let cell = Cell::start().await;
    for (name, cpu) in [("m1", 100), ("m2", 500), ("m3", 1000)] {
        let mut spec = machine(name);
        spec["capacity"]["cpu"] = json!(cpu);
        cell.must("POST /v1/machines", spec).await;
        let id = cell.handle().read().state.machine_named(&name.to_owned().try_into().unwrap());
        let up = Command::MachineUp { machine: id.unwrap(), incarnation: 1 };
        let agent = Caller::Agent(name.to_owned().try_into().unwrap());
        cell.handle().submit(&agent, None, up).await.unwrap().verdict.unwrap();
    }
    let set = |nodes: Value| json!({ "capacity": { "add": 1 }, "nodes": nodes });
    let places = |body: &Value| -> Vec<String> {
        let list = body["item"]["machines"].as_array().unwrap();
        list.iter().map(|m| m["machine"].as_str().unwrap().to_owned()).collect()
    };
    let roomy = json!({ "available": { "resources": { "cpu": 300, "ram": 1 } } });
    cell.must("PUT /v1/resources/app/all", set(roomy)).await;
    let got = cell.must("GET /v1/resources/app/all", NONE).await;
    assert_eq!(places(&got.body), ["m2", "m3"]);
    let one = json!({ "available": { "resources": { "cpu": 300, "ram": 1 }, "num_nodes": 1 } });
    let headers = [("idempotency-key", "once")];
    for _ in 0..2 {
        let path = "PUT /v1/resources/app/one";
        let got = cell.ask_as(&Caller::Operator, path, &headers, set(one.clone())).await;
        assert_eq!(got.status, 200, "{}", got.text);
    }
    let got = cell.must("GET /v1/resources/app/one", NONE).await;
    assert_eq!(places(&got.body), ["m2"]);
    assert_eq!(got.body["item"]["machines"][0]["capacity"], 1, "sent twice, counted once");
    let many = json!({ "available": { "resources": { "cpu": 300, "ram": 1 }, "num_nodes": 3 } });
    let got = cell.ask("PUT /v1/resources/app/many", set(many)).await;
    assert_eq!((got.status, got.code()), (409, "too-few-nodes"), "{}", got.text);
    assert_eq!(got.body["details"]["matching"], 2);
    // A resource that an application defined is matched like any other.
    let held = json!({ "name": { "namespace": "app", "name": "all" }, "amount": 1 });
    let with = json!({ "available": { "named": [held] } });
    cell.must("PUT /v1/resources/app/beside", set(with)).await;
    let got = cell.must("GET /v1/resources/app/beside", NONE).await;
    assert_eq!(places(&got.body), ["m2", "m3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_owns_what_names_no_owner() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    let body = json!({ "spec": job("mine", 1) });
    let got = cell.ask_as(&user("ubar"), "POST /v1/jobs", &[], body).await;
    assert_eq!(got.status, 201, "{}", got.text);
    cell.must("GET /v1/jobs/ubar/mine", NONE).await;
}
