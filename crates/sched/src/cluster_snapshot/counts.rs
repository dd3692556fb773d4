//! Counts per small integer, for "how many tasks of this job are on that machine": read for every
//! machine of every scan of a spread job, so a probe must cost a few nanoseconds; a job of ten
//! tasks must not pay for ten thousand machines, so a dense array is out.
//!
//! Open addressing with linear probing. Nothing is ever iterated, so the order of the table cannot
//! leak into a decision.

#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// (key + 1, count); zero key is an empty slot. Slots of keys that fell to zero stay.
    slots: Vec<(u32, u32)>,
    used: usize,
}

const FIRST_SLOTS: usize = 8;

impl Counts {
    #[inline]
    fn position(&self, key: u32) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = (key.wrapping_mul(0x9e37_79b1) >> 7) as usize & mask;
        while self.slots[at].0 != 0 && self.slots[at].0 != key + 1 {
            at = (at + 1) & mask;
        }
        at
    }

    #[inline]
    pub fn get(&self, key: u32) -> u32 {
        if self.slots.is_empty() { 0 } else { self.slots[self.position(key)].1 }
    }

    pub fn add(&mut self, key: u32) {
        if (self.used + 1) * 2 > self.slots.len() {
            self.grow();
        }
        let at = self.position(key);
        if self.slots[at].0 == 0 {
            self.used += 1;
        }
        self.slots[at] = (key + 1, self.slots[at].1 + 1);
    }

    pub fn remove(&mut self, key: u32) {
        if self.slots.is_empty() {
            return;
        }
        let at = self.position(key);
        self.slots[at].1 = self.slots[at].1.saturating_sub(1);
    }

    fn grow(&mut self) {
        let live: Vec<(u32, u32)> = self.slots.iter().copied().filter(|s| s.1 > 0).collect();
        let size = ((live.len() + 1) * 4).next_power_of_two().max(FIRST_SLOTS);
        self.slots = vec![(0, 0); size];
        self.used = live.len();
        for slot in live {
            let at = self.position(slot.0 - 1);
            self.slots[at] = slot;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn agrees_with_a_plain_map() {
        let (mut counts, mut plain) = (Counts::default(), BTreeMap::<u32, u32>::new());
        for i in 0..20_000u64 {
            let draw = crate::random::mix(i);
            let key = (draw >> 40) as u32 % 700;
            let n = plain.entry(key).or_insert(0);
            if draw.is_multiple_of(3) && *n > 0 {
                *n -= 1;
                counts.remove(key);
            } else {
                *n += 1;
                counts.add(key);
            }
        }
        assert!((0..800).all(|k| counts.get(k) == plain.get(&k).copied().unwrap_or(0)));
    }
}
