//! Redaction: what other users may read of a job, and what none of their requests reveals.

use crate::support::{Cell, TestResponse, digest_of, job, user, within};
use cellwright_api::client::JobFilter;
use cellwright_cell::name::Name;
use serde_json::{Value, json};

const NONE: Value = Value::Null;
/// The value of every field that says what a job runs; found nowhere else.
const SPEC_MARKER: &str = "xyzzy";

fn spec_with_markers() -> Value {
    let mut spec = job("inside", 1);
    spec["task"]["command"] = json!(["/bin/serve", SPEC_MARKER]);
    spec["task"]["env"] = json!({ "KEY": SPEC_MARKER });
    spec["task"]["files"] = json!({ "conf/app.toml": SPEC_MARKER });
    spec["task"]["secrets"] = json!({ "password": SPEC_MARKER });
    spec["task"]["health"] = json!({ "probe": { "command": ["test", SPEC_MARKER] } });
    spec["task"]["packages"] =
        json!([{ "name": SPEC_MARKER, "digest": "c".repeat(64), "bytes": 9 }]);
    spec["overrides"] =
        json!({ "0": { "command": [SPEC_MARKER], "env": { "PART": SPEC_MARKER } } });
    spec
}

/// `ubar/inside`, a periodic job of the same, and eve, who is unrelated to them.
async fn prepared_cell() -> Cell {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    cell.must("POST /v1/users", json!({ "name": "eve" })).await;
    cell.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": spec_with_markers() })).await;
    let mut cron = spec_with_markers();
    cron["name"] = json!("nightly");
    let spec = json!({ "name": "nightly", "schedule": "0 3 * * *", "job": cron });
    cell.must("PUT /v1/crons/ubar/nightly", spec).await;
    cell
}

async fn ask_as_user(cell: &Cell, user_name: &str, target: &str, body: Value) -> TestResponse {
    cell.ask_as(&user(user_name), target, &[], body).await
}

async fn grant(cell: &Cell, capability: &str) {
    let body = json!({ "capabilities": [capability] });
    cell.must("PUT /v1/users/eve/capabilities", body).await;
}

const READS: [&str; 5] = [
    "GET /v1/jobs/ubar/inside",
    "GET /v1/jobs",
    "GET /v1/crons/ubar/nightly",
    "GET /v1/crons",
    "GET /v1/events",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_job_runs_is_for_its_owner_and_holders_of_the_right() {
    let cell = prepared_cell().await;
    for target in READS {
        let got = ask_as_user(&cell, "eve", target, NONE).await;
        assert_eq!(got.status, 200, "{target}: {}", got.body);
        assert!(!got.body.to_string().contains(SPEC_MARKER), "{target}: {}", got.body);
    }
    let seen = ask_as_user(&cell, "eve", READS[0], NONE).await.body;
    assert_eq!(seen["item"]["redacted"], true);
    assert_eq!(seen["item"]["spec"]["task"]["limits"]["cpu"], 10, "what it asks for is seen");
    let own = ask_as_user(&cell, "ubar", READS[0], NONE).await.body;
    assert_eq!(own["item"]["redacted"], false);
    assert_eq!(own["item"]["spec"]["task"]["env"]["KEY"], SPEC_MARKER);
    assert_eq!(own["item"]["spec"]["task"]["secrets"]["password"], "(hidden)");
    for capability in ["read_specs", "administrate_jobs"] {
        grant(&cell, capability).await;
        for target in &READS[..4] {
            let got = ask_as_user(&cell, "eve", target, NONE).await;
            assert!(got.body.to_string().contains(SPEC_MARKER), "{capability}, {target}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_differs_between_versions_is_for_who_may_see_specs_and_secrets_for_nobody() {
    let cell = prepared_cell().await;
    let mut other = spec_with_markers();
    for field in ["env", "secrets"] {
        let name = if field == "env" { "KEY" } else { "password" };
        other["task"][field][name] = json!(format!("{SPEC_MARKER}-2"));
    }
    cell.must("PUT /v1/jobs/ubar/inside", other).await;
    let (versions, diff) = ("GET /v1/jobs/ubar/inside/versions", "GET /v1/jobs/ubar/inside/diff");
    for target in [versions, diff] {
        let got = ask_as_user(&cell, "eve", target, NONE).await;
        assert_eq!(got.status, 200, "{target}: {}", got.body);
        assert!(!got.body.to_string().contains(SPEC_MARKER), "{target}: {}", got.body);
    }
    let seen = ask_as_user(&cell, "eve", versions, NONE).await.body;
    assert_eq!(seen["item"]["versions"][1]["change"], "task.secrets, task.env", "{seen}");
    let own = ask_as_user(&cell, "ubar", diff, NONE).await.body;
    let changes = own["item"]["changes"].as_array().unwrap().clone();
    let of = |path: &str| changes.iter().find(|change| change["path"] == path).cloned();
    assert_eq!(of("task.env.KEY").unwrap()["new"], format!("{SPEC_MARKER}-2"), "{own}");
    assert_eq!(of("task.secrets.password").unwrap()["new"], "(hidden)", "{own}");
    // Whoever may replace a secret does not find out whether it was the same.
    grant(&cell, "administrate_jobs").await;
    let target = format!("{diff}?version=2&against=2");
    let same = ask_as_user(&cell, "eve", &target, NONE).await.body;
    assert_eq!(same["item"]["changes"], json!([]), "{same}");
    let differs = ask_as_user(&cell, "eve", &format!("{diff}?version=2&against=1"), NONE).await;
    assert!(differs.body.to_string().contains("task.secrets.password"), "{}", differs.body);
    let wrong = ask_as_user(&cell, "eve", &format!("{diff}?version=9"), NONE).await;
    assert_eq!((wrong.status, wrong.code()), (400, "bad-field"), "{}", wrong.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_goes_on_shows_what_its_reader_may_see_by_then() {
    let cell = prepared_cell().await;
    grant(&cell, "read_specs").await;
    let filter = JobFilter { user: Some(Name::new("ubar").unwrap()), ..JobFilter::default() };
    let eve = user("eve");
    let mut watch = cell.client(Some(&eve)).watch_jobs(&filter, None);
    let mut jobs = Vec::new();
    loop {
        let event = within(watch.next()).await.unwrap();
        match event.kind.as_str() {
            "synced" => break,
            _ => jobs.push(event.data.unwrap()),
        }
    }
    let inside = jobs.iter().find(|job| job.name.as_str() == "inside").unwrap();
    assert!(!inside.redacted);
    cell.must("PUT /v1/users/eve/capabilities", json!({ "capabilities": [] })).await;
    cell.must("POST /v1/jobs/ubar/inside/resize", json!({ "count": 2 })).await;
    let after = within(watch.next()).await.unwrap().data.unwrap();
    assert!(after.redacted && after.spec.task.command.is_empty(), "{:?}", after.spec);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_of_somebody_elses_job_is_refused_before_anything_is_compared() {
    let cell = prepared_cell().await;
    let ask = |who: &'static str, secret: &'static str| {
        let mut spec = spec_with_markers();
        spec["task"]["secrets"]["password"] = json!(secret);
        let body = json!({ "jobs": [{ "owner": "ubar", "spec": spec }] });
        let cell = &cell;
        async move { ask_as_user(cell, who, "POST /v1/plan", body).await }
    };
    let (right, wrong) = (ask("eve", SPEC_MARKER).await, ask("eve", "guess").await);
    assert_eq!((right.status, right.code()), (403, "not-owner"));
    assert_eq!(right.body, wrong.body, "a right guess is answered like a wrong one");
    // A job that does not exist is answered alike.
    let body = json!({ "jobs": [{ "owner": "ubar", "spec": job("nothing", 1) }] });
    let nothing = ask_as_user(&cell, "eve", "POST /v1/plan", body).await;
    assert_eq!((nothing.status, nothing.code()), (403, "not-owner"));
    // The owner sees it.
    let same = ask("ubar", SPEC_MARKER).await.body;
    assert_eq!(same["item"]["jobs"][0]["action"], "nothing", "{same}");
    // A user with `administrate_jobs` sees the plan, and learns nothing of the value.
    grant(&cell, "administrate_jobs").await;
    let (right, wrong) = (ask("eve", SPEC_MARKER).await, ask("eve", "guess").await);
    assert_eq!(right.status, 200, "{}", right.body);
    assert_eq!(right.body["item"]["jobs"][0]["action"], "update", "{}", right.body);
    assert_eq!(right.body["item"]["jobs"], wrong.body["item"]["jobs"]);
    let changes = right.body["item"]["jobs"][0]["changes"].to_string();
    assert!(changes.contains("task.secrets.password"), "{changes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn digests_of_others_packages_are_told_nowhere() {
    let cell = prepared_cell().await;
    let content = b"what ubar runs";
    let digest = digest_of(content);
    let target = format!("PUT /v1/blobs/{digest}");
    let headers = [("content-type", "application/octet-stream")];
    let put = cell.send(Some(&user("ubar")), &target, &headers, content.to_vec().into()).await;
    assert!(put.status < 300, "{}", put.text);
    let own = ask_as_user(&cell, "ubar", "GET /v1/blobs", NONE).await;
    assert!(own.body.to_string().contains(&digest), "{}", own.body);
    for target in ["GET /v1/blobs", "GET /v1/events"] {
        let got = ask_as_user(&cell, "eve", target, NONE).await;
        assert_eq!(got.status, 200);
        assert!(!got.body.to_string().contains(&digest), "{target}: {}", got.body);
    }
    let packages = ask_as_user(&cell, "eve", "GET /v1/machines/m1/packages", NONE).await;
    assert_eq!((packages.status, packages.code()), (403, "not-allowed"));
    grant(&cell, "read_specs").await;
    let all = ask_as_user(&cell, "eve", "GET /v1/blobs", NONE).await;
    assert!(all.body.to_string().contains(&digest), "{}", all.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_in_the_history_does_not_say_what_the_job_runs() {
    let cell = prepared_cell().await;
    let mut spec = job("refused", 1);
    spec["task"]["env"] = json!({ "KEY": format!("{SPEC_MARKER}\0") });
    let body = json!({ "owner": "ubar", "spec": spec });
    let rejected = ask_as_user(&cell, "ubar", "POST /v1/jobs", body).await;
    assert_eq!(rejected.code(), "bad-field");
    assert!(
        rejected.body.to_string().contains(SPEC_MARKER),
        "whoever sent it is told: {}",
        rejected.body
    );
    let events = ask_as_user(&cell, "eve", "GET /v1/events", NONE).await.body.to_string();
    assert!(events.contains("ubar/refused") && !events.contains(SPEC_MARKER), "{events}");
}
