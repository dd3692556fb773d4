//! The device-aware part of the hybrid score (X1): place a task where the machine loses least of
//! the device worth it can still sell.
//!
//! A machine's worth to a typical task is what its devices could still sell to tasks like it: the
//! slots that are left ([`super::slot_values`]), but no more than its free CPU and memory can go
//! with, and nothing where the task would not fit at all. Summed over the cell's demand, plus a
//! term for the slots alone. The prior art asks whether *one* typical task still fits; that sees a
//! shortage of CPU only when the last task of a machine is at stake.
//!
//! Costs nothing for cells without device requests: the mix is then empty and never looked at.

use super::MAX_DEVICES;
use super::slot_values::{Demand, GRAIN, GRAINS, SlotValues, UNIT, slot_values};
use crate::board::Board;
use crate::board::machines::{DeviceSlot, Machines};
use crate::class::{Class, Classes};
use cellwright_cell::device::{DeviceGrant, DeviceRequest, WHOLE};
use cellwright_cell::name::Token;
use cellwright_cell::resource::DIMENSIONS;
use std::collections::BTreeMap;

/// Weight of the slots themselves against what typical tasks can make of them.
const SLACK: i64 = 8;
/// Near-equal requests share an entry of the mix: amounts keep this many significant bits.
const SIGNIFICANT_BITS: u32 = 5;
/// Entries kept; the rarest go first.
const MAX_TYPICAL: usize = 512;
/// Counts are scaled down until they add up to less than this, so that 64 bits are enough.
const MAX_WEIGHT: i64 = 1 << 16;
/// Amounts are scaled down to this many bits, for the same reason.
const AMOUNT_BITS: u32 = 31;

/// A shape of request that the cell sees.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    need: [i64; DIMENSIONS],
    count: i64,
    milli: u16,
    /// By interned device.
    accepts: Vec<bool>,
}

#[derive(Clone, Debug)]
struct Typical {
    shape: Shape,
    weight: i64,
    /// What one such task buys, in [`UNIT`].
    buys: i64,
}

/// Demand for one kind of device.
#[derive(Clone, Debug)]
struct KindMix {
    values: SlotValues,
    typical: Vec<Typical>,
    weight: i64,
    /// Which interned devices are of this kind.
    members: Vec<bool>,
}

/// The cell's demand for devices, drawn from the tasks that wait or hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceMix {
    kinds: Vec<KindMix>,
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

impl DeviceMix {
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    pub fn redraw(&mut self, classes: &Classes, machines: &Machines) {
        self.shift = std::array::from_fn(|d| {
            let largest = machines.shapes.iter().map(|s| s.capacity[d]).max().unwrap_or(0);
            (64 - largest.leading_zeros()).saturating_sub(AMOUNT_BITS)
        });
        let mut counts: BTreeMap<Token, BTreeMap<Shape, i64>> = BTreeMap::new();
        for (request, members) in classes.demand().filter(|(_, members)| *members > 0) {
            for ask in &request.devices {
                let amounts = request.reservation.to_array();
                let need = std::array::from_fn(|d| {
                    rounded((amounts[d] >> self.shift[d]).min(1 << AMOUNT_BITS) as i64)
                });
                let shape = self.shape(need, ask, machines);
                let kind = counts.entry(ask.kind.clone()).or_default();
                *kind.entry(shape).or_default() += i64::from(members);
            }
        }
        let kinds = counts.into_iter().map(|(kind, shapes)| kind_mix(&kind, shapes, machines));
        self.kinds = kinds.collect();
    }

    fn shape(&self, need: [i64; DIMENSIONS], ask: &DeviceRequest, machines: &Machines) -> Shape {
        let devices = machines.device_kinds.items().iter();
        Shape {
            need,
            count: i64::from(ask.count.max(1)),
            milli: ask.milli.div_ceil(GRAIN) * GRAIN,
            accepts: devices.map(|d| ask.accepts(d)).collect(),
        }
    }

    /// What the machine's devices can still sell, with `free` of the rest to go with them.
    fn worth(&self, slots: &[DeviceSlot], shares: &[u16], free: &[i64; DIMENSIONS]) -> i64 {
        self.kinds.iter().map(|kind| kind.worth(slots, shares, free)).sum()
    }
}

fn kind_mix(kind: &Token, shapes: BTreeMap<Shape, i64>, machines: &Machines) -> KindMix {
    let mut typical: Vec<(i64, Shape)> = shapes.into_iter().map(|(s, n)| (n, s)).collect();
    typical.sort_by(|a, b| b.cmp(a));
    typical.truncate(MAX_TYPICAL);
    while typical.iter().map(|(n, _)| n).sum::<i64>() >= MAX_WEIGHT {
        typical.iter_mut().for_each(|(n, _)| *n = (*n / 2).max(1));
    }
    let mut sizes: BTreeMap<usize, u64> = BTreeMap::new();
    for (count, shape) in &typical {
        let size = usize::from(shape.milli / GRAIN).clamp(1, GRAINS);
        *sizes.entry(size).or_default() += (*count * shape.count) as u64;
    }
    let demand: Vec<Demand> =
        sizes.into_iter().map(|(size, count)| Demand { size, count }).collect();
    let devices = machines.device_kinds.items().iter();
    KindMix {
        values: slot_values(&demand),
        weight: typical.iter().map(|(n, _)| n).sum(),
        members: devices.map(|d| d.kind == *kind).collect(),
        typical: typical.into_iter().map(|(weight, shape)| typical_of(weight, shape)).collect(),
    }
}

fn typical_of(weight: i64, shape: Shape) -> Typical {
    let buys = shape.count * i64::from(shape.milli) * UNIT / i64::from(WHOLE);
    Typical { shape, weight, buys }
}

/// What is free of one kind on a machine.
#[derive(Default)]
struct Left {
    slots: i64,
    whole: i64,
    largest: u16,
}

impl KindMix {
    fn left(&self, slots: &[DeviceSlot], shares: &[u16], accepts: &[bool]) -> Left {
        let mut left = Left::default();
        for (slot, free) in slots.iter().zip(shares) {
            if accepts.get(slot.kind as usize).copied().unwrap_or(false) {
                left.slots += self.values[usize::from(free / GRAIN).min(GRAINS)];
                left.whole += i64::from(*free == WHOLE);
                left.largest = left.largest.max(*free);
            }
        }
        left
    }

    fn worth(&self, slots: &[DeviceSlot], shares: &[u16], free: &[i64; DIMENSIONS]) -> i64 {
        let all = self.left(slots, shares, &self.members);
        if all.slots == 0 {
            return 0;
        }
        // Machines nearly always have devices of one model; then what one task accepts is all.
        let uniform = slots.windows(2).all(|pair| pair[0].kind == pair[1].kind);
        let mut sum = SLACK * self.weight * all.slots;
        for typical in &self.typical {
            let shape = &typical.shape;
            let first = slots.first().map_or(0, |s| s.kind as usize);
            if uniform && !shape.accepts.get(first).copied().unwrap_or(false) {
                continue;
            }
            let part;
            let left = match uniform {
                true => &all,
                false => {
                    part = self.left(slots, shares, &shape.accepts);
                    &part
                }
            };
            sum += typical.weight * sells(typical, left, free);
        }
        // Normalised by the weight of the mix: a quarter of a millionth of a device is fine enough.
        sum / (4 * self.weight.max(1))
    }
}

/// What the machine could sell to tasks of one shape: bounded by slots and by all other amounts.
fn sells(typical: &Typical, left: &Left, free: &[i64; DIMENSIONS]) -> i64 {
    let shape = &typical.shape;
    let fits = shape.need.iter().zip(free).all(|(need, free)| need <= free);
    if !fits || left.largest < shape.milli {
        return 0;
    }
    let mut sells = match shape.count {
        1 => left.slots,
        count => left.whole / count * typical.buys,
    };
    for (need, free) in shape.need.iter().zip(free) {
        // Compared as products first: dividing is the dear part.
        if *need > 0 && free * typical.buys < sells * need {
            sells = free * typical.buys / need;
        }
    }
    sells
}

fn shares_of(slots: &[DeviceSlot]) -> Vec<u16> {
    slots.iter().map(|slot| slot.free()).collect()
}

/// Free amounts by reservation, after `class` came (or before), scaled as the mix is.
fn amounts(board: &Board, class: &Class, m: usize, after: bool) -> [i64; DIMENSIONS] {
    let free = &board.machines.room[m].free;
    std::array::from_fn(|d| {
        let taken = if after { class.take[d + DIMENSIONS] } else { 0 };
        (free[d + DIMENSIONS] - taken).max(0) >> board.device_mix.shift[d]
    })
}

/// Device worth that machine slot `m` loses when a task of the class comes; the caller has found it
/// feasible. Lower is better.
pub(crate) fn loss(board: &Board, class: &Class, m: usize) -> u32 {
    if board.device_mix.is_empty() || board.machines.devices[m].is_empty() {
        return 0;
    }
    best(board, class, m).0
}

/// The devices to take on machine slot `m`: those whose loss is least.
pub(crate) fn choose(board: &Board, class: &Class, m: usize) -> Option<Vec<DeviceGrant>> {
    let aware = !board.device_mix.is_empty() && !class.request.devices.is_empty();
    aware.then(|| best(board, class, m).1)
}

fn best(board: &Board, class: &Class, m: usize) -> (u32, Vec<DeviceGrant>) {
    let slots = &board.machines.devices[m];
    let shares = shares_of(slots);
    let mix = &board.device_mix;
    let before = mix.worth(slots, &shares, &amounts(board, class, m, false));
    let free = amounts(board, class, m, true);
    let loss = |grants: &[DeviceGrant]| {
        let mut shares = shares.clone();
        for grant in grants {
            let share = &mut shares[usize::from(grant.device)];
            *share = share.saturating_sub(grant.milli);
        }
        (before - mix.worth(slots, &shares, &free)).clamp(0, i64::from(MAX_DEVICES)) as u32
    };
    let part = match class.request.devices.as_slice() {
        [ask] if ask.count == 1 && ask.milli < WHOLE => Some(ask),
        _ => None,
    };
    let Some(ask) = part else {
        // Whole devices are all alike; several requests take what the plain rule takes.
        let grants = crate::feasible::choose_devices(board, class, m, &[]).unwrap_or_default();
        return (loss(&grants), grants);
    };
    let accepted = |i: &usize| {
        let device = board.machines.device_kinds.get(slots[*i].kind);
        shares[*i] >= ask.milli && device.is_some_and(|d| ask.accepts(d))
    };
    let mut levels: Vec<usize> = (0..slots.len()).filter(accepted).collect();
    // Equal devices lose equally: one of each suffices, the first.
    levels.sort_by_key(|i| (shares[*i], slots[*i].kind, *i));
    levels.dedup_by_key(|i| (shares[*i], slots[*i].kind));
    let candidates = levels.into_iter().map(|i| {
        let grants = vec![DeviceGrant { device: i as u8, milli: ask.milli }];
        (loss(&grants), grants)
    });
    candidates.min_by_key(|(loss, _)| *loss).unwrap_or_default()
}
