//! Errors: which requests are rejected, with which code and which names.

use crate::support::{BLOB_LIMIT, Cell, digest_of, job, machine, user};
use axum::body::Body;
use cellwright_cell::name::Name;
use cellwright_gateway::http::ApiConfig;
use cellwright_master::handle::Caller;
use serde_json::{Value, json};

const NONE: Value = Value::Null;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_requests_are_refused_by_name() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    let with = |field: &str, value: Value| {
        let mut spec = job("jbad", 1);
        spec[field] = value;
        json!({ "owner": "ubar", "spec": spec })
    };
    let after =
        |user: &str, job: &str| with("after", json!({ "job": { "user": user, "job": job } }));
    let mut larger = machine("m1");
    larger["capacity"]["cpu"] = json!(2000);
    let cron = json!({ "name": "tick", "schedule": "0 0 1 1 *", "job": job("tick", 1) });
    cell.must("PUT /v1/crons/ubar/tick", cron).await;
    let cases = [
        ("GET /v1/jobs?colour=red", NONE, 400, "bad-parameter", "colour"),
        ("GET /v1/jobs?limit=0", NONE, 400, "bad-parameter", "1 to 1000"),
        ("GET /v1/jobs?selector=%3Db", NONE, 400, "bad-parameter", "selector"),
        ("GET /v1/jobs?after=x9", NONE, 400, "bad-parameter", "after"),
        ("GET /v1/jobs/UBAR/jfoo", NONE, 400, "bad-parameter", "user"),
        ("GET /v1/jobs/ubar/jfoo/tasks/x", NONE, 400, "bad-parameter", "index"),
        ("GET /v1/jobs/ubar/jfoo/tasks/7", NONE, 404, "no-such-task", "ubar/jfoo/7"),
        ("GET /v1/jobs/ubar/nope", NONE, 404, "no-such-job", "ubar/nope"),
        ("GET /v1/jobs/ubar/jfo", NONE, 404, "no-such-job", "did you mean ubar/jfoo?"),
        ("GET /v1/jobs/ubar/tick", NONE, 404, "no-such-job", "ubar/tick is a periodic job"),
        ("DELETE /v1/jobs/ubar/tick", NONE, 404, "no-such-job", "ubar/tick is a periodic job"),
        ("POST /v1/jobs", after("ubar", "jfooo"), 404, "no-such-job", "did you mean ubar/jfoo?"),
        ("POST /v1/jobs", after("jfoo", "0"), 404, "no-such-job", "did you mean ubar/jfoo?"),
        ("POST /v1/jobs", with("after", json!("jfoo/0")), 400, "bad-body", r#"{"job": {"user":"#),
        ("GET /v1/machines/m9", NONE, 404, "no-such-machine", "m9"),
        ("GET /v1/users/nobody", NONE, 404, "no-such-user", "nobody"),
        ("GET /v1/crons/ubar/nope", NONE, 404, "no-such-cron", "ubar/nope"),
        ("GET /v1/resources/app/nope", NONE, 404, "no-such-resource", "app/nope"),
        ("PUT /v1/users/ubar/quota/gold", json!({}), 400, "bad-parameter", "band"),
        ("GET /v1/nothing", NONE, 404, "no-such-route", "/v1/nothing"),
        ("DELETE /v1/jobs", NONE, 405, "method-not-allowed", "GET, POST"),
        ("POST /v1/jobs", json!({ "colour": 2, "spec": 1 }), 400, "bad-body", "colour"),
        ("POST /v1/jobs", with("colour", json!(1)), 400, "bad-body", "colour"),
        ("POST /v1/jobs", with("count", json!(0)), 400, "bad-field", "count"),
        ("POST /v1/jobs", with("count", json!(200_001)), 400, "bad-field", "200000"),
        ("POST /v1/jobs", with("count", json!(-1)), 400, "bad-field", "spec.count: value -1"),
        ("POST /v1/jobs", with("count", json!(1.5)), 400, "bad-field", "number from 1 to 200000"),
        ("POST /v1/jobs", with("kind", json!("odd")), 400, "bad-body", "odd"),
        ("POST /v1/jobs", with("name", json!("Bad_Name")), 400, "bad-body", "Bad_Name"),
        ("POST /v1/jobs", json!({ "spec": job("j", 1) }), 400, "bad-field", "owner"),
        ("POST /v1/jobs", with("count", json!(101)), 409, "quota-exceeded", "cpu"),
        ("PUT /v1/jobs/ubar/jfoo", job("other", 1), 400, "bad-field", "name"),
        ("POST /v1/machines", larger, 409, "exists", "m1"),
        ("POST /v1/batch", json!({ "items": [] }), 400, "bad-field", "items"),
        ("GET /v1/events?after=x", NONE, 400, "bad-parameter", "after"),
        ("POST /v1/users/ubar/tokens", json!({ "valid_for": 0 }), 400, "bad-field", "1 ms or more"),
        (
            "POST /v1/tokens/join",
            json!({ "joiner": "agent", "name": "m1", "valid_for": 1 }),
            409,
            "wrong-state",
            "--dev",
        ),
    ];
    for (target, body, status, code, names) in cases {
        let got = cell.ask(target, body).await;
        assert_eq!((got.status, got.code()), (status, code), "{target}: {}", got.text);
        let message = got.body["message"].as_str().unwrap();
        assert!(message.contains(names), "{target}: {message}");
        assert!(!got.body["hint"].as_str().unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn details_hold_the_facts() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    let mut spec = job("jbad", 1);
    spec["count"] = json!(0);
    let got = cell.ask("POST /v1/jobs", json!({ "owner": "ubar", "spec": spec })).await;
    let details = &got.body["details"];
    assert_eq!(details["field"], "count");
    assert_eq!(details["value"], "0");
    assert_eq!(details["allowed"], "1 to 200000");
    let got = cell.ask("POST /v1/users", json!({ "nane": "x" })).await;
    assert_eq!(got.body["details"]["field"], "nane", "{}", got.text);
    let got = cell.ask("DELETE /v1/jobs/ubar/jfoo?expect=9", NONE).await;
    assert_eq!((got.status, got.code()), (412, "stale-version"), "{}", got.text);
    assert_eq!(got.body["details"]["expected"], 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_and_headers_have_limits() {
    let cell = Cell::start_with(ApiConfig { body_limit: 500, ..ApiConfig::default() }).await;
    let long = json!({ "name": "x".repeat(600) });
    let got = cell.ask("POST /v1/users", long).await;
    assert_eq!((got.status, got.code()), (413, "too-large"));
    assert_eq!(got.body["details"]["limit"], 500);
    // Also when it is far larger than a connection's buffer.
    let got = cell.ask("POST /v1/users", json!({ "name": "x".repeat(4 << 20) })).await;
    assert_eq!((got.status, got.code()), (413, "too-large"));
    let text = [("content-type", "text/plain")];
    let got = cell.ask_as(&Caller::Operator, "POST /v1/users", &text, json!({ "name": "x" })).await;
    assert_eq!((got.status, got.code()), (415, "unsupported-media-type"));
    for key in ["", "two words", &"k".repeat(129)] {
        let headers = [("idempotency-key", key)];
        let body = json!({ "name": "x" });
        let got = cell.ask_as(&Caller::Operator, "POST /v1/users", &headers, body).await;
        assert_eq!((got.status, got.code()), (400, "bad-parameter"), "{key:?}");
    }
    let body = json!({ "name": "x" });
    let key = "k".repeat(128);
    let headers = [("idempotency-key", key.as_str())];
    let got = cell.ask_as(&Caller::Operator, "POST /v1/users", &headers, body).await;
    assert_eq!(got.status, 201, "{}", got.text);
    let large = vec![7u8; BLOB_LIMIT as usize + 1];
    let put = format!("PUT /v1/blobs/{}", digest_of(&large));
    let got = cell.send(Some(&Caller::Operator), &put, &[], Body::from(large)).await;
    assert_eq!((got.status, got.code()), (413, "too-large"), "{}", got.text);
    let put = format!("PUT /v1/blobs/{}", digest_of(b"right"));
    let got = cell.send(Some(&Caller::Operator), &put, &[], Body::from("wrong")).await;
    assert_eq!((got.status, got.code()), (400, "bad-field"), "{}", got.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_wrong_field_of_a_job_is_named_at_once() {
    let cell = Cell::start().await;
    cell.furnish(10).await;
    let mut spec = job("jbar", 0);
    spec["priority"] = json!(200);
    spec["task"]["static_ports"] = json!([80, 80]);
    spec["task"]["isolation"] = json!({ "network": "own" });
    let paths = |error: &Value| -> Vec<String> {
        let errors = error["details"]["errors"].as_array().unwrap();
        errors.iter().map(|one| one["path"].as_str().unwrap().to_owned()).collect()
    };
    let submit = json!({ "owner": "ubar", "spec": spec });
    let error = cell.ask("POST /v1/jobs", submit.clone()).await.body;
    assert_eq!(error["details"]["field"], "count", "{error}");
    // Without the error that the network has no ports of its own: which network it has is not
    // known.
    assert_eq!(paths(&error), ["count", "task.static_ports[1]"], "{error}");
    let items = json!({ "items": [{ "submit_job": submit }] });
    let answer = cell.must("POST /v1/batch", items).await.body;
    assert_eq!(paths(&answer["verdicts"][0]["rejected"]).len(), 2, "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_has_no_more_tasks_than_the_cell_lets_in() {
    let cell = Cell::start_with(ApiConfig { tasks_per_job: 10, ..ApiConfig::default() }).await;
    cell.furnish(10).await;
    let submit = json!({ "owner": "ubar", "spec": job("jbar", 11) });
    let cron = json!({ "name": "tick", "schedule": "*/5 * * * *", "job": job("tick", 11) });
    let cases = [
        ("POST /v1/jobs", submit.clone(), "count"),
        ("PUT /v1/jobs/ubar/jfoo", job("jfoo", 11), "count"),
        ("POST /v1/jobs/ubar/jfoo/resize", json!({ "count": 11 }), "count"),
        ("PUT /v1/crons/ubar/tick", cron, "job.count"),
    ];
    let says = |error: &Value, field: &str| {
        assert_eq!(error["code"], "bad-field", "{error}");
        assert_eq!(error["details"]["field"], field);
        assert_eq!(error["details"]["value"], "11");
        assert_eq!(error["details"]["limit"], 10);
        assert!(error["message"].as_str().unwrap().contains("tasks_per_job"), "{error}");
    };
    for (target, body, field) in cases {
        let got = cell.ask(target, body).await;
        assert_eq!(got.status, 400, "{target}: {}", got.text);
        says(&got.body, field);
    }
    let items = json!({ "items": [{ "submit_job": submit }] });
    let got = cell.must("POST /v1/batch", items).await;
    says(&got.body["verdicts"][0]["rejected"], "count");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_without_a_program_is_refused_however_it_comes() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    let spec = |name: &str, command: Value| {
        let mut spec = job(name, 1);
        spec["task"]["command"] = command;
        spec
    };
    let submit = json!({ "owner": "ubar", "spec": spec("jbar", json!([])) });
    let tick = spec("tick", json!([""]));
    let cron = json!({ "name": "tick", "schedule": "*/5 * * * *", "job": tick });
    let says = |error: &Value, field: &str, value: &str| {
        let want = format!(
            "field {field}: value {value} is not valid; \
             allowed: a program and its arguments, such as [\"sleep\", \"60\"]"
        );
        assert_eq!((&error["code"], &error["message"]), (&json!("bad-field"), &json!(want)));
        assert_eq!(error["details"]["field"], field);
    };
    let mut own = spec("jfoo", json!(["true"]));
    own["overrides"] = json!({ "0": { "command": [] } });
    let cases = [
        ("POST /v1/jobs", submit.clone(), "task.command", "[]"),
        ("POST /v1/plan", json!({ "jobs": [submit.clone()] }), "task.command", "[]"),
        ("PUT /v1/jobs/ubar/jfoo", spec("jfoo", json!([])), "task.command", "[]"),
        ("PUT /v1/jobs/ubar/jfoo", own, "overrides.0.command", "[]"),
        ("PUT /v1/crons/ubar/tick", cron, "job.task.command", "[\"\"]"),
    ];
    for (target, body, field, value) in cases {
        let got = cell.ask(target, body).await;
        assert_eq!(got.status, 400, "{target}: {}", got.text);
        says(&got.body, field, value);
    }
    let items = json!({ "items": [{ "submit_job": submit }] });
    let got = cell.must("POST /v1/batch", items).await;
    says(&got.body["verdicts"][0]["rejected"], "task.command", "[]");
    // An alloc set runs nothing, and where every task has a program of its own the job needs none.
    let mut set = spec("set", json!([]));
    set["kind"] = json!("alloc_set");
    cell.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": set })).await;
    let mut own = spec("own", json!([]));
    own["overrides"] = json!({ "0": { "command": ["true"] } });
    cell.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": own })).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_package_whose_digest_nothing_can_have_is_refused() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    let spec = |name: &str, digest: &str| {
        let mut spec = job(name, 1);
        spec["task"]["packages"] = json!([{ "name": "server", "digest": digest, "bytes": 9 }]);
        spec
    };
    let cron = json!({ "name": "tick", "schedule": "0 3 * * *", "job": spec("tick", "c2a5") });
    let upper = "AB".repeat(32);
    let cases = [
        ("POST /v1/jobs", json!({ "owner": "ubar", "spec": spec("jbar", "c2a5") }), ""),
        ("POST /v1/jobs", json!({ "owner": "ubar", "spec": spec("jbar", &upper) }), ""),
        ("PUT /v1/crons/ubar/tick", cron, "job."),
    ];
    for (target, body, before) in cases {
        let got = cell.ask(target, body).await;
        assert_eq!(got.status, 400, "{target}: {}", got.text);
        assert_eq!(got.body["details"]["field"], format!("{before}task.packages[0].digest"));
        let message = got.body["message"].as_str().unwrap();
        assert!(message.contains("64 digits 0-9 and a-f"), "{message}");
    }
    let whole = json!({ "owner": "ubar", "spec": spec("jbar", &"ab".repeat(32)) });
    cell.must("POST /v1/jobs", whole).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_says_that_a_job_was_rejected_for_quota() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    let large = json!({ "owner": "ubar", "spec": job("jbar", 101) });
    let got = cell.ask("POST /v1/jobs", large).await;
    assert_eq!(got.code(), "quota-exceeded");
    // One task is charged already; the grant in the hint would be enough.
    let hint = got.body["hint"].as_str().unwrap();
    let more = "for more: cell quota set ubar batch --cpu 1.02 --ram 1020B";
    assert!(hint.ends_with(more), "{hint}");
    let grant = json!({ "amount": { "cpu": 1020, "ram": 1020 } });
    cell.must("PUT /v1/users/ubar/quota/batch", grant).await;
    let again = json!({ "owner": "ubar", "spec": job("jbaz", 101) });
    cell.must("POST /v1/jobs", again).await;
    let other = json!({ "owner": "ubar", "spec": job("jfoo", 2) });
    assert_eq!(cell.ask("POST /v1/jobs", other).await.code(), "exists");
    let events = cell.must("GET /v1/events?limit=1000", NONE).await.body;
    let reason = |object: &str| {
        let items = events["items"].as_array().unwrap();
        let rejected = |item: &&Value| {
            item["object"] == object && item["text"].as_str().unwrap().contains(" rejected: ")
        };
        items.iter().find(rejected).map(|item| item["reason_code"].clone())
    };
    assert_eq!(reason("ubar/jbar"), Some(json!("quota")), "{events}");
    assert_eq!(reason("ubar/jfoo"), Some(json!("requested")), "{events}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_decides() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    cell.must("POST /v1/users", json!({ "name": "ufoo" })).await;
    let got = cell.send(None, "GET /v1/jobs", &[], Body::empty()).await;
    assert_eq!((got.status, got.code()), (401, "unauthenticated"));
    assert_eq!(cell.send(None, "GET /healthz", &[], Body::empty()).await.status, 200);
    let (ubar, ufoo) = (user("ubar"), user("ufoo"));
    let agent = Caller::Agent(Name::new("m1").unwrap());
    let local = json!({ "capacity": { "add": 1 }, "nodes": "local" });
    let far = json!({ "capacity": { "add": 1 }, "nodes": { "node": "m2" } });
    let token = json!({ "valid_for": 1000 });
    let cases = [
        (&ufoo, "GET /v1/jobs/ubar/jfoo", NONE, 200, ""),
        (&ufoo, "DELETE /v1/jobs/ubar/jfoo", NONE, 403, "not-owner"),
        (&ufoo, "POST /v1/machines", machine("m3"), 403, "not-allowed"),
        (&ufoo, "GET /v1/audit", NONE, 403, "not-allowed"),
        (&ufoo, "GET /v1/tokens", NONE, 403, "not-allowed"),
        (&ufoo, "GET /v1/users/ubar/tokens", NONE, 403, "not-allowed"),
        (&ubar, "GET /v1/users/ubar/tokens", NONE, 200, ""),
        (&ubar, "POST /v1/users/ubar/tokens", token.clone(), 201, ""),
        (&ufoo, "POST /v1/users/ubar/tokens", token, 403, "not-allowed"),
        (&ufoo, "DELETE /v1/masters/1", NONE, 403, "not-allowed"),
        (&agent, "DELETE /v1/jobs/ubar/jfoo", NONE, 403, "not-allowed"),
        (&agent, "PUT /v1/resources/system/x", far, 403, "wrong-actor"),
        (&agent, "PUT /v1/resources/app/x", local.clone(), 403, "wrong-actor"),
        (&agent, "PUT /v1/resources/system/x", local.clone(), 200, ""),
        (&ubar, "PUT /v1/resources/own/x", local, 400, "bad-field"),
        (&user("ghost"), "GET /v1/audit", NONE, 404, "no-such-user"),
    ];
    for (caller, target, body, status, code) in cases {
        let got = cell.ask_as(caller, target, &[], body).await;
        assert_eq!((got.status, got.code()), (status, code), "{caller:?} {target}: {}", got.text);
    }
}
