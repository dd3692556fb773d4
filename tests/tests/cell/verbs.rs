//! Transcripts of the verbs on a real cell: their output is kept in files, so that a changed
//! sentence is seen in review. `UPDATE_TRANSCRIPTS=1` regenerates them; read the difference.
//!
//! Values that differ from run to run (addresses, times, durations) are masked before comparing.

use crate::session::Screen;
use crate::support::{Folder, cell, command, json, repo, stdout_of, text};
use crate::{Running, dev, wait_for};
use cellwright_api::types::TaskView;
use cellwright_cell::task::TaskState;
use std::fmt::Write;
use std::path::PathBuf;

/// The width of a plain terminal.
const WIDTH: usize = 80;

/// The transcript of a session.
struct Session {
    address: String,
    transcript: String,
}

impl Session {
    fn run(&mut self, args: &[&str]) -> i32 {
        let output = cell(&[&["--master", &self.address], args].concat());
        let words: Vec<String> = args
            .iter()
            .map(|word| match word.rsplit_once('/') {
                // Files of the test are in a folder of their own.
                Some((folder, file)) if folder.starts_with('/') => file.to_owned(),
                _ => (*word).to_owned(),
            })
            .collect();
        let code = output.status.code().expect("it ended by itself");
        writeln!(self.transcript, "$ cell {}", words.join(" ")).unwrap();
        self.transcript.push_str(&text(&output.stdout));
        self.transcript.push_str(&text(&output.stderr));
        if code != 0 {
            writeln!(self.transcript, "[exit code {code}]").unwrap();
        }
        code
    }

    /// Compares with the stored transcript, or stores it.
    fn finish(self, name: &str) {
        let transcript = mask_variable_parts(&self.transcript.replace(&self.address, "ADDRESS"));
        for line in transcript.lines() {
            assert!(line.chars().count() <= WIDTH, "wider than {WIDTH}: {line}");
        }
        let path: PathBuf = repo().join("tests/tests/cell/transcripts").join(name);
        if std::env::var_os("UPDATE_TRANSCRIPTS").is_some() {
            std::fs::write(&path, transcript).unwrap();
            return;
        }
        let expected = std::fs::read_to_string(&path).unwrap();
        assert_eq!(transcript, expected, "{name} differs; UPDATE_TRANSCRIPTS=1 writes it anew");
    }
}

/// Masks `12 s`, `3 min` and dates.
fn mask_variable_parts(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        for at in 0..words.len() {
            let is_date = words[at].len() == 10 && words[at].starts_with("20");
            let clock = words.get(at + 1).map(|clock| clock.trim_end_matches([':', ',']));
            let unit = words.get(at + 1).map(|unit| unit.trim_end_matches([';', ',', ')']));
            let is_span = matches!(unit, Some("s" | "min" | "h" | "d"));
            let number = words[at].trim_start_matches('(');
            if is_date && clock.is_some_and(|clock| clock.ends_with('Z')) {
                words[at] = "DATE".into();
                words[at + 1] = "TIME".into();
            } else if at > 0 && words[at - 1] == "at" && line.contains("is in the log at") {
                words[at] = "N".into();
            } else if is_span && !number.is_empty() && number.chars().all(|c| c.is_ascii_digit()) {
                // Tables keep their columns.
                let unit = words[at + 1].clone();
                let rest = unit.trim_start_matches(char::is_alphabetic);
                words[at + 1] = format!("s{rest}");
                words[at] = "N".into();
            }
        }
        let line = words.join(" ");
        // The width of a column depends on the values masked in it.
        let text = line.trim_start();
        let parts: Vec<&str> = text.split("  ").map(str::trim).filter(|p| !p.is_empty()).collect();
        out.push_str(&line[..line.len() - text.len()]);
        out.push_str(&parts.join("  "));
        out.push('\n');
    }
    out
}

/// Writes a job for virtual machines, whose tasks end as the job specifies.
fn job(folder: &Folder, name: &str, command: &str, more: &str) -> String {
    let path = folder.path(&format!("{name}.json"));
    let text = format!(
        r#"{{"name": "{name}", "priority": 100, {more} "task":
            {{"limits": {{"cpu": "100m", "ram": 33554432}}, "command": {command}}}}}"#
    );
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_session_with_jobs_reads_like_this() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "1");
    crate::wait_machines(&address, 1);
    let mut session = Session { address: address.clone(), transcript: String::new() };
    session.run(&["status"]);
    session.run(&["run", "examples/hello.json"]);
    let all_run = |tasks: &[TaskView]| tasks.iter().all(|task| task.state == TaskState::Running);
    wait_for(&address, "hello", all_run);
    session.run(&["status", "hello"]);
    session.run(&["status", "dev/hello/1"]);
    assert_eq!(session.run(&["status", "nosuch"]), 1);
    assert_eq!(session.run(&["status", "de"]), 1, "a user and a machine begin so");
    session.run(&["stop", "hello/2"]);
    wait_for(&address, "hello", |tasks| tasks[2].state.is_dead());
    session.run(&["status", "dev/hello/[1-2]"]);
    session.run(&["resize", "hello", "--tasks", "2"]);
    session.run(&["resize", "hello", "--ram", "512MiB"]);
    let with = |ram: u64| {
        move |tasks: &[TaskView]| {
            let live = tasks.iter().filter(|task| !task.state.is_dead());
            live.clone().count() == 2
                && live.clone().all(|t| t.limits.ram == ram && t.state == TaskState::Running)
                && live.clone().all(|t| t.attempt == 1 && t.limits_in_force.is_none())
        }
    };
    wait_for(&address, "hello", with(512 << 20));
    session.run(&["update", "hello"]);
    session.run(&["resize", "hello", "--ram", "256MiB"]);
    wait_for(&address, "hello", with(256 << 20));
    session.run(&["job", "status", "-o", "name"]);
    session.run(&["stop", "dev/hello"]);
    session.run(&["wait", "hello"]);
    session.finish("jobs.txt");
    running.stop();
}

#[test]
fn ends_of_tasks_read_like_this_and_wait_returns_their_code() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "1");
    crate::wait_machines(&address, 1);
    let mut session = Session { address: address.clone(), transcript: String::new() };
    let once = r#""restart": {"max_failures": 0},"#;
    // Most of an hour has two digits of minutes for as long as the test lasts.
    let slowly = r#""restart": {"backoff": 3000000, "backoff_max": 3000000},"#;
    session.run(&["run", &job(&folder, "good", r#"["sim", "finish", "1"]"#, "")]);
    assert_eq!(session.run(&["wait", "good"]), 0);
    session.run(&["run", &job(&folder, "bad", r#"["sim", "fail", "1"]"#, once)]);
    assert_eq!(session.run(&["wait", "bad"]), 1);
    session.run(&["status", "bad"]);
    let strict = r#""restart": {"retry": {"exit": {"1": 0}}},"#;
    session.run(&["run", &job(&folder, "strict", r#"["sim", "fail", "1"]"#, strict)]);
    assert_eq!(session.run(&["wait", "strict"]), 1);
    session.run(&["status", "strict"]);
    session.run(&["run", &job(&folder, "again", r#"["sim", "fail", "1"]"#, slowly)]);
    wait_for(&address, "again", |tasks| tasks[0].failures_in_row == 1);
    session.run(&["status", "again"]);
    let more = r#""after": {"job": {"user": "dev", "job": "again"}},"#;
    session.run(&["run", &job(&folder, "later", r#"["sim", "finish", "1"]"#, more)]);
    session.run(&["status", "later"]);
    session.run(&["status"]);
    assert_eq!(session.run(&["wait", "again", "--timeout", "10ms"]), 1);
    session.run(&["top", "--once"]);
    session.run(&["describe", "dev/again/0"]);
    session.finish("ends.txt");
    running.stop();
}

#[test]
fn every_read_command_has_every_form() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "1");
    let at = ["--master", address.as_str()];
    stdout_of(&[&at[..], &["run", "examples/hello.json"]].concat());
    let reads: [&[&str]; 8] = [
        &["job", "status"],
        &["job", "status", "dev/hello"],
        &["status", "dev/hello/0"],
        &["machine", "ls"],
        &["machine", "show", "dev-0"],
        &["user", "ls"],
        &["user", "show", "dev"],
        &["describe", "dev/hello"],
    ];
    for read in reads {
        let displayed = |form: &str| stdout_of(&[&at[..], read, &["-o", form]].concat());
        let value: serde_json::Value = serde_json::from_str(&displayed("json")).unwrap();
        let lines = match &value {
            serde_json::Value::Array(items) => items.len(),
            _ => 1,
        };
        let names = displayed("name");
        assert_eq!(names.lines().count(), lines, "{read:?}: {names}");
        assert_eq!(displayed("jsonl").lines().count(), lines, "{read:?}");
        assert!(displayed("yaml").contains("name: "), "{read:?}");
        assert!(!displayed("table").is_empty() && !displayed("wide").is_empty(), "{read:?}");
        // The environment variable applies where there is no option.
        let by_environment = command(&[&at[..], read].concat()).env("CELL_OUTPUT", "name").output();
        assert_eq!(text(&by_environment.unwrap().stdout), names, "{read:?}");
    }
    let output =
        command(&[&at[..], &["status"]].concat()).env("CELL_OUTPUT", "xml").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("allowed: table"), "{}", text(&output.stderr));
    let unnamed = cell(&[&at[..], &["status", "-o", "name"]].concat());
    assert_eq!(unnamed.status.code(), Some(2), "{}", text(&unnamed.stdout));
    running.stop();
}

#[test]
fn followers_of_events_see_what_they_asked_for_and_nothing_else() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "1");
    crate::wait_machines(&address, 1);
    let at = |words: &[&str]| stdout_of(&[&["--master", address.as_str()], words].concat());
    at(&["run", &job(&folder, "other", r#"["sim", "finish", "1"]"#, "")]);
    at(&[
        "run",
        &job(&folder, "mine", r#"["sim", "fail", "1"]"#, r#""restart": {"max_failures": 0},"#),
    ]);
    let follow = ["--master", address.as_str(), "events", "--follow"];
    let of_job = ["--job", "mine", "--kind", "job"];
    let job_alone = Running::spawn_args(&[&follow[..], &of_job].concat());
    let of_machine = ["--machine", "dev-0", "--kind", "machine"];
    let on_machine = Running::spawn_args(&[&follow[..], &of_machine].concat());
    at(&["wait", "other"]);
    assert!(job_alone.wait_for_line("dev/").contains("dev/mine submitted"));
    assert!(job_alone.wait_for_line("dev/").contains("dev/mine accepted"));
    assert!(job_alone.wait_for_line("dev/").contains("dev/mine failed"));
    on_machine.wait_for_line("dev-0 added");
    at(&["drain", "-m", "dev-0"]);
    assert!(on_machine.wait_for_line("drain").contains("dev-0 drain started"));
    job_alone.kill();
    on_machine.kill();
    running.stop();
}

#[test]
fn output_of_a_task_without_a_place_is_waited_for_and_absent_tasks_are_told_once() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "1");
    crate::wait_machines(&address, 1);
    let at = ["--master", address.as_str()];
    let large = folder.path("large.json");
    let spec = r#"{"name": "large", "priority": 100, "count": 2, "task":
        {"limits": {"cpu": "900000m", "ram": 33554432}, "command": ["true"]}}"#;
    std::fs::write(&large, spec).unwrap();
    stdout_of(&[&at[..], &["run", &large]].concat());
    let rejected = |words: &[&str], code: i32| {
        let output = cell(&[&at[..], words].concat());
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let absent = rejected(&["logs", "large/[5-9]"], 1);
    assert!(absent.contains("dev/large has no task 5-9"), "{absent}");
    let kinds = rejected(&["events", "--kind", "tsk"], 2);
    assert!(kinds.contains("task") && kinds.contains("machine"), "{kinds}");
    let endless = rejected(&["events", "-o", "json", "--follow"], 2);
    assert!(endless.contains("-o jsonl"), "{endless}");
    let events = stdout_of(&[&at[..], &["events", "-o", "json"]].concat());
    let events: serde_json::Value = serde_json::from_str(&events).unwrap();
    assert!(events.as_array().unwrap().iter().any(|event| event["object"] == "dev/large/0"));
    let wait =
        cell(&[&at[..], &["wait", "large", "--place-timeout", "1ms", "-o", "json"]].concat());
    assert_eq!(wait.status.code(), Some(3), "{}", text(&wait.stderr));
    let ended: serde_json::Value = serde_json::from_str(&text(&wait.stdout)).unwrap();
    assert_eq!((&ended["outcome"], &ended["exit"]), (&"not_placed".into(), &3.into()));
    let both = Running::spawn_args(&[&at[..], &["logs", "-f", "large/[0-4]"]].concat());
    both.wait_for_line("dev/large has no task 2-4");
    let one = Running::spawn_args(&[&at[..], &["logs", "-f", "large/0"]].concat());
    one.wait_for_line("dev/large/0 waits for a place");
    both.wait_for_line("waits for a place");
    stdout_of(&[&at[..], &["stop", "large"]].concat());
    one.wait_for_line("dev/large/0 ended without having run");
    one.wait_success();
    both.wait_success();
    running.stop();
}

#[test]
fn whoever_waits_for_a_drain_hears_what_holds_it_up() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "1");
    crate::wait_machines(&address, 1);
    let at = ["--master", address.as_str()];
    let stays = job(&folder, "stays", r#"["sleep", "1000"]"#, r#""count": 2, "max_down": 0,"#);
    stdout_of(&[&at[..], &["run", &stays]].concat());
    wait_for(&address, "stays", |tasks| {
        tasks.len() == 2 && tasks.iter().all(|task| task.state == TaskState::Running)
    });
    let drain = [&at[..], &["drain", "-m", "dev-0", "--wait"]].concat();
    let (printed, code) = Running::spawn_args(&drain).interrupt();
    assert_eq!(code, Some(130), "{printed:?}");
    assert!(printed.iter().any(|line| line == "next: cell drain dev-0 --wait"), "{printed:?}");
    let waits = Running::spawn_args(&drain);
    waits.wait_for_line("machine dev-0: 2 tasks left");
    waits.wait_for_line("2 tasks wait for max_down of dev/stays: 0 are down");
    let mut screen = Screen::open((24, 120), &drain);
    screen.wait_for_text("machine dev-0: 2 tasks left; 2 tasks wait for max_down of dev/stays");
    stdout_of(&[&at[..], &["stop", "stays"]].concat());
    waits.wait_for_line("machine dev-0 has no tasks any more");
    waits.wait_success();
    screen.wait_for_text("machine dev-0 has no tasks any more");
    running.stop();
}

#[test]
fn users_tokens_and_the_audit_log_are_managed_by_commands() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "1");
    let at = |words: &[&str]| stdout_of(&[&["--master", address.as_str()], words].concat());
    at(&["user", "add", "ann"]);
    let again = cell(&["--master", &address, "user", "add", "ann"]);
    let transcript = text(&again.stderr);
    assert_eq!(again.status.code(), Some(1), "{transcript}");
    assert!(transcript.contains("user ann exists already"), "{transcript}");
    assert!(
        transcript.contains("next: cell user show ann; one more token: cell user token ann"),
        "{transcript}"
    );
    assert_eq!(at(&["user", "token", "ann"]), "an open master asks for no token\n");
    let unbounded = at(&["user", "show", "dev"]);
    assert!(unbounded.contains("unbounded") && !unbounded.contains("TiB"), "{unbounded}");
    at(&["user", "grant", "ann", "read_output", "manage_users"]);
    let revoked = at(&["user", "revoke", "ann", "manage_users"]);
    assert_eq!(revoked, "user ann has now: read output\n");
    at(&["quota", "set", "ann", "batch", "--cpu", "1", "--ram", "1GiB"]);
    let displayed = at(&["user", "show", "ann"]);
    assert!(displayed.contains("batch") && displayed.contains("1 core"), "{displayed}");
    let file = job(&folder, "work", r#"["sim", "finish", "1"]"#, "");
    at(&["run", &file, "--owner", "ann"]);
    at(&["wait", "ann/work"]);
    // Dead jobs do not prevent the removal of their user.
    at(&["user", "rm", "ann"]);
    let gone = cell(&["--master", &address, "user", "show", "ann"]);
    assert_eq!(gone.status.code(), Some(1));
    let again = cell(&["--master", &address, "job", "status", "ann/work"]);
    assert_eq!(again.status.code(), Some(1), "her jobs are forgotten with her");
    at(&["token", "revoke", "--scheduler", "s9"]);
    let tokens = json(&["--master", &address, "token", "ls", "-o", "json"]);
    let id = tokens[0]["id"].as_str().unwrap();
    assert!(at(&["token", "ls", "-o", "wide"]).contains("scheduler s9 is revoked"));
    at(&["token", "revoke", id]);
    assert_eq!(at(&["token", "ls"]), "");
    running.stop();
}

#[test]
fn a_folder_of_virtual_machines_is_served_by_another_number_of_them() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "3");
    let names = |address: &str| stdout_of(&["--master", address, "machine", "ls", "-o", "name"]);
    crate::wait_machines(&address, 3);
    let removed = stdout_of(&["--master", &address, "machine", "rm", "dev-0"]);
    assert!(removed.contains("start `cell dev` again"), "{removed}");
    running.stop();
    let (running, address) = dev(&folder, "1");
    // The removed machine is back, and those that are not served are gone.
    crate::wait_machines(&address, 1);
    assert_eq!(names(&address), "dev-0\n");
    running.stop();
}

#[test]
fn completion_and_manual_pages_are_made_from_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout_of(&["completion", shell]);
        assert!(script.contains("describe") && script.contains("cell"), "{shell}");
    }
    let folder = Folder::new();
    let printed = stdout_of(&["man", &folder.path("man")]);
    assert!(printed.contains("pages in "), "{printed}");
    let page = std::fs::read_to_string(folder.path("man/cell-status.1")).unwrap();
    assert!(page.contains("\\-\\-watch"), "{page}");
}

#[test]
fn history_is_written_in_the_tables_of_public_traces() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "1");
    crate::wait_machines(&address, 1);
    let once = r#""restart": {"max_failures": 0},"#;
    for (name, command) in
        [("good", r#"["sim", "finish", "1"]"#), ("bad", r#"["sim", "fail", "1"]"#)]
    {
        stdout_of(&["--master", &address, "run", &job(&folder, name, command, once)]);
        cell(&["--master", &address, "wait", name]);
    }
    let trace = folder.path("trace");
    let export = ["--master", &address, "sql", "--export-trace", &trace];
    let printed = stdout_of(&[&export[..], &["-o", "json"]].concat());
    let printed: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert!(printed["largest_machine"]["cpu"].as_u64() > Some(0), "{printed}");
    let rows = |table: &str| -> Vec<Vec<String>> {
        let text = std::fs::read_to_string(format!("{trace}/{table}.csv")).unwrap();
        text.lines().skip(1).map(|row| row.split(',').map(str::to_owned).collect()).collect()
    };
    let tables = printed["tables"].as_array().unwrap();
    assert_eq!(tables.len(), 5, "{printed}");
    for table in tables {
        let written = rows(table["name"].as_str().unwrap()).len() as u64;
        assert_eq!(table["rows"].as_u64(), Some(written), "{printed}");
    }
    let jobs = rows("collection_events");
    let of = |job: &str| -> Vec<&Vec<String>> { jobs.iter().filter(|row| row[9] == job).collect() };
    let strings = |texts: [&str; 2]| texts.map(str::to_owned).to_vec();
    let kinds =
        |rows: &[&Vec<String>]| -> Vec<String> { rows.iter().map(|row| row[1].clone()).collect() };
    assert_eq!((kinds(&of("good")), kinds(&of("bad"))), (strings(["0", "6"]), strings(["0", "5"])));
    let tasks = rows("instance_events");
    let bad: Vec<&Vec<String>> = tasks.iter().filter(|row| row[2] == of("bad")[0][2]).collect();
    assert_eq!(kinds(&bad), ["0", "3", "5"], "{bad:?}");
    let end = bad[2];
    assert_eq!((end[6].as_str(), end[9].as_str()), ("100", "1"), "{end:?}");
    assert!(end[11].parse::<f64>().unwrap() > 0.0, "{end:?}");
    let machines = rows("machine_events");
    assert_eq!((machines[0][2].as_str(), machines[0][4].as_str()), ("1", "1.000000000"));
    let again = cell(&export);
    assert_eq!(again.status.code(), Some(1), "what is there is not written over");
    running.stop();
}
