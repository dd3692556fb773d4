//! SQL over history, through the API of a running master.

use crate::agent::run_first_task;
use crate::support::{Cell, CellOptions, Folder, machine, within};
use cellwright_cell::id::TaskId;
use cellwright_cell::name::Name;
use cellwright_cell::observed::{ObservedState, ObservedTask};
use cellwright_cell::priority::Priority;
use cellwright_cell::resource::Resources;
use cellwright_cell::time::{Span, Time};
use cellwright_history::Value as SqlValue;
use cellwright_master::handle::Caller;
use cellwright_master::history::HistoryService;
use cellwright_messages::{AgentReport, Epoch, UsageEntry, UsageMark, UsageReport};
use cellwright_supervise::Supervisor;
use serde_json::{Value, json};
use std::sync::mpsc;
use std::time::Duration;

async fn rows(cell: &Cell, query: &str) -> Value {
    cell.must("POST /v1/sql", json!({ "query": query })).await.body["rows"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_just_done_is_in_the_answer() {
    let cell = Cell::start().await;
    cell.furnish(3).await;
    let submitted = "select user, job, count(*) from task_events where event = 'submitted'
                     group by user, job";
    assert_eq!(rows(&cell, submitted).await, json!([["ubar", "jfoo", 3]]));
    cell.must("POST /v1/machines", machine("m2")).await;
    let added = "select machine from machine_events where event = 'added' order by log_index";
    assert_eq!(rows(&cell, added).await, json!([["m1"], ["m2"]]));
    let all = "select count(*) from events where kind in ('user', 'job', 'task', 'machine')";
    let count = rows(&cell, all).await[0][0].as_i64().unwrap();
    assert!(count >= 7, "{count}");
    let page = cell.must("GET /v1/events?limit=1000", Value::Null).await.body;
    let feed = page["items"].as_array().unwrap().len();
    assert_eq!(rows(&cell, "select count(*) from events").await, json!([[feed]]));
    let daily = "select sum(count) from task_events_daily";
    let raw = "select count(*) from task_events";
    assert_eq!(rows(&cell, daily).await, rows(&cell, raw).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_query_is_the_askers_fault_and_says_why() {
    let cell = Cell::start().await;
    for (body, status, code, part) in [
        (json!({ "query": "select x from" }), 400, "bad-sql", "incomplete input"),
        (json!({ "query": "select nope from events" }), 400, "bad-sql", "       ^"),
        (json!({ "query": "drop table feed_position" }), 400, "bad-sql", "is not allowed"),
        (json!({ "query": "pragma user_version" }), 400, "bad-sql", "PRAGMA user_version"),
        (json!({ "query": "" }), 400, "bad-sql", "nothing is asked"),
        (json!({ "query": "select \u{0}1" }), 400, "bad-sql", ""),
        (json!({ "query": "select ?", "args": [] }), 400, "bad-sql", "1 `?` and 0 args"),
        (json!({ "query": "select 1", "limit": 0 }), 400, "bad-field", "1 to 100000"),
        (json!({ "query": "select 1", "more": 0 }), 400, "bad-body", "more"),
        (json!({ "args": [] }), 400, "bad-body", "query"),
    ] {
        let got = cell.ask("POST /v1/sql", body.clone()).await;
        assert_eq!((got.status, got.code()), (status, code), "{body}: {}", got.text);
        assert!(got.body["message"].as_str().unwrap().contains(part), "{body}: {}", got.text);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_travel_as_what_they_are_and_answers_are_bounded() {
    let cell = Cell::start().await;
    let ask = json!({
        "query": "select ?1, ?2, ?3, ?4, 9e999, x'00ff', typeof(?1)",
        "args": [7, 0.5, "it's", null],
    });
    let got = cell.must("POST /v1/sql", ask).await.body;
    assert_eq!(got["rows"], json!([[7, 0.5, "it's", null, null, "00ff", "integer"]]));
    assert_eq!(got["truncated"], json!(false));
    let many = "with recursive n(x) as (select 1 union all select x + 1 from n where x < 50)
                select x from n";
    let got = cell.must("POST /v1/sql", json!({ "query": many, "limit": 20 })).await.body;
    assert_eq!((got["rows"].as_array().unwrap().len(), &got["truncated"]), (20, &json!(true)));
    assert_eq!(got["columns"], json!(["x"]));
}

/// A query without end.
const ENDLESS: &str = "with recursive n(x) as (select 1 union all select x + 1 from n)
                       select sum(x) from n";

/// Less than such a query takes if it is not aborted.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_query_ends_when_whoever_asked_is_gone() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let cell = Cell::start().await;
        rows(&cell, "select 1").await;
        for _ in 0..4 {
            let left = cell.ask("POST /v1/sql", json!({ "query": ENDLESS }));
            let waited = tokio::time::timeout(Duration::from_millis(500), left).await;
            assert!(waited.is_err(), "it was answered");
        }
        // Two may run at once, and each counts for as long as it runs.
        let answer = tokio::time::timeout(SOON, rows(&cell, "select 1")).await;
        assert_eq!(answer.expect("the others still run"), json!([[1]]));
    });
    // Dropping a runtime waits for all work that it started, counted or not.
    let (gone, is_gone) = mpsc::channel();
    let end = std::thread::spawn(move || {
        drop(runtime);
        gone.send(()).expect("the test waits for it");
    });
    is_gone.recv_timeout(SOON).expect("queries still run that nobody waits for");
    end.join().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_page_says_how_far_behind_history_is() {
    let cell = Cell::start().await;
    cell.furnish(1).await;
    rows(&cell, "select 1").await;
    let page = cell.must("GET /metrics", Value::Null).await.text;
    assert!(page.contains("\ncell_history_lag_entries 0\n"), "{page}");
    assert!(page.contains("\ncell_history_failing 0\n"), "{page}");
}

/// What the first task used in a second, which was the nth.
fn entry(nth: u64, cpu: u64) -> UsageEntry {
    UsageEntry {
        number: nth,
        name: "ubar/jfoo/0".into(),
        attempt: 1,
        priority: Priority(200),
        begun: Time(cellwright_identity::clock::wall().0 / 3_600_000 * 3_600_000 + nth * 1000),
        millis: 1000,
        samples: 1,
        cpu_micros: cpu * 1000,
        cpu_max: cpu,
        ram_avg: 1 << 20,
        ram_max: 1 << 20,
        disk_max: 0,
        io_bytes: 0,
        reserved: Resources::ZERO,
        limit: Resources::ZERO,
    }
}

/// A poll of the agent of `m1` at this replica, with these entries of its book. Returns the newest
/// one that it need not tell again.
async fn report_usage(
    cell: &Cell,
    number: u64,
    closed: &[UsageEntry],
    open: &[UsageEntry],
) -> Option<UsageMark> {
    let (task, attempt) = (TaskId(0), 1);
    let running = ObservedState::Running { healthy: true };
    let report = AgentReport {
        machine: Name::new("m1").unwrap(),
        incarnation: 1,
        number,
        taken: Epoch::default(),
        hang: true,
        orders_digest: 7,
        spec: None,
        tasks: vec![ObservedTask { task, attempt, log_saver_run: 0, state: running, limits: None }],
        packages: None,
        usage: vec![],
        resource_pressure: vec![],
        wall: cellwright_identity::clock::wall(),
        book: UsageReport { book: 5, closed: closed.to_vec(), open: Some(open.to_vec()) },
        numbers: Vec::new(),
    };
    let agent = cell.client(Some(&Caller::Agent(Name::new("m1").unwrap())));
    within(agent.poll(&cell.address, &report, Span(0))).await.unwrap().usage_recorded
}

/// Two replicas, and a running task.
async fn two_replicas() -> (Cell, Cell) {
    let first = Cell::start().await;
    first.furnish(1).await;
    run_first_task(&first).await;
    let second = Cell::start_with_options(CellOptions {
        id: 2,
        begins_cell: false,
        ..CellOptions::default()
    })
    .await;
    let member = json!({ "id": 2, "name": "m2", "address": second.address });
    first.must("POST /v1/masters", member).await;
    let index = first.handle().read().index;
    let mut applied = second.handle().watch_applied();
    within(applied.wait_for(|at| *at >= index)).await.unwrap();
    (first, second)
}

const USAGE: &str = "select user, job, machine, max(cpu_max), sum(samples) from usage
                     group by user, job, machine";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_now_is_of_one_entry_of_the_log() {
    let cell = Cell::start().await;
    cell.furnish(3).await;
    let now = "select user, job, tasks from jobs_now";
    assert_eq!(rows(&cell, now).await, json!([["ubar", "jfoo", 3]]));
    let points = "select distinct log_index from
                  (select log_index from jobs_now union all select log_index from tasks_now
                   union all select log_index from machines_now)";
    assert_eq!(rows(&cell, points).await.as_array().map(Vec::len), Some(1));
    let known = "select count(*) from tasks_now
                 where (select max(log_index) from task_events) <= log_index";
    assert_eq!(rows(&cell, known).await, json!([[3]]), "and events reach up to it");
    let machines = "select machine, state, cpu > 0 from machines_now";
    assert_eq!(rows(&cell, machines).await[0][0], "m1");
    let wrong = json!({ "query": "select usr from jobs_now" });
    let answer = cell.ask("POST /v1/sql", wrong).await;
    assert!(answer.text.contains("did you mean user?"), "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_version_of_a_job_is_in_the_answer() {
    let cell = Cell::start().await;
    cell.furnish(3).await;
    let sql = "select user, job, version, event, tasks, band, cpu_limit > 0, actor,
               json_extract(spec, '$.name') from submissions";
    let found = rows(&cell, sql).await;
    let row = found[0].as_array().unwrap();
    let expected = json!(["ubar", "jfoo", 1, "submitted", 3]);
    assert_eq!(Value::from(row[..5].to_vec()), expected);
    assert_eq!(found[0][8], "jfoo");
    let spec = rows(&cell, "select spec from submissions").await;
    assert!(!spec[0][0].as_str().unwrap().contains("\"command\":[\""), "{spec}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_told_to_one_replica_is_in_the_answers_of_all() {
    let (first, mut second) = two_replicas().await;
    let now = |number: u64, cpu| UsageEntry { number: 0, ..entry(number, cpu) };
    report_usage(&second, 1, &[], &[now(1, 700)]).await;
    let measured = json!([["ubar", "jfoo", "m1", 700, 1]]);
    for cell in [&second, &first] {
        assert_eq!(rows(cell, USAGE).await, measured, "measured, and written nowhere yet");
    }
    let told = [entry(1, 700), entry(2, 300)];
    let mut number = 2;
    while report_usage(&second, number, &told, &[]).await.is_none_or(|mark| mark.up_to < 2) {
        number += 1;
    }
    let expected = json!([["ubar", "jfoo", "m1", 700, 2]]);
    assert_eq!(rows(&second, USAGE).await, expected, "told more than once, and there once");
    // Its answer got lost, and the agent went to the other one.
    report_usage(&first, number + 1, &told, &[]).await;
    assert_eq!(rows(&first, USAGE).await, expected, "the same rows");
    // Written by the one; the other fetches it when its last copy is some seconds old.
    second.history_keeper.take().unwrap().stop().await;
    assert_eq!(rows(&second, USAGE).await, expected, "once, and not twice");
    let querying = async {
        while rows(&first, USAGE).await != expected {
            tokio::task::yield_now().await;
        }
    };
    within(querying).await;
    // A new history writer fetches it, and has it when the other is gone.
    let folder = Folder::new();
    let history =
        HistoryService::new(&folder.0, first.handle().replicated().clone(), <_>::default());
    history.attach(first.handle());
    let settings = cellwright_history::RetentionConfig::default();
    let keeper = history.start_writer(&folder.0, settings, &Supervisor::default()).unwrap();
    let fetched = async {
        let any = "select count(*) > 0 from usage_daily".to_owned();
        loop {
            let (answer, _) = history.query("ann", any.clone(), vec![], 1).await.unwrap();
            if answer.rows == [[SqlValue::Integer(1)]] {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    within(fetched).await;
    drop(second);
    let (answer, _) = history.query("ann", USAGE.to_owned(), vec![], 9).await.unwrap();
    assert_eq!(answer.rows.len(), 1, "{answer:?}");
    assert_eq!(answer.rows[0][3..], [SqlValue::Integer(700), SqlValue::Integer(2)]);
    keeper.stop().await;
}
