//! Services and batch jobs side by side; updates that roll within their budget, and back.

use crate::ledger::{LEDGER_SCRIPT, has_started, lines, most_down};
use cellwright_cell::task::{ExitClass, TaskOutcome, TaskState};
use cellwright_tests::machines::{Machines, SLEEP_FOREVER, is_alive, key, spread, wait_until_gone};
use serde_json::json;
use std::collections::BTreeSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_and_a_batch_job_run_side_by_side_and_updates_roll_and_are_undone() {
    let Some(cell) = Machines::launch().await else { return };
    let mut web = cell.job("web", 6, &format!("{LEDGER_SCRIPT}{SLEEP_FOREVER}"));
    web["spread"] = spread(2);
    web["max_down"] = json!(2);
    web["restart"]["restart_on_success"] = json!(true);
    web["task"]["env"]["VERSION"] = json!("one");
    web["task"]["health"] = has_started();
    cell.submit(&web).await;
    let first = cell.wait_until_running("web").await;
    let machines: BTreeSet<_> = first.iter().map(|task| task.machine.clone()).collect();
    assert_eq!(machines.len(), 3, "{first:#?}");
    let pids = cell.pids(&first).await;

    cell.submit(&cell.job("sums", 9, "exit $CELL_INDEX")).await;
    let code = |index: u32| ExitClass::Code(i32::try_from(index).expect("a small number"));
    let sums = cell.wait_for_tasks("sums", |task| task.state.is_dead()).await;
    for task in &sums {
        let fate = match task.index {
            0 => TaskOutcome::Finished,
            index => TaskOutcome::Failed(code(index)),
        };
        assert_eq!((task.state, task.attempt), (TaskState::Dead(fate), 1), "{task:#?}");
    }
    assert!(pids.iter().all(|pid| is_alive(*pid)), "a batch job disturbed a service");

    web["task"]["env"]["VERSION"] = json!("two");
    cell.update(&web).await;
    let rolled = cell.wait_for_tasks("web", |task| is_at(task, 2)).await;
    for (pid, task) in pids.into_iter().zip(&rolled) {
        wait_until_gone(pid).await;
        assert_eq!(task.attempt, 2, "{task:#?}");
    }
    cell.pids(&rolled).await;
    check_ledger(&cell, "two", 12);

    let undone = cell.client().undo_update(&key("web"), &Default::default()).await;
    undone.expect("the update is undone");
    let back = cell.wait_for_tasks("web", |task| is_at(task, 3)).await;
    cell.pids(&back).await;
    check_ledger(&cell, "one", 18);
    cell.until("the update is closed", async |cell| {
        cell.job_view("web").await.update.is_none().then_some(())
    })
    .await;
    cell.stop("web").await;
    cell.wait_for_tasks("web", |task| task.state == TaskState::Dead(TaskOutcome::Killed)).await;
    for (task, pid) in back.iter().zip(cell.pids(&back).await) {
        assert!(!is_alive(pid), "{task:#?}");
    }
}

/// Runs in the version with that many changes of the spec before it.
fn is_at(task: &cellwright_api::types::TaskView, attempt: u32) -> bool {
    task.state == TaskState::Running && task.attempt == attempt
}

/// All tasks run `version` after that many starts, and the budget of two held all the time.
fn check_ledger(cell: &Machines, version: &str, starts: usize) {
    let lines = lines(cell, "web");
    let begun: Vec<_> = lines.iter().filter(|[what, ..]| what == "start").collect();
    assert_eq!(begun.len(), starts, "{lines:#?}");
    assert!(begun.iter().rev().take(6).all(|[_, _, more]| more == version), "{lines:#?}");
    let most = most_down(&lines, 6);
    assert!((1..=2).contains(&most), "{most} were down at once: {lines:#?}");
}
