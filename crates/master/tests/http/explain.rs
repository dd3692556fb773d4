//! Why a task waits, when it is not for a machine: for a scheduler, or for a package.

use crate::agent::say;
use crate::support::{Cell, job, within};
use cellwright_api::internal::{LeaseRequest, PassStatistics};
use cellwright_cell::command::Command;
use cellwright_cell::id::MachineId;
use cellwright_cell::spec::PackageRef;
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

/// A machine, a job of one task, and leases that outlast the test: nothing here depends on how long
/// it takes.
async fn furnished() -> Cell {
    let mut plan = crate::support::Plan::default();
    plan.master.scheduler_lease = cellwright_cell::time::Span::seconds(3600);
    let cell = Cell::planned(plan).await;
    cell.furnish(1).await;
    cell
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_nobody_serves_is_the_first_reason() {
    let cell = furnished().await;
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
async fn a_package_that_nobody_has_is_a_reason_in_plans_and_explanations() {
    let cell = furnished().await;
    lease(&cell, "s1", "").await;
    let package = json!({ "name": "server", "digest": "ab".repeat(32), "bytes": 9 });
    let mut spec = job("runs", 1);
    spec["task"]["packages"] = json!([package]);
    let submit = json!({ "owner": "ubar", "spec": spec });
    let planned = async || {
        let body = json!({ "jobs": [submit] });
        let told = cell.must("POST /v1/plan?consistent=true", body).await;
        told.body["item"]["jobs"][0]["obstacles"].clone()
    };
    let nobody = json!([{
        "code": "package-not-in-cell",
        "message": "package server (abababababab) is not in the cell",
        "hint": "bring it with `cell package push FILE --name server`",
    }]);
    assert_eq!(planned().await, nobody);
    cell.must("POST /v1/jobs", submit.clone()).await;
    assert_eq!(obstacles(&cell, "runs").await, nobody);
    let whole = cell.must("GET /v1/jobs/ubar/runs/explain", Value::Null).await.body;
    let text = whole["item"]["text"].as_str().unwrap();
    assert!(text.starts_with("package server (abababababab) is not in the cell: "), "{text}");
    assert_eq!(whole["item"]["groups"][0]["why"]["obstacles"], nobody);
    // A machine that is up and has it gives it to the others.
    let machine = MachineId(0);
    let package: PackageRef = serde_json::from_value(package).unwrap();
    say(&cell, Command::MachineUp { machine, incarnation: 1 }).await;
    say(&cell, Command::SetMachinePackages { machine, packages: [package].into() }).await;
    assert_eq!(obstacles(&cell, "runs").await, json!([]));
    say(&cell, Command::MachineDown { machine }).await;
    assert_eq!(obstacles(&cell, "runs").await, nobody);
}
