//! Removes the folder of a test with all that its cells left there: shims and everything below
//! them, control groups, mounts.
//!
//! Shims outlive their agent, as they are made to, so a test that has ended its cell has not ended
//! its tasks. What a test says about ends it says before its folder goes: nothing is ended here
//! that anybody still looks at.
//!
//! The tests of the command line take this file in by its path, for nothing depends on this
//! package. Rejected: control groups as the list of what is left. Who is not root has none.

use cellwright_agent::cgroups::TaskCgroups;
use cellwright_agent::proc::{self, Process};
use cellwright_isolate::mounts;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// For all that is left in one folder; only a hung kernel uses it up.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(60);
/// Looks at what is below a shim, until all of it stands still.
const STOP_PASSES: u32 = 100;
/// Folders between that of a test and those of its agents.
const AGENTS_BELOW: u32 = 3;

/// Removes `folder`, which may be gone already. Every cell in it has ended: an agent that still
/// runs starts again what is ended here.
///
/// # Panics
/// When something does not go.
pub fn remove(folder: &Path) {
    if let Err(why) = try_remove(folder) {
        let words = format!("{} is left behind: {why}", folder.display());
        // A second panic would hide why the test failed.
        assert!(std::thread::panicking(), "{words}");
        eprintln!("{words}");
    }
}

fn try_remove(folder: &Path) -> Result<(), String> {
    // The agent says to its shims where they really are.
    let Ok(real) = folder.canonicalize() else { return Ok(()) };
    let until = Instant::now() + CLEANUP_TIMEOUT;
    loop {
        let shims = shims_in(&[folder, &real]);
        if shims.is_empty() {
            break;
        }
        if Instant::now() >= until {
            return Err(format!("shims turn up again and again: {shims:?}"));
        }
        for shim in shims {
            end(&shim, until)?;
        }
    }
    for agent in agents_in(&real, AGENTS_BELOW) {
        let groups = TaskCgroups::open(&agent, Default::default(), Default::default());
        groups.sweep(&BTreeSet::new());
        groups.close();
    }
    mounts::remove_tree(&real).map_err(|why| why.to_string())
}

/// Those that live, of all that belong to these folders.
fn shims_in(folders: &[&Path]) -> Vec<Process> {
    let is_theirs = |process: &Process| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        let mut words = line.split('\0').skip(1);
        let is_shim = words.next() == Some("shim");
        let at = words.next().map(Path::new);
        is_shim && at.is_some_and(|at| folders.iter().any(|folder| at.starts_with(folder)))
    };
    proc::list().into_values().filter(|one| !one.is_zombie && is_theirs(one)).collect()
}

/// Ends a shim and everything below it. All of it is stopped first: what is killed while it starts
/// something would leave that to another reaper, and nobody could tell whose it was.
fn end(shim: &Process, until: Instant) -> Result<(), String> {
    let Some(held) = ProcessHandle::of(shim) else { return Ok(()) };
    held.send(Signal::STOP);
    let mut below = Vec::new();
    for _ in 0..STOP_PASSES {
        below = proc::descendants(&proc::list(), shim.pid);
        below.retain(|process| !process.is_zombie);
        let mut running = below.iter().filter(|process| !process.is_stopped).peekable();
        if running.peek().is_none() {
            break;
        }
        running.filter_map(ProcessHandle::of).for_each(|one| one.send(Signal::STOP));
    }
    let all: Vec<ProcessHandle> =
        below.iter().filter_map(ProcessHandle::of).chain([held]).collect();
    all.iter().for_each(|one| one.send(Signal::KILL));
    all.iter().try_for_each(|one| one.ended(until))
}

/// A process by what stays its own when its number is given to another.
struct ProcessHandle {
    number: i32,
    handle: OwnedFd,
}

impl ProcessHandle {
    /// Nothing if it is gone.
    fn of(process: &Process) -> Option<ProcessHandle> {
        let handle = pidfd_open(Pid::from_raw(process.pid)?, PidfdFlags::empty()).ok()?;
        // The number may have been another's by then.
        let is_same = proc::get(process.pid).is_some_and(|now| now.born == process.born);
        is_same.then_some(ProcessHandle { number: process.pid, handle })
    }

    fn send(&self, signal: Signal) {
        // Gone meanwhile is what is wanted.
        let _ = pidfd_send_signal(&self.handle, signal);
    }

    fn ended(&self, until: Instant) -> Result<(), String> {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|why| why.to_string())?;
        let ended = poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], Some(&left));
        match ended {
            Ok(1..) => Ok(()),
            Ok(0) => Err(format!("process {} does not end", self.number)),
            Err(why) => Err(format!("process {}: {why}", self.number)),
        }
    }
}

/// Folders of agents, which write down there which boot it is.
fn agents_in(folder: &Path, depth: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if folder.join("incarnation").is_file() && folder.join("tasks").is_dir() {
        found.push(folder.to_owned());
    } else if depth > 0 {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            // A link is no folder here: what it leads to is not the test's.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.extend(agents_in(&entry.path(), depth - 1));
            }
        }
    }
    found
}
