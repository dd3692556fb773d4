//! Poisoned locks: mutexes whose holder panicked.
//!
//! After a request panics the process goes on, so a lock that it held must not fail for every later
//! holder. Where each change under a lock is complete by itself, the next holder goes on
//! ([`lock`]). Where a panic may have left half a change, going on would be wrong: the process ends
//! with a line ([`exit_on_poisoned_lock`]) and recovers from what is on the disk.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a value that is consistent after every step of every holder.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process: whoever held the lock of `protected` panicked in the middle of a change.
pub fn exit_on_poisoned_lock(protected: &str) -> ! {
    crate::exit_fatal(&format!("{protected} was left half changed by a panic"))
}
