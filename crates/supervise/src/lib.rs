//! Supervision of tasks and threads: nothing that a process needs dies silently.
//!
//! A task or thread that panics does not end the process: the rest goes on, and the work of the
//! dead task is no longer done. A master without its core loop refuses all work and still leads; an
//! agent without its connection to the masters reports nothing. So every task of a process that
//! serves is one of three kinds, declared where it is started:
//!
//! * **essential** ([`Supervisor::spawn_essential`], [`Supervisor::spawn_finite`],
//!   [`Supervisor::spawn_thread`]): its panic, and its end if it should never end, ends the process
//!   with one line and [`EXIT_CODE`]. The process is then started again by its parent, and what was
//!   promised is on the disk.
//! * **restarting** ([`Supervisor::spawn_restarting`]): the process is of use without it. It is
//!   started again after a backoff, and the restarts are counted.
//! * **of one request** ([`spawn_request`], [`catch_panic_async`], [`catch_panic`]): the caller
//!   gets an error, and no other request notices. Such panics are counted too.
//!
//! `cargo xtask tidy` finds tasks that are started in another way.
//!
//! Rejected: `panic = "abort"`. One request that finds a bug would end the process for every user,
//! and could be sent again.

mod counters;
mod failpoint;
mod heap_trim;
mod locks;
mod panic;
mod panic_recorder;

pub use counters::{handler_panics, note_handler_panic, panics, restarts};
pub use failpoint::failpoint;
pub use heap_trim::{trim_heap, trim_heap_periodically};
pub use locks::{exit_on_poisoned_lock, lock};
pub use panic::{CaughtPanic, catch_panic, catch_panic_async, report_in_one_line};
pub use panic_recorder::record_panics;

use panic::{catch_panic_at, wait_all_reported};

use std::future::Future;
use std::io::{self, Write};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// The exit code of a process whose essential task ended: `EX_SOFTWARE` of sysexits.
pub const EXIT_CODE: u8 = 70;

/// First and longest backoff before a task that panicked is started again.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A task that ran this long was healthy: the next backoff is a short one again.
const BACKOFF_RESET_AFTER: Duration = Duration::from_secs(30);

/// By then the tasks of a runtime that is shutting down are gone.
const RUNTIME_SHUTDOWN_GRACE: Duration = Duration::from_millis(20);

/// Called when an essential task has ended, with the task and the reason as text.
pub type FailureHook = Arc<dyn Fn(&str) + Send + Sync>;

/// Prints the reason and ends the process, unless it is stopping in order already.
pub fn exit_unless_stopping(why: &str) {
    if is_process_stopping() {
        return print_error(&format!("cell: {why}"));
    }
    exit_fatal(why)
}

/// Prints the reason and ends the process.
#[expect(clippy::disallowed_methods, reason = "the rest of the process must not go on")]
pub fn exit_fatal(why: &str) -> ! {
    print_error(&format!("cell: cannot go on: {why}"));
    std::process::exit(EXIT_CODE.into());
}

/// Whether the process was asked to stop: then its tasks may end.
static PROCESS_STOPPING: AtomicBool = AtomicBool::new(false);

/// From here on the process is stopping in order, and tasks that end are no failure.
pub fn mark_process_stopping() {
    PROCESS_STOPPING.store(true, Ordering::SeqCst);
}

fn is_process_stopping() -> bool {
    PROCESS_STOPPING.load(Ordering::SeqCst)
}

/// Prints to standard error, which may be closed.
pub(crate) fn print_error(line: &str) {
    let _ = writeln!(io::stderr(), "{}", escape_control(line));
}

/// Panics and errors quote text from outside, so control characters are escaped and cannot command
/// a terminal. Line breaks stay, because a backtrace has several lines.
fn escape_control(text: &str) -> String {
    let is_control = |c: char| {
        (c.is_control() && !matches!(c, '\n' | '\t'))
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_control(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

/// Supervises the essential tasks of one part of a process.
#[derive(Clone)]
pub struct Supervisor(Arc<Inner>);

struct Inner {
    hook: FailureHook,
    /// Called for a panic after the part was asked to stop: too late to end anything, but it must
    /// be reported.
    late_panic_hook: FailureHook,
    /// The part was asked to stop.
    stopping: AtomicBool,
    /// What ended first, and why.
    failure: OnceLock<String>,
}

impl Default for Supervisor {
    /// Ends the process when any of the tasks ends.
    fn default() -> Supervisor {
        Supervisor::with_hooks(
            Arc::new(exit_unless_stopping),
            Arc::new(|why| print_error(&format!("cell: {why}"))),
        )
    }
}

impl std::fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervisor").field("fallen", &self.failure()).finish_non_exhaustive()
    }
}

impl Supervisor {
    /// A supervisor that calls `hook` instead of ending the process: many replicas may be simulated
    /// in one process.
    #[must_use]
    pub fn with_hook(hook: FailureHook) -> Supervisor {
        Supervisor::with_hooks(hook.clone(), hook)
    }

    fn with_hooks(hook: FailureHook, late_panic_hook: FailureHook) -> Supervisor {
        let (stopping, fallen) = (AtomicBool::new(false), OnceLock::new());
        Supervisor(Arc::new(Inner { hook, late_panic_hook, stopping, failure: fallen }))
    }

    /// Runs a task that must not end before [`Supervisor::mark_stopping`], unless it is aborted.
    pub fn spawn_essential(
        &self,
        task: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let supervisor = self.clone();
        tokio::spawn(async move {
            match catch_panic_at(task, work).await {
                // In a process that is stopping, tasks lose the tasks they work for.
                Ok(()) if is_process_stopping() => {}
                Ok(()) => supervisor.report_ended(task).await,
                Err(panicked) => supervisor.report_panic(task, &panicked),
            }
        })
    }

    /// Runs a task that may end, and must not panic.
    pub fn spawn_finite(
        &self,
        task: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let supervisor = self.clone();
        tokio::spawn(async move {
            if let Err(panicked) = catch_panic_at(task, work).await {
                supervisor.report_panic(task, &panicked);
            }
        })
    }

    /// Runs a thread that ends when it is no longer needed, and must not panic.
    ///
    /// # Errors
    /// When the system cannot create a thread.
    pub fn spawn_thread(
        &self,
        task: &'static str,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<thread::JoinHandle<()>> {
        let supervisor = self.clone();
        thread::Builder::new().name(task.into()).spawn(move || {
            if let Err(panicked) = catch_panic(work) {
                supervisor.report_panic(&format!("the thread {task}"), &panicked);
            }
        })
    }

    /// Runs a task that the process can do without for a while. When it panics it is made anew
    /// after a growing backoff, and the restart is counted. When it returns, it is done.
    pub fn spawn_restarting<F>(
        &self,
        task: &'static str,
        mut make_future: impl FnMut() -> F + Send + 'static,
    ) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        tokio::spawn(async move {
            let mut backoff = BACKOFF_MIN;
            loop {
                let started = Instant::now();
                let Err(panicked) = catch_panic_at(task, make_future()).await else { return };
                if started.elapsed() >= BACKOFF_RESET_AFTER {
                    backoff = BACKOFF_MIN;
                }
                note_restart(task, &panicked);
                sleep(backoff).await;
                backoff = (backoff * 2).min(BACKOFF_MAX);
            }
        })
    }

    /// From here on tasks may end.
    pub fn mark_stopping(&self) {
        self.0.stopping.store(true, Ordering::SeqCst);
    }

    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.0.stopping.load(Ordering::SeqCst)
    }

    /// The first essential task that ended, if one did: the process is of no use any more.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.0.failure.get().map(String::as_str)
    }

    /// Reports that an essential task has ended without a panic of its own; if the panic of another
    /// task caused it, that panic is reported instead.
    pub async fn report_ended(&self, task: &str) {
        wait_all_reported().await;
        // A runtime that shuts down drops its tasks in no order, and this one with them. If the
        // runtime is still there afterwards, the task has really ended.
        sleep(RUNTIME_SHUTDOWN_GRACE).await;
        self.report_failure(&format!("{task} ended"));
    }

    /// Reports that an essential task panicked.
    pub fn report_panic(&self, task: &str, panicked: &CaughtPanic) {
        let why = format!("{task} {panicked}");
        if self.is_stopping() {
            return (self.0.late_panic_hook)(&why);
        }
        self.report_failure(&why);
    }

    /// Reports that an essential task is over, for the reason `why`.
    pub fn report_failure(&self, why: &str) {
        if self.is_stopping() {
            return;
        }
        // The first one is the cause; others follow from it.
        if self.0.failure.set(why.to_owned()).is_ok() {
            (self.0.hook)(why);
        }
    }
}

/// Runs a task of one request or one connection. Its callers find it gone when it panics, and the
/// panic is printed and counted.
pub fn spawn_request(
    task: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        // Pinned here, so that the rest of it is dropped last: a caller that finds it gone also
        // finds the panic counted.
        let mut work = pin!(catch_panic_at(task, work));
        if let Err(panicked) = work.as_mut().await {
            note_handler_panic();
            print_error(&format!("cell: {task} {panicked}; only who asked for it notices"));
        }
    })
}

/// Reports that the caller starts a task again after it panicked.
pub fn note_restart(task: &'static str, panicked: &CaughtPanic) {
    // Agents and schedulers have no metrics page, so the line contains the count.
    let count = counters::add_restart(task);
    print_error(&format!("cell: {task} {panicked}; it is started again (restart {count})"));
}

#[cfg(test)]
mod tests;
