//! Why a task waits, when it is for a scheduler and not for a machine.

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
