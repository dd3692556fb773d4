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
    static SEEN: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Takes a panic of this thread down, if somebody wants to know.
pub(crate) fn note(line: &str) {
    SEEN.with_borrow_mut(|seen| {
        if let Some(seen) = seen {
            seen.push(line.to_owned());
        }
    });
}

/// Does the work, and says what panicked on this thread meanwhile, on one line each.
pub fn recorded<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let count = || SEEN.with_borrow(|seen| seen.as_ref().map_or(0, Vec::len));
            let known = count();
            before(info);
            // The hook of a process that serves notes it as well.
            if count() == known {
                let place = info.location().map(ToString::to_string).unwrap_or_default();
                note(&one_line(&format!("panicked at {place}: {}", message(info.payload()))));
            }
        }));
    });
    let outer = SEEN.replace(Some(Vec::new()));
    let done = work();
    (done, SEEN.replace(outer).unwrap_or_default())
}
