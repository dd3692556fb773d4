//! Masters whose disks fill up, on small file systems of their own; and a follower that was away.

use cellwright_api::client::ChangeOptions;
use cellwright_api::error::Code;
use cellwright_api::types::Changed;
use cellwright_tests::hosts::Host;
use cellwright_tests::load::{Load, add_register, read, write};
use cellwright_tests::replicas::{Replicas, ReplicasPlan};
use cellwright_tests::{POLL_INTERVAL, TIMEOUT};
use hyper::Method;
use serde_json::json;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

const MIB: u64 = 1 << 20;
/// How long a follower is away: dozens of election timeouts.
const DISCONNECTED_FOR: Duration = Duration::from_secs(8);
const CHANGES: [(&str, &str); 2] = [
    ("supervise_scheduler = true", "supervise_scheduler = false"),
    ("disk_reserve = \"512MiB\"", "disk_reserve = \"64MiB\""),
];

/// Small disks, one for each data directory; gone with this.
struct Disks(Vec<PathBuf>);

impl Drop for Disks {
    fn drop(&mut self) {
        for dir in &self.0 {
            // What is left of it is named by whoever looks after the tests.
            let _left = Command::new("umount").arg("--lazy").arg(dir).status();
        }
    }
}

fn run(command: &mut Command) {
    let done = command.output().expect("it runs");
    assert!(done.status.success(), "{command:?}: {done:?}");
}

/// Three masters, each with a disk of 256 MiB.
async fn on_small_disks() -> Option<(Disks, Replicas)> {
    let plan = ReplicasPlan { masters: 3, spare: 0, changes: &CHANGES };
    let mut cell = Replicas::launch_with(&plan).await?;
    let mut disks = Disks(Vec::new());
    let hosts: Vec<Host> = cell.masters().collect();
    hosts.iter().for_each(|host| cell.kill(*host));
    for host in &hosts {
        let dir = cell.data_dir(*host);
        let aside = dir.with_extension("aside");
        std::fs::rename(&dir, &aside).expect("set aside");
        std::fs::create_dir(&dir).expect("a mount point");
        let mut mount = Command::new("mount");
        run(mount.args(["-t", "tmpfs", "-o", "size=256m,mode=0700", "cell-test"]).arg(&dir));
        disks.0.push(dir.clone());
        run(Command::new("cp").arg("-a").arg(aside.join(".")).arg(&dir));
        cell.start(*host);
    }
    cell.leader().await;
    Some((disks, cell))
}

fn free(dir: &Path) -> u64 {
    let room = rustix::fs::statvfs(dir).expect("a file system");
    room.f_bavail * room.f_frsize
}

/// Fills the disk until this much is free.
fn fill(cell: &Replicas, host: Host, left: u64) {
    let dir = cell.data_dir(host);
    let file = File::create(dir.join("ballast")).expect("a file");
    let bytes = free(&dir).saturating_sub(left);
    let none = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&file, none, 0, bytes).expect("room for it");
}

fn empty(cell: &Replicas, host: Host) {
    std::fs::remove_file(cell.data_dir(host).join("ballast")).expect("it was there");
}

/// What `cell status` says, on one line, once it holds this.
async fn status_with(cell: &Replicas, words: &str) -> String {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status = cell.cell(&["status"]).unwrap_or_else(|why| why);
        let status = status.split_whitespace().collect::<Vec<_>>().join(" ");
        if status.contains(words) {
            return status;
        }
        assert!(Instant::now() < deadline, "never told {words:?}; last: {status}");
        sleep(POLL_INTERVAL).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_was_cut_off_returns_without_an_election() {
    let Some(cell) = Replicas::launch(3).await else { return };
    let load = Load::start(&cell, 4).await;
    load.wait_for_writes(&cell, 50).await;
    let before = cell.leader().await;
    let away = cell.hosts.all().find(|host| *host != before.host).expect("a follower");
    let struck = Instant::now();
    for other in cell.hosts.all().filter(|host| *host != away) {
        cell.hosts.deafen(away, other);
        cell.hosts.deafen(other, away);
    }
    load.wait_for_writes(&cell, 100).await;
    sleep_until(struck + DISCONNECTED_FOR).await;
    cell.hosts.heal();
    load.wait_for_writes(&cell, 100).await;
    load.stop_and_check(&cell).await;
    assert_eq!(cell.leader().await, before, "the same leader in the same term");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_low_on_disk_hands_over_and_removals_are_taken_when_all_are() {
    let Some((_disks, cell)) = on_small_disks().await else { return };
    let client = cell.client();
    add_register(&client, 0).await.expect("a user is added");
    write(&client, 0, 1).await.expect("a write");
    let machine = json!({ "name": "n1", "capacity": { "cpu": 1000, "ram": 1 << 30 } });
    let (path, any) = ("/v1/machines", ChangeOptions::default());
    let added = client.change::<_, Changed>(Method::POST, path, Some(&machine), &any).await;
    added.expect("a machine is added");
    let old = cell.leader().await;
    fill(&cell, old.host, 40 * MIB);
    let deadline = Instant::now() + TIMEOUT;
    let mut value = 1;
    while cell.leader().await.host == old.host {
        assert!(Instant::now() < deadline, "nobody took over: {}", cell.output());
        value += 1;
        write(&client, 0, value).await.expect("writes go on");
    }
    write(&client, 0, value + 1).await.expect("writes go on");
    let name = format!("master m{} has", old.host);
    let status = status_with(&cell, &name).await;
    assert!(status.contains("less than its reserve"), "{status}");

    let others: Vec<Host> = cell.masters().filter(|host| *host != old.host).collect();
    others.iter().for_each(|host| fill(&cell, *host, 40 * MIB));
    let deadline = Instant::now() + TIMEOUT;
    let rejection = loop {
        value += 1;
        match write(&client, 0, value).await {
            Ok(_) => assert!(Instant::now() < deadline, "never refused"),
            Err(refused) => break refused,
        }
    };
    assert_eq!(rejection.code(), Some(Code::DiskFull), "{rejection}");
    let saved = cell.cell(&["checkpoint", "save"]).expect_err("what is left is the log's");
    assert!(saved.contains("free"), "{saved}");
    let removed = cell.cell(&["machine", "rm", "n1"]);
    assert!(removed.is_ok(), "{removed:?}");
    let path = "/v1/users/writer-0/quota/batch";
    let removed = client.change::<(), Changed>(Method::DELETE, path, None, &any).await;
    assert!(removed.is_ok(), "{removed:?}");
    let removed = cell.cell(&["user", "rm", "writer-0"]);
    assert!(removed.is_ok(), "{removed:?}");
    cell.masters().for_each(|host| empty(&cell, host));
    add_register(&client, 1).await.expect("there is room again");
    write(&client, 1, 7).await.expect("a write");
    assert_eq!(read(&client, 1).await.expect("a read").value, 7);
    // The others are asked every few seconds how much room they have.
    let deadline = Instant::now() + TIMEOUT;
    while status_with(&cell, "cell at").await.contains("less than its reserve") {
        assert!(Instant::now() < deadline, "the alarm stays: {}", cell.output());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_on_a_full_disk_says_so() {
    let Some((_disks, mut cell)) = on_small_disks().await else { return };
    let client = cell.client();
    add_register(&client, 0).await.expect("a user is added");
    let leader = cell.leader().await.host;
    let victim = cell.masters().find(|host| *host != leader).expect("a follower");
    cell.kill(victim);
    fill(&cell, victim, 0);
    cell.start(victim);
    let deadline = Instant::now() + TIMEOUT;
    let dir = cell.data_dir(victim).display().to_string();
    let words = [format!("the disk of {dir} is full"), format!("the disk of {dir} has")];
    while !words.iter().any(|words| cell.output().contains(words)) {
        assert!(Instant::now() < deadline, "not a word: {}", cell.output());
        sleep(POLL_INTERVAL).await;
    }
    write(&client, 0, 1).await.expect("the others go on");
    empty(&cell, victim);
    cell.kill(victim);
    cell.start(victim);
    let index = write(&client, 0, 2).await.expect("a write");
    cell.wait_until_healed(index).await;
}
