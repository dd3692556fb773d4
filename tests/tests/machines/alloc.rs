//! Tasks of several jobs in one alloc: they share its folder, and a saver of logs is run again and
//! again until it has done its work, whatever became of the one that wrote them.

use cellwright_cell::task::{Fate, TaskState};
use cellwright_tests::machines::{Machines, STAY, USER};
use serde_json::json;

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
