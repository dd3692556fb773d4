//! A virtual machine as a task (B37): a Linux guest under QEMU, in a container like any other
//! program. Its console is the task's output and its power-off the task's end; a stop takes it
//! down. QEMU emulates the processor, so no support of the hardware is needed.
//!
//! The kernel is Debian's, unpacked and not installed (`scripts/install-tools.sh test`). The
//! guest's only program is busybox.

use crate::agent::{is_running_attempt, wait};
use crate::containers::{RootCell, can_run};
use crate::support::{json, poll_until, stdout_of};
use cellwright_cell::task::{TaskOutcome, TaskState};
use serde_json::{Value, json as value};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the guest does: it says what it is and, unless it is told to stay, switches itself off.
const INIT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
echo "guest: $($b uname -s) with $($b nproc) cpu, pid $$"
$b grep MemTotal /proc/meminfo
case "$($b cat /proc/cmdline)" in
*stay*) echo "guest: stays"; $b sleep 100000 ;;
esac
$b poweroff -f
"#;

/// How the guest is started: one CPU, 160 MiB, no devices but the console.
const BOOT: &str = r#"#!/bin/sh
here=$CELL_PACKAGES/guest
exec qemu-system-x86_64 -accel tcg,tb-size=64 -smp 1 -m 160 \
    -nodefaults -no-user-config -no-reboot -display none -monitor none -serial stdio \
    -kernel "$here/vmlinuz" -initrd "$here/initrd" \
    -append "console=ttyS0 panic=-1 quiet $1"
"#;

/// The kernel that `scripts/install-tools.sh` unpacked.
fn guest_kernel() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let boot = cache.or(home)?.join("cellwright/guest/boot");
    let entries = fs::read_dir(boot).ok()?.flatten().map(|entry| entry.path());
    let is_kernel = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
    };
    entries.filter(is_kernel).max()
}

/// The kernel, where guests can run: where containers can, with QEMU. Elsewhere the test is skipped
/// if `CELL_TEST_SKIP` is set, or on another processor than the kernel's.
fn kernel_if_guests_run() -> Option<PathBuf> {
    if !can_run("guests") {
        return None;
    }
    if !cfg!(target_arch = "x86_64") {
        println!("skipped guests: their kernel is for x86_64");
        return None;
    }
    let has_qemu = Command::new("qemu-system-x86_64").arg("--version").output().is_ok();
    let kernel = guest_kernel().filter(|_| has_qemu);
    if kernel.is_none() {
        let may = std::env::var_os("CELL_TEST_SKIP").is_some();
        assert!(may, "guests need QEMU and a kernel; scripts/install-tools.sh test");
        println!("skipped guests: need QEMU and a kernel");
    }
    kernel
}

/// One entry of an archive of the kind that a kernel unpacks at its start (`newc`).
fn archive_entry(archive: &mut Vec<u8>, name: &str, mode: u32, device: (u32, u32), data: &[u8]) {
    let (major, minor) = device;
    let (size, name_size) = (data.len() as u32, name.len() as u32 + 1);
    // Inode, mode, user, group, links, time, size, device, device node, name, checksum.
    let fields = [0, mode, 0, 0, 1, 0, size, 0, 0, major, minor, name_size, 0];
    archive.extend_from_slice(b"070701");
    fields.iter().for_each(|field| archive.extend_from_slice(format!("{field:08x}").as_bytes()));
    archive.extend_from_slice(name.as_bytes());
    archive.push(0);
    let align = |archive: &mut Vec<u8>| archive.resize(archive.len().next_multiple_of(4), 0);
    align(archive);
    archive.extend_from_slice(data);
    align(archive);
}

fn initrd() -> Vec<u8> {
    const FOLDER: u32 = 0o040_755;
    const PROGRAM: u32 = 0o100_755;
    const CHARACTER_DEVICE: u32 = 0o020_600;
    let busybox = fs::read("/bin/busybox").expect("busybox is there");
    let mut archive = Vec::new();
    for folder in ["bin", "dev", "proc"] {
        archive_entry(&mut archive, folder, FOLDER, (0, 0), b"");
    }
    archive_entry(&mut archive, "dev/console", CHARACTER_DEVICE, (5, 1), b"");
    archive_entry(&mut archive, "bin/busybox", PROGRAM, (0, 0), &busybox);
    archive_entry(&mut archive, "init", PROGRAM, (0, 0), INIT.as_bytes());
    archive_entry(&mut archive, "TRAILER!!!", 0, (0, 0), b"");
    archive
}

/// A package with the kernel, the guest's disk and the script that starts QEMU.
fn push_guest(lab: &RootCell, kernel: &Path) -> Value {
    let folder = lab.folder.0.join("guest");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(kernel, folder.join("vmlinuz")).unwrap();
    fs::write(folder.join("initrd"), initrd()).unwrap();
    fs::write(folder.join("boot"), BOOT).unwrap();
    for (file, mode) in [("vmlinuz", 0o644), ("initrd", 0o644), ("boot", 0o755)] {
        fs::set_permissions(folder.join(file), fs::Permissions::from_mode(mode)).unwrap();
    }
    let push = ["--master", &lab.address, "package", "push", folder.to_str().unwrap(), "--name"];
    let pushed = json(&[&push[..], &["guest", "-o", "json"]].concat());
    value!({
        "limits": { "cpu": "500m", "ram": 512 << 20 },
        "packages": [{ "name": "guest", "digest": pushed["digest"], "bytes": pushed["bytes"] }],
    })
}

#[test]
fn a_virtual_machine_runs_as_a_task_until_it_switches_itself_off_or_is_stopped() {
    let Some(kernel) = kernel_if_guests_run() else { return };
    let lab = RootCell::open("container");
    let task = push_guest(&lab, &kernel);
    lab.run("stays", "exec $CELL_PACKAGES/guest/boot stay", task.clone());
    lab.run("goes", "exec $CELL_PACKAGES/guest/boot", task);
    let state = lab.end_state("goes");
    let (output, errors) = (lab.log("goes", &[]), lab.log("goes", &["--stderr"]));
    assert_eq!(state, TaskState::Dead(TaskOutcome::Finished), "{output}{errors}");
    assert!(output.contains("guest: Linux with 1 cpu, pid 1"), "{output}{errors}");
    // Its memory is what it was given, of which the kernel keeps some.
    let memory = output.lines().find_map(|line| line.trim().strip_prefix("MemTotal:"));
    let kib: u64 = memory.and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap();
    assert!((100 << 10..160 << 10).contains(&kib), "{kib} KiB");
    wait(&lab.address, "stays", is_running_attempt(1));
    poll_until("the other guest never stood", || {
        lab.log("stays", &[]).contains("guest: stays").then_some(())
    });
    stdout_of(&["--master", &lab.address, "stop", "dev/stays"]);
    assert_eq!(lab.end_state("stays"), TaskState::Dead(TaskOutcome::Killed));
    // Nothing of either is left on the machine: groups and mounts are looked at.
    lab.stop();
}
