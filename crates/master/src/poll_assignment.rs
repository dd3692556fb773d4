//! Which replica polls which agent: rendezvous hashing of the machine's name over the voters. Each
//! replica gets a weight for each machine, and the one with the highest weight polls it. So a
//! replica that leaves gives away only its own machines, one that joins takes only what it will
//! keep, and every replica reaches the same answer from the list of voters alone, without
//! communication.
//!
//! Rejected: machine number modulo replicas, which moves most machines at every change, and a hash
//! ring, which needs many points per replica before the machines are evenly distributed.

use cellwright_cell::name::Name;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The replica that polls `machine`; `None` when there is no voter. The order of `voters` and
/// repetitions in it do not matter.
#[must_use]
pub fn assigned_replica(machine: &Name, voters: &[u64]) -> Option<u64> {
    voters.iter().copied().max_by_key(|voter| (rendezvous_weight(machine, *voter), *voter))
}

fn rendezvous_weight(machine: &Name, voter: u64) -> u64 {
    xxh3_64_with_seed(machine.as_str().as_bytes(), voter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::btree_set;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn machines(count: u32) -> impl Iterator<Item = Name> {
        (0..count).map(|number| Name::new(&format!("m{number}")).unwrap())
    }

    #[test]
    fn nobody_polls_without_voters_and_one_polls_all() {
        assert!(machines(100).all(|machine| assigned_replica(&machine, &[]).is_none()));
        assert!(machines(100).all(|machine| assigned_replica(&machine, &[7]) == Some(7)));
    }

    #[test]
    fn shares_are_nearly_even() {
        let mut shares: BTreeMap<u64, u32> = BTreeMap::new();
        for machine in machines(10_000) {
            *shares.entry(assigned_replica(&machine, &[1, 2, 3, 4, 5]).unwrap()).or_default() += 1;
        }
        assert_eq!(shares.len(), 5);
        assert!(shares.values().all(|share| (1_800..=2_200).contains(share)), "{shares:?}");
    }

    proptest! {
        /// In the other direction, for a replica that joins: only the machines that it takes move.
        #[test]
        fn only_the_machines_of_the_leaver_move(
            voters in btree_set(any::<u64>(), 2..7),
            leaver in any::<prop::sample::Index>(),
        ) {
            let before: Vec<u64> = voters.into_iter().collect();
            let gone = *leaver.get(&before);
            let mut after: Vec<u64> = before.iter().copied().filter(|v| *v != gone).collect();
            after.reverse();
            for machine in machines(300) {
                let old = assigned_replica(&machine, &before);
                let new = assigned_replica(&machine, &after);
                if old == Some(gone) {
                    prop_assert!(new.is_some() && new != Some(gone));
                } else {
                    prop_assert_eq!(old, new);
                }
            }
        }
    }
}
