//! The program itself, without an agent: a folder with a launch in it, and the files it leaves
//! there.

use cellwright_isolate::cgroup::{GroupPath, Layout, Tree};
use cellwright_shim::installed::{Installed, UnusableShim};
use cellwright_shim::protocol::{
    BEGUN, EXIT, ExitCause, LAUNCH, LOGS, Launch, LogSettings, READY, SHIM_LOG, SOCKET,
};
use cellwright_shim::record::{self, Durability};
use cellwright_shim::{BUILD, BUILD_FLAG, SHIM_BINARY, VERB, exit_of};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SHIM: &str = env!("CARGO_BIN_EXE_cell-shim");

/// A folder that is removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("cell-shim-{name}-{}", std::process::id()));
        std::fs::create_dir_all(path.join(LOGS)).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn write_launch(folder: &Folder, command: &[&str], group: Option<String>) {
    let launch = Launch {
        name: "u/j/0".into(),
        command: command.iter().map(ToString::to_string).collect(),
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        directory: folder.0.clone(),
        run_as: None,
        logs: LogSettings { file_bytes: 4096, files: 2, rate: 4096 },
        lease_until: None,
        max_run: None,
        group,
        container: None,
        secrets: None,
        identity_dir: None,
    };
    record::write(&folder.0.join(LAUNCH), &launch, Durability::Process).unwrap();
}

fn spawn_shim(folder: &Folder) -> Child {
    let mut command = Command::new(SHIM);
    command.arg(VERB).arg(&folder.0).stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn it_says_which_build_it_is_and_refuses_what_is_not_for_it() {
    let output = Command::new(SHIM).args([VERB, BUILD_FLAG]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), BUILD);
    for words in [&[][..], &["status"], &[VERB]] {
        let rejected = Command::new(SHIM).args(words).output().unwrap();
        assert_eq!(rejected.status.code(), Some(2), "{words:?}");
    }
}

#[test]
fn an_agent_takes_it_if_it_is_of_the_same_build_and_keeps_it() {
    let folder = Folder::new("taken");
    let path = folder.0.join(SHIM_BINARY);
    assert!(Installed::open(&path).unwrap().is_none(), "absent");
    // Prints its arguments, which are no build ID.
    std::fs::copy("/bin/echo", &path).unwrap();
    let rejected = Installed::open(&path).unwrap_err();
    assert!(
        matches!(&rejected, UnusableShim::OtherBuild(build) if build == "shim --build"),
        "{rejected}"
    );
    std::fs::write(&path, "no program").unwrap();
    assert!(matches!(Installed::open(&path), Err(UnusableShim::Io(_))));
    std::fs::remove_file(&path).unwrap();
    std::fs::copy(SHIM, &path).unwrap();
    let taken = Installed::open(&path).unwrap().unwrap();
    // An upgrade puts another in its place.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "another").unwrap();
    let output = Command::new(taken.path()).args([VERB, BUILD_FLAG]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), BUILD);
}

#[test]
fn it_runs_a_program_and_leaves_its_end_and_its_output() {
    let folder = Folder::new("runs");
    write_launch(&folder, &["sh", "-c", "echo said; exit 3"], None);
    assert!(spawn_shim(&folder).wait().unwrap().success());
    let exit = exit_of(&folder.0).unwrap().unwrap();
    assert_eq!((exit.code, exit.cause), (Some(3), ExitCause::Itself));
    let output = std::fs::read_to_string(folder.0.join(LOGS).join("stdout")).unwrap();
    assert_eq!(output, "said\n");
}

/// Every file costs each start of a task; what is needed of them is in
/// `docs/decisions/0033-the-shim-is-a-program-of-its-own.md`.
#[test]
fn it_leaves_no_file_that_nobody_needs() {
    let folder = Folder::new("files");
    write_launch(&folder, &["true"], None);
    assert!(spawn_shim(&folder).wait().unwrap().success());
    let names = std::fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, [BEGUN, EXIT, LAUNCH, LOGS, SHIM_LOG, SOCKET]);
    let output = std::fs::read_dir(folder.0.join(LOGS)).unwrap();
    assert_eq!(output.count(), 0, "a program that says nothing has no log");
}

/// Lines of `/proc/PID/cgroup` for hierarchies in which a process is elsewhere than in `group`.
fn other_hierarchies(pid: i32, group: &str) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let is_in = |line: &&str| line.ends_with(&format!(":/{group}"));
    text.lines().filter(|line| !is_in(line)).map(str::to_owned).collect()
}

/// Connects to the shim in `folder`; returns the pid of its program from the status.
fn connect_to_program(folder: &Path) -> (UnixStream, i32) {
    let stream = UnixStream::connect(folder.join(SOCKET)).unwrap();
    let mut output = String::new();
    BufReader::new(&stream).read_line(&mut output).unwrap();
    let status: serde_json::Value = serde_json::from_str(&output).unwrap();
    (stream, i32::try_from(status["pid"].as_i64().unwrap()).unwrap())
}

#[test]
fn a_program_is_in_its_group_and_in_the_end_in_every_hierarchy() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: needs root");
    }
    let folder = Folder::new("group");
    let path = format!("cellwright-shim-test-{}", std::process::id());
    let group = Tree::new(Layout::detect().unwrap(), GroupPath::new(&path).unwrap()).base();
    group.create().unwrap();
    let path = group.path().to_string();
    write_launch(&folder, &["sleep", "1000"], Some(path.clone()));
    let mut shim = spawn_shim(&folder);
    let mut ready = String::new();
    BufReader::new(shim.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready.trim(), READY);
    let (mut stream, pid) = connect_to_program(&folder.0);
    // It is never outside of limits; where it is only counted it may be, for a moment.
    let counting = |line: &String| line.starts_with("0::");
    assert!(
        other_hierarchies(pid, &path).iter().all(counting),
        "{:?}",
        other_hierarchies(pid, &path)
    );
    let started = Instant::now();
    while !other_hierarchies(pid, &path).is_empty() {
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", other_hierarchies(pid, &path));
        std::thread::yield_now();
    }
    stream.write_all(b"\"kill\"\n").unwrap();
    assert!(shim.wait().unwrap().success());
    assert_eq!(exit_of(&folder.0).unwrap().unwrap().cause, ExitCause::Told);
    assert!(!group.exists(), "the shim takes down what stood around its task");
}
