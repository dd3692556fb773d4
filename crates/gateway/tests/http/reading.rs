//! What others may read of a job, and what no question of theirs finds out.

use crate::support::{Cell, Got, digest_of, job, user, within};
use cellwright_api::client::JobFilter;
use cellwright_cell::name::Name;
use serde_json::{Value, json};

const NONE: Value = Value::Null;
/// Stands in every field that says what a job runs; found nowhere else.
const INSIDE: &str = "xyzzy";

fn telling() -> Value {
    let mut spec = job("inside", 1);
    spec["task"]["command"] = json!(["/bin/serve", INSIDE]);
    spec["task"]["env"] = json!({ "KEY": INSIDE });
    spec["task"]["files"] = json!({ "conf/app.toml": INSIDE });
    spec["task"]["secrets"] = json!({ "password": INSIDE });
    spec["task"]["health"] = json!({ "probe": { "command": ["test", INSIDE] } });
    spec["task"]["packages"] = json!([{ "name": INSIDE, "digest": "c".repeat(64), "bytes": 9 }]);
    spec["overrides"] = json!({ "0": { "command": [INSIDE], "env": { "PART": INSIDE } } });
    spec
}

/// `ubar/inside`, a periodic job of the same, and eve, who has nothing to do with them.
async fn furnished() -> Cell {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    cell.must("POST /v1/users", json!({ "name": "eve" })).await;
    cell.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": telling() })).await;
    let mut cron = telling();
    cron["name"] = json!("nightly");
    let spec = json!({ "name": "nightly", "schedule": "0 3 * * *", "job": cron });
    cell.must("PUT /v1/crons/ubar/nightly", spec).await;
    cell
}

async fn asked(cell: &Cell, who: &str, target: &str, body: Value) -> Got {
    cell.ask_as(&user(who), target, &[], body).await
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
    let cell = furnished().await;
    for target in READS {
        let got = asked(&cell, "eve", target, NONE).await;
        assert_eq!(got.status, 200, "{target}: {}", got.body);
        assert!(!got.body.to_string().contains(INSIDE), "{target}: {}", got.body);
    }
    let seen = asked(&cell, "eve", READS[0], NONE).await.body;
    assert_eq!(seen["item"]["redacted"], true);
    assert_eq!(seen["item"]["spec"]["task"]["limits"]["cpu"], 10, "what it asks for is seen");
    let own = asked(&cell, "ubar", READS[0], NONE).await.body;
    assert_eq!(own["item"]["redacted"], false);
    assert_eq!(own["item"]["spec"]["task"]["env"]["KEY"], INSIDE);
    assert_eq!(own["item"]["spec"]["task"]["secrets"]["password"], "(hidden)");
    for capability in ["read_specs", "administrate_jobs"] {
        grant(&cell, capability).await;
        for target in &READS[..4] {
            let got = asked(&cell, "eve", target, NONE).await;
            assert!(got.body.to_string().contains(INSIDE), "{capability}, {target}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_goes_on_shows_what_its_reader_may_see_by_then() {
    let cell = furnished().await;
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
    let cell = furnished().await;
    let ask = |who: &'static str, secret: &'static str| {
        let mut spec = telling();
        spec["task"]["secrets"]["password"] = json!(secret);
        let body = json!({ "jobs": [{ "owner": "ubar", "spec": spec }] });
        let cell = &cell;
        async move { asked(cell, who, "POST /v1/plan", body).await }
    };
    let (right, wrong) = (ask("eve", INSIDE).await, ask("eve", "guess").await);
    assert_eq!((right.status, right.code()), (403, "not-owner"));
    assert_eq!(right.body, wrong.body, "a right guess is answered like a wrong one");
    // A job that is not there is answered alike.
    let body = json!({ "jobs": [{ "owner": "ubar", "spec": job("nothing", 1) }] });
    let nothing = asked(&cell, "eve", "POST /v1/plan", body).await;
    assert_eq!((nothing.status, nothing.code()), (403, "not-owner"));
    // The owner is told.
    let same = ask("ubar", INSIDE).await.body;
    assert_eq!(same["item"]["jobs"][0]["action"], "nothing", "{same}");
    // Who administrates jobs sees the plan, and learns nothing of the value.
    grant(&cell, "administrate_jobs").await;
    let (right, wrong) = (ask("eve", INSIDE).await, ask("eve", "guess").await);
    assert_eq!(right.status, 200, "{}", right.body);
    assert_eq!(right.body["item"]["jobs"][0]["action"], "update", "{}", right.body);
    assert_eq!(right.body["item"]["jobs"], wrong.body["item"]["jobs"]);
    let changes = right.body["item"]["jobs"][0]["changes"].to_string();
    assert!(changes.contains("task.secrets.password"), "{changes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn digests_of_others_packages_are_told_nowhere() {
    let cell = furnished().await;
    let content = b"what ubar runs";
    let digest = digest_of(content);
    let target = format!("PUT /v1/blobs/{digest}");
    let headers = [("content-type", "application/octet-stream")];
    let put = cell.send(Some(&user("ubar")), &target, &headers, content.to_vec().into()).await;
    assert!(put.status < 300, "{}", put.text);
    let own = asked(&cell, "ubar", "GET /v1/blobs", NONE).await;
    assert!(own.body.to_string().contains(&digest), "{}", own.body);
    for target in ["GET /v1/blobs", "GET /v1/events"] {
        let got = asked(&cell, "eve", target, NONE).await;
        assert_eq!(got.status, 200);
        assert!(!got.body.to_string().contains(&digest), "{target}: {}", got.body);
    }
    let packages = asked(&cell, "eve", "GET /v1/machines/m1/packages", NONE).await;
    assert_eq!((packages.status, packages.code()), (403, "not-allowed"));
    grant(&cell, "read_specs").await;
    let all = asked(&cell, "eve", "GET /v1/blobs", NONE).await;
    assert!(all.body.to_string().contains(&digest), "{}", all.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_in_the_history_does_not_say_what_the_job_runs() {
    let cell = furnished().await;
    let mut spec = job("refused", 1);
    spec["task"]["env"] = json!({ "KEY": format!("{INSIDE}\0") });
    let body = json!({ "owner": "ubar", "spec": spec });
    let refused = asked(&cell, "ubar", "POST /v1/jobs", body).await;
    assert_eq!(refused.code(), "bad-field");
    assert!(refused.body.to_string().contains(INSIDE), "whoever sent it is told: {}", refused.body);
    let events = asked(&cell, "eve", "GET /v1/events", NONE).await.body.to_string();
    assert!(events.contains("ubar/refused") && !events.contains(INSIDE), "{events}");
}
