//! Every route of the table, and what holds for all of them: who may not call it, that unknown
//! parameters are rejected by name, the form of an error, that an idempotency key makes a change
//! happen once, that versions are checked, that a reply carries its log index, and that the audit
//! log has it.

use crate::support::{Cell, CellOptions, TestResponse, digest_of, job, machine, route, user};
use axum::body::Body;
use bytes::Bytes;
use cellwright_api::exec::EXEC_PROTOCOL;
use cellwright_api::output::AGENT_ADDRESS_ATTRIBUTE;
use cellwright_api::routes::{Access, Content, Operation, Route, RouteKind, routes};
use cellwright_archive::compress;
use cellwright_archive::names::{DayObject, JobObject, LogObject};
use cellwright_cell::command::Command;
use cellwright_cell::credential::{KeyFingerprint, ReplicaJoinRequest, SecretHash, TokenKind};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::quota::Capability;
use cellwright_cell::time::{Span, Time};
use cellwright_gateway::http::ApiConfig;
use cellwright_master::handle::Caller;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const NONE: Value = Value::Null;
const PACKAGE: &[u8] = b"some bytes";

/// One request that succeeds when the steps before it were performed.
pub struct Step {
    pub target: String,
    body: Value,
}

fn step(target: &str, body: Value) -> Step {
    Step { target: target.to_owned(), body }
}

impl Step {
    pub fn route(&self) -> &'static Route {
        let (method, path) = self.target.split_once(' ').unwrap();
        route(method, path)
    }

    fn with(&self, query: &str) -> String {
        let mark = if self.target.contains('?') { '&' } else { '?' };
        format!("{}{mark}{query}", self.target)
    }

    pub fn content(&self) -> Body {
        match (self.route().request, &self.body) {
            (Content::Bytes, _) => Body::from(PACKAGE),
            (_, Value::Null) => Body::empty(),
            (_, body) => Body::from(body.to_string()),
        }
    }
}

fn other(name: &str) -> Value {
    let mut spec = job(name, 2);
    spec["task"]["command"] = json!(["/bin/false"]);
    spec
}

fn jobs() -> Vec<Step> {
    let of = |path: &str| format!("{path} /v1/jobs/root/jfoo");
    let submit = |name: &str| json!({ "owner": "root", "spec": job(name, 3) });
    vec![
        step("POST /v1/jobs", submit("jfoo")),
        step("POST /v1/apply", submit("japply")),
        step("GET /v1/jobs", NONE),
        step(&of("GET"), NONE),
        step("GET /v1/jobs/root/jfoo/tasks", NONE),
        step("GET /v1/jobs/root/jfoo/tasks/2", NONE),
        step("GET /v1/jobs/root/jfoo/tasks/2/explain", NONE),
        step("GET /v1/jobs/root/jfoo/explain", NONE),
        step("POST /v1/jobs", json!({ "owner": "root", "spec": scaled("jscaled") })),
        step("GET /v1/jobs/root/jscaled/scale", NONE),
        step("POST /v1/jobs/root/jscaled/scale", json!({ "manual": true })),
        step("POST /v1/plan", json!({ "jobs": [submit("jfoo"), submit("jnew")] })),
        step("POST /v1/shapes", json!({ "like": { "user": "root", "job": "jfoo" } })),
        step("GET /v1/jobs/root/jrun/tasks/0/output", NONE),
        step("GET /v1/watch/output/root/jrun/0", NONE),
        step("POST /v1/jobs/root/jrun/tasks/0/exec?command=%5B%22true%22%5D", NONE),
        step("GET /v1/jobs/root/jrun/tasks/0/exec?command=%5B%22true%22%5D", NONE),
        step("POST /v1/jobs/root/jrun/tasks/0/copy?direction=into&path=data", NONE),
        step("POST /v1/jobs/root/jrun/tasks/0/forward?port=8080", NONE),
        step("GET /v1/watch/jobs", NONE),
        step("GET /v1/watch/job_rows", NONE),
        step("GET /v1/names/root/jfoo", NONE),
        step("GET /v1/watch/names/root/jfoo", NONE),
        step("GET /v1/prometheus", NONE),
        step("DELETE /v1/jobs/root/jfoo/tasks/2", NONE),
        step("POST /v1/jobs/root/jfoo/tasks/2/start", NONE),
        step("POST /v1/jobs/root/jfoo/start", NONE),
        step("POST /v1/jobs/root/jfoo/tasks/1/restart", NONE),
        step("POST /v1/jobs/root/jfoo/restart", NONE),
        step("POST /v1/jobs/root/jfoo/resize", json!({ "count": 2 })),
        step(&of("PUT"), other("jfoo")),
        step("POST /v1/jobs/root/jfoo/undo", NONE),
        step("POST /v1/jobs", submit("jbar")),
        step("PUT /v1/jobs/root/jbar", other("jbar")),
        step("GET /v1/jobs/root/jbar/versions", NONE),
        step("GET /v1/jobs/root/jbar/diff?version=2&against=1", NONE),
        step("POST /v1/jobs/root/jbar/promote", NONE),
        step("POST /v1/jobs/root/jbar/finish", NONE),
        step("POST /v1/jobs/root/jbar/revert", json!({ "version": 1 })),
        step("POST /v1/jobs", submit("jend")),
        step("PUT /v1/jobs/root/jend", other("jend")),
        step("POST /v1/jobs/root/jend/close", NONE),
        step(&of("DELETE"), NONE),
    ]
}

fn scaled(name: &str) -> Value {
    let mut spec = job(name, 3);
    spec["scale"] = json!({ "min": 1, "max": 9 });
    spec
}

fn machines() -> Vec<Step> {
    let mut larger = machine("m2");
    larger["capacity"]["cpu"] = json!(2000);
    let set = json!({ "capacity": { "add": 3 }, "nodes": { "node": "m1" } });
    vec![
        step("GET /v1/machines", NONE),
        step("POST /v1/machines", machine("m2")),
        step("PUT /v1/machines/m2", larger),
        step("POST /v1/machines/m2/drain", NONE),
        step("GET /v1/machines/m2", NONE),
        step("GET /v1/machines/m2/tasks", NONE),
        step("GET /v1/machines/m1/packages", NONE),
        step("POST /v1/machines/m2/undrain", NONE),
        step("DELETE /v1/machines/m2", NONE),
        step("PUT /v1/resources/app/slot", set),
        step("GET /v1/resources/app/slot", NONE),
        step("GET /v1/resources", NONE),
        step("DELETE /v1/resources/app/slot", NONE),
        step("GET /v1/cluster_status", NONE),
        step("GET /v1/alarms", NONE),
        step("GET /v1/find?name=m1", NONE),
        step("GET /v1/overview", NONE),
        step("GET /v1/watch/overview", NONE),
    ]
}

fn users(token: &str) -> Vec<Step> {
    let cron =
        |schedule: &str| json!({ "name": "tick", "schedule": schedule, "job": job("tick", 1) });
    let join = json!({ "joiner": "agent", "name": "m9", "valid_for": 60_000 });
    let quota = json!({ "amount": { "cpu": 5, "ram": 5 } });
    vec![
        step("POST /v1/users", json!({ "name": "ufoo" })),
        step("GET /v1/users", NONE),
        step("GET /v1/users/ufoo", NONE),
        step("PUT /v1/users/ufoo/capabilities", json!({ "capabilities": ["manage_users"] })),
        step("PUT /v1/users/ufoo/quota/batch", quota),
        step("DELETE /v1/users/ufoo/quota/batch", NONE),
        step("DELETE /v1/users/ufoo", NONE),
        step("POST /v1/users/root/tokens", json!({ "valid_for": 60_000 })),
        step("GET /v1/users/root/tokens", NONE),
        step("POST /v1/tokens/join", join),
        step("GET /v1/tokens", NONE),
        step(&format!("DELETE /v1/tokens/{token}"), NONE),
        step("POST /v1/revocations", json!({ "part": "scheduler", "name": "s9" })),
        step("PUT /v1/crons/root/tick", cron("*/5 * * * *")),
        step("PUT /v1/crons/root/tick", cron("*/6 * * * *")),
        step("GET /v1/crons/root/tick", NONE),
        step("GET /v1/crons", NONE),
        step("POST /v1/crons/root/tick/run", NONE),
        step("DELETE /v1/crons/root/tick", NONE),
    ]
}

fn records(replica: &str) -> Vec<Step> {
    let blob = |method: &str| format!("{method} /v1/blobs/{}", digest_of(PACKAGE));
    let items = json!([{ "add_user": { "name": "one" } }, { "add_user": { "name": "two" } }]);
    let member = json!({ "id": 2, "name": "m2", "address": replica });
    vec![
        step("POST /v1/batch", json!({ "items": items })),
        step("GET /v1/events", NONE),
        step("POST /v1/sql", json!({ "query": "select count(*) from events" })),
        step("GET /v1/watch/events?after=0", NONE),
        step("GET /v1/audit", NONE),
        step("POST /v1/checkpoints", NONE),
        step("GET /v1/checkpoints", NONE),
        step("GET /v1/masters", NONE),
        step("POST /v1/masters", member),
        step("POST /v1/masters/confirm", json!({ "name": "m7", "fingerprint": "07".repeat(16) })),
        step("DELETE /v1/masters/2", NONE),
        step(&blob("PUT"), NONE),
        step(&blob("GET"), NONE),
        step("GET /v1/blobs", NONE),
        step(&blob("DELETE"), NONE),
        step("GET /v1/openapi.json", NONE),
        step("GET /metrics", NONE),
        step("GET /healthz", NONE),
        step("GET /readyz", NONE),
    ]
}

/// The job as it would be in the archive, a piece of its output, and a day of history.
pub async fn put_into_archive(cell: &Cell, user: &str, job: &str) {
    let job_key = JobKey { user: Name::new(user).unwrap(), job: Name::new(job).unwrap() };
    let path = format!("GET /v1/jobs/{job_key}");
    let view = cell.must(&path, NONE).await.body["item"].clone();
    let job = json!({ "format": 1, "cell": "aa", "job": view, "versions": [], "tasks": [] });
    let submitted = Time(5);
    let names = [
        JobObject { job: job_key.clone(), submitted, ended: Time(6) }.name(),
        LogObject { job: job_key, submitted, index: 0, attempt: 1 }.name(),
        DayObject { table: "events".into(), part: "2026-11-19".into() }.name(),
    ];
    for name in names {
        let content = match DayObject::parse(&name) {
            Some(_) => Bytes::from_static(b"PAR1PAR1"),
            None => compress(job.to_string().as_bytes()),
        };
        cell.archive.store().put(&name, content).await.unwrap();
    }
}

fn archive() -> Vec<Step> {
    vec![
        step("GET /v1/archive", NONE),
        step("GET /v1/archive/jobs", NONE),
        step("GET /v1/archive/jobs/root/jrun", NONE),
        step("GET /v1/archive/logs/root/jrun", NONE),
        step("GET /v1/archive/logs/root/jrun/0", NONE),
        step("GET /v1/archive/history", NONE),
        step(
            "POST /v1/archive/history/restore",
            json!({ "from": "2026-11-19", "to": "2026-11-19" }),
        ),
    ]
}

/// Every error has the four parts, and none of them is empty but perhaps the details.
fn is_error(got: &TestResponse, step: &Step, status: u16, code: &str) {
    let context = format!("{}: {} {}", step.target, got.status, got.text);
    assert_eq!((got.status, got.code()), (status, code), "{context}");
    let parts: BTreeSet<&str> = got.body.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(parts, BTreeSet::from(["code", "details", "hint", "message"]), "{context}");
    assert!(!got.body["message"].as_str().unwrap().is_empty(), "{context}");
    assert!(!got.body["hint"].as_str().unwrap().is_empty(), "{context}");
    assert!(got.body["details"].is_object(), "{context}");
}

/// The error code for a user without capabilities, if the route rejects them.
fn unprivileged_rejection(route: &Route) -> Option<&'static str> {
    use Operation as O;
    match route.operation {
        O::SubmitJob | O::UpdateJob | O::StopJob | O::ResizeJob | O::StopTask => Some("not-owner"),
        O::PlanJobs | O::ApplyJob | O::RunCron => Some("not-owner"),
        O::RestartJob | O::RestartTask | O::StartFailedTasks | O::StartTask => Some("not-owner"),
        O::PromoteUpdate | O::FinishUpdate | O::RevertJob => Some("not-owner"),
        O::UndoUpdate | O::CloseUpdate | O::SetCron | O::RemoveCron => Some("not-owner"),
        O::SetScaleMode => Some("not-owner"),
        O::SetResource | O::DeleteResource => Some("foreign-namespace"),
        _ if required_capability(route).is_some() => Some("not-allowed"),
        _ => None,
    }
}

/// The required capability in the table.
fn required_capability(route: &Route) -> Option<Capability> {
    route.capability.or(match route.access {
        Access::HasCapability(capability) | Access::SelfOrHasCapability(capability) => {
            Some(capability)
        }
        Access::Open | Access::Authenticated => None,
    })
}

struct RouteWalk {
    cell: Cell,
    privileged: Caller,
    unprivileged: Caller,
    /// Versioned operations that rejected a stale version.
    version_checked: BTreeSet<Operation>,
    /// The last line of the audit log that was read.
    audited: String,
    keys: u32,
}

impl RouteWalk {
    async fn send(&self, caller: Option<&Caller>, target: &str, step: &Step) -> TestResponse {
        self.cell.send(caller, target, &[], step.content()).await
    }

    /// Without authentication, and as a user without capabilities.
    async fn check_access(&self, step: &Step) {
        let route = step.route();
        if route.access != Access::Open {
            let got = self.send(None, &step.target, step).await;
            is_error(&got, step, 401, "unauthenticated");
        }
        let Some(code) = unprivileged_rejection(route) else { return };
        let got = self.send(Some(&self.unprivileged), &step.target, step).await;
        is_error(&got, step, 403, code);
        if code == "not-allowed" {
            let wanted = serde_json::to_value(required_capability(route)).unwrap();
            assert_eq!(got.body["details"]["capability"], wanted, "{}", got.text);
        }
    }

    /// Parameters that are not in the table are rejected by name.
    async fn check_unknown_parameters(&self, step: &Step) {
        let got = self.send(Some(&self.privileged), &step.with("colour=red"), step).await;
        is_error(&got, step, 400, "bad-parameter");
        assert_eq!(got.body["details"]["parameter"], "colour");
        if step.body.is_object() {
            let mut body = step.body.clone();
            body["colour"] = json!(1);
            let coloured = Step { target: step.target.clone(), body };
            let got = self.send(Some(&self.privileged), &step.target, &coloured).await;
            is_error(&got, step, 400, "bad-body");
            assert_eq!(got.body["details"]["field"], "colour", "{}", got.text);
        }
    }

    async fn check_stale_version(&mut self, step: &Step) {
        let route = step.route();
        if !route.versioned {
            return;
        }
        let got = self.send(Some(&self.privileged), &step.with("expect=4294967295"), step).await;
        assert!(got.status >= 400, "{}: {}", step.target, got.text);
        if got.status == 412 {
            is_error(&got, step, 412, "stale-version");
            assert_eq!(got.body["details"]["expected"], u32::MAX, "{}", got.text);
            assert!(got.body["details"]["found"].is_u64(), "{}", got.text);
            self.version_checked.insert(route.operation);
        }
    }

    /// The request itself; a change is sent twice with one key.
    async fn check_success(&mut self, step: &Step) {
        let route = step.route();
        if let Content::Events(_) = route.response {
            return self.check_stream(step).await;
        }
        self.keys += 1;
        let key = format!("walk-{}", self.keys);
        let keyed = [("idempotency-key", key.as_str())];
        let handed_over = [("connection", "upgrade"), ("upgrade", EXEC_PROTOCOL)];
        let origin = format!("http://{}", self.cell.address);
        let socket = crate::agent::websocket_headers(&origin);
        let headers = match route.kind {
            RouteKind::Change => &keyed[..],
            _ if route.operation == Operation::ExecTaskInPage => &socket,
            _ if route.status == 101 => &handed_over,
            _ => &[],
        };
        let root = Some(&self.privileged);
        let got = self.cell.send(root, &step.target, headers, step.content()).await;
        assert_eq!(got.status, route.status, "{}: {}", step.target, got.text);
        if route.kind == RouteKind::Change {
            let again = self.cell.send(root, &step.target, headers, step.content()).await;
            assert_eq!(again.status, got.status, "{}: {}", step.target, again.text);
            assert_eq!(
                without_indexes(again.body),
                without_indexes(got.body.clone()),
                "{}",
                step.target
            );
        }
        self.check_index_headers(step, &got).await;
    }

    async fn check_index_headers(&self, step: &Step, got: &TestResponse) {
        let kind = step.route().kind;
        if kind == RouteKind::Local {
            return;
        }
        let index: u64 = got.header("cell-index").parse().unwrap_or_else(|_| {
            panic!("{}: cell-index is {:?}", step.target, got.header("cell-index"))
        });
        assert!(index > 0, "{}", step.target);
        if kind == RouteKind::Read {
            assert_eq!(got.header("cell-read"), "stale", "{}", step.target);
            let fresh =
                self.send(Some(&self.privileged), &step.with("consistent=true"), step).await;
            assert_eq!(fresh.header("cell-read"), "consistent", "{}", step.target);
            assert!(fresh.header("cell-index").parse::<u64>().unwrap() >= index);
        }
    }

    async fn check_stream(&self, step: &Step) {
        let root = Some(&self.privileged);
        let mut answer = self.cell.open(root, &step.target, &[], Body::empty()).await;
        assert_eq!(answer.status().as_u16(), 200, "{}", step.target);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let mut text = String::new();
        while !text.contains("\n\n") {
            let frame = crate::support::within(answer.frame()).await.unwrap().unwrap();
            text.push_str(&String::from_utf8_lossy(frame.data_ref().unwrap()));
        }
        assert!(text.contains("event: ") && text.contains("data: {"), "{text}");
    }

    /// Both the rejections and the changes since the last check are in the audit log.
    async fn check_audit(&mut self, step: &Step) {
        let target = format!("GET /v1/audit?limit=1000&after={}", self.audited);
        let page = self.cell.must(&target, NONE).await.body;
        let lines = page["items"].as_array().unwrap().clone();
        if let Some(last) = lines.last() {
            self.audited = last["cursor"].as_str().unwrap().to_owned();
        }
        let has = |caller: &str, verdicts: &[&str]| {
            let fits = |line: &&Value| {
                line["caller"] == caller && verdicts.contains(&line["verdict"].as_str().unwrap())
            };
            lines.iter().find(fits).is_some()
        };
        let route = step.route();
        if matches!(route.kind, RouteKind::Change | RouteKind::Create) {
            let done = has("user:root", &["done", "unchanged"]);
            assert!(done, "{} is not in {lines:#?}", step.target);
        }
        if let Some(code) = unprivileged_rejection(route) {
            assert!(has("user:weak", &[code]), "{} {code} is not in {lines:#?}", step.target);
        }
    }
}

/// Without the log indexes, which are those of the entry of the repeated request.
fn without_indexes(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            fields.remove("index");
            fields.values_mut().for_each(|field| *field = without_indexes(field.take()));
        }
        Value::Array(items) => {
            items.iter_mut().for_each(|item| *item = without_indexes(item.take()))
        }
        _ => {}
    }
    value
}

/// Replica m7 has requested to join and waits for an operator.
async fn wait_to_be_confirmed(cell: &Cell) {
    let (id, name) = (Name::new("t7").unwrap(), Name::new("m7").unwrap());
    let secret_hash = SecretHash([7; 32]);
    let kind = TokenKind::JoinReplica { name };
    let valid_for = Span::seconds(600);
    let parent = None;
    let made = Command::AddToken { id: id.clone(), kind, secret_hash, valid_for, parent };
    let newcomer =
        Some(ReplicaJoinRequest { key: KeyFingerprint([7; 16]), address: "192.0.2.7".into() });
    let used = Command::UseJoinToken { id, secret_hash, newcomer };
    for command in [made, used] {
        let by = Caller::default_sender(&command, &cell.handle().read().state);
        cell.handle().submit(&by, None, command).await.unwrap().verdict.unwrap();
    }
}

/// Users with all capabilities and with none, a machine, a token to revoke, and all steps.
pub async fn prepared_cells() -> (Cell, Cell, Vec<Step>) {
    let authority = Some("ab".repeat(32));
    let cell = Cell::start_with(ApiConfig { authority, ..ApiConfig::default() }).await;
    for name in ["root", "weak"] {
        cell.must("POST /v1/users", json!({ "name": name })).await;
    }
    let all = json!({ "capabilities": Capability::ALL });
    cell.must("PUT /v1/users/root/capabilities", all).await;
    let quota = json!({ "amount": { "cpu": 1000, "ram": 1000 } });
    cell.must("PUT /v1/users/root/quota/batch", quota).await;
    let mut reached = machine("m1");
    reached["attributes"] =
        json!({ AGENT_ADDRESS_ATTRIBUTE: { "text": crate::agent::stub_agent().await } });
    cell.must("POST /v1/machines", reached).await;
    cell.must("POST /v1/jobs", json!({ "owner": "root", "spec": job("jrun", 1) })).await;
    crate::agent::run_first_task(&cell).await;
    let set = json!({ "capacity": { "add": 1 }, "nodes": { "node": "m1" } });
    cell.ask_as(&user("root"), "PUT /v1/resources/app/first", &[], set).await;
    wait_to_be_confirmed(&cell).await;
    let made = cell.must("POST /v1/users/root/tokens", json!({ "valid_for": 60_000 })).await;
    let token = made.body["id"].as_str().unwrap().to_owned();
    let second = Cell::start_with_options(CellOptions {
        id: 2,
        begins_cell: false,
        ..CellOptions::default()
    })
    .await;
    put_into_archive(&cell, "root", "jrun").await;
    let steps = [jobs(), machines(), users(&token), records(&second.address), archive()];
    cell.done.lock().unwrap().clear();
    (cell, second, steps.into_iter().flatten().collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_keeps_what_is_promised_for_all() {
    let (cell, _second, steps) = prepared_cells().await;
    let (privileged, unprivileged) = (user("root"), user("weak"));
    let (version_checked, audited) = (BTreeSet::new(), "0".to_owned());
    let mut walk = RouteWalk { cell, privileged, unprivileged, version_checked, audited, keys: 0 };
    for step in steps {
        walk.check_access(&step).await;
        walk.check_unknown_parameters(&step).await;
        walk.check_stale_version(&step).await;
        walk.check_success(&step).await;
        walk.check_audit(&step).await;
    }
    let done = walk.cell.done.lock().unwrap().clone();
    let operations = || routes().map(|route| route.operation);
    let missed: Vec<Operation> = operations().filter(|one| !done.contains(one)).collect();
    assert_eq!(missed, [], "routes that no step asks for");
    let versioned = routes().filter(|route| route.versioned).map(|route| route.operation);
    assert_eq!(
        versioned.collect::<BTreeSet<_>>(),
        walk.version_checked,
        "stale versions are refused"
    );
}
