//! Catches panics and reports each on one line.
//!
//! The line is made by the panic hook, which alone knows the source location; the code that catches
//! the panic prints it together with what is done about it. A panic that is not caught here is
//! printed by the hook.

use crate::{counters, failpoint, panic_recorder, print_error};
use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

thread_local! {
    /// Whether a caller further up catches panics and reports them.
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    /// The line that the hook made for the last panic that is caught.
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Panics whose hook has run and which have not been reported yet.
static UNREPORTED: AtomicUsize = AtomicUsize::new(0);

/// One unreported panic.
struct Unreported;

impl Drop for Unreported {
    fn drop(&mut self) {
        UNREPORTED.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until every panic that is being unwound has been reported by the code that catches it.
/// Other tasks may notice what a panic dropped before the panic itself is caught: they wait here,
/// and the cause is reported first.
pub(crate) async fn wait_all_reported() {
    while UNREPORTED.load(Ordering::SeqCst) > 0 {
        tokio::task::yield_now().await;
    }
}

/// A panic that was caught.
pub struct CaughtPanic {
    text: String,
    payload: Box<dyn Any + Send>,
    unreported: Option<Unreported>,
}

impl CaughtPanic {
    /// Continues the panic as if it had not been caught.
    pub fn resume(self) -> ! {
        let CaughtPanic { payload, unreported, .. } = self;
        drop(unreported);
        resume_unwind(payload)
    }
}

impl std::fmt::Display for CaughtPanic {
    /// `panicked at FILE:LINE:COLUMN: MESSAGE`, on one line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::fmt::Debug for CaughtPanic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// The message of a panic.
pub(crate) fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&'static str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words")
}

pub(crate) fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// From here on each panic of this process is one line on standard error, and counted. With
/// `RUST_BACKTRACE` set it is followed by the backtrace.
pub fn report_in_one_line() {
    std::panic::set_hook(Box::new(|info| {
        counters::add_panic();
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let line = one_line(&format!("panicked at {place}: {}", message(info.payload())));
        panic_recorder::record_line(&line);
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            print_error(&trace.to_string());
        }
        if CATCHING.get() {
            // This happens before anything is unwound.
            if LAST_PANIC.replace(Some(line)).is_none() {
                UNREPORTED.fetch_add(1, Ordering::SeqCst);
            }
        } else {
            print_error(&format!("cell: a task {line}"));
        }
    }));
}

/// Does the work; a panic in it is returned as an error.
///
/// # Errors
/// When the work panicked.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, CaughtPanic> {
    let before = CATCHING.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    CATCHING.set(before);
    let reported = LAST_PANIC.take();
    let unreported = reported.is_some().then(|| Unreported);
    match done {
        Ok(done) => {
            // An inner handler caught it and knew less about it.
            if let Some(line) = reported {
                print_error(&format!("cell: a task {line}"));
            }
            Ok(done)
        }
        Err(payload) => {
            let plain = || one_line(&format!("panicked: {}", message(&*payload)));
            let text = reported.unwrap_or_else(plain);
            Err(CaughtPanic { text, payload, unreported })
        }
    }
}

/// The same for a future.
///
/// # Errors
/// When the work panicked.
pub fn catch_panic_async<F: Future>(
    work: F,
) -> impl Future<Output = Result<F::Output, CaughtPanic>> {
    CatchPanic { work: Some(Box::pin(work)), point: None }
}

/// The same for a task that a test may make panic by its name, at any point.
pub(crate) fn catch_panic_at<F: Future>(
    point: &'static str,
    work: F,
) -> impl Future<Output = Result<F::Output, CaughtPanic>> {
    CatchPanic { work: Some(Box::pin(work)), point: Some(point) }
}

struct CatchPanic<F> {
    work: Option<Pin<Box<F>>>,
    point: Option<&'static str>,
}

impl<F: Future> Future for CatchPanic<F> {
    type Output = Result<F::Output, CaughtPanic>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let point = self.point;
        // Taken by `drop` alone, after which nobody can poll.
        let Some(work) = self.work.as_mut() else { return Poll::Pending };
        let poll = || {
            if let Some(point) = point {
                failpoint(point);
            }
            work.as_mut().poll(context)
        };
        match catch_panic(poll) {
            Ok(polled) => polled.map(Ok),
            Err(panicked) => Poll::Ready(Err(panicked)),
        }
    }
}

impl<F> Drop for CatchPanic<F> {
    /// Dropping the rest after a panic may panic again.
    fn drop(&mut self) {
        let rest = self.work.take();
        if let Err(panicked) = catch_panic(|| drop(rest)) {
            print_error(&format!("cell: what was left of a task {panicked}"));
        }
    }
}
