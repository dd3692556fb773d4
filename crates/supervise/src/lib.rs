//! Nothing that a process needs dies silently.
//!
//! A task or thread that panics takes nobody with it: the rest of the process goes on, and what the
//! dead one did is not done any more. A master without its core loop refuses all work and still
//! leads; an agent without its line to the masters is mute. So every task of a process that serves
//! is one of three kinds, and says which where it is started:
//!
//! * **essential** ([`Supervisor::spawn_essential`], [`Supervisor::spawn_finite`], [`Supervisor::spawn_thread`]): its
//!   panic, and its end if it has none, ends the process with one line and [`EXIT_CODE`]. Whoever
//!   started the process starts it again, and what was promised is on the disk.
//! * **restarted** ([`Supervisor::spawn_restarting`]): the process is of use without it. It is started
//!   again after a pause, and how often is counted.
//! * **of one request** ([`spawn_request`], [`catch_panic_async`], [`catch_panic`]): whoever asked is told that it
//!   failed, and nobody else notices. Such panics are counted too.
//!
//! `cargo xtask tidy` finds tasks that are started in another way.
//!
//! Rejected: `panic = "abort"`. One request that finds a bug would end the process for everybody,
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

/// How a process ends whose essential task ended: `EX_SOFTWARE` of sysexits.
pub const EXIT_CODE: u8 = 70;

/// First and longest pause before a task that panicked is started again.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// One that lived this long was in order: the next pause is a short one again.
const BACKOFF_RESET_AFTER: Duration = Duration::from_secs(30);

/// By then a runtime that goes away is gone.
const RUNTIME_SHUTDOWN_GRACE: Duration = Duration::from_millis(20);

/// What is done when an essential task has ended: the task and why, in words.
pub type FailureHook = Arc<dyn Fn(&str) + Send + Sync>;

/// Says why and ends the process, unless it ends in order already.
pub fn exit_unless_stopping(why: &str) {
    if is_process_stopping() {
        return print_error(&format!("cell: {why}"));
    }
    exit_fatal(why)
}

/// Says why and ends the process.
#[expect(clippy::disallowed_methods, reason = "the rest of the process must not go on")]
pub fn exit_fatal(why: &str) -> ! {
    print_error(&format!("cell: cannot go on: {why}"));
    std::process::exit(EXIT_CODE.into());
}

/// Whether the process was told to end: then its tasks may.
static PROCESS_STOPPING: AtomicBool = AtomicBool::new(false);

/// From here on the process ends in order, and tasks that end are no accident.
pub fn mark_process_stopping() {
    PROCESS_STOPPING.store(true, Ordering::SeqCst);
}

fn is_process_stopping() -> bool {
    PROCESS_STOPPING.load(Ordering::SeqCst)
}

/// On standard error, which may be closed.
pub(crate) fn print_error(line: &str) {
    let _ = writeln!(io::stderr(), "{}", escape_control(line));
}

/// What panics and errors quote is what others wrote: on a terminal it commands nothing. A trace of
/// calls has several lines.
fn escape_control(text: &str) -> String {
    let is_control = |c: char| {
        (c.is_control() && !matches!(c, '\n' | '\t'))
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match is_control(c) {
            true => out.extend(c.escape_unicode()),
            false => out.push(c),
        }
    }
    out
}

/// Watches over the essential tasks of one part of a process.
#[derive(Clone)]
pub struct Supervisor(Arc<Inner>);

struct Inner {
    hook: FailureHook,
    /// What is done about a panic after the part was told to stop: too late to end anything, and
    /// not to be kept silent either.
    late_panic_hook: FailureHook,
    /// The part was told to stop.
    stopping: AtomicBool,
    /// What ended first, and why.
    failure: OnceLock<String>,
}

impl Default for Supervisor {
    /// The process ends with any of the tasks.
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
    /// One that does something else than ending the process: many replicas may be simulated in one.
    #[must_use]
    pub fn with_hook(hook: FailureHook) -> Supervisor {
        Supervisor::with_hooks(hook.clone(), hook)
    }

    fn with_hooks(hook: FailureHook, late_panic_hook: FailureHook) -> Supervisor {
        let (stopping, fallen) = (AtomicBool::new(false), OnceLock::new());
        Supervisor(Arc::new(Inner { hook, late_panic_hook, stopping, failure: fallen }))
    }

    /// Runs what must not end before [`Supervisor::mark_stopping`], unless it is aborted.
    pub fn spawn_essential(
        &self,
        task: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let supervisor = self.clone();
        tokio::spawn(async move {
            match catch_panic_at(task, work).await {
                // Of a process that ends, tasks lose those whom they work for.
                Ok(()) if is_process_stopping() => {}
                Ok(()) => supervisor.report_ended(task).await,
                Err(panicked) => supervisor.report_panic(task, &panicked),
            }
        })
    }

    /// Runs what comes to its end, and must not panic on the way.
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

    /// A thread that ends when nobody needs it any more, and must not panic.
    ///
    /// # Errors
    /// When the system gives none.
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

    /// Runs what the process can do without for a while: made anew when it panics, after a pause
    /// that grows, and counted. Its own end is one.
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

    /// Something essential has ended without a panic of its own; if that of another took it along,
    /// that one is told instead.
    pub async fn report_ended(&self, task: &str) {
        wait_all_reported().await;
        // A runtime that goes away takes its tasks along in no order, and this one with them: it is
        // dropped here. Whatever is left of a runtime that stays has really ended.
        sleep(RUNTIME_SHUTDOWN_GRACE).await;
        self.report_failure(&format!("{task} ended"));
    }

    /// Something essential panicked.
    pub fn report_panic(&self, task: &str, panicked: &CaughtPanic) {
        let why = format!("{task} {panicked}");
        if self.is_stopping() {
            return (self.0.late_panic_hook)(&why);
        }
        self.report_failure(&why);
    }

    /// Something essential is over, with `why` in words.
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

/// Runs what belongs to one request or one connection: whoever waits for it finds it gone, and a
/// panic in it is said and counted.
pub fn spawn_request(
    task: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        // Pinned here, so that what is left of it is dropped last: whoever finds it gone finds it
        // counted.
        let mut work = pin!(catch_panic_at(task, work));
        if let Err(panicked) = work.as_mut().await {
            note_handler_panic();
            print_error(&format!("cell: {task} {panicked}; only who asked for it notices"));
        }
    })
}

/// A task that panicked is started again by whoever calls this.
pub fn note_restart(task: &'static str, panicked: &CaughtPanic) {
    // Agents and schedulers have no page of metrics, so the line says how often.
    let count = counters::add_restart(task);
    print_error(&format!("cell: {task} {panicked}; it is started again (restart {count})"));
}

#[cfg(test)]
mod tests;
