//! Watches over a real connection: the initial state, changes, and resuming after a disconnect.

use crate::support::{Cell, caller_text, job, user, within};
use axum::body::Body;
use cellwright_api::client::JobFilter;
use http_body_util::BodyExt;
use serde_json::{Value, json};

const NONE: Value = Value::Null;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_arrive_once_over_breaks() {
    let cell = Cell::start().await;
    let client = cell.client(None);
    let start = cell.handle().read().index.to_string();
    let mut watch = client.watch_events(Some(start.clone()));
    cell.must("POST /v1/users", json!({ "name": "one" })).await;
    cell.must("POST /v1/users", json!({ "name": "two" })).await;
    let first = within(watch.next()).await.unwrap();
    let event = first.data.unwrap();
    assert_eq!((first.kind.as_str(), event.object.as_str()), ("event", "one"));
    assert_eq!(first.id.as_deref(), Some(event.cursor.as_str()));
    // A new connection continues after the last event of the first one.
    let mut resumed = client.watch_events(watch.position().map(str::to_owned));
    drop(watch);
    let second = within(resumed.next()).await.unwrap().data.unwrap();
    assert_eq!(second.object, "two");
    cell.must("POST /v1/users", json!({ "name": "three" })).await;
    let third = within(resumed.next()).await.unwrap().data.unwrap();
    assert_eq!(third.object, "three");
    // The same as a list, page by page.
    let page = client.events(Some(start), 2).await.unwrap().value;
    let objects: Vec<&str> = page.items.iter().map(|event| event.object.as_str()).collect();
    assert_eq!(objects, ["one", "two"]);
    let rest = client.events(Some(page.next), 10).await.unwrap().value;
    assert_eq!(rest.items.len(), 1);
    assert_eq!(rest.items[0].object, "three");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_sent_whole_and_then_as_they_change() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    let mut other = job("other", 1);
    other["labels"] = json!({});
    cell.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": other })).await;
    let client = cell.client(None);
    let filter = JobFilter { selector: Some("tier=web".into()), ..JobFilter::default() };
    let mut watch = client.watch_jobs(&filter, None);
    let first = within(watch.next()).await.unwrap();
    assert_eq!((first.kind.as_str(), first.data.unwrap().name.as_str()), ("job", "jfoo"));
    let synced = within(watch.next()).await.unwrap();
    assert_eq!(synced.kind, "synced");
    cell.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": job("later", 1) })).await;
    let later = within(watch.next()).await.unwrap();
    assert_eq!(later.data.unwrap().name.as_str(), "later");
    let position = watch.position().map(str::to_owned);
    drop(watch);
    cell.must("DELETE /v1/jobs/ubar/jfoo", NONE).await;
    let mut resumed = client.watch_jobs(&filter, position);
    let stopped = within(resumed.next()).await.unwrap().data.unwrap();
    assert_eq!(stopped.name.as_str(), "jfoo");
    assert!(stopped.ended_at.is_some(), "as it is now: {stopped:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_ends_with_the_right_to_it() {
    let cell = Cell::start().await;
    cell.must("POST /v1/users", json!({ "name": "ubar" })).await;
    let caller = user("ubar");
    for target in ["GET /v1/watch/events?after=0", "GET /v1/watch/jobs"] {
        let mut answer = cell.open(Some(&caller), target, &[], Body::empty()).await;
        assert_eq!(answer.status().as_u16(), 200);
        assert!(within(answer.frame()).await.is_some_and(|frame| frame.is_ok()));
        cell.barred.lock().unwrap().insert(caller_text(Some(&caller)));
        // Nothing happens meanwhile: the watch has to check by itself.
        within(async { while answer.frame().await.is_some() {} }).await;
        let again = cell.send(Some(&caller), target, &[], Body::empty()).await;
        assert_eq!(again.status, 401, "{}", again.text);
        cell.barred.lock().unwrap().clear();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_makes_no_sense_is_refused() {
    let cell = Cell::start().await;
    let client = cell.client(None);
    let rejected = within(client.watch_events(Some("nonsense".into())).next()).await;
    let error = rejected.unwrap_err();
    assert_eq!(error.code().map(|code| code.as_str()), Some("bad-parameter"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_in_short_are_the_same_jobs_without_their_specs() {
    let cell = Cell::start().await;
    cell.furnish(3).await;
    let target = "GET /v1/watch/job_rows?selector=tier%3Dweb";
    let anyone = cellwright_master::handle::Caller::Operator;
    let mut watch = cell.open(Some(&anyone), target, &[], Body::empty()).await;
    let mut seen = String::new();
    let mut until = async |part: &str| {
        while !seen.contains(part) {
            let frame = within(watch.frame()).await.unwrap().unwrap();
            seen.push_str(&String::from_utf8_lossy(frame.data_ref().unwrap()));
        }
        std::mem::take(&mut seen)
    };
    let first = until("event: synced").await;
    let line = first.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    let row: Value = serde_json::from_str(line).unwrap();
    let whole = cell.must("GET /v1/jobs/ubar/jfoo", NONE).await.body["item"].clone();
    assert_eq!((&row["user"], &row["name"]), (&json!("ubar"), &json!("jfoo")));
    for field in ["state", "tasks", "submitted_at"] {
        assert_eq!(row[field], whole[field], "{field}");
    }
    for field in ["priority", "labels"] {
        assert_eq!(row[field], whole["spec"][field], "{field}");
    }
    assert_eq!(row["limits"], whole["spec"]["task"]["limits"]);
    assert_eq!(row["spec"], NONE);
    let mut other = job("other", 1);
    other["labels"] = json!({});
    cell.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": other })).await;
    cell.must("DELETE /v1/jobs/ubar/jfoo", NONE).await;
    let later = until("\"dead\"").await;
    assert!(later.contains("jfoo") && !later.contains("other"), "{later}");
}
