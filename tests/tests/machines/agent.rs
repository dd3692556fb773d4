//! Agents and masters that die, again and again: no task notices, and no end is lost.

use cellwright_api::types::{EventView, TaskView};
use cellwright_cell::event::{EventKind, TaskChange};
use cellwright_cell::task::{ExitClass, TaskOutcome, TaskState};
use cellwright_tests::machines::{
    Machines, MachinesPlan, is_alive, on, parent, spread, wait_until_gone,
};
use std::process::Command;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Begins, waits to be let go, and ends with a code of its own.
const WAITS: &str = r#"
    echo begun >> "$SHARED/begun-$CELL_INDEX"
    read word < "$SHARED/go-$CELL_INDEX"; exit $((10 + CELL_INDEX))"#;

fn make_fifo(cell: &Machines, index: usize) {
    let path = cell.shared(&format!("go-{index}"));
    assert!(
        Command::new("mkfifo")
            .args(["-m", "666"])
            .arg(path)
            .status()
            .expect("mkfifo runs")
            .success()
    );
}

/// Lets a task go and waits until its shim is gone as well: its end is on disk.
async fn end(cell: &Machines, index: usize, pid: u32) {
    let shim = parent(pid);
    std::fs::write(cell.shared(&format!("go-{index}")), "go\n").expect("somebody reads");
    wait_until_gone(shim).await;
}

fn task_change(event: &EventView, want: impl Fn(&TaskChange) -> bool) -> bool {
    matches!(&event.kind, EventKind::Task { change, .. } if want(change))
}

fn ended_right(task: &TaskView) -> bool {
    let code = 10 + i32::try_from(task.index).expect("a small number");
    task.state == TaskState::Dead(TaskOutcome::Failed(ExitClass::Code(code)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_killed_fifty_times_loses_none_of_twenty_tasks() {
    const TASKS: usize = 20;
    const KILLS: usize = 50;
    let Some(mut cell) = Machines::launch().await else { return };
    (0..TASKS).for_each(|index| make_fifo(&cell, index));
    let mut job = cell.job("waits", 20, WAITS);
    job["constraints"] = on(1);
    cell.submit(&job).await;
    let tasks = cell.wait_until_running("waits").await;
    let pids = cell.pids(&tasks).await;
    let mut ended = 0;
    for kill in 0..KILLS {
        cell.kill_agent(1);
        // Every fifth time one of them ends while nobody looks.
        if kill % 5 == 2 {
            end(&cell, ended, pids[ended]).await;
            ended += 1;
        }
        let starts = cell.agent_starts(1);
        cell.start_agent(1);
        // Every third one dies as soon as it lives; the others get as far as polling.
        if kill % 3 != 0 {
            cell.until("the agent polls", async |cell| {
                (cell.agent_starts(1) > starts).then_some(())
            })
            .await;
        }
        assert!(pids[ended..].iter().all(|pid| is_alive(*pid)), "a task died with its agent");
    }
    assert_eq!(ended, 10);
    let still = |task: &TaskView| task.index as usize >= ended;
    cell.wait_for_tasks("waits", |task| {
        if still(task) { task.state == TaskState::Running } else { ended_right(task) }
    })
    .await;
    for (index, pid) in pids.iter().enumerate().skip(ended) {
        assert!(is_alive(*pid), "{index}");
        end(&cell, index, *pid).await;
    }
    let tasks = cell.wait_for_tasks("waits", ended_right).await;
    assert!(tasks.iter().all(|task| task.attempt == 1), "{tasks:#?}");
    for index in 0..TASKS {
        assert_eq!(cell.read(&format!("begun-{index}")), "begun\n", "{index} began twice");
    }
    let lost = cell.events("waits").await;
    let is_loss = |change: &TaskChange| matches!(change, TaskChange::Lost { .. });
    let lost: Vec<_> = lost.iter().filter(|event| task_change(event, is_loss)).collect();
    assert!(lost.is_empty(), "{lost:#?}");
}

/// Everything the masters time by their polls is over several times when they come back: a machine
/// counts as down after three polls. What counts is polls: a minute has twelve with a poll every
/// five seconds, as by default, and they are away for fifteen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_run_and_end_while_all_masters_are_away() {
    /// In seconds, and so in polls.
    const AWAY: Duration = Duration::from_secs(15);
    let changes = [("poll_interval = \"5s\"", "poll_interval = \"1s\"")];
    let plan = MachinesPlan { masters: 3, changes: &changes, ..MachinesPlan::default() };
    let Some(mut cell) = Machines::launch_with(&plan).await else { return };
    (0..6).for_each(|index| make_fifo(&cell, index));
    let mut job = cell.job("waits", 6, WAITS);
    job["spread"] = spread(2);
    cell.submit(&job).await;
    let before = cell.wait_until_running("waits").await;
    let pids = cell.pids(&before).await;
    let masters: Vec<_> = cell.masters.masters().collect();
    for master in &masters {
        cell.masters.kill(*master);
    }
    let away = Instant::now();
    for index in [0, 2, 4] {
        end(&cell, index, pids[index]).await;
    }
    // An agent that starts without masters finds its tasks all the same.
    let starts = cell.agent_starts(2);
    cell.kill_agent(2);
    cell.start_agent(2);
    cell.until("the agent polls", async |cell| (cell.agent_starts(2) > starts).then_some(())).await;
    sleep_until(away + AWAY).await;
    let alive: Vec<bool> = pids.iter().map(|pid| is_alive(*pid)).collect();
    assert_eq!(alive, [false, true, false, true, false, true]);
    for master in masters {
        cell.masters.start(master);
    }
    cell.wait_for_tasks("waits", |task| match task.index % 2 {
        0 => ended_right(task),
        _ => task.state == TaskState::Running,
    })
    .await;
    for index in [1, 3, 5] {
        assert!(is_alive(pids[index]));
        end(&cell, index, pids[index]).await;
    }
    let after = cell.wait_for_tasks("waits", ended_right).await;
    let placements = |tasks: &[TaskView]| -> Vec<_> {
        tasks.iter().map(|task| (task.index, task.attempt)).collect()
    };
    assert_eq!(placements(&after), placements(&before));
}
