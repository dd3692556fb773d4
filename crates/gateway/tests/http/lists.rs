//! Pages, selectors, name resolution, and the index headers of replies.

use crate::support::{Cell, job, machine};
use cellwright_gateway::serve::DEV_USER;
use serde_json::{Value, json};

const NONE: Value = Value::Null;

fn names(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().unwrap();
    items.iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_join_up_even_when_rows_come_and_go() {
    let cell = Cell::start().await;
    for number in 0..7 {
        cell.must("POST /v1/machines", machine(&format!("m{number}"))).await;
    }
    let first = cell.must("GET /v1/machines?limit=3", NONE).await.body;
    assert_eq!(names(&first), ["m0", "m1", "m2"]);
    // Removing rows that were read, and the next one, shifts nothing.
    cell.must("DELETE /v1/machines/m1", NONE).await;
    cell.must("DELETE /v1/machines/m3", NONE).await;
    cell.must("POST /v1/machines", machine("m7")).await;
    let next = first["next"].as_str().unwrap();
    let second = cell.must(&format!("GET /v1/machines?limit=3&after={next}"), NONE).await.body;
    assert_eq!(names(&second), ["m4", "m5", "m6"]);
    let next = second["next"].as_str().unwrap();
    let last = cell.must(&format!("GET /v1/machines?limit=3&after={next}"), NONE).await.body;
    assert_eq!(names(&last), ["m7"]);
    assert_eq!(last["next"], NONE);
    // A cursor of one list is not valid for another.
    let got = cell.ask(&format!("GET /v1/users?after={next}"), NONE).await;
    assert_eq!(got.code(), "bad-parameter");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn selectors_users_and_states_choose() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    cell.must("POST /v1/users", json!({ "name": "ufoo" })).await;
    let mut free = job("jbar", 1);
    free["priority"] = json!(0);
    free["labels"] = json!({ "tier": "db" });
    cell.must("POST /v1/jobs", json!({ "owner": "ufoo", "spec": free })).await;
    for (query, want) in [
        ("", vec!["jfoo", "jbar"]),
        ("?selector=tier%3Dweb", vec!["jfoo"]),
        ("?selector=tier!%3Dweb", vec!["jbar"]),
        ("?selector=of", vec!["jfoo"]),
        ("?selector=!of,tier", vec!["jbar"]),
        ("?selector=tier%3Dweb,tier%3Ddb", vec![]),
        ("?user=ufoo", vec!["jbar"]),
        ("?user=nobody", vec![]),
        ("?state=live", vec!["jfoo", "jbar"]),
        ("?state=dead", vec![]),
        ("?state=waiting", vec!["jfoo", "jbar"]),
    ] {
        let got = cell.must(&format!("GET /v1/jobs{query}"), NONE).await;
        assert_eq!(names(&got.body), want, "{query}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_say_of_which_index_they_are() {
    let cell = Cell::start().await;
    let added = cell.must("POST /v1/users", json!({ "name": "ubar" })).await;
    let index = added.body["index"].as_u64().unwrap();
    assert_eq!(added.header("cell-index"), index.to_string());
    let stale = cell.must("GET /v1/users/ubar", NONE).await;
    assert_eq!(stale.header("cell-read"), "stale");
    assert_eq!(stale.body["consistent"], false);
    let fresh = cell.must("GET /v1/users/ubar?consistent=true", NONE).await;
    assert_eq!(fresh.header("cell-read"), "consistent");
    assert_eq!(fresh.body["consistent"], true);
    assert!(fresh.body["index"].as_u64().unwrap() >= index);
    assert_eq!(fresh.header("cell-index"), fresh.body["index"].to_string());
}

/// Kind and name of each object that a name may refer to.
async fn found_names(cell: &Cell, name: &str) -> Vec<String> {
    let page = cell.must(&format!("GET /v1/find?name={name}"), NONE).await.body;
    let kind_and_name =
        |item: &Value| format!("{} {}", item["kind"], item["name"]).replace('"', "");
    page["items"].as_array().unwrap().iter().map(kind_and_name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_found_whole_or_by_its_beginning() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    let found = async |name: &str| found_names(&cell, name).await;
    assert_eq!(found("jfoo").await, ["job ubar/jfoo"]);
    assert_eq!(found("ubar/j").await, ["job ubar/jfoo"]);
    assert_eq!(found("jfoo/0").await, ["task ubar/jfoo/0"]);
    assert_eq!(found("ubar/jfoo/99").await, [""; 0]);
    // An exact match wins, whatever else has it as a prefix.
    assert_eq!(found("ubar").await, ["user ubar"]);
    assert_eq!(found("nosuch").await, [""; 0]);
    // A name without a match may be a typing error.
    assert_eq!(found("jfo0").await, [""; 0]);
    assert_eq!(found("jfo0&near=true").await, ["job ubar/jfoo"]);
    assert_eq!(found("ubra/jfoo&near=true").await, ["job ubar/jfoo"]);
    assert_eq!(found("ubra&near=true").await, ["user ubar"]);
    assert_eq!(found("nosuch&near=true").await, [""; 0]);
    assert_eq!(cell.ask("GET /v1/find?names=x", NONE).await.code(), "bad-parameter");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_is_what_the_caller_submitted_last_unless_something_is_called_so() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    let found = async |name: &str| found_names(&cell, name).await;
    // The only job belongs to another user.
    assert_eq!(found("last").await, [""; 0]);
    cell.must("POST /v1/users", json!({ "name": DEV_USER })).await;
    for name in ["one", "lasting", "two", "last"] {
        let mut free = job(name, 2);
        free["priority"] = json!(0);
        cell.must("POST /v1/jobs", json!({ "owner": DEV_USER, "spec": free })).await;
        let full = format!("{DEV_USER}/{name}");
        assert_eq!(found("last").await, [format!("job {full}")]);
        assert_eq!(found("last/1").await, [format!("task {full}/1")]);
        assert_eq!(found("last/2").await, [""; 0]);
    }
    // The exact name wins, whatever came after it.
    let mut free = job("three", 1);
    free["priority"] = json!(0);
    cell.must("POST /v1/jobs", json!({ "owner": DEV_USER, "spec": free })).await;
    assert_eq!(found("last").await, [format!("job {DEV_USER}/last")]);
}
