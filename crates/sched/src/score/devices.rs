//! The device-aware part of the hybrid score (X1): place a task where the machine loses least of
//! the worth of devices that it can still allocate.
//!
//! A machine's worth to a typical task is what its devices could still hold of tasks like it: the
//! slots that are left ([`super::slot_values`]), but no more than its free CPU and memory allow,
//! and nothing where the task would not fit at all. Summed over the cell's demand, plus a term for
//! the slots alone. The prior art asks whether *one* typical task still fits; that sees a shortage
//! of CPU only when the last task of a machine is at stake.
//!
//! Costs nothing for cells without device requests: the mix is then empty and never read.

use super::MAX_DEVICES;
use super::slot_values::{GRAIN, GRAINS, SlotDemand, SlotValues, UNIT, slot_values};
use crate::class::{Class, Classes};
use crate::cluster_snapshot::ClusterSnapshot;
use crate::cluster_snapshot::machines::{DeviceSlot, Machines};
use cellwright_cell::device::{DeviceGrant, DeviceRequest, WHOLE_DEVICE};
use cellwright_cell::name::Token;
use cellwright_cell::resource::DIMENSIONS;
use std::collections::BTreeMap;

/// Weight of the slots themselves against what typical tasks can make of them.
const SLACK: i64 = 8;
/// Near-equal requests share an entry of the mix: amounts keep this many significant bits.
const SIGNIFICANT_BITS: u32 = 5;
/// Entries kept; the rarest go first.
const MAX_TYPICAL_REQUESTS: usize = 512;
/// Counts are scaled down until they add up to less than this, so that 64 bits are enough.
const MAX_WEIGHT: i64 = 1 << 16;
/// Amounts are scaled down to this many bits, for the same reason.
const AMOUNT_BITS: u32 = 31;

/// One shape of device request in the cell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DeviceRequestShape {
    need: [i64; DIMENSIONS],
    count: i64,
    milli: u16,
    /// By interned device.
    accepts: Vec<bool>,
}

#[derive(Clone, Debug)]
struct TypicalRequest {
    shape: DeviceRequestShape,
    weight: i64,
    /// What one such task buys, in [`UNIT`].
    worth: i64,
}

/// Demand for one kind of device.
#[derive(Clone, Debug)]
struct KindDemand {
    values: SlotValues,
    typical: Vec<TypicalRequest>,
    weight: i64,
    /// Which interned devices are of this kind.
    members: Vec<bool>,
}

/// The cell's demand for devices, from the tasks that are pending or placed.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceDemand {
    kinds: Vec<KindDemand>,
    /// Bits by which amounts of each dimension are scaled down.
    shift: [u32; DIMENSIONS],
}

/// Rounds down to a few significant bits. Down, not up: a task as large as a machine must not
/// become a shape that fits no machine.
fn rounded(amount: i64) -> i64 {
    let bits = 64 - amount.leading_zeros();
    let drop = bits.saturating_sub(SIGNIFICANT_BITS);
    amount >> drop << drop
}

impl DeviceDemand {
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    pub fn redraw(&mut self, classes: &Classes, machines: &Machines) {
        self.shift = std::array::from_fn(|d| {
            let largest = machines.shapes.iter().map(|s| s.capacity[d]).max().unwrap_or(0);
            (64 - largest.leading_zeros()).saturating_sub(AMOUNT_BITS)
        });
        let mut counts: BTreeMap<Token, BTreeMap<DeviceRequestShape, i64>> = BTreeMap::new();
        for (request, members) in classes.demand().filter(|(_, members)| *members > 0) {
            for device_request in &request.devices {
                let amounts = request.reservation.to_array();
                let need = std::array::from_fn(|d| {
                    rounded((amounts[d] >> self.shift[d]).min(1 << AMOUNT_BITS) as i64)
                });
                let request_shape = self.request_shape(need, device_request, machines);
                let kind = counts.entry(device_request.kind.clone()).or_default();
                *kind.entry(request_shape).or_default() += i64::from(members);
            }
        }
        let kinds = counts.into_iter().map(|(kind, shapes)| kind_demand(&kind, shapes, machines));
        self.kinds = kinds.collect();
    }

    fn request_shape(
        &self,
        need: [i64; DIMENSIONS],
        request: &DeviceRequest,
        machines: &Machines,
    ) -> DeviceRequestShape {
        let devices = machines.device_kinds.items().iter();
        DeviceRequestShape {
            need,
            count: i64::from(request.count.max(1)),
            milli: request.milli.div_ceil(GRAIN) * GRAIN,
            accepts: devices.map(|d| request.accepts(d)).collect(),
        }
    }

    /// What the machine's devices can still sell, with `free` of the rest to go with them.
    fn worth(&self, slots: &[DeviceSlot], shares: &[u16], free: &[i64; DIMENSIONS]) -> i64 {
        self.kinds.iter().map(|kind| kind.worth(slots, shares, free)).sum()
    }
}

fn kind_demand(
    kind: &Token,
    shapes: BTreeMap<DeviceRequestShape, i64>,
    machines: &Machines,
) -> KindDemand {
    let mut typical: Vec<(i64, DeviceRequestShape)> =
        shapes.into_iter().map(|(s, n)| (n, s)).collect();
    typical.sort_by(|a, b| b.cmp(a));
    typical.truncate(MAX_TYPICAL_REQUESTS);
    while typical.iter().map(|(n, _)| n).sum::<i64>() >= MAX_WEIGHT {
        typical.iter_mut().for_each(|(n, _)| *n = (*n / 2).max(1));
    }
    let mut sizes: BTreeMap<usize, u64> = BTreeMap::new();
    for (count, request_shape) in &typical {
        let size = usize::from(request_shape.milli / GRAIN).clamp(1, GRAINS);
        *sizes.entry(size).or_default() += (*count * request_shape.count) as u64;
    }
    let demand: Vec<SlotDemand> =
        sizes.into_iter().map(|(size, count)| SlotDemand { size, count }).collect();
    let devices = machines.device_kinds.items().iter();
    KindDemand {
        values: slot_values(&demand),
        weight: typical.iter().map(|(n, _)| n).sum(),
        members: devices.map(|d| d.kind == *kind).collect(),
        typical: typical
            .into_iter()
            .map(|(weight, request_shape)| typical_request(weight, request_shape))
            .collect(),
    }
}

fn typical_request(weight: i64, request_shape: DeviceRequestShape) -> TypicalRequest {
    let worth =
        request_shape.count * i64::from(request_shape.milli) * UNIT / i64::from(WHOLE_DEVICE);
    TypicalRequest { shape: request_shape, weight, worth }
}

/// What is free of one kind on a machine.
#[derive(Default)]
struct FreeShares {
    slots: i64,
    whole: i64,
    largest: u16,
}

impl KindDemand {
    fn free_shares(&self, slots: &[DeviceSlot], shares: &[u16], accepts: &[bool]) -> FreeShares {
        let mut free_shares = FreeShares::default();
        for (slot, free) in slots.iter().zip(shares) {
            if accepts.get(slot.kind as usize).copied().unwrap_or(false) {
                free_shares.slots += self.values[usize::from(free / GRAIN).min(GRAINS)];
                free_shares.whole += i64::from(*free == WHOLE_DEVICE);
                free_shares.largest = free_shares.largest.max(*free);
            }
        }
        free_shares
    }

    fn worth(&self, slots: &[DeviceSlot], shares: &[u16], free: &[i64; DIMENSIONS]) -> i64 {
        let all = self.free_shares(slots, shares, &self.members);
        if all.slots == 0 {
            return 0;
        }
        // Machines nearly always have devices of one model; then what one task accepts is all.
        let uniform = slots.windows(2).all(|pair| pair[0].kind == pair[1].kind);
        let mut sum = SLACK * self.weight * all.slots;
        for typical in &self.typical {
            let request_shape = &typical.shape;
            let first = slots.first().map_or(0, |s| s.kind as usize);
            if uniform && !request_shape.accepts.get(first).copied().unwrap_or(false) {
                continue;
            }
            let part;
            let free_shares = if uniform {
                &all
            } else {
                part = self.free_shares(slots, shares, &request_shape.accepts);
                &part
            };
            sum += typical.weight * sellable_worth(typical, free_shares, free);
        }
        // Normalised by the weight of the mix: a quarter of a millionth of a device is fine enough.
        sum / (4 * self.weight.max(1))
    }
}

/// What the machine could sell to tasks of one shape: bounded by slots and by all other amounts.
fn sellable_worth(
    typical: &TypicalRequest,
    free_shares: &FreeShares,
    free: &[i64; DIMENSIONS],
) -> i64 {
    let request_shape = &typical.shape;
    let fits = request_shape.need.iter().zip(free).all(|(need, free)| need <= free);
    if !fits || free_shares.largest < request_shape.milli {
        return 0;
    }
    let mut sellable = match request_shape.count {
        1 => free_shares.slots,
        count => free_shares.whole / count * typical.worth,
    };
    for (need, free) in request_shape.need.iter().zip(free) {
        // Compared as products first: the division is expensive.
        if *need > 0 && free * typical.worth < sellable * need {
            sellable = free * typical.worth / need;
        }
    }
    sellable
}

fn shares_of(slots: &[DeviceSlot]) -> Vec<u16> {
    slots.iter().map(|slot| slot.free()).collect()
}

/// Free amounts by reservation, after (or before) `class` is placed, scaled as the mix is.
fn amounts(snapshot: &ClusterSnapshot, class: &Class, m: usize, after: bool) -> [i64; DIMENSIONS] {
    let free = &snapshot.machines.room[m].free;
    std::array::from_fn(|d| {
        let taken = if after { class.charge[d + DIMENSIONS] } else { 0 };
        (free[d + DIMENSIONS] - taken).max(0) >> snapshot.device_demand.shift[d]
    })
}

/// Device worth that machine slot `m` loses when a task of the class is placed there; the caller
/// has found it feasible. Lower is better.
pub(crate) fn worth_lost(snapshot: &ClusterSnapshot, class: &Class, m: usize) -> u32 {
    if snapshot.device_demand.is_empty() || snapshot.machines.devices[m].is_empty() {
        return 0;
    }
    least_loss(snapshot, class, m).0
}

/// The devices to take on machine slot `m`: those with the least loss.
pub(crate) fn choose_least_loss(
    snapshot: &ClusterSnapshot,
    class: &Class,
    m: usize,
) -> Option<Vec<DeviceGrant>> {
    let aware = !snapshot.device_demand.is_empty() && !class.request.devices.is_empty();
    aware.then(|| least_loss(snapshot, class, m).1)
}

fn least_loss(snapshot: &ClusterSnapshot, class: &Class, m: usize) -> (u32, Vec<DeviceGrant>) {
    let slots = &snapshot.machines.devices[m];
    let shares = shares_of(slots);
    let mix = &snapshot.device_demand;
    let before = mix.worth(slots, &shares, &amounts(snapshot, class, m, false));
    let free = amounts(snapshot, class, m, true);
    let loss = |grants: &[DeviceGrant]| {
        let mut shares = shares.clone();
        for grant in grants {
            let share = &mut shares[usize::from(grant.device)];
            *share = share.saturating_sub(grant.milli);
        }
        (before - mix.worth(slots, &shares, &free)).clamp(0, i64::from(MAX_DEVICES)) as u32
    };
    let part = match class.request.devices.as_slice() {
        [request] if request.count == 1 && request.milli < WHOLE_DEVICE => Some(request),
        _ => None,
    };
    let Some(request) = part else {
        // Whole devices are all alike; several requests take what the plain rule chooses.
        let grants = crate::feasible::choose_devices(snapshot, class, m, &[]).unwrap_or_default();
        return (loss(&grants), grants);
    };
    let accepted = |i: &usize| {
        let device = snapshot.machines.device_kinds.get(slots[*i].kind);
        shares[*i] >= request.milli && device.is_some_and(|d| request.accepts(d))
    };
    let mut levels: Vec<usize> = (0..slots.len()).filter(accepted).collect();
    // Equal devices lose equally: one of each suffices, the first.
    levels.sort_by_key(|i| (shares[*i], slots[*i].kind, *i));
    levels.dedup_by_key(|i| (shares[*i], slots[*i].kind));
    let candidates = levels.into_iter().map(|i| {
        let grants = vec![DeviceGrant { device: i as u8, milli: request.milli }];
        (loss(&grants), grants)
    });
    candidates.min_by_key(|(loss, _)| *loss).unwrap_or_default()
}
