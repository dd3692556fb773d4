//! A machine that is cut off and comes back, with the settings a cell has by default.

use crate::ledger::lines;
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::task::TaskState;
use cellwright_tests::machines::{
    Machines, MachinesPlan, SLEEP_FOREVER, is_alive, name, on, spread, wait_until_gone,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Within this time a task of a lost machine runs elsewhere.
const REPLACED: Duration = Duration::from_secs(20);
/// Seconds, and so polls, for which a cell holds still that hears too few.
const HOLD_TIME: Duration = Duration::from_secs(8);
/// A silence of this length moves nothing.
const BLIP: Duration = Duration::from_secs(5);

/// A poll a second.
const FAST_POLLS: [(&str, &str); 1] = [("poll_interval = \"5s\"", "poll_interval = \"1s\"")];

/// Says that it lives, again and again.
const HEARTBEAT_SCRIPT: &str = r#"
    while :; do
        echo "beat $CELL_JOB/$CELL_INDEX $CELL_ATTEMPT" >> "$SHARED/ledger"; sleep 0.1
    done"#;

/// Rather on this machine.
fn rather_on(machine: usize) -> Value {
    let mut wish = on(machine);
    wish[0]["strength"] = json!({ "soft": 100 });
    wish
}

/// Waits until the masters and the machine's agent hear each other: a new task runs there.
async fn wait_until_connected(cell: &Machines, machine: usize, job: &str) {
    let mut probe = cell.job(job, 1, "exit 0");
    probe["constraints"] = on(machine);
    cell.submit(&probe).await;
    cell.wait_for_tasks(job, |task| task.state.is_dead()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_machine_is_replaced_in_time_and_ends_what_is_elsewhere_when_it_is_back() {
    let Some(cell) = Machines::launch().await else { return };
    let mut single = cell.job("single", 1, HEARTBEAT_SCRIPT);
    single["at_most_one"] = json!(15_000);
    let mut moves = cell.job("moves", 3, SLEEP_FOREVER);
    for job in [&mut single, &mut moves] {
        job["constraints"] = rather_on(1);
        job["restart"] = json!({ "backoff": 1, "backoff_max": 1 });
        cell.submit(job).await;
    }
    let one = cell.wait_until_running("single").await;
    let three = cell.wait_until_running("moves").await;
    assert!(one.iter().chain(&three).all(|task| task.machine == Some(name(1))), "{three:#?}");
    let (one_pids, three_pids) = (cell.pids(&one).await, cell.pids(&three).await);

    cell.disconnect(1);
    sleep(BLIP).await;
    cell.masters.hosts.heal();
    wait_until_connected(&cell, 1, "after-the-blip").await;
    assert_eq!((cell.tasks("single").await, cell.tasks("moves").await), (one, three));
    assert!(one_pids.iter().chain(&three_pids).all(|pid| is_alive(*pid)));

    let cut = Instant::now();
    cell.disconnect(1);
    let elsewhere = |task: &cellwright_api::types::TaskView| {
        task.state == TaskState::Running && task.machine != Some(name(1))
    };
    let moved = cell.wait_for_tasks("moves", elsewhere).await;
    let took = cut.elapsed();
    println!("machine loss: replaced after {} ms", took.as_millis());
    assert!(took <= REPLACED, "replaced after {took:?}");
    // Nobody can have told the old ones.
    assert!(three_pids.iter().all(|pid| is_alive(*pid)));
    let single = cell.wait_for_tasks("single", elsewhere).await;
    println!("machine loss: the only one runs again after {} ms", cut.elapsed().as_millis());
    cell.pids(&single).await;
    assert!(!is_alive(one_pids[0]), "two of a job that must never have two");

    cell.masters.hosts.heal();
    for pid in three_pids {
        wait_until_gone(pid).await;
    }
    wait_until_connected(&cell, 1, "after-the-loss").await;
    let status = cell.machine(1).await.map(|machine| machine.status);
    assert_eq!(status, Some(MachineStatus::Up));
    assert_eq!((cell.tasks("single").await, cell.tasks("moves").await), (single, moved));
    check_beats(&cell);
}

/// Two of three machines are more than half of the cell: it is the network that is broken. Stopped
/// agents are the same as a cut to the masters, and all of them stop at one moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_moves_and_an_alarm_stands_while_most_machines_are_silent() {
    let plan = MachinesPlan { changes: &FAST_POLLS, ..MachinesPlan::default() };
    let Some(mut cell) = Machines::launch_with(&plan).await else { return };
    let mut job = cell.job("stays", 6, SLEEP_FOREVER);
    job["spread"] = spread(2);
    cell.submit(&job).await;
    let before = cell.wait_until_running("stays").await;
    let pids = cell.pids(&before).await;
    for machine in [2, 3] {
        cell.agent(machine).signal(Signal::STOP);
    }
    // The leader says so when a machine is due to be declared down, and then and ever after it
    // holds: twice the time in which it would have declared both.
    let alarm = "cell_alarms{alarm=\"most_machines_silent\"} 2";
    let stands = async |cell: &Machines| cell.client().text("/metrics").await.ok();
    cell.until("the alarm", async |cell| stands(cell).await?.contains(alarm).then_some(())).await;
    sleep(HOLD_TIME).await;
    assert!(stands(&cell).await.is_some_and(|page| page.contains(alarm)));
    for machine in [2, 3] {
        let status = cell.machine(machine).await.map(|machine| machine.status);
        assert_eq!(status, Some(MachineStatus::Up));
        cell.agent(machine).signal(Signal::CONT);
    }
    let quiet = async |cell: &Machines| (!stands(cell).await?.contains(alarm)).then_some(());
    cell.until("no alarm any more", quiet).await;
    wait_until_connected(&cell, 2, "after-the-silence").await;
    assert_eq!(cell.tasks("stays").await, before);
    assert!(pids.iter().all(|pid| is_alive(*pid)));
}

/// The attempts of the one that may be there once never beat in turns.
fn check_beats(cell: &Machines) {
    let beats = lines(cell, "single");
    let attempts: Vec<u32> =
        beats.iter().map(|[_, _, attempt]| attempt.parse().expect("a number")).collect();
    assert!(attempts.is_sorted(), "two at once: {attempts:?}");
    assert_eq!((attempts.first(), attempts.last()), (Some(&1), Some(&2)));
}
