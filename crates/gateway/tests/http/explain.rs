//! Why a task waits, when it does not wait for a machine: for a scheduler, a package or an alloc
//! set.

use crate::agent::submit;
use crate::support::{Cell, job, within};
use cellwright_cell::command::Command;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::name::Name;
use cellwright_cell::plan::{Assignment, Group, Plan};
use cellwright_cell::spec::PackageRef;
use cellwright_master::handle::Caller;
use cellwright_messages::{LeaseRequest, PassStatistics};
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

async fn lease(cell: &Cell, scheduler: &str, shard: &str) {
    let client = cell.client(Some(&Caller::Scheduler(Name::new(scheduler).unwrap())));
    let (scheduler, shard) = (scheduler.into(), shard.into());
    let request = LeaseRequest {
        scheduler,
        scheduler_shard: shard,
        passes: PassStatistics::default(),
        wall: cellwright_identity::clock::wall(),
        level: 1,
    };
    assert!(within(client.lease(&request)).await.unwrap().granted);
}

/// A machine, a job of one task, and leases that outlast the test: nothing here depends on timing.
async fn prepared_cell() -> Cell {
    let mut plan = crate::support::CellOptions::default();
    plan.master.core.scheduler_lease = cellwright_cell::time::Span::seconds(3600);
    let cell = Cell::start_with_options(plan).await;
    cell.furnish(1).await;
    cell
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_nobody_serves_is_the_first_reason() {
    let cell = prepared_cell().await;
    for (name, shard) in [("trains", "gpu"), ("odd", "two words")] {
        let mut spec = job(name, 1);
        spec["labels"] = json!({ "scheduler": shard });
        cell.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": spec })).await;
    }
    let no_holder = json!([{
        "code": "shard-not-served",
        "message": "no scheduler runs",
        "hint": "start one with `cell scheduler`",
    }]);
    assert_eq!(obstacles(&cell, "jfoo").await, no_holder);
    lease(&cell, "s1", "").await;
    assert_eq!(obstacles(&cell, "jfoo").await, json!([]));
    let no_lane = json!([{
        "code": "shard-not-served",
        "message": "no scheduler serves scheduler shard gpu",
        "hint": "start one with `cell scheduler --shard gpu`",
    }]);
    assert_eq!(obstacles(&cell, "trains").await, no_lane);
    lease(&cell, "s2", "gpu").await;
    assert_eq!(obstacles(&cell, "trains").await, json!([]));
    let odd = obstacles(&cell, "odd").await;
    assert!(odd[0]["message"].as_str().unwrap().contains("two words"), "{odd}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_package_that_nobody_has_is_a_reason_in_plans_and_explanations() {
    let cell = prepared_cell().await;
    lease(&cell, "s1", "").await;
    let package = json!({ "name": "server", "digest": "ab".repeat(32), "bytes": 9 });
    let mut spec = job("runs", 1);
    spec["task"]["packages"] = json!([package]);
    let submission = json!({ "owner": "ubar", "spec": spec });
    let planned = async || {
        let body = json!({ "jobs": [submission] });
        let plan = cell.must("POST /v1/plan?consistent=true", body).await;
        plan.body["item"]["jobs"][0]["obstacles"].clone()
    };
    let no_holder = json!([{
        "code": "package-not-in-cell",
        "message": "package server (abababababab) is not in the cell",
        "hint": "bring it with `cell package push FILE --name server`",
    }]);
    assert_eq!(planned().await, no_holder);
    cell.must("POST /v1/jobs", submission.clone()).await;
    assert_eq!(obstacles(&cell, "runs").await, no_holder);
    let whole = cell.must("GET /v1/jobs/ubar/runs/explain", Value::Null).await.body;
    let text = whole["item"]["text"].as_str().unwrap();
    assert!(text.starts_with("package server (abababababab) is not in the cell: "), "{text}");
    assert_eq!(whole["item"]["groups"][0]["why"]["obstacles"], no_holder);
    // A machine that is up and has it serves it to the others.
    let machine = MachineId(0);
    let package: PackageRef = serde_json::from_value(package).unwrap();
    submit(&cell, Command::MachineUp { machine, incarnation: 1 }).await;
    submit(&cell, Command::SetMachinePackages { machine, packages: [package].into() }).await;
    assert_eq!(obstacles(&cell, "runs").await, json!([]));
    submit(&cell, Command::MachineDown { machine }).await;
    assert_eq!(obstacles(&cell, "runs").await, no_holder);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_tasks_all_start_says_which_package_they_wait_for() {
    let cell = prepared_cell().await;
    lease(&cell, "s1", "").await;
    let package = json!({ "name": "server", "digest": "ab".repeat(32), "bytes": 9 });
    let mut spec = job("runs", 1);
    spec["task"]["packages"] = json!([package]);
    cell.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": spec })).await;
    let machine = MachineId(0);
    submit(&cell, Command::MachineUp { machine, incarnation: 1 }).await;
    // The first task belongs to the job of the prepared cell.
    let (task, ports, devices) = (TaskId(1), Vec::new(), Vec::new());
    let assignment = Assignment { task, attempt: 0, machine, alloc: None, ports, devices };
    let group = Group { victims: Vec::new(), assignments: vec![assignment] };
    submit(&cell, Command::CommitPlan(Plan { made_at: 0, groups: vec![group] })).await;
    let text = async || {
        let whole = cell.must("GET /v1/jobs/ubar/runs/explain", Value::Null).await.body;
        whole["item"]["text"].as_str().unwrap().to_owned()
    };
    let lacks = text().await;
    assert!(lacks.starts_with("package server (abababababab) is not in the cell: "), "{lacks}");
    assert!(lacks.ends_with("\n1 starting."), "{lacks}");
    let package: PackageRef = serde_json::from_value(package).unwrap();
    submit(&cell, Command::SetMachinePackages { machine, packages: [package].into() }).await;
    assert_eq!(text().await, "1 starting. Nothing keeps its tasks from running.");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_ran_in_an_alloc_set_that_was_stopped_is_told_so() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    submit(&cell, Command::MachineUp { machine: MachineId(0), incarnation: 1 }).await;
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
    assert_eq!(codes(&obstacles(&cell, "inside").await), ["shard-not-served"]);
    cell.must("DELETE /v1/jobs/ubar/pair", Value::Null).await;
    let obstacles_shown = obstacles(&cell, "inside").await;
    assert_eq!(codes(&obstacles_shown), ["no-alloc-set"]);
    assert_eq!(obstacles_shown[0]["message"], "alloc set ubar/pair was stopped");
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
