//! Scores feasible machines (B31). The declaration order of [`Score`] is the policy: a term matters
//! only where all terms before it are equal. Lower is better throughout. All integers.
//!
//! The hot path packs the terms into one [`ScoreKey`]; a test asserts that keys order exactly as
//! scores.

pub(crate) mod devices;
pub(crate) mod locality;
pub(crate) mod mixing;
pub mod packing;
pub(crate) mod preference;
pub(crate) mod slot_values;
pub(crate) mod spread;

use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;
use packing::PackingModel;

/// The terms of one placement, most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    /// The highest band among the victims, best effort as 1; zero without victims.
    pub worst_band: u8,
    /// Victims that the disruption budgets of their jobs have no room for.
    pub beyond_budget: u16,
    /// The highest priority among the victims, counted from the lowest of its band.
    pub worst_victim: u16,
    pub victims: u16,
    /// Weights of soft constraints that do not hold.
    pub preference: u16,
    /// Shares of the job that would be lost with the machine, its rack or its power domain;
    /// [`spread::MAX_SHARES`] at most.
    pub spread: u8,
    /// Seconds that fetching the missing packages is expected to take, [`locality::MAX_SECONDS`] at
    /// most.
    pub locality: u8,
    /// Device worth that the machine loses, [`MAX_DEVICES`] at most.
    pub devices: u32,
    /// Whether the machine would hold too little of the other kind, production or not; see
    /// [`mixing`].
    pub one_sided: bool,
    /// The packing model's term.
    pub packing: u32,
    /// Machine id rotated by the seed, so that ties do not always fall on the first machine.
    pub rank: u32,
}

/// A [`Score`] in one integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ScoreKey(pub u128);

impl ScoreKey {
    pub const WORST: ScoreKey = ScoreKey(u128::MAX);

    #[inline]
    pub fn rank(self) -> u32 {
        self.0 as u32 & ((1 << RANK_BITS) - 1)
    }
}

/// Largest values that a key can carry; larger ones are clamped to these.
const MAX_BAND: u8 = (1 << 3) - 1;
/// More are as bad: a machine that spares one of eight is no better than another.
const MAX_BEYOND_BUDGET: u16 = (1 << 3) - 1;
const MAX_WORST_VICTIM: u16 = (1 << 7) - 1;
const MAX_VICTIMS: u16 = (1 << 8) - 1;
const MAX_PREFERENCE: u16 = (1 << 13) - 1;
pub(crate) const MAX_DEVICES: u32 = (1 << 24) - 1;
/// Machine slots that a snapshot can rank.
pub(crate) const RANK_BITS: u32 = 22;
const PACKING_BITS: u32 = u32::BITS;
const _: () = assert!(cellwright_cell::machine::MAX_MACHINES <= 1 << RANK_BITS);

impl Score {
    #[inline]
    pub(crate) fn key(self) -> ScoreKey {
        let high = u64::from(self.worst_band.min(MAX_BAND)) << 45
            | u64::from(self.beyond_budget.min(MAX_BEYOND_BUDGET)) << 42
            | u64::from(self.worst_victim.min(MAX_WORST_VICTIM)) << 35
            | u64::from(self.victims.min(MAX_VICTIMS)) << 27
            | u64::from(self.preference.min(MAX_PREFERENCE)) << 14
            | u64::from(self.spread.min(spread::MAX_SHARES)) << 8
            | u64::from(self.locality);
        let middle = u64::from(self.devices.min(MAX_DEVICES)) << (PACKING_BITS + 1)
            | u64::from(self.one_sided) << PACKING_BITS
            | u64::from(self.packing);
        let rank = u128::from(self.rank & ((1 << RANK_BITS) - 1));
        ScoreKey(u128::from(high) << 79 | u128::from(middle) << RANK_BITS | rank)
    }
}

/// Turns machine slots into ranks and rooms into packing terms; fixed for one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ranking {
    pub model: PackingModel,
    offset: u32,
    slots: u32,
}

impl Ranking {
    pub fn new(model: PackingModel, seed: u64, slots: usize) -> Ranking {
        let offset = crate::random::below(seed, 0x71e5, slots) as u32;
        Ranking { model, offset, slots: slots as u32 }
    }

    #[inline]
    pub fn rank(self, m: usize) -> u32 {
        let rank = m as u32 + self.offset;
        if rank >= self.slots { rank - self.slots } else { rank }
    }

    /// The machine slot behind a rank.
    #[inline]
    pub fn machine(self, rank: u32) -> usize {
        let back = if rank >= self.offset { rank } else { rank + self.slots };
        (back - self.offset) as usize
    }
}

/// The score of a placement without victims on machine slot `m`, term by term.
pub(crate) fn score(
    snapshot: &ClusterSnapshot,
    class: &Class,
    m: usize,
    ranking: Ranking,
) -> Score {
    Score {
        worst_band: 0,
        beyond_budget: 0,
        worst_victim: 0,
        victims: 0,
        preference: preference::missed_weight(snapshot, class, m),
        spread: spread::share_at_stake(snapshot, class, m),
        locality: locality::fetch_seconds(snapshot, class, m),
        devices: match ranking.model {
            PackingModel::Hybrid => devices::worth_lost(snapshot, class, m),
            _ => 0,
        },
        one_sided: match ranking.model {
            PackingModel::Hybrid => mixing::is_one_sided(snapshot, class, m),
            _ => false,
        },
        packing: packing::machine_term(snapshot, class, m, ranking.model),
        rank: ranking.rank(m),
    }
}

/// [`score`] as a key, without evaluating terms that a plain class cannot have.
#[inline]
pub(crate) fn key(
    snapshot: &ClusterSnapshot,
    class: &Class,
    m: usize,
    ranking: Ranking,
) -> ScoreKey {
    if !class.is_plain || !snapshot.device_demand.is_empty() {
        return score(snapshot, class, m, ranking).key();
    }
    let packing = u64::from(packing::machine_term(snapshot, class, m, ranking.model));
    let is_one_sided =
        ranking.model == PackingModel::Hybrid && mixing::is_one_sided(snapshot, class, m);
    let middle = u64::from(is_one_sided) << PACKING_BITS | packing;
    ScoreKey(u128::from(middle) << RANK_BITS | u128::from(ranking.rank(m)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_score() -> impl Strategy<Value = Score> {
        let small = (0..3u16, 0..3u16, 0..3u16, 0..3u8, 0..3u8);
        let wide = (
            0..=MAX_WORST_VICTIM,
            0..=MAX_VICTIMS,
            0..=MAX_PREFERENCE,
            0..=spread::MAX_SHARES,
            any::<u8>(),
        );
        let head = (0..=4u8, 0..=MAX_BEYOND_BUDGET);
        let tail = (
            prop_oneof![0..3u32, 0..=MAX_DEVICES],
            any::<bool>(),
            prop_oneof![0..3u32, any::<u32>()],
            prop_oneof![0..3u32, 0..1u32 << RANK_BITS],
        );
        let parts = (head, prop_oneof![small, wide], tail);
        parts.prop_map(|((band, beyond), (a, b, c, d, e), (h, i, f, g))| Score {
            worst_band: band,
            beyond_budget: beyond,
            worst_victim: a,
            victims: b,
            preference: c,
            spread: d,
            locality: e,
            devices: h,
            one_sided: i,
            packing: f,
            rank: g,
        })
    }

    proptest! {
        #[test]
        fn keys_order_as_scores_do(a in any_score(), b in any_score()) {
            prop_assert_eq!(a.cmp(&b), a.key().cmp(&b.key()));
        }
    }

    #[test]
    fn ranks_are_a_rotation() {
        let ranking = Ranking::new(PackingModel::Hybrid, 5, 100);
        let mut ranks: Vec<u32> = (0..100).map(|m| ranking.rank(m)).collect();
        assert!((0..100).all(|m| ranking.machine(ranking.rank(m)) == m));
        ranks.sort_unstable();
        assert_eq!(ranks, (0..100).collect::<Vec<u32>>());
    }
}
