//! Why a task waits, when it is for a scheduler or for an alloc set and not for a machine.

use crate::support::{Cell, job, within};
use cellwright_api::internal::{LeaseRequest, PassStatistics};
use cellwright_master::handle::Caller;
use serde_json::{Value, json};

async fn obstacles(cell: &Cell, job: &str) -> Value {
    let target = format!("GET /v1/jobs/ubar/{job}/tasks/0/explain");
    let item = cell.must(&target, Value::Null).await.body["item"].clone();
    for obstacle in item["obstacles"].as_array().unwrap() {
        let text = item["text"].as_str().unwrap();
        assert!(text.starts_with(obstacle["message"].as_str().unwrap()), "{text}");
    }
    item["obstacles"].clone()
}

async fn lease(cell: &Cell, scheduler: &str, lane: &str) {
    let client = cell.client(Some(&Caller::Scheduler(scheduler.into())));
    let (scheduler, lane) = (scheduler.into(), lane.into());
    let request = LeaseRequest { scheduler, lane, passes: PassStatistics::default() };
    assert!(within(client.lease(&request)).await.unwrap().granted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_nobody_serves_is_the_first_reason() {
    let mut plan = crate::support::Plan::default();
    // Longer than the test, so that nothing here depends on how long it takes.
    plan.master.scheduler_lease = cellwright_cell::time::Span::seconds(3600);
    let cell = Cell::planned(plan).await;
    cell.furnish(1).await;
    for (name, lane) in [("trains", "gpu"), ("odd", "two words")] {
        let mut spec = job(name, 1);
        spec["labels"] = json!({ "scheduler": lane });
        cell.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": spec })).await;
    }
    let nobody = json!([{
        "code": "lane-not-served",
        "message": "no scheduler runs",
        "hint": "start one with `cell scheduler`",
    }]);
    assert_eq!(obstacles(&cell, "jfoo").await, nobody);
    lease(&cell, "s1", "").await;
    assert_eq!(obstacles(&cell, "jfoo").await, json!([]));
    let no_lane = json!([{
        "code": "lane-not-served",
        "message": "no scheduler serves lane gpu",
        "hint": "start one with `cell scheduler --lane gpu`",
    }]);
    assert_eq!(obstacles(&cell, "trains").await, no_lane);
    lease(&cell, "s2", "gpu").await;
    assert_eq!(obstacles(&cell, "trains").await, json!([]));
    let odd = obstacles(&cell, "odd").await;
    assert!(odd[0]["message"].as_str().unwrap().contains("two words"), "{odd}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_ran_in_an_alloc_set_that_was_stopped_is_told_so() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    let mut set = job("pair", 1);
    (set["kind"], set["task"]["command"]) = (json!("alloc_set"), json!([]));
    let mut inside = job("inside", 1);
    inside["alloc_set"] = json!({ "user": "ubar", "job": "pair" });
    for spec in [set, inside] {
        cell.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": spec })).await;
    }
    let codes = |found: &Value| -> Vec<String> {
        let found = found.as_array().unwrap().iter();
        found.map(|one| one["code"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(codes(&obstacles(&cell, "inside").await), ["lane-not-served"]);
    cell.must("DELETE /v1/jobs/ubar/pair", Value::Null).await;
    let told = obstacles(&cell, "inside").await;
    assert_eq!(codes(&told), ["no-alloc-set"]);
    assert_eq!(told[0]["message"], "alloc set ubar/pair was stopped");
    let target = "GET /v1/jobs/ubar/inside/tasks/0/explain";
    let text = cell.must(target, Value::Null).await.body["item"]["text"].to_string();
    assert!(text.contains("It runs only inside an alloc of its set"), "{text}");
    assert!(!text.contains("waiting will not help"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_never_ran_names_the_job_it_needed() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    let mut join = job("join", 1);
    join["after"] = json!([{ "job": { "user": "ubar", "job": "jfoo" } }]);
    cell.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": join })).await;
    cell.must("DELETE /v1/jobs/ubar/jfoo", Value::Null).await;
    let task = cell.must("GET /v1/jobs/ubar/join/tasks/0", Value::Null).await.body;
    assert_eq!(task["item"]["needed"], "ubar/jfoo", "{task}");
    let target = "GET /v1/jobs/ubar/join/tasks/0/explain";
    let text = cell.must(target, Value::Null).await.body["item"]["text"].to_string();
    let want = "never ran: ubar/jfoo, which it needed, did not succeed.";
    assert!(text.contains(want), "{text}");
    let sql = "select event, reason, detail from events where object like 'ubar/join%' \
               and event = 'never-ran' order by kind";
    let answer = cell.must("POST /v1/sql", json!({ "query": sql })).await.body;
    let row = json!(["never-ran", "dependency-failed", "ubar/jfoo"]);
    assert_eq!(answer["rows"], json!([row.clone(), row]), "{answer}");
}
