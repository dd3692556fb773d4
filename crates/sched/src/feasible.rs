//! Feasibility (B30): one predicate per file, each with its reason. Declaration order of
//! [`Misfit`] is precedence, and the order in which they are asked here.
//!
//! Every predicate answers twice: `misfits` gives all its reasons as data, for explanations and for
//! the plain reference scheduler; `holds` gives a bare yes or no, for the fast one. The
//! differential tests hold them to the same answer.

mod alloc;
mod constraints;
mod crash;
mod devices;
mod drain;
mod dynamic_ports;
mod full;
mod named;
mod resources;
mod short;
mod spread;
mod static_ports;
mod status;

use crate::board::Board;
use crate::class::Class;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::reason::Misfit;
pub(crate) use devices::choose as choose_devices;
pub(crate) use full::{misfit as full, places};
pub(crate) use resources::{held, room};
pub(crate) use spread::{holds_when_empty as spread_holds_when_empty, in_domain};

/// A place a task might go to.
#[derive(Clone, Copy, Debug)]
pub struct Spot<'a> {
    pub machine: MachineId,
    /// The alloc on that machine, for classes inside an alloc set.
    pub alloc: Option<TaskId>,
    /// Holders imagined gone: victims of a preemption.
    pub without: &'a [TaskId],
}

impl Spot<'_> {
    #[must_use]
    pub fn on(machine: MachineId) -> Spot<'static> {
        Spot { machine, alloc: None, without: &[] }
    }
}

/// Whether what a task holds on machine slot `m` is imagined gone: with itself, or with the alloc
/// it is in, which takes it along.
fn is_gone(board: &Board, m: usize, task: TaskId, without: &[TaskId]) -> bool {
    if without.is_empty() {
        return false;
    }
    let row = &board.tasks[task.slot()];
    let alloc = match row.reserved.as_deref().filter(|held| held.machine.slot() == m) {
        Some(held) => held.alloc,
        None => row.place.alloc(),
    };
    without.contains(&task) || alloc.is_some_and(|alloc| without.contains(&alloc))
}

type Predicate = fn(&Board, &Class, &Spot<'_>, &mut Vec<Misfit>);

/// In the order of [`Misfit`].
const PREDICATES: [Predicate; 13] = [
    status::misfits,
    drain::misfits,
    constraints::misfits,
    crash::misfits,
    alloc::misfits,
    spread::misfits,
    static_ports::misfits,
    dynamic_ports::misfits,
    devices::misfits,
    named::misfits,
    full::misfits,
    resources::misfits,
    short::misfits,
];

/// The first reason why a task of the class does not fit; `None`: it fits.
#[must_use]
pub fn first(board: &Board, class: &Class, spot: &Spot<'_>) -> Option<Misfit> {
    let mut found = Vec::new();
    for predicate in PREDICATES {
        predicate(board, class, spot, &mut found);
        if !found.is_empty() {
            return found.into_iter().next();
        }
    }
    None
}

/// Every reason why a task of the class does not fit; empty: it fits.
#[must_use]
pub fn all(board: &Board, class: &Class, spot: &Spot<'_>) -> Vec<Misfit> {
    let mut found = Vec::new();
    for predicate in PREDICATES {
        predicate(board, class, spot, &mut found);
        if !board.machines.exists(spot.machine.slot()) {
            break;
        }
    }
    found
}

/// The spots a class can ask for on one machine: the allocs of its set there, or the machine.
#[must_use]
pub fn spots(board: &Board, class: &Class, machine: MachineId) -> Vec<Spot<'static>> {
    let set = class.request.alloc_set.and_then(|set| set.0);
    let allocs = set.map_or(&[][..], |set| board.allocs_of(set));
    let here = allocs
        .iter()
        .filter(|alloc| board.allocs.get(alloc).is_some_and(|row| row.machine == machine));
    let found: Vec<Spot<'static>> =
        here.map(|alloc| Spot { machine, alloc: Some(*alloc), without: &[] }).collect();
    if found.is_empty() { vec![Spot::on(machine)] } else { found }
}

/// Whether a task of a class outside alloc sets fits on machine slot `m` as it is.
#[inline]
pub(crate) fn holds(board: &Board, class: &Class, m: usize) -> bool {
    board.machines.room[m].fits(&class.need)
        && board.machines.status[m] >= class.least
        && full::places(board, m) > 0
        && (class.plain || extras_hold(board, class, m))
}

/// Cheapest first: the order does not matter for a yes or no.
fn extras_hold(board: &Board, class: &Class, m: usize) -> bool {
    constraints::holds(board, class, m)
        && spread::holds(board, class, m)
        && crash::holds(class, m)
        && class.request.alloc_set.is_none()
        && static_ports::holds(board, class, m)
        && dynamic_ports::holds(board, class, m)
        && devices::holds(board, class, m)
        && named::holds(board, class, m)
}

/// Whether a task of a class inside an alloc set fits into `alloc` as it is.
pub(crate) fn holds_in(board: &Board, class: &Class, alloc: TaskId) -> bool {
    let Some(row) = board.allocs.get(&alloc) else { return false };
    let m = row.machine.slot();
    class.request.alloc_set.is_some_and(|set| set.0 == Some(row.set))
        && row.room.fits(&class.need)
        && board.machines.status[m] >= class.least
        && full::places(board, m) > 0
        && constraints::holds(board, class, m)
        && spread::holds(board, class, m)
        && crash::holds(class, m)
        && static_ports::holds(board, class, m)
        && dynamic_ports::holds(board, class, m)
        && devices::holds(board, class, m)
        && named::holds(board, class, m)
}
