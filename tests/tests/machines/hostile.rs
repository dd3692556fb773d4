//! Tasks that mean harm, in containers on real machines: bombs and hogs meet their own limits and
//! nobody else does, and root inside finds no way out. Each is looked at from outside: the groups,
//! the processes and the files of the machine say what became of it, not the task.

use cellwright_cell::task::{ExitClass, TaskOutcome, TaskState};
use cellwright_tests::machines::{Machines, MachinesPlan, is_alive, on, wait_until_gone};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A cell whose tasks run in containers; nothing where there can be none and that may be.
async fn contained() -> Option<Machines> {
    let runtime = Command::new("runc").arg("--version").output().is_ok();
    if !runtime {
        cellwright_tests::skip("there is no container runtime");
        return None;
    }
    // What a task uses is told at every poll.
    let changes = [("poll_interval = \"5s\"", "poll_interval = \"200ms\"")];
    let plan = MachinesPlan { changes: &changes, in_containers: true, ..Default::default() };
    Machines::launch_with(&plan).await
}

/// A job of one task on the first machine; `more` is merged into its `task`.
fn job(name: &str, script: &str, more: &Value) -> Value {
    let mut task = json!({
        "limits": { "cpu": 100, "ram": 64 << 20, "disk": 64 << 20 },
        "command": ["sh", "-c", script],
        "notice": 20_000,
    });
    for (name, value) in more.as_object().expect("an object") {
        task[name] = value.clone();
    }
    json!({
        "name": name, "count": 1, "priority": 100, "constraints": on(1), "task": task,
        "restart": { "max_failures": 0, "backoff": 1, "backoff_max": 1 },
    })
}

/// Runs a job's task and says the number of its first process.
async fn run(cell: &Machines, name: &str, script: &str, more: &Value) -> u32 {
    let before = first_processes(cell);
    cell.submit(&job(name, script, more)).await;
    cell.wait_until_running(name).await;
    let now = first_processes(cell);
    *now.difference(&before).next().expect("its container has a process")
}

/// The first process of every container of the first machine.
fn first_processes(cell: &Machines) -> BTreeSet<u32> {
    let entries = fs::read_dir(cell.data(1).join("containers")).into_iter().flatten().flatten();
    let texts = entries.filter_map(|entry| fs::read_to_string(entry.path().join("pid")).ok());
    texts.filter_map(|text| text.trim().parse().ok()).collect()
}

/// The folder of the control group that counts the processes of `pid`'s container.
fn group_of(pid: u32) -> PathBuf {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it lives");
    let line = |wanted: &str| {
        let mut found = text.lines().filter(|line| line.split(':').nth(1) == Some(wanted));
        let at = found.next().and_then(|line| line.splitn(3, ':').nth(2));
        at.map(|at| at.trim_start_matches('/'))
    };
    match line("pids") {
        Some(at) => Path::new("/sys/fs/cgroup/pids").join(at),
        None => Path::new("/sys/fs/cgroup").join(line("").expect("a group")),
    }
}

/// Whether the kernel has refused the group a process: a shell that is refused one ends, so a swarm
/// may have come and gone between two looks.
fn was_full(group: &Path) -> bool {
    let text = fs::read_to_string(group.join("pids.events")).unwrap_or_default();
    let refused = text.lines().find_map(|line| line.strip_prefix("max "));
    refused.is_some_and(|times| times.trim() != "0")
}

fn count(group: &Path) -> usize {
    let text = fs::read_to_string(group.join("pids.current")).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

fn failed(exit: ExitClass) -> TaskState {
    TaskState::Dead(TaskOutcome::Failed(exit))
}

async fn wait_for_state(cell: &Machines, job: &str, state: TaskState) {
    cell.wait_for_tasks(job, |task| matches!(task.state, TaskState::Dead(_))).await;
    let task = cell.tasks(job).await.remove(0);
    assert_eq!(task.state, state, "{job}");
}

/// Its neighbour is the same process as before, and runs.
async fn assert_untouched(cell: &Machines, pid: u32) {
    assert!(is_alive(pid));
    let tasks = cell.tasks("neighbour").await;
    assert!(tasks.iter().all(|task| task.state == TaskState::Running && task.attempt == 1));
}

const BOMB: &str = "(while :; do setsid sleep 1000 & done) 2> /dev/null; exec sleep 1000";
/// Many that each fork on: killing one makes room for another.
const SWARM: &str = r#"b() { while :; do setsid sh -c ': & sleep 0.01' & done; }
    (b 2> /dev/null & b 2> /dev/null & b) 2> /dev/null; exec sleep 1000"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bombs_and_hogs_meet_their_own_limits_and_nobody_else_does() {
    let Some(cell) = contained().await else { return };
    let neighbour = run(&cell, "neighbour", "exec sleep 1000", &json!({})).await;
    for (name, script) in [("bomb", BOMB), ("swarm", SWARM)] {
        let pid = run(&cell, name, script, &json!({ "isolation": { "processes": 64 } })).await;
        let group = group_of(pid);
        let is_full = || count(&group) > 55 || was_full(&group);
        cell.until("the bomb is full", async |_| is_full().then_some(())).await;
        assert!(count(&group) <= 64, "{name}");
        assert_untouched(&cell, neighbour).await;
        cell.stop(name).await;
        wait_for_state(&cell, name, TaskState::Dead(TaskOutcome::Killed)).await;
        // It is told dead when its group was seen empty; an empty group is removed.
        assert!(!group.exists() || count(&group) == 0, "{name}: {}", count(&group));
        assert!(!is_alive(pid));
    }
    run_out(&cell, "memory", "exec tail /dev/zero", ExitClass::OutOfMemory).await;
    assert_untouched(&cell, neighbour).await;
    let deep = "d=x; i=0; while [ $i -lt 70 ]; do mkdir $d; cd $d; i=$((i+1)); done
        head -c 90000000 /dev/zero > big; exec sleep 1000";
    let unlinked = "exec 3> big; rm big; head -c 90000000 /dev/zero >&3; exec sleep 1000";
    let plain = "head -c 90000000 /dev/zero > big; exec sleep 1000";
    for (name, script) in [("plain", plain), ("deep", deep), ("unlinked", unlinked)] {
        run_out(&cell, name, script, ExitClass::OverDiskLimit).await;
        assert_untouched(&cell, neighbour).await;
    }
    cell.until("what the hogs wrote is gone", async |cell| {
        let left = fs::read_dir(cell.data(1).join("trash")).ok()?.count();
        (left == 0).then_some(())
    })
    .await;
    cell.stop("neighbour").await;
    wait_until_gone(neighbour).await;
}

async fn run_out(cell: &Machines, name: &str, script: &str, exit: ExitClass) {
    cell.submit(&job(name, script, &json!({}))).await;
    wait_for_state(cell, name, failed(exit)).await;
}

/// What root in the container tries; each would leave a trace outside, or says `got`.
fn escapes(neighbour: u32, agent: u32) -> String {
    let tries = [
        "mount -t tmpfs none /tmp".to_owned(),
        "mount -t cgroup none /tmp".into(),
        "mount -t cgroup2 none /tmp".into(),
        "mknod ./disk b 8 0 && head -c 1 ./disk".into(),
        "mknod /tmp/memory c 1 1".into(),
        "echo escaped > /proc/sys/kernel/hostname".into(),
        "echo '|/core' > /proc/sys/kernel/core_pattern".into(),
        "echo h > /proc/sysrq-trigger".into(),
        "head -c 1 /dev/mem".into(),
        "ls /dev/sda /dev/vda /dev/kmsg 2> /dev/null | grep -q .".into(),
        "mkdir /sys/fs/cgroup/pids/escaped".into(),
        "mkdir /sys/fs/cgroup/escaped".into(),
        "busybox insmod ./module.ko".into(),
        "busybox unshare -Ur true".into(),
        "busybox nsenter -t 1 -m -p true && test -d /proc/self/root/var/lib".into(),
        format!("kill -0 {neighbour}"),
        format!("kill -9 {neighbour}"),
        format!("kill -9 {agent}"),
        format!("cat /proc/{neighbour}/environ"),
        format!("echo x > /proc/{neighbour}/mem"),
        "chroot /proc/1/root /bin/true".into(),
        "cat /etc/shadow".into(),
        "cp /bin/sh ./shell && chmod 4755 ./shell && chown 0 ./shell && false".into(),
    ];
    let tried = |attempt: &String| {
        format!("if ({attempt}) > /dev/null 2>&1; then echo \"got: {attempt}\"; fi\n")
    };
    tries.iter().map(tried).collect()
}

/// Traps for an agent that reads and removes what is here: links, pipes, circles, modes.
const TRAPS: &str = r#"ln -s /etc/passwd link; ln -s / root; ln -s circle circle; mkfifo pipe
    mkdir -p deep/er; mkfifo deep/er/pipe; ln -s / deep/er/root; chmod 000 deep
    echo laid; exec sleep 1000"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_in_a_container_finds_no_way_out_and_no_way_to_hold_the_agent() {
    let Some(mut cell) = contained().await else { return };
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let passwd = fs::metadata("/etc/passwd").unwrap().len();
    let neighbour = run(&cell, "neighbour", "exec sleep 1000", &json!({})).await;
    let agent = cell.agent(1).id();
    let script = format!("{}{TRAPS}", escapes(neighbour, agent));
    let pid = run(&cell, "escapes", &script, &json!({ "user": "root" })).await;
    let owner = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().find_map(|line| line.strip_prefix("Uid:").map(str::to_owned))
    };
    // Root inside is nobody of the machine.
    let owner = owner().unwrap();
    let uid: u32 = owner.split_whitespace().next().unwrap().parse().unwrap();
    assert!(uid >= 0x7740_0000 && uid.is_multiple_of(65_536), "{uid}");
    let output = async |cell: &Machines| {
        let words = ["logs", "admin/escapes/0"];
        cell.masters.cell(&words).ok().filter(|text| text.contains("laid"))
    };
    assert_eq!(cell.until("it has tried all", output).await, "laid\n");
    assert_untouched(&cell, neighbour).await;
    assert!(cell.agent(1).is_alive());
    assert_eq!(fs::read_to_string("/proc/sys/kernel/hostname").unwrap(), hostname);
    assert_eq!(fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap(), pattern);
    for place in ["/sys/fs/cgroup/escaped", "/sys/fs/cgroup/pids/escaped"] {
        assert!(!Path::new(place).exists(), "{place}");
    }
    cell.stop("escapes").await;
    wait_for_state(&cell, "escapes", TaskState::Dead(TaskOutcome::Killed)).await;
    wait_until_gone(pid).await;
    cell.until("what it left is gone", async |cell| {
        let count = |name: &str| Some(fs::read_dir(cell.data(1).join(name)).ok()?.count());
        // The neighbour's folder is there.
        (count("tasks")? == 1 && count("trash")? == 0).then_some(())
    })
    .await;
    assert_eq!(fs::metadata("/etc/passwd").unwrap().len(), passwd);
    assert!(Path::new("/proc").exists() && Path::new("/etc/hostname").exists());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let data = cell.data(1).display().to_string();
    let left = mounts.lines().filter(|line| line.contains(&data)).count();
    // Its root, and the user namespace of its range, which is pinned by a mount.
    assert_eq!(left, 2, "what is the neighbour's alone is mounted");
    cell.stop("neighbour").await;
    wait_until_gone(neighbour).await;
}
