//! Files of a replica that lost bits or their ends while it was off: said, and mended from peers.

use cellwright_api::types::AuditView;
use cellwright_tests::TIMEOUT;
use cellwright_tests::hosts::Host;
use cellwright_tests::load::{add_register, write};
use cellwright_tests::replicas::{NO_SCHEDULER, Replicas, ReplicasPlan, master};
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Snapshots every hundred entries, so that the log does not tell everything again.
const CHANGES: [(&str, &str); 2] =
    [NO_SCHEDULER, ("snapshot_entries = 50000", "snapshot_entries = 100")];
/// More than two snapshots' worth.
const WRITES: u64 = 250;
const LOOK: Duration = Duration::from_millis(200);

/// Three masters with much in their logs, the last index of them, and a follower.
async fn written() -> Option<(Replicas, u64, Host)> {
    let plan = ReplicasPlan { masters: 3, spare: 0, changes: &CHANGES };
    let cell = Replicas::launch_with(&plan).await?;
    let client = cell.client();
    add_register(&client, 0).await.expect("a user is added");
    let mut last = 0;
    for value in 1..=WRITES {
        last = write(&client, 0, value).await.expect("a change");
    }
    cell.wait_until_healed(last).await;
    let leader = cell.leader().await.host;
    let follower = cell.masters().find(|host| *host != leader).expect("a follower");
    Some((cell, last, follower))
}

/// The newest file of a folder of numbered ones.
fn newest(folder: &Path) -> PathBuf {
    let entries = fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("a file").path());
    let is_numbered = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.len() >= 16 && name.chars().all(|c| c.is_ascii_hexdigit())
    };
    paths.filter(is_numbered).max().expect("a numbered file")
}

/// Turns over one bit of a file, so far from its beginning.
fn flip(path: &Path, part: f64) {
    let bytes = fs::metadata(path).expect("a file").len();
    flip_at(path, (bytes as f64 * part) as usize);
}

fn flip_at(path: &Path, at: usize) {
    let mut bytes = fs::read(path).expect("a file");
    bytes[at] ^= 0x10;
    fs::write(path, bytes).expect("written");
}

/// What is found once there is an answer: a replica that has just begun has none at first.
async fn wait_for_answer<T>(cell: &Replicas, look: impl AsyncFn() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "no answer: {}", cell.output());
        sleep(LOOK).await;
    }
}

/// Cursors of the events that a replica lists, from the first on.
async fn cursors(cell: &Replicas, host: Host) -> Option<Vec<String>> {
    let path = "/v1/events?limit=1000";
    let page = cell.client().bytes_at(&master(host), path, TIMEOUT).await.ok()?;
    let page: serde_json::Value = serde_json::from_slice(&page).ok()?;
    let items = page["items"].as_array()?;
    Some(items.iter().filter_map(|item| item["cursor"].as_str()).map(str::to_owned).collect())
}

#[tokio::test]
async fn a_flipped_bit_in_events_and_history_is_told_and_mended_from_a_peer() {
    let Some((mut cell, last, victim)) = written().await else { return };
    let client = cell.client();
    let leader = cell.leader().await.host;
    let whole = wait_for_answer(&cell, async || cursors(&cell, leader).await).await;
    assert!(whole.len() > 200, "{} events", whole.len());
    cell.kill(victim);
    let data = cell.data_dir(victim);
    flip(&data.join("events/00000000000000000000"), 0.3);
    // In the third page, which is there from the first start on, so that its checksum is known: a
    // page that came with later changes may wait in the log of changes, and is whole there.
    flip_at(&data.join("history/recent.sqlite"), 3 * 4096 - 1);
    cell.start(victim);
    cell.wait_until_healed(last).await;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status = wait_for_answer(&cell, async || cell.status(&client, victim).await).await;
        let is_mended = !status.damage.iter().any(|what| what.contains("events"));
        let listed = wait_for_answer(&cell, async || cursors(&cell, victim).await).await;
        // Never a shorter list that says nothing.
        assert!(listed == whole || !is_mended, "{status:?}: {} listed", listed.len());
        if is_mended && listed == whole && !status.damage.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "{status:?}\n{}", cell.output());
        sleep(LOOK).await;
    }
    assert!(data.join("history/damaged").is_dir(), "the old database is set aside");
    let output = cell.cell(&["master", "status"]).expect("a status");
    assert!(output.contains("set aside"), "{output}");
}

/// Lines of a replica's audit log of what is in the replicated log, as one text each; and whether
/// it says that some are missing.
async fn audit(cell: &Replicas, host: Host) -> Option<(Vec<String>, bool)> {
    let path = "/v1/audit?limit=1000";
    let page = cell.client().bytes_at(&master(host), path, TIMEOUT).await.ok()?;
    let page: Value = serde_json::from_slice(&page).ok()?;
    let items: Vec<AuditView> = serde_json::from_value(page["items"].clone()).ok()?;
    let has_gap = items.iter().any(|line| line.gap_before);
    let of_quota = items.iter().filter(|line| line.command == "set_quota");
    let line = |line: &AuditView| format!("{} {} {}", line.index, line.object, line.verdict);
    Some((of_quota.map(line).collect(), has_gap))
}

#[tokio::test]
async fn a_flipped_bit_in_the_newest_audit_segment_costs_nothing_that_a_peer_has() {
    let Some((mut cell, last, victim)) = written().await else { return };
    let client = cell.client();
    let leader = cell.leader().await.host;
    let (whole, _) = wait_for_answer(&cell, async || audit(&cell, leader).await).await;
    assert!(whole.len() as u64 >= WRITES, "{} lines", whole.len());
    cell.kill(victim);
    flip(&newest(&cell.data_dir(victim).join("audit")), 0.3);
    cell.start(victim);
    cell.wait_until_healed(last).await;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status = wait_for_answer(&cell, async || cell.status(&client, victim).await).await;
        let (listed, has_gap) = wait_for_answer(&cell, async || audit(&cell, victim).await).await;
        // Never a shorter list that says nothing.
        assert!(listed == whole || has_gap, "{status:?}: {} of {}", listed.len(), whole.len());
        if listed == whole && status.damage.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "{status:?}\n{}", cell.output());
        sleep(LOOK).await;
    }
    let output = cell.output();
    assert!(output.contains("damaged; a gap until another replica fills it"), "{output}");
}

#[tokio::test]
async fn a_log_cut_short_of_its_snapshot_is_refused_and_rebuilt_from_its_peers() {
    let Some((mut cell, last, victim)) = written().await else { return };
    cell.kill(victim);
    let log = newest(&cell.data_dir(victim).join("log"));
    let length = fs::metadata(&log).expect("a segment").len();
    let file = OpenOptions::new().write(true).open(&log).expect("a segment");
    file.set_len(length / 3).expect("it is cut");
    cell.start(victim);
    let ended = cell.process(victim).ended().await;
    let output = cell.output();
    assert!(!ended.success(), "{output}");
    for words in ["the log ends before entry", "its snapshot", "cell master repair"] {
        assert!(output.contains(words), "{words:?} in {output}");
    }
    let config = cell.config(victim).display().to_string();
    let repaired = cell.cell(&["master", "repair", "--config", &config]).expect("repaired");
    assert!(repaired.contains("is damaged at byte"), "{repaired}");
    cell.start(victim);
    cell.wait_until_healed(last).await;
    let after = write(&cell.client(), 0, WRITES + 1).await.expect("a change");
    cell.wait_until_healed(after).await;
}

#[tokio::test]
async fn a_damaged_snapshot_is_made_up_for_by_an_older_one_and_alarmed() {
    let Some((mut cell, last, victim)) = written().await else { return };
    cell.kill(victim);
    let folder = cell.data_dir(victim).join("snap");
    let snapshots = fs::read_dir(&folder).expect("snapshots");
    let newest = snapshots.map(|entry| entry.expect("a snapshot").path()).max();
    flip(&newest.expect("a snapshot"), 0.5);
    cell.start(victim);
    cell.wait_until_healed(last).await;
    let client = cell.client();
    let status = wait_for_answer(&cell, async || cell.status(&client, victim).await).await;
    let is_told = |what: &String| what.contains("snap/") && what.contains("is damaged at byte");
    assert!(status.damage.iter().any(is_told), "{status:?}\n{}", cell.output());
    let output = cell.cell(&["master", "status"]).expect("a status");
    assert!(output.contains("snap/"), "{output}");
}
