//! Tasks of several jobs in one alloc: they share its folder, and a saver of logs is run again and
//! again until it has done its work, whatever became of the one that wrote them, and of the alloc.

use cellwright_agent::boot::MachineIncarnation;
use cellwright_agent::record::{self, Durability};
use cellwright_cell::event::{EventKind, TaskChange};
use cellwright_cell::reason::Reason;
use cellwright_cell::task::{ExitClass, TaskOutcome, TaskState};
use cellwright_tests::machines::{Machine, Machines, SLEEP_FOREVER, USER, name};
use serde_json::json;

/// Bytes of disk that an alloc leaves.
const RETAINED_BYTES: u64 = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_saver_shares_the_folder_of_its_alloc_and_runs_until_it_succeeds() {
    let Some(cell) = Machines::launch().await else { return };
    let set = json!({
        "name": "pair", "kind": "alloc_set", "count": 1, "priority": 100,
        "task": { "limits": { "cpu": 500, "ram": 64 << 20, "disk": 64 << 20 }, "command": [] },
    });
    cell.submit(&set).await;
    let alloc = cell.wait_until_running("pair").await.remove(0);
    let machine = alloc.machine.expect("it is placed");
    let inside = json!({ "user": USER, "job": "pair" });
    let script = r#"echo "entry on $CELL_MACHINE" > "$CELL_ALLOC_DIR/log.new"
        mv "$CELL_ALLOC_DIR/log.new" "$CELL_ALLOC_DIR/log"
        test "$CELL_DIR" != "$CELL_ALLOC_DIR" || exit 9"#;
    let mut writer = cell.job("writer", 1, script);
    writer["alloc_set"] = inside.clone();
    cell.submit(&writer).await;
    cell.wait_for_tasks("writer", |task| task.state == TaskState::Dead(TaskOutcome::Finished))
        .await;

    // Where logs go is closed at first.
    let script = r#"test -s "$CELL_ALLOC_DIR/log" || exit 3
        test -d "$SHARED/archive" || exit 4
        cp "$CELL_ALLOC_DIR/log" "$SHARED/archive/log""#;
    let mut saver = cell.job("saver", 1, script);
    saver["alloc_set"] = inside;
    saver["restart"] = json!({ "backoff": 50, "backoff_max": 100 });
    cell.submit(&saver).await;
    cell.until("the saver has failed often", async |cell| {
        (cell.tasks("saver").await.first()?.attempt > 3).then_some(())
    })
    .await;
    cell.open_folder("archive");
    cell.wait_for_tasks("saver", |task| task.state == TaskState::Dead(TaskOutcome::Finished)).await;
    assert_eq!(cell.read("archive/log"), format!("entry on {machine}\n"));
    // A task that comes later finds what is there, and the folder goes with the alloc.
    let mut late =
        cell.job("late", 1, &format!("test -s \"$CELL_ALLOC_DIR/log\" || exit 5{SLEEP_FOREVER}"));
    late["alloc_set"] = json!({ "user": USER, "job": "pair" });
    cell.submit(&late).await;
    cell.wait_until_running("late").await;
    cell.stop("late").await;
    cell.wait_for_tasks("late", |task| task.state == TaskState::Dead(TaskOutcome::Killed)).await;
    cell.stop("pair").await;
    cell.wait_for_tasks("pair", |task| task.state == TaskState::Dead(TaskOutcome::Killed)).await;
    cell.until("nothing is left of the allocs", async |cell| {
        let left = (1..=3).filter_map(|machine| {
            Some(std::fs::read_dir(cell.data(machine).join("tasks")).ok()?.count())
        });
        (left.sum::<usize>() == 0).then_some(())
    })
    .await;
}

/// An alloc set that leaves its disk for `saver`, and a job inside that has written a log.
async fn with_a_log(cell: &Machines, keep: u64, save: &str) -> Machine {
    let retain = json!({ "bytes": RETAINED_BYTES, "keep": keep, "log_saver": "saver" });
    let set = json!({
        "name": "pair", "kind": "alloc_set", "count": 1, "priority": 100, "retain_disk": retain,
        "task": { "limits": { "cpu": 500, "ram": 64 << 20, "disk": 64 << 20 }, "command": [] },
    });
    cell.submit(&set).await;
    let alloc = cell.wait_until_running("pair").await.remove(0);
    let script = r#"echo "entry on $CELL_MACHINE" > "$CELL_ALLOC_DIR/log""#;
    // While the alloc is there the saver has nothing to do.
    let save = format!("test -n \"$CELL_SAVER_RUN\" || exit 0\n{save}");
    for (name, script) in [("writer", script), ("saver", save.as_str())] {
        let mut job = cell.job(name, 1, script);
        job["alloc_set"] = json!({ "user": USER, "job": "pair" });
        job["restart"]["backoff_max"] = json!(100);
        cell.submit(&job).await;
        cell.wait_for_tasks(name, |task| task.state == TaskState::Dead(TaskOutcome::Finished))
            .await;
    }
    let machine = alloc.machine.expect("it is placed");
    (1..=3).find(|number| machine == name(*number)).expect("one of the three")
}

async fn retained(cell: &Machines, machine: Machine) -> Option<u64> {
    Some(cell.machine(machine).await?.retained_bytes)
}

/// The folder of what was left, and its charge, are gone.
async fn wait_until_released(cell: &Machines, machine: Machine) {
    cell.until("nothing is left of the alloc", async |cell| {
        let left = std::fs::read_dir(cell.data(machine).join("tasks")).ok()?.count();
        let charged = retained(cell, machine).await?;
        (left == 0 && charged == 0).then_some(())
    })
    .await;
}

async fn wait_for_change(cell: &Machines, is_wanted: impl Fn(&TaskChange) -> bool) -> Vec<Reason> {
    let found = cell.events("pair").await.into_iter().filter_map(|event| match event.kind {
        EventKind::Task { change, .. } => is_wanted(&change).then_some(event.reason),
        _ => None,
    });
    found.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_ended_alloc_left_is_saved_by_runs_that_outlive_failures_and_the_agent() {
    let Some(mut cell) = Machines::launch().await else { return };
    // Where logs go is closed at first.
    let save = r#"echo "$CELL_SAVER_RUN" >> "$SHARED/runs"
        test -d "$SHARED/archive" || exit 4
        cp "$CELL_ALLOC_DIR/log" "$SHARED/new" && mv "$SHARED/new" "$SHARED/saved""#;
    let machine = with_a_log(&cell, 600_000, save).await;
    cell.stop("pair").await;
    cell.wait_for_tasks("pair", |task| task.state == TaskState::Dead(TaskOutcome::Killed)).await;
    let runs = |cell: &Machines| cell.read("runs").lines().count();
    cell.until("two runs", async |cell| (runs(cell) >= 2).then_some(())).await;
    assert_eq!(retained(&cell, machine).await, Some(RETAINED_BYTES));
    cell.kill_agent(machine);
    cell.start_agent(machine);
    let before = runs(&cell);
    cell.until("more runs", async |cell| (runs(cell) > before + 1).then_some(())).await;
    std::fs::create_dir(cell.shared("archive")).expect("a folder");
    cell.until("the log is saved", async |cell| {
        (cell.read("saved") == format!("entry on n{machine}\n")).then_some(())
    })
    .await;
    wait_until_released(&cell, machine).await;
    let failed =
        wait_for_change(&cell, |change| matches!(change, TaskChange::LogSaverFailed { .. })).await;
    let exited = Reason::Exited(ExitClass::Code(4));
    assert!(failed.iter().filter(|reason| **reason == exited).count() >= 2, "{failed:?}");
    let saved = wait_for_change(&cell, |change| matches!(change, TaskChange::Saved { .. })).await;
    assert_eq!(saved, [Reason::Succeeded]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_saved_in_time_goes_and_its_owner_is_told() {
    let Some(cell) = Machines::launch().await else { return };
    let machine = with_a_log(&cell, 3_000, &format!("echo begun{SLEEP_FOREVER}")).await;
    cell.stop("pair").await;
    wait_until_released(&cell, machine).await;
    let gone = wait_for_change(&cell, |change| matches!(change, TaskChange::NotSaved { .. })).await;
    assert_eq!(gone, [Reason::Retention]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_alloc_left_on_a_machine_that_booted_again_is_saved_too() {
    let Some(mut cell) = Machines::launch().await else { return };
    let save = "cp \"$CELL_ALLOC_DIR/log\" \"$SHARED/new\" && mv \"$SHARED/new\" \"$SHARED/saved\"";
    let machine = with_a_log(&cell, 600_000, save).await;
    cell.stop_agent(machine).await;
    // To the next agent, everything it finds is of another boot.
    let incarnation_file = cell.data(machine).join("incarnation");
    let mut before: MachineIncarnation =
        record::read(&incarnation_file).expect("it is read").expect("it is there");
    before.boot_id = "another".into();
    record::write(&incarnation_file, &before, Durability::Process).expect("it is written");
    cell.start_agent(machine);
    cell.until("the log is saved", async |cell| {
        (cell.read("saved") == format!("entry on n{machine}\n")).then_some(())
    })
    .await;
    cell.until("saved", async |cell| {
        let saved =
            wait_for_change(cell, |change| matches!(change, TaskChange::Saved { .. })).await;
        (!saved.is_empty()).then_some(())
    })
    .await;
}
