//! What a whole cell of the last release left on its disks, opened by this build: a master's log,
//! checkpoints, records, history, packages and identity; an agent's state with attempts that ended
//! and one that ran, and its cache; a scheduler's identity; the contexts of an administrator.
//!
//! `UPDATE_PAST=1` records it: a cell is run, killed, and packed into `tests/past/cell-1.tar.gz`,
//! with what its commands said beside it. Before the first release it is recorded anew whenever a
//! format changes; afterwards it stays, and each release adds one.
//!
//! Its certificates are long out of date when they are read. The processes run at the time of the
//! recording instead (`CELL_CLOCK_OFFSET_FILE`), so that they are checked as they would have been.
//! Rejected: certificates made anew for the test, which would show that this build reads its own.
//! Their authority was made for the recording and thrown away, so its key is nobody's secret.

use cellwright_tests::binary::{cell, command_output};
use cellwright_tests::folder::Folder;
use cellwright_tests::process::Process;
use cellwright_tests::replicas::CLOCK;
use cellwright_tests::{POLL_INTERVAL, TIMEOUT};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use tokio::time::{Instant, sleep};

/// Of the recorded master: members of a cell are known by their address. An address of loopback
/// that nothing else has.
const MASTER: &str = "127.0.70.1:17070";
const AGENT: &str = "127.0.70.1:17071";
/// Locked by whoever runs the recorded cell: its addresses are the same for all.
const LOCK: &str = "cellwright-past.lock";
/// More changes than the log has entries between two snapshots, so that there is one.
const USERS: usize = 50;
const ONCE: &str = "this was written once\n";
const PACKAGED: &str = "from the package\n";

/// Commands whose lines are compared: what was said then is among what is said now.
const SAID: [&[&str]; 7] = [
    &["audit"],
    &["events"],
    &["sql", "select log_index, position, kind, object, event from events order by 1, 2"],
    &["sql", "select object, event, reason from events where kind = 'task' order by time"],
    &["package", "ls", "-o", "name"],
    &["user", "ls", "-o", "name"],
    &["checkpoint", "ls", "-o", "name"],
];

fn recorded(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("past").join(name)
}

fn wall() -> i64 {
    i64::try_from(cellwright_identity::clock::wall().0).expect("a time of this age")
}

/// A cell of one master, one machine and one scheduler, in one folder.
struct PastCell {
    processes: Vec<Process>,
    folder: Folder,
    _lock: File,
}

impl PastCell {
    fn empty() -> PastCell {
        let path = std::env::temp_dir().join(LOCK);
        let lock = File::create(&path).expect("a lock file");
        lock.lock().expect("it is locked");
        let cell = PastCell { processes: Vec::new(), folder: Folder::new(), _lock: lock };
        cell.set_clock(0);
        cell
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }

    /// The clock of all processes is so many milliseconds ahead.
    fn set_clock(&self, ahead: i64) {
        fs::write(self.path("clock"), ahead.to_string()).expect("it is written");
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(cell());
        command.arg("--contexts").arg(self.path("contexts.toml")).args(words);
        command.env(CLOCK, self.path("clock"));
        command
    }

    fn says(&self, words: &[&str]) -> String {
        command_output(&mut self.command(words))
            .unwrap_or_else(|why| panic!("{why}\n{}", self.output()))
    }

    fn start(&mut self, words: &[&str], file: &str) {
        let mut command = self.command(words);
        command.arg(self.path(file));
        let log = self.path(&format!("{file}.log"));
        self.processes.push(Process::start(command, &log));
    }

    fn start_all(&mut self) {
        self.start(&["master", "start", "--config"], "m1.toml");
        self.start(&["agent", "start", "--config"], "n1.toml");
        self.start(&["scheduler", "--identity"], "s1.toml");
    }

    fn output(&self) -> String {
        self.processes.iter().map(Process::output).collect::<Vec<_>>().join("\n----\n")
    }

    /// Asks until an answer holds these words.
    async fn until(&self, words: &[&str], expected: &str) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let said = command_output(&mut self.command(words));
            if said.as_ref().is_ok_and(|said| said.contains(expected)) {
                return;
            }
            let waits = Instant::now() < deadline;
            assert!(waits, "{words:?} without {expected:?}: {said:?}\n{}", self.output());
            sleep(POLL_INTERVAL).await;
        }
    }

    fn run(&self, name: &str, task: &Value, count: usize) {
        let mut task = task.clone();
        task["limits"] = json!({ "cpu": "0.01", "ram": 8 << 20, "disk": 1 << 20 });
        let job = json!({ "name": name, "count": count, "priority": 100, "task": task });
        let file = self.path(&format!("{name}.json"));
        fs::write(&file, job.to_string()).expect("a job is written");
        self.says(&["run", file.to_str().expect("a path in UTF-8")]);
    }
}

/// Changes a text file.
fn edit(path: &Path, change: impl FnOnce(String) -> String) {
    let text = fs::read_to_string(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    fs::write(path, change(text)).expect("it is changed");
}

fn tar(words: &[&str], archive: &Path, folder: &Path) {
    let mut tar = Command::new("tar");
    tar.args(words).arg("-f").arg(archive).arg("-C").arg(folder);
    if words.contains(&"-c") {
        tar.arg(".");
    }
    command_output(&mut tar).expect("tar");
}

/// Makes the cell and has it do some of everything.
async fn lived() -> PastCell {
    let mut cell = PastCell::empty();
    let data = cell.path("m1");
    let init = ["master", "init", "--cell", "past", "--name", "m1", "--advertise", MASTER];
    let mut init = cell.command(&init);
    init.args(["--listen", MASTER, "--data-dir"]).arg(&data);
    command_output(init.arg("--config").arg(cell.path("m1.toml"))).expect("a cell is made");
    for (default, wanted) in [
        ("snapshot_entries = 50000", "snapshot_entries = 100"),
        ("supervise_scheduler = true", "supervise_scheduler = false"),
    ] {
        edit(&cell.path("m1.toml"), |text| {
            assert!(text.contains(default), "the configuration has changed:\n{text}");
            text.replace(default, wanted)
        });
    }
    cell.start(&["master", "start", "--config"], "m1.toml");
    cell.until(&["user", "ls"], "admin").await;

    for (kind, name) in [("--agent", "n1"), ("--scheduler", "s1")] {
        let file = cell.path(&format!("{name}.token"));
        let file = file.to_str().expect("a path in UTF-8");
        cell.says(&["token", "create", kind, name, "--token-file", file]);
    }
    let token = |name: &str| cell.path(&format!("{name}.token"));
    let mut join = cell.command(&["agent", "join", "--master", MASTER, "--token-file"]);
    let config = cell.path("n1.toml");
    command_output(join.arg(token("n1")).arg("--config").arg(&config)).expect("it joins");
    let (agent, machine) = (cell.path("n1"), "cpu = 1000, ram = 1073741824, disk = 1073741824");
    edit(&config, |text| {
        format!(
            "{text}driver = \"process\"\ndata_dir = {agent:?}\nlisten = \"{AGENT}\"\n\
             capacity = {{ {machine}, disk_rate = 0 }}\n"
        )
    });
    let token = cell.path("s1.token");
    let token = token.to_str().expect("a path in UTF-8").to_owned();
    cell.start(&["agent", "start", "--config"], "n1.toml");
    let join = ["scheduler", "--join", "--master", MASTER, "--token-file", &token, "--identity"];
    cell.start(&join, "s1.toml");

    let room = ["--cpu", "2", "--ram", "2GiB", "--disk", "1GiB"];
    cell.says(&[&["quota", "set", "admin", "batch"][..], &room].concat());
    let package = cell.path("tool");
    fs::create_dir(&package).expect("a folder");
    fs::write(package.join("said"), PACKAGED).expect("it is written");
    let package = package.to_str().expect("a path in UTF-8");
    let pushed = cell.says(&["package", "push", package, "--name", "tool", "-o", "json"]);
    let package: Value = serde_json::from_str(&pushed).expect("a package in JSON");
    cell.run("once", &json!({ "command": ["sh", "-c", format!("printf '{ONCE}'")] }), 2);
    let script = "cat \"$CELL_PACKAGES/tool/said\"; exec sleep 100000";
    let command = json!(["sh", "-c", script]);
    cell.run("serves", &json!({ "command": command, "packages": [package] }), 1);
    cell.until(&["status", "admin/once"], "2 finished").await;
    cell.until(&["logs", "admin/serves/0"], PACKAGED).await;
    cell.says(&["checkpoint", "save"]);
    for number in 0..USERS {
        cell.says(&["user", "add", &format!("u{number}")]);
    }
    cell.until(&["sql", "select max(object) as last from events where kind = 'user'"], "u9").await;
    cell
}

/// Runs a cell, kills it and packs what it leaves.
async fn record() {
    let mut cell = lived().await;
    let said = SAID.map(|words| json!({ "words": words, "said": cell.says(words) }));
    let folder = cell.folder.0.clone();
    // Two passes of the agent's link, so that it has told all ends and moved them away.
    let ended = || fs::read_dir(folder.join("n1/ended")).map_or(0, Iterator::count);
    let deadline = Instant::now() + TIMEOUT;
    while ended() < 2 {
        assert!(Instant::now() < deadline, "{}", cell.output());
        sleep(POLL_INTERVAL).await;
    }
    cell.processes.drain(..).for_each(Process::kill);
    let facts = json!({ "recorded_at": wall(), "folder": folder, "said": said });
    let facts = serde_json::to_string_pretty(&facts).expect("facts");
    fs::write(recorded("cell-1.json"), facts + "\n").expect("it is written");
    let left_out = ["*.sock", "*.log", "*.token", "clock", "*.sqlite-shm"];
    let left_out = left_out.map(|pattern| format!("--exclude={pattern}"));
    let mut words = vec!["-c", "-z", "--sort=name", "--numeric-owner"];
    words.extend(left_out.iter().map(String::as_str));
    tar(&words, &recorded("cell-1.tar.gz"), &folder);
}

/// The recorded cell in a folder of this test, none of its processes running.
fn unpacked() -> (PastCell, Value) {
    let cell = PastCell::empty();
    let facts = fs::read_to_string(recorded("cell-1.json")).expect("UPDATE_PAST=1 records it");
    let facts: Value = serde_json::from_str(&facts).expect("facts");
    tar(&["-x", "-z", "-p", "--numeric-owner"], &recorded("cell-1.tar.gz"), &cell.folder.0);
    let (was, is) = (facts["folder"].as_str().expect("a path"), cell.folder.0.display());
    for name in ["m1.toml", "n1.toml"] {
        edit(&cell.path(name), |text| text.replace(was, &is.to_string()));
    }
    cell.set_clock(facts["recorded_at"].as_i64().expect("a time") - wall());
    (cell, facts)
}

#[tokio::test]
async fn a_cell_of_the_last_release_is_opened_and_goes_on() {
    if std::env::var_os("UPDATE_PAST").is_some() {
        record().await;
    }
    let (mut cell, facts) = unpacked();
    cell.start_all();
    cell.until(&["user", "ls"], "admin").await;

    // Whatever the masters' files hold: log and snapshot, records, history, blobs, checkpoints.
    for entry in facts["said"].as_array().expect("what was said") {
        let words: Vec<&str> =
            entry["words"].as_array().expect("words").iter().filter_map(Value::as_str).collect();
        let then = entry["said"].as_str().expect("a text");
        assert!(then.lines().count() > 0, "{words:?} said nothing");
        let now = cell.says(&words);
        let missing: Vec<&str> =
            then.lines().filter(|line| !now.lines().any(|other| other == *line)).collect();
        assert!(missing.is_empty(), "{words:?} lacks {missing:#?} in\n{now}");
    }
    cell.until(&["status", "admin/once"], "2 finished").await;
    let saved = cell.says(&["checkpoint", "ls", "-o", "name"]);
    let saved = saved.lines().next().expect("a checkpoint");
    let file = cell.path("m1/checkpoints").join(saved);
    let shown = cell.says(&["checkpoint", "show", file.to_str().expect("UTF-8"), "-o", "json"]);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert!(shown.to_string().contains("\"jobs\":2"), "{shown}");

    // The agent's: the output of ended attempts, and an attempt whose shim is gone, which is told
    // and made anew from the package that is in the cache.
    assert_eq!(cell.says(&["logs", "admin/once/1"]), ONCE);
    cell.until(&["events"], "admin/serves/0 lost on n1").await;
    cell.until(&["status", "admin/serves"], "1 running").await;
    cell.until(&["logs", "admin/serves/0"], PACKAGED).await;
    assert!(cell.says(&["machine", "packages", "n1"]).contains("tool"));
    // And everybody works on: the scheduler by its own identity.
    cell.run("again", &json!({ "command": ["true"] }), 1);
    cell.until(&["status", "admin/again"], "1 finished").await;
    cell.until(&["events"], "[scheduler:s1]").await;
}

/// Files of the agent and of users that are of a newer build than this one: each is refused by its
/// path and version, with what is allowed, and stays as it is.
#[tokio::test]
async fn files_of_a_newer_build_are_refused_by_name() {
    let (cell, _) = unpacked();
    let start = |cell: &PastCell| {
        let mut start = cell.command(&["agent", "start", "--config"]);
        command_output(start.arg(cell.path("n1.toml"))).expect_err("a newer file")
    };
    let attempts = fs::read_dir(cell.path("n1/tasks")).expect("attempts");
    let attempt = attempts.flatten().next().expect("one that ran").path();
    for file in [cell.path("n1/incarnation"), cell.path("n1/orders"), attempt.join("order")] {
        let before = fs::read_to_string(&file).expect("a record");
        let newer = before.replacen("cell-record 1 ", "cell-record 2 ", 1);
        fs::write(&file, &newer).expect("it is changed");
        let said = start(&cell);
        let expected = format!("{} is of format 2; allowed: 1 to 1", file.display());
        assert!(said.contains(&expected), "{said}");
        assert_eq!(fs::read_to_string(&file).expect("it stays"), newer);
        fs::write(&file, before).expect("it is put back");
    }
    let contexts = cell.path("contexts.toml");
    edit(&contexts, |text| text.replacen("version = 1", "version = 2", 1));
    let said = command_output(&mut cell.command(&["user", "ls"])).expect_err("a newer file");
    let expected = format!("{} is of version 2; allowed: 1 to 1", contexts.display());
    assert!(said.contains(&expected), "{said}");
}
