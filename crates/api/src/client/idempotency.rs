//! Idempotency keys: a pool of number sequences, one per change in flight, returned when the change
//! is answered.

use std::sync::{Mutex, PoisonError};

pub(super) struct SequencePool {
    client: u64,
    free: Mutex<FreeSequences>,
}

#[derive(Default)]
struct FreeSequences {
    sequences: Vec<Sequence>,
    created: u64,
}

#[derive(Clone, Copy)]
struct Sequence {
    number: u64,
    next: u64,
}

/// One sequence, in use.
pub(super) struct PooledSequence<'a> {
    pool: &'a SequencePool,
    sequence: Sequence,
}

impl SequencePool {
    pub fn new(client: u64) -> SequencePool {
        SequencePool { client, free: Mutex::default() }
    }

    pub fn client(&self) -> u64 {
        self.client
    }

    pub fn acquire(&self) -> PooledSequence<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let sequence = free.sequences.pop().unwrap_or_else(|| {
            free.created += 1;
            Sequence { number: mix64(self.client.wrapping_add(free.created)), next: 0 }
        });
        PooledSequence { pool: self, sequence }
    }
}

impl PooledSequence<'_> {
    /// The idempotency key of the change that this sequence was taken for.
    pub fn next_key(&self) -> String {
        format!("{:016x}-{}", self.sequence.number, self.sequence.next)
    }
}

impl Drop for PooledSequence<'_> {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        self.sequence.next += 1;
        free.sequences.push(self.sequence);
    }
}

/// A well-mixed number from any other (the finaliser of splitmix64).
pub(super) fn mix64(value: u64) -> u64 {
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
        let pool = SequencePool::new(7);
        let (one, two) = (pool.acquire(), pool.acquire());
        let client = |key: &str| key.split_once('-').map(|(c, _)| c.to_owned());
        let (first, second) = (one.next_key(), two.next_key());
        assert_ne!(client(&first), client(&second));
        drop(one);
        let again = pool.acquire().next_key();
        assert_eq!(client(&again), client(&first));
        assert!(first.ends_with("-0") && again.ends_with("-1"), "{first} {again}");
    }
}
