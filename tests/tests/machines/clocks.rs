//! Clocks that jump, on real processes: of the leader, of a master that starts, of a machine.

use cellwright_api::client::Change;
use cellwright_api::types::{Changed, NewToken};
use cellwright_cell::machine::MachineStatus;
use cellwright_tests::machines::{Machines, STAY, Wanted, name, on};
use hyper::Method;
use serde_json::json;

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
/// Masters and machines that tell their clocks every second.
const QUICK: [(&str, &str); 1] = [("poll_interval = \"5s\"", "poll_interval = \"1s\"")];

async fn lay(masters: usize) -> Option<Machines> {
    Machines::lay_out(&Wanted { masters, changes: &QUICK, ..Wanted::default() }).await
}

/// Waits until `cell status` says so, or does not any more.
async fn alarmed(cell: &Machines, what: &str, is_so: bool) {
    cell.until(&format!("alarm {what:?}: {is_so}"), async |cell| {
        let said = cell.masters.cell(&["status"]).ok()?;
        (said.contains(what) == is_so).then_some(())
    })
    .await;
}

/// A token is made and lasts, and a resource is leased: both are refused by a log that is in the
/// future of whoever counts from its own clock.
async fn grants(cell: &Machines, number: &str) {
    let made = cell.masters.cell(&["token", "create", "--agent", number, "-o", "json"]);
    let made: NewToken = serde_json::from_str(&made.expect("a token is made")).expect("JSON");
    let status = cell.client().cluster_status().await.expect("the cell answers").value;
    let left = made.expires.0 as i64 - status.now.0 as i64;
    assert!((0..=15 * MINUTE).contains(&left), "it has {left} ms");
    let lease = json!({ "capacity": { "add": 1 }, "nodes": { "node": name(1) }, "lease": 5000 });
    let (path, change) = (format!("/v1/resources/app/{number}"), Change::default());
    let put = cell.client().change::<_, Changed>(Method::PUT, &path, Some(&lease), &change);
    put.await.expect("a resource is leased");
    let real = cellwright_api::clock::wall().0 as i64;
    let off = status.now.0 as i64 - real;
    assert!(off.abs() < MINUTE, "the log is {off} ms ahead");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_is_alarmed_and_stops_nothing() {
    let Some(mut cell) = lay(3).await else { return };
    let mut job = cell.job("stays", 1, STAY);
    job["constraints"] = on(1);
    cell.submit(&job).await;
    let pids = cell.pids(&cell.all_run("stays").await).await;
    for (number, ahead) in [HOUR, -HOUR, 10 * MINUTE, -10 * MINUTE].into_iter().enumerate() {
        let leader = format!("m{}", cell.masters.leader().await.host);
        cell.masters.set_clock(&leader, ahead);
        alarmed(&cell, &format!("the clock of master {leader}"), true).await;
        grants(&cell, &format!("wrong-{number}")).await;
        cell.masters.set_clock(&leader, 0);
        grants(&cell, &format!("right-{number}")).await;
        alarmed(&cell, "the clock of", false).await;
    }

    cell.masters.set_clock("n1", -HOUR);
    alarmed(&cell, "the clock of machine n1 is 60 min behind", true).await;
    let shown = cell.masters.cell(&["machine", "show", "n1"]).expect("it is shown");
    assert!(shown.contains("60 min behind the cell's"), "{shown}");
    assert_eq!(cell.pids(&cell.all_run("stays").await).await, pids, "nothing moved");

    // A master that starts a day ahead is let in by nobody who is right; when it is right too, it
    // is one of them again without another start.
    let host = cell.masters.leader().await.host % 3 + 1;
    cell.masters.kill(host);
    cell.masters.set_clock(&format!("m{host}"), DAY);
    cell.masters.start(host);
    alarmed(&cell, "the clock of machine n1", true).await;
    cell.masters.set_clock(&format!("m{host}"), 0);
    cell.masters.healed(1).await;
    grants(&cell, "healed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_lost_its_data_comes_back_with_a_clock_that_is_behind() {
    let Some(mut cell) = lay(1).await else { return };
    for (job, behind) in [("first", HOUR), ("second", 2 * HOUR)] {
        let before = cell.machine(1).await.expect("a machine").incarnation;
        cell.stop_agent(1).await;
        std::fs::remove_dir_all(cell.data(1)).expect("its data is removed");
        cell.masters.set_clock("n1", -behind);
        cell.start_agent(1);
        cell.until("a new life", async |cell| {
            let machine = cell.machine(1).await?;
            let is_new = machine.incarnation > before && machine.status == MachineStatus::Up;
            is_new.then_some(())
        })
        .await;
        let mut probe = cell.job(job, 1, "exit 0");
        probe["constraints"] = on(1);
        cell.submit(&probe).await;
        cell.all(job, |task| task.state.is_dead()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_masters_clock_an_hour_ahead_for_seconds_blocks_nothing_after_it() {
    let Some(cell) = lay(1).await else { return };
    for (number, ahead) in [HOUR, -HOUR].into_iter().enumerate() {
        cell.masters.set_clock("m1", ahead);
        alarmed(&cell, "the time of the log", true).await;
        grants(&cell, &format!("wrong-{number}")).await;
        cell.masters.set_clock("m1", 0);
        alarmed(&cell, "the time of the log", false).await;
        grants(&cell, &format!("right-{number}")).await;
    }
}
