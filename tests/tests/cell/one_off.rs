//! Commands and scripts that are run as jobs, on a real cell: what they write, how they end, how
//! many of an array run at once; and what `status` and `events` show of it.

use super::agent;
use super::support::{Folder, cell, json, stdout_of, text};
use serde_json::Value;

/// The exit code, standard output and standard error.
fn run(address: &str, words: &[&str]) -> (Option<i32>, String, String) {
    let output = cell(&[&["--master", address], words].concat());
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_command_is_run_as_if_it_ran_here() {
    let folder = Folder::new();
    let (running, address) = agent::dev(&folder);
    let words = ["run", "--env", "WHO=world", "--", "sh", "-c", "echo hello $WHO; exit 7"];
    let (code, out, err) = run(&address, &words);
    assert_eq!((code, out.as_str()), (Some(7), "hello world\n"), "{err}");
    assert!(err.contains("exit code 7"), "{err}");
    let words = ["run", "--", "sh", "-c", "echo result; echo complaint >&2"];
    let (code, out, err) = run(&address, &words);
    assert_eq!((code, out.as_str()), (Some(0), "result\n"), "{err}");
    assert!(err.contains("complaint\n"), "{err}");
    let (code, out, err) = run(&address, &["run", "--name", "mine", "--", "true"]);
    assert_eq!((code, out.as_str()), (Some(0), ""), "{err}");
    // Each time another job, unless it is named.
    run(&address, &["run", "--", "true"]);
    run(&address, &["run", "--", "true"]);
    let jobs = json(&["--master", &address, "job", "status", "-o", "json"]);
    let names: Vec<&str> =
        jobs.as_array().unwrap().iter().map(|job| job["name"].as_str().unwrap()).collect();
    let count = |start: &str| names.iter().filter(|name| name.starts_with(start)).count();
    assert_eq!((count("sh-"), count("true-"), count("mine")), (2, 2, 1), "{names:?}");
    let (code, _, err) = run(&address, &["run", "--cpu", "2", "examples/hello.json"]);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("--cpu is for a command or a script"), "{err}");
    running.stop();
}

#[test]
fn a_script_is_an_array_of_which_so_many_run_at_once() {
    let folder = Folder::new();
    let (running, address) = agent::dev(&folder);
    let script = folder.path("count.sh");
    // Each task holds a lock folder while it runs, and reports if it sees more than two.
    let body = "#!/bin/sh\n#CELL --name count --array 3-8%2 --cpu 100m --ram 32MiB\n\
                umask 0; mkdir \"$1/lock-$CELL_ARRAY_INDEX\"\n\
                set -- \"$1\" \"$1\"/lock-*\nsleep 0.2\n\
                echo \"$CELL_ARRAY_INDEX $(($# - 1))\" >> \"$1/seen\"\n\
                rmdir \"$1/lock-$CELL_ARRAY_INDEX\"\n";
    std::fs::write(&script, body).unwrap();
    let shared = folder.path("");
    let words = ["run", "--detach", &script, "--", shared.trim_end_matches('/')];
    let (code, out, err) = run(&address, &words);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.starts_with("job dev/count of 6 tasks: created"), "{out}");
    assert_eq!(run(&address, &["wait", "count"]).0, Some(0));
    let seen = std::fs::read_to_string(folder.path("seen")).unwrap();
    let mut indices: Vec<&str> = seen.lines().map(|l| l.split(' ').next().unwrap()).collect();
    indices.sort_unstable();
    assert_eq!(indices, ["3", "4", "5", "6", "7", "8"]);
    let together = seen.lines().map(|line| line.split(' ').next_back().unwrap().parse().unwrap());
    assert!(together.max().is_some_and(|most: u32| most <= 2), "{seen}");
    running.stop();
}

#[test]
fn status_shows_what_failed_first_and_a_machine_shows_its_tasks() {
    let folder = Folder::new();
    let (running, address) = agent::dev(&folder);
    let words = |script: &str| ["sh".to_owned(), "-c".to_owned(), script.to_owned()];
    let script = "[ $CELL_INDEX = 2 ] && exit 3; sleep 1000";
    let [sh, c, script] = words(script);
    let run_words =
        ["run", "--detach", "--name", "mixed", "-n", "3", "--cpu", "100m", "--", &sh, &c, &script];
    assert_eq!(run(&address, &run_words).0, Some(0));
    agent::wait(&address, "mixed", |task| {
        if task.index == 2 { task.state.is_dead() } else { agent::is_running_attempt(1)(task) }
    });
    let status = json(&["--master", &address, "status", "mixed", "-o", "json"]);
    let order: Vec<u64> =
        status["tasks"].as_array().unwrap().iter().map(|t| t["index"].as_u64().unwrap()).collect();
    assert_eq!(order, [2, 0, 1]);
    let failed =
        json(&["--master", &address, "status", "mixed", "--state", "failed", "-o", "json"]);
    assert_eq!(failed["tasks"].as_array().unwrap().len(), 1);
    // A spec that is printed is one that files take.
    assert_eq!(status["job"]["spec"]["task"]["limits"]["cpu"], "100m");
    let machine = stdout_of(&["--master", &address, "status", "local"]);
    assert!(machine.contains("dev/mixed/0") && machine.contains("dev/mixed/1"), "{machine}");
    let last: Value = json(&["--master", &address, "events", "-n", "2", "-o", "json"]);
    let all: Value = json(&["--master", &address, "events", "-o", "json"]);
    let (last, all) = (last.as_array().unwrap(), all.as_array().unwrap());
    assert_eq!(last[..], all[all.len() - 2..]);
    running.stop();
}
