//! The agent, tested with the real binary and real programs: exit codes are reported, tasks survive
//! the death of agent and shim with their pids, and no process is left behind.

use crate::support::{self, Folder, Running, TIMEOUT, free_address, stdout_of};
use cellwright_agent::shim::protocol::Launch;
use cellwright_api::client::{ApiClientConfig, Client, JobFilter, PageRequest};
use cellwright_api::types::TaskView;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::task::{ExitClass, TaskOutcome, TaskState};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tokio::time::timeout;

/// A one-process cell with this machine's agent.
pub fn dev(folder: &Folder) -> (Running, String) {
    let data = folder.path("data");
    // Programs of these tests share a folder of the machine, which containers do not see.
    let args = ["dev", "--data-dir", &data, "--listen", "127.0.0.1:0", "--driver", "process"];
    let running = Running::spawn_args(&args);
    let address = running.address();
    (running, address)
}

fn key(job: &str) -> JobKey {
    JobKey { user: Name::new("dev").unwrap(), job: Name::new(job).unwrap() }
}

/// Waits until all tasks of the job satisfy `want`.
pub fn wait(address: &str, job: &str, want: impl Fn(&TaskView) -> bool) -> Vec<TaskView> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let key = key(job);
    let mut last = Vec::new();
    let reached = async {
        let client = Client::new(ApiClientConfig::new(vec![address.to_owned()])).unwrap();
        let mut watch = client.watch_jobs(&JobFilter::default(), None);
        loop {
            let event = watch.next().await.unwrap();
            let Some(view) = event.data.filter(|view| view.name == key.job) else { continue };
            last = client.tasks(&key, &PageRequest::default()).await.unwrap().value.items;
            if last.len() == view.spec.count as usize && last.iter().all(&want) {
                return last.clone();
            }
        }
    };
    let reached = runtime.block_on(async { timeout(TIMEOUT, reached).await });
    reached.unwrap_or_else(|_| panic!("{job} never came to be as wanted: {last:#?}"))
}

pub fn is_running_attempt(attempt: u32) -> impl Fn(&TaskView) -> bool {
    move |task| task.state == TaskState::Running && task.attempt == attempt
}

fn failed(task: &TaskView, code: i32) -> bool {
    task.state == TaskState::Dead(TaskOutcome::Failed(ExitClass::Code(code)))
}

/// Submits a job of shell scripts; `SHARED` is the test's folder.
pub fn submit(folder: &Folder, address: &str, job: &str, count: u32, script: &str, more: &str) {
    let spec = serde_json::json!({
        "name": job,
        "count": count,
        "priority": 100,
        "restart": { "max_failures": 0, "backoff": 1, "backoff_max": 1 },
        "task": {
            "limits": { "cpu": "10m", "ram": 64 << 20 },
            // Attempts run as different users, and write to the same files.
            "command": ["sh", "-c", format!("umask 0; {script}")],
            "env": { "SHARED": folder.path("") },
            "notice": 5000,
        },
    });
    let mut spec = spec;
    let more: serde_json::Value = serde_json::from_str(more).expect("JSON");
    for (name, value) in more.as_object().expect("an object") {
        spec[name] = value.clone();
    }
    let file = folder.path(&format!("{job}.json"));
    fs::write(&file, spec.to_string()).unwrap();
    stdout_of(&["--master", address, "run", &file]);
}

fn pids(folder: &Folder, name: &str) -> Vec<u32> {
    let text = fs::read_to_string(folder.path(name)).unwrap_or_default();
    text.lines().map(|line| line.parse().expect("a number")).collect()
}

/// Whether the process runs; one that has exited and waits to be reaped does not.
pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with(['Z', 'X']))
        && !stat.is_empty()
}

/// Waits for the end of a process that is not our child.
pub fn wait_gone(pid: u32) {
    let tail = Command::new("tail").args([&format!("--pid={pid}"), "-f", "/dev/null"]).status();
    assert!(tail.expect("tail runs").success());
}

pub fn kill(signal: &str, pid: u32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

pub fn make_fifo(path: &str) {
    assert!(Command::new("mkfifo").args(["-m", "666", path]).status().unwrap().success());
}

/// A program that prints its pid, waits to be released and exits with its own code.
const WAITING_SCRIPT: &str = r#"echo $$ >> "$SHARED/pid$CELL_INDEX"
    read word < "$SHARED/go$CELL_INDEX"; exit $((10 + CELL_INDEX))"#;

/// The shim of the task with that pid.
fn parent(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_program_runs_with_what_it_was_told_and_its_exit_code_is_known() {
    let folder = Folder::new();
    let (running, address) = dev(&folder);
    let script = r#"echo "$CELL_USER $CELL_JOB $CELL_INDEX $CELL_ATTEMPT $CELL_MACHINE" > told
        test "$CELL_PORTS" = "$CELL_PORT0" && cmp -s told "$CELL_DIR/told" || exit 4
        test "$(cat "$CELL_PORTS_FILE")" = "$CELL_PORT0" || exit 5
        grep -q '^NoNewPrivs:.1$' /proc/self/status && test "$(ulimit -c)" = 0 || exit 6
        test "$(cat /proc/self/oom_score_adj)" -gt -900 || exit 7
        cp told "$SHARED/told"; exit 3"#;
    let spec = format!(
        r#"{{ "task": {{ "limits": {{ "cpu": "10m", "ram": 67108864 }}, "ports": 1,
            "command": ["sh", "-c", {}], "env": {{ "SHARED": "{}" }} }} }}"#,
        serde_json::Value::from(script),
        folder.path(""),
    );
    submit(&folder, &address, "three", 1, script, &spec);
    wait(&address, "three", |task| failed(task, 3));
    assert_eq!(fs::read_to_string(folder.path("told")).unwrap(), "dev three 0 1 local\n");
    let displayed = stdout_of(&["--master", &address, "job", "status", "dev/three"]);
    assert!(displayed.contains("exit code 3"), "{displayed}");
    submit(
        &folder,
        &address,
        "absent",
        1,
        "",
        r#"{ "task": { "limits": { "cpu": "1m", "ram": 67108864 },
        "command": ["/absent/program"] } }"#,
    );
    let could_not = TaskState::Dead(TaskOutcome::Failed(ExitClass::CouldNotStart));
    wait(&address, "absent", |task| task.state == could_not);
    running.stop();
}

#[test]
fn a_killed_service_comes_back_and_a_stopped_one_is_warned_and_leaves_nobody() {
    let folder = Folder::new();
    let (running, address) = dev(&folder);
    // The child is in another session, to try to escape.
    let script = r#"setsid sleep 1000 & echo $! >> "$SHARED/strays"
        trap 'echo warned >> "$SHARED/warned"; exit 0' TERM
        echo $$ >> "$SHARED/pid"; while :; do read word < "$SHARED/never"; done"#;
    make_fifo(&folder.path("never"));
    let forever = r#"{ "restart": { "backoff": 1, "backoff_max": 1 } }"#;
    submit(&folder, &address, "web", 1, script, forever);
    wait(&address, "web", is_running_attempt(1));
    // The pid is written after the start has been reported.
    let first = first_line(&folder, "pid");
    kill("-KILL", first);
    wait(&address, "web", is_running_attempt(2));
    let all = |name: &str| pids(&folder, name);
    assert!(!is_alive(first) && !is_alive(all("strays")[0]));
    assert!(!PathBuf::from(folder.path("warned")).exists());
    while all("pid").len() < 2 {
        std::thread::yield_now();
    }
    stdout_of(&["--master", &address, "job", "stop", "dev/web"]);
    wait(&address, "web", |task| task.state == TaskState::Dead(TaskOutcome::Killed));
    assert_eq!(fs::read_to_string(folder.path("warned")).unwrap(), "warned\n");
    let described = stdout_of(&["--master", &address, "describe", "dev/web/0"]);
    assert!(described.contains("\n  warned, left within its notice\n"), "{described}");
    let explained = stdout_of(&["--master", &address, "explain", "dev/web/0"]);
    assert!(explained.contains("(warned, left within its notice)"), "{explained}");
    assert!(all("pid").into_iter().chain(all("strays")).all(|pid| !is_alive(pid)));
    running.stop();
}

/// The shim runs as root until it starts the program, and its loader must not use the job's
/// environment.
#[test]
fn the_environment_of_a_job_is_its_programs_alone() {
    let folder = Folder::new();
    let (running, address) = dev(&folder);
    let more = serde_json::json!({ "task": {
        "limits": { "cpu": "10m", "ram": 67_108_864 }, "command": ["/bin/true"],
        "env": { "LD_PRELOAD": "/absent/library.so" }, "notice": 0,
    }});
    submit(&folder, &address, "preload", 1, "", &more.to_string());
    wait(&address, "preload", |task| task.state == TaskState::Dead(TaskOutcome::Finished));
    let printed = stdout_of(&["--master", &address, "logs", "--stderr", "dev/preload/0"]);
    // Only the program's loader complains.
    assert_eq!(printed.matches("/absent/library.so").count(), 1, "{printed}");
    running.stop();
}

/// The name of such a process in `/proc` is not valid UTF-8.
#[test]
fn a_program_whose_name_is_no_text_and_that_hears_no_warning_is_killed_all_the_same() {
    let folder = Folder::new();
    let (running, address) = dev(&folder);
    let script = r#"odd="$(printf 'a\377b')"; cp "$(command -v sleep)" "$odd"; trap '' TERM
        "./$odd" 1000 & echo $! >> "$SHARED/pids"; echo $$ >> "$SHARED/pids"; exec "./$odd" 1000"#;
    let more = serde_json::json!({ "task": {
        "limits": { "cpu": "10m", "ram": 64 << 20 }, "command": ["sh", "-c", script],
        "env": { "SHARED": folder.path("") }, "notice": 200,
    }});
    submit(&folder, &address, "odd", 1, script, &more.to_string());
    wait(&address, "odd", is_running_attempt(1));
    while pids(&folder, "pids").len() < 2 {
        std::thread::yield_now();
    }
    stdout_of(&["--master", &address, "job", "stop", "dev/odd"]);
    wait(&address, "odd", |task| task.state == TaskState::Dead(TaskOutcome::Killed));
    for pid in pids(&folder, "pids") {
        assert!(fs::metadata(format!("/proc/{pid}")).is_err(), "{pid} is left");
    }
    let described = stdout_of(&["--master", &address, "describe", "dev/odd/0"]);
    assert!(described.contains("\n  warned, killed when its notice was over\n"), "{described}");
    running.stop();
}

pub fn first_line(folder: &Folder, name: &str) -> u32 {
    loop {
        let text = fs::read_to_string(folder.path(name)).unwrap_or_default();
        if text.ends_with('\n') {
            return pids(folder, name)[0];
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_cell_that_is_stopped_stops_its_tasks_and_one_that_is_killed_finds_them_again() {
    let folder = Folder::new();
    make_fifo(&folder.path("go0"));
    let (running, address) = dev(&folder);
    submit(&folder, &address, "waits", 1, WAITING_SCRIPT, "{}");
    wait(&address, "waits", is_running_attempt(1));
    let pid = first_line(&folder, "pid0");
    running.kill();
    assert!(is_alive(pid));
    let (running, address) = dev(&folder);
    wait(&address, "waits", is_running_attempt(1));
    assert!(is_alive(pid));
    running.stop();
    assert!(!is_alive(pid));
    let (running, address) = dev(&folder);
    wait(&address, "waits", is_running_attempt(2));
    fs::write(folder.path("go0"), "go\n").unwrap();
    wait(&address, "waits", |task| failed(task, 10));
    running.stop();
}

/// Master and agent as separate processes.
pub struct SplitCell {
    pub folder: Folder,
    pub address: String,
}

impl SplitCell {
    pub fn new() -> SplitCell {
        let folder = Folder::new();
        let data = folder.path("agent");
        fs::DirBuilder::new().mode(0o711).create(&data).unwrap();
        let config = format!("name = \"m1\"\ndata_dir = {data:?}\ndriver = \"process\"\n");
        fs::write(folder.path("agent.toml"), config).unwrap();
        SplitCell { folder, address: free_address() }
    }

    pub fn master(&self) -> Running {
        let data = self.folder.path("data");
        let args = ["master", "start", "--dev", "--data-dir", &data, "--listen", &self.address];
        let running = Running::spawn_args(&args);
        running.address();
        running
    }

    pub fn agent(&self) -> Running {
        let config = self.folder.path("agent.toml");
        let running = Running::spawn_args(&[
            "--master",
            &self.address,
            "agent",
            "start",
            "--config",
            &config,
        ]);
        running.wait_for_line("cell agent of m1");
        running
    }

    /// Starts tasks that wait to be released, and returns their pids.
    pub fn tasks(&self, count: u32) -> Vec<u32> {
        for index in 0..count {
            make_fifo(&self.folder.path(&format!("go{index}")));
        }
        submit(&self.folder, &self.address, "waits", count, WAITING_SCRIPT, "{}");
        wait(&self.address, "waits", is_running_attempt(1));
        (0..count).map(|index| first_line(&self.folder, &format!("pid{index}"))).collect()
    }

    /// Releases the tasks and waits until their shims have exited too: their results are on disk.
    fn end(&self, pids: &[u32]) {
        let shims: Vec<u32> = pids.iter().map(|pid| parent(*pid)).collect();
        for index in 0..pids.len() {
            fs::write(self.folder.path(&format!("go{index}")), "go\n").unwrap();
        }
        shims.into_iter().for_each(wait_gone);
    }

    fn check_ends(&self) {
        let ended = |task: &TaskView| {
            task.attempt == 1 && failed(task, 10 + i32::try_from(task.index).unwrap())
        };
        wait(&self.address, "waits", ended);
    }
}

#[test]
fn an_agent_that_is_killed_again_and_again_changes_no_pid_and_loses_no_exit_code() {
    let cell = SplitCell::new();
    let master = cell.master();
    let mut agent = cell.agent();
    let pids = cell.tasks(5);
    for _ in 0..10 {
        agent.kill();
        assert!(pids.iter().all(|pid| is_alive(*pid)));
        agent = cell.agent();
    }
    for (index, pid) in pids.iter().enumerate() {
        assert_eq!(first_line(&cell.folder, &format!("pid{index}")), *pid);
        assert_eq!(self::pids(&cell.folder, &format!("pid{index}")).len(), 1, "started twice");
    }
    agent.kill();
    cell.end(&pids);
    let agent = cell.agent();
    cell.check_ends();
    agent.stop();
    master.stop();
}

#[test]
fn tasks_run_and_end_while_the_masters_are_away() {
    let cell = SplitCell::new();
    let master = cell.master();
    let agent = cell.agent();
    let pids = cell.tasks(2);
    master.kill();
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    cell.end(&pids);
    let master = cell.master();
    cell.check_ends();
    agent.stop();
    master.stop();
}

#[test]
fn a_task_whose_shim_is_killed_is_swept_away_and_placed_again() {
    let cell = SplitCell::new();
    let master = cell.master();
    let agent = cell.agent();
    let pids = cell.tasks(1);
    kill("-KILL", parent(pids[0]));
    wait(&cell.address, "waits", is_running_attempt(2));
    assert!(!is_alive(pids[0]));
    // Two agents in one folder would both start the tasks that are assigned.
    let config = cell.folder.path("agent.toml");
    let second = ["--master", &cell.address, "agent", "start", "--config", &config];
    let rejected = support::cell(&second);
    assert_eq!(rejected.status.code(), Some(1));
    assert!(support::text(&rejected.stderr).contains("another agent runs"));
    stdout_of(&["--master", &cell.address, "job", "stop", "dev/waits"]);
    wait(&cell.address, "waits", |task| task.state == TaskState::Dead(TaskOutcome::Killed));
    agent.stop();
    master.stop();
}

#[test]
fn health_decides_when_a_task_runs_and_whether_it_is_started_again() {
    let folder = Folder::new();
    let (running, address) = dev(&folder);
    let spec = |start_period: u64| {
        let task = serde_json::json!({
            "limits": { "cpu": "10m", "ram": 64 << 20 },
            "command": ["sh", "-c", "umask 0; echo $$ >> \"$SHARED/pid\"; exec sleep 1000"],
            "env": { "SHARED": folder.path("") },
            "files": { "conf/wanted": "well" },
            "health": {
                "probe": { "command": ["sh", "-c",
                    "test \"$(cat \"$SHARED/state\")\" = \"$(cat conf/wanted)\""] },
                "interval": 100, "start_period": start_period, "failures": 2,
            },
        });
        let restart = serde_json::json!({ "backoff": 1, "backoff_max": 1 });
        serde_json::json!({ "task": task, "restart": restart }).to_string()
    };
    fs::write(folder.path("state"), "ill").unwrap();
    submit(&folder, &address, "web", 1, "", &spec(600_000));
    let first = first_line(&folder, "pid");
    // Started, but not running before it is healthy.
    wait(&address, "web", |task| task.state == TaskState::Assigned);
    fs::write(folder.path("state"), "well").unwrap();
    wait(&address, "web", is_running_attempt(1));
    fs::write(folder.path("state"), "ill").unwrap();
    wait(&address, "web", |task| task.attempt == 2);
    assert!(!is_alive(first));
    fs::write(folder.path("state"), "well").unwrap();
    wait(&address, "web", is_running_attempt(2));
    running.stop();
}

#[test]
fn output_is_shown_and_followed_to_the_end_and_a_task_that_runs_too_long_is_killed() {
    let folder = Folder::new();
    make_fifo(&folder.path("go"));
    let (running, address) = dev(&folder);
    let script = r#"echo one; echo problem >&2; read word < "$SHARED/go"; echo two; sleep 1000"#;
    let task = serde_json::json!({ "limits": { "cpu": "10m", "ram": 64 << 20 }, "max_run": 1500,
        "command": ["sh", "-c", script], "env": { "SHARED": folder.path("") } });
    let spec = serde_json::json!({ "task": task }).to_string();
    submit(&folder, &address, "talks", 1, script, &spec);
    wait(&address, "talks", is_running_attempt(1));
    let args = ["--master", &address, "logs", "dev/talks/0", "--follow"];
    let follower = Running::spawn_args(&args);
    follower.wait_for_line("one");
    fs::write(folder.path("go"), "go\n").unwrap();
    follower.wait_for_line("two");
    let timed_out = TaskState::Dead(TaskOutcome::Failed(ExitClass::TimedOut));
    wait(&address, "talks", |task| task.state == timed_out);
    follower.wait_success();
    let logs =
        |more: &[&str]| stdout_of(&[&["--master", &address, "logs", "dev/talks"], more].concat());
    assert_eq!(logs(&["--stdout"]), "one\ntwo\n");
    assert_eq!(logs(&["--stderr"]), "problem\n");
    // The two streams are read by two readers: what comes at the same time may come either way.
    let both = logs(&[]);
    assert!(
        both.ends_with("two\n") && both.contains("one\n") && both.contains("problem\n"),
        "{both}"
    );
    assert_eq!(logs(&["--tail", "1"]), "two\n");
    assert_eq!(logs(&["--since", "1h"]), both);
    assert_eq!(logs(&["--since", "2100-01-01T00:00:00Z"]), "");
    let timed = logs(&["--timestamps"]);
    assert!(timed.contains("Z stderr problem\n") && timed.contains("Z two\n"), "{timed}");
    let absent = support::cell(&["--master", &address, "logs", "dev/talks", "--attempt", "7"]);
    assert!(support::text(&absent.stderr).contains("has been placed once"), "{absent:?}");
    running.stop();
}

/// A shim starts an attempt once, whoever starts the shim and however often.
#[test]
fn a_shim_begins_once() {
    let folder = Folder::new();
    let shim = || {
        let mut command = Command::new(cellwright_tests::binary::cell());
        command.args(["shim", &folder.path("")]).stdout(Stdio::null());
        command
    };
    fs::create_dir(folder.path("logs")).unwrap();
    let launch = serde_json::json!({
        "name": "u/j/0",
        "command": ["sh", "-c", "echo once; echo twice >&2; exit 7"],
        "env": [],
        "directory": folder.path(""),
        "logs": { "file_bytes": 4096, "files": 2, "rate": 4096 },
    });
    let launch: Launch = serde_json::from_value(launch).unwrap();
    let path = PathBuf::from(folder.path("launch"));
    cellwright_agent::record::write(&path, &launch, cellwright_agent::record::Durability::Process)
        .unwrap();
    let both = [shim().spawn().unwrap(), shim().spawn().unwrap()];
    for mut one in both {
        assert!(one.wait().unwrap().success());
    }
    assert!(shim().status().unwrap().success());
    assert_eq!(fs::read_to_string(folder.path("logs/stdout")).unwrap(), "once\n");
    assert_eq!(fs::read_to_string(folder.path("logs/stderr")).unwrap(), "twice\n");
    let exit = cellwright_agent::shim::exit_of(&folder.0).unwrap().unwrap();
    assert_eq!((exit.code, exit.signal), (Some(7), None));
}

/// Submits a job whose task has a port, and returns the port that it prints.
fn given_port(folder: &Folder, address: &str, job: &str) -> u16 {
    let spec = serde_json::json!({ "task": {
        "limits": { "cpu": "10m", "ram": 64 << 20 }, "ports": 1,
        "command": ["sh", "-c", "exec sleep 1000"],
    }});
    submit(folder, address, job, 1, "", &spec.to_string());
    wait(address, job, is_running_attempt(1))[0].ports[0]
}

/// The port range of the cell's machine.
fn range_of(address: &str) -> serde_json::Value {
    let machines = support::json(&["--master", address, "machine", "ls", "-o", "json"]);
    machines[0]["spec"]["ports"].clone()
}

#[test]
fn two_cells_on_one_computer_give_different_ports() {
    let (one, other) = (Folder::new(), Folder::new());
    let ((first, address), (second, elsewhere)) = (dev(&one), dev(&other));
    let ports = (given_port(&one, &address, "web"), given_port(&other, &elsewhere, "web"));
    assert_ne!(ports.0, ports.1);
    let ranges = (range_of(&address), range_of(&elsewhere));
    assert_ne!(ranges.0, ranges.1);
    first.stop();
    second.stop();
}
