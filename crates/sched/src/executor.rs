//! The executor trait: runs the parts of a divided piece of work. The crate is pure and starts no
//! threads: callers that have threads provide them through this trait.
//!
//! **Invariant:** results do not depend on the executor. Work is divided into a number of parts
//! that depends on the work alone, each part writes only its own result, and results are joined in
//! the order of the parts.

use std::sync::Mutex;

pub trait Executor: Sync {
    /// Calls `work` once for every part in `0..parts`, in any order, on any thread, and returns
    /// when all calls have returned.
    fn run(&self, parts: usize, work: &(dyn Fn(usize) + Sync));
}

/// One part after the other on the caller's thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sequential;

impl Executor for Sequential {
    fn run(&self, parts: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..parts).for_each(work);
    }
}

/// Runs `work` for every part and returns the results in the order of the parts.
pub fn map<R: Send>(
    executor: &dyn Executor,
    parts: usize,
    work: impl Fn(usize) -> R + Sync,
) -> Vec<R> {
    let slots: Vec<Mutex<Option<R>>> = (0..parts).map(|_| Mutex::new(None)).collect();
    executor.run(parts, &|part| {
        let result = work(part);
        if let Ok(mut slot) = slots[part].lock() {
            *slot = Some(result);
        }
    });
    // A part that panicked has already unwound through `run`.
    slots.into_iter().filter_map(|slot| slot.into_inner().ok().flatten()).collect()
}
