//! Killing a cgroup until it is empty; freezing it until it stands still.
//!
//! "Killed" means found empty, because its resources are given to a successor. The unified
//! hierarchy kills in one write and wakes us when the last member is gone. Without it we kill each
//! member through a pidfd, which cannot hit another process that got the same pid, and wait on
//! those descriptors. Rejected: `notify_on_release`, which starts a program of the host for a
//! machine-wide setting that is not ours; polling at intervals, which is late or busy.

use super::tree::{Group, children};
use crate::Error;
use crate::kernel_file::{read, read_if_there, write};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub fn processes(directories: &[PathBuf]) -> Result<Vec<u32>, Error> {
    let mut pids = Vec::new();
    for directory in directories {
        collect_pids(directory, &mut pids)?;
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

fn collect_pids(directory: &Path, pids: &mut Vec<u32>) -> Result<(), Error> {
    match read_if_there(&directory.join("cgroup.procs")) {
        Ok(text) => {
            let text = text.unwrap_or_default();
            pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
        }
        Err(error) if holds_threads_only(&error) => {}
        Err(error) => return Err(error),
    }
    for child in children(directory)? {
        collect_pids(&child, pids)?;
    }
    Ok(())
}

/// A v2 cgroup whose members are threads of a process elsewhere refuses to list processes; it holds
/// none.
fn holds_threads_only(error: &Error) -> bool {
    let Error::File { source, .. } = error else { return false };
    source.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error())
}

/// Processes that are opened at once: descriptors are scarcer than processes.
const PIDFD_BATCH: usize = 200;

/// Signals all; returns pidfds of some that were reached, to wait on.
pub fn signal(directories: &[PathBuf], signal: Signal) -> Result<Vec<OwnedFd>, Error> {
    signal_through(directories, signal, |pid| pidfd_open(pid, PidfdFlags::empty()))
}

fn signal_through(
    directories: &[PathBuf],
    signal: Signal,
    open: impl Fn(Pid) -> Result<OwnedFd, Errno>,
) -> Result<Vec<OwnedFd>, Error> {
    let mut reached = Vec::new();
    for pids in processes(directories)?.chunks(PIDFD_BATCH) {
        let handle = |pid: &u32| {
            let handle = i32::try_from(*pid).ok().and_then(Pid::from_raw)?;
            Some((*pid, handle, open(handle)))
        };
        let opened: Vec<(u32, Pid, Result<OwnedFd, Errno>)> =
            pids.iter().filter_map(handle).collect();
        // A pid may have been reused before it was opened; a pidfd cannot, so listing the members
        // now settles which process each stands for.
        let members = processes(directories)?;
        reached.clear();
        for (pid, handle, process) in opened {
            if members.binary_search(&pid).is_err() {
                continue;
            }
            match process {
                Ok(process) if pidfd_send_signal(&process, signal).is_ok() => reached.push(process),
                // Kernels before 5.3 have no `pidfd_open`.
                Err(Errno::NOSYS) => drop(kill_process(handle, signal)),
                _ => {}
            }
        }
    }
    Ok(reached)
}

pub fn kill(group: &Group, timeout: Duration) -> Result<(), Error> {
    let deadline = Instant::now() + timeout;
    let directories = group.directories();
    // As most are whose program has ended.
    if is_empty(group, &processes(&directories)?)? {
        return Ok(());
    }
    if let Some(unified) = group.unified() {
        let kill_file = unified.join("cgroup.kill");
        if kill_file.exists() {
            write(&kill_file, "1")?;
            wait_for_line(&unified.join("cgroup.events"), "populated 0", deadline)?;
        }
    }
    // Processes that the unified hierarchy did not know of, or could not kill.
    loop {
        let dying = signal(&directories, Signal::KILL)?;
        // In v1 a frozen process dies when it is thawed; a task can freeze what it forks.
        if let Some(freezer) = group.freezer() {
            thaw(&freezer);
        }
        let left = processes(&directories)?;
        if is_empty(group, &left)? {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Error::StillAlive { group: group.path().to_string(), pids: left });
        }
        wait_for_exits(&dying, deadline)?;
    }
}

/// Whether no process is left, where `listed` are those that were there.
fn is_empty(group: &Group, listed: &[u32]) -> Result<bool, Error> {
    Ok(listed.is_empty() && group.populated()? != Some(true))
}

/// A cgroup that cannot be thawed shows up as one that does not die.
fn thaw(freezer: &Path) {
    let state = freezer.join("freezer.state");
    if read_if_there(&state).is_ok_and(|text| text.is_some_and(|text| text.trim() != "THAWED")) {
        let _ = write(&state, "THAWED");
    }
    children(freezer).unwrap_or_default().iter().for_each(|child| thaw(child));
}

/// Polling interval for processes whose exit cannot be waited for.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Waits until all have exited or time is up. Without processes to wait for, a listed one that
/// could not be opened is gone by the next pass, which comes after an interval so that it does not
/// spin.
fn wait_for_exits(processes: &[OwnedFd], deadline: Instant) -> Result<(), Error> {
    if processes.is_empty() {
        return poll_until(&mut [], deadline.min(Instant::now() + POLL_INTERVAL)).map(drop);
    }
    for process in processes {
        poll_until(&mut [PollFd::new(process, PollFlags::IN)], deadline)?;
    }
    Ok(())
}

/// Waits until a file of the kernel that notifies of changes has `line`, or time is up.
fn wait_for_line(path: &Path, line: &str, deadline: Instant) -> Result<bool, Error> {
    let Ok(file) = File::open(path) else { return Ok(true) };
    loop {
        let mut buffer = [0u8; 256];
        let Ok(count) = file.read_at(&mut buffer, 0) else { return Ok(true) };
        let text = String::from_utf8_lossy(&buffer[..count]);
        if text.lines().any(|found| found == line) {
            return Ok(true);
        }
        if !poll_until(&mut [PollFd::new(&file, PollFlags::PRI)], deadline)? {
            return Ok(false);
        }
    }
}

/// False when time is up.
fn poll_until(on: &mut [PollFd<'_>], deadline: Instant) -> Result<bool, Error> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(on, Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(e) => return Err(Error::file("wait for", Path::new("a process"))(e.into())),
        }
    }
}

pub fn freeze(group: &Group, frozen: bool, timeout: Duration) -> Result<(), Error> {
    let deadline = Instant::now() + timeout;
    let not_frozen = || Error::NotFrozen { group: group.path().to_string() };
    if let Some(unified) = group.unified() {
        let freeze_file = unified.join("cgroup.freeze");
        if freeze_file.exists() {
            write(&freeze_file, if frozen { "1" } else { "0" })?;
            let line = if frozen { "frozen 1" } else { "frozen 0" };
            let is_reached = wait_for_line(&unified.join("cgroup.events"), line, deadline)?;
            return if is_reached { Ok(()) } else { Err(not_frozen()) };
        }
    }
    let Some(freezer) = group.freezer() else {
        return Err(Error::NoController(super::Controller::Freezer));
    };
    let state = freezer.join("freezer.state");
    let (order, goal) = if frozen { ("FROZEN", "FROZEN") } else { ("THAWED", "THAWED") };
    // v1 does not notify of it; each read makes the kernel try the stragglers again.
    while {
        write(&state, order)?;
        read(&state)?.trim() != goal
    } {
        if Instant::now() >= deadline {
            return Err(not_frozen());
        }
        std::thread::yield_now();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    fn scratch(name: &str) -> PathBuf {
        let base = std::env::temp_dir().join(format!("cellwright-{name}-{}", std::process::id()));
        fs::create_dir_all(&base).unwrap();
        base
    }

    #[test]
    fn a_kernel_without_descriptors_of_processes_is_told_numbers() {
        let base = scratch("numbers");
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        fs::write(base.join("cgroup.procs"), format!("{}\n", child.id())).unwrap();
        let no_pidfd = |_| Err(Errno::NOSYS);
        let reached = signal_through(std::slice::from_ref(&base), Signal::KILL, no_pidfd).unwrap();
        assert_eq!(reached.len(), 0);
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_group_of_threads_holds_no_process_and_stops_no_kill() {
        let refuses = |errno: Errno| Error::File {
            doing: "read",
            path: "cgroup.procs".into(),
            source: errno.into(),
        };
        assert!(holds_threads_only(&refuses(Errno::OPNOTSUPP)));
        assert!(!holds_threads_only(&refuses(Errno::ACCESS)));
    }

    #[test]
    fn a_frozen_group_is_let_go_with_those_inside_it() {
        let base = scratch("frozen");
        fs::create_dir_all(base.join("inner")).unwrap();
        for at in ["freezer.state", "inner/freezer.state"] {
            fs::write(base.join(at), "FROZEN\n").unwrap();
        }
        thaw(&base);
        for at in ["freezer.state", "inner/freezer.state"] {
            assert!(fs::read_to_string(base.join(at)).unwrap().starts_with("THAWED"), "{at}");
        }
        fs::remove_dir_all(base).unwrap();
    }
}
