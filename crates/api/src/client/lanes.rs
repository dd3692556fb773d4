//! Numbers for idempotency keys: one lane per change on its way, handed back when it is answered.

use std::sync::{Mutex, PoisonError};

pub(super) struct Lanes {
    client: u64,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    lanes: Vec<Counter>,
    made: u64,
}

#[derive(Clone, Copy)]
struct Counter {
    number: u64,
    next: u64,
}

/// One lane, in use.
pub(super) struct Lane<'a> {
    lanes: &'a Lanes,
    counter: Counter,
}

impl Lanes {
    pub fn new(client: u64) -> Lanes {
        Lanes { client, free: Mutex::default() }
    }

    pub fn client(&self) -> u64 {
        self.client
    }

    pub fn take(&self) -> Lane<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let counter = free.lanes.pop().unwrap_or_else(|| {
            free.made += 1;
            Counter { number: mix(self.client.wrapping_add(free.made)), next: 0 }
        });
        Lane { lanes: self, counter }
    }
}

impl Lane<'_> {
    /// The key of the change this lane was taken for.
    pub fn next_key(&self) -> String {
        format!("{:016x}-{}", self.counter.number, self.counter.next)
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let mut free = self.lanes.free.lock().unwrap_or_else(PoisonError::into_inner);
        self.counter.next += 1;
        free.lanes.push(self.counter);
    }
}

/// A well-mixed number from any other (the finaliser of splitmix64).
pub(super) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_use_at_once_have_different_clients_and_none_comes_twice() {
        let lanes = Lanes::new(7);
        let (one, two) = (lanes.take(), lanes.take());
        let client = |key: &str| key.split_once('-').map(|(c, _)| c.to_owned());
        let (first, second) = (one.next_key(), two.next_key());
        assert_ne!(client(&first), client(&second));
        drop(one);
        let again = lanes.take().next_key();
        assert_eq!(client(&again), client(&first));
        assert!(first.ends_with("-0") && again.ends_with("-1"), "{first} {again}");
    }
}
