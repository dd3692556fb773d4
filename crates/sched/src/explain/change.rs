//! Counterfactuals: what would have to be different for the task to fit, and where.
//!
//! The nearest is the one with the smallest relative change. A limit lowered from 4 to 3 GiB is a
//! change of 250 thousandths; a demand given up whole (a constraint, a static port, a spread limit)
//! counts as 500, so that dropping a constraint is nearer than cutting memory to a third, and
//! further than cutting it by a tenth. Machines that come back are nobody's to ask for and come
//! last.

use super::names::{self, MachineRef, Names, TaskRef};
use super::tally::{Lever, Offer, Pair, Tally, raised, relative};
use super::verdict::Asked;
use cellwright_cell::isolation::Loan;
use cellwright_cell::name::Token;
use cellwright_cell::named::ResourceName;
use cellwright_cell::resource::Dimension;
use cellwright_cell::spec::Domain;
use serde::Serialize;

/// Relative change of a demand given up whole, in thousandths.
const GIVEN_UP: u32 = 500;
/// Relative change of what the owner of the task cannot change.
const NOT_OURS: u32 = 1001;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Change {
    /// A lower limit.
    Resource {
        dimension: Dimension,
        asked: u64,
        at_most: u64,
    },
    /// Two lower limits together; only given when no single change helps.
    TwoResources([Lowered; 2]),
    Ports {
        asked: u64,
        at_most: u64,
    },
    /// `at_most` 0 means without it.
    Named {
        name: ResourceName,
        asked: u64,
        at_most: u64,
    },
    /// `at_most` 0 means without it. `position` is that in the list of device requests.
    DeviceCount {
        position: u32,
        kind: Token,
        asked: u64,
        at_most: u64,
    },
    DeviceShares {
        position: u32,
        kind: Token,
        asked: u64,
        at_most: u64,
    },
    /// A higher spread limit.
    Spread {
        domain: Domain,
        limit: u32,
        at_least: u64,
    },
    DropConstraint {
        position: u32,
        constraint: String,
    },
    /// The folder not borrowed.
    DropVolume(Loan),
    DropStaticPort {
        port: u16,
    },
    /// Draining machines opened again.
    DrainEnded,
    /// Machines that are down come back, and are not draining then.
    MachineBack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Lowered {
    pub dimension: Dimension,
    pub asked: u64,
    pub at_most: u64,
}

/// A change with which the task would fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Counterfactual {
    pub change: Change,
    /// Machines that would take it then.
    pub machines: u32,
    /// The first of them.
    pub machine: MachineRef,
    /// The alloc on it, for tasks inside an alloc set.
    pub alloc: Option<TaskRef>,
    /// Size of the change in thousandths of what was asked.
    pub permille: u32,
}

impl Counterfactual {
    /// Whether the owner of the task can make the change.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.permille < NOT_OURS
    }
}

/// All single changes, nearest first.
pub(super) fn singles(asked: &Asked<'_>, tally: &Tally, names: &dyn Names) -> Vec<Counterfactual> {
    let mut offers: Vec<(u32, Lever, &Offer)> =
        tally.offers.iter().map(|o| (permille(asked, o), o.lever, o)).collect();
    offers.sort_unstable_by_key(|(permille, lever, _)| (*permille, *lever));
    let finish = |(permille, _, offer): (u32, Lever, &Offer)| {
        Some(Counterfactual {
            change: change(asked, offer)?,
            machines: if is_amount(offer.lever) { offer.at_best } else { offer.all },
            machine: names::machine(names, offer.best.machine),
            alloc: offer.best.alloc.map(|alloc| names::task(names, alloc)),
            permille,
        })
    };
    offers.into_iter().filter_map(finish).collect()
}

/// The nearest change of two dimensions together.
pub(super) fn pair(asked: &Asked<'_>, pair: &Pair, names: &dyn Names) -> Counterfactual {
    let limits = asked.class.request.limits;
    let lowered = pair.amounts.map(|(d, at_most)| {
        let dimension = Dimension::ALL[usize::from(d)];
        Lowered { dimension, asked: limits.get(dimension), at_most }
    });
    Counterfactual {
        change: Change::TwoResources(lowered),
        machines: 1,
        machine: names::machine(names, pair.machine),
        alloc: pair.alloc.map(|alloc| names::task(names, alloc)),
        permille: pair.permille,
    }
}

fn is_amount(lever: Lever) -> bool {
    matches!(
        lever,
        Lever::Resource(_)
            | Lever::Ports
            | Lever::Named(_)
            | Lever::DeviceCount(_)
            | Lever::DeviceShares(_)
    )
}

fn permille(asked: &Asked<'_>, offer: &Offer) -> u32 {
    let most = offer.best.amount;
    let request = &asked.class.request;
    let device = |i: u32| &request.devices[i as usize];
    match offer.lever {
        Lever::Resource(d) => relative(request.limits.to_array()[usize::from(d)], most),
        Lever::Ports | Lever::Named(_) | Lever::DeviceCount(_) if most == 0 => GIVEN_UP,
        Lever::Ports => relative(u64::from(request.ports), most),
        Lever::Named(i) => relative(request.named[i as usize].1, most),
        Lever::DeviceCount(i) => relative(u64::from(device(i).count), most),
        Lever::DeviceShares(i) => relative(u64::from(device(i).milli), most),
        Lever::Spread(i) => {
            let limit = u64::from(request.spread[i as usize].limit).max(1);
            let more = raised(most).saturating_sub(limit).saturating_mul(1000).div_ceil(limit);
            more.min(u64::from(GIVEN_UP)) as u32
        }
        Lever::Constraint(_) | Lever::Volume(_) | Lever::StaticPort(_) => GIVEN_UP,
        Lever::Draining | Lever::Down => NOT_OURS,
    }
}

fn change(asked: &Asked<'_>, offer: &Offer) -> Option<Change> {
    let at_most = offer.best.amount;
    let request = &asked.class.request;
    Some(match offer.lever {
        Lever::Resource(d) => {
            let dimension = Dimension::ALL[usize::from(d)];
            Change::Resource { dimension, asked: request.limits.get(dimension), at_most }
        }
        Lever::Ports => Change::Ports { asked: u64::from(request.ports), at_most },
        Lever::Named(i) => {
            let (id, amount) = request.named[i as usize];
            let name = asked.board.resource_name(id)?.clone();
            Change::Named { name, asked: amount, at_most }
        }
        Lever::DeviceCount(position) => {
            let device = &request.devices[position as usize];
            let (kind, asked) = (device.kind.clone(), u64::from(device.count));
            Change::DeviceCount { position, kind, asked, at_most }
        }
        Lever::DeviceShares(position) => {
            let device = &request.devices[position as usize];
            let (kind, asked) = (device.kind.clone(), u64::from(device.milli));
            Change::DeviceShares { position, kind, asked, at_most }
        }
        Lever::Spread(i) => {
            let spread = request.spread[i as usize];
            let at_least = raised(offer.best.amount);
            Change::Spread { domain: spread.domain, limit: spread.limit, at_least }
        }
        Lever::Constraint(position) => {
            let constraint = super::constraint_text(asked, position);
            Change::DropConstraint { position, constraint }
        }
        Lever::Volume(i) => Change::DropVolume(asked.loans().get(i as usize)?.clone()),
        Lever::StaticPort(port) => Change::DropStaticPort { port },
        Lever::Draining => Change::DrainEnded,
        Lever::Down => Change::MachineBack,
    })
}
