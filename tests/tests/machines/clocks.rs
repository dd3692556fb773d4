//! Clocks that jump, on real processes of each kind: the leader, a follower, the only master, a
//! master that starts, a machine, a scheduler.

use cellwright_api::client::ChangeOptions;
use cellwright_api::types::{Changed, NewToken};
use cellwright_cell::machine::MachineStatus;
use cellwright_tests::binary;
use cellwright_tests::hosts::Host;
use cellwright_tests::machines::{Machines, MachinesPlan, SLEEP_FOREVER, name, on};
use cellwright_tests::process::Process;
use cellwright_tests::replicas::{CLOCK, NO_SCHEDULER, master};
use hyper::Method;
use serde_json::json;
use std::process::Command;

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
/// By which each kind of process has its clock wrong.
const JUMPS: [i64; 4] = [HOUR, -HOUR, 10 * MINUTE, -10 * MINUTE];
/// Masters and machines that tell their clocks every second. Schedulers are processes of their own,
/// for those beside a master have its clock.
const FAST_POLLS: [(&str, &str); 2] =
    [("poll_interval = \"5s\"", "poll_interval = \"1s\""), NO_SCHEDULER];

/// A cell and its only scheduler.
struct ClockedCell {
    /// Before the cell, so that it ends first.
    scheduler: Option<Process>,
    cell: Machines,
}

impl ClockedCell {
    async fn launch(masters: usize) -> Option<ClockedCell> {
        let plan = MachinesPlan { masters, changes: &FAST_POLLS, ..MachinesPlan::default() };
        let cell = Machines::launch_with(&plan).await?;
        let token = cell.masters.folder.path("s1.token");
        let file = token.to_str().expect("a path in UTF-8");
        let made = ["token", "create", "--scheduler", "s1", "--token-file", file];
        cell.masters.cell(&made).expect("a token is made");
        let mut join = scheduler(&cell);
        join.args(["--join", "--token-file", file, "--master", &master(1)]);
        let scheduler = Some(start(&cell, join));
        Some(ClockedCell { scheduler, cell })
    }

    /// The scheduler ends without a word, and another life of it begins.
    fn restart_scheduler(&mut self) {
        self.scheduler.take().expect("it runs").kill();
        self.scheduler = Some(start(&self.cell, scheduler(&self.cell)));
    }
}

fn scheduler(cell: &Machines) -> Command {
    let mut command = Command::new(binary::cell());
    command.arg("scheduler").arg("--identity").arg(cell.masters.folder.path("s1.toml"));
    command.env(CLOCK, cell.masters.clock_file("s1"));
    command
}

fn start(cell: &Machines, scheduler: Command) -> Process {
    Process::start(scheduler, &cell.masters.folder.path("s1.log"))
}

/// A task is placed on the first machine and runs to its end there.
async fn run_job(cell: &Machines, job: &str) {
    let mut probe = cell.job(job, 1, "exit 0");
    probe["constraints"] = on(1);
    cell.submit(&probe).await;
    cell.wait_for_tasks(job, |task| task.state.is_dead()).await;
}

/// The clock of a process is wrong in each way: that is said, and stops nothing, neither while it
/// is so nor when it is right again. `find_process` gives the name of the process in
/// alarms, which may be another each time.
async fn check_clock_jumps(
    cell: &Machines,
    kind: &str,
    find_process: impl AsyncFn(&Machines) -> String,
) {
    for (number, ahead) in JUMPS.into_iter().enumerate() {
        let process_name = find_process(cell).await;
        let (_, process) = process_name.split_once(' ').expect("a kind and a name");
        cell.masters.set_clock(process, ahead);
        wait_for_alarm(cell, &format!("the clock of {process_name} is"), true).await;
        check_leases(cell, &format!("{kind}-wrong-{number}")).await;
        run_job(cell, &format!("{kind}-wrong-{number}")).await;
        cell.masters.set_clock(process, 0);
        check_leases(cell, &format!("{kind}-right-{number}")).await;
        run_job(cell, &format!("{kind}-right-{number}")).await;
        wait_for_alarm(cell, "the clock of", false).await;
    }
}

/// Waits until `cell status` says so, or does not any more.
async fn wait_for_alarm(cell: &Machines, what: &str, is_so: bool) {
    cell.until(&format!("alarm {what:?}: {is_so}"), async |cell| {
        let status = cell.masters.cell(&["status"]).ok()?;
        (status.contains(what) == is_so).then_some(())
    })
    .await;
}

/// A token is made and lasts, and a resource is leased: both are refused by a log that is in the
/// future of whoever counts from its own clock.
async fn check_leases(cell: &Machines, number: &str) {
    let made = cell.masters.cell(&["token", "create", "--agent", number, "-o", "json"]);
    let made: NewToken = serde_json::from_str(&made.expect("a token is made")).expect("JSON");
    let status = cell.client().cluster_status().await.expect("the cell answers").value;
    let left = made.expires.0 as i64 - status.now.0 as i64;
    assert!((0..=15 * MINUTE).contains(&left), "it has {left} ms");
    let lease = json!({ "capacity": { "add": 1 }, "nodes": { "node": name(1) }, "lease": 5000 });
    let (path, change) = (format!("/v1/resources/app/{number}"), ChangeOptions::default());
    let put = cell.client().change::<_, Changed>(Method::PUT, &path, Some(&lease), &change);
    put.await.expect("a resource is leased");
    let real = cellwright_identity::clock::wall().0 as i64;
    let off = status.now.0 as i64 - real;
    assert!(off.abs() < MINUTE, "the log is {off} ms ahead");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_masters_clock_that_jumps_is_alarmed_and_stops_nothing() {
    let Some(ClockedCell { mut cell, scheduler: _scheduler }) = ClockedCell::launch(3).await else {
        return;
    };
    check_clock_jumps(&cell, "leader", async |cell| {
        format!("master m{}", cell.masters.leader().await.host)
    })
    .await;
    check_clock_jumps(&cell, "follower", async |cell| format!("master m{}", follower(cell).await))
        .await;

    // A master that starts a day ahead is let in by nobody who is right; when it is right too, it
    // is one of them again without another start.
    let host = follower(&cell).await;
    let words = format!("replica m{host} serves");
    let starts = |cell: &Machines| cell.masters.output().matches(&words).count();
    let before = starts(&cell);
    cell.masters.kill(host);
    cell.masters.set_clock(&format!("m{host}"), DAY);
    cell.masters.start(host);
    cell.until("it has started", async |cell| (starts(cell) > before).then_some(())).await;
    check_leases(&cell, "shut-out").await;
    cell.masters.set_clock(&format!("m{host}"), 0);
    cell.masters.wait_until_healed(1).await;
    check_leases(&cell, "healed").await;
}

async fn follower(cell: &Machines) -> Host {
    cell.masters.leader().await.host % 3 + 1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_of_a_machine_or_a_scheduler_that_jumps_is_alarmed_and_stops_nothing() {
    let Some(mut clocked) = ClockedCell::launch(3).await else { return };
    let cell = &clocked.cell;
    let mut job = cell.job("stays", 1, SLEEP_FOREVER);
    job["constraints"] = on(1);
    cell.submit(&job).await;
    let pids = cell.pids(&cell.wait_until_running("stays").await).await;
    check_clock_jumps(cell, "machine", async |_| "machine n1".to_owned()).await;
    check_clock_jumps(cell, "scheduler", async |_| "scheduler s1".to_owned()).await;

    // For good, and from the start of a process on.
    for (number, ahead) in [HOUR, -HOUR].into_iter().enumerate() {
        let cell = &mut clocked.cell;
        cell.kill_agent(1);
        ["n1", "s1"].iter().for_each(|process| cell.masters.set_clock(process, ahead));
        cell.start_agent(1);
        clocked.restart_scheduler();
        run_job(&clocked.cell, &format!("started-{number}")).await;
    }
    let cell = &clocked.cell;
    wait_for_alarm(cell, "the clock of machine n1 is 60 min behind", true).await;
    let details = cell.masters.cell(&["machine", "show", "n1"]).expect("it is shown");
    assert!(details.contains("60 min behind the cell's"), "{details}");
    assert_eq!(cell.pids(&cell.wait_until_running("stays").await).await, pids, "nothing moved");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_lost_its_data_comes_back_with_a_clock_that_is_behind() {
    let Some(ClockedCell { mut cell, scheduler: _scheduler }) = ClockedCell::launch(1).await else {
        return;
    };
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
        run_job(&cell, job).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_masters_clock_wrong_for_seconds_blocks_nothing_after_it() {
    let Some(ClockedCell { cell, scheduler: _scheduler }) = ClockedCell::launch(1).await else {
        return;
    };
    for (number, ahead) in JUMPS.into_iter().enumerate() {
        cell.masters.set_clock("m1", ahead);
        wait_for_alarm(&cell, "the time of the log", true).await;
        check_leases(&cell, &format!("wrong-{number}")).await;
        cell.masters.set_clock("m1", 0);
        wait_for_alarm(&cell, "the time of the log", false).await;
        check_leases(&cell, &format!("right-{number}")).await;
    }
}
