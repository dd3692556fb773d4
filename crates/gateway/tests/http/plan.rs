//! Plans: what a plan predicts before anything is done, and that it then happens.

use crate::support::{Cell, job, machine, user};
use cellwright_cell::command::{Command, Done, Observed, TaskReport};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::plan::{Assignment, Group, Plan, Victim};
use cellwright_cell::task::ExitClass;
use cellwright_master::handle::Caller;
use serde_json::{Value, json};

pub async fn submit_as_system(cell: &Cell, command: Command) -> Done {
    let by = Caller::default_sender(&command, &cell.handle().read().state);
    cell.handle().submit(&by, None, command).await.unwrap().verdict.unwrap()
}

fn placement(task: u32, attempt: u32, machine: u32) -> Group {
    let (task, machine) = (TaskId(task), MachineId(machine));
    let (ports, devices) = (Vec::new(), Vec::new());
    let assignment = Assignment { task, attempt, machine, alloc: None, ports, devices };
    Group { victims: Vec::new(), assignments: vec![assignment] }
}

pub async fn report(cell: &Cell, machine: u32, task: u32, attempt: u32, observed: Observed) {
    let reports = vec![TaskReport { task: TaskId(task), attempt, what: observed }];
    let machine = MachineId(machine);
    submit_as_system(cell, Command::TaskReports { machine, incarnation: 1, reports }).await;
}

/// `ubar/jfoo`, two tasks, running on `m1` and `m2`.
pub async fn running_cell() -> Cell {
    let cell = Cell::start().await;
    cell.furnish(2).await;
    cell.must("POST /v1/machines", machine("m2")).await;
    for number in 0..2 {
        let machine = MachineId(number);
        submit_as_system(&cell, Command::MachineUp { machine, incarnation: 1 }).await;
        let plan = Plan { made_at: 0, groups: vec![placement(number, 0, number)] };
        submit_as_system(&cell, Command::CommitPlan(plan)).await;
        report(&cell, number, number, 1, Observed::Started).await;
    }
    cell
}

async fn plan(cell: &Cell, spec: Value) -> Value {
    let body = json!({ "jobs": [{ "owner": "ubar", "spec": spec }] });
    cell.must("POST /v1/plan?consistent=true", body).await.body["item"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_tells_what_an_update_would_do_and_its_token_goes_stale_with_the_job() {
    let cell = running_cell().await;
    let before = cell.must("GET /v1/jobs/ubar/jfoo", Value::Null).await.body["item"].clone();
    let mut spec = job("jfoo", 3);
    spec["task"]["command"] = json!(["/bin/false"]);
    let plan_view = plan(&cell, spec.clone()).await;
    let one = &plan_view["jobs"][0];
    assert_eq!((&one["action"], &one["version"]), (&json!("update"), &json!(1)), "{one}");
    let changes = one["changes"].as_array().unwrap();
    let paths: Vec<_> = changes.iter().map(|c| (&c["path"], &c["class"])).collect();
    let count = (&json!("count"), &json!("no_restart"));
    let command = (&json!("task.command"), &json!("restart"));
    assert_eq!(paths, [count, command]);
    assert_eq!((&one["tasks"]["restarted"], &one["tasks"]["added"]), (&json!(2), &json!(1)));
    assert_eq!((&one["placed"], &one["pending"]), (&json!(1), &json!(0)));
    assert_eq!(one["disruption"]["tasks"], 2);
    assert_eq!(one["obstacles"][0]["code"], "shard-not-served");
    // Nothing happened.
    let after = cell.must("GET /v1/jobs/ubar/jfoo", Value::Null).await.body["item"].clone();
    assert_eq!(before, after);
    let again = plan(&cell, spec.clone()).await;
    let parts = |plan_view: &Value| {
        let token = plan_view["token"].as_str().unwrap().to_owned();
        token.split('-').map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(parts(&again)[1..], parts(&plan_view)[1..]);
    cell.must("PUT /v1/jobs/ubar/jfoo", spec.clone()).await;
    let done = plan(&cell, spec).await;
    assert_eq!(done["jobs"][0]["action"], "nothing");
    assert_ne!(parts(&done)[1], parts(&plan_view)[1]);
    assert_eq!(parts(&done)[2], parts(&plan_view)[2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_names_who_is_resized_and_who_has_to_move_and_why() {
    let cell = running_cell().await;
    let now = cell.must("GET /v1/jobs/ubar/jfoo", Value::Null).await.body["item"]["spec"].clone();
    let mut spec = now.clone();
    spec["task"]["limits"]["cpu"] = json!(now["task"]["limits"]["cpu"].as_u64().unwrap() + 1);
    let plan_view = plan(&cell, spec.clone()).await;
    let one = &plan_view["jobs"][0];
    assert_eq!(one["tasks"]["resized"], 2, "{one}");
    assert_eq!(one["disruption"]["tasks"], 0);
    let effect = |change: &str, tasks: &[u32], fields: &[&str]| {
        let count = tasks.len();
        json!([{ "change": change, "count": count, "tasks": tasks, "fields": fields }])
    };
    assert_eq!(one["effects"], effect("resized", &[0, 1], &["task.limits"]));
    spec["task"]["command"] = json!(["/bin/false"]);
    let one = plan(&cell, spec).await["jobs"][0].clone();
    assert_eq!(one["effects"], effect("restarted", &[0, 1], &["task.command"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_would_be_refused_or_wait_is_told_with_its_reasons() {
    let cell = running_cell().await;
    let mut greedy = job("jfoo", 2);
    greedy["task"]["limits"] = json!({ "cpu": 100_000, "ram": 10 });
    let plan_view = plan(&cell, greedy).await;
    let rejected_job = &plan_view["jobs"][0];
    assert_eq!(rejected_job["action"], "rejected");
    assert_eq!(rejected_job["rejected"]["code"], "quota-exceeded");
    let mut nowhere = job("jnew", 2);
    nowhere["priority"] = json!(0);
    nowhere["constraints"] =
        json!([{ "attribute": "gpu-model", "operator": "exists", "strength": "hard" }]);
    let one = plan(&cell, nowhere).await["jobs"][0].clone();
    assert_eq!((&one["action"], &one["pending"]), (&json!("create"), &json!(2)), "{one}");
    let why = &one["why_pending"];
    let sum: u64 = why["reasons"].as_array().unwrap().iter().map(machines).sum();
    assert_eq!((sum, why["machines_total"].as_u64()), (2, Some(2)));
    assert_eq!(why["counterfactual"]["change"]["DropConstraint"]["position"], 0, "{why}");
    // A job of another user is rejected before anything of it is looked at.
    cell.must("POST /v1/users", json!({ "name": "other" })).await;
    let body = json!({ "jobs": [{ "owner": "ubar", "spec": job("jfoo", 3) }] });
    let other = cell.ask_as(&user("other"), "POST /v1/plan", &[], body).await;
    assert_eq!((other.status, other.code()), (403, "not-owner"), "{}", other.text);
    let none = cell.ask("POST /v1/plan", json!({ "jobs": [] })).await;
    assert_eq!((none.status, none.code()), (400, "bad-field"), "{}", none.text);
    let many = json!({ "owner": "ubar", "spec": job("jnew", 150_000) });
    let many = cell.ask("POST /v1/plan", json!({ "jobs": [many.clone(), many] })).await;
    assert!(many.text.contains("at most 200000 tasks in all jobs"), "{}", many.text);
}

fn machines(reason: &Value) -> u64 {
    reason["machines"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_explained_where_it_runs_when_it_fails_and_when_it_is_gone() {
    let cell = running_cell().await;
    let explain = async |path: &str| {
        cell.must(&format!("GET /v1/jobs/ubar/jfoo/{path}"), Value::Null).await.body["item"].clone()
    };
    let here = explain("tasks/0/explain").await;
    assert!(here["text"].as_str().unwrap().starts_with("running on m1."), "{here}");
    assert_eq!((&here["here"]["machine"], &here["here"]["fitting"]), (&json!("m1"), &json!(2)));
    let candidates = here["here"]["candidates"].as_array().unwrap();
    assert_eq!(candidates.iter().filter(|c| c["here"] == true).count(), 1);
    assert!(here["history"].as_array().unwrap().iter().any(|h| h["reason"] == "found-place"));

    report(&cell, 0, 0, 1, Observed::Failed(ExitClass::Code(3))).await;
    let failing = explain("tasks/0/explain").await;
    let text = failing["text"].as_str().unwrap();
    assert!(text.contains("\nfailing: it failed once."), "{text}");
    assert!(text.contains("exited with code 3"), "{text}");
    assert_eq!(failing["failing"]["failures_in_row"], 1);
    assert_eq!(failing["last_end"]["reason"], "exited");
    let sum: u64 = failing["reasons"].as_array().unwrap().iter().map(machines).sum();
    assert_eq!(Some(sum), failing["machines_total"].as_u64());

    let whole = explain("explain").await;
    assert_eq!((&whole["tasks"]["running"], &whole["groups"][0]["count"]), (&json!(1), &json!(1)));
    let task = "GET /v1/jobs/ubar/jfoo/tasks/0";
    let crashed = cell.must(task, Value::Null).await.body["item"]["crashed_on"].clone();
    assert_eq!(crashed[0]["machine"], "m1");
    // A machine that was removed need not be avoided.
    cell.must("DELETE /v1/machines/m1", Value::Null).await;
    let crashed = cell.must(task, Value::Null).await.body["item"]["crashed_on"].clone();
    assert_eq!(crashed, json!([]));
    cell.must("DELETE /v1/jobs/ubar/jfoo", Value::Null).await;
    report(&cell, 1, 1, 1, Observed::Stopped).await;
    let dead = explain("tasks/1/explain").await;
    assert!(dead["text"].as_str().unwrap().starts_with("stopped: its owner"), "{dead}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_tasks_have_not_passed_their_check_does_not_say_that_all_is_well() {
    let cell = running_cell().await;
    let mut sick = job("sick", 1);
    sick["task"]["health"] = json!({ "probe": { "command": ["false"] } });
    let quota = json!({ "amount": { "cpu": 3000, "ram": 1000 } });
    cell.must("PUT /v1/users/ubar/quota/batch", quota).await;
    cell.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": sick })).await;
    let groups = vec![placement(2, 0, 0)];
    submit_as_system(&cell, Command::CommitPlan(Plan { made_at: 0, groups })).await;
    let read = async |path: &str| {
        cell.must(&format!("GET /v1/jobs/ubar/sick{path}"), Value::Null).await.body["item"].clone()
    };
    let task = read("/tasks/0").await;
    assert_eq!((&task["healthy"], &task["health"]), (&json!(false), &json!("not_yet_healthy")));
    let explanation = read("/explain").await["text"].as_str().unwrap().to_owned();
    assert!(!explanation.contains("Nothing keeps its tasks from running"), "{explanation}");
    assert!(explanation.contains("has not passed its health check yet"), "{explanation}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_that_is_complete_is_planned_as_closed_and_otherwise_named_in_the_refusal() {
    let cell = running_cell().await;
    let mut spec = job("jfoo", 2);
    spec["labels"] = json!({ "team": "search" });
    cell.must("PUT /v1/jobs/ubar/jfoo", spec.clone()).await;
    let view = cell.must("GET /v1/jobs/ubar/jfoo", Value::Null).await.body["item"].clone();
    assert_eq!((&view["version"], &view["update_complete"]), (&json!(2), &json!(true)));
    spec["labels"] = json!({ "team": "ads" });
    let job_plan = plan(&cell, spec.clone()).await["jobs"][0].clone();
    assert_eq!(
        (&job_plan["action"], &job_plan["closes_update"]),
        (&json!("update"), &json!(2)),
        "{job_plan}"
    );
    // The API itself closes no update without a request.
    let rejected = cell.ask("PUT /v1/jobs/ubar/jfoo", spec).await;
    assert_eq!((rejected.status, rejected.code()), (409, "wrong-state"), "{}", rejected.text);
    assert!(rejected.text.contains("cell update close ubar/jfoo"), "{}", rejected.text);
    cell.must("POST /v1/jobs/ubar/jfoo/close", Value::Null).await;
    let none = cell.ask("POST /v1/jobs/ubar/jfoo/undo", Value::Null).await;
    assert!(none.text.contains("cell status ubar/jfoo"), "{}", none.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn to_stop_a_task_that_there_is_not_says_how_many_there_are() {
    let cell = running_cell().await;
    for request in ["DELETE /v1/jobs/ubar/jfoo/tasks/9", "GET /v1/jobs/ubar/jfoo/tasks/9"] {
        let answer = cell.ask(request, Value::Null).await;
        assert_eq!((answer.status, answer.code()), (404, "no-such-task"), "{}", answer.text);
        let expected = "there is no task ubar/jfoo/9; it has 2";
        assert!(answer.text.contains(expected), "{request}: {}", answer.text);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_gave_way_says_to_whom_and_not_who_saw_it() {
    let cell = running_cell().await;
    let mut boss = job("boss", 1);
    boss["priority"] = json!(150);
    boss["task"]["limits"] = json!({ "cpu": 1000, "ram": 10 });
    let quota = json!({ "amount": { "cpu": 3000, "ram": 1000 } });
    cell.must("PUT /v1/users/ubar/quota/batch", quota).await;
    cell.must("POST /v1/jobs", json!({ "owner": "ubar", "spec": boss })).await;
    let victims = vec![Victim { task: TaskId(0), attempt: 1 }];
    let group = Group { victims, ..placement(2, 0, 0) };
    submit_as_system(&cell, Command::CommitPlan(Plan { made_at: 0, groups: vec![group] })).await;
    report(&cell, 0, 0, 1, Observed::Stopped).await;
    let path = "GET /v1/jobs/ubar/jfoo/tasks/0/explain";
    let item = cell.must(path, Value::Null).await.body["item"].clone();
    let text = item["text"].as_str().unwrap();
    let last = "Last: evicted from m1, pending again: preempted by ubar/boss/0";
    assert!(text.contains(last), "{text}");
    assert_eq!(item["last_end"]["reason"], "preempted", "{item}");
}
