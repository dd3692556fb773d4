//! What a walk over the machines adds up to: how many fail for which reason first, and how near
//! each single change of the request would come. Tallies of consecutive ranges of machines add up
//! to the tally of all, in any grouping, so the walk can be divided.

use super::verdict::{Asked, Demand, Verdict};
use super::victims::Candidates;
use crate::board::machines::Status;
use crate::class::Class;
use crate::feasible::{self, Spot};
use cellwright_cell::device::DeviceRequest;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::reason::Misfit;
use cellwright_cell::spec::SpreadLimit;
use std::ops::Range;

/// Port holders named per reason.
const HOLDERS_NAMED: usize = 5;

/// What a reason is about, in precedence order of [`Misfit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Down,
    Draining,
    Constraint(u32),
    /// Position in the folders that it borrows.
    Volume(u32),
    Crashed,
    NoAlloc,
    /// Position in the job's spread limits.
    Spread(u32),
    StaticPort(u16),
    DynamicPorts,
    /// Position in the job's device requests.
    Device(u32),
    /// Position in the job's named resources.
    Named(u32),
    Full,
    Resource(u8),
    Short,
    Fits,
}

/// A place and how much of something is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    pub amount: u64,
    pub machine: MachineId,
    pub alloc: Option<TaskId>,
}

#[derive(Clone, Debug)]
pub(super) struct Group {
    pub subject: Subject,
    pub machines: u32,
    /// The most of what is short that any machine of the group has.
    pub most: Option<Most>,
    /// Who holds the port, and where.
    pub holders: Vec<(TaskId, MachineId)>,
}

/// A single change of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lever {
    Resource(u8),
    Ports,
    Named(u32),
    DeviceCount(u32),
    DeviceShares(u32),
    Spread(u32),
    Constraint(u32),
    Volume(u32),
    StaticPort(u16),
    Draining,
    Down,
}

/// How far a lever has to be pulled, at best.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub lever: Lever,
    /// Nearness: larger is nearer to what was asked.
    pub best: Most,
    /// Machines that offer the best.
    pub at_best: u32,
    /// Machines that offer anything.
    pub all: u32,
    /// The machines counted last: one with several fitting allocs counts once.
    last: MachineId,
    last_at_best: MachineId,
}

/// Two dimensions of room lowered together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    /// Sum of the two relative changes, in thousandths.
    pub permille: u32,
    pub machine: MachineId,
    pub alloc: Option<TaskId>,
    pub amounts: [(u8, u64); 2],
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub groups: Vec<Group>,
    pub offers: Vec<Offer>,
    pub pair: Option<Pair>,
    /// Machines that would take the task if they were empty.
    pub when_empty: u32,
    /// Of them, those on which spread limits stand against it now.
    pub kept_apart: u32,
    /// Machines that drain or are down and would take the task if they were open and empty.
    pub once_open: u32,
    pub candidates: Candidates,
}

/// What stands for "dropped": nearness of changes that are all or nothing.
const DROPPED: u64 = 1;

/// Nearness of a raised spread limit; smaller limits are nearer.
pub(super) fn raised(at_least: u64) -> u64 {
    u64::MAX - at_least
}

impl Tally {
    /// Looks at every machine with a slot in `range`.
    pub fn walk(asked: &Asked<'_>, range: Range<usize>) -> Tally {
        let mut tally = Tally::default();
        for m in range {
            if asked.board.machines.status[m] != Status::Gone {
                tally.look(asked, MachineId(m as u32));
            }
        }
        tally
    }

    fn look(&mut self, asked: &Asked<'_>, machine: MachineId) {
        // Of several allocs on a machine the one that comes furthest speaks for it.
        let mut furthest: Option<(Subject, Spot<'static>, Verdict)> = None;
        let (mut empty, mut apart, mut once_open) = (false, false, false);
        asked.places(machine, |spot| {
            let verdict = asked.judge(&spot);
            let subject = first(asked, &verdict);
            self.offer_changes(asked, &spot, &verdict);
            if verdict.curable() && asked.fits_empty(&spot) {
                empty = true;
                if subject != Subject::Fits {
                    self.candidates.consider(asked, &spot);
                }
            }
            apart |= verdict.curable_but_for_spread()
                && asked.spread_holds_empty(&spot)
                && asked.fits_empty(&spot);
            once_open |= verdict.curable_once_open()
                && asked.spread_holds_empty(&spot)
                && asked.fits_empty(&spot);
            if furthest.as_ref().is_none_or(|(known, ..)| subject > *known) {
                furthest = Some((subject, spot, verdict));
            }
        });
        self.when_empty += u32::from(empty || apart);
        self.kept_apart += u32::from(apart && !empty);
        self.once_open += u32::from(once_open);
        if let Some((subject, spot, verdict)) = furthest {
            self.count(asked, subject, &spot, &verdict);
        }
    }

    fn count(&mut self, asked: &Asked<'_>, subject: Subject, spot: &Spot<'_>, verdict: &Verdict) {
        let at = self.groups.iter().position(|g| g.subject == subject).unwrap_or_else(|| {
            self.groups.push(Group { subject, machines: 0, most: None, holders: vec![] });
            self.groups.len() - 1
        });
        let group = &mut self.groups[at];
        group.machines += 1;
        let amount = match (subject, verdict.others.first()) {
            (Subject::Resource(d), _) => asked.most_of(&asked.room(spot), usize::from(d)),
            (Subject::DynamicPorts, Some(Misfit::DynamicPorts { available, .. }))
            | (Subject::Device(_), Some(Misfit::Device { available, .. })) => u64::from(*available),
            (Subject::Named(_), Some(Misfit::Named { available, .. })) => *available,
            (Subject::StaticPort(_), Some(Misfit::StaticPort { holder: Some(holder), .. })) => {
                if group.holders.len() < HOLDERS_NAMED {
                    group.holders.push((*holder, spot.machine));
                }
                return;
            }
            _ => return,
        };
        if group.most.is_none_or(|most| amount > most.amount) {
            group.most = Some(Most { amount, machine: spot.machine, alloc: spot.alloc });
        }
    }

    /// Notes every change of one thing that would let the task in here.
    fn offer_changes(&mut self, asked: &Asked<'_>, spot: &Spot<'_>, verdict: &Verdict) {
        match (verdict.failures(), verdict.others.as_slice()) {
            (1, [misfit]) => self.offer_other(asked, spot, misfit),
            (1, _) if verdict.room != 0 => {
                let d = verdict.room.trailing_zeros() as u8;
                let most = asked.most_of(&asked.room(spot), usize::from(d));
                self.offer(Lever::Resource(d), most, spot);
            }
            (1, _) => {
                let lever = match asked.demand(verdict.constraints.trailing_zeros()) {
                    Demand::Constraint(position) => Lever::Constraint(position),
                    Demand::Volume(position) => Lever::Volume(position),
                };
                self.offer(lever, DROPPED, spot);
            }
            (2, []) if verdict.constraints == 0 => self.offer_pair(asked, spot, verdict.room),
            (2, [Misfit::StaticPort { port, .. }, Misfit::DynamicPorts { .. }]) => {
                // Without its clash the static port gives back its place in the range, too.
                let mut class = asked.class.clone();
                class.request.static_ports.retain(|p| p != port);
                if feasible::first(asked.board, &class, spot).is_none() {
                    self.offer(Lever::StaticPort(*port), DROPPED, spot);
                }
            }
            _ => {}
        }
    }

    fn offer_other(&mut self, asked: &Asked<'_>, spot: &Spot<'_>, misfit: &Misfit) {
        match misfit {
            Misfit::MachineDown => self.offer(Lever::Down, DROPPED, spot),
            Misfit::MachineDraining => self.offer(Lever::Draining, DROPPED, spot),
            Misfit::Spread { domain, .. } => {
                let held =
                    feasible::in_domain(asked.board, asked.class, spot.machine.slot(), *domain);
                let Subject::Spread(position) = subject_of(asked, misfit) else { return };
                self.offer(Lever::Spread(position), raised(u64::from(held) + 1), spot);
            }
            Misfit::StaticPort { port, .. } => self.offer(Lever::StaticPort(*port), DROPPED, spot),
            Misfit::DynamicPorts { asked: ports, available } => {
                self.offer(Lever::Ports, u64::from(*available), spot);
                // A static port inside the range also takes the place of a chosen one.
                let range = asked.board.machines.ports[spot.machine.slot()].range;
                let inside =
                    asked.class.request.static_ports.iter().filter(|p| range.contains(**p));
                for port in inside.filter(|_| *ports == available + 1) {
                    self.offer(Lever::StaticPort(*port), DROPPED, spot);
                }
            }
            Misfit::Device { .. } => self.offer_devices(asked, spot),
            Misfit::Named { available, .. } => {
                let Subject::Named(position) = subject_of(asked, misfit) else { return };
                self.offer(Lever::Named(position), *available, spot);
            }
            Misfit::Constraint { .. }
            | Misfit::Volume(_)
            | Misfit::CrashedHere
            | Misfit::NoAllocHere
            | Misfit::MachineShort
            | Misfit::MachineFull { .. }
            | Misfit::Resource(_) => {}
        }
    }

    /// Fewer devices, or smaller shares of one: the largest that the whole list can be met with.
    fn offer_devices(&mut self, asked: &Asked<'_>, spot: &Spot<'_>) {
        let m = spot.machine.slot();
        if asked.board.machines.devices[m].is_empty() {
            if asked.class.request.devices.len() == 1 {
                self.offer(Lever::DeviceCount(0), 0, spot);
            }
            return;
        }
        let mut class = asked.class.clone();
        let met = |class: &Class| feasible::choose_devices(asked.board, class, m, &[]).is_ok();
        for (position, request) in asked.class.request.devices.iter().enumerate() {
            let lever = position as u32;
            for count in (1..request.count).rev() {
                class.request.devices[position].count = count;
                if met(&class) {
                    self.offer(Lever::DeviceCount(lever), u64::from(count), spot);
                    break;
                }
            }
            // None at all is the request dropped.
            let one = class.request.devices.remove(position);
            if met(&class) {
                self.offer(Lever::DeviceCount(lever), 0, spot);
            }
            class.request.devices.insert(position, one);
            class.request.devices[position].count = request.count;
            if request.count == 1 {
                if let Some(milli) = largest_share(&mut class, position, met) {
                    self.offer(Lever::DeviceShares(lever), u64::from(milli), spot);
                }
                class.request.devices[position].milli = request.milli;
            }
        }
    }

    fn offer_pair(&mut self, asked: &Asked<'_>, spot: &Spot<'_>, room: u8) {
        let (first, second) = (room.trailing_zeros() as u8, 7 - room.leading_zeros() as u8);
        let free = asked.room(spot);
        let limits = asked.class.request.limits.to_array();
        let amounts = [first, second].map(|d| (d, asked.most_of(&free, usize::from(d))));
        let permille =
            amounts.iter().map(|(d, most)| relative(limits[usize::from(*d)], *most)).sum();
        if self.pair.is_none_or(|pair| permille < pair.permille) {
            let Spot { machine, alloc, .. } = *spot;
            self.pair = Some(Pair { permille, machine, alloc, amounts });
        }
    }

    fn offer(&mut self, lever: Lever, amount: u64, spot: &Spot<'_>) {
        let Spot { machine, alloc, .. } = *spot;
        let best = Most { amount, machine, alloc };
        let Some(known) = self.offers.iter_mut().find(|offer| offer.lever == lever) else {
            let (last, last_at_best) = (machine, machine);
            self.offers.push(Offer { lever, best, at_best: 1, all: 1, last, last_at_best });
            return;
        };
        known.all += u32::from(known.last != machine);
        known.last = machine;
        if amount > known.best.amount {
            (known.best, known.at_best, known.last_at_best) = (best, 1, machine);
        } else if amount == known.best.amount && known.last_at_best != machine {
            known.at_best += 1;
            known.last_at_best = machine;
        }
    }

    /// Adds the tally of later machines.
    pub fn add(&mut self, later: Tally) {
        for group in later.groups {
            let Some(known) = self.groups.iter_mut().find(|g| g.subject == group.subject) else {
                self.groups.push(group);
                continue;
            };
            known.machines += group.machines;
            let better = |most: &Most| known.most.is_none_or(|known| most.amount > known.amount);
            if let Some(most) = group.most.filter(better) {
                known.most = Some(most);
            }
            known.holders.extend(group.holders);
            known.holders.truncate(HOLDERS_NAMED);
        }
        for offer in later.offers {
            let Some(known) = self.offers.iter_mut().find(|o| o.lever == offer.lever) else {
                self.offers.push(offer);
                continue;
            };
            // Later machines are other machines, so nothing is counted twice.
            known.all += offer.all;
            if offer.best.amount > known.best.amount {
                (known.best, known.at_best) = (offer.best, offer.at_best);
            } else if offer.best.amount == known.best.amount {
                known.at_best += offer.at_best;
            }
        }
        if let Some(pair) = later.pair
            && self.pair.is_none_or(|known| pair.permille < known.permille)
        {
            self.pair = Some(pair);
        }
        self.when_empty += later.when_empty;
        self.kept_apart += later.kept_apart;
        self.once_open += later.once_open;
        self.candidates.add(later.candidates);
    }

    pub fn fitting(&self) -> u32 {
        self.groups.iter().filter(|g| g.subject == Subject::Fits).map(|g| g.machines).sum()
    }
}

/// The change from `asked` down to `most`, in thousandths of what was asked, rounded up.
pub(super) fn relative(asked: u64, most: u64) -> u32 {
    if asked == 0 {
        return 0;
    }
    // Quantities are at most 2^50, so nothing saturates.
    asked.saturating_sub(most).saturating_mul(1000).div_ceil(asked) as u32
}

/// The largest share below the asked one with which the whole list of devices is met.
fn largest_share(class: &mut Class, position: usize, met: impl Fn(&Class) -> bool) -> Option<u16> {
    let asked = class.request.devices[position].milli;
    let kind = class.request.devices[position].kind.clone();
    let alone = class.request.devices.iter().filter(|r| r.kind == kind).count() == 1;
    let mut try_share = |milli: u16| {
        class.request.devices[position].milli = milli;
        met(class)
    };
    if !alone {
        // Requests for the same kind compete for the same devices: less for one is not always
        // more for the others, so every share is tried.
        return (1..asked).rev().find(|milli| try_share(*milli));
    }
    let (mut fits, mut too_much) = (0, asked);
    while too_much - fits > 1 {
        let middle = fits + (too_much - fits) / 2;
        if try_share(middle) { fits = middle } else { too_much = middle }
    }
    (fits > 0).then_some(fits)
}

/// What fails first; [`Subject::Fits`] when nothing does.
fn first(asked: &Asked<'_>, verdict: &Verdict) -> Subject {
    if let Some(state) = verdict.machine_state() {
        return subject_of(asked, state);
    }
    if verdict.constraints != 0 {
        return match asked.demand(verdict.constraints.trailing_zeros()) {
            Demand::Constraint(position) => Subject::Constraint(position),
            Demand::Volume(position) => Subject::Volume(position),
        };
    }
    match verdict.others.first() {
        Some(misfit) if *misfit != Misfit::MachineShort => subject_of(asked, misfit),
        _ if verdict.room != 0 => Subject::Resource(verdict.room.trailing_zeros() as u8),
        Some(misfit) => subject_of(asked, misfit),
        None => Subject::Fits,
    }
}

fn subject_of(asked: &Asked<'_>, misfit: &Misfit) -> Subject {
    let request = &asked.class.request;
    let at = |position: Option<usize>| position.unwrap_or(0) as u32;
    match misfit {
        Misfit::MachineDown => Subject::Down,
        Misfit::MachineDraining => Subject::Draining,
        Misfit::Constraint { position } => Subject::Constraint(*position),
        Misfit::Volume(loan) => {
            Subject::Volume(at(asked.loans().iter().position(|other| other == loan)))
        }
        Misfit::CrashedHere => Subject::Crashed,
        Misfit::NoAllocHere => Subject::NoAlloc,
        Misfit::Spread { domain, limit } => {
            let same = |s: &SpreadLimit| (s.domain, s.limit) == (*domain, *limit);
            Subject::Spread(at(request.spread.iter().position(same)))
        }
        Misfit::StaticPort { port, .. } => Subject::StaticPort(*port),
        Misfit::DynamicPorts { .. } => Subject::DynamicPorts,
        Misfit::Device { kind, asked, milli, .. } => {
            let same = |r: &DeviceRequest| {
                r.kind == *kind && u32::from(r.count) == *asked && r.milli == *milli
            };
            Subject::Device(at(request.devices.iter().position(same)))
        }
        Misfit::Named { name, .. } => {
            let same = |(id, _): &(u32, u64)| asked.board.resource_name(*id) == Some(name);
            Subject::Named(at(request.named.iter().position(same)))
        }
        Misfit::Resource(shortfall) => Subject::Resource(shortfall.dimension as u8),
        Misfit::MachineShort => Subject::Short,
        Misfit::MachineFull { .. } => Subject::Full,
    }
}
