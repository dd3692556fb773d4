//! Panics, caught and put into one line.
//!
//! The line is made by the hook, which alone knows the place; whoever catches the panic says it
//! together with what is done about it. A panic that nobody here catches is said by the hook.

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
    /// Whether somebody further up catches panics, and says them.
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    /// What the hook has to say of the last panic that is caught.
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Panics between their hook and the moment in which what is to be said of them has been.
static UNREPORTED: AtomicUsize = AtomicUsize::new(0);

/// One of those.
struct Unreported;

impl Drop for Unreported {
    fn drop(&mut self) {
        UNREPORTED.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until every panic that is being unwound has been told by whoever catches it. What a panic
/// takes with it is missed by others before the panic itself is caught: they wait here, and the
/// cause is told first.
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
    /// Goes on as if it had not been caught.
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

/// What a panic says of itself.
pub(crate) fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&'static str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words")
}

pub(crate) fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// From here on a panic of this process is one line on standard error, and counted. With
/// `RUST_BACKTRACE` set it is followed by where it came from.
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
            // Before anything is unwound.
            if LAST_PANIC.replace(Some(line)).is_none() {
                UNREPORTED.fetch_add(1, Ordering::SeqCst);
            }
        } else {
            print_error(&format!("cell: a task {line}"));
        }
    }));
}

/// Does the work; a panic in it is an error.
///
/// # Errors
/// That it panicked.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, CaughtPanic> {
    let before = CATCHING.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    CATCHING.set(before);
    let reported = LAST_PANIC.take();
    let unreported = reported.is_some().then(|| Unreported);
    match done {
        Ok(done) => {
            // Somebody inside caught it, who knew less of it.
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

/// The same for what takes its time.
///
/// # Errors
/// That it panicked.
pub fn catch_panic_async<F: Future>(
    work: F,
) -> impl Future<Output = Result<F::Output, CaughtPanic>> {
    CatchPanic { work: Some(Box::pin(work)), point: None }
}

/// The same for a task that a test may have panic by its name, whatever it is at.
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
        // Polled after its end, which nobody does.
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
    /// What is left after a panic may panic once more on its way out.
    fn drop(&mut self) {
        let rest = self.work.take();
        if let Err(panicked) = catch_panic(|| drop(rest)) {
            print_error(&format!("cell: what was left of a task {panicked}"));
        }
    }
}
