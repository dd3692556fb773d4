//! What all commands share, on a real cell: output formats, names that refer to other names, and
//! interruption by ctrl-c.

use crate::session::Screen;
use crate::support::{Folder, stdout_of};
use crate::{Running, dev, wait_for, wait_job};
use cellwright_cell::job::JobState;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::task::TaskState;

/// Commands whose items have no name of their own, or which may have an empty result.
const UNNAMED: [&[&str]; 17] = [
    &["status"],
    &["explain", "dev/hello"],
    &["explain", "dev/hello/0"],
    &["update", "dev/hello"],
    &["plan", "examples/hello.json"],
    &["validate", "examples/hello.json"],
    &["shapes"],
    &["shapes", "--like", "dev/hello"],
    &["events"],
    &["audit"],
    &["cron", "ls"],
    &["quota", "ls"],
    &["token", "ls"],
    &["package", "ls"],
    &["checkpoint", "ls"],
    &["master", "status"],
    &["sql", "select 1 as n"],
];

#[test]
fn what_has_no_name_has_every_other_form() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "1");
    crate::wait_machines(&address, 1);
    let at = ["--master", address.as_str()];
    stdout_of(&[&at[..], &["run", "examples/hello.json"]].concat());
    for read in UNNAMED {
        let render_as = |form: &str| stdout_of(&[&at[..], read, &["-o", form]].concat());
        let json: Result<serde_json::Value, _> = serde_json::from_str(&render_as("json"));
        assert!(json.is_ok(), "{read:?}: {json:?}");
        for line in render_as("jsonl").lines() {
            let object: Result<serde_json::Value, _> = serde_json::from_str(line);
            assert!(object.is_ok(), "{read:?}: {line}");
        }
        assert!(!render_as("yaml").is_empty(), "{read:?}");
        render_as("table");
        render_as("wide");
    }
    running.stop();
}

#[test]
fn who_leaves_with_ctrl_c_leaves_the_job_running_and_is_told_how_to_follow_it() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "1");
    crate::wait_machines(&address, 1);
    let at = ["--master", address.as_str()];
    let file = folder.path("long.json");
    let spec = r#"{"name": "long", "priority": 100, "labels": {"team": "search"}, "task":
        {"limits": {"cpu": "100m", "ram": 33554432}, "command": ["sim", "run"]}}"#;
    std::fs::write(&file, spec).unwrap();
    let leave = |words: &[&str]| {
        let (printed, code) = Running::spawn_args(&[&at[..], words].concat()).interrupt();
        let printed = printed.join("\n");
        assert_eq!(code, Some(130), "{words:?}: {printed}");
        assert!(printed.contains("dev/long goes on without you"), "{words:?}: {printed}");
        assert!(printed.contains("next: cell logs -f dev/long"), "{words:?}: {printed}");
        wait_for(&address, "long", |tasks| tasks.iter().all(|t| t.state == TaskState::Running));
    };
    leave(&["run", &file, "--wait"]);
    leave(&["run", &file, "--follow"]);
    // No other job has been submitted since.
    leave(&["wait", "last"]);
    let status = |words: &[&str]| stdout_of(&[&at[..], &["status"], words].concat());
    assert!(status(&["last/0"]).starts_with("dev/long: active"));
    let named = |labels: &str| status(&["-l", labels, "-o", "name"]);
    assert_eq!(["team=search", "team", "team!=ads", "!stage"].map(named), ["dev/long\n"; 4]);
    assert_eq!(named("team=ads"), "");
    running.stop();
}

#[test]
fn who_leaves_several_jobs_is_told_which_of_them_go_on() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "1");
    crate::wait_machines(&address, 1);
    let at = ["--master", address.as_str()];
    let job = |name: &str| {
        format!(
            "name: {name}\npriority: 100\n\
             task: {{ limits: {{ cpu: 100m, ram: 32MiB }}, command: [sim, run] }}\n"
        )
    };
    let file = folder.path("three.yaml");
    std::fs::write(&file, ["one", "two", "three"].map(job).join("---\n")).unwrap();
    let waiting = Running::spawn_args(&[&at[..], &["run", &file, "--wait"]].concat());
    waiting.wait_for_line("job dev/three of 1 task: created");
    // It waits for the first of them, and does not learn the end of the second.
    stdout_of(&[&at[..], &["stop", "two"]].concat());
    let name = |text: &str| Name::new(text).unwrap();
    let key = JobKey { user: name("dev"), job: name("two") };
    wait_job(&address, &key, |job, _| matches!(job.state, JobState::Dead(_)));
    let (printed, code) = waiting.interrupt();
    assert_eq!(code, Some(130), "{printed:?}");
    let expected = "2 jobs go on without you: dev/one, dev/three";
    assert!(printed.iter().any(|line| line == expected), "{printed:?}");
    running.stop();
}

#[test]
fn colours_and_progress_are_for_terminals() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "1");
    crate::wait_machines(&address, 1);
    let at = ["--master", address.as_str()];
    let screen = |words: &[&str]| Screen::open((24, 80), &[&at[..], words].concat());
    let plan = ["plan", "examples/hello.json"];
    let escape = '\u{1b}';
    assert!(screen(&plan).remaining_text().contains("\u{1b}[1mdev/hello"));
    assert!(!screen(&[&["--no-color"], &plan[..]].concat()).remaining_text().contains(escape));
    assert!(!stdout_of(&[&at[..], &plan].concat()).contains(escape));
    let mut waiting = screen(&["run", "examples/hello.json", "--wait"]);
    waiting.wait_for_text("dev/hello: 3 running");
    stdout_of(&[&at[..], &["stop", "last"]].concat());
    let rest = waiting.remaining_text();
    assert!(rest.contains("dev/hello/0 stopped"), "{rest:?}");
    running.stop();
}
