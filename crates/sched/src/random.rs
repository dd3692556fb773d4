//! Seeded mixing: where a decision needs a draw, it is a pure function of the seed and of what is
//! drawn for, so that one more task or machine does not shift every other draw.

/// Spreads `value` over all 64 bits; equal inputs give equal outputs on every machine.
#[must_use]
#[inline]
pub fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A draw below `n` (zero when `n` is zero) for `salt` under `seed`.
#[must_use]
#[inline]
pub fn below(seed: u64, salt: u64, n: usize) -> usize {
    let draw = mix(seed ^ mix(salt));
    ((u128::from(draw) * n as u128) >> 64) as usize
}

/// A permutation of `0..n` drawn from `seed`.
#[must_use]
pub fn permutation(n: usize, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    for i in (1..n).rev() {
        order.swap(i, below(seed, i as u64, i + 1));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_holds_everything_once_and_follows_its_seed() {
        let a = permutation(1000, 7);
        let mut sorted = a.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<u32>>());
        assert_eq!(a, permutation(1000, 7));
        assert_ne!(a, permutation(1000, 8));
    }
}
