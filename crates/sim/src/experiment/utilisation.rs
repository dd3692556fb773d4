//! How full a cell is, as shares of its capacity: what the placed tasks may use at most (limits),
//! what prod alone may use, and what the cell reserves for them (reservations).

use cellwright_cell::State;
use cellwright_cell::resource::{Dimension, Resources};
use serde::Serialize;

/// Percent of the cell's capacity in one dimension.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DimensionUse {
    pub dimension: &'static str,
    pub capacity: u64,
    pub limits_percent: f64,
    pub prod_limits_percent: f64,
    pub reserved_percent: f64,
}

/// The use of every dimension that some machine has.
#[must_use]
pub fn utilisation(state: &State) -> Vec<DimensionUse> {
    let zero = Resources::ZERO;
    let (mut limits, mut prod, mut reserved) = (zero, zero, zero);
    for (id, _) in state.machines().iter() {
        if let Some(load) = state.machine_load(id) {
            limits = limits.plus(load.limits);
            prod = prod.plus(load.prod_limits);
            reserved = reserved.plus(load.reserved);
        }
    }
    let capacity = state.capacity();
    let with_capacity = Dimension::ALL.into_iter().filter(|d| capacity.get(*d) > 0);
    with_capacity
        .map(|d| DimensionUse {
            dimension: d.as_str(),
            capacity: capacity.get(d),
            limits_percent: percent(limits.get(d), capacity.get(d)),
            prod_limits_percent: percent(prod.get(d), capacity.get(d)),
            reserved_percent: percent(reserved.get(d), capacity.get(d)),
        })
        .collect()
}

/// `part` of `whole`, with three decimals.
#[must_use]
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    let thousandths = u128::from(part) * 100_000 / u128::from(whole);
    thousandths as f64 / 1000.0
}

/// Allocated shares of devices, and the total, in milli.
#[must_use]
pub fn device_shares(state: &State) -> (u64, u64) {
    let mut used = 0_u64;
    let mut all = 0_u64;
    for (id, machine) in state.machines().iter() {
        all += 1000 * machine.spec.devices.len() as u64;
        let shares = state.machine_load(id).map(|load| &load.devices);
        used += shares.into_iter().flatten().map(|milli| u64::from(*milli)).sum::<u64>();
    }
    (used, all)
}
