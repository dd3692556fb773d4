//! Batching: how requests become log entries. One entry costs one write to disk on every replica,
//! however many requests it carries, so under load entries should be large; a single client should
//! not wait for a batch to fill. Both follow from one rule: an idle log takes all that is waiting
//! at once; while an entry is in flight, the next one leaves only when it is worth a write of its
//! own, and otherwise gathers until the first is done.
//!
//! Rejected: a timer that holds requests back until a batch fills. It is wrong at every load but
//! the one it was tuned for, and a single client pays for it.

/// An amount of requests: room in an entry, or what waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestAmount {
    pub items: usize,
    pub bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchingConfig {
    /// Entries in flight at once. Two keep the disk busy while the first is being answered; more
    /// would only split what could have shared a write.
    pub max_in_flight: u32,
    /// Most one entry carries. Bounds how long a single entry keeps the state from others.
    pub max_batch: RequestAmount,
    /// What makes an entry worth sending while another is in flight: either of the two.
    pub send_threshold: RequestAmount,
}

impl Default for BatchingConfig {
    fn default() -> Self {
        BatchingConfig {
            max_in_flight: 2,
            max_batch: RequestAmount { items: 4096, bytes: 4 << 20 },
            send_threshold: RequestAmount { items: 64, bytes: 64 << 10 },
        }
    }
}

/// Counts the entries in flight.
#[derive(Clone, Debug, Default)]
pub struct Batching {
    settings: BatchingConfig,
    in_flight: u32,
}

impl Batching {
    #[must_use]
    pub fn new(settings: BatchingConfig) -> Batching {
        Batching { settings, in_flight: 0 }
    }

    /// How much of what is `waiting` an entry may take now; `None`: let it gather.
    #[must_use]
    pub fn room_for_batch(&self, waiting: RequestAmount) -> Option<RequestAmount> {
        let BatchingConfig { max_in_flight: most_in_flight, max_batch, send_threshold: worth } =
            self.settings;
        let worthwhile = waiting.items >= worth.items || waiting.bytes >= worth.bytes;
        let free = match self.in_flight {
            0 => waiting.items > 0,
            some => some < most_in_flight && worthwhile && waiting.items > 0,
        };
        free.then_some(max_batch)
    }

    pub fn sent(&mut self) {
        self.in_flight += 1;
    }

    /// An entry was committed, or failed: either way it is no longer in flight.
    pub fn done(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(in_flight: u32, items: usize, bytes: usize, is_sent: bool) {
        let mut batching = Batching::new(BatchingConfig::default());
        (0..in_flight).for_each(|_| batching.sent());
        let room = batching.room_for_batch(RequestAmount { items, bytes });
        assert_eq!(
            room,
            is_sent.then_some(BatchingConfig::default().max_batch),
            "{in_flight} {items} {bytes}"
        );
    }

    #[test]
    fn one_alone_goes_at_once_and_company_gathers_behind_it() {
        check(0, 0, 0, false);
        check(0, 1, 100, true);
        check(1, 1, 100, false);
        check(1, 64, 100, true);
        check(1, 1, 64 << 10, true);
        check(2, 4096, 4 << 20, false);
    }

    #[test]
    fn room_comes_back_when_an_entry_is_done() {
        let mut batching = Batching::new(BatchingConfig::default());
        let many = RequestAmount { items: 1000, bytes: 1000 };
        batching.sent();
        batching.sent();
        assert_eq!(batching.room_for_batch(many), None);
        batching.done();
        assert!(batching.room_for_batch(many).is_some());
    }
}
