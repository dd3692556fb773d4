//! Cgroups without containers: limits reach the kernel, usage is reported, and a killed cgroup is
//! empty, whatever was forked in it.

use crate::lab::{PATIENCE, tree};
use cellwright_isolate::cgroup::{BlockDevice, Controller, CpuList, Group, Limits, OomVerdict};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// A shell that waits until it is in its cgroup, runs `script` and prints `ready` when that is
/// done.
struct Shell {
    child: Child,
    group: Group,
}

impl Shell {
    fn start(group: Group, script: &str) -> Shell {
        let script = format!("read go; {script}");
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        group.add(child.id()).unwrap();
        child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        Shell { child, group }
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        let output = self.child.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.group.kill(PATIENCE);
        let _ = self.child.wait();
        let _ = self.group.remove();
    }
}

#[test]
fn a_killed_group_is_empty_even_of_those_who_left_their_session() {
    let Some(tree) = tree("kill") else { return };
    let group = tree.group("outer").unwrap().child("inner").unwrap();
    group.create().unwrap();
    let script = "setsid sleep 1000 & setsid sleep 1000 & echo ready; exec sleep 1000";
    let mut shell = Shell::start(group.clone(), script);
    assert_eq!(shell.read_line(), "ready\n");
    assert_eq!(group.processes().unwrap().len(), 3);
    let outer = tree.group("outer").unwrap();
    outer.kill(PATIENCE).unwrap();
    assert!(outer.processes().unwrap().is_empty());
    assert_eq!(shell.child.wait().unwrap().signal(), Some(9));
    drop(shell);
    assert_eq!(tree.names().unwrap(), ["outer"]);
    tree.base().remove().unwrap();
    assert!(!outer.exists() && !tree.base().exists());
}

/// Hierarchies in which a process is elsewhere than in the cgroup, as the kernel names them.
fn outside(pid: u32, group: &Group) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let inside = format!(":/{}", group.path());
    text.lines().filter(|line| !line.ends_with(&inside)).map(str::to_owned).collect()
}

#[test]
fn who_enters_by_itself_is_held_at_once_and_counted_everywhere_after() {
    let Some(tree) = tree("enter") else { return };
    let group = tree.group("outer").unwrap().child("inner").unwrap();
    group.create().unwrap();
    let enter = |path: &std::path::PathBuf| format!("echo 0 > {} && ", path.display());
    let enter: String = group.join_files().iter().map(enter).collect();
    let script = format!("read go; {enter} true || exit; sleep 1000 & echo ready; exec sleep 1000");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let child = command.spawn().unwrap();
    let mut shell = Shell { child, group: group.clone() };
    group.add_to_limitless_hierarchies(shell.child.id()).unwrap();
    shell.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(shell.read_line(), "ready\n");
    let members = group.processes().unwrap();
    assert_eq!(members.len(), 2, "it and what it forked");
    for pid in &members {
        let outside = outside(*pid, &group);
        // A hierarchy that only counts may follow later.
        assert!(outside.iter().all(|line| line.starts_with("0::")), "{outside:?}");
    }
    // It would be killed as it is; both are counted, though only one is named.
    group.count_members(shell.child.id()).unwrap();
    assert!(members.iter().all(|pid| outside(*pid, &group).is_empty()));
    group.kill(PATIENCE).unwrap();
    assert!(group.processes().unwrap().is_empty());
    drop(shell);
    tree.base().remove().unwrap();
}

#[test]
fn a_group_that_is_not_there_is_killed_and_removed_already() {
    let Some(tree) = tree("nothing") else { return };
    let group = tree.group("x").unwrap();
    group.kill(PATIENCE).unwrap();
    group.remove().unwrap();
    tree.base().remove().unwrap();
}

#[test]
fn memory_is_limited_below_its_use_by_nobody() {
    let Some(tree) = tree("lower") else { return };
    let group = tree.group("x").unwrap();
    group.create().unwrap();
    const MIB: u64 = 1 << 20;
    match group.set_memory_limit(Some(400 * MIB)) {
        Err(cellwright_isolate::Error::NoController(_)) => return println!("skipped: no memory"),
        done => done.unwrap(),
    }
    let hold = "x=$(head -c 60000000 /dev/zero | tr '\\0' a); echo ready; read end";
    let mut shell = Shell::start(group.clone(), hold);
    assert_eq!(shell.read_line(), "ready\n");
    assert!(!group.lower_memory_limit(20 * MIB).unwrap(), "it uses three times as much");
    assert!(group.lower_memory_limit(300 * MIB).unwrap());
    assert!(shell.child.try_wait().unwrap().is_none(), "it lives");
    drop(shell);
    tree.base().remove().unwrap();
}

#[test]
fn limits_are_taken_and_nonsense_is_refused() {
    let Some(tree) = tree("limits") else { return };
    let group = tree.group("x").unwrap();
    group.create().unwrap();
    let limits = Limits {
        cpu_weight: Some(250),
        cpu_cap: Some(5),
        memory_limit: Some(64 << 20),
        pids_max: Some(10),
        ..Limits::default()
    };
    let has = |c: &Controller| tree.layout().controller_mount(*c).is_some();
    let controllers = [Controller::Cpu, Controller::Memory, Controller::Pids];
    let lacking: Vec<Controller> = controllers.into_iter().filter(|c| !has(c)).collect();
    let missing = group.apply(&limits).unwrap();
    assert_eq!(missing, lacking);
    if lacking.is_empty() {
        // Up and down again: in v1 two limits have to be moved in the right order.
        group.set_memory_limit(Some(128 << 20)).unwrap();
        group.set_memory_limit(Some(32 << 20)).unwrap();
        group.set_memory_limit(None).unwrap();
        group.set_memory_soft(16 << 20, None).unwrap();
        group.set_memory_soft(0, Some(24 << 20)).unwrap();
        group.set_cpu_cap(Some(1500)).unwrap();
        group.set_cpu_cap(None).unwrap();
        group.set_cpu_idle(true).unwrap();
        group.set_cpu_idle(false).unwrap();
        assert!(group.set_cpu_weight(0).is_err() && group.set_cpu_cap(Some(0)).is_err());
    }
    if has(&Controller::Cpuset) {
        group.set_cpus(&CpuList::new(vec![0])).unwrap();
        assert!(group.set_cpus(&CpuList::default()).is_err());
    }
    let disk = BlockDevice::of(&std::env::temp_dir()).unwrap();
    if let (true, Some(disk)) = (has(&Controller::Io), disk) {
        group.set_io_cap(disk, Some(1 << 20)).unwrap();
        group.set_io_cap(disk, None).unwrap();
        assert!(group.set_io_cap(disk, Some(0)).is_err());
    }
    tree.base().remove().unwrap();
}

#[test]
fn usage_tells_what_ran() {
    let Some(tree) = tree("usage") else { return };
    let group = tree.group("x").unwrap();
    group.create().unwrap();
    let count = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo ready; exec sleep 1000";
    let mut shell = Shell::start(group.clone(), count);
    assert_eq!(shell.read_line(), "ready\n");
    let usage = group.usage().unwrap();
    let idle = group.usage_after(usage).unwrap();
    assert!(idle == usage || idle.cpu > usage.cpu, "{idle:?} after {usage:?}");
    assert!(usage.cpu.as_micros() > 1000, "{usage:?}");
    if tree.layout().controller_mount(Controller::Memory).is_some() {
        assert!(usage.memory > 0 && usage.working_set <= usage.memory, "{usage:?}");
    }
    if tree.layout().controller_mount(Controller::Pids).is_some() {
        assert_eq!(usage.threads, Some(1));
    }
    assert_eq!(usage.oom.since(Default::default()), OomVerdict::None);
    drop(shell);
    tree.base().remove().unwrap();
}

#[test]
fn a_group_inside_one_with_members_is_counted_with_it_and_goes_alone() {
    let Some(tree) = tree("nest") else { return };
    let group = tree.group("x").unwrap();
    group.create().unwrap();
    group.apply(&Limits { pids_max: Some(3), ..Limits::default() }).unwrap();
    let mut task = Shell::start(group.clone(), "echo ready; exec sleep 1000");
    assert_eq!(task.read_line(), "ready\n");
    let inner = group.create_nested("probe").unwrap();
    let script = "setsid sleep 1000 & echo ready; read more; (exec sleep 1000); exit 7";
    let mut probe = Shell::start(inner.clone(), script);
    assert_eq!(probe.read_line(), "ready\n");
    assert_eq!(inner.processes().unwrap().len(), 2);
    assert_eq!(group.processes().unwrap().len(), 3);
    if tree.layout().controller_mount(Controller::Pids).is_some() {
        // The limits around it leave no room for one more.
        probe.child.stdin.as_mut().unwrap().write_all(b"more\n").unwrap();
        assert_eq!(probe.child.wait().unwrap().code(), Some(2));
        assert_eq!(group.usage().unwrap().threads, Some(2));
    }
    drop(probe);
    assert_eq!(group.processes().unwrap(), [task.child.id()]);
    drop(task);
    tree.base().remove().unwrap();
}

#[test]
fn a_frozen_group_stands_still_until_it_is_let_go() {
    let Some(tree) = tree("freeze") else { return };
    let group = tree.group("x").unwrap();
    group.create().unwrap();
    let mut shell = Shell::start(group.clone(), "echo ready; while :; do :; done");
    assert_eq!(shell.read_line(), "ready\n");
    group.freeze(true, PATIENCE).unwrap();
    let spent = group.usage().unwrap().cpu;
    // Another process runs to its end meanwhile.
    assert!(Command::new("true").status().unwrap().success());
    assert_eq!(group.usage().unwrap().cpu, spent);
    group.freeze(false, PATIENCE).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while group.usage().unwrap().cpu == spent {
        assert!(Instant::now() < deadline, "it does not go on");
        std::thread::yield_now();
    }
    group.signal(Signal::TERM).unwrap();
    assert_eq!(shell.child.wait().unwrap().signal(), Some(15));
    drop(shell);
    tree.base().remove().unwrap();
}
