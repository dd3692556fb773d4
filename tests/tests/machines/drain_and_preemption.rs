//! Tasks that have to leave: for a drain, within their budgets; for production work, with notice.

use crate::ledger::{LEDGER_SCRIPT, has_started, lines, most_down};
use cellwright_api::types::{DrainLimit, DrainWaitView, EventView, TaskView};
use cellwright_cell::event::{EventKind, TaskChange};
use cellwright_cell::name::Name;
use cellwright_cell::task::TaskState;
use cellwright_cell::time::{Span, Time};
use cellwright_tests::machines::{
    CAPACITY, Machines, SLEEP_FOREVER, key, name, spread, wait_until_gone,
};
use serde_json::json;

/// How often tasks of the job were told to stop, for the given reason.
fn stops(events: &[EventView], reason: &str) -> usize {
    let was_stopped = |event: &&EventView| {
        matches!(event.kind, EventKind::Task { change: TaskChange::Stopping { .. }, .. })
            && event.reason_code == reason
    };
    events.iter().filter(was_stopped).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_machine_gives_its_tasks_away_within_budgets_and_leaves() {
    let Some(mut cell) = Machines::launch().await else { return };
    let mut web = cell.job("web", 6, &format!("{LEDGER_SCRIPT}{SLEEP_FOREVER}"));
    web["spread"] = spread(2);
    web["max_down"] = json!(1);
    web["task"]["env"]["VERSION"] = json!("1");
    web["task"]["health"] = has_started();
    cell.submit(&web).await;
    let placed = cell.wait_until_running("web").await;
    let pids = cell.pids(&placed).await;
    // Two on each; what leaves the first must be allowed on the others.
    web["spread"] = spread(3);
    cell.update(&web).await;
    let before = cell.wait_for_tasks("web", |task| task.version == 2 && task.healthy).await;
    let here = |task: &TaskView| task.machine == Some(name(1));
    assert_eq!(before.iter().filter(|task| here(task)).count(), 2, "{before:#?}");
    cell.masters.cell(&["machine", "drain", "n1"]).expect("a drain begins");
    let after =
        cell.wait_for_tasks("web", |task| task.state == TaskState::Running && !here(task)).await;
    cell.pids(&after).await;
    for (old, (new, pid)) in before.iter().zip(after.iter().zip(pids)) {
        if here(old) {
            assert_eq!(new.attempt, 2, "{new:#?}");
            wait_until_gone(pid).await;
        } else {
            assert_eq!(new, old, "one that was elsewhere was touched");
        }
    }
    let seen = lines(&cell, "web");
    let warned = seen.iter().filter(|[first_word, ..]| first_word == "stop").count();
    assert_eq!((warned, most_down(&seen, 6)), (2, 1), "{seen:#?}");
    let events = cell.events("web").await;
    assert_eq!(stops(&events, "drained"), 2, "{events:#?}");

    cell.submit(&cell.job("late", 4, SLEEP_FOREVER)).await;
    let late = cell.wait_until_running("late").await;
    assert!(!late.iter().any(here), "placed on a machine that drains: {late:#?}");
    let empty = cell.machine(1).await.expect("it is known");
    assert_eq!((empty.tasks, empty.draining), (0, true));
    cell.stop_agent(1).await;
    let removed = cell.client().remove_machine(&name(1), false, &Default::default()).await;
    removed.expect("an empty machine can be removed");
    cell.until("it is gone", async |cell| {
        let page = cell.client().machines(&Default::default()).await.ok()?.value.items;
        let names: Vec<_> = page.into_iter().map(|machine| machine.name).collect();
        (names == [name(2), name(3)]).then_some(())
    })
    .await;
    // How earlier attempts ended is told with the name of a machine that is gone, too.
    let left = after.iter().filter_map(|task| task.last_end.as_ref());
    assert_eq!(left.filter(|end| end.machine == "n1").count(), 2, "{after:#?}");
    assert_eq!(cell.tasks("web").await, after);
}

/// When tasks of the job were told to leave for a drain.
fn drained_at(events: &[EventView]) -> Vec<Time> {
    let was_stopped = |event: &&EventView| {
        matches!(event.kind, EventKind::Task { change: TaskChange::Stopping { .. }, .. })
            && event.reason_code == "drained"
    };
    events.iter().filter(was_stopped).map(|event| event.at).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_waits_for_how_often_a_job_may_be_disrupted() {
    const SHORT: Span = Span::seconds(4);
    let Some(cell) = Machines::launch().await else { return };
    let mut web = cell.job("web", 4, SLEEP_FOREVER);
    // Two on one of the three machines, and room for both on the other two.
    web["spread"] = spread(2);
    web["disruptions"] = json!({ "most": 1, "within": 3_600_000 });
    cell.submit(&web).await;
    let placed = cell.wait_until_running("web").await;
    let on = |machine: &Name| placed.iter().filter(|t| t.machine.as_ref() == Some(machine)).count();
    let number = (1..=3).find(|number| on(&name(*number)) == 2).expect("four tasks on three");
    let full = name(number);
    cell.masters.cell(&["machine", "drain", full.as_str()]).expect("a drain begins");
    let here = |task: &TaskView| task.machine.as_ref() == Some(&full);
    let first = cell.until("one is told to leave", async |cell| {
        drained_at(&cell.events("web").await).first().copied()
    });
    let first = first.await;
    let waits = cell.until("another waits", async |cell| cell.machine(number).await);
    let waits = waits.await.drain_waits;
    let next = Some(first.plus(Span::seconds(3600)));
    let limit = DrainLimit::Disruptions;
    assert_eq!(waits, [DrainWaitView { job: key("web"), tasks: 1, next, limit, down: 0 }]);
    let moved = cell
        .until("the first runs elsewhere", async |cell| {
            let tasks = cell.tasks("web").await;
            let moved = tasks.iter().find(|task| task.attempt == 2)?.clone();
            (moved.state == TaskState::Running && !here(&moved)).then_some(moved)
        })
        .await;
    let stays = placed.iter().find(|task| here(task) && task.index != moved.index).expect("two");
    let limit = "the disruption limit of admin/web, next";
    for words in [&["drain", "-m", full.as_str()][..], &["machine", "show", full.as_str()]] {
        let status = cell.masters.cell(words).expect("an answer");
        assert!(status.contains(&format!("1 task waits for {limit} at")), "{status}");
    }
    let explanation = cell.masters.cell(&["explain", &stays.name]).expect("an explanation");
    let explanation = explanation.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(explanation.contains(&format!("waits for {limit} in")), "{explanation}");
    // A shorter span holds at once, and from the first that left.
    web["disruptions"]["within"] = json!(SHORT.0);
    cell.update(&web).await;
    cell.wait_for_tasks("web", |task| task.state == TaskState::Running && !here(task)).await;
    let times = drained_at(&cell.events("web").await);
    assert!(times.len() == 2 && times[0] == first && times[1] >= first.plus(SHORT), "{times:?}");
}

/// Fills the cell: a task on each core. When told to leave it says so and, unless it is stubborn,
/// takes its time to clean up and goes.
const FILLER: &str = r#"
    leave() {
        echo "warned $CELL_JOB/$CELL_INDEX $(date +%s%3N)" >> "$SHARED/ledger"
        test -e "$SHARED/stubborn" && return
        sleep 1
        echo "left $CELL_JOB/$CELL_INDEX $(date +%s%3N)" >> "$SHARED/ledger"
        exit 0
    }
    trap leave TERM"#;
const VITAL: &str = r#"
    echo "start $CELL_JOB/$CELL_INDEX $(date +%s%3N)" >> "$SHARED/ledger""#;
const NOTICE: u64 = 3000;

/// One production task arrives on a full cell. What the ledger says then, and when it happened.
async fn place_production_task(cell: &Machines, job: &str) -> (Vec<String>, Vec<String>) {
    let mut vital = cell.job(job, 1, &format!("{VITAL}{SLEEP_FOREVER}"));
    vital["priority"] = json!(200);
    vital["task"]["limits"]["cpu"] = json!(1000);
    cell.submit(&vital).await;
    let started = format!("start {job}/0 ");
    let ledger = cell
        .until("it says that it started", async |cell| {
            Some(cell.read("ledger")).filter(|ledger| ledger.contains(&started))
        })
        .await;
    let order: Vec<&str> = ledger.lines().collect();
    let first_word = |line: &&str| line.split(' ').next().unwrap_or_default().to_owned();
    let when = |line: &&str| line.rsplit(' ').next().unwrap_or_default().to_owned();
    (order.iter().map(first_word).collect(), order.iter().map(when).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn production_work_takes_the_place_of_batch_after_its_notice() {
    let Some(cell) = Machines::launch().await else { return };
    let cores = u32::try_from(CAPACITY.cpu / 1000 * 3).expect("a few");
    let mut filler = cell.job("filler", cores, &format!("{FILLER}{SLEEP_FOREVER}"));
    filler["task"]["limits"]["cpu"] = json!(1000);
    filler["task"]["notice"] = json!(NOTICE);
    cell.submit(&filler).await;
    let full = cell.wait_until_running("filler").await;
    cell.pids(&full).await;

    let (order, _) = place_production_task(&cell, "first").await;
    assert_eq!(order, ["warned", "left", "start"], "{}", cell.read("ledger"));
    std::fs::write(cell.shared("stubborn"), "").expect("a file");
    let (order, when) = place_production_task(&cell, "second").await;
    assert_eq!(order[3..], ["warned", "start"], "{}", cell.read("ledger"));
    let millis = |at: usize| when[at].parse::<u64>().expect("milliseconds");
    // The signal is sent a moment before the shell has heard it and asked for the time.
    let waited = millis(4) - millis(3);
    assert!(waited + 200 >= NOTICE, "killed after {waited} ms of a notice of {NOTICE} ms");

    let left = cell.tasks("filler").await;
    let running = left.iter().filter(|task| task.state == TaskState::Running).count();
    let waiting: Vec<_> = left.iter().filter(|task| task.state == TaskState::Pending).collect();
    assert_eq!((running, waiting.len()), (cores as usize - 2, 2), "{left:#?}");
    let events = cell.events("filler").await;
    assert_eq!(stops(&events, "preempted"), 2, "{events:#?}");
    for task in waiting {
        wait_until_gone(cell.pid("filler", task.index, 1).await).await;
    }
}
