//! The layout of results, for all commands: no wider than 80 columns, in natural order, and with a
//! message where a result is empty.

use crate::support::{Folder, cell, json, stdout_of, text};
use crate::{Running, dev, wait_machines};

/// The width of a plain terminal.
const WIDTH: usize = 80;
/// The maximum length of our own words; longer ones are names, paths or digests.
const WORD: usize = 40;

/// The longest name that lines have to fit with: with the user before it and an index after it, it
/// is still no longer than a word.
const LONG: &str = "a-service-of-the-search-team-web";

/// Whether a line is no wider than necessary: text to copy stays in one piece.
fn fits_terminal(line: &str) -> bool {
    let is_long = |word: &str| word.chars().count() > WORD;
    line.chars().count() <= WIDTH
        || line.contains(": cell ")
        || line.split_whitespace().any(is_long)
}

fn with_address<'a>(address: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    [&["--master", address], args].concat()
}

/// A cell with a running job, a pending one, and a blocked drain.
fn busy_cell(folder: &Folder) -> (Running, String, [String; 2]) {
    let (running, address) = dev(folder, "2");
    wait_machines(&address, 2);
    let file = |name: &str, priority: u32, count: u32, cpu: u32| {
        let path = folder.path(&format!("{name}.json"));
        let spec = format!(
            r#"{{"name": "{name}", "priority": {priority}, "count": {count}, "max_down": 1,
                "disruptions": {{"most": 1, "within": "1h"}},
                "task": {{"limits": {{"cpu": "{cpu}m", "ram": 33554432}}, "command": ["true"]}}}}"#
        );
        std::fs::write(&path, spec).unwrap();
        path
    };
    let files = [file(LONG, 200, 6, 100), file("too-large-for-any-machine", 100, 2, 900_000)];
    for file in &files {
        stdout_of(&["--master", &address, "run", file]);
    }
    crate::wait_for(&address, LONG, |tasks| {
        let runs = |task: &cellwright_api::types::TaskView| {
            task.state == cellwright_cell::task::TaskState::Running
        };
        tasks.len() == 6 && tasks.iter().all(runs)
    });
    (running, address, files)
}

#[test]
fn no_result_is_wider_than_a_terminal() {
    let folder = Folder::new();
    let (running, address, [service, _]) = busy_cell(&folder);
    let task = format!("dev/{LONG}/0");
    assert!(task.len() < WORD, "lines with the name are held against the width");
    let saved = json(&with_address(&address, &["checkpoint", "save", "-o", "json"]));
    let saved = saved[0]["path"].as_str().unwrap().to_owned();
    let exported = folder.path("state.jsonl");
    stdout_of(&["checkpoint", "export", &saved, "--out", &exported]);
    let contexts = folder.path("contexts.toml");
    let args: [&[&str]; 32] = [
        &["drain", "-m", "dev-0"],
        &["machine", "drain", "dev-1"],
        &["status"],
        &["status", LONG],
        &["status", &task],
        &["status", "dev-0"],
        &["status", "dev/too-large"],
        &["job", "status"],
        &["describe", LONG],
        &["describe", &task],
        &["describe", "dev-0"],
        &["explain", LONG],
        &["explain", &task],
        &["explain", "too-large"],
        &["machine", "ls"],
        &["machine", "show", "dev-0"],
        &["machine", "undrain", "dev-0"],
        &["checkpoint", "save"],
        &["checkpoint", "ls"],
        &["checkpoint", "show", &saved],
        &["checkpoint", "import", &exported, "--check"],
        &["sql", "--tables"],
        &["plan", &service],
        &["update", LONG],
        &["user", "ls"],
        &["user", "add", "somebody-of-the-search-team"],
        &["user", "rm", "somebody-of-the-search-team"],
        &["quota", "ls"],
        &["master", "status"],
        &["--contexts", &contexts, "context", "ls"],
        &["shapes"],
        &["resize", LONG, "--tasks", "4"],
    ];
    for args in args {
        let output = cell(&with_address(&address, args));
        let printed = text(&output.stdout);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        let wide: Vec<&str> = printed.lines().filter(|line| !fits_terminal(line)).collect();
        assert!(wide.is_empty(), "{args:?}: {wide:#?}");
    }
    running.stop();
}

#[test]
fn where_there_is_nothing_to_show_it_is_said_beside_the_result() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "0");
    let contexts = folder.path("contexts.toml");
    let lists: [(&[&str], &str); 8] = [
        (&["machine", "ls"], "no machines; next: cell sim agents"),
        (&["job", "status"], "no jobs; next: cell run"),
        (&["job", "status", "--state", "dead"], "no job is like that; next: cell job status"),
        (&["cron", "ls"], "no crons; next: cell init"),
        (&["package", "ls"], "no packages; next: cell package push"),
        (&["token", "ls"], "no tokens: an open master asks for none"),
        (&["checkpoint", "ls"], "no checkpoints on the replica that answers; next: cell"),
        (&["audit", "--caller", "nobody"], "nothing like that since "),
    ];
    for (args, want) in lists {
        let at = [&["--master", &address, "--contexts", &contexts], args].concat();
        let output = cell(&at);
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{args:?}: {stderr}");
        assert_eq!(stdout, "", "{args:?}");
        // The note on an open cell's audit has three more lines, each short enough for a terminal.
        let lines = if args[0] == "audit" { 4 } else { 1 };
        assert!(stderr.starts_with(want) && stderr.lines().count() == lines, "{args:?}: {stderr}");
        for (form, want) in [("json", "[]\n"), ("yaml", "[]\n"), ("jsonl", ""), ("name", "")] {
            let output = cell(&[&at[..], &["-o", form]].concat());
            let received = (text(&output.stdout), text(&output.stderr));
            assert_eq!(received, (want.to_owned(), String::new()), "{args:?} -o {form}");
        }
    }
    let none = cell(&["--contexts", &contexts, "context", "ls"]);
    assert_eq!(text(&none.stderr), "no contexts; next: cell context add FILE\n");
    let rows = cell(&["--master", &address, "sql", "select 1 where 0"]);
    assert!(text(&rows.stdout).is_empty() && text(&rows.stderr).starts_with("no rows\n"));
    running.stop();
}

#[test]
fn names_are_those_of_what_was_asked_for_and_machines_are_counted_up() {
    let folder = Folder::new();
    let (running, address) = dev(&folder, "12");
    wait_machines(&address, 12);
    let at = |args: &[&str]| stdout_of(&[&["--master", &address], args].concat());
    let machines = at(&["machine", "ls", "-o", "name"]);
    let machines: Vec<&str> = machines.lines().collect();
    assert_eq!(machines, (0..12).map(|n| format!("dev-{n}")).collect::<Vec<_>>());
    at(&["run", "examples/hello.json"]);
    let named = |command: &[&str]| at(&[command, &["-o", "name"]].concat());
    for (object, want) in [
        ("hello", "dev/hello\n"),
        ("hello/0", "dev/hello/0\n"),
        ("dev/hello/[0-1]", "dev/hello/0\ndev/hello/1\n"),
    ] {
        for verb in [&["status"][..], &["job", "status"], &["describe"]] {
            assert_eq!(named(&[verb, &[object]].concat()), want, "{verb:?} {object}");
        }
    }
    assert_eq!(named(&["status", "dev-3"]), "dev-3\n");
    assert_eq!(named(&["user", "show", "dev"]), "dev\n");
    running.stop();
}
