//! What tasks used is in history as the kernel counted it, however short they were and whoever was
//! killed meanwhile: agents, the master, both while a task ends.
//!
//! The kernel's own count is that of the group around all tasks of a machine.
//! `CELL_BILLING_SECONDS` says for how long tasks are started and processes are killed.

use cellwright_agent::cgroups::base_name;
use cellwright_api::types::{SqlQuery, SqlValue};
use cellwright_isolate::cgroup::{Group, GroupPath, Layout, Tree};
use cellwright_tests::machines::{MACHINES, Machines, MachinesPlan, key, on, wait_until_gone};
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

const SECONDS: u64 = 40;
/// The master.
const MASTER: usize = 1;
const CHANGES: &[(&str, &str)] = &[
    ("poll_interval = \"5s\"", "poll_interval = \"500ms\""),
    // Agents that are dead for a while are not lost.
    ("missed_polls = 3", "missed_polls = 200"),
];
/// Some fifty milliseconds of work.
const SHORT: &str = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done";
/// Works and sleeps until it is told to end.
const STEADY: &str = r#"until test -e "$SHARED/end"; do
    i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.2
done"#;
/// Does its work when somebody lets it go, and ends.
const WHEN_TOLD: &str = r#"read word < "$SHARED/go"
    i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done"#;

/// The group around all tasks of a machine.
fn all_tasks(cell: &Machines, machine: usize) -> Group {
    let base = GroupPath::new(&base_name(&cell.data(machine))).expect("a path of groups");
    Tree::new(Layout::detect().expect("control groups"), base).base()
}

/// Microseconds of CPU of all tasks of all machines, as the kernel counted them.
fn kernel_count(cell: &Machines) -> u64 {
    let used = |machine| all_tasks(cell, machine).usage().expect("a group").cpu.as_micros();
    u64::try_from((1..=MACHINES).map(used).sum::<u128>()).expect("a time of this age")
}

async fn number(cell: &Machines, query: &str) -> Option<u64> {
    let query = SqlQuery { query: query.into(), ..SqlQuery::default() };
    let answer = cell.client().sql(&query).await.ok()?.value;
    match answer.rows.first()?.first()? {
        SqlValue::Integer(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

async fn restart_master(cell: &mut Machines) {
    cell.masters.kill(MASTER);
    cell.masters.start(MASTER);
    // A replica that has just started answers from what it has applied so far.
    let steady = key("steady");
    cell.until("the master answers for all it has acknowledged", async |cell| {
        cell.client().job_now(&steady).await.ok().map(drop)
    })
    .await;
}

fn seconds() -> u64 {
    let asked = std::env::var("CELL_BILLING_SECONDS").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(SECONDS)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_billed_is_what_the_kernel_counted() {
    let plan = MachinesPlan { changes: CHANGES, ..MachinesPlan::default() };
    let Some(mut cell) = Machines::launch_with(&plan).await else { return };
    let steady = cell.job("steady", 3, STEADY);
    cell.submit(&steady).await;
    cell.wait_until_running("steady").await;
    let end = Instant::now() + Duration::from_secs(seconds());
    let (mut round, mut tasks) = (0, 3);
    while Instant::now() < end {
        round += 1;
        let name = format!("short-{round}");
        let mut short = cell.job(&name, 4, SHORT);
        short["labels"] = json!({ "team": "search" });
        cell.submit(&short).await;
        tasks += 4;
        let machine = 1 + round % MACHINES;
        match round % 4 {
            // While its tasks are about to end.
            0 => {
                cell.kill_agent(machine);
                cell.start_agent(machine);
            }
            2 => restart_master(&mut cell).await,
            _ => {}
        }
        cell.wait_for_tasks(&name, |task| task.state.is_dead()).await;
    }
    tasks += end_in_an_outage(&mut cell).await;
    std::fs::write(cell.shared("end"), "").expect("a file");
    cell.wait_for_tasks("steady", |task| task.state.is_dead()).await;

    let counted = kernel_count(&cell);
    let sum = "select sum(cpu_micros) from usage";
    let booked = cell.until("history has what the kernel counted", async |cell| {
        let booked = number(cell, sum).await?;
        (booked.abs_diff(counted) <= counted / 100).then_some(booked)
    });
    let booked = booked.await;
    let each = "select count(distinct job || '/' || task_index) from usage where cpu_micros > 0";
    assert_eq!(number(&cell, each).await, Some(tasks), "every task leaves what it used");
    let team = "select sum(cpu_micros) from usage where json_extract(labels, '$.team') = 'search'";
    let short = "select sum(cpu_micros) from usage where job like 'short-%'";
    assert_eq!(number(&cell, team).await, number(&cell, short).await);
    // Nobody tells it again, and nothing of it was only in memory.
    restart_master(&mut cell).await;
    (1..=MACHINES).for_each(|machine| cell.kill_agent(machine));
    (1..=MACHINES).for_each(|machine| cell.start_agent(machine));
    cell.submit(&cell.job("last", 1, "exit 0")).await;
    cell.wait_for_tasks("last", |task| task.state.is_dead()).await;
    let others = "select sum(cpu_micros) from usage where job <> 'last'";
    assert_eq!(number(&cell, others).await, Some(booked));
    let daily = "select sum(cpu_used) * 1000 from usage_daily";
    let daily = cell.until("it is in the sums of the day", async |cell| {
        number(cell, daily).await.filter(|daily| daily.abs_diff(booked) <= booked / 50)
    });
    println!("{counted} us counted, {booked} us billed, {} us in the day's sums", daily.await);
}

/// A task ends while neither the master nor its agent runs. Returns how many there were.
async fn end_in_an_outage(cell: &mut Machines) -> u64 {
    let mut job = cell.job("unseen", 1, WHEN_TOLD);
    job["constraints"] = on(1);
    let fifo = std::process::Command::new("mkfifo").arg("-m666").arg(cell.shared("go")).status();
    assert!(fifo.expect("mkfifo runs").success());
    cell.submit(&job).await;
    cell.wait_until_running("unseen").await;
    let pid = cell.pid("unseen", 0, 1).await;
    cell.masters.kill(MASTER);
    cell.kill_agent(1);
    std::fs::write(cell.shared("go"), "go\n").expect("somebody reads");
    wait_until_gone(pid).await;
    cell.start_agent(1);
    restart_master(cell).await;
    cell.wait_for_tasks("unseen", |task| task.state.is_dead()).await;
    1
}
