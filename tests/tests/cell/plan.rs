//! `cell plan`, and running what was planned; plans for pending jobs and for jobs that have
//! changed.

use crate::support::{Folder, Running, cell, json, stdout_of, text};
use crate::{dev, wait_running};
use cellwright_cell::name::{JobKey, Name};
use serde_json::{Value, json as value};
use std::fs;

fn web(count: u32, seconds: &str) -> Value {
    value!({"name": "web", "count": count, "priority": 100,
        "task": {"limits": {"cpu": "10m", "ram": 16 << 20}, "command": ["sleep", seconds]}})
}

fn key() -> JobKey {
    JobKey { user: Name::new("dev").unwrap(), job: Name::new("web").unwrap() }
}

/// The command after `next:`, without the program's name.
fn next_lines(printed: &str) -> Vec<String> {
    let printed = printed.replace(" \\\n", " ");
    let line = printed.lines().find_map(|line| line.strip_prefix("next: cell ")).expect(&printed);
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn what_is_planned_is_run_and_a_plan_goes_stale_with_its_job() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "3");
    let at = ["--master", &address];
    let file = folder.path("web.json");
    let write = |spec: &Value| fs::write(&file, spec.to_string()).unwrap();
    let plan = |extra: &[&str]| cell(&[&at[..], &["plan", &file], extra].concat());
    let run = |words: &[String]| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        cell(&[&at[..], &words].concat())
    };
    write(&web(3, "1000"));
    let printed = text(&plan(&[]).stdout);
    assert!(printed.starts_with("dev/web: a new job\n  tasks   3 added\n"), "{printed}");
    assert!(printed.contains("3 of 3 tasks, on"), "{printed}");
    assert!(printed.lines().all(|line| line.chars().count() <= 80), "{printed}");
    let planned = json(&[&at[..], &["plan", &file, "-o", "json"]].concat());
    let (placed, pending) = (&planned["jobs"][0]["placed"], &planned["jobs"][0]["pending"]);
    assert_eq!((placed, pending), (&3.into(), &0.into()));
    assert_eq!(plan(&["--detailed-exitcode"]).status.code(), Some(4));
    let first = next_lines(&printed);
    assert!(run(&first).status.success());
    wait_running(&address, &key(), 1);
    // Of equally good machines, the plan named those that the scheduler chose.
    let status = json(&[&at[..], &["job", "status", "dev/web", "-o", "json"]].concat());
    let tasks = status["tasks"].as_array().unwrap().iter();
    let mut on: Vec<&str> = tasks.map(|task| task["machine"].as_str().unwrap()).collect();
    let places = planned["jobs"][0]["places"].as_array().unwrap().iter();
    let mut previewed: Vec<&str> = places
        .flat_map(|place| {
            let count = place["count"].as_u64().unwrap() as usize;
            std::iter::repeat_n(place["machine"].as_str().unwrap(), count)
        })
        .collect();
    on.sort_unstable();
    previewed.sort_unstable();
    assert_eq!(on, previewed);
    assert_eq!(plan(&["--detailed-exitcode"]).status.code(), Some(0));
    // The job exists now, and did not when this was planned.
    let stale = run(&first);
    assert_eq!(stale.status.code(), Some(1));
    let error = text(&stale.stderr);
    assert!(error.contains("stale-version") && error.contains("next: look"), "{error}");

    write(&web(4, "2000"));
    let printed = text(&plan(&[]).stdout);
    assert!(printed.starts_with("dev/web: an update of version 1\n"), "{printed}");
    assert!(printed.contains("  ~ count: 3 -> 4  (no restart)\n"), "{printed}");
    assert!(printed.contains("1 added, 3 restarted in place"), "{printed}");
    let second = next_lines(&printed);
    write(&web(5, "2000"));
    let edited = text(&run(&second).stderr);
    assert!(edited.contains("has changed since the plan"), "{edited}");
    write(&web(4, "2000"));
    assert!(run(&second).status.success());
    let after = json(&[&at[..], &["job", "status", "dev/web", "-o", "json"]].concat());
    assert_eq!((&after["job"]["version"], &after["job"]["spec"]["count"]), (&2.into(), &4.into()));
    running.stop();
}

#[test]
fn a_plan_says_by_its_code_what_would_wait_and_explain_why() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "2");
    let at = ["--master", &address];
    let file = folder.path("huge.json");
    let mut huge = web(2, "1000");
    huge["task"]["limits"]["cpu"] = value!(900);
    fs::write(&file, huge.to_string()).unwrap();
    let output = cell(&[&at[..], &["plan", &file]].concat());
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{printed}");
    assert!(printed.contains("2 lack cpu") && printed.contains("0 of 2 tasks"), "{printed}");
    stdout_of(&[&at[..], &["run", &file]].concat());
    let why = json(&[&at[..], &["explain", "dev/web/0", "-o", "json"]].concat());
    assert_eq!((&why["machines_total"], &why["reasons"][0]["machines"]), (&2.into(), &2.into()));
    assert_eq!(why["reasons"][0]["detail"]["dimension"], "cpu");
    assert!(why["counterfactual"]["text"].as_str().unwrap().starts_with("cpu <= "), "{why}");
    let whole = stdout_of(&[&at[..], &["explain", "dev/web"]].concat());
    assert!(whole.starts_with("dev/web: 2 pending.\n\n2 tasks (0, 1)\n"), "{whole}");
    let mut invalid = web(1, "1");
    invalid["priority"] = value!(999);
    fs::write(&file, invalid.to_string()).unwrap();
    let rejected = cell(&[&at[..], &["plan", &file]].concat());
    assert_eq!(rejected.status.code(), Some(1));
    assert!(text(&rejected.stderr).contains("priority"), "{}", text(&rejected.stderr));
    // A rejection by the cell alone: more than its capacity.
    let mut much = web(1, "1");
    (much["priority"], much["task"]["limits"]["cpu"]) = (value!(200), value!(900_000));
    fs::write(&file, much.to_string()).unwrap();
    let rejected = cell(&[&at[..], &["plan", &file]].concat());
    let (printed, why) = (text(&rejected.stdout), text(&rejected.stderr));
    assert_eq!(rejected.status.code(), Some(1), "{printed}{why}");
    assert!(
        printed.contains("the cell would refuse it") && !printed.contains("--plan"),
        "{printed}"
    );
    assert!(why.contains("asked 900,000 cores") && why.contains("next: "), "{why}");
    let mut run = web(1, "1");
    run["name"] = value!("tick");
    let cron = value!({"name": "tick", "schedule": "0 0 1 1 *", "job": run});
    fs::write(&file, cron.to_string()).unwrap();
    let cron = cell(&[&at[..], &["plan", &file]].concat());
    assert_eq!((cron.status.code(), text(&cron.stdout).as_str()), (Some(0), "nothing to plan\n"));
    assert!(text(&cron.stderr).contains("tick is a periodic job"), "{}", text(&cron.stderr));
    running.stop();
}

#[test]
fn shapes_that_fit_are_published_and_a_job_can_be_their_measure() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "2");
    let at = ["--master", &address];
    let printed = json(&[&at[..], &["shapes", "-o", "json"]].concat());
    assert_eq!(
        (&printed["machines_total"], printed["sets"].as_array().unwrap().len()),
        (&2.into(), 2)
    );
    // Two equal empty machines: one step, and each takes one of the largest.
    let set = &printed["sets"][0];
    assert_eq!(
        (&set["ladder"][0]["machines"], &set["ladder"][0]["easy"]),
        (&2.into(), &true.into())
    );
    let table = stdout_of(&[&at[..], &["shapes", "--priority", "200"]].concat());
    assert!(
        table.starts_with("production, priority 200: 2 of 2 machines take such work\n"),
        "{table}"
    );
    assert!(table.contains("\nlargest: ") && table.contains(" easy\n"), "{table}");
    let none = cell(&[&at[..], &["shapes", "--cpu", "900", "--ram", "1GiB"]].concat());
    assert_eq!(none.status.code(), Some(3), "{}", text(&none.stderr));
    assert!(text(&none.stdout).contains("tasks of 900 cores cpu and 1 GiB ram: 0 tasks"));
    let watched = Running::spawn_args(&[&at[..], &["shapes", "--cpu", "900", "--watch"]].concat());
    // The separator between two results.
    watched.wait_for_line("---");
    watched.wait_for_line("tasks of 900 cores cpu: 0 tasks");
    watched.kill();
    let file = folder.path("web.json");
    fs::write(&file, web(1, "1000").to_string()).unwrap();
    stdout_of(&[&at[..], &["run", &file]].concat());
    let like = json(&[&at[..], &["shapes", "--like", "web", "-o", "json"]].concat());
    let like = &like["sets"][0]["like"];
    assert_eq!(like["job"], "dev/web", "{like}");
    assert!(like["tasks"].as_u64() > Some(0), "{like}");
    let output = cell(&[&at[..], &["shapes", "--constraint", "disks>many"]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("allowed: a=b"), "{}", text(&output.stderr));
    running.stop();
}
