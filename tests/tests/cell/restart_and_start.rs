//! Tasks that run again because their owner says so, on a real cell: running ones are restarted one
//! after the other, those that failed or were stopped start again in their job, and batch work that
//! is done stays done.

use crate::agent::{self, is_running_attempt, submit, wait};
use crate::support::{Folder, Running, cell, json, poll_until, stdout_of, text};
use cellwright_api::types::TaskView;
use cellwright_cell::task::{TaskOutcome, TaskState};
use serde_json::{Value, json as value};
use std::fs;

struct World {
    folder: Folder,
    running: Running,
    address: String,
}

impl World {
    fn new() -> World {
        let folder = Folder::new();
        let (running, address) = agent::dev(&folder);
        World { folder, running, address }
    }

    fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        [&["--master", self.address.as_str()][..], args].concat()
    }

    fn say(&self, args: &[&str]) -> String {
        stdout_of(&self.args(args))
    }

    /// The exit code, and what is said on both streams.
    fn ends(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = cell(&self.args(args));
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    }

    fn submit(&self, job: &str, count: u32, script: &str, more: &Value) {
        submit(&self.folder, &self.address, job, count, script, &more.to_string());
    }

    fn tasks(&self, job: &str) -> Vec<TaskView> {
        wait(&self.address, job, |_| true)
    }

    fn attempts(&self, job: &str) -> Vec<u32> {
        self.tasks(job).iter().map(|task| task.attempt).collect()
    }
}

const SERVES: &str = "exec sleep 1000";

#[test]
fn a_service_restarts_within_its_budget_and_the_command_says_when_it_is_done() {
    let world = World::new();
    world.submit("web", 3, SERVES, &value!({ "max_down": 1 }));
    wait(&world.address, "web", is_running_attempt(1));
    let (code, said) = world.ends(&["restart", "web", "--wait"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("job dev/web: 3 of 3 tasks restarted"), "{said}");
    let tasks = world.tasks("web");
    assert!(tasks.iter().all(is_running_attempt(2)), "{tasks:?}");
    assert!(tasks.iter().all(|task| task.failures_in_row == 0), "{tasks:?}");
    // One is told to stop when the one before it has started.
    let events = world.say(&["events", "--job", "web"]);
    let steps: Vec<&str> = events
        .lines()
        .filter(|line| line.contains(" stopping on ") || line.contains(" started on "))
        .map(|line| if line.contains(" stopping on ") { "stop" } else { "start" })
        .collect();
    assert!(!steps.windows(2).any(|pair| pair == ["stop", "stop"]), "{events}");
    assert_eq!(events.matches("restart due: requested").count(), 3, "{events}");

    let done = json(&world.args(&["restart", "web/1", "--wait", "-o", "json"]));
    assert_eq!((&done["restarted"], &done["done"]), (&value!(1), &value!(true)), "{done}");
    assert_eq!(world.attempts("web"), [2, 3, 2]);
    let audit = world.say(&["audit"]);
    assert!(audit.contains("restart task dev/web/1: done"), "{audit}");
    world.running.stop();
}

#[test]
fn a_restart_that_does_not_come_up_leaves_the_rest_alone() {
    let world = World::new();
    let up = world.folder.path("up");
    fs::write(&up, "").unwrap();
    let script = r#"[ -e "$SHARED/up" ] || exit 7; exec sleep 1000"#;
    // With a check, one that ends at once never counts as up.
    let more = value!({
        "max_down": 1, "restart": { "max_failures": 100, "backoff": 1, "backoff_max": 1 },
        "task": {
            "limits": { "cpu": "10m", "ram": 64 << 20 },
            "command": ["sh", "-c", script], "env": { "SHARED": world.folder.path("") },
            "health": { "probe": { "command": ["true"] }, "interval": 1000 },
        },
    });
    world.submit("frail", 3, script, &more);
    wait(&world.address, "frail", is_running_attempt(1));
    fs::remove_file(&up).unwrap();
    let (code, said) = world.ends(&["restart", "frail", "--wait"]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("times in a row since: ") && said.contains('7'), "{said}");
    assert!(said.contains("3 tasks not restarted yet"), "{said}");
    let untouched: Vec<TaskView> =
        world.tasks("frail").into_iter().filter(is_running_attempt(1)).collect();
    let [first, _] = &untouched[..] else { panic!("{untouched:?}") };
    let why = world.say(&["explain", &first.name]);
    let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
    let waits = "It is to be restarted; it waits for max_down of dev/frail: 1 is down.";
    assert!(why.contains(waits), "{why}");
    // Once it can start, the restart goes on by itself.
    fs::write(&up, "").unwrap();
    wait(&world.address, "frail", |task| task.state == TaskState::Running && task.attempt > 1);
    world.say(&["stop", "frail"]);
    wait(&world.address, "frail", |task| task.state.is_dead());
    let (code, said) = world.ends(&["restart", "frail"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("job dev/frail is dead"), "{said}");
    world.running.stop();
}

#[test]
fn a_restart_goes_on_where_it_was_when_the_master_dies() {
    let world = World::new();
    // It obeys its notice when there is a file `go`.
    let script = r#"trap 'until [ -e "$SHARED/go" ]; do sleep 0.05; done; exit 0' TERM
        while :; do sleep 0.05; done"#;
    let task = value!({ "max_down": 1 });
    world.submit("slow", 3, script, &task);
    wait(&world.address, "slow", is_running_attempt(1));
    let said = world.say(&["restart", "slow"]);
    assert!(said.contains("3 tasks to restart, as its budget allows"), "{said}");
    poll_until("none is told to stop", || {
        let tasks = world.tasks("slow");
        tasks.iter().any(|task| matches!(task.state, TaskState::Stopping(_))).then_some(())
    });
    let World { folder, running, .. } = world;
    running.kill();
    let (running, address) = agent::dev(&folder);
    let world = World { folder, running, address };
    fs::write(world.folder.path("go"), "").unwrap();
    wait(&world.address, "slow", is_running_attempt(2));
    world.running.stop();
}

#[test]
fn what_failed_of_an_array_runs_again_and_a_stopped_task_starts_again() {
    let world = World::new();
    let script = r#"test $CELL_INDEX -ne 1 -o $CELL_ATTEMPT -ge 2 || exit 9"#;
    world.submit("sums", 3, script, &value!({}));
    assert_eq!(world.ends(&["wait", "sums"]).0, Some(9));
    let (code, said) = world.ends(&["run", "--failed", "sums", "--wait"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("job dev/sums: what failed runs again"), "{said}");
    assert_eq!(world.attempts("sums"), [1, 2, 1]);
    let (code, said) = world.ends(&["run", "--failed", "sums"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("no task has failed for good"), "{said}");
    let events = world.say(&["events", "--job", "sums"]);
    assert!(events.contains("dev/sums started again: requested"), "{events}");

    world.submit("pair", 2, SERVES, &value!({}));
    wait(&world.address, "pair", is_running_attempt(1));
    world.say(&["stop", "pair/1", "--now"]);
    poll_until("the task is never over", || world.tasks("pair")[1].state.is_dead().then_some(()));
    let refused = world.ends(&["restart", "pair/1"]);
    assert!(refused.1.contains("does not allow a restart: it is over"), "{refused:?}");
    let said = world.say(&["start", "pair/1"]);
    assert!(said.contains("task dev/pair/1 starts again"), "{said}");
    wait(&world.address, "pair", |task| task.state == TaskState::Running);
    assert_eq!(world.attempts("pair"), [1, 2]);
    let (code, said) = world.ends(&["start", "pair"]);
    assert!(code == Some(2) && said.contains("which tasks of dev/pair?"), "{said}");
    world.running.stop();
}

#[test]
fn batch_work_that_is_done_is_done_again_only_when_asked() {
    let world = World::new();
    world.submit("once", 1, r#"echo ran >> "$SHARED/runs""#, &value!({}));
    wait(&world.address, "once", |task| task.state == TaskState::Dead(TaskOutcome::Finished));
    let file = world.folder.path("once.json");
    let runs = || fs::read_to_string(world.folder.path("runs")).unwrap().lines().count();
    let (code, said) = world.ends(&["run", &file, "--wait"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("of 1 task: unchanged, and over"), "{said}");
    assert!(said.contains("to run all of it again: --again"), "{said}");
    assert_eq!(runs(), 1);
    let (code, said) = world.ends(&["run", &file, "--again", "--wait"]);
    assert!(code == Some(0) && said.contains("of 1 task: created"), "{said}");
    assert_eq!(runs(), 2);
    // Another spec is another wish.
    let mut spec: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    spec["priority"] = value!(101);
    fs::write(&file, spec.to_string()).unwrap();
    let (code, said) = world.ends(&["run", &file, "--wait"]);
    assert!(code == Some(0) && said.contains("of 1 task: created"), "{said}");
    assert_eq!(runs(), 3);
    world.running.stop();
}

#[test]
fn a_run_of_a_cron_by_hand_is_one_of_its_runs() {
    let world = World::new();
    let cron = value!({
        "name": "tick", "schedule": "0 0 1 1 *", "overlap": "skip", "keep_runs": 2,
        "job": {
            "name": "tick", "priority": 100,
            "task": { "limits": { "cpu": "10m", "ram": 64 << 20 }, "command": ["sleep", "1000"] },
        },
    });
    let file = world.folder.path("tick.json");
    fs::write(&file, cron.to_string()).unwrap();
    world.say(&["run", &file]);
    let said = world.say(&["cron", "run", "tick"]);
    assert!(said.contains("cron dev/tick runs now, as job dev/tick-"), "{said}");
    let crons = json(&world.args(&["cron", "ls", "-o", "json"]));
    let last = crons[0]["last_job"].clone();
    let last = format!("{}/{}", last["user"].as_str().unwrap(), last["job"].as_str().unwrap());
    assert!(said.contains(&last), "{said}: {last}");
    // Runs are named by the second.
    let refused = poll_until("the next second", || {
        let refused = world.ends(&["cron", "run", "tick"]);
        (!refused.1.contains("has begun to run this second")).then_some(refused)
    });
    assert!(refused.1.contains("its last run, goes on"), "{refused:?}");
    let events = world.say(&["events"]);
    assert!(events.contains("dev/tick run by hand: requested"), "{events}");
    world.running.stop();
}
