//! One class against one place: everything that fails there, in a form that is cheap to count.
//!
//! [`crate::feasible::all`] says the same as data, but evaluates every constraint against every
//! machine. Here constraints are judged once per attribute profile and classes that ask for room
//! alone never leave the arrays, because an explanation looks at every machine of the cell.

use super::victims::Ledger;
use crate::board::Board;
use crate::board::constraints::OK;
use crate::board::machines::{Room, Status};
use crate::class::{Class, Request};
use crate::feasible::{self, Spot};
use cellwright_cell::constraint::AttributeValue;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::isolation::Loan;
use cellwright_cell::named::UNBOUNDED;
use cellwright_cell::reason::Misfit;
use cellwright_cell::resource::{DIMENSIONS, Resources};
use std::collections::BTreeMap;

/// A class prepared for a walk over all machines.
pub(super) struct Asked<'a> {
    pub board: &'a Board,
    pub class: &'a Class,
    pub ledger: &'a Ledger,
    /// The class without its constraints and without room, which are judged faster here.
    bare: Class,
    /// By attribute profile: the hard constraints that fail, then the volumes that are not lent,
    /// as bits by position.
    masks: Vec<u128>,
    /// Constraints of the class, hard and soft: where the positions of volumes begin.
    constraints: u32,
    /// For classes inside an alloc set: its allocs by machine, sorted.
    allocs: Vec<(MachineId, TaskId)>,
}

/// One of the things that a class demands of a machine's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// Position among the constraints.
    Constraint(u32),
    /// Position among the folders that it borrows.
    Volume(u32),
}

/// Everything that fails at one place.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdict {
    /// Hard constraints and volumes, as bits by position.
    pub constraints: u128,
    /// Dimensions of room, as bits.
    pub room: u8,
    /// The rest, in precedence order.
    pub others: Vec<Misfit>,
}

impl Verdict {
    /// How many separate things fail.
    pub fn failures(&self) -> usize {
        self.constraints.count_ones() as usize + self.room.count_ones() as usize + self.others.len()
    }

    /// Whether nothing but room, ports, devices or named resources fails: what an eviction cures.
    pub fn curable(&self) -> bool {
        self.constraints == 0 && self.others.iter().all(is_curable)
    }

    /// Whether spread limits are exceeded and nothing else fails but what an eviction cures.
    pub fn curable_but_for_spread(&self) -> bool {
        let is_spread = |m: &Misfit| matches!(m, Misfit::Spread { .. });
        self.constraints == 0
            && self.others.iter().any(is_spread)
            && self.others.iter().all(|m| is_spread(m) || is_curable(m))
    }

    /// Whether the machine takes no work at present and nothing else fails but what an eviction
    /// cures, of tasks of its own job too.
    pub fn curable_once_open(&self) -> bool {
        let closed = |m: &Misfit| matches!(m, Misfit::MachineDown | Misfit::MachineDraining);
        let cured = |m: &Misfit| matches!(m, Misfit::Spread { .. }) || *m >= LEAST_CURABLE;
        self.constraints == 0
            && self.others.iter().any(closed)
            && self.others.iter().all(|m| closed(m) || cured(m))
    }

    /// Whether a machine's state comes before its constraints here.
    pub fn machine_state(&self) -> Option<&Misfit> {
        self.others.first().filter(|m| matches!(m, Misfit::MachineDown | Misfit::MachineDraining))
    }
}

const LEAST_CURABLE: Misfit = Misfit::StaticPort { port: 0, holder: None };

/// A machine that is short takes nothing more, whoever leaves.
fn is_curable(misfit: &Misfit) -> bool {
    *misfit >= LEAST_CURABLE && *misfit != Misfit::MachineShort
}

impl<'a> Asked<'a> {
    pub fn new(board: &'a Board, ledger: &'a Ledger, class: &'a Class) -> Asked<'a> {
        let bare = Class::of(Request {
            constraints: None,
            limits: Resources::ZERO,
            reservation: Resources::ZERO,
            ..class.request.clone()
        });
        let list = class.request.constraints;
        let masks = list.map_or(vec![], |list| masks(board, list));
        let constraints = list.map_or(0, |list| board.constraints.constraints(list).len()) as u32;
        let set = class.request.alloc_set.and_then(|set| set.0);
        let placed = set.map_or(&[][..], |set| board.allocs_of(set));
        let mut allocs: Vec<(MachineId, TaskId)> =
            placed.iter().filter_map(|a| Some((board.allocs.get(a)?.machine, *a))).collect();
        allocs.sort_unstable();
        Asked { board, class, ledger, bare, masks, constraints, allocs }
    }

    /// What a bit of [`Verdict::constraints`] stands for.
    pub fn demand(&self, position: u32) -> Demand {
        match position.checked_sub(self.constraints) {
            None => Demand::Constraint(position),
            Some(at) => Demand::Volume(at),
        }
    }

    /// The folders that the class borrows.
    pub fn loans(&self) -> &'a [Loan] {
        self.class.request.constraints.map_or(&[], |list| self.board.constraints.loans(list))
    }

    /// Calls `visit` for every place on the machine: the allocs of the set, or the machine itself.
    pub fn places(&self, machine: MachineId, mut visit: impl FnMut(Spot<'static>)) {
        let from = self.allocs.partition_point(|(m, _)| *m < machine);
        let here = self.allocs[from..].iter().take_while(|(m, _)| *m == machine);
        let mut any = false;
        for (_, alloc) in here {
            any = true;
            visit(Spot { machine, alloc: Some(*alloc), without: &[] });
        }
        if !any {
            visit(Spot::on(machine));
        }
    }

    pub fn room(&self, spot: &Spot<'_>) -> Room {
        match spot.alloc {
            None => self.board.machines.room[spot.machine.slot()],
            Some(alloc) => self.board.allocs.get(&alloc).map_or(Room::default(), |row| row.room),
        }
    }

    pub fn judge(&self, spot: &Spot<'_>) -> Verdict {
        let m = spot.machine.slot();
        let room = self.room(spot);
        let need = &self.class.need;
        let mut verdict = Verdict::default();
        for d in 0..DIMENSIONS {
            let short = need[d] > room.free[d] || need[d + DIMENSIONS] > room.free[d + DIMENSIONS];
            verdict.room |= u8::from(short) << d;
        }
        if !self.masks.is_empty() {
            verdict.constraints = self.masks[self.board.machines.profile[m] as usize];
        }
        if self.bare.plain {
            match self.board.machines.status[m] {
                Status::Open | Status::Short => {}
                Status::Draining => verdict.others.push(Misfit::MachineDraining),
                Status::Down | Status::Gone => verdict.others.push(Misfit::MachineDown),
            }
            verdict.others.extend(feasible::full(self.board, spot));
            if self.board.machines.short[m] && self.class.least > Status::Short {
                verdict.others.push(Misfit::MachineShort);
            }
        } else {
            verdict.others = feasible::all(self.board, &self.bare, spot);
        }
        verdict
    }

    /// The most the task could ask of dimension `d` at a place where it falls short. A smaller
    /// limit takes the reservation down with it, never below what it is already.
    pub fn most_of(&self, room: &Room, d: usize) -> u64 {
        let request = &self.class.request;
        let (limit, reserved) = (request.limits.to_array()[d], request.reservation.to_array()[d]);
        let free = |i: usize| room.free[i].max(0) as u64;
        let mut most = limit;
        if request.priority.is_prod() {
            most = most.min(free(d));
        }
        if reserved > free(d + DIMENSIONS) {
            most = most.min(free(d + DIMENSIONS));
        }
        most
    }

    /// Whether the task would fit there if nothing else were on the machine or in the alloc.
    /// Meant for places where only curable things fail.
    pub fn fits_empty(&self, spot: &Spot<'_>) -> bool {
        let (board, request) = (self.board, &self.class.request);
        let m = spot.machine.slot();
        let mut room = match spot.alloc {
            None => Room::of(board.machines.shape_of(m).capacity),
            Some(alloc) => {
                let class = board.class_of(alloc);
                let limits = class.map(|class| board.class(class).request.limits);
                Room::of(limits.unwrap_or_default().to_array())
            }
        };
        if spot.alloc.is_none() {
            // Retained disk stays when everybody has left.
            room.free[2 * DIMENSIONS - 2] -= board.machines.retained[m] as i64;
        }
        room.fits(&self.class.need)
            && (self.bare.plain
                || ports_fit_empty(board, request, m)
                    && named_fit_empty(board, request, m)
                    && self.devices_fit_empty(m))
    }

    /// Whether the job's own tasks elsewhere would leave room for one more on the empty machine.
    pub fn spread_holds_empty(&self, spot: &Spot<'_>) -> bool {
        feasible::spread_holds_when_empty(self.board, self.class, spot.machine.slot())
    }

    fn devices_fit_empty(&self, m: usize) -> bool {
        let machines = &self.board.machines;
        self.class.request.devices.is_empty()
            || !machines.devices[m].is_empty()
                && feasible::choose_devices(self.board, self.class, m, &machines.holders[m]).is_ok()
    }
}

fn ports_fit_empty(board: &Board, request: &Request, m: usize) -> bool {
    let range = board.machines.ports[m].range;
    let own = request.static_ports.iter().filter(|p| range.contains(**p)).count();
    request.ports == 0 || own as u32 + u32::from(request.ports) <= range.count()
}

fn named_fit_empty(board: &Board, request: &Request, m: usize) -> bool {
    request.named.iter().all(|(name, amount)| {
        let capacity = board.machines.named_room(m, *name).capacity;
        capacity == UNBOUNDED || (capacity > 0 && *amount <= capacity)
    })
}

/// For every attribute profile, which hard constraints of the list fail, and which volumes are not
/// lent: at most [`MAX_LIST`](cellwright_cell::spec::MAX_LIST) of each, so there are bits for all.
/// Each constraint is evaluated once per distinct value of its attribute.
fn masks(board: &Board, list: u32) -> Vec<u128> {
    let constraints = board.constraints.constraints(list);
    let loans = board.constraints.loans(list);
    let mut known: Vec<BTreeMap<Option<&AttributeValue>, bool>> =
        vec![BTreeMap::new(); constraints.len()];
    let profile_mask = |profile: u32| {
        if board.constraints.judgement(list, profile).failing == OK {
            return 0;
        }
        let Some(attributes) = board.constraints.attributes(profile) else { return 0 };
        let mut mask = 0u128;
        for (position, constraint) in constraints.iter().enumerate() {
            if constraint.is_hard() {
                let value = attributes.get(&constraint.attribute);
                let holds =
                    *known[position].entry(value).or_insert_with(|| constraint.holds(attributes));
                mask |= u128::from(!holds) << position;
            }
        }
        for (at, loan) in loans.iter().enumerate() {
            mask |= u128::from(!loan.is_granted(attributes)) << (constraints.len() + at);
        }
        mask
    };
    let profiles = board.machines.profile.iter().max().map_or(0, |last| last + 1);
    (0..profiles).map(profile_mask).collect()
}
