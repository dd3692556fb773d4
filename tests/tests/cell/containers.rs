//! Tasks in containers and cgroups, tested with the real binary: their view of the system, their
//! limits, their exits, and that nothing of them is left. These tests need root, and print that
//! they are skipped without it; root without a container runtime is a failure.

use crate::agent::{is_alive, is_running_attempt, make_fifo, wait};
use crate::support::{Folder, Running, free_address, json, stdout_of};
use cellwright_agent::cgroups::base_name;
use cellwright_api::types::TaskView;
use cellwright_cell::task::{ExitClass, TaskOutcome, TaskState};
use serde_json::{Value, json as value};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Whether container tests can run: as root, with a container runtime. Otherwise they are skipped
/// if `CELL_TEST_SKIP` is set, or if there is no root and `CI` is not set.
pub fn can_run(test: &str) -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|about| about.uid() == 0);
    let lacks = match Command::new("runc").arg("--version").output() {
        _ if !root => "root".to_owned(),
        Ok(_) => return true,
        Err(why) => format!("runc: {why}"),
    };
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let may = is_set("CELL_TEST_SKIP") || !root && !is_set("CI");
    assert!(may, "{test} needs {lacks}; scripts/install-tools.sh test");
    println!("skipped {test}: needs {lacks}");
    false
}

/// A one-process cell whose machine runs tasks with the given driver.
pub struct RootCell {
    pub folder: Folder,
    pub address: String,
    running: Option<Running>,
}

impl RootCell {
    pub fn open(driver: &str) -> RootCell {
        let folder = Folder::new();
        let data = folder.path("data");
        let args = ["dev", "--data-dir", &data, "--listen", "127.0.0.1:0", "--driver", driver];
        let running = Running::spawn_args(&args);
        let address = running.address();
        RootCell { folder, address, running: Some(running) }
    }

    /// Submits a job of one task that runs `script` once; `more` is merged into its `task`.
    pub fn run(&self, job: &str, script: &str, more: Value) {
        submit(&self.folder, &self.address, job, script, &more);
    }

    pub fn end_state(&self, job: &str) -> TaskState {
        wait_end(&self.address, job)
    }

    pub fn log(&self, job: &str, stream: &[&str]) -> String {
        let name = format!("dev/{job}/0");
        stdout_of(&[&["--master", &self.address, "logs", &name][..], stream].concat())
    }

    /// The cgroup folders that this cell's machine still has.
    pub fn groups(&self) -> Vec<PathBuf> {
        let data = self.folder.0.join("data/agent").canonicalize().unwrap();
        let base = base_name(&data);
        let mut found = Vec::new();
        let mounts = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(|at| Path::new(at).join(&base));
        for entry in mounts.iter().flat_map(fs::read_dir).flatten().flatten() {
            if entry.path().is_dir() {
                found.push(entry.path());
            }
        }
        found
    }

    pub fn stop(mut self) {
        if let Some(running) = self.running.take() {
            running.stop();
        }
        assert_eq!(self.groups(), Vec::<PathBuf>::new(), "groups are left");
        let base = base_name(&self.folder.0.join("data/agent").canonicalize().unwrap());
        for hierarchy in ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"] {
            let around = Path::new(hierarchy).join(&base);
            assert!(!around.exists(), "the group around all others is left in {hierarchy}");
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&self.folder.path("")), "mounts are left:\n{mounts}");
    }
}

impl Drop for RootCell {
    fn drop(&mut self) {
        // A test that failed half-way leaves no tasks behind: on a shutdown signal, the cell stops
        // them.
        if let Some(running) = self.running.take() {
            let _ = Command::new("kill").args(["-TERM", &running.pid().to_string()]).status();
            running.wait_success();
        }
    }
}

fn submit(folder: &Folder, address: &str, job: &str, script: &str, more: &Value) {
    let mut task = value!({
        "limits": { "cpu": "100m", "ram": 64 << 20 },
        "command": ["sh", "-c", script],
        "notice": 60000,
    });
    for (name, value) in more.as_object().expect("an object") {
        task[name] = value.clone();
    }
    let once = value!({ "max_failures": 0, "backoff": 1, "backoff_max": 1 });
    let spec = value!({ "name": job, "priority": 100, "restart": once, "task": task });
    let file = folder.path(&format!("{job}.json"));
    fs::write(&file, spec.to_string()).unwrap();
    stdout_of(&["--master", address, "run", &file]);
}

fn wait_end(address: &str, job: &str) -> TaskState {
    wait(address, job, |task| matches!(task.state, TaskState::Dead(_)))[0].state
}

pub fn failed(exit: ExitClass) -> TaskState {
    TaskState::Dead(TaskOutcome::Failed(exit))
}

#[test]
fn root_in_a_container_sees_what_it_was_given_and_not_the_machine() {
    if !can_run("given") {
        return;
    }
    let lab = RootCell::open("container");
    let folder = lab.folder.0.join("server");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("data"), "packed").unwrap();
    let push = ["--master", &lab.address, "package", "push", folder.to_str().unwrap(), "--name"];
    let pushed = json(&[&push[..], &["server", "-o", "json"]].concat());
    let package = value!({
        "name": "server", "digest": pushed["digest"], "bytes": pushed["bytes"]
    });
    let script = format!(
        r#"echo "$(id -u) $$ $(pwd) $CELL_DIR $HOME $(hostname)"; cat conf/app; echo
        test "$(cat $CELL_PORTS_FILE)" = "$CELL_PORT0" && echo ports
        cat $CELL_PACKAGES/server/data; echo
        cat $CELL_SECRETS/key; stat -c ' %a %u' $CELL_SECRETS/key
        ls /proc | grep -c '^[0-9]' | tr '1-5' y
        echo w > kept && cat kept; echo t > /tmp/t && cat /tmp/t
        test -e {} && echo sees the machine
        (echo x > /usr/x) 2> /dev/null && echo wrote
        (echo x > $CELL_PACKAGES/server/data) 2> /dev/null && echo wrote
        cat /etc/shadow 2> /dev/null && echo shadow
        mount -t tmpfs x /tmp 2> /dev/null && echo mounted
        exit 3"#,
        lab.folder.path("data")
    );
    let more = value!({
        "user": "root", "ports": 1, "packages": [package],
        "files": { "conf/app": "setting" }, "secrets": { "key": "rosebud" },
    });
    lab.run("given", &script, more);
    let state = lab.end_state("given");
    let said_all = lab.log("given", &[]);
    assert_eq!(state, failed(ExitClass::Code(3)), "{said_all}{}", lab.log("given", &["--stderr"]));
    let want = "0 1 /work /work /work given-0\nsetting\nports\npacked\nrosebud 400 0\ny\nw\nt\n";
    assert_eq!(said_all, want);
    let displayed =
        stdout_of(&["--master", &lab.address, "job", "status", "dev/given", "-o", "json"]);
    assert!(displayed.contains("(hidden)") && !displayed.contains("rosebud"), "{displayed}");
    lab.stop();
}

#[test]
fn a_package_is_the_root_and_an_own_network_has_nothing() {
    if !can_run("root") {
        return;
    }
    let lab = RootCell::open("container");
    let root = lab.folder.0.join("root");
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::copy("/bin/busybox", root.join("bin/busybox")).expect("busybox is there");
    fs::set_permissions(root.join("bin/busybox"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("busybox", root.join("bin/sh")).unwrap();
    let push = ["--master", &lab.address, "package", "push", root.to_str().unwrap(), "--name"];
    let pushed = json(&[&push[..], &["small", "-o", "json"]].concat());
    let more = value!({
        "packages": [{ "name": "small", "digest": pushed["digest"], "bytes": pushed["bytes"] }],
        "isolation": { "root": "small", "network": "own" },
        "command": ["/bin/sh", "-c",
            "b=/bin/busybox; $b ls /usr 2>&1; $b id -u; $b tail -n +3 /proc/net/dev | $b wc -l
            $b cat /sys/class/net/lo/flags"],
    });
    lab.run("small", "", more);
    let state = lab.end_state("small");
    let stderr = lab.log("small", &["--stderr"]);
    assert_eq!(state, TaskState::Dead(TaskOutcome::Finished), "{stderr}");
    assert_eq!(lab.log("small", &[]), "ls: /usr: No such file or directory\n65534\n1\n0x9\n");
    let borrows = value!([{ "source": "/etc", "target": "/host" }]);
    lab.run("borrows", "true", value!({ "isolation": { "volumes": borrows } }));
    let why = stdout_of(&["--master", &lab.address, "explain", "dev/borrows/0"]);
    assert!(why.contains("does not lend volume /etc."), "{why}");
    lab.stop();
}

/// The limits of a task are the same in a container and as a plain process.
fn limits_hold(driver: &str) {
    let lab = RootCell::open(driver);
    lab.run("hog", "exec tail /dev/zero", value!({}));
    assert_eq!(lab.end_state("hog"), failed(ExitClass::OutOfMemory), "{driver}");
    let stderr = lab.log("hog", &["--stderr"]);
    assert!(stderr.contains("killed for memory: at its own limit"), "{stderr}");
    let many = value!({ "isolation": { "processes": 24 } });
    let bomb = "(while :; do setsid sleep 1000 & done) 2> /dev/null; echo full; exec sleep 1000";
    lab.run("bomb", bomb, many);
    wait(&lab.address, "bomb", is_running_attempt(1));
    while !lab.log("bomb", &[]).contains("full") {
        std::thread::yield_now();
    }
    let count = |group: &PathBuf| -> u32 {
        fs::read_to_string(group.join("pids.current")).unwrap().trim().parse().unwrap()
    };
    let counts: Vec<u32> = lab.groups().iter().map(count).collect();
    assert!(counts.iter().all(|count| (10..=24).contains(count)), "{driver}: {counts:?}");
    stdout_of(&["--master", &lab.address, "job", "stop", "dev/bomb"]);
    assert_eq!(lab.end_state("bomb"), TaskState::Dead(TaskOutcome::Killed));
    assert_eq!(lab.groups(), Vec::<PathBuf>::new(), "{driver}");
    let little = value!({ "limits": { "cpu": "100m", "ram": 64 << 20, "disk": 1 << 20 } });
    lab.run("files", "head -c 8388608 /dev/zero > big; exec sleep 1000", little);
    assert_eq!(lab.end_state("files"), failed(ExitClass::OverDiskLimit), "{driver}");
    let stderr = lab.log("files", &["--stderr"]);
    assert!(stderr.contains("killed: disk: used"), "{stderr}");
    lab.stop();
}

#[test]
fn limits_hold_in_a_container() {
    if can_run("limits in a container") {
        limits_hold("container");
    }
}

#[test]
fn limits_hold_for_a_plain_process() {
    if can_run("limits of a process") {
        limits_hold("process");
    }
}

/// A program killed by its own seccomp filter is reported with SIGSYS; so is a system call of
/// another architecture, for which the container's filter kills the program.
fn filters_are_told_apart(lab: &RootCell, driver: &str) {
    // PR_SET_NO_NEW_PRIVS, then PR_SET_SECCOMP with a filter that kills on any call.
    let own = r#"exec perl -e '$f = pack("SCCL", 6, 0, 0, 0x80000000); $p = pack("Sx6P", 1, $f);
        syscall(157, 38, 1, 0, 0, 0); syscall(157, 22, 2, $p); exit 3'"#;
    lab.run("own", own, value!({}));
    assert_eq!(lab.end_state("own"), failed(ExitClass::Signal(31)), "{driver}");
    let stderr = lab.log("own", &["--stderr"]);
    assert_eq!(stderr, "[cell: killed by a filter of system calls]\n", "{driver}");
    if driver == "container" {
        // `getpid` by the x32 ABI.
        lab.run("foreign", "exec perl -e 'syscall(0x40000027); exit 3'", value!({}));
        assert_eq!(lab.end_state("foreign"), failed(ExitClass::Signal(9)));
        let stderr = lab.log("foreign", &["--stderr"]);
        assert!(stderr.contains("a call of another architecture"), "{stderr}");
    }
}

/// The kernel does not deliver fatal signals from inside to the first process of a container; the
/// kill is still a failure, and reported as a kill.
#[test]
fn a_kill_is_told_as_a_kill_and_not_taken_for_want_of_memory() {
    if !can_run("kills") {
        return;
    }
    for driver in ["container", "process"] {
        let lab = RootCell::open(driver);
        lab.run("itself", "kill -9 $$; exit 0", value!({}));
        assert_eq!(lab.end_state("itself"), failed(ExitClass::Signal(9)), "{driver}");
        let stderr = lab.log("itself", &["--stderr"]);
        let by_filter = stderr.starts_with("[cell: killed by a filter of system calls: it sent");
        assert!(if driver == "container" { by_filter } else { stderr.is_empty() }, "{stderr}");
        if cfg!(target_arch = "x86_64") {
            filters_are_told_apart(&lab, driver);
        }
        // A signal that it could handle and does not is not delivered.
        lab.run("warns", "kill -TERM $$; exit 0", value!({}));
        let goes_on = TaskState::Dead(TaskOutcome::Finished);
        let ends = if driver == "container" { goes_on } else { failed(ExitClass::Signal(15)) };
        assert_eq!(lab.end_state("warns"), ends, "{driver}");
        lab.run("child", "sh -c 'kill -9 $$'; exit $?", value!({}));
        assert_eq!(lab.end_state("child"), failed(ExitClass::Code(137)), "{driver}");
        lab.run("stays", "exec sleep 1000", value!({}));
        wait(&lab.address, "stays", is_running_attempt(1));
        let inside =
            |group: &PathBuf| fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        let procs: String = lab.groups().iter().map(inside).collect();
        let pids: Vec<&str> = procs.lines().collect();
        let [pid] = pids[..] else { panic!("{driver}: one process stays: {pids:?}") };
        assert!(Command::new("kill").args(["-KILL", pid]).status().unwrap().success());
        assert_eq!(lab.end_state("stays"), failed(ExitClass::Signal(9)), "{driver}");
        let stderr = lab.log("stays", &["--stderr"]);
        assert!(!stderr.contains("memory"), "{driver}: {stderr}");
        lab.stop();
    }
}

#[test]
fn a_container_outlives_its_agent_and_its_exit_code_is_known() {
    if !can_run("outlives") {
        return;
    }
    let folder = Folder::new();
    let (data, shared, address) = (folder.path("agent"), folder.path("shared"), free_address());
    fs::create_dir_all(&shared).unwrap();
    make_fifo(&format!("{shared}/go"));
    let config = format!(
        "name = \"m1\"\ndata_dir = {data:?}\ndriver = \"container\"\nvolumes = [{shared:?}]"
    );
    fs::write(folder.path("agent.toml"), config).unwrap();
    let masters = folder.path("masters");
    let master = Running::spawn_args(&[
        "master",
        "start",
        "--dev",
        "--data-dir",
        &masters,
        "--listen",
        &address,
    ]);
    master.address();
    let agent = || {
        let config = folder.path("agent.toml");
        let running =
            Running::spawn_args(&["--master", &address, "agent", "start", "--config", &config]);
        running.wait_for_line("cell agent of m1");
        running
    };
    let mut running = agent();
    let volume = value!([{ "source": shared, "target": "/shared", "writable": true }]);
    let as_root = value!({ "user": "root", "isolation": { "volumes": volume.clone() } });
    submit(&folder, &address, "rooted", "true", &as_root);
    assert_eq!(wait_end(&address, "rooted"), failed(ExitClass::CouldNotStart));
    let more = value!({ "isolation": { "volumes": volume } });
    submit(&folder, &address, "waits", "read word < /shared/go; exit 7", &more);
    wait(&address, "waits", is_running_attempt(1));
    let pid = || -> u32 {
        let all = fs::read_dir(format!("{data}/containers")).unwrap().flatten();
        let pids = all.filter_map(|entry| fs::read_to_string(entry.path().join("pid")).ok());
        pids.last().expect("a container").trim().parse().unwrap()
    };
    let first = pid();
    for _ in 0..3 {
        running.kill();
        assert!(is_alive(first));
        running = agent();
        wait(&address, "waits", is_running_attempt(1));
        assert_eq!(pid(), first);
    }
    running.kill();
    fs::write(format!("{shared}/go"), "go\n").unwrap();
    let tail = Command::new("tail").args([&format!("--pid={first}"), "-f", "/dev/null"]).status();
    assert!(tail.expect("tail runs").success());
    let running = agent();
    assert_eq!(wait_end(&address, "waits"), failed(ExitClass::Code(7)));
    let displayed = stdout_of(&["--master", &address, "machine", "show", "m1"]);
    assert!(displayed.contains("driver") && displayed.contains("container"), "{displayed}");
    running.stop();
    master.stop();
}

#[test]
fn tasks_of_an_alloc_share_its_folder_and_a_port_that_was_not_given_is_seen() {
    if !can_run("alloc") {
        return;
    }
    let lab = RootCell::open("container");
    let set = value!({
        "name": "room", "kind": "alloc_set", "priority": 100,
        "task": { "limits": { "cpu": "300m", "ram": 256 << 20 }, "command": [] },
    });
    let file = lab.folder.path("room.json");
    fs::write(&file, set.to_string()).unwrap();
    stdout_of(&["--master", &lab.address, "run", &file]);
    let inside = |job: &str, script: &str| {
        let task = value!({
            "limits": { "cpu": "100m", "ram": 64 << 20 }, "command": ["sh", "-c", script],
        });
        let spec = value!({
            "name": job, "priority": 100, "task": task,
            "alloc_set": { "user": "dev", "job": "room" },
            "restart": { "max_failures": 0, "backoff": 1, "backoff_max": 1 },
        });
        let file = lab.folder.path(&format!("{job}.json"));
        fs::write(&file, spec.to_string()).unwrap();
        stdout_of(&["--master", &lab.address, "run", &file]);
    };
    inside("writes", "echo shared > $CELL_ALLOC_DIR/word");
    assert_eq!(lab.end_state("writes"), TaskState::Dead(TaskOutcome::Finished));
    let port = free_address().rsplit(':').next().unwrap().to_owned();
    inside("reads", &format!("cat $CELL_ALLOC_DIR/word; exec busybox nc -l -p {port}"));
    wait(&lab.address, "reads", is_running_attempt(1));
    let nested = lab.groups().iter().any(|group| {
        fs::read_dir(group)
            .unwrap()
            .flatten()
            .any(|inner| inner.file_name().to_string_lossy().starts_with("task-"))
    });
    assert!(nested, "the group of the task is in that of the alloc");
    let machine = || stdout_of(&["--master", &lab.address, "machine", "show", "local"]);
    while !(machine().contains("ungiven-ports") && machine().contains(&port)) {
        std::thread::yield_now();
    }
    assert_eq!(lab.log("reads", &[]), "shared\n");
    stdout_of(&["--master", &lab.address, "job", "stop", "dev/reads"]);
    wait(&lab.address, "reads", |task: &TaskView| {
        task.state == TaskState::Dead(TaskOutcome::Killed)
    });
    while machine().contains("ungiven-ports") {
        std::thread::yield_now();
    }
    stdout_of(&["--master", &lab.address, "job", "stop", "dev/room"]);
    wait(&lab.address, "room", |task: &TaskView| {
        task.state == TaskState::Dead(TaskOutcome::Killed)
    });
    lab.stop();
}
