//! Versions of jobs, canaries, rollbacks and waiting for a job to be so, by commands on a real cell
//! with real programs.

use crate::agent;
use crate::support::{Folder, Running, cell, json, text};
use serde_json::{Value, json as value};
use std::process::Output;

struct World {
    folder: Folder,
    running: Running,
    address: String,
}

impl World {
    fn start() -> World {
        let folder = Folder::new();
        let (running, address) = agent::dev(&folder);
        World { folder, running, address }
    }

    fn cell(&self, words: &[&str]) -> Output {
        cell(&[&["--master", self.address.as_str()], words].concat())
    }

    /// What is printed on both streams; the command has to end with this code.
    fn say(&self, words: &[&str], code: i32) -> String {
        let output = self.cell(words);
        let printed = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {printed}");
        printed
    }

    fn json(&self, words: &[&str]) -> Value {
        json(&[&["--master", self.address.as_str()], words, &["-o", "json"]].concat())
    }

    /// Writes `web`, whose tasks do this, with more fields.
    fn file(&self, script: &str, more: &Value) -> String {
        let mut spec = value!({
            "name": "web", "priority": 100, "count": 2, "max_down": 1,
            "restart": { "backoff": 1, "backoff_max": 1 },
            "task": {
                "limits": { "cpu": "10m", "ram": 64 << 20 }, "command": ["sh", "-c", script],
                "notice": 1000,
            },
        });
        for (name, field) in more.as_object().unwrap() {
            spec[name] = field.clone();
        }
        let path = self.folder.path("web.json");
        std::fs::write(&path, spec.to_string()).unwrap();
        path
    }
}

const ONE: &str = "exec sleep 1000";
const TWO: &str = "exec sleep 2000";
const CRASH: &str = "exit 7";

fn none() -> Value {
    value!({})
}

#[test]
fn versions_are_listed_compared_and_gone_back_to() {
    let world = World::start();
    let done = world.json(&["run", &world.file(ONE, &none()), "--wait=healthy"]);
    assert_eq!(done["healthy"], true, "{done}");
    assert_eq!((&done["updated"], &done["tasks"]), (&value!(true), &value!(2)), "{done}");
    assert!(done["seconds"].is_number(), "{done}");
    world.say(&["run", &world.file(TWO, &none()), "--wait=updated"], 0);
    world.say(&["resize", "web", "--tasks", "1"], 0);
    let history = world.json(&["job", "history", "web"]);
    let of = |at: usize, field: &str| history[at][field].clone();
    assert_eq!(history.as_array().unwrap().len(), 3, "{history}");
    assert_eq!((of(0, "version"), of(0, "change")), (value!(1), value!("created")));
    assert_eq!((of(1, "version"), of(1, "change")), (value!(2), value!("task.command")));
    assert_eq!((of(2, "version"), of(2, "change")), (value!(3), value!("count")));
    assert!(of(0, "at").is_u64() && of(0, "by").is_string(), "{history}");
    let diff = world.say(&["job", "diff", "web", "1", "2"], 0);
    assert!(diff.starts_with("dev/web: version 1 -> 2\n"), "{diff}");
    assert!(diff.contains("~ task.command  (restart)"), "{diff}");
    let diff = world.json(&["job", "diff", "web"]);
    assert_eq!((&diff["from"], &diff["to"]), (&value!(2), &value!(3)), "{diff}");
    assert_eq!(diff["changes"][0]["path"], "count", "{diff}");
    // A dry run changes nothing; then the spec of version 1 is there again, as version 4.
    let planned = world.json(&["job", "revert", "web", "1", "--dry-run"]);
    assert_eq!((&planned["dry_run"], &planned["expect"]), (&value!(true), &value!(3)));
    assert_eq!(world.json(&["job", "history", "web"]).as_array().unwrap().len(), 3);
    let told = world.say(&["revert", "web", "1"], 0);
    assert!(told.contains("job dev/web is being updated to version 4"), "{told}");
    assert!(told.contains("count: 1 -> 2"), "{told}");
    world.say(&["wait", "web", "--for", "updated", "--timeout", "60s"], 0);
    let history = world.json(&["job", "history", "web"]);
    assert_eq!(history[3]["change"], "back to version 1: count, task.command", "{history}");
    let told = world.say(&["job", "revert", "web", "9"], 1);
    assert!(told.contains("allowed: a version that is kept: 1, 2, 3, 4"), "{told}");
    world.running.stop();
}

#[test]
fn versions_are_there_after_the_cell_was_killed() {
    let folder = Folder::new();
    let (running, address) = crate::dev(&folder, "1");
    let spec = value!({
        "name": "web", "priority": 100,
        "task": { "limits": { "cpu": "10m", "ram": 64 << 20 }, "command": ["sim", "run"],
                  "secrets": { "key": "first" } },
    });
    let file = folder.path("web.json");
    let write = |secret: &str| {
        let mut spec = spec.clone();
        spec["task"]["secrets"]["key"] = value!(secret);
        std::fs::write(&file, spec.to_string()).unwrap();
    };
    let run = |address: &str| {
        let printed = text(&cell(&["--master", address, "run", &file]).stdout);
        assert!(printed.contains("job dev/web of 1 task: "), "{printed}");
    };
    write("first");
    run(&address);
    write("second");
    run(&address);
    let history =
        |address: &str| json(&["--master", address, "job", "history", "web", "-o", "json"]);
    let before = history(&address);
    assert_eq!(before[1]["change"], "task.secrets", "{before}");
    running.kill();
    let (running, address) = crate::dev(&folder, "1");
    let after = history(&address);
    for field in ["version", "at", "by", "change"] {
        assert_eq!(before[1][field], after[1][field], "{after}");
    }
    let diff = text(&cell(&["--master", &address, "job", "diff", "web", "-o", "json"]).stdout);
    assert!(diff.contains("task.secrets.key") && diff.contains("(hidden)"), "{diff}");
    assert!(!diff.contains("first") && !diff.contains("second"), "{diff}");
    running.stop();
}

#[test]
fn a_version_that_fails_is_rolled_back_and_not_run_again_unasked() {
    let world = World::start();
    let back = value!({ "update": { "rollback": { "failures": 2, "within": "5m" } } });
    world.say(&["run", &world.file(ONE, &back), "--wait=healthy"], 0);
    let file = world.file(CRASH, &back);
    let output = world.cell(&["run", &file, "--wait=healthy", "-o", "json"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let done: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(done["reached"], false, "{done}");
    let why = "version 2 failed and was rolled back to 1";
    assert_eq!(done["jobs"][0]["why"], why, "{done}");
    world.say(&["wait", "web", "--for", "updated", "--timeout", "60s"], 0);
    let status = world.say(&["status", "web"], 0);
    assert!(status.contains("version 1, 2 running"), "{status}");
    assert!(status.contains("version 2 was rolled back at "), "{status}");
    let events = world.say(&["events", "web"], 0);
    let told = "update undone: too many tasks of the new version failed \
                (version 1, 2 failed within 5 min)";
    let events: String = events.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(events.contains(told), "{events}");
    let history = world.json(&["job", "history", "web"]);
    assert_eq!(history[1]["rolled_back"]["failures"], 2, "{history}");
    let refused = world.say(&["run", &file], 1);
    assert!(refused.contains("version 2 of job dev/web, which has this spec"), "{refused}");
    assert!(refused.contains("cell job revert dev/web 2"), "{refused}");
    let planned = world.say(&["plan", &file], 1);
    assert!(planned.contains("the cell would refuse it"), "{planned}");
    // Another version may be run, and this one by its number.
    world.say(&["run", &world.file(TWO, &back), "--wait=updated"], 0);
    let told = world.say(&["job", "revert", "web", "2"], 0);
    assert!(told.contains("being updated to version 4"), "{told}");
    world.running.stop();
}

#[test]
fn canaries_try_a_version_and_the_others_wait_for_its_promotion() {
    let world = World::start();
    let tries = value!({ "update": { "canaries": 1 } });
    world.say(&["run", &world.file(ONE, &tries), "--wait=healthy"], 0);
    let planned = world.say(&["plan", &world.file(TWO, &tries)], 0);
    assert!(planned.contains("1 task first; the others once it is promoted"), "{planned}");
    world.say(&["run", &world.file(TWO, &tries), "--wait=healthy", "--timeout", "60s"], 0);
    let update = world.json(&["update", "web"]);
    let versions: Vec<Value> =
        update["tasks"].as_array().unwrap().iter().map(|at| at["version"].clone()).collect();
    assert_eq!(versions, [value!(1), value!(2)], "{update}");
    let told = world.say(&["status", "web"], 0);
    assert!(told.contains("dev/web: trying, ") && told.contains("tried by 1 task first"), "{told}");
    let late = world.say(&["wait", "web", "--for", "updated", "--timeout", "200ms"], 3);
    assert!(late.contains("dev/web is not updated: not updated after 200 ms"), "{late}");
    world.say(&["promote", "web"], 0);
    world.say(&["wait", "web", "--for", "updated", "--timeout", "60s"], 0);
    // The first canary that fails brings the old version back.
    let told = world.say(&["run", &world.file(CRASH, &tries), "--wait=updated"], 3);
    assert!(told.contains("version 3 failed and was rolled back to 2"), "{told}");
    world.say(&["wait", "web", "--for", "updated", "--timeout", "60s"], 0);
    // By time, without anybody.
    let timed = value!({ "update": { "canaries": 1, "promote_after": "100ms" } });
    world.say(&["run", &world.file(ONE, &timed), "--wait=updated", "--timeout", "60s"], 0);
    let events: String =
        world.say(&["events", "web"], 0).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(events.contains("promoted: its canaries stayed well (version 4)"), "{events}");
    world.running.stop();
}

#[test]
fn what_an_update_skipped_is_said_and_finished_later() {
    let world = World::start();
    let few = value!({ "max_update_disruptions": 1 });
    world.say(&["run", &world.file(ONE, &few), "--wait=healthy"], 0);
    let file = world.file(TWO, &few);
    world.say(&["run", &file, "--wait=healthy", "--timeout", "60s"], 0);
    let told = world.say(&["wait", "web", "--for", "updated"], 3);
    assert!(told.contains("1 task skipped (max_update_disruptions)"), "{told}");
    let closed = world.say(&["update", "close", "web"], 0);
    assert!(closed.contains("is closed"), "{closed}");
    for words in [&["status", "web"][..], &["run", &file], &["update", "web"]] {
        let told = world.say(words, 0);
        assert!(told.contains("1 task was skipped and stays at an older version"), "{told}");
    }
    let planned = world.say(&["plan", &file], 0);
    assert!(planned.contains("unchanged, at version 2, which 1 task has yet to get"), "{planned}");
    assert!(planned.contains("next: cell update finish dev/web"), "{planned}");
    let told = world.say(&["update", "finish", "web"], 0);
    assert!(told.contains("goes on with the tasks that it skipped"), "{told}");
    world.say(&["wait", "web", "--for", "updated", "--timeout", "60s"], 0);
    let planned = world.say(&["plan", &file], 0);
    assert!(planned.contains("nothing to do"), "{planned}");
    world.running.stop();
}

#[test]
fn whoever_waits_in_vain_is_told_why() {
    let world = World::start();
    let large = value!({ "count": 1, "task": {
        "limits": { "cpu": "1000", "ram": 64 << 20 }, "command": ["true"] } });
    let file = world.file(ONE, &large);
    let told = world.say(&["run", &file, "--wait=placed", "--place-timeout", "100ms"], 3);
    assert!(told.contains("dev/web is not placed: not placed: "), "{told}");
    let usage = world.say(&["run", &file, "--timeout", "1s"], 2);
    assert!(usage.contains("--wait"), "{usage}");
    let part = world.say(&["wait", "web/0", "--for", "running"], 2);
    assert!(part.contains("--for running is of a whole job"), "{part}");
    world.say(&["wait", "nothing", "--for", "running"], 1);
    world.running.stop();
}
