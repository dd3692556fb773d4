//! A random number generator whose output never changes between versions, with its own shuffle.
//!
//! Published figures name a seed, so the numbers behind a seed must not change when a library does.
//! General crates keep their generators stable but not their shuffles and ranges. This is
//! SplitMix64 (Steele, Lea, Flood 2014): a counter stepped by an odd constant and scrambled; good
//! enough for ordering a list, and not for secrets. Each purpose gets a stream of its own from the
//! seed, so that one more number for one purpose does not shift those of another.

/// The odd number nearest to 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// One stream of random numbers.
#[derive(Clone, Debug)]
pub struct StableRng {
    state: u64,
}

impl StableRng {
    /// The stream for one purpose under a seed.
    pub fn from_seed(seed: u64, purpose: u64) -> StableRng {
        let of_seed = StableRng { state: seed }.next_u64();
        let of_both = StableRng { state: of_seed ^ purpose }.next_u64();
        StableRng { state: of_both }
    }

    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, each with the same chance; `None` when there is no such number.
    ///
    /// The number is the high half of the product of the random word and `bound`. Words whose low
    /// half falls into the part of the range that would favour some numbers are discarded and drawn
    /// again.
    pub fn below(&mut self, bound: u64) -> Option<u64> {
        let uneven = bound.wrapping_neg().checked_rem(bound)?;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            if product as u64 >= uneven {
                return Some((product >> 64) as u64);
            }
        }
    }

    /// Puts the items into random order (Fisher and Yates, from the end).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            if let Some(chosen) = self.below(last as u64 + 1) {
                items.swap(last, chosen as usize);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference values of the algorithm for this seed.
    #[test]
    fn draws_are_those_of_splitmix64() {
        let mut draws = StableRng { state: 1_234_567 };
        let first: Vec<u64> = (0..3).map(|_| draws.next_u64()).collect();
        let known =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(first, known);
    }

    #[test]
    fn bounded_draws_reach_every_number_about_equally() {
        let mut draws = StableRng::from_seed(7, 1);
        let mut counts = [0_u32; 7];
        for _ in 0..70_000 {
            let drawn = draws.below(7).expect("seven numbers are below seven");
            counts[drawn as usize] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        assert_eq!(draws.below(1), Some(0));
        assert_eq!(draws.below(0), None);
    }

    #[test]
    fn a_shuffle_keeps_the_items_and_depends_on_seed_and_purpose_only() {
        let shuffled = |seed, purpose| {
            let mut items: Vec<u32> = (0..100).collect();
            StableRng::from_seed(seed, purpose).shuffle(&mut items);
            items
        };
        let mut sorted = shuffled(1, 1);
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..100));
        assert_eq!(shuffled(1, 1), shuffled(1, 1));
        assert_ne!(shuffled(1, 1), shuffled(2, 1));
        assert_ne!(shuffled(1, 1), shuffled(1, 2));
        assert_ne!(shuffled(1, 1), shuffled(2, 2));
    }
}
