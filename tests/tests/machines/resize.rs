//! Limits that change while tasks run: the control group of the same process, through the end of
//! its agent and of the leading master, and never below what it uses.

use cellwright_agent::cgroups::base_name;
use cellwright_api::client::ChangeOptions;
use cellwright_api::types::TaskView;
use cellwright_cell::event::{EventKind, TaskChange};
use cellwright_cell::id::{Attempt, TaskId};
use cellwright_cell::job_size::JobSize;
use cellwright_cell::task::TaskState;
use cellwright_isolate::cgroup::{Controller, ControllerMount, Group, GroupPath, Layout, Tree};
use cellwright_tests::machines::{Machines, MachinesPlan, SLEEP_FOREVER, USER, key, on};
use serde_json::json;

const MIB: u64 = 1 << 20;

/// Holds sixty megabytes until it is let go, and goes on with next to nothing: what is read is kept
/// until its line ends, which it does not before.
const HOLD_MEMORY: &str = r#"
    { head -c 60M /dev/zero; while ! test -e "$SHARED/go"; do sleep 0.1; done; } |
        tail > /dev/null &"#;

/// The groups of the first machine's agent.
fn tree(cell: &Machines) -> Tree {
    let base = GroupPath::new(&base_name(&cell.data(1))).expect("a path of groups");
    Tree::new(Layout::detect().expect("control groups"), base)
}

/// Bytes of memory that the kernel lets a group have.
fn memory_limit(tree: &Tree, group: &Group) -> u64 {
    let controller = tree.layout().controller_mount(Controller::Memory);
    let (mount, file) = match controller.expect("the controller") {
        ControllerMount::V1(mount) => (mount, "memory.limit_in_bytes"),
        ControllerMount::V2(mount) => (mount, "memory.max"),
    };
    let path = mount.join(group.path().as_str()).join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{path:?}: {why}"));
    text.trim().parse().expect("a limit")
}

async fn resize(cell: &Machines, job: &str, size: JobSize) {
    let done = cell.client().resize_job(&key(job), &size, &ChangeOptions::default()).await;
    done.unwrap_or_else(|why| panic!("{job}: {why}"));
}

fn ram(mebibytes: u64) -> JobSize {
    JobSize { ram: Some(mebibytes * MIB), ..JobSize::default() }
}

/// Until the limits are in force.
async fn confirmed(cell: &Machines, job: &str) -> TaskView {
    let is_confirmed =
        |task: &TaskView| task.state == TaskState::Running && task.limits_in_force.is_none();
    cell.wait_for_tasks(job, is_confirmed).await.remove(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_follows_its_limit_down_whoever_dies_meanwhile() {
    let plan = MachinesPlan { masters: 3, ..MachinesPlan::default() };
    let Some(mut cell) = Machines::launch_with(&plan).await else { return };
    let mut holder = cell.job("holder", 1, &format!("{HOLD_MEMORY}{SLEEP_FOREVER}"));
    holder["constraints"] = on(1);
    holder["task"]["limits"]["ram"] = json!(100 * MIB);
    cell.submit(&holder).await;
    cell.wait_until_running("holder").await;
    let pid = cell.pid("holder", 0, 1).await;
    let tree = tree(&cell);
    let task = TaskId(0);
    let group = tree.group(&format!("task-{}", Attempt::new(task, 1))).expect("a name");
    assert_eq!(memory_limit(&tree, &group), 100 * MIB);
    cell.until("it holds memory", async |_| {
        (group.usage().expect("it runs").working_set > 55 * MIB).then_some(())
    })
    .await;

    // More, at once, with another CPU limit beside it.
    resize(&cell, "holder", JobSize { cpu: Some(20), ..ram(120) }).await;
    confirmed(&cell, "holder").await;
    assert_eq!(memory_limit(&tree, &group), 120 * MIB);

    // Less than it uses: as low as that goes, and no lower.
    resize(&cell, "holder", ram(20)).await;
    let held = cell
        .until("a part is given back", async |cell| {
            let in_force = cell.tasks("holder").await.first()?.limits_in_force?.ram;
            (in_force < 120 * MIB).then_some(in_force)
        })
        .await;
    assert!(held > 55 * MIB, "{held}");
    assert_eq!(memory_limit(&tree, &group), held);
    let counted = cell.machine(1).await.expect("a machine").limits;
    assert_eq!((counted.ram, counted.cpu), (held, 20), "nobody is sold what it still has");

    // The next agent goes on from there, and so does the next leader.
    cell.kill_agent(1);
    let leader = cell.masters.leader().await;
    cell.masters.kill(leader.host);
    cell.masters.leader().await;
    cell.start_agent(1);
    std::fs::write(cell.shared("go"), "").expect("a file");
    let task = confirmed(&cell, "holder").await;
    assert_eq!((task.attempt, task.limits.ram), (1, 20 * MIB));
    assert_eq!(memory_limit(&tree, &group), 20 * MIB);
    assert_eq!(cell.pid("holder", 0, 1).await, pid);
    assert!(std::path::Path::new(&format!("/proc/{pid}")).exists(), "it was never stopped");
    let counted = cell.until("a machine", async |cell| cell.machine(1).await).await.limits;
    assert_eq!(counted.ram, 20 * MIB);
    let events = cell.events("holder").await;
    let resized: Vec<(u64, u64)> = events
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::Task { change: TaskChange::Resized { before, after }, .. } => {
                Some((before.ram / MIB, after.ram / MIB))
            }
            _ => None,
        })
        .collect();
    assert_eq!(resized.first(), Some(&(100, 120)), "{resized:?}");
    assert_eq!(resized.last().map(|(_, after)| *after), Some(20), "{resized:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alloc_and_its_task_are_resized_around_the_same_process() {
    let Some(cell) = Machines::launch().await else { return };
    let set = json!({
        "name": "box", "kind": "alloc_set", "count": 1, "priority": 100, "constraints": on(1),
        "task": { "limits": { "cpu": 100, "ram": 64 * MIB, "disk": 64 * MIB }, "command": [] },
    });
    cell.submit(&set).await;
    cell.wait_until_running("box").await;
    let mut inner = cell.job("inner", 1, SLEEP_FOREVER);
    inner["alloc_set"] = json!({ "user": USER, "job": "box" });
    cell.submit(&inner).await;
    cell.wait_until_running("inner").await;
    let pid = cell.pid("inner", 0, 1).await;
    let tree = tree(&cell);
    let alloc = tree.group(&format!("alloc-{}", Attempt::new(TaskId(0), 1))).expect("a name");
    let group = alloc.child(&format!("task-{}", Attempt::new(TaskId(1), 1))).expect("a name");
    assert_eq!((memory_limit(&tree, &alloc), memory_limit(&tree, &group)), (64 * MIB, 8 * MIB));
    resize(&cell, "box", ram(96)).await;
    resize(&cell, "inner", ram(80)).await;
    confirmed(&cell, "box").await;
    confirmed(&cell, "inner").await;
    assert_eq!((memory_limit(&tree, &alloc), memory_limit(&tree, &group)), (96 * MIB, 80 * MIB));
    // The alloc shrinks when its task has: until then it would not fit in.
    resize(&cell, "inner", ram(16)).await;
    resize(&cell, "box", ram(32)).await;
    let task = confirmed(&cell, "inner").await;
    let is_small = |task: &TaskView| task.limits.ram == 32 * MIB && task.limits_in_force.is_none();
    let around = cell.wait_for_tasks("box", is_small).await.remove(0);
    assert_eq!((task.attempt, around.attempt), (1, 1));
    assert_eq!((memory_limit(&tree, &alloc), memory_limit(&tree, &group)), (32 * MIB, 16 * MIB));
    assert_eq!(cell.pid("inner", 0, 1).await, pid);
    assert!(std::path::Path::new(&format!("/proc/{pid}")).exists(), "it was never stopped");
}
