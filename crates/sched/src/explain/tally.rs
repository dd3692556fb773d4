//! Tallies of a walk over the machines: how many fail for which reason first, and how near each
//! single change of the request comes. Tallies of consecutive ranges of machines add up to the
//! tally of all, in any grouping, so the walk can be divided.

use super::evaluation::{PreparedClass, Requirement, TargetEvaluation};
use super::nearest::NearTarget;
use super::victims::EvictionCandidates;
use crate::class::Class;
use crate::cluster_snapshot::machines::SchedulableStatus;
use crate::feasible::{self, PlacementTarget};
use cellwright_cell::device::DeviceRequest;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::reason::InfeasibleReason;
use cellwright_cell::spec::SpreadLimit;
use std::ops::Range;

/// Port holders named per reason.
const MAX_NAMED_HOLDERS: usize = 5;

/// The subject of a reason, in precedence order of [`InfeasibleReason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReasonSubject {
    OtherMachine,
    Down,
    Draining,
    Constraint(u32),
    /// Position in the class's host volumes.
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
    UnderPressure,
    Fits,
}

/// An amount and where it is available.
#[derive(Clone, Copy, Debug)]
pub(super) struct LargestAmount {
    pub amount: u64,
    pub machine: MachineId,
    pub alloc: Option<TaskId>,
}

#[derive(Clone, Debug)]
pub(super) struct ReasonGroup {
    pub subject: ReasonSubject,
    pub machines: u32,
    /// The largest available amount, on any machine of the group, of what is short.
    pub largest: Option<LargestAmount>,
    /// The holders of the port, and their machines.
    pub holders: Vec<(TaskId, MachineId)>,
}

/// A single change of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ChangeKind {
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

/// The size of a possible change, at best.
#[derive(Clone, Copy, Debug)]
pub(super) struct PossibleChange {
    pub kind: ChangeKind,
    /// Nearness: larger is nearer to the request.
    pub best: LargestAmount,
    /// Machines on which the smallest change helps.
    pub machines_at_best: u32,
    /// Machines on which any change helps.
    pub machines: u32,
    /// The machine counted last: one with several fitting allocs counts once.
    last: MachineId,
    last_at_best: MachineId,
}

/// Two dimensions of room lowered together.
#[derive(Clone, Copy, Debug)]
pub(super) struct DimensionPair {
    /// Sum of the two relative changes, in thousandths.
    pub permille: u32,
    pub machine: MachineId,
    pub alloc: Option<TaskId>,
    pub amounts: [(u8, u64); 2],
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub groups: Vec<ReasonGroup>,
    pub changes: Vec<PossibleChange>,
    pub pair: Option<DimensionPair>,
    /// Where the fewest things fail, if it fits nowhere.
    pub nearest: Option<NearTarget>,
    /// Machines that would accept the task if they were empty.
    pub when_empty: u32,
    /// Of them, those that spread limits rule out now.
    pub kept_apart: u32,
    /// Machines that drain or are down and would accept the task if they were open and empty.
    pub once_open: u32,
    pub candidates: EvictionCandidates,
}

/// Nearness of changes that drop a requirement: they are all or nothing.
const DROPPED: u64 = 1;

/// Nearness of a raised spread limit; smaller limits are nearer.
pub(super) fn spread_nearness(at_least: u64) -> u64 {
    u64::MAX - at_least
}

impl Tally {
    /// Evaluates every machine with a slot in `range`.
    pub fn walk(prepared: &PreparedClass<'_>, range: Range<usize>) -> Tally {
        let mut tally = Tally::default();
        for m in range {
            if prepared.snapshot.machines.status[m] != SchedulableStatus::Gone {
                tally.add_machine(prepared, MachineId(m as u32));
            }
        }
        tally
    }

    fn add_machine(&mut self, prepared: &PreparedClass<'_>, machine: MachineId) {
        // Of several allocs on a machine, the one whose first reason comes last in precedence
        // represents it.
        let mut furthest: Option<(ReasonSubject, PlacementTarget<'static>, TargetEvaluation)> =
            None;
        let (mut empty, mut apart, mut once_open) = (false, false, false);
        prepared.for_each_target(machine, |target| {
            let evaluation = prepared.evaluate(&target);
            let subject = first_subject(prepared, &evaluation);
            self.record_changes(prepared, &target, &evaluation);
            self.nearest = NearTarget::nearer(self.nearest, prepared, &target, &evaluation);
            if evaluation.is_resolvable() && prepared.fits_empty(&target) {
                empty = true;
                if subject != ReasonSubject::Fits {
                    self.candidates.consider(prepared, &target);
                }
            }
            apart |= evaluation.is_resolvable_but_for_spread()
                && prepared.spread_fits_empty(&target)
                && prepared.fits_empty(&target);
            once_open |= evaluation.is_resolvable_once_open()
                && prepared.spread_fits_empty(&target)
                && prepared.fits_empty(&target);
            if furthest.as_ref().is_none_or(|(known, ..)| subject > *known) {
                furthest = Some((subject, target, evaluation));
            }
        });
        self.when_empty += u32::from(empty || apart);
        self.kept_apart += u32::from(apart && !empty);
        self.once_open += u32::from(once_open);
        if let Some((subject, target, evaluation)) = furthest {
            self.count_reason(prepared, subject, &target, &evaluation);
        }
    }

    fn count_reason(
        &mut self,
        prepared: &PreparedClass<'_>,
        subject: ReasonSubject,
        target: &PlacementTarget<'_>,
        evaluation: &TargetEvaluation,
    ) {
        let at = self.groups.iter().position(|g| g.subject == subject).unwrap_or_else(|| {
            self.groups.push(ReasonGroup { subject, machines: 0, largest: None, holders: vec![] });
            self.groups.len() - 1
        });
        let group = &mut self.groups[at];
        group.machines += 1;
        let amount = match (subject, evaluation.others.first()) {
            (ReasonSubject::Resource(d), _) => {
                prepared.max_requestable(&prepared.room(target), usize::from(d))
            }
            (
                ReasonSubject::DynamicPorts,
                Some(InfeasibleReason::DynamicPorts { available, .. }),
            )
            | (ReasonSubject::Device(_), Some(InfeasibleReason::Device { available, .. })) => {
                u64::from(*available)
            }
            (ReasonSubject::Named(_), Some(InfeasibleReason::Named { available, .. })) => {
                *available
            }
            (
                ReasonSubject::StaticPort(_),
                Some(InfeasibleReason::StaticPort { holder: Some(holder), .. }),
            ) => {
                if group.holders.len() < MAX_NAMED_HOLDERS {
                    group.holders.push((*holder, target.machine));
                }
                return;
            }
            _ => return,
        };
        if group.largest.is_none_or(|most| amount > most.amount) {
            group.largest =
                Some(LargestAmount { amount, machine: target.machine, alloc: target.alloc });
        }
    }

    /// Records every single change with which the task would fit here.
    fn record_changes(
        &mut self,
        prepared: &PreparedClass<'_>,
        target: &PlacementTarget<'_>,
        evaluation: &TargetEvaluation,
    ) {
        match (evaluation.failures(), evaluation.others.as_slice()) {
            (1, [infeasible_reason]) => {
                self.record_other_change(prepared, target, infeasible_reason)
            }
            (1, _) if evaluation.room_dimensions != 0 => {
                let d = evaluation.room_dimensions.trailing_zeros() as u8;
                let available = prepared.max_requestable(&prepared.room(target), usize::from(d));
                self.record_change(ChangeKind::Resource(d), available, target);
            }
            (1, _) => {
                let kind = match prepared.requirement(evaluation.constraints.trailing_zeros()) {
                    Requirement::Constraint(position) => ChangeKind::Constraint(position),
                    Requirement::Volume(position) => ChangeKind::Volume(position),
                };
                self.record_change(kind, DROPPED, target);
            }
            (2, []) if evaluation.constraints == 0 => {
                self.record_pair(prepared, target, evaluation.room_dimensions)
            }
            (
                2,
                [InfeasibleReason::StaticPort { port, .. }, InfeasibleReason::DynamicPorts { .. }],
            ) => {
                // Dropping a static port also frees its port in the range.
                let mut class = prepared.class.clone();
                class.request.static_ports.retain(|p| p != port);
                if feasible::first_reason(prepared.snapshot, &class, target).is_none() {
                    self.record_change(ChangeKind::StaticPort(*port), DROPPED, target);
                }
            }
            _ => {}
        }
    }

    fn record_other_change(
        &mut self,
        prepared: &PreparedClass<'_>,
        target: &PlacementTarget<'_>,
        infeasible_reason: &InfeasibleReason,
    ) {
        match infeasible_reason {
            InfeasibleReason::MachineDown => self.record_change(ChangeKind::Down, DROPPED, target),
            InfeasibleReason::MachineDraining => {
                self.record_change(ChangeKind::Draining, DROPPED, target)
            }
            InfeasibleReason::Spread { domain, .. } => {
                let held = feasible::tasks_in_domain(
                    prepared.snapshot,
                    prepared.class,
                    target.machine.slot(),
                    *domain,
                );
                let ReasonSubject::Spread(position) = subject_of(prepared, infeasible_reason)
                else {
                    return;
                };
                self.record_change(
                    ChangeKind::Spread(position),
                    spread_nearness(u64::from(held) + 1),
                    target,
                );
            }
            InfeasibleReason::StaticPort { port, .. } => {
                self.record_change(ChangeKind::StaticPort(*port), DROPPED, target)
            }
            InfeasibleReason::DynamicPorts { requested: ports, available } => {
                self.record_change(ChangeKind::Ports, u64::from(*available), target);
                // A static port inside the range also uses up one of the chosen ones.
                let range = prepared.snapshot.machines.ports[target.machine.slot()].range;
                let inside =
                    prepared.class.request.static_ports.iter().filter(|p| range.contains(**p));
                for port in inside.filter(|_| *ports == available + 1) {
                    self.record_change(ChangeKind::StaticPort(*port), DROPPED, target);
                }
            }
            InfeasibleReason::Device { .. } => self.record_device_changes(prepared, target),
            InfeasibleReason::Named { available, .. } => {
                let ReasonSubject::Named(position) = subject_of(prepared, infeasible_reason) else {
                    return;
                };
                self.record_change(ChangeKind::Named(position), *available, target);
            }
            InfeasibleReason::OtherMachine
            | InfeasibleReason::Constraint { .. }
            | InfeasibleReason::Volume(_)
            | InfeasibleReason::CrashedHere
            | InfeasibleReason::NoAllocHere
            | InfeasibleReason::ResourcePressure
            | InfeasibleReason::MachineFull { .. }
            | InfeasibleReason::Resource(_) => {}
        }
    }

    /// Fewer devices, or smaller shares of one: the largest with which the whole list can be met.
    fn record_device_changes(
        &mut self,
        prepared: &PreparedClass<'_>,
        target: &PlacementTarget<'_>,
    ) {
        let m = target.machine.slot();
        if prepared.snapshot.machines.devices[m].is_empty() {
            if prepared.class.request.devices.len() == 1 {
                self.record_change(ChangeKind::DeviceCount(0), 0, target);
            }
            return;
        }
        let mut class = prepared.class.clone();
        let met =
            |class: &Class| feasible::choose_devices(prepared.snapshot, class, m, &[]).is_ok();
        for (position, request) in prepared.class.request.devices.iter().enumerate() {
            let kind = position as u32;
            for count in (1..request.count).rev() {
                class.request.devices[position].count = count;
                if met(&class) {
                    self.record_change(ChangeKind::DeviceCount(kind), u64::from(count), target);
                    break;
                }
            }
            // No device left means the request is dropped.
            let removed = class.request.devices.remove(position);
            if met(&class) {
                self.record_change(ChangeKind::DeviceCount(kind), 0, target);
            }
            class.request.devices.insert(position, removed);
            class.request.devices[position].count = request.count;
            if request.count == 1 {
                if let Some(milli) = largest_share(&mut class, position, met) {
                    self.record_change(ChangeKind::DeviceShares(kind), u64::from(milli), target);
                }
                class.request.devices[position].milli = request.milli;
            }
        }
    }

    fn record_pair(
        &mut self,
        prepared: &PreparedClass<'_>,
        target: &PlacementTarget<'_>,
        room: u8,
    ) {
        let (first, second) = (room.trailing_zeros() as u8, 7 - room.leading_zeros() as u8);
        let free = prepared.room(target);
        let limits = prepared.class.request.limits.to_array();
        let amounts = [first, second].map(|d| (d, prepared.max_requestable(&free, usize::from(d))));
        let permille = amounts
            .iter()
            .map(|(d, available)| relative_change(limits[usize::from(*d)], *available))
            .sum();
        if self.pair.is_none_or(|pair| permille < pair.permille) {
            let PlacementTarget { machine, alloc, .. } = *target;
            self.pair = Some(DimensionPair { permille, machine, alloc, amounts });
        }
    }

    fn record_change(&mut self, kind: ChangeKind, amount: u64, target: &PlacementTarget<'_>) {
        let PlacementTarget { machine, alloc, .. } = *target;
        let best = LargestAmount { amount, machine, alloc };
        let Some(known) = self.changes.iter_mut().find(|change| change.kind == kind) else {
            let (last, last_at_best) = (machine, machine);
            self.changes.push(PossibleChange {
                kind,
                best,
                machines_at_best: 1,
                machines: 1,
                last,
                last_at_best,
            });
            return;
        };
        known.machines += u32::from(known.last != machine);
        known.last = machine;
        if amount > known.best.amount {
            (known.best, known.machines_at_best, known.last_at_best) = (best, 1, machine);
        } else if amount == known.best.amount && known.last_at_best != machine {
            known.machines_at_best += 1;
            known.last_at_best = machine;
        }
    }

    /// Adds the tally of later machines.
    pub fn merge(&mut self, later: Tally) {
        for group in later.groups {
            let Some(known) = self.groups.iter_mut().find(|g| g.subject == group.subject) else {
                self.groups.push(group);
                continue;
            };
            known.machines += group.machines;
            let better = |largest: &LargestAmount| {
                known.largest.is_none_or(|known| largest.amount > known.amount)
            };
            if let Some(largest) = group.largest.filter(better) {
                known.largest = Some(largest);
            }
            known.holders.extend(group.holders);
            known.holders.truncate(MAX_NAMED_HOLDERS);
        }
        for change in later.changes {
            let Some(known) = self.changes.iter_mut().find(|o| o.kind == change.kind) else {
                self.changes.push(change);
                continue;
            };
            // Later machines are other machines, so nothing is counted twice.
            known.machines += change.machines;
            if change.best.amount > known.best.amount {
                (known.best, known.machines_at_best) = (change.best, change.machines_at_best);
            } else if change.best.amount == known.best.amount {
                known.machines_at_best += change.machines_at_best;
            }
        }
        if let Some(pair) = later.pair
            && self.pair.is_none_or(|known| pair.permille < known.permille)
        {
            self.pair = Some(pair);
        }
        self.nearest = [self.nearest, later.nearest].into_iter().flatten().min();
        self.when_empty += later.when_empty;
        self.kept_apart += later.kept_apart;
        self.once_open += later.once_open;
        self.candidates.merge(later.candidates);
    }

    pub fn fitting(&self) -> u32 {
        self.groups.iter().filter(|g| g.subject == ReasonSubject::Fits).map(|g| g.machines).sum()
    }
}

/// The change from `requested` down to `available`, in thousandths of the request, rounded up.
pub(super) fn relative_change(requested: u64, available: u64) -> u32 {
    if requested == 0 {
        return 0;
    }
    // Quantities are at most 2^50, so nothing saturates.
    requested.saturating_sub(available).saturating_mul(1000).div_ceil(requested) as u32
}

/// The largest share below the requested one with which the whole list of devices is met.
fn largest_share(class: &mut Class, position: usize, met: impl Fn(&Class) -> bool) -> Option<u16> {
    let requested = class.request.devices[position].milli;
    let kind = class.request.devices[position].kind.clone();
    let alone = class.request.devices.iter().filter(|r| r.kind == kind).count() == 1;
    let mut try_share = |milli: u16| {
        class.request.devices[position].milli = milli;
        met(class)
    };
    if !alone {
        // Requests for the same kind compete for the same devices: less for one is not always
        // more for the others, so every share is tried.
        return (1..requested).rev().find(|milli| try_share(*milli));
    }
    let (mut fits, mut too_much) = (0, requested);
    while too_much - fits > 1 {
        let middle = fits + (too_much - fits) / 2;
        if try_share(middle) { fits = middle } else { too_much = middle }
    }
    (fits > 0).then_some(fits)
}

/// What fails first; [`ReasonSubject::Fits`] when nothing does.
fn first_subject(prepared: &PreparedClass<'_>, evaluation: &TargetEvaluation) -> ReasonSubject {
    if let Some(state) = evaluation.unavailable_reason() {
        return subject_of(prepared, state);
    }
    if evaluation.constraints != 0 {
        return match prepared.requirement(evaluation.constraints.trailing_zeros()) {
            Requirement::Constraint(position) => ReasonSubject::Constraint(position),
            Requirement::Volume(position) => ReasonSubject::Volume(position),
        };
    }
    match evaluation.others.first() {
        Some(infeasible_reason) if *infeasible_reason != InfeasibleReason::ResourcePressure => {
            subject_of(prepared, infeasible_reason)
        }
        _ if evaluation.room_dimensions != 0 => {
            ReasonSubject::Resource(evaluation.room_dimensions.trailing_zeros() as u8)
        }
        Some(infeasible_reason) => subject_of(prepared, infeasible_reason),
        None => ReasonSubject::Fits,
    }
}

pub(super) fn subject_of(
    prepared: &PreparedClass<'_>,
    infeasible_reason: &InfeasibleReason,
) -> ReasonSubject {
    let request = &prepared.class.request;
    let at = |position: Option<usize>| position.unwrap_or(0) as u32;
    match infeasible_reason {
        InfeasibleReason::OtherMachine => ReasonSubject::OtherMachine,
        InfeasibleReason::MachineDown => ReasonSubject::Down,
        InfeasibleReason::MachineDraining => ReasonSubject::Draining,
        InfeasibleReason::Constraint { position } => ReasonSubject::Constraint(*position),
        InfeasibleReason::Volume(host_volume) => ReasonSubject::Volume(at(prepared
            .host_volumes()
            .iter()
            .position(|other| other == host_volume))),
        InfeasibleReason::CrashedHere => ReasonSubject::Crashed,
        InfeasibleReason::NoAllocHere => ReasonSubject::NoAlloc,
        InfeasibleReason::Spread { domain, limit } => {
            let same = |s: &SpreadLimit| (s.domain, s.limit) == (*domain, *limit);
            ReasonSubject::Spread(at(request.spread.iter().position(same)))
        }
        InfeasibleReason::StaticPort { port, .. } => ReasonSubject::StaticPort(*port),
        InfeasibleReason::DynamicPorts { .. } => ReasonSubject::DynamicPorts,
        InfeasibleReason::Device { kind, requested, milli, .. } => {
            let same = |r: &DeviceRequest| {
                r.kind == *kind && u32::from(r.count) == *requested && r.milli == *milli
            };
            ReasonSubject::Device(at(request.devices.iter().position(same)))
        }
        InfeasibleReason::Named { name, .. } => {
            let same = |(id, _): &(u32, u64)| prepared.snapshot.resource_name(*id) == Some(name);
            ReasonSubject::Named(at(request.named.iter().position(same)))
        }
        InfeasibleReason::Resource(shortfall) => ReasonSubject::Resource(shortfall.dimension as u8),
        InfeasibleReason::ResourcePressure => ReasonSubject::UnderPressure,
        InfeasibleReason::MachineFull { .. } => ReasonSubject::Full,
    }
}
