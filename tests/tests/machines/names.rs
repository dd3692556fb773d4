//! Names of tasks, asked for over DNS: there while a task is well, gone soon after it is not.

use cellwright_cell::task::TaskState;
use cellwright_tests::binary::command_output;
use cellwright_tests::dns::{RecordData, RecordType, ask};
use cellwright_tests::hosts::address;
use cellwright_tests::machines::{Machines, MachinesPlan, SLEEP_FOREVER, USER, spread};
use rustix::process::Signal;
use serde_json::json;
use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;
use tokio::time::Instant;

/// Records leave within this time.
const MAX_STALENESS: Duration = Duration::from_secs(2);
/// No resolver may keep an answer for longer, in seconds.
const MAX_TTL: u32 = 5;

fn server() -> String {
    format!("{}:53", address(1))
}

fn name(what: &str) -> String {
    format!("{what}.{USER}.aa.cell.internal")
}

fn text(words: &[&str]) -> RecordData {
    RecordData::Text(words.iter().map(|word| (*word).to_owned()).collect())
}

/// Waits until the name has these records; how long that took.
async fn wait_for_records(
    cell: &Machines,
    what: &str,
    kind: RecordType,
    expected: &[RecordData],
) -> Duration {
    let began = Instant::now();
    let name = name(what);
    cell.until(&format!("{name} is {expected:?}"), async |_| {
        let name = name.clone();
        let lookup = tokio::task::spawn_blocking(move || ask(&server(), &name, kind));
        let (found, kept) = lookup.await.expect("it does not panic").ok()?;
        assert!(kept <= MAX_TTL, "an answer may be kept for {kept} s");
        (found == expected).then_some(())
    })
    .await;
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_tasks_that_die_or_fall_ill_are_gone_within_two_seconds() {
    let changes = [("dns_listen = \"off\"", "dns_listen = \"0.0.0.0:53\"")];
    let plan = MachinesPlan { changes: &changes, ..MachinesPlan::default() };
    let Some(cell) = Machines::launch_with(&plan).await else { return };
    let mut web = cell.job("web", 3, SLEEP_FOREVER);
    web["spread"] = spread(1);
    web["task"]["ports"] = json!(1);
    // One that has ended stays away for longer than anybody looks.
    web["restart"] = json!({ "backoff": 600_000, "backoff_max": 600_000 });
    web["task"]["health"] = json!({
        "probe": { "command": ["sh", "-c", "test ! -e \"$SHARED/ill-$CELL_INDEX\""] },
        "interval": 100, "failures": 1,
    });
    cell.submit(&web).await;
    let tasks = cell.wait_until_running("web").await;
    let place = |index: usize| -> RecordData {
        let machine = tasks[index].machine.as_ref().expect("it runs").as_str();
        let number: usize = machine.trim_start_matches('n').parse().expect("n1 to n3");
        RecordData::Address(address(cell.host(number)).parse::<Ipv4Addr>().expect("an address"))
    };
    let service = |index: usize| RecordData::Service {
        port: tasks[index].ports[0],
        target: name(&format!("{index}.web")),
    };
    for index in 0..3 {
        let one = format!("{index}.web");
        wait_for_records(&cell, &one, RecordType::A, &[place(index)]).await;
        wait_for_records(&cell, &one, RecordType::Srv, &[service(index)]).await;
    }
    let sorted = |mut all: Vec<RecordData>| {
        all.sort();
        all
    };
    wait_for_records(&cell, "web", RecordType::A, &sorted((0..3).map(place).collect())).await;
    wait_for_records(&cell, "web", RecordType::Srv, &sorted((0..3).map(service).collect())).await;
    let job_status = |healthy: u32| text(&["size=3", &format!("healthy={healthy}"), "unhealthy=0"]);
    wait_for_records(&cell, "web", RecordType::Txt, &[job_status(3)]).await;
    wait_for_records(&cell, "0.web", RecordType::Txt, &[text(&["state=running", "healthy=true"])])
        .await;
    check_resolver(&cell, &tasks[0].name, &place(0));

    cell.signal(cell.pids(&tasks).await[0], Signal::KILL);
    let took = wait_for_records(&cell, "0.web", RecordType::A, &[]).await;
    println!("names: gone {} ms after the task's death", took.as_millis());
    assert!(took <= MAX_STALENESS, "gone after {took:?}");
    wait_for_records(&cell, "web", RecordType::A, &sorted(vec![place(1), place(2)])).await;
    wait_for_records(&cell, "web", RecordType::Txt, &[job_status(2)]).await;
    wait_for_records(&cell, "0.web", RecordType::Txt, &[text(&["state=pending", "healthy=false"])])
        .await;

    std::fs::write(cell.shared("ill-1"), "").expect("a file");
    let took = wait_for_records(&cell, "1.web", RecordType::A, &[]).await;
    println!("names: gone {} ms after the task fell ill", took.as_millis());
    assert!(took <= MAX_STALENESS, "gone after {took:?}");
    wait_for_records(&cell, "web", RecordType::A, &[place(2)]).await;
    std::fs::remove_file(cell.shared("ill-1")).expect("it is there");
    let back = cell.until("the second is well again", async |cell| {
        let tasks = cell.tasks("web").await;
        let task = tasks.into_iter().find(|task| task.index == 1)?;
        (task.state == TaskState::Running && task.healthy).then_some(task)
    });
    assert_eq!(back.await.machine, tasks[1].machine);
    wait_for_records(&cell, "1.web", RecordType::A, &[place(1)]).await;
}

/// The system's own resolver on another host, told of nothing but the server's address.
fn check_resolver(cell: &Machines, task: &str, expected: &RecordData) {
    let RecordData::Address(wanted) = expected else { panic!("{expected:?} is no address") };
    let index = task.rsplit('/').next().expect("user/job/index");
    let name = name(&format!("{index}.web"));
    let config = cell.shared("resolv.conf");
    std::fs::write(&config, format!("nameserver {}\n", address(1))).expect("a file");
    let script = "mount --bind \"$1\" /etc/resolv.conf && getent ahostsv4 \"$2\"";
    let mut command = cell.masters.hosts.enter(cell.host(3), "unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(config).arg(&name);
    let found = command_output(&mut command).expect("a stock resolver finds it");
    assert!(found.starts_with(&format!("{wanted} ")), "{name}: {found}");
    let mut dig = Command::new("dig");
    dig.arg(format!("@{}", address(1))).args([&name, "A", "+short", "+time=2", "+tries=1"]);
    match dig.output() {
        Ok(_) => assert_eq!(command_output(&mut dig).expect("dig").trim(), wanted.to_string()),
        Err(why) => println!("dig not tried: {why}"),
    }
}
