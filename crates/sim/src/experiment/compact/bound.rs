//! A lower bound on the number of machines, whatever the scheduler: the capacity of the machines
//! kept, dimension by dimension, must cover what is placed.
//!
//! Machines are kept in the order of the trial, so the bound is the number of them after which the
//! capacity is reached. It considers each sum alone (prod by limits, all by reservations), so a
//! packing as small as the bound need not exist. The tasks that are allowed to pend may be the
//! largest ones; what they request is subtracted in each dimension, or it would not be a bound.

use cellwright_cell::resource::{DIMENSIONS, Dimension, Resources};
use serde::Serialize;

/// What the workload requests, in each of the sums that limit a placement.
#[derive(Clone, Debug)]
pub struct Demand {
    /// Limits of prod tasks, then reservations of all, by dimension; largest first.
    sums: [Vec<u64>; 2 * DIMENSIONS],
}

/// A lower bound for one order of machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bound {
    pub machines: usize,
    /// The sum that decides: `cpu by reservations`.
    pub dimension: &'static str,
    pub by: &'static str,
}

impl Demand {
    /// From the limits, reservation and prod flag of every top-level task.
    pub fn new(tasks: impl Iterator<Item = (Resources, Resources, bool)>) -> Demand {
        let mut sums: [Vec<u64>; 2 * DIMENSIONS] = Default::default();
        for (limits, reservation, is_prod) in tasks {
            for d in 0..DIMENSIONS {
                if is_prod {
                    sums[d].push(limits.to_array()[d]);
                }
                sums[DIMENSIONS + d].push(reservation.to_array()[d]);
            }
        }
        sums.iter_mut().for_each(|sum| sum.sort_unstable_by(|a, b| b.cmp(a)));
        Demand { sums }
    }

    /// The bound for machines kept in this order when `may_pend` tasks may be left out; `None` when
    /// all machines together are too few.
    #[must_use]
    pub fn bound(&self, capacities: &[Resources], may_pend: usize) -> Option<Bound> {
        let mut highest = Bound { machines: 1, dimension: "none", by: "none" };
        for (at, amounts) in self.sums.iter().enumerate() {
            let needed: u64 = amounts.iter().skip(may_pend).sum();
            let machines = machines_for(capacities, at % DIMENSIONS, needed)?;
            if machines > highest.machines {
                let dimension = Dimension::ALL[at % DIMENSIONS].as_str();
                let by = if at < DIMENSIONS { "limits of prod" } else { "reservations" };
                highest = Bound { machines, dimension, by };
            }
        }
        Some(highest)
    }
}

fn machines_for(capacities: &[Resources], dimension: usize, needed: u64) -> Option<usize> {
    let mut sum = 0_u64;
    if needed == 0 {
        return Some(0);
    }
    let reached = capacities.iter().position(|capacity| {
        sum += capacity.to_array()[dimension];
        sum >= needed
    });
    reached.map(|position| position + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand() -> Demand {
        let prod = (Resources::new(4, 1, 0, 0), Resources::new(2, 1, 0, 0), true);
        let batch = (Resources::new(1, 8, 0, 0), Resources::new(1, 4, 0, 0), false);
        Demand::new([prod, prod, batch, batch].into_iter())
    }

    #[test]
    fn the_tightest_sum_decides() {
        let even = vec![Resources::new(4, 8, 0, 0); 4];
        let bound = demand().bound(&even, 0).expect("fits in four");
        // Two times 4 CPU of prod by limits; 2 * 2 + 2 * 1 CPU and 2 + 8 RAM by reservations.
        assert_eq!(bound, Bound { machines: 2, dimension: "cpu", by: "limits of prod" });
        let narrow = vec![Resources::new(100, 2, 0, 0); 6];
        let bound = demand().bound(&narrow, 0).expect("fits in six");
        assert_eq!(bound, Bound { machines: 5, dimension: "ram", by: "reservations" });
    }

    #[test]
    fn tasks_that_may_pend_are_taken_off_largest_first() {
        let narrow = vec![Resources::new(100, 2, 0, 0); 6];
        assert_eq!(demand().bound(&narrow, 1).map(|b| b.machines), Some(3));
        assert_eq!(demand().bound(&narrow[..2], 0), None);
    }
}
