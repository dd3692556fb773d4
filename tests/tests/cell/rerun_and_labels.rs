//! Label selectors, and jobs that are submitted again under the same name, on a real cell.

use crate::agent::{self, is_running_attempt, submit, wait};
use crate::support::{Folder, cell, json, poll_until, stdout_of, text};
use crate::{Running, wait_for};
use cellwright_cell::task::TaskState;
use std::path::Path;

#[test]
fn labels_choose_the_jobs_of_every_verb() {
    let folder = Folder::new();
    let (running, address) = agent::dev(&folder);
    let at = ["--master", address.as_str()];
    let with = |words: &[&str]| cell(&[&at[..], words].concat());
    let labels = |run: &str| format!(r#"{{"labels": {{"run": "{run}"}}}}"#);
    submit(&folder, &address, "one", 1, "echo hello-one", &labels("42"));
    submit(&folder, &address, "two", 1, "echo hello-two; exit 3", &labels("42"));
    submit(&folder, &address, "other", 1, "echo hello-other; exec sleep 1000", &labels("7"));
    wait(&address, "other", is_running_attempt(1));

    let waited = with(&["wait", "-l", "run=42", "-o", "json"]);
    assert_eq!(waited.status.code(), Some(3), "{}", text(&waited.stderr));
    let ended: serde_json::Value = serde_json::from_slice(&waited.stdout).unwrap();
    let of = |at: usize| (ended[at]["job"].clone(), ended[at]["outcome"].clone());
    assert_eq!(of(0), ("dev/one".into(), "finished".into()));
    assert_eq!(of(1), ("dev/two".into(), "failed".into()));
    let printed = text(&with(&["wait", "-l", "run=42"]).stdout);
    assert_eq!(printed, "dev/one: 1 task finished\ndev/two/0 failed: exit code 3\n");

    let logs = stdout_of(&[&at[..], &["logs", "-l", "run=42"]].concat());
    // In order of time, and either may have been first.
    let mut lines: Vec<&str> = logs.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["dev/one/0 hello-one", "dev/two/0 hello-two"]);
    let events = stdout_of(&[&at[..], &["events", "-l", "run=42"]].concat());
    assert!(events.contains("dev/one/0 ") && events.contains("dev/two/0 "), "{events}");
    assert!(!events.contains("dev/other"), "{events}");
    for verb in ["wait", "logs", "events"] {
        let nothing = with(&[verb, "-l", "run=9"]);
        let error = text(&nothing.stderr);
        assert!(nothing.status.code() == Some(1), "{verb}: {error}");
        assert!(error.contains("no job has labels run=9"), "{verb}: {error}");
    }
    // Too short to check one after the other; jobs that have ended are still not named.
    let late = with(&["wait", "-l", "run", "--timeout", "1ms"]);
    assert_eq!(late.status.code(), Some(1), "{late:?}");
    assert!(text(&late.stderr).contains("dev/other is not over after 1 ms"), "{late:?}");
    let done = with(&["wait", "-l", "run=42", "--timeout", "1ms"]);
    assert_eq!(done.status.code(), Some(3), "all of it is over: {done:?}");
    assert_eq!(text(&done.stdout), printed);

    // There is no terminal to confirm at, so nothing is stopped.
    let rejected = with(&["stop", "-l", "run"]);
    let (list, error) = (text(&rejected.stdout), text(&rejected.stderr));
    assert!(rejected.status.code() == Some(2) && list.contains("dev/other"), "{list}{error}");
    assert!(!list.contains("dev/one"), "it is over: {list}");
    assert!(error.contains("1 job would be stopped") && error.contains("--yes"), "{error}");
    wait(&address, "other", is_running_attempt(1));
    let done = stdout_of(&[&at[..], &["stop", "-l", "run", "--yes"]].concat());
    assert!(done.contains("job dev/other is told to stop"), "{done}");
    wait(&address, "other", |task| task.state.is_dead());
    running.stop();
}

/// Writes a job whose task obeys its stop notice only after a file `go` exists. It creates a file
/// `ready` when it handles the notice, since a task counts as running before its program has come
/// that far. A `ready` file of another attempt belongs to another user.
fn write_stays_job(folder: &Folder) -> String {
    let script = r#"trap 'until [ -e "$SHARED/go" ]; do sleep 0.05; done; exit 0' TERM
        [ -e "$SHARED/ready" ] || : > "$SHARED/ready"
        while :; do sleep 0.05; done"#;
    let spec = serde_json::json!({
        "name": "stays", "priority": 100,
        "task": {
            "limits": { "cpu": "100m", "ram": 64 << 20 }, "command": ["sh", "-c", script],
            "env": { "SHARED": folder.path("") }, "notice": 60_000,
        },
    });
    let file = folder.path("stays.json");
    std::fs::write(&file, spec.to_string()).unwrap();
    file
}

#[test]
fn a_job_that_was_stopped_is_started_anew_and_its_namesake_is_told_apart() {
    let folder = Folder::new();
    let (running, address) = agent::dev(&folder);
    let at = ["--master", address.as_str()];
    let with = |words: &[&str]| stdout_of(&[&at[..], words].concat());
    let file = write_stays_job(&folder);
    with(&["run", &file]);
    wait(&address, "stays", is_running_attempt(1));
    let first = with(&["describe", "stays"]);
    assert!(!first.contains("earlier jobs"), "{first}");
    let unchanged = cell(&[&at[..], &["run", &file]].concat());
    assert!(text(&unchanged.stdout).contains("of 1 task: unchanged"), "{unchanged:?}");
    assert_eq!(text(&unchanged.stderr), "");
    let printed = json(&[&at[..], &["run", &file, "-o", "json"]].concat());
    assert_eq!((&printed[0]["became"], &printed[0]["version"]), (&"unchanged".into(), &1.into()));

    // Its only task is stopped, which ends the job, but not at once.
    let ready = folder.path("ready");
    poll_until("the program sets no trap", || Path::new(&ready).exists().then_some(()));
    with(&["stop", "stays/0"]);
    let again = Running::spawn_args(&[&at[..], &["run", &file]].concat());
    again.wait_for_line("job dev/stays is stopping; it is started anew as soon as it is over");
    std::fs::write(folder.path("go"), "").unwrap();
    again.wait_for_line("job dev/stays of 1 task: created");
    again.wait_success();
    wait(&address, "stays", |task| task.state == TaskState::Running);

    let described = with(&["describe", "stays"]);
    assert_eq!(described.matches("dev/stays submitted").count(), 1, "{described}");
    assert!(!described.contains("dev/stays killed"), "{described}");
    let printed = "earlier jobs had this name; with theirs: cell events --job dev/stays\n";
    assert!(described.ends_with(printed), "{described}");
    let displayed = json(&[&at[..], &["describe", "stays/0", "-o", "json"]].concat());
    assert_eq!(displayed["events_of_namesakes"], true);
    let all = with(&["events", "--job", "dev/stays"]);
    assert_eq!(all.matches("dev/stays submitted").count(), 2, "{all}");
    running.stop();
}

#[test]
fn a_task_that_was_stopped_alone_is_told_when_its_job_is_run_again() {
    let folder = Folder::new();
    let (running, address) = crate::dev(&folder, "1");
    crate::wait_machines(&address, 1);
    let at = ["--master", address.as_str()];
    let run = [&at[..], &["run", "examples/hello.json"]].concat();
    stdout_of(&run);
    stdout_of(&[&at[..], &["stop", "hello/2"]].concat());
    wait_for(&address, "hello", |tasks| tasks[2].state.is_dead());
    let again = cell(&run);
    assert!(text(&again.stdout).contains("of 3 tasks: unchanged"), "{again:?}");
    let printed = text(&again.stderr);
    assert!(
        printed.starts_with("task dev/hello/2 was stopped alone and stays stopped; "),
        "{printed}"
    );
    assert!(printed.contains("to start it again: cell start dev/hello/2"), "{printed}");
    stdout_of(&[&at[..], &["start", "hello/2"]].concat());
    wait_for(&address, "hello", |tasks| tasks[2].state == TaskState::Running);
    let audit = cell(&[&at[..], &["audit"]].concat());
    let printed = text(&audit.stderr);
    assert!(
        printed.contains("this cell is open") && printed.contains("cell master init"),
        "{printed}"
    );
    running.stop();
}

#[test]
fn of_several_jobs_the_refused_one_is_named_and_those_not_reached() {
    let folder = Folder::new();
    let (running, address) = agent::dev(&folder);
    let job = |name: &str, cpu: &str| {
        serde_json::json!({
            "name": name, "priority": "production", "cpu": cpu, "ram": "64MiB",
            "command": ["sleep", "1000"],
        })
    };
    let file = folder.path("three.json");
    let all = serde_json::json!([job("small", "10m"), job("huge", "5000"), job("last", "10m")]);
    std::fs::write(&file, all.to_string()).unwrap();
    let run = cell(&["--master", &address, "run", &file]);
    let (out, error) = (text(&run.stdout), text(&run.stderr));
    assert_eq!(run.status.code(), Some(1), "{error}");
    assert!(out.contains("job dev/small of 1 task: created"), "{out}");
    let printed =
        "dev/huge (done before and staying: dev/small; not reached: dev/last): quota of dev";
    assert!(error.contains(printed), "{error}");

    // The error for an unknown name suggests a similar one.
    let rejected = cell(&["--master", &address, "status", "samll"]);
    assert!(text(&rejected.stderr).contains("; did you mean dev/small?"), "{rejected:?}");
    let stopped = cell(&["--master", &address, "stop", "smal1", "--yes"]);
    assert!(text(&stopped.stderr).contains("; did you mean dev/small?"), "{stopped:?}");
    // The described spec is written as in a job file.
    let described = stdout_of(&["--master", &address, "describe", "small"]);
    assert!(described.contains("cpu: \"0.01\"\n      ram: \"64MiB\""), "{described}");
    running.stop();
}
