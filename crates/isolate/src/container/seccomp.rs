//! The seccomp filter: system calls that no task gets, those that change the machine, its mounts
//! and its kernel, look into other processes, or open up the parts of the kernel where most
//! vulnerabilities have been.
//!
//! A list of denied calls, beside dropped capabilities which already deny most of it. Rejected: a
//! list of allowed calls. Kernels and languages gain calls every year, and a program that gets "not
//! permitted" for a harmless new one breaks in ways that its author cannot see.

use oci_spec::OciSpecError;
use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder,
    LinuxSeccompBuilder, LinuxSeccompOperator, LinuxSyscall, LinuxSyscallBuilder,
};

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
const ENOPROTOOPT: u32 = 92;

const DENIED_SYSCALLS: &[&str] = &[
    // Mounts and roots.
    "mount",
    "umount",
    "umount2",
    "pivot_root",
    "chroot",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "move_mount",
    "open_tree",
    "open_tree_attr",
    "mount_setattr",
    "swapon",
    "swapoff",
    "quotactl",
    "quotactl_fd",
    // New namespaces, and those of others.
    "unshare",
    "setns",
    // Other processes.
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "process_madvise",
    "pidfd_getfd",
    "kcmp",
    "migrate_pages",
    "move_pages",
    // Files by number instead of by name: out of the root.
    "open_by_handle_at",
    "name_to_handle_at",
    "fanotify_init",
    "lookup_dcookie",
    // The kernel, its clock and its hardware.
    "init_module",
    "finit_module",
    "create_module",
    "delete_module",
    "query_module",
    "get_kernel_syms",
    "kexec_load",
    "kexec_file_load",
    "reboot",
    "acct",
    "settimeofday",
    "stime",
    "clock_settime",
    "clock_settime64",
    "clock_adjtime",
    "clock_adjtime64",
    "adjtimex",
    "iopl",
    "ioperm",
    "vm86",
    "vm86old",
    "modify_ldt",
    "syslog",
    "_sysctl",
    "sysfs",
    "nfsservctl",
    "vhangup",
    "uselib",
    "ustat",
    // Sockets as 32-bit programs had them long ago: behind a pointer, where the rules for `socket`
    // do not see the family.
    "socketcall",
    // Where the vulnerabilities have been.
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "add_key",
    "request_key",
    "keyctl",
];

/// All the flags of `clone` that create a namespace.
const CLONE_NAMESPACES: &[u64] = &[
    0x0002_0000, // mount
    0x0200_0000, // cgroup
    0x0400_0000, // host name
    0x0800_0000, // ipc
    0x1000_0000, // user
    0x2000_0000, // process ids
    0x4000_0000, // network
];

const CLONE_FILES: u64 = 0x400;
const CLONE_THREAD: u64 = 0x1_0000;
const CLOSE_RANGE_UNSHARE: u64 = 2;
/// A file with these runs as its owner, and as its group.
const SET_USER: u64 = 0o4000;
const SET_GROUP: u64 = 0o2000;
const O_CREAT: u64 = 0o100;
/// The bit of `O_TMPFILE` that is no other flag's.
const TMPFILE: u64 = 0o20_000_000;
const FILE_KIND: u64 = 0o170_000;
const CHARACTER_DEVICE: u64 = 0o020_000;
const BLOCK_DEVICE: u64 = 0o060_000;
/// Types into a terminal on behalf of its user.
const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541c;
/// Sockets to the hypervisor, and raw frames.
const AF_PACKET: u64 = 17;
const AF_VSOCK: u64 = 40;
/// The first process of a container as all inside see it, and the signal that it cannot handle.
const INIT_PID: u64 = 1;
const SIGKILL: u64 = 9;
/// The kernel's own ciphers, which no program needs.
const AF_ALG: u64 = 38;

/// Lets others of the same user listen on a port too, and get some of its connections.
const SOL_SOCKET: u64 = 1;
const SO_REUSEPORT: u64 = 15;

/// What differs from container to container.
#[derive(Clone, Copy, Debug)]
pub struct SeccompPolicy {
    /// Set-user-ID and set-group-ID files can be created.
    pub set_id_files: bool,
    /// Ports can be shared with others of the same user: not where another task may have the same
    /// user.
    pub shared_ports: bool,
}

pub fn profile(policy: SeccompPolicy) -> Result<LinuxSeccomp, OciSpecError> {
    let mut rules = vec![
        deny(DENIED_SYSCALLS, EPERM, None)?,
        // Its flags are behind a pointer, where no filter sees them. With ENOSYS every C library
        // falls back on `clone`.
        deny(&["clone3"], ENOSYS, None)?,
    ];
    for flag in CLONE_NAMESPACES {
        rules.push(deny(&["clone"], EPERM, Some(masked_arg(0, *flag, *flag)?))?);
    }
    // A thread with a file table of its own, which no list of a process's open files shows.
    let thread_flags = masked_arg(0, CLONE_THREAD | CLONE_FILES, CLONE_THREAD)?;
    rules.push(deny(&["clone"], EPERM, Some(thread_flags))?);
    // The same for a running thread. With ENOSYS programs close one by one.
    let thread_flags = masked_arg(2, CLOSE_RANGE_UNSHARE, CLOSE_RANGE_UNSHARE)?;
    rules.push(deny(&["close_range"], ENOSYS, Some(thread_flags))?);
    for kind in [CHARACTER_DEVICE, BLOCK_DEVICE] {
        rules.push(deny(&["mknod"], EPERM, Some(masked_arg(1, FILE_KIND, kind)?))?);
        rules.push(deny(&["mknodat"], EPERM, Some(masked_arg(2, FILE_KIND, kind)?))?);
    }
    for request in [TIOCSTI, TIOCLINUX] {
        // The kernel uses the lower half only, so the filter must as well.
        rules.push(deny(&["ioctl"], EPERM, Some(masked_arg(1, 0xffff_ffff, request)?))?);
    }
    for family in [AF_PACKET, AF_VSOCK, AF_ALG] {
        rules.push(deny(&["socket"], EPERM, Some(masked_arg(0, 0xffff_ffff, family)?))?);
    }
    if !policy.set_id_files {
        rules.extend(deny_set_id_files()?);
    }
    if !policy.shared_ports {
        // As an older kernel would respond, so that programs go on without.
        let level = masked_arg(1, 0xffff_ffff, SOL_SOCKET)?;
        let option = masked_arg(2, 0xffff_ffff, SO_REUSEPORT)?;
        rules.push(deny_when("setsockopt", ENOPROTOOPT, vec![level, option])?);
    }
    rules.extend(deny_init_kill()?);
    LinuxSeccompBuilder::default()
        .default_action(LinuxSeccompAction::ScmpActAllow)
        .architectures(architectures())
        .syscalls(rules)
        .build()
}

/// Denies whatever sets the set-user-ID or set-group-ID bit of a file. Where only the task can
/// reach its files the bit is harmless, and a program that unpacks archives may want it.
fn deny_set_id_files() -> Result<Vec<LinuxSyscall>, OciSpecError> {
    // Which argument is the mode.
    let calls = [
        ("chmod", 1),
        ("fchmod", 1),
        ("fchmodat", 2),
        ("fchmodat2", 2),
        ("creat", 1),
        ("open", 2),
        ("openat", 3),
        ("mknod", 1),
        ("mknodat", 2),
    ];
    let mut rules = Vec::new();
    for (name, argument) in calls {
        for bit in [SET_USER, SET_GROUP] {
            let rule = masked_arg(argument, bit, bit)?;
            // Without one of these flags the mode is ignored, and may be anything.
            let makes: &[u64] = match name {
                "open" | "openat" => &[O_CREAT, TMPFILE],
                _ => &[],
            };
            for flag in makes {
                let flag = masked_arg(argument - 1, *flag, *flag)?;
                rules.push(deny_when(name, EPERM, vec![rule, flag])?);
            }
            if makes.is_empty() {
                rules.push(deny_when(name, EPERM, vec![rule])?);
            }
        }
    }
    // Its mode is behind a pointer; C libraries fall back on `openat`.
    rules.push(deny(&["openat2"], ENOSYS, None)?);
    Ok(rules)
}

/// The kernel drops every signal from inside to the first process of a container, SIGKILL too, and
/// reports that it was sent: a program that kills itself would go on, and end well. The sender is
/// killed instead, by SIGSYS, which is not dropped. For the first process itself the agent's shim
/// reports SIGKILL.
fn deny_init_kill() -> Result<Vec<LinuxSyscall>, OciSpecError> {
    // The target is the first argument of all of them.
    let calls = [("kill", 1), ("tkill", 1), ("rt_sigqueueinfo", 1), ("tgkill", 2)];
    let rule = |(name, signal): (&str, usize)| {
        let arguments =
            vec![masked_arg(0, 0xffff_ffff, INIT_PID)?, masked_arg(signal, 0xffff_ffff, SIGKILL)?];
        LinuxSyscallBuilder::default()
            .names(vec![name.to_owned()])
            .action(LinuxSeccompAction::ScmpActKillProcess)
            .args(arguments)
            .build()
    };
    calls.into_iter().map(rule).collect()
}

/// The machine's own and its 32-bit companion, each with all rules; calls of any other kill.
fn architectures() -> Vec<Arch> {
    if cfg!(target_arch = "aarch64") {
        vec![Arch::ScmpArchAarch64, Arch::ScmpArchArm]
    } else {
        vec![Arch::ScmpArchX86_64, Arch::ScmpArchX86]
    }
}

fn deny(
    names: &[&str],
    errno: u32,
    argument: Option<LinuxSeccompArg>,
) -> Result<LinuxSyscall, OciSpecError> {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let rule = LinuxSyscallBuilder::default()
        .names(names)
        .action(LinuxSeccompAction::ScmpActErrno)
        .errno_ret(errno);
    match argument {
        Some(argument) => rule.args(vec![argument]).build(),
        None => rule.build(),
    }
}

/// Denies a call whose arguments all match.
fn deny_when(
    name: &str,
    errno: u32,
    arguments: Vec<LinuxSeccompArg>,
) -> Result<LinuxSyscall, OciSpecError> {
    let rule = LinuxSyscallBuilder::default().names(vec![name.to_owned()]);
    let rule = rule.action(LinuxSeccompAction::ScmpActErrno).errno_ret(errno);
    rule.args(arguments).build()
}

fn masked_arg(index: usize, mask: u64, value: u64) -> Result<LinuxSeccompArg, OciSpecError> {
    LinuxSeccompArgBuilder::default()
        .index(index)
        .op(LinuxSeccompOperator::ScmpCmpMaskedEq)
        .value(mask)
        .value_two(value)
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dangerous_calls_are_refused_and_fifos_are_not() {
        let profile = profile(SeccompPolicy { set_id_files: true, shared_ports: true }).unwrap();
        let rules = profile.syscalls().clone().unwrap();
        let always = |name: &str| {
            let rule = rules.iter().find(|rule| rule.names().iter().any(|n| n == name));
            rule.is_some_and(|rule| rule.args().is_none())
        };
        for name in
            ["mount", "ptrace", "bpf", "setns", "clone3", "keyctl", "kexec_load", "socketcall"]
        {
            assert!(always(name), "{name}");
        }
        for name in ["mknod", "clone", "ioctl", "socket", "read", "execve", "kill", "tgkill"] {
            assert!(!always(name), "{name}");
        }
        let fifo = 0o010_000;
        let hits = rules.iter().filter(|rule| rule.names().contains(&"mknod".to_owned()));
        let hits_fifo = hits
            .filter_map(|rule| rule.args().clone())
            .flatten()
            .any(|argument| Some(fifo & argument.value()) == argument.value_two());
        assert!(!hits_fifo);
    }

    #[test]
    fn no_thread_gets_open_files_of_its_own_and_files_are_closed_as_ever() {
        let profile = profile(SeccompPolicy { set_id_files: true, shared_ports: true }).unwrap();
        let rules = profile.syscalls().clone().unwrap();
        let is_denied = |name: &str, index: usize, value: u64| {
            let named = rules.iter().filter(|rule| rule.names().iter().any(|n| n == name));
            named.filter_map(|rule| rule.args().clone()).flatten().any(|argument| {
                argument.index() == index && Some(value & argument.value()) == argument.value_two()
            })
        };
        // CLOEXEC alone is harmless.
        for (flags, expected) in [(0, false), (4, false), (2, true), (6, true)] {
            assert_eq!(is_denied("close_range", 2, flags), expected, "{flags}");
        }
        assert!(is_denied("clone", 0, CLONE_THREAD) && !is_denied("clone", 0, CLONE_FILES));
        assert!(!is_denied("clone", 0, CLONE_THREAD | CLONE_FILES));
    }
}
