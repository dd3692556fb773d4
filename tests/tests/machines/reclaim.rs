//! Room that a production task reserves and does not use is lent to batch, and taken back when the
//! production task wants it: batch pays, production never.

use cellwright_cell::event::{TaskChange, What};
use cellwright_cell::reason::Reason;
use cellwright_cell::resource::Resources;
use cellwright_cell::task::TaskState;
use cellwright_tests::machines::{CAPACITY, Machines, Wanted, on};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
/// Of each machine: for the production task by its limits, or for both by what they use, but never
/// for both by their limits.
const RAM: u64 = 256 * MIB;
const PRODUCTION: u64 = 200 * MIB;
const BATCH: u64 = 150 * MIB;

/// Minutes become tenths of a second.
const FAST: &[(&str, &str)] = &[
    ("poll_interval = \"5s\"", "poll_interval = \"200ms\""),
    ("reclaim_warm_up = \"5m\"", "reclaim_warm_up = \"1s\""),
    ("reclaim_speed = 1", "reclaim_speed = 1000"),
];

/// Holds so much memory, for ever: what is read is kept until its line ends, which it never does.
fn hold(mebibytes: u64) -> String {
    format!("{{ head -c {mebibytes}M /dev/zero; exec sleep 100000; }} | tail")
}

fn job(cell: &Machines, name: &str, priority: u32, ram: u64, script: &str) -> Value {
    let mut job = cell.job(name, 1, script);
    job["priority"] = json!(priority);
    job["constraints"] = on(1);
    job["task"]["limits"]["ram"] = json!(ram);
    job["task"]["notice"] = json!(0);
    job
}

async fn reserved(cell: &Machines, job: &str) -> Option<u64> {
    Some(cell.tasks(job).await.first()?.reservation.ram)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_runs_in_what_production_does_not_use_and_leaves_when_it_does() {
    let capacity = Some(Resources { ram: RAM, ..CAPACITY });
    let wanted = Wanted { changes: FAST, capacity, ..Wanted::default() };
    let Some(cell) = Machines::lay_out(&wanted).await else { return };
    let wait = r#"while ! test -e "$SHARED/go"; do sleep 0.1; done"#;
    let script = format!("{wait}\n{}", hold(180));
    cell.submit(&job(&cell, "production", 200, PRODUCTION, &script)).await;
    cell.all_run("production").await;
    cell.submit(&job(&cell, "batch", 100, BATCH, &hold(120))).await;
    // It fits by what the other one is expected to use, and not before.
    cell.all_run("batch").await;
    cell.until("batch reserves what it uses", async |cell| {
        (reserved(cell, "batch").await? > 120 * MIB).then_some(())
    })
    .await;
    let lent = reserved(&cell, "production").await.expect("it runs");
    assert!(lent + BATCH <= RAM, "{lent} bytes are reserved for production");

    std::fs::write(cell.shared("go"), "").expect("a file");
    cell.until("batch has to leave", async |cell| {
        let mut events = cell.events("batch").await.into_iter();
        let left = events.any(|event| match event.what {
            What::Task { change: TaskChange::Evicted { .. }, .. } => {
                event.reason == Reason::OverCommitted
            }
            _ => false,
        });
        left.then_some(())
    })
    .await;
    cell.until("production has what it reserved at first", async |cell| {
        (reserved(cell, "production").await? > 180 * MIB).then_some(())
    })
    .await;
    // It may go nowhere else, and here there is no room for it as long as that lasts.
    cell.all("batch", |task| task.state == TaskState::Pending).await;
    let production = cell.all_run("production").await;
    assert_eq!((production[0].attempt, production[0].failures_in_row), (1, 0));
}
