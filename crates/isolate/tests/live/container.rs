//! Containers from start to removal, the way a shim runs them.

use crate::lab::{Lab, PATIENCE};
use cellwright_isolate::cgroup::{Group, Limits, OomVerdict};
use cellwright_isolate::container::{
    Bind, Bundle, ContainerId, Exec, IdMap, IdRange, Network, Rlimit, RlimitKind, Runtime, Scratch,
    Streams, User, sweep, write_private,
};
use cellwright_isolate::mounts;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;

#[test]
fn the_exit_code_arrives_and_the_task_sees_what_it_was_given() {
    let Some(lab) = Lab::open("given") else { return };
    let script = "echo $0 $COLOUR $(pwd) $(id -u):$(id -g) $(hostname) pid=$$; \
                  cat /data/in; echo written > /data/out; ulimit -n; exit 7";
    let data = lab.run.join("data");
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("in"), "given\n").unwrap();
    std::os::unix::fs::chown(&data, Some(1000), Some(1000)).unwrap();
    let mut spec = lab.spec("given", script);
    spec.env.insert("COLOUR".into(), "blue".into());
    spec.cwd = "/data".into();
    spec.user = User { uid: 1000, gid: 1000, groups: vec![] };
    spec.hostname = "jfoo-3".into();
    spec.binds = vec![Bind { source: data.clone(), target: "/data".into(), writable: true }];
    spec.rlimits.push(Rlimit { kind: RlimitKind::OpenFiles, soft: 100, hard: 100 });
    let ended = lab.run("given", &spec, &Limits::default());
    assert_eq!(ended.code, Some(7), "{ended:?}");
    assert_eq!(ended.output, "/bin/sh blue /data 1000:1000 jfoo-3 pid=1\ngiven\n100\n");
    assert_eq!(fs::read_to_string(data.join("out")).unwrap(), "written\n");
}

#[test]
fn packages_are_never_written_and_a_root_is_read_only_unless_asked() {
    let Some(lab) = Lab::open("root") else { return };
    let upper = lab.run.join("upper-package");
    fs::create_dir_all(upper.join("etc")).unwrap();
    fs::write(upper.join("etc/name"), "upper\n").unwrap();
    let script = "cat /etc/name; (echo x > /etc/name) 2>/dev/null && echo wrote; \
                  echo t > /tmp/t && cat /tmp/t; cat /etc/name";
    let mut spec = lab.spec("root", script);
    spec.layers.insert(0, upper.clone());
    spec.scratch = vec![Scratch { target: "/tmp".into(), bytes: MIB }];
    spec.user = User { uid: 0, gid: 0, groups: vec![] };
    let ended = lab.run("root", &spec, &Limits::default());
    assert_eq!(ended.output, "upper\nt\nupper\n", "{ended:?}");
    spec.writable_root = true;
    let ended = lab.run("root", &spec, &Limits::default());
    assert_eq!(ended.output, "upper\nwrote\nt\nx\n", "{ended:?}");
    assert_eq!(fs::read_to_string(upper.join("etc/name")).unwrap(), "upper\n");
    assert!(!lab.layer.join("proc").exists(), "a package got a mount point");
}

#[test]
fn beyond_its_memory_limit_a_task_is_killed_and_its_own_limit_blamed() {
    let Some(lab) = Lab::open("oom") else { return };
    let spec = lab.spec("oom", "exec tail /dev/zero");
    let limits = Limits { memory_limit: Some(24 * MIB), ..Limits::default() };
    let ended = lab.run("oom", &spec, &limits);
    assert_eq!(ended.signal, Some(9), "{ended:?}");
    assert_eq!(ended.usage.oom.since(Default::default()), OomVerdict::OwnLimit, "{ended:?}");
    let within = lab.spec("within", "exec head -c 65536 /dev/zero >/dev/null");
    let ended = lab.run("within", &within, &limits);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.usage.oom.since(Default::default()), OomVerdict::None, "{ended:?}");
}

#[test]
fn a_fork_bomb_stops_at_its_limit_and_dies_whole() {
    let Some(lab) = Lab::open("bomb") else { return };
    let script = "(while :; do setsid sleep 1000 & done) 2>/dev/null; echo full; exec sleep 1000";
    let spec = lab.spec("bomb", script);
    let limits = Limits { pids_max: Some(24), ..Limits::default() };
    let mut running = lab.start("bomb", &spec, &limits);
    assert_eq!(running.read_until("full\n"), "full\n");
    let usage = running.group.usage().unwrap();
    assert!(usage.threads.is_some_and(|n| (20..=24).contains(&n)), "{usage:?}");
    running.group.kill(PATIENCE).unwrap();
    assert!(running.group.processes().unwrap().is_empty());
    assert_eq!(running.finish().signal, Some(9));
}

#[test]
fn a_program_runs_beside_the_task_in_its_group() {
    let Some(lab) = Lab::open("exec") else { return };
    let mut spec = lab.spec("exec", "echo up; exec sleep 1000");
    spec.users = Some(IdMap::shifted(IdRange { first: 100_000, count: 65_536 }));
    let mut running = lab.start("exec", &spec, &Limits::default());
    assert_eq!(running.read_until("up\n"), "up\n");
    let script = "cat /proc/1/comm; id -u; echo $W; setsid sleep 1000 <&- >&- 2>&- & exit 9";
    let exec = Exec {
        command: ["sh", "-c", script].map(String::from).into(),
        env: BTreeMap::from([("W".into(), "w".into()), ("PATH".into(), "/bin".into())]),
        cwd: "/".into(),
        uid: 1000,
        gid: 1000,
        terminal: false,
    };
    let file = running.bundle.exec_file("exec-1");
    write_private(&file, &exec.description().unwrap()).unwrap();
    let inner = running.group.create_nested("exec-1").unwrap();
    let output = lab.runc.exec(running.bundle.id(), &file, Some("exec-1")).output().unwrap();
    assert_eq!(output.status.code(), Some(9), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "sleep\n1000\nw\n", "{output:?}");
    // What it left behind is a child of the container's init by now, and still in the cgroup where
    // it began.
    let left = inner.processes().unwrap();
    assert_eq!(left.len(), 1, "{left:?}");
    inner.kill(PATIENCE).unwrap();
    inner.remove().unwrap();
    assert_eq!(running.group.processes().unwrap(), [running.pid]);
    running.group.kill(PATIENCE).unwrap();
    assert_eq!(running.finish().signal, Some(9));
}

/// Tried by root of the machine, which only the cgroup's device rules keep from a device: in v1 a
/// list in the kernel, in v2 a program that the runtime loads.
#[test]
fn no_device_but_the_plain_ones_is_open_in_its_group() {
    let Some(lab) = Lab::open("devices") else { return };
    let tries = "read go; for name in null kmsg; do (true < /dev/$name) && echo $name; done";
    let try_devices = |group: Option<&Group>| {
        let mut shell = Command::new("sh");
        shell.args(["-c", tries]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.stderr(Stdio::null()).spawn().unwrap();
        group.iter().for_each(|group| group.add(child.id()).unwrap());
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    };
    // Where the computer itself has no such device there is nothing to forbid.
    if std::path::Path::new("/dev/kmsg").exists() {
        assert_eq!(try_devices(None), "null\nkmsg\n");
    }
    let spec = lab.spec("devices", "echo up; exec sleep 1000");
    let mut running = lab.start("devices", &spec, &Limits::default());
    assert_eq!(running.read_until("up\n"), "up\n");
    assert_eq!(try_devices(Some(&running.group)), "null\n");
    running.group.kill(PATIENCE).unwrap();
    assert_eq!(running.finish().signal, Some(9));
}

#[test]
fn root_in_a_user_namespace_is_nobody_outside() {
    let Some(lab) = Lab::open("userns") else { return };
    let mut spec = lab.spec("userns", "id -u; cat /proc/self/uid_map; echo t > /made; exit 3");
    spec.user = User { uid: 0, gid: 0, groups: vec![] };
    spec.users = Some(IdMap::shifted(IdRange { first: 100_000, count: 65_536 }));
    spec.writable_root = true;
    let running = lab.start("userns", &spec, &Limits::default());
    let made = running.bundle.directory().join("upper/made");
    let pid = running.pid;
    let outside =
        fs::metadata(format!("/proc/{pid}")).map(|m| std::os::unix::fs::MetadataExt::uid(&m));
    // The task may have exited already, and then it has no entry in `/proc`.
    if let Ok(outside) = outside {
        assert!(outside == 100_000 || outside == 0, "{outside}");
    }
    let ended = running.finish();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let words: Vec<&str> = ended.output.split_whitespace().collect();
    assert_eq!(words, ["0", "0", "100000", "65536"], "{ended:?}");
    assert!(!made.exists());
}

#[test]
fn an_own_network_has_nothing_and_the_hosts_is_the_hosts() {
    let Some(lab) = Lab::open("network") else { return };
    let script = "cat /proc/net/dev | tail -n +3 | head -c 200; cat /sys/class/net/lo/flags";
    let mut spec = lab.spec("own", script);
    let own = lab.run("own", &spec, &Limits::default());
    let lines: Vec<&str> = own.output.lines().collect();
    // The first flag is that it is up.
    assert!(lines[0].trim_start().starts_with("lo:") && lines[1..] == ["0x9"], "{own:?}");
    spec = lab.spec("host", "exec /bin/busybox readlink /proc/self/ns/net");
    spec.network = Network::Host;
    let host = lab.run("host", &spec, &Limits::default());
    let ours = fs::read_link("/proc/self/ns/net").unwrap();
    assert_eq!(host.output.trim(), ours.to_str().unwrap());
}

#[test]
fn what_cannot_start_says_why_and_leaves_nothing() {
    let Some(lab) = Lab::open("bad") else { return };
    let group = lab.tree.group("bad").unwrap();
    group.create().unwrap();
    let bundle = Bundle::at(&lab.run, &ContainerId::new("bad").unwrap());
    let mut spec = lab.spec("bad", "true");
    spec.command = vec!["/bin/no-such-program".into()];
    bundle.prepare(&spec).unwrap();
    let message = lab.runc.run(&bundle, Streams::null()).unwrap_err().to_string();
    assert!(message.contains("no-such-program"), "{message}");
    assert_eq!(lab.runc.list().unwrap(), []);
    spec.layers = vec![lab.run.join("no-such-layer")];
    let message = bundle.prepare(&spec).unwrap_err().to_string();
    assert!(message.contains("no-such-layer"), "{message}");
    assert!(!bundle.directory().exists());
}

#[test]
fn a_sweep_takes_what_nobody_wants_and_nothing_else() {
    let Some(lab) = Lab::open("sweep") else { return };
    let running = ["kept", "lost"].map(|name| {
        let spec = lab.spec(name, "exec sleep 1000");
        lab.start(name, &spec, &Limits::default()).pid
    });
    let kept = ContainerId::new("kept").unwrap();
    let lost = ContainerId::new("lost").unwrap();
    let below = |id: &ContainerId| {
        let bundle = Bundle::at(&lab.run, id).directory().to_owned();
        mounts::list().unwrap().iter().filter(|m| m.path.starts_with(&bundle)).count()
    };
    assert_eq!((below(&kept), below(&lost)), (1, 1));
    let swept = sweep(&lab.runc, &lab.run, &BTreeSet::from([kept.clone()])).unwrap();
    assert_eq!((swept.containers, swept.bundles), (vec![lost.clone()], vec![lost.clone()]));
    assert_eq!(swept.stuck, Vec::<String>::new());
    assert_eq!((below(&kept), below(&lost)), (1, 0));
    assert!(!Bundle::at(&lab.run, &lost).directory().exists());
    assert_eq!(lab.tree.group("kept").unwrap().processes().unwrap(), [running[0]]);
    assert!(lab.tree.group("lost").unwrap().processes().unwrap().is_empty());
    let again = sweep(&lab.runc, &lab.run, &BTreeSet::from([kept])).unwrap();
    assert_eq!(again, Default::default());
}
