//! Nothing that a test started is left on the machine: its folder takes along what runs there, and
//! the script that looks after a whole run finds what has escaped all the same.

use cellwright_agent::cgroups::base_name;
use cellwright_agent::proc::{self, Process};
use cellwright_tests::binary::{cell, command_output, text};
use cellwright_tests::folder::Folder;
use cellwright_tests::local_cell::start_open_cell;
use cellwright_tests::{POLL_INTERVAL, TIMEOUT};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;
use tokio::time::sleep;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/leftovers.sh");

/// Two programs, one of which tries to get away.
const TASK: &str = r#"{ "name": "stays", "priority": 100, "task": {
    "limits": { "cpu": "100m", "ram": 67108864 },
    "command": ["sh", "-c", "setsid sleep 1000 & sleep 1000; exit 0"] } }"#;

fn is_alive(process: &Process) -> bool {
    proc::get(process.pid).is_some_and(|now| now.born == process.born && !now.is_zombie)
}

fn words(pid: i32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).map(text).collect()
}

/// The shim of the one task in this folder and all below it, once both of its programs run.
async fn shim_and_descendants(folder: &Path) -> Vec<Process> {
    let begun = Instant::now();
    let is_shim = |process: &&Process| {
        let words = words(process.pid);
        words.get(1).is_some_and(|word| word == "shim") && Path::new(&words[2]).starts_with(folder)
    };
    loop {
        let all = proc::list();
        if let Some(shim) = all.values().find(is_shim) {
            let mut found = proc::descendants(&all, shim.pid);
            if found.iter().filter(|process| words(process.pid)[0] == "sleep").count() == 2 {
                found.push(*shim);
                return found;
            }
        }
        assert!(begun.elapsed() < TIMEOUT, "the task does not start");
        sleep(POLL_INTERVAL).await;
    }
}

async fn goes_with_its_folder(driver: &str) {
    let folder = Folder::new();
    let path = folder.0.canonicalize().expect("a folder");
    let (process, address) = start_open_cell(&folder, &["--driver", driver]).await;
    let job = folder.path("stays.json");
    fs::write(&job, TASK).expect("a file");
    command_output(Command::new(cell()).args(["--master", &address, "run"]).arg(&job))
        .expect("it is taken");
    let all = shim_and_descendants(&path).await;
    process.kill();
    assert!(all.iter().all(is_alive), "{driver}: tasks outlive their cell");
    let group = base_name(&path.join("data/agent"));
    drop(folder);
    let left: Vec<&Process> = all.iter().filter(|process| is_alive(process)).collect();
    assert!(left.is_empty(), "{driver}: {left:?}");
    assert!(!path.exists(), "{driver}: {path:?} is left");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("a list");
    assert!(!mounts.contains(&*path.to_string_lossy()), "{driver}:\n{mounts}");
    for hierarchy in ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"] {
        assert!(!Path::new(hierarchy).join(&group).exists(), "{driver}: a group is left");
    }
}

#[tokio::test]
async fn tasks_go_with_the_folder_of_a_cell_that_was_killed() {
    goes_with_its_folder("process").await;
}

#[tokio::test]
async fn containers_go_with_the_folder_of_a_cell_that_was_killed() {
    let lacks = match Command::new("runc").arg("--version").output() {
        _ if !rustix::process::geteuid().is_root() => "containers need root".to_owned(),
        Ok(_) => return goes_with_its_folder("container").await,
        Err(why) => format!("runc: {why}"),
    };
    cellwright_tests::skip(&lacks);
}

/// Programs that bear the name of a run which is nobody else's.
struct Run(String);

impl Run {
    fn new(what: &str) -> Run {
        Run(format!("test-{what}-{}", std::process::id()))
    }

    fn begin(&self, script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("CELL_TEST_RUN", &self.0).stdout(Stdio::null());
        command.spawn().expect("sh runs")
    }

    fn look(&self) -> Output {
        Command::new(SCRIPT).arg(&self.0).output().expect("it runs")
    }
}

impl Drop for Run {
    /// A failed test leaves nothing either.
    fn drop(&mut self) {
        for process in proc::list().into_values() {
            let bears = fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
            let name = format!("CELL_TEST_RUN={}", self.0);
            if bears.split(|byte| *byte == 0).any(|word| word == name.as_bytes()) {
                let all = proc::descendants(&proc::list(), process.pid);
                for one in all.iter().chain([&process]).filter_map(|one| Pid::from_raw(one.pid)) {
                    // It may be gone by now.
                    let _ = kill_process(one, Signal::KILL);
                }
            }
        }
    }
}

#[test]
fn what_escapes_a_run_is_named_ended_and_a_failure() {
    let run = Run::new("escape");
    // What is below bears no name, as a task does not.
    let mut sleeping = run.begin("env -i sleep 1001 & exec sleep 1002");
    let output = run.look();
    let words = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{words}");
    for program in ["sleep 1001", "sleep 1002"] {
        assert!(words.contains(program), "{words}");
    }
    assert!(!sleeping.wait().expect("a child of ours").success());
    let output = run.look();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), String::new()));
}

#[test]
fn what_starts_another_and_ends_is_caught_all_the_same() {
    let run = Run::new("chain");
    // Each lives for a moment, and all of them no longer than a minute.
    let chain = "step() { [ $1 = 0 ] || { sleep 0.3; step $(($1 - 1)) & }; }; step 200";
    let mut first = run.begin(chain);
    let output = run.look();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    let output = run.look();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), String::new()));
    first.wait().expect("a child of ours");
}

#[test]
fn who_bears_the_name_and_calls_the_script_is_not_left() {
    let run = Run::new("caller");
    let mut caller = run.begin(&format!("{SCRIPT} {} && exit 7", run.0));
    assert_eq!(caller.wait().expect("a child of ours").code(), Some(7));
}

/// Mounts and hosts that are seen here alone, in a folder of a test whose process is none.
const PRIVATELY: &str = r#"set -e
mount --make-rprivate / && mount -t tmpfs run /run
mkdir -p /run/netns "$TMPDIR/cellwright-tests-9999999-0/data"
touch /run/netns/cellwright-1
mount -t tmpfs left "$TMPDIR/cellwright-tests-9999999-0/data"
there() { grep -c 9999999-0 /proc/self/mountinfo || true; ls /run/netns; }
"$1" nobody
there
"$1" --machine nobody
there"#;

#[test]
fn mounts_and_hosts_are_cleared_only_when_asked_and_fail_no_run() {
    if !rustix::process::geteuid().is_root() {
        return cellwright_tests::skip("mounts need root");
    }
    let folder = Folder::new();
    let real = folder.0.canonicalize().expect("a folder");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", PRIVATELY, "sh", SCRIPT]).env("TMPDIR", &real);
    let output = command_output(&mut command).expect("it runs");
    let left = "left behind by some run:";
    let mount = format!("{left} mount {}/cellwright-tests-9999999-0/data", real.display());
    let host = format!("{left} network namespace cellwright-1");
    assert_eq!(output.lines().collect::<Vec<_>>(), ["1", "cellwright-1", &mount, &host, "0"]);
}
