//! What a partly free device is worth: 530 free shares are worth half a device where half-device
//! tasks are common, 190 are worth nothing where no task is that small.
//!
//! These are the shadow prices of cutting stock. Pack the demand (sizes with counts) into as few
//! devices as possible; the dual price of a size is what a slot for it is worth, and a room is
//! worth the most expensive set of slots it can hold. Solved by multiplicative weights: cut the
//! most expensive pattern, lower the price of what was just served, repeat. Any positive prices
//! divided by the most expensive pattern are feasible, so the best round seen is a valid answer and
//! stopping early only costs sharpness. Rejected: pricing a room by the chance that the next task
//! fits it, which does not see that small tasks are too few to fill all leftovers.

use cellwright_cell::device::WHOLE_DEVICE;

/// Sizes are rounded up to this many shares.
pub(crate) const GRAIN: u16 = 10;
/// Grains in a whole device.
pub(crate) const GRAINS: usize = (WHOLE_DEVICE / GRAIN) as usize;
/// Worth of a whole free device.
pub(crate) const UNIT: i64 = 1 << 20;

/// Rounds per distinct size; more changes nothing on real mixes.
const ROUNDS: usize = 96;
/// Prices move by this power of two of the share served.
const STEP_SHIFT: u32 = 2;
const NOTHING: u8 = u8::MAX;

/// Worth of every free room in grains, in units of [`UNIT`] for a whole device.
pub(crate) type SlotValues = [i64; GRAINS + 1];

/// How many devices' worth of tasks want slots of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotDemand {
    /// In grains, 1 to [`GRAINS`].
    pub size: usize,
    pub count: u64,
}

/// Best total price packable into each room, and the item that was added last to get it.
fn knapsack(demand: &[SlotDemand], prices: &[u64]) -> ([u64; GRAINS + 1], [u8; GRAINS + 1]) {
    let (mut best, mut last) = ([0u64; GRAINS + 1], [NOTHING; GRAINS + 1]);
    for room in 1..=GRAINS {
        best[room] = best[room - 1];
        for (i, (item, price)) in demand.iter().zip(prices).enumerate() {
            if item.size <= room && best[room - item.size] + price > best[room] {
                best[room] = best[room - item.size] + price;
                last[room] = i as u8;
            }
        }
    }
    (best, last)
}

/// How often each size occurs in the most expensive pattern.
fn best_pattern(demand: &[SlotDemand], last: &[u8; GRAINS + 1]) -> Vec<u64> {
    let mut times = vec![0; demand.len()];
    let mut room = GRAINS;
    while room > 0 {
        match last[room] {
            NOTHING => room -= 1,
            item => {
                times[usize::from(item)] += 1;
                room -= demand[usize::from(item)].size;
            }
        }
    }
    times
}

/// Lowers the prices of what the pattern serves, cut until the first of its sizes is served.
fn lower_prices(prices: &mut [u64], demand: &[SlotDemand], pattern: &[u64]) {
    let served = pattern.iter().zip(demand).filter(|(p, _)| **p > 0);
    // Smallest count / times in the pattern, compared as fractions.
    let first = served.min_by(|(p, d), (q, e)| {
        (u128::from(d.count) * u128::from(**q)).cmp(&(u128::from(e.count) * u128::from(**p)))
    });
    let Some((first_times, first)) = first else { return };
    for (i, times) in pattern.iter().enumerate().filter(|(_, times)| **times > 0) {
        let numerator = u128::from(first.count) * u128::from(*times);
        let share = (numerator << 16) / (u128::from(*first_times) * u128::from(demand[i].count));
        prices[i] -= ((u128::from(prices[i]) * share) >> (16 + STEP_SHIFT)) as u64;
    }
}

/// Prices of all rooms for a demand. Sizes are distinct and at most [`GRAINS`]; counts above zero.
pub(crate) fn slot_values(demand: &[SlotDemand]) -> SlotValues {
    let mut prices: Vec<u64> = demand.iter().map(|d| (1u64 << 56) / d.count.max(1)).collect();
    let mut values = [0; GRAINS + 1];
    let mut best_bound = 0;
    for _ in 0..ROUNDS * demand.len() {
        let (worth, last) = knapsack(demand, &prices);
        let dearest = u128::from(worth[GRAINS]);
        if dearest == 0 {
            break;
        }
        let pay = |(d, price): (&SlotDemand, &u64)| u128::from(d.count) * u128::from(*price);
        let sum: u128 = demand.iter().zip(&prices).map(pay).sum();
        // A lower bound on the devices needed; the sharper, the better the prices.
        let bound = (sum << 32) / dearest;
        if bound > best_bound {
            best_bound = bound;
            let scaled = worth.map(|w| (u128::from(w) * UNIT as u128 / dearest) as i64);
            values = scaled;
        }
        lower_prices(&mut prices, demand, &best_pattern(demand, &last));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(demand: &[(usize, u64)]) -> SlotValues {
        let demand: Vec<SlotDemand> =
            demand.iter().map(|(size, count)| SlotDemand { size: *size, count: *count }).collect();
        slot_values(&demand)
    }

    #[test]
    fn nobody_wants_anything() {
        assert_eq!(values(&[]), [0; GRAINS + 1]);
    }

    #[test]
    fn whole_devices_only_make_every_part_worthless() {
        let v = values(&[(100, 7)]);
        assert_eq!(v[100], UNIT);
        assert!(v[..100].iter().all(|v| *v == 0));
    }

    #[test]
    fn halves_make_a_half_worth_a_half() {
        let v = values(&[(50, 10)]);
        assert_eq!((v[49], v[50], v[99], v[100]), (0, UNIT / 2, UNIT / 2, UNIT));
    }

    #[test]
    fn a_leftover_that_small_tasks_cannot_fill_is_nearly_worthless() {
        // One small task for a hundred large ones: most leftovers of 19 stay empty.
        let v = values(&[(81, 100), (19, 1)]);
        assert!(v[19] < UNIT / 20, "{}", v[19]);
        // As many small as large: every leftover finds a task, and both share the price.
        let even = values(&[(81, 100), (19, 100)]);
        assert!(even[19] + even[81] <= UNIT && even[19] + even[81] > UNIT * 9 / 10);
    }

    #[test]
    fn more_room_is_never_worth_less() {
        let v = values(&[(3, 5), (17, 40), (46, 100), (50, 9), (81, 70), (100, 30)]);
        assert!(v.windows(2).all(|w| w[0] <= w[1]));
        assert_eq!(v[100], UNIT);
    }
}
