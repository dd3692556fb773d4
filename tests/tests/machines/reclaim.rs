//! Room that a production task reserves and does not use is lent to batch, and taken back when the
//! production task wants it: batch pays, production never.

use cellwright_agent::cgroups::base_name;
use cellwright_cell::event::{EventKind, TaskChange};
use cellwright_cell::id::{Attempt, TaskId};
use cellwright_cell::reason::Reason;
use cellwright_cell::resource::Resources;
use cellwright_cell::task::TaskState;
use cellwright_isolate::cgroup::{Controller, ControllerMount, Group, GroupPath, Layout, Tree};
use cellwright_tests::machines::{CAPACITY, Machines, MachinesPlan, on};
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Of each machine: for the production task by its limits, or for both by what they use, but never
/// for both by their limits.
const RAM: u64 = 256 * MIB;
const PRODUCTION: u64 = 200 * MIB;
const BATCH: u64 = 150 * MIB;

/// Minutes become tenths of a second.
const FAST: &[(&str, &str)] = &[
    ("poll_interval = \"5s\"", "poll_interval = \"200ms\""),
    // Polls so close together would take a busy computer for a lost machine.
    ("missed_polls = 3", "missed_polls = 100"),
    ("reclaim_warm_up = \"5m\"", "reclaim_warm_up = \"1s\""),
    ("reclaim_speed = 1", "reclaim_speed = 1000"),
];

/// Holds so much memory, for ever: what is read is kept until its line ends, which it never does.
fn hold_memory(mebibytes: u64) -> String {
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
    let plan = MachinesPlan { changes: FAST, capacity, ..MachinesPlan::default() };
    let Some(cell) = Machines::launch_with(&plan).await else { return };
    let wait = r#"while ! test -e "$SHARED/go"; do sleep 0.1; done"#;
    let script = format!("{wait}\n{}", hold_memory(180));
    cell.submit(&job(&cell, "production", 200, PRODUCTION, &script)).await;
    cell.wait_until_running("production").await;
    cell.submit(&job(&cell, "batch", 100, BATCH, &hold_memory(120))).await;
    // It fits by what the other one is expected to use, and not before.
    cell.wait_until_running("batch").await;
    cell.until("batch reserves what it uses", async |cell| {
        (reserved(cell, "batch").await? > 120 * MIB).then_some(())
    })
    .await;
    let reserved_bytes = reserved(&cell, "production").await.expect("it runs");
    assert!(reserved_bytes + BATCH <= RAM, "{reserved_bytes} bytes are reserved for production");

    std::fs::write(cell.shared("go"), "").expect("a file");
    cell.until("batch has to leave", async |cell| {
        let mut events = cell.events("batch").await.into_iter();
        let left = events.any(|event| match event.kind {
            EventKind::Task { change: TaskChange::Evicted { .. }, .. } => {
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
    cell.wait_for_tasks("batch", |task| task.state == TaskState::Pending).await;
    let production = cell.wait_until_running("production").await;
    assert_eq!((production[0].attempt, production[0].failures_in_row), (1, 0));
}

/// Milli-cores of each machine, all of them for the production task by its limits.
const CPU: u64 = 500;
/// What makes a difference: CPU time of both tasks after which their parts are compared.
const ENOUGH: Duration = Duration::from_millis(500);
/// Uses no CPU at all until it is let go, and then all that it gets.
const WORKS_WHEN_TOLD: &str = r#"read word < "$SHARED/go"; while :; do :; done"#;
/// Uses all that it gets, goes on when it is told to leave, and leaves when the test says so.
const STUBBORN: &str = r#"trap : TERM; until test -e "$SHARED/leave"; do :; done"#;

/// The groups of the first machine's agent, together held to what the machine says it has: the
/// computer has more, and tasks would never meet.
pub fn small_machine(cell: &Machines, cpu: u64) -> Tree {
    let base = GroupPath::new(&base_name(&cell.data(1))).expect("a path of groups");
    let tree = Tree::new(Layout::detect().expect("control groups"), base);
    tree.base().set_cpu_cap(Some(cpu)).expect("a cap");
    tree
}

/// Of the first attempt of the task of this number.
pub fn group(tree: &Tree, task: u32) -> Group {
    tree.group(&format!("task-{}", Attempt::new(TaskId(task), 1))).expect("a name")
}

/// Microseconds of CPU in a tenth of a second that the kernel lets a group have.
pub fn cap(tree: &Tree, group: &Group) -> Option<u64> {
    let (mount, file) =
        match tree.layout().controller_mount(Controller::Cpu).expect("the controller") {
            ControllerMount::V1(mount) => (mount, "cpu.cfs_quota_us"),
            ControllerMount::V2(mount) => (mount, "cpu.max"),
        };
    let path = mount.join(group.path().as_str()).join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{path:?}: {why}"));
    text.split_whitespace().next()?.parse().ok()
}

/// How much of the CPU that both use the first one has from now on, in percent.
async fn cpu_share(cell: &Machines, first: &Group, second: &Group) -> u128 {
    let used = |group: &Group| group.usage().expect("it runs").cpu;
    let before = (used(first), used(second));
    let spent = cell.until("they use the CPU", async |_| {
        let spent = (used(first) - before.0, used(second) - before.1);
        (spent.0 + spent.1 >= ENOUGH).then_some(spent)
    });
    let (first, second) = spent.await;
    first.as_micros() * 100 / (first + second).as_micros()
}

fn cpu_job(cell: &Machines, name: &str, priority: u32, cpu: u64, script: &str) -> Value {
    let mut job = job(cell, name, priority, 8 * MIB, script);
    job["task"]["limits"]["cpu"] = json!(cpu);
    job["task"]["notice"] = json!(600_000);
    job
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_in_idle_cpu_is_held_back_at_once_when_production_wants_it() {
    let capacity = Some(Resources { cpu: CPU, ..CAPACITY });
    let plan = MachinesPlan { changes: FAST, capacity, ..MachinesPlan::default() };
    let Some(cell) = Machines::launch_with(&plan).await else { return };
    let tree = small_machine(&cell, CPU);
    let go = cell.shared("go");
    assert!(Command::new("mkfifo").args(["-m", "666"]).arg(&go).status().unwrap().success());
    let mut production = cpu_job(&cell, "production", 200, CPU, WORKS_WHEN_TOLD);
    production["appclass"] = json!("latency_sensitive");
    cell.submit(&production).await;
    cell.wait_until_running("production").await;
    cell.submit(&cpu_job(&cell, "batch", 100, CPU / 2, STUBBORN)).await;
    // It fits by what the other one is expected to use, and not before.
    cell.wait_until_running("batch").await;
    let [production, batch] = [0, 1].map(|task| group(&tree, task));
    cell.until("batch has the CPU", async |cell| {
        let all = cpu_share(cell, &batch, &production).await > 95;
        (all && cap(&tree, &batch).is_none()).then_some(())
    })
    .await;

    std::fs::write(&go, "go\n").expect("somebody reads");
    cell.until("batch is held back", async |_| cap(&tree, &batch)).await;
    // On a busy computer production may have to wait for others before it gets what is its due.
    cell.until("production has most of what both use", async |cell| {
        let share = cpu_share(cell, &production, &batch).await;
        assert_eq!(cap(&tree, &production), None, "production is held back");
        (share >= 85).then_some(())
    })
    .await;
    cell.until("batch is told to leave", async |cell| {
        let mut events = cell.events("batch").await.into_iter();
        let was_stopped = events.any(|event| match event.kind {
            EventKind::Task { change: TaskChange::Stopping { .. }, .. } => {
                event.reason == Reason::OverCommitted
            }
            _ => false,
        });
        was_stopped.then_some(())
    })
    .await;
    std::fs::write(cell.shared("leave"), "").expect("a file");
    // It may go nowhere else, and what is reserved for production leaves no room for it here.
    cell.wait_for_tasks("batch", |task| task.state == TaskState::Pending).await;
    let production = cell.wait_until_running("production").await;
    assert_eq!((production[0].attempt, production[0].failures_in_row), (1, 0));
    // All of its limit, unless something outside the cell keeps it from using that.
    assert!(production[0].reservation.cpu > CPU / 2, "{:?}", production[0].reservation);
}
