//! A task that lays traps in its own folders for an agent that is more than it is: links to what is
//! not its own, pipes on which a reader waits for ever, circles. Nothing is followed, nobody waits,
//! and nothing outside is touched.

use cellwright_cell::task::{TaskOutcome, TaskState};
use cellwright_tests::machines::{
    Machines, MachinesPlan, SLEEP_FOREVER, is_alive, on, wait_until_gone,
};
use serde_json::json;
use std::fs;

/// What is inside the folder it was given, which anybody's task can do.
const INSIDE: &str = r#"
    trap 'exit 0' TERM
    ln -s "$SHARED/precious" link; ln -s / root; ln -s circle circle; mkfifo pipe
    ln -s "$SHARED/precious/file" conf/again
    rm conf/plain; ln -s "$SHARED/precious/file" conf/plain
    mkdir -p deep/er; mkfifo deep/er/pipe; chmod 000 deep
    echo laid > "$SHARED/laid-$CELL_JOB""#;

/// Everything around it as well, which takes the agent's own account and no container: the operator
/// must have let jobs be root.
const AROUND: &str = r#"
    trap 'exit 0' TERM
    cd ..
    rm -rf work; ln -s "$SHARED/precious" work
    rm logs/stdout; mkfifo logs/stdout; mkfifo logs/stdout.1
    rm logs/stderr; ln -s "$SHARED/precious/file" logs/stderr
    rm -f ports; mkfifo ports; mkfifo exit; rm shim.sock
    echo laid > "$SHARED/laid-$CELL_JOB"
    head -c 100K /dev/zero; head -c 100K /dev/zero >&2
    echo written > "$SHARED/written""#;

async fn lay_traps(cell: &Machines, job: &str, user: &str, script: &str) -> u32 {
    let mut tricks = cell.job(job, 1, &format!("{script}{SLEEP_FOREVER}"));
    tricks["task"]["user"] = user.into();
    tricks["constraints"] = on(1);
    tricks["task"]["files"] = json!({ "conf/plain": "plain" });
    tricks["task"]["logs"] = json!({ "file_bytes": 4096, "files": 2, "rate": 1 << 20 });
    cell.submit(&tricks).await;
    let task = cell.wait_until_running(job).await;
    let laid = format!("laid-{job}");
    cell.until(&laid, async |cell| (!cell.read(&laid).is_empty()).then_some(())).await;
    cell.pids(&task).await[0]
}

/// The agent of the first machine starts and ends things as ever.
async fn check_agent_works(cell: &Machines, job: &str) {
    let mut probe = cell.job(job, 1, "exit 0");
    probe["constraints"] = on(1);
    cell.submit(&probe).await;
    cell.wait_for_tasks(job, |task| task.state == TaskState::Dead(TaskOutcome::Finished)).await;
}

async fn restart_agent(cell: &mut Machines) {
    let starts = cell.agent_starts(1);
    cell.kill_agent(1);
    cell.start_agent(1);
    cell.until("the agent polls", async |cell| (cell.agent_starts(1) > starts).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traps_in_a_tasks_folders_neither_lead_nor_hold_nor_kill_the_agent() {
    let changes = [("poll_interval = \"5s\"", "poll_interval = \"200ms\"")];
    let agents = "users = [\"root\"]";
    let plan = MachinesPlan { changes: &changes, agents, ..Default::default() };
    let Some(mut cell) = Machines::launch_with(&plan).await else { return };
    fs::create_dir(cell.shared("precious")).expect("a folder");
    fs::write(cell.shared("precious/file"), "precious").expect("a file");
    let inside = lay_traps(&cell, "inside", "nobody", INSIDE).await;
    check_agent_works(&cell, "first").await;
    let around = lay_traps(&cell, "around", "root", AROUND).await;
    // The disk use of every task is measured at every poll, and its output goes on.
    cell.until("the task can write", async |cell| (!cell.read("written").is_empty()).then_some(()))
        .await;
    check_agent_works(&cell, "second").await;
    restart_agent(&mut cell).await;
    check_agent_works(&cell, "third").await;
    assert!(is_alive(inside) && is_alive(around));

    for job in ["inside", "around"] {
        cell.stop(job).await;
    }
    for job in ["inside", "around"] {
        cell.wait_for_tasks(job, |task| task.state.is_dead()).await;
    }
    wait_until_gone(inside).await;
    wait_until_gone(around).await;
    cell.until("the folders are gone", async |cell| {
        let left = fs::read_dir(cell.data(1).join("tasks")).ok()?.count();
        (left == 0).then_some(())
    })
    .await;
    restart_agent(&mut cell).await;
    check_agent_works(&cell, "fourth").await;
    let kept = fs::read_to_string(cell.shared("precious/file"));
    assert_eq!(kept.expect("it is still there"), "precious");
    let names = fs::read_dir(cell.shared("precious")).expect("a folder").count();
    assert_eq!(names, 1, "something was written through a link");
    assert!(cell.agent(1).is_alive());
}
