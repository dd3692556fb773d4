//! Ways to escape from a container, tried by root inside it: each is denied, and the machine is as
//! before. None would do harm if it succeeded.

use crate::lab::Lab;
use cellwright_isolate::cgroup::Limits;
use cellwright_isolate::container::{Bind, Scratch, User};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

#[test]
fn root_inside_can_do_nothing_to_the_machine() {
    let Some(lab) = Lab::open("escape") else { return };
    let before = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let tries = [
        "mount -t tmpfs none /tmp",
        "mount -t proc none /tmp",
        "mount -t cgroup2 none /tmp",
        "umount /proc",
        "mknod /tmp/disk b 8 0",
        "mknod /tmp/memory c 1 1",
        "echo escaped > /proc/sys/kernel/hostname",
        "echo 1 > /proc/sys/vm/drop_caches",
        "echo h > /proc/sysrq-trigger",
        "hostname escaped",
        "chroot /tmp /bin/true",
        "head -c 1 /proc/kcore | /bin/busybox grep -q .",
        "/bin/busybox unshare -U true",
        "/bin/busybox nsenter -t 1 -m true",
        "/bin/busybox chown 1 /bin/busybox",
        "/bin/busybox mkdir /sys/fs/cgroup/x",
        "/bin/busybox renice -n -5 1",
        "/bin/busybox ls /proc/1/root/layer",
        "/bin/busybox mkfifo /tmp/fifo && echo fifos are fine && false",
    ];
    let attempt = |attempt: &&str| {
        let text = attempt.replace('\'', "");
        format!("if ({attempt}) 2>/dev/null; then echo 'got: {text}'; fi; ")
    };
    let script: String = tries.iter().map(attempt).collect();
    let mut spec = lab.spec("escape", &script);
    spec.user = User { uid: 0, gid: 0, groups: vec![] };
    spec.scratch = vec![Scratch { target: "/tmp".into(), bytes: 1 << 20 }];
    let ended = lab.run("escape", &spec, &Limits::default());
    assert_eq!(ended.output, "fifos are fine\n", "{ended:?}");
    assert_eq!(fs::read_to_string("/proc/sys/kernel/hostname").unwrap(), before);
}

/// Perl can make any system call, so the filter itself is tested and not only the capabilities.
#[test]
fn dangerous_system_calls_are_refused_by_the_filter() {
    const PERL: &str = "/usr/bin/perl";
    if !cfg!(target_arch = "x86_64") {
        return println!("skipped: numbers of system calls are those of x86-64");
    }
    let Some(lab) = Lab::open("calls") else { return };
    assert!(Path::new(PERL).exists(), "perl is missing, which every Debian has");
    for name in ["lib", "lib64"] {
        symlink(format!("usr/{name}"), lab.layer.join(name)).unwrap();
    }
    let calls = [
        ("ptrace", "101, 16, 1, 0, 0", "1"),
        ("mount", "165, 0, 0, 0, 0, 0", "1"),
        ("unshare", "272, 0x10000000", "1"),
        ("clone user", "56, 0x10000011, 0, 0, 0, 0", "1"),
        ("clone3", "435, 0, 0", "38"),
        ("setns", "308, 0, 0", "1"),
        ("bpf", "321, 0, 0, 0", "1"),
        ("keyctl", "250, 0, -3, 0", "1"),
        ("userfaultfd", "323, 0", "1"),
        ("io_uring_setup", "425, 1, 0", "1"),
        ("open_by_handle_at", "304, 0, 0, 0", "1"),
        ("perf_event_open", "298, 0, 0, -1, -1, 0", "1"),
        ("kexec_load", "246, 0, 0, 0, 0", "1"),
        ("fsopen", "430, 0, 0", "1"),
        ("clock_settime", "227, 0, 0", "1"),
        ("packet socket", "41, 17, 3, 0", "1"),
        ("vsock socket", "41, 40, 1, 0", "1"),
        ("getpid", "39", "-"),
    ];
    let script: String = calls
        .iter()
        .map(|(name, call, _)| {
            format!(
                "$! = 0; $r = syscall({call}); print '{name} ', ($r < 0 ? $!+0 : '-'), \"\\n\";"
            )
        })
        .collect();
    let mut spec = lab.spec("calls", "");
    spec.command = vec![PERL.into(), "-e".into(), script];
    spec.user = User { uid: 0, gid: 0, groups: vec![] };
    spec.binds = vec![Bind { source: "/usr".into(), target: "/usr".into(), writable: false }];
    let ended = lab.run("calls", &spec, &Limits::default());
    let expected: String = calls.iter().map(|(name, _, end)| format!("{name} {end}\n")).collect();
    assert_eq!(ended.output, expected, "{ended:?}");
}
