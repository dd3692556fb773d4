//! Tasks that write as fast as they can: the disk stays bounded, the task goes on, nobody else
//! notices, and what is kept stays after the end.

use cellwright_cell::task::{ExitClass, TaskOutcome, TaskState};
use cellwright_tests::machines::{Machines, SLEEP_FOREVER, is_alive, on};
use serde_json::json;
use std::path::{Path, PathBuf};

const FILE_BYTES: u64 = 1 << 20;
const FILES: u64 = 2;
/// Both streams, and a little for the folders themselves and the lines that say what was dropped.
const BOUND: u64 = 2 * FILES * FILE_BYTES + (64 << 10);

/// Bytes of all files below.
fn size(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => size(&entry.path()),
        about => about.map_or(0, |about| about.len()),
    });
    sizes.sum()
}

/// The folders of attempts below `part` that have output.
fn logs(cell: &Machines, part: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(cell.data(1).join(part)) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path().join("logs")).filter(|logs| logs.exists()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_output_fills_no_disk_and_stops_nobody() {
    let Some(cell) = Machines::launch().await else { return };
    let mut calm = cell.job("calm", 1, &format!("echo calm{SLEEP_FOREVER}"));
    calm["constraints"] = on(1);
    cell.submit(&calm).await;
    let calm = cell.wait_until_running("calm").await;
    let quiet = logs(&cell, "tasks");
    // A hundred times what is kept; done, it says so and waits to be let go.
    let script = r#"head -c 200M /dev/zero; head -c 200M /dev/zero >&2
        echo done > "$SHARED/flooded"; mkfifo go; read word < go; exit 7"#;
    let mut flood = cell.job("flood", 1, script);
    flood["constraints"] = on(1);
    flood["task"]["logs"] = json!({ "file_bytes": FILE_BYTES, "files": FILES, "rate": 4 << 20 });
    cell.submit(&flood).await;
    let largest = std::sync::atomic::AtomicU64::new(0);
    cell.until("the flood is over", async |cell| {
        for folder in logs(cell, "tasks").iter().filter(|folder| !quiet.contains(folder)) {
            let held = size(folder);
            assert!(held <= BOUND, "{held} bytes of output are kept; allowed: {BOUND}");
            largest.fetch_max(held, std::sync::atomic::Ordering::Relaxed);
        }
        (!cell.read("flooded").is_empty()).then_some(())
    })
    .await;
    assert!(largest.into_inner() >= FILE_BYTES, "nothing was kept of the flood");
    assert!(is_alive(cell.pids(&calm).await[0]));
    // The machine still does as it is told.
    let mut other = cell.job("other", 1, "exit 0");
    other["constraints"] = on(1);
    cell.submit(&other).await;
    cell.wait_for_tasks("other", |task| task.state == TaskState::Dead(TaskOutcome::Finished)).await;

    let work = logs(&cell, "tasks").into_iter().find(|folder| !quiet.contains(folder));
    let work = work.expect("the flooding task").with_file_name("work");
    std::fs::write(work.join("go"), "go\n").expect("somebody reads");
    let code = TaskState::Dead(TaskOutcome::Failed(ExitClass::Code(7)));
    cell.wait_for_tasks("flood", |task| task.state == code).await;
    let kept = cell.until("what is over is put aside", async |cell| {
        let mut kept = logs(cell, "ended");
        kept.retain(|folder| size(folder) >= FILE_BYTES);
        (!kept.is_empty() && !work.exists()).then_some(kept)
    });
    let kept = kept.await;
    assert_eq!(kept.len(), 1);
    for stream in ["stdout", "stderr"] {
        let files = [stream.to_owned(), format!("{stream}.1")];
        let text = files.map(|file| std::fs::read(kept[0].join(file)).unwrap_or_default()).concat();
        let marker = b"[cell: dropped ";
        assert!(
            text.windows(marker.len()).any(|part| part == marker),
            "{stream} hides what is lost"
        );
    }
    assert!(size(&kept[0]) <= BOUND);
    assert_eq!(cell.tasks("calm").await, calm);
}
