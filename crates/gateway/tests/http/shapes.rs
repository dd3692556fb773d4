//! Task shapes over the API, and the estimated start of a waiting task.

use crate::support::{Cell, job, machine, within};
use cellwright_cell::command::{Command, Done, Observed, TaskReport};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::name::Name;
use cellwright_cell::plan::{Assignment, Group, Plan};
use cellwright_master::handle::Caller;
use cellwright_messages::{LeaseRequest, PassStatistics};
use serde_json::{Value, json};

async fn submit_as_system(cell: &Cell, command: Command) -> Done {
    let by = Caller::default_sender(&command, &cell.handle().read().state);
    cell.handle().submit(&by, None, command).await.unwrap().verdict.unwrap()
}

/// The task is placed on the machine and started there.
async fn run_task(cell: &Cell, task: u32, machine: u32) {
    let (task, machine) = (TaskId(task), MachineId(machine));
    let (ports, devices) = (Vec::new(), Vec::new());
    let assignment = Assignment { task, attempt: 0, machine, alloc: None, ports, devices };
    let group = Group { victims: Vec::new(), assignments: vec![assignment] };
    submit_as_system(cell, Command::CommitPlan(Plan { made_at: 0, groups: vec![group] })).await;
    let reports = vec![TaskReport { task, attempt: 1, what: Observed::Started }];
    submit_as_system(cell, Command::TaskReports { machine, incarnation: 1, reports }).await;
}

/// `ubar/jfoo/0` runs on the first of two machines and takes 600 of its 1000; the second one is in
/// zone `b`. A scheduler serves the cell.
async fn prepared_cell(max_run: Option<u64>) -> Cell {
    let mut plan = crate::support::CellOptions::default();
    // Longer than the test, so that nothing here depends on timing.
    plan.master.core.scheduler_lease = cellwright_cell::time::Span::seconds(3600);
    let cell = Cell::start_with_options(plan).await;
    cell.must("POST /v1/users", json!({ "name": "ubar" })).await;
    let quota = json!({ "amount": { "cpu": 9000, "ram": 9000 } });
    cell.must("PUT /v1/users/ubar/quota/batch", quota).await;
    cell.must("POST /v1/machines", machine("m1")).await;
    let mut other = machine("m2");
    other["labels"] = json!({ "zone": "b" });
    cell.must("POST /v1/machines", other).await;
    for number in 0..2 {
        let machine = MachineId(number);
        submit_as_system(&cell, Command::MachineUp { machine, incarnation: 1 }).await;
    }
    submit_job(&cell, "jfoo", 600, max_run).await;
    run_task(&cell, 0, 0).await;
    let client = cell.client(Some(&Caller::Scheduler(Name::new("s1").unwrap())));
    let (scheduler, shard) = ("s1".into(), String::new());
    let request = LeaseRequest {
        scheduler,
        scheduler_shard: shard,
        passes: PassStatistics::default(),
        wall: cellwright_identity::clock::wall(),
        level: 1,
    };
    assert!(within(client.lease(&request)).await.unwrap().granted);
    cell
}

async fn submit_job(cell: &Cell, name: &str, size: u64, max_run: Option<u64>) {
    let mut spec = job(name, 1);
    spec["task"]["limits"] = json!({ "cpu": size, "ram": size });
    spec["task"]["max_run"] = json!(max_run);
    cell.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": spec })).await;
}

async fn shapes(cell: &Cell, query: Value) -> Value {
    cell.must("POST /v1/shapes?consistent=true", query).await.body["item"].clone()
}

async fn explain(cell: &Cell, job: &str) -> Value {
    let target = format!("GET /v1/jobs/ubar/{job}/tasks/0/explain?consistent=true");
    cell.must(&target, Value::Null).await.body["item"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_is_no_body() {
    let cell = Cell::start().await;
    let got = cell.ask("POST /v1/shapes", json!([null, null])).await;
    assert!(got.status == 400 && got.text.contains("an object"), "{} {}", got.status, got.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shapes_are_counted_for_both_kinds_of_work_and_for_what_is_asked() {
    let cell = prepared_cell(None).await;
    let shapes_view = shapes(&cell, json!({})).await;
    assert_eq!(
        (&shapes_view["machines_total"], &shapes_view["easy_percent"]),
        (&json!(2), &json!(25))
    );
    let sets = shapes_view["sets"].as_array().unwrap();
    let bands: Vec<_> = sets.iter().map(|set| (&set["priority"], &set["band"])).collect();
    let (batch, production) = (json!("batch"), json!("production"));
    assert_eq!(bands, [(&json!(100), &batch), (&json!(200), &production)]);
    let first = &sets[0]["ladder"][0];
    let limits = json!({ "cpu": 400, "ram": 384, "disk": 0, "disk_rate": 0 });
    assert_eq!(*first, json!({ "limits": limits, "tasks": 3, "machines": 2, "easy": true }));
    assert_eq!(sets[0]["largest"][0]["machine"], "m2");
    let limits = json!({ "cpu": 300, "ram": 100 });
    let response = shapes(&cell, json!({ "limits": limits.clone(), "priority": 0 })).await;
    assert_eq!(response["sets"].as_array().unwrap().len(), 1);
    assert_eq!(response["sets"][0]["requested"]["tasks"], 4);
    let only = json!({ "limits": limits, "selector": "zone=b", "priority": 100 });
    let only = shapes(&cell, only).await;
    let set = &only["sets"][0];
    assert_eq!((&set["machines"], &set["requested"]["tasks"]), (&json!(1), &json!(3)), "{set}");
    let like = shapes(&cell, json!({ "like": { "user": "ubar", "job": "jfoo" } })).await;
    let like = &like["sets"][0]["like"];
    assert_eq!((&like["job"], &like["tasks"]), (&json!("ubar/jfoo"), &json!(1)), "{like}");
    assert!(like["stopped_by"].as_str().unwrap().contains("cpu"), "{like}");
    let no_job = json!({ "like": { "user": "ubar", "job": "absent" } });
    let nobody = cell.ask("POST /v1/shapes", no_job).await;
    assert_eq!(nobody.code(), "no-such-job", "{}", nobody.text);
    let wrong = cell.ask("POST /v1/shapes", json!({ "easy_percent": 0 })).await;
    assert_eq!((wrong.status, wrong.code()), (400, "bad-field"), "{}", wrong.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_waits_starts_when_the_one_in_its_way_has_to_end() {
    const HOUR: u64 = 3_600_000;
    let cell = prepared_cell(Some(HOUR)).await;
    submit_job(&cell, "stays", 1000, None).await;
    run_task(&cell, 1, 1).await;
    submit_job(&cell, "waits", 500, None).await;
    let task = cell.must("GET /v1/jobs/ubar/jfoo/tasks/0", Value::Null).await.body["item"].clone();
    let end = task["changed_at"].as_u64().unwrap() + HOUR;
    let explanation = explain(&cell, "waits").await;
    let eta = &explanation["eta"];
    assert_eq!((&eta["at"], &eta["basis"]), (&json!(end), &json!("known-ends")), "{explanation}");
    assert_eq!((&eta["machine"], &eta["after"]), (&json!("m1"), &json!(["ubar/jfoo/0"])));
    assert!(eta["confidence"].as_str().unwrap().starts_with("at the latest"), "{eta}");
    let text = explanation["text"].as_str().unwrap();
    assert!(text.contains("ubar/jfoo/0 may run on m1 no longer"), "{text}");
    // A task larger than both machines will never start, and one that can be placed starts now.
    submit_job(&cell, "huge", 2000, None).await;
    let never = explain(&cell, "huge").await;
    assert_eq!((&never["eta"]["at"], &never["eta"]["basis"]), (&json!(null), &json!("never-fits")));
    submit_job(&cell, "small", 100, None).await;
    let now = explain(&cell, "small").await;
    assert_eq!(now["eta"]["basis"], "next-pass", "{now}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_told_once_when_it_starts_for_its_largest_group_that_waits() {
    let cell = prepared_cell(None).await;
    let mut spec = job("mixed", 3);
    spec["task"]["limits"] = json!({ "cpu": 2000, "ram": 2000 });
    spec["overrides"] = json!({ "0": { "limits": { "cpu": 3000, "ram": 3000 } } });
    cell.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": spec })).await;
    let explanation =
        cell.must("GET /v1/jobs/ubar/mixed/explain?consistent=true", Value::Null).await;
    let groups = explanation.body["item"]["groups"].as_array().unwrap();
    let counts: Vec<_> = groups.iter().map(|group| group["count"].as_u64()).collect();
    assert_eq!(counts, [Some(2), Some(1)], "{}", explanation.text);
    assert_eq!(groups[0]["why"]["eta"]["basis"], "never-fits", "{}", explanation.text);
    assert_eq!(groups[1]["why"]["eta"], Value::Null, "{}", explanation.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_promised_when_nothing_is_known_to_end() {
    let cell = prepared_cell(None).await;
    submit_job(&cell, "stays", 650, None).await;
    run_task(&cell, 1, 1).await;
    submit_job(&cell, "waits", 700, None).await;
    let explanation = explain(&cell, "waits").await;
    assert_eq!(
        (&explanation["eta"]["at"], &explanation["eta"]["confidence"]),
        (&json!(null), &json!("none"))
    );
    assert_eq!(explanation["eta"]["basis"], "nothing-ends");
    let text = explanation["text"].as_str().unwrap();
    let none = "No estimate of when it starts: nothing that holds room has a known end.";
    assert!(text.contains(none), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_smaller_request_that_many_machines_take_is_named() {
    let cell = prepared_cell(None).await;
    for number in 3..=6 {
        cell.must("POST /v1/machines", machine(&format!("m{number}"))).await;
        let machine = MachineId(number - 1);
        submit_as_system(&cell, Command::MachineUp { machine, incarnation: 1 }).await;
    }
    // The first has 400 left, the others 300.
    for (task, machine) in (1..6).zip(1..6) {
        submit_job(&cell, &format!("j{task}"), 700, None).await;
        run_task(&cell, task, machine).await;
    }
    submit_job(&cell, "waits", 800, None).await;
    let explanation = explain(&cell, "waits").await;
    assert_eq!(explanation["counterfactual"]["machines"], 1, "{explanation}");
    let limits = json!({ "cpu": 300, "ram": 256, "disk": 0, "disk_rate": 0 });
    assert_eq!(
        (&explanation["easier"]["limits"], &explanation["easier"]["machines"]),
        (&limits, &json!(6))
    );
    let text = explanation["text"].as_str().unwrap();
    let line = "With cpu <= 0.3 cores and ram <= 256 B it would fit on 6 of 6 machines.";
    assert!(text.contains(line), "{text}");
}
