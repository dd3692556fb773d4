//! Tasks of several jobs in one alloc: they share its folder, and a saver of logs is run again and
//! again until it has done its work, whatever became of the one that wrote them, and of the alloc.

use cellwright_agent::boot::Life;
use cellwright_agent::record::{self, Keep};
use cellwright_cell::event::{TaskChange, What};
use cellwright_cell::reason::Reason;
use cellwright_cell::task::{ExitClass, Fate, TaskState};
use cellwright_tests::machines::{Machine, Machines, STAY, USER, name};
use serde_json::json;

/// Bytes of disk that an alloc leaves.
const LEFT: u64 = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_saver_shares_the_folder_of_its_alloc_and_runs_until_it_succeeds() {
    let Some(cell) = Machines::lay().await else { return };
    let set = json!({
        "name": "pair", "kind": "alloc_set", "count": 1, "priority": 100,
        "task": { "limits": { "cpu": 500, "ram": 64 << 20, "disk": 64 << 20 }, "command": [] },
    });
    cell.submit(&set).await;
    let alloc = cell.all_run("pair").await.remove(0);
    let machine = alloc.machine.expect("it is placed");
    let inside = json!({ "user": USER, "job": "pair" });
    let script = r#"echo "entry on $CELL_MACHINE" > "$CELL_ALLOC_DIR/log.new"
        mv "$CELL_ALLOC_DIR/log.new" "$CELL_ALLOC_DIR/log"
        test "$CELL_DIR" != "$CELL_ALLOC_DIR" || exit 9"#;
    let mut writer = cell.job("writer", 1, script);
    writer["alloc_set"] = inside.clone();
    cell.submit(&writer).await;
    cell.all("writer", |task| task.state == TaskState::Dead(Fate::Finished)).await;

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
    cell.all("saver", |task| task.state == TaskState::Dead(Fate::Finished)).await;
    assert_eq!(cell.read("archive/log"), format!("entry on {machine}\n"));
    // A task that comes later finds what is there, and the folder goes with the alloc.
    let mut late = cell.job("late", 1, &format!("test -s \"$CELL_ALLOC_DIR/log\" || exit 5{STAY}"));
    late["alloc_set"] = json!({ "user": USER, "job": "pair" });
    cell.submit(&late).await;
    cell.all_run("late").await;
    cell.stop("late").await;
    cell.all("late", |task| task.state == TaskState::Dead(Fate::Killed)).await;
    cell.stop("pair").await;
    cell.all("pair", |task| task.state == TaskState::Dead(Fate::Killed)).await;
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
    let retain = json!({ "bytes": LEFT, "keep": keep, "saver": "saver" });
    let set = json!({
        "name": "pair", "kind": "alloc_set", "count": 1, "priority": 100, "retain_disk": retain,
        "task": { "limits": { "cpu": 500, "ram": 64 << 20, "disk": 64 << 20 }, "command": [] },
    });
    cell.submit(&set).await;
    let alloc = cell.all_run("pair").await.remove(0);
    let script = r#"echo "entry on $CELL_MACHINE" > "$CELL_ALLOC_DIR/log""#;
    // While the alloc is there the saver has nothing to do.
    let save = format!("test -n \"$CELL_SAVER_RUN\" || exit 0\n{save}");
    for (name, script) in [("writer", script), ("saver", save.as_str())] {
        let mut job = cell.job(name, 1, script);
        job["alloc_set"] = json!({ "user": USER, "job": "pair" });
        job["restart"]["backoff_max"] = json!(100);
        cell.submit(&job).await;
        cell.all(name, |task| task.state == TaskState::Dead(Fate::Finished)).await;
    }
    let machine = alloc.machine.expect("it is placed");
    (1..=3).find(|number| machine == name(*number)).expect("one of the three")
}

async fn retained(cell: &Machines, machine: Machine) -> Option<u64> {
    Some(cell.machine(machine).await?.retained_bytes)
}

/// The folder of what was left, and its charge, are gone.
async fn let_go(cell: &Machines, machine: Machine) {
    cell.until("nothing is left of the alloc", async |cell| {
        let left = std::fs::read_dir(cell.data(machine).join("tasks")).ok()?.count();
        let charged = retained(cell, machine).await?;
        (left == 0 && charged == 0).then_some(())
    })
    .await;
}

async fn happened(cell: &Machines, wanted: impl Fn(&TaskChange) -> bool) -> Vec<Reason> {
    let found = cell.events("pair").await.into_iter().filter_map(|event| match event.what {
        What::Task { change, .. } => wanted(&change).then_some(event.reason),
        _ => None,
    });
    found.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_ended_alloc_left_is_saved_by_runs_that_outlive_failures_and_the_agent() {
    let Some(mut cell) = Machines::lay().await else { return };
    // Where logs go is closed at first.
    let save = r#"echo "$CELL_SAVER_RUN" >> "$SHARED/runs"
        test -d "$SHARED/archive" || exit 4
        cp "$CELL_ALLOC_DIR/log" "$SHARED/new" && mv "$SHARED/new" "$SHARED/saved""#;
    let machine = with_a_log(&cell, 600_000, save).await;
    cell.stop("pair").await;
    cell.all("pair", |task| task.state == TaskState::Dead(Fate::Killed)).await;
    let runs = |cell: &Machines| cell.read("runs").lines().count();
    cell.until("two runs", async |cell| (runs(cell) >= 2).then_some(())).await;
    assert_eq!(retained(&cell, machine).await, Some(LEFT));
    cell.kill_agent(machine);
    cell.start_agent(machine);
    let before = runs(&cell);
    cell.until("more runs", async |cell| (runs(cell) > before + 1).then_some(())).await;
    std::fs::create_dir(cell.shared("archive")).expect("a folder");
    cell.until("the log is saved", async |cell| {
        (cell.read("saved") == format!("entry on n{machine}\n")).then_some(())
    })
    .await;
    let_go(&cell, machine).await;
    let failed = happened(&cell, |change| matches!(change, TaskChange::SaverFailed { .. })).await;
    let exited = Reason::Exited(ExitClass::Code(4));
    assert!(failed.iter().filter(|reason| **reason == exited).count() >= 2, "{failed:?}");
    let saved = happened(&cell, |change| matches!(change, TaskChange::Saved { .. })).await;
    assert_eq!(saved, [Reason::Succeeded]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_saved_in_time_goes_and_its_owner_is_told() {
    let Some(cell) = Machines::lay().await else { return };
    let machine = with_a_log(&cell, 3_000, &format!("echo begun{STAY}")).await;
    cell.stop("pair").await;
    let_go(&cell, machine).await;
    let gone = happened(&cell, |change| matches!(change, TaskChange::NotSaved { .. })).await;
    assert_eq!(gone, [Reason::Retention]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_alloc_left_on_a_machine_that_booted_again_is_saved_too() {
    let Some(mut cell) = Machines::lay().await else { return };
    let save = "cp \"$CELL_ALLOC_DIR/log\" \"$SHARED/new\" && mv \"$SHARED/new\" \"$SHARED/saved\"";
    let machine = with_a_log(&cell, 600_000, save).await;
    cell.stop_agent(machine).await;
    // To the next agent, everything it finds is of another boot.
    let life = cell.data(machine).join("life");
    let mut before: Life = record::read(&life).expect("it is read").expect("it is there");
    before.boot_id = "another".into();
    record::write(&life, &before, Keep::Process).expect("it is written");
    cell.start_agent(machine);
    cell.until("the log is saved", async |cell| {
        (cell.read("saved") == format!("entry on n{machine}\n")).then_some(())
    })
    .await;
    cell.until("saved", async |cell| {
        let saved = happened(cell, |change| matches!(change, TaskChange::Saved { .. })).await;
        (!saved.is_empty()).then_some(())
    })
    .await;
}
