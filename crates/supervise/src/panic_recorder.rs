//! Records all panics of one thread, whether or not they are caught.
//!
//! A simulated world runs on one thread, and much of what runs in it is joined by third-party code:
//! consensus, join sets, the runtime itself. Each of them may take a panic for an answer that did
//! not come. Here every panic is recorded where it begins, so that none can be swallowed.

use crate::panic::{message, one_line};
use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    /// The panics since recording began.
    static RECORDED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Records a panic of this thread, if recording is on.
pub(crate) fn record_line(line: &str) {
    RECORDED.with_borrow_mut(|recorded| {
        if let Some(recorded) = recorded {
            recorded.push(line.to_owned());
        }
    });
}

/// Does the work, and returns the panics on this thread meanwhile, on one line each.
pub fn record_panics<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    static HOOK_INSTALLED: Once = Once::new();
    HOOK_INSTALLED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let count = || RECORDED.with_borrow(|seen| seen.as_ref().map_or(0, Vec::len));
            let known_count = count();
            before(info);
            // The hook of a process that serves counts it as well.
            if count() == known_count {
                let location = info.location().map(ToString::to_string).unwrap_or_default();
                record_line(&one_line(&format!(
                    "panicked at {location}: {}",
                    message(info.payload())
                )));
            }
        }));
    });
    let outer = RECORDED.replace(Some(Vec::new()));
    let done = work();
    (done, RECORDED.replace(outer).unwrap_or_default())
}
