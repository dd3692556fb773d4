//! All panics of one thread, whoever catches them.
//!
//! A simulated world runs on one thread, and much of what runs in it is joined by code of others:
//! consensus, sets of calls, the runtime itself. Each of them may take a panic for an answer that
//! did not come. Here every panic is taken down where it begins, so that nobody can swallow one.

use crate::panic::{message, one_line};
use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    /// What panicked since somebody began to listen.
    static RECORDED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Takes a panic of this thread down, if somebody wants to know.
pub(crate) fn record_line(line: &str) {
    RECORDED.with_borrow_mut(|recorded| {
        if let Some(recorded) = recorded {
            recorded.push(line.to_owned());
        }
    });
}

/// Does the work, and says what panicked on this thread meanwhile, on one line each.
pub fn record_panics<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    static HOOK_INSTALLED: Once = Once::new();
    HOOK_INSTALLED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let count = || RECORDED.with_borrow(|seen| seen.as_ref().map_or(0, Vec::len));
            let known_count = count();
            before(info);
            // The hook of a process that serves notes it as well.
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
