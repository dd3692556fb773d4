//! Counterfactuals: the changes with which the task would fit, and where.
//!
//! The nearest is the one with the smallest relative change. A limit lowered from 4 to 3 GiB is a
//! change of 250 thousandths; a requirement dropped altogether (a constraint, a static port, a
//! spread limit) counts as 500, so that dropping a constraint is nearer than cutting memory to a
//! third, and further than cutting it by a tenth. The return of machines is beyond the owner's
//! control and comes last.

use super::evaluation::PreparedClass;
use super::names::{self, NameResolver};
use super::tally::{
    ChangeKind, DimensionPair, PossibleChange, Tally, relative_change, spread_nearness,
};
use cellwright_cell::explanation::{Change, Counterfactual, Lowered, NOT_OURS};
use cellwright_cell::resource::Dimension;

/// Relative change of a requirement dropped altogether, in thousandths.
const DROPPED_PERMILLE: u32 = 500;

/// All single changes, nearest first.
pub(super) fn single_changes(
    prepared: &PreparedClass<'_>,
    tally: &Tally,
    names: &dyn NameResolver,
) -> Vec<Counterfactual> {
    let mut changes: Vec<(u32, ChangeKind, &PossibleChange)> =
        tally.changes.iter().map(|o| (change_permille(prepared, o), o.kind, o)).collect();
    changes.sort_unstable_by_key(|(permille, kind, _)| (*permille, *kind));
    let finish = |(permille, _, possible_change): (u32, ChangeKind, &PossibleChange)| {
        Some(Counterfactual {
            change: to_change(prepared, possible_change)?,
            machines: if is_amount(possible_change.kind) {
                possible_change.machines_at_best
            } else {
                possible_change.machines
            },
            machine: names::machine_ref(names, possible_change.best.machine),
            alloc: possible_change.best.alloc.map(|alloc| names::task_ref(names, alloc)),
            permille,
        })
    };
    changes.into_iter().filter_map(finish).collect()
}

/// The nearest change of two dimensions together.
pub(super) fn pair_change(
    prepared: &PreparedClass<'_>,
    pair: &DimensionPair,
    names: &dyn NameResolver,
) -> Counterfactual {
    let limits = prepared.class.request.limits;
    let lowered = pair.amounts.map(|(d, at_most)| {
        let dimension = Dimension::ALL[usize::from(d)];
        Lowered { dimension, requested: limits.get(dimension), at_most }
    });
    Counterfactual {
        change: Change::TwoResources(lowered),
        machines: 1,
        machine: names::machine_ref(names, pair.machine),
        alloc: pair.alloc.map(|alloc| names::task_ref(names, alloc)),
        permille: pair.permille,
    }
}

fn is_amount(kind: ChangeKind) -> bool {
    matches!(
        kind,
        ChangeKind::Resource(_)
            | ChangeKind::Ports
            | ChangeKind::Named(_)
            | ChangeKind::DeviceCount(_)
            | ChangeKind::DeviceShares(_)
    )
}

fn change_permille(prepared: &PreparedClass<'_>, change: &PossibleChange) -> u32 {
    let available = change.best.amount;
    let request = &prepared.class.request;
    let device = |i: u32| &request.devices[i as usize];
    match change.kind {
        ChangeKind::Resource(d) => {
            relative_change(request.limits.to_array()[usize::from(d)], available)
        }
        ChangeKind::Ports | ChangeKind::Named(_) | ChangeKind::DeviceCount(_) if available == 0 => {
            DROPPED_PERMILLE
        }
        ChangeKind::Ports => relative_change(u64::from(request.ports), available),
        ChangeKind::Named(i) => relative_change(request.named[i as usize].1, available),
        ChangeKind::DeviceCount(i) => relative_change(u64::from(device(i).count), available),
        ChangeKind::DeviceShares(i) => relative_change(u64::from(device(i).milli), available),
        ChangeKind::Spread(i) => {
            let limit = u64::from(request.spread[i as usize].limit).max(1);
            let more = spread_nearness(available)
                .saturating_sub(limit)
                .saturating_mul(1000)
                .div_ceil(limit);
            more.min(u64::from(DROPPED_PERMILLE)) as u32
        }
        ChangeKind::Constraint(_) | ChangeKind::Volume(_) | ChangeKind::StaticPort(_) => {
            DROPPED_PERMILLE
        }
        ChangeKind::Draining | ChangeKind::Down => NOT_OURS,
    }
}

fn to_change(prepared: &PreparedClass<'_>, possible_change: &PossibleChange) -> Option<Change> {
    let at_most = possible_change.best.amount;
    let request = &prepared.class.request;
    Some(match possible_change.kind {
        ChangeKind::Resource(d) => {
            let dimension = Dimension::ALL[usize::from(d)];
            Change::Resource { dimension, requested: request.limits.get(dimension), at_most }
        }
        ChangeKind::Ports => Change::Ports { requested: u64::from(request.ports), at_most },
        ChangeKind::Named(i) => {
            let (id, amount) = request.named[i as usize];
            let name = prepared.snapshot.resource_name(id)?.clone();
            Change::Named { name, requested: amount, at_most }
        }
        ChangeKind::DeviceCount(position) => {
            let device = &request.devices[position as usize];
            let (kind, requested) = (device.kind.clone(), u64::from(device.count));
            Change::DeviceCount { position, kind, requested, at_most }
        }
        ChangeKind::DeviceShares(position) => {
            let device = &request.devices[position as usize];
            let (kind, requested) = (device.kind.clone(), u64::from(device.milli));
            Change::DeviceShares { position, kind, requested, at_most }
        }
        ChangeKind::Spread(i) => {
            let spread = request.spread[i as usize];
            let at_least = spread_nearness(possible_change.best.amount);
            Change::Spread { domain: spread.domain, limit: spread.limit, at_least }
        }
        ChangeKind::Constraint(position) => {
            let constraint = super::constraint_text(prepared, position);
            Change::DropConstraint { position, constraint }
        }
        ChangeKind::Volume(i) => {
            Change::DropVolume(prepared.host_volumes().get(i as usize)?.clone())
        }
        ChangeKind::StaticPort(port) => Change::DropStaticPort { port },
        ChangeKind::Draining => Change::DrainEnded,
        ChangeKind::Down => Change::MachineBack,
    })
}
