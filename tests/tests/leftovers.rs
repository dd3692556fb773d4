//! Nothing that a test started is left on the machine: its folder takes along what runs there, and
//! the script that looks after a whole run finds what has escaped all the same.

use cellwright_agent::groups::base_name;
use cellwright_agent::proc::{self, Process};
use cellwright_tests::alone::open_cell;
use cellwright_tests::binary::{cell, said, text};
use cellwright_tests::folder::Folder;
use cellwright_tests::{LOOK, PATIENCE};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;
use tokio::time::sleep;

/// Two programs, one of which tries to get away.
const TASK: &str = r#"{ "name": "stays", "priority": 100, "task": {
    "limits": { "cpu": 100, "ram": 67108864 },
    "command": ["sh", "-c", "setsid sleep 1000 & sleep 1000; exit 0"] } }"#;

fn lives(process: &Process) -> bool {
    proc::one(process.pid).is_some_and(|now| now.born == process.born && !now.is_zombie)
}

fn words(pid: i32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).map(text).collect()
}

/// The shim of the one task in this folder and all below it, once both of its programs run.
async fn with_all_below(folder: &Path) -> Vec<Process> {
    let begun = Instant::now();
    let is_shim = |process: &&Process| {
        let words = words(process.pid);
        words.get(1).is_some_and(|word| word == "shim") && Path::new(&words[2]).starts_with(folder)
    };
    loop {
        let all = proc::all();
        if let Some(shim) = all.values().find(is_shim) {
            let mut found = proc::below(&all, shim.pid);
            if found.iter().filter(|process| words(process.pid)[0] == "sleep").count() == 2 {
                found.push(*shim);
                return found;
            }
        }
        assert!(begun.elapsed() < PATIENCE, "the task does not start");
        sleep(LOOK).await;
    }
}

async fn goes_with_its_folder(driver: &str) {
    let folder = Folder::new();
    let path = folder.0.canonicalize().expect("a folder");
    let (process, address) = open_cell(&folder, &["--driver", driver]).await;
    let job = folder.path("stays.json");
    fs::write(&job, TASK).expect("a file");
    said(Command::new(cell()).args(["--master", &address, "run"]).arg(&job)).expect("it is taken");
    let all = with_all_below(&path).await;
    process.kill();
    assert!(all.iter().all(lives), "{driver}: tasks outlive their cell");
    let group = base_name(&path.join("data/agent"));
    drop(folder);
    let left: Vec<&Process> = all.iter().filter(|process| lives(process)).collect();
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

#[test]
fn what_escapes_a_run_is_named_ended_and_a_failure() {
    let name = format!("test-{}", std::process::id());
    let look = || -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/leftovers.sh");
        Command::new(script).arg(&name).env_remove("CELL_TEST_RUN").output().expect("it runs")
    };
    let mut sleeping = Command::new("sh");
    // What is below bears no name, as a task does not.
    sleeping.args(["-c", "env -i sleep 1001 & exec sleep 1002"]).env("CELL_TEST_RUN", &name);
    let mut sleeping = sleeping.spawn().expect("sh runs");
    let told = look();
    let words = text(&told.stdout);
    assert_eq!(told.status.code(), Some(1), "{words}");
    for program in ["sleep 1001", "sleep 1002"] {
        assert!(words.contains(program), "{words}");
    }
    assert!(!sleeping.wait().expect("a child of ours").success());
    let told = text(&look().stdout);
    assert!(!told.contains("process"), "{told}");
}
