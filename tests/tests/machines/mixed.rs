//! A cell that is upgraded while it works, one process after another: parts of one release and of
//! the next talk to each other, by the order of the guide. What the next release speaks is the wire
//! version after this build's, in which each message has one field more: whoever took a message of
//! one version for one of the other could not read it.

use super::masters::{Cell, MACHINES};
use cellwright_api::wire::{NEWEST, WireVersion};
use cellwright_tests::binary::command_output;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const MASTERS: [&str; 3] = ["m1", "m2", "m3"];
const NEXT: WireVersion = WireVersion(NEWEST.0 + 1);

/// A task on each machine that says its pid at every start and runs on.
fn serves(cell: &Cell) {
    let shared = cell.path("shared");
    std::fs::create_dir(&shared).expect("a folder");
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(&shared, open).expect("it is opened to all");
    let script = "echo $$ >> \"$SHARED/$CELL_INDEX\"; exec sleep 100000";
    let task = json!({
        "limits": { "cpu": "10m", "ram": 8 << 20, "disk": 1 << 20 },
        "command": ["sh", "-c", script], "env": { "SHARED": shared },
    });
    let spec = json!({
        "name": "serve", "count": MACHINES.len(), "priority": 100, "task": task,
        "spread": [{ "domain": "machine", "limit": 1 }],
    });
    let file = cell.path("serve.json");
    std::fs::write(&file, spec.to_string()).expect("a job is written");
    cell.says(&["run", file.to_str().expect("a path in UTF-8")]);
}

/// All starts of all tasks, by index.
fn starts(cell: &Cell) -> Vec<String> {
    let read = |index| std::fs::read_to_string(cell.path("shared").join(format!("{index}")));
    (0..MACHINES.len()).map(|index| read(index).unwrap_or_default()).collect()
}

fn leader(cell: &Cell) -> Option<String> {
    let text = command_output(cell.plain().args(["master", "status", "-o", "json"])).ok()?;
    let told: Value = serde_json::from_str(&text).ok()?;
    let mut members = told["members"].as_array()?.iter();
    let member = members.find(|member| member["id"] == told["leader"])?;
    member["name"].as_str().map(str::to_owned)
}

/// As with the build of the next release in place of its own.
async fn upgrade(cell: &mut Cell, master: &str) {
    cell.kill(master);
    cell.rehearse(master, NEXT);
    cell.start_master(master);
    cell.until(&format!("{master} is back"), |cell| cell.votes(master).then_some(())).await;
}

/// The agent of a machine, with the build of another release.
fn restart(cell: &mut Cell, machine: &str, version: WireVersion) {
    cell.kill(machine);
    cell.rehearse(machine, version);
    cell.start_machine(machine);
}

/// The sum of what the masters counted in lines that begin so.
async fn counted(cell: &Cell, start: &str) -> u64 {
    let mut sum = 0;
    for master in MASTERS {
        let page = cell.metrics(master).await.expect("a page of metrics");
        let lines = page.lines().filter(|line| line.starts_with(start));
        sum += lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>();
    }
    sum
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cell_is_upgraded_part_by_part_and_no_task_notices() {
    let mut cell = Cell::lay().await;
    serves(&cell);
    let begun = cell
        .until("all serve", |cell| {
            Some(starts(cell)).filter(|all| all.iter().all(|pids| pids.ends_with('\n')))
        })
        .await;

    // The guide's order: masters, the leader last.
    let old_leader = cell.until("one leads", leader).await;
    let followers = MASTERS.into_iter().filter(|master| *master != old_leader);
    for (number, master) in followers.enumerate() {
        upgrade(&mut cell, master).await;
        cell.works(&format!("led-by-old-{number}")).await;
    }
    // One of the release before, under a leader of the next.
    cell.kill(&old_leader);
    cell.until("another leads", |cell| leader(cell).filter(|now| *now != old_leader)).await;
    cell.start_master(&old_leader);
    cell.until("it follows", |cell| cell.votes(&old_leader).then_some(())).await;
    cell.works("led-by-new").await;
    upgrade(&mut cell, &old_leader).await;
    cell.works("masters-are-new").await;

    cell.kill("s1");
    cell.rehearse("s1", NEXT);
    cell.start_scheduler();
    cell.works("scheduler-is-new").await;
    for machine in MACHINES {
        restart(&mut cell, machine, NEXT);
        cell.machines_are_up().await;
        cell.works(&format!("new-on-{machine}")).await;
    }

    // One of them is put back to the release before.
    restart(&mut cell, MACHINES[0], NEWEST);
    cell.machines_are_up().await;
    cell.works("old-again").await;

    // The next version was spoken, by all, and nobody was refused.
    for kind in ["agent", "scheduler", "replica"] {
        let line = format!("cell_wire_messages_total{{from=\"{kind}\",wire=\"{NEXT}\"}}");
        assert!(counted(&cell, &line).await > 0, "{line}");
    }
    assert_eq!(counted(&cell, "cell_wire_refused_total").await, 0);

    // Each task was started once, and is the process it was.
    assert_eq!(starts(&cell), begun);
    let runs = |pid: &String| Path::new("/proc").join(pid.trim()).exists();
    assert!(begun.iter().all(runs), "{begun:?}");
    cell.says(&["job", "stop", "admin/serve"]);
    cell.until("all have stopped", |_| (!begun.iter().any(runs)).then_some(())).await;
}
