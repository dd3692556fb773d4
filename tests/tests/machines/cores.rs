//! A core that a latency-sensitive task has reserved is closed to others of its kind and open to
//! batch, as the kernel sees it.

use cellwright_tests::machines::{Machines, on};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Runs and sleeps.
const STAY: &str = cellwright_tests::machines::SLEEP_FOREVER;

fn job(cell: &Machines, name: &str, sensitive: bool) -> Value {
    let mut job = cell.job(name, 1, STAY);
    job["constraints"] = on(1);
    job["task"]["notice"] = json!(0);
    if sensitive {
        job["appclass"] = json!("latency_sensitive");
        job["priority"] = json!(200);
    }
    job
}

/// Numbers in a list of the kernel's, such as `0-2,5`.
fn numbers(list: &str) -> BTreeSet<u32> {
    let number = |text: &str| text.trim().parse::<u32>().unwrap_or_else(|_| panic!("{list}"));
    let part = |part: &str| match part.split_once('-') {
        Some((first, last)) => number(first)..=number(last),
        None => number(part)..=number(part),
    };
    list.trim().split(',').flat_map(part).collect()
}

/// CPUs that the kernel lets a process run on.
fn allowed(pid: u32) -> BTreeSet<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    numbers(line.expect("a list of CPUs"))
}

/// The CPUs of one core, those of this one among them.
fn core_of(cpu: u32) -> BTreeSet<u32> {
    let siblings = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    numbers(&std::fs::read_to_string(siblings).expect("the kernel knows its cores"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reserved_core_is_closed_to_other_sensitive_tasks_and_open_to_batch() {
    let all = allowed(std::process::id());
    let cores: BTreeSet<BTreeSet<u32>> = all.iter().map(|cpu| core_of(*cpu)).collect();
    if cores.len() < 2 {
        println!("skipped: one core, and one always stays for those who reserved none");
        return;
    }
    let Some(cell) = Machines::launch().await else { return };
    let mut owner = job(&cell, "owner", true);
    owner["task"]["limits"]["cpu"] = json!(1000);
    owner["task"]["isolation"] = json!({ "whole_cores": 1 });
    for spec in [job(&cell, "other", true), job(&cell, "batch", false), owner] {
        cell.submit(&spec).await;
    }
    let mut pids = Vec::new();
    for name in ["owner", "other", "batch"] {
        cell.wait_until_running(name).await;
        pids.push(cell.pid(name, 0, 1).await);
    }
    let [owner, other, batch] = pids[..] else { panic!("{pids:?}") };
    let core = cell
        .until("the owner has a core of its own", async |_| {
            let own = allowed(owner);
            (cores.contains(&own) && allowed(other).is_disjoint(&own)).then_some(own)
        })
        .await;
    assert_eq!(allowed(other), all.difference(&core).copied().collect());
    assert_eq!(allowed(batch), all);
    // Who comes later keeps off it too.
    cell.submit(&job(&cell, "later", true)).await;
    cell.wait_until_running("later").await;
    let later = cell.pid("later", 0, 1).await;
    cell.until("nor is it open to those who come later", async |_| {
        allowed(later).is_disjoint(&core).then_some(())
    })
    .await;
    cell.stop("owner").await;
    cell.until("it is open again when its owner has gone", async |_| {
        (allowed(other) == all && allowed(later) == all).then_some(())
    })
    .await;
}
