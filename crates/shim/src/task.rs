//! The program and all its descendants: started once, stopped, killed, reaped.

use crate::boot;
use crate::proc::Process;
use crate::protocol::{Exit, ExitCause, Launch, OomCause, Status, VERSION};
use crate::sandbox::Sandbox;
use crate::spawn::spawn_program;
use cellwright_cell::task::{ExitClass, NoticeOutcome};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, WaitStatus, kill_process,
    kill_process_group, wait, waitid, waitpid,
};
use std::io;
use std::os::fd::OwnedFd;

/// Interval between two sweeps of what does not die at once; doubled from one to the next, up to
/// the second.
const SWEEP_INTERVAL_MILLIS: u64 = 20;
const MAX_SWEEP_INTERVAL_MILLIS: u64 = 1000;
/// Passes that stop processes which fork faster than they are found, before all of them are killed.
const STOP_PASSES: u32 = 20;
/// A lease is checked at least this often: the timer stands still while the machine sleeps, the
/// lease does not.
const LEASE_CHECK_MILLIS: u64 = 1000;
/// When a program that runs is added to the unified hierarchy: most that end soon have ended by
/// then, and for those it would be work for nothing.
const COUNT_AFTER_MILLIS: u64 = 20;
/// Reports an exit and leaves the process to be reaped.
const WAIT_WITHOUT_REAPING: WaitIdOptions =
    WaitIdOptions::EXITED.union(WaitIdOptions::NOHANG).union(WaitIdOptions::NOWAIT);

/// The program's output.
pub struct Pipes {
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

pub struct Task {
    pid: Pid,
    sandbox: Sandbox,
    started: u64,
    /// How the program itself ended.
    ended: Option<(Option<i32>, Option<i32>)>,
    /// Whether that was the container's seccomp filter.
    is_filtered_exit: bool,
    /// Out-of-memory kills in its cgroup.
    memory: OomCause,
    /// Why it is to die, from the first request.
    cause: Option<ExitCause>,
    /// Whether it was given notice, and could handle it.
    was_warned: bool,
    /// Whether it still ran when it was killed.
    was_killed: bool,
    kill_at: Option<u64>,
    lease_until: Option<u64>,
    run_until: Option<u64>,
    /// Sweeps that left something.
    sweeps: u32,
    has_children: bool,
    /// Whether every hierarchy counts it.
    is_counted: bool,
}

/// Starts the program in its sandbox.
///
/// # Errors
/// When the system cannot start it; the text is for its owner.
pub fn start(
    launch: &Launch,
    sandbox: Sandbox,
) -> Result<(Task, Pipes), Box<(io::Error, Sandbox)>> {
    let (pid, pipes) = match spawn_program(launch, &sandbox) {
        Ok(spawned) => spawned,
        Err(why) => return Err(Box::new((why, sandbox))),
    };
    let started = boot::now();
    let task = Task {
        pid,
        sandbox,
        started,
        ended: None,
        is_filtered_exit: false,
        memory: OomCause::Nothing,
        cause: None,
        was_warned: false,
        was_killed: false,
        kill_at: None,
        lease_until: launch.lease_until,
        run_until: launch.max_run.map(|length| started.saturating_add(length)),
        sweeps: 0,
        has_children: true,
        is_counted: false,
    };
    Ok((task, pipes))
}

/// Whether processes are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remaining {
    Some,
    Nothing,
}

impl Task {
    pub fn status(&self) -> Status {
        Status {
            version: VERSION,
            shim: rustix::process::getpid().as_raw_nonzero().get(),
            pid: self.pid.as_raw_nonzero().get(),
            started: self.started,
            stopping: self.cause.is_some(),
            lease_until: self.lease_until,
        }
    }

    /// Gives the program notice, and kills it and its descendants `grace` later. A second call can
    /// only shorten the grace.
    pub fn stop(&mut self, grace: u64) {
        // A program that ended before the request did so by itself.
        self.reap();
        let at = boot::now().saturating_add(grace);
        self.kill_at = Some(self.kill_at.map_or(at, |before| before.min(at)));
        if self.ended.is_none() && self.cause.is_none() {
            self.cause = Some(ExitCause::Told);
            if grace > 0 {
                self.signal(Signal::TERM);
                self.was_warned = !self.is_signal_dropped_by_kernel(Signal::TERM);
                if !self.was_warned {
                    self.kill_at = Some(boot::now());
                }
            }
        }
    }

    /// Kills it at once, for a reason that its owner gets.
    pub fn condemn(&mut self, class: Option<ExitClass>, why: &str) {
        self.reap();
        if self.ended.is_none() {
            self.cause.get_or_insert(ExitCause::Condemned { class, why: why.to_owned() });
            self.kill_at = Some(boot::now());
        }
    }

    /// The kernel drops every signal to the first process of a container that it does not handle
    /// itself, where any other would end. It is to end all the same.
    fn is_signal_dropped_by_kernel(&self, signal: Signal) -> bool {
        let Some(_) = &self.sandbox.container else { return false };
        let path = format!("/proc/{}/status", self.pid.as_raw_nonzero());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let bit = 1u64 << (signal.as_raw() - 1);
        let has = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
            mask.is_some_and(|mask| mask & bit != 0)
        };
        !text.is_empty() && !has("SigCgt:") && !has("SigIgn:")
    }

    pub fn signal(&self, signal: Signal) {
        if self.ended.is_none() {
            // Gone meanwhile: the next poll finds it.
            let _ = kill_process_group(self.pid, signal);
        }
    }

    pub fn renew(&mut self, until: u64) {
        if self.lease_until.is_none_or(|before| until > before) {
            self.lease_until = Some(until);
        }
    }

    /// Milliseconds until [`Task::poll`] has something to do, if nothing happens before.
    pub fn next_poll(&self) -> Option<u64> {
        let again = (SWEEP_INTERVAL_MILLIS << self.sweeps.min(10)).min(MAX_SWEEP_INTERVAL_MILLIS);
        if self.ended.is_some() {
            return Some(again);
        }
        let now = boot::now();
        let count_at = (!self.is_counted).then(|| self.count_at());
        let times = [self.kill_at, self.run_until, self.lease_until, count_at];
        let at = times.into_iter().flatten().min()?;
        let wait = at.saturating_sub(now).max(if at <= now { again } else { 1 });
        Some(if self.lease_until.is_some() { wait.min(LEASE_CHECK_MILLIS) } else { wait })
    }

    /// Checks children and clocks, and kills what is due. Nothing is left when the program and all
    /// its descendants are gone.
    pub fn poll(&mut self) -> Remaining {
        self.reap();
        let now = boot::now();
        let has_passed = |at: Option<u64>| at.is_some_and(|at| at <= now);
        if self.ended.is_none() && !self.is_counted && now >= self.count_at() {
            self.is_counted = true;
            self.sandbox.count_in_all_hierarchies(self.pid);
        }
        if self.ended.is_none() && has_passed(self.lease_until) {
            self.cause.get_or_insert(ExitCause::LeaseOver);
        } else if self.ended.is_none() && has_passed(self.run_until) {
            self.cause.get_or_insert(ExitCause::RanTooLong);
        } else if self.ended.is_none() && !has_passed(self.kill_at) {
            return Remaining::Some;
        }
        self.sweep()
    }

    fn count_at(&self) -> u64 {
        self.started.saturating_add(COUNT_AFTER_MILLIS)
    }

    /// Kills all descendants of this process. Processes that fork would escape a list that is
    /// already old, so all are stopped first, until a pass finds none that runs.
    fn sweep(&mut self) -> Remaining {
        self.was_killed |= self.ended.is_none();
        // Without children there are no descendants, and no need to scan all of `/proc`.
        if self.has_children {
            for _ in 0..STOP_PASSES {
                let running: Vec<_> = descendants().into_iter().filter(|p| !p.is_stopped).collect();
                if running.is_empty() {
                    break;
                }
                signal_all(&running, Signal::STOP);
            }
            signal_all(&descendants(), Signal::KILL);
        }
        // Processes that `/proc` did not list.
        self.signal(Signal::KILL);
        let empty = self.sandbox.kill();
        self.reap();
        if self.ended.is_some() && !self.has_children && empty {
            return Remaining::Nothing;
        }
        self.sweeps = self.sweeps.saturating_add(1);
        Remaining::Some
    }

    /// The reaper of all its descendants has no children only when there are none.
    fn reap(&mut self) {
        loop {
            match self.reap_one() {
                Ok(Some((pid, status))) if pid == self.pid => {
                    let signal = status.terminating_signal();
                    let reported_signal =
                        if self.is_filtered_exit { Some(Signal::KILL.as_raw()) } else { signal };
                    self.ended = Some((status.exit_status(), reported_signal));
                    self.memory = self.sandbox.memory();
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return self.has_children = true,
                Err(_) => return self.has_children = false,
            }
        }
    }

    /// Reaps one child, if one has exited.
    ///
    /// How a program in a container ended can be inspected until it is reaped. So until then,
    /// processes are reaped only by pid: the program after that inspection, and others one by one.
    /// Waiting for any child would also reap a program that exits after the inspection. Others are
    /// rare: what a program in a container leaves behind becomes a child of that program.
    fn reap_one(&mut self) -> rustix::io::Result<Option<(Pid, WaitStatus)>> {
        if self.ended.is_some() || self.sandbox.container.is_none() {
            return wait(WaitOptions::NOHANG);
        }
        if let Some(end) = waitid(WaitId::Pid(self.pid), WAIT_WITHOUT_REAPING)? {
            self.is_filtered_exit = self.is_filtered(&end);
            return waitpid(Some(self.pid), WaitOptions::NOHANG);
        }
        if waitid(WaitId::All, WAIT_WITHOUT_REAPING)?.is_none() {
            return Ok(None);
        }
        for other in zombies().filter(|pid| *pid != self.pid) {
            if let Some(ended) = waitpid(Some(other), WaitOptions::NOHANG)? {
                return Ok(Some(ended));
            }
        }
        // The program itself, just now: its signal is still to come, and with it the next poll.
        Ok(None)
    }

    /// Whether this exit was caused by the container's filter. The kernel drops the SIGKILL that
    /// the first process of a container sends itself, so that filter ends it by SIGSYS. It is
    /// reported as the SIGKILL it tried.
    fn is_filtered(&self, end: &WaitIdStatus) -> bool {
        let by_filter = end.terminating_signal() == Some(Signal::SYS.as_raw());
        let own_filters = || filters(&self.pid.as_raw_nonzero().to_string());
        by_filter && has_no_own_filter(own_filters(), filters("self"))
    }

    /// The sandbox of the task, to be torn down.
    pub fn into_sandbox(self) -> Sandbox {
        self.sandbox
    }

    /// The outcome of the notice; nothing for a task that was not told to stop. Descendants that it
    /// leaves when it ends do not count against it.
    fn notice(&self) -> Option<NoticeOutcome> {
        match (&self.cause, self.was_warned, self.was_killed) {
            (Some(ExitCause::Told), true, false) => Some(NoticeOutcome::LeftInTime),
            (Some(ExitCause::Told), true, true) => Some(NoticeOutcome::Overrun),
            (Some(ExitCause::Told), false, _) => Some(NoticeOutcome::NotGiven),
            _ => None,
        }
    }

    /// The exit, once nothing is left.
    pub fn exit(&self) -> Exit {
        let (code, signal) = self.ended.unwrap_or((None, None));
        let ended = boot::now();
        Exit {
            code,
            signal,
            cause: self.cause.clone().unwrap_or(ExitCause::Itself),
            memory: self.memory,
            notice: self.notice(),
            started: Some(self.started),
            ended,
            filtered: self.is_filtered_exit,
            usage: Some(self.sandbox.final_reading(self.started, ended)),
        }
    }
}

/// Seccomp filters of a process; kernels before 5.9 do not report them.
fn filters(process: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let count = status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"))?;
    count.trim().parse().ok()
}

/// One filter is the container's; those of this process are inherited. Where the kernel does not
/// report them, it is taken for the container's.
fn has_no_own_filter(own_count: Option<u64>, here: Option<u64>) -> bool {
    own_count <= here.map(|here| here + 1)
}

/// Children of this process that have ended.
fn zombies() -> impl Iterator<Item = Pid> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let all = crate::proc::list().into_values();
    let ended = all.filter(move |process| process.is_zombie && process.parent == own);
    ended.filter_map(|process| Pid::from_raw(process.pid))
}

fn descendants() -> Vec<Process> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let all = crate::proc::descendants(&crate::proc::list(), own);
    all.into_iter().filter(|process| !process.is_zombie).collect()
}

fn signal_all(to: &[Process], signal: Signal) {
    for pid in to.iter().filter_map(|process| Pid::from_raw(process.pid)) {
        // A process that is gone meanwhile is fine.
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_of_its_own_is_told_from_the_containers() {
        assert!(has_no_own_filter(Some(1), Some(0)) && has_no_own_filter(Some(3), Some(2)));
        assert!(!has_no_own_filter(Some(2), Some(0)) && !has_no_own_filter(Some(4), Some(2)));
        assert!(has_no_own_filter(None, None), "kernels before 5.9");
    }
}
