//! Feasibility (B30): one predicate (filter) per file, each with its reason. The declaration order
//! of [`InfeasibleReason`] is the precedence, and the order in which predicates are evaluated here.
//!
//! Every predicate has two forms: `infeasible_reason` and `infeasible_reasons` give its reasons as
//! data, for explanations and for the plain reference scheduler; the boolean form `is_met` serves
//! the fast scheduler. The differential tests hold both to the same answer.

mod alloc;
mod constraints;
mod crash_pairs;
mod devices;
mod drain;
mod dynamic_ports;
mod named_resources;
mod other_machine;
mod pressure;
mod resources;
mod spread;
mod static_ports;
mod status;
mod task_limit;

use crate::class::Class;
use crate::cluster_snapshot::ClusterSnapshot;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::reason::InfeasibleReason;
pub(crate) use devices::choose as choose_devices;
pub(crate) use resources::{released_by, room};
pub(crate) use spread::{is_met_when_empty as spread_holds_when_empty, tasks_in_domain};
pub(crate) use task_limit::{free_task_slots, infeasible_reason as full};

/// A machine, or an alloc on it, that a task might be placed on.
#[derive(Clone, Copy, Debug)]
pub struct PlacementTarget<'a> {
    pub machine: MachineId,
    /// The alloc on that machine, for classes inside an alloc set.
    pub alloc: Option<TaskId>,
    /// Holders assumed to be gone: victims of a preemption.
    pub without: &'a [TaskId],
}

impl PlacementTarget<'_> {
    #[must_use]
    pub fn on_machine(machine: MachineId) -> PlacementTarget<'static> {
        PlacementTarget { machine, alloc: None, without: &[] }
    }
}

/// Whether what a task holds on machine slot `m` is assumed to be gone: with itself, or with the
/// alloc it is in, which takes it along.
fn is_excluded(snapshot: &ClusterSnapshot, m: usize, task: TaskId, without: &[TaskId]) -> bool {
    if without.is_empty() {
        return false;
    }
    let row = &snapshot.tasks[task.slot()];
    let alloc = match row.reserved.as_deref().filter(|hold| hold.machine.slot() == m) {
        Some(hold) => hold.alloc,
        None => row.placement.alloc(),
    };
    without.contains(&task) || alloc.is_some_and(|alloc| without.contains(&alloc))
}

type Predicate = fn(&ClusterSnapshot, &Class, &PlacementTarget<'_>, &mut Vec<InfeasibleReason>);

/// In the order of [`InfeasibleReason`].
const PREDICATES: [Predicate; 14] = [
    other_machine::infeasible_reasons,
    status::infeasible_reasons,
    drain::infeasible_reasons,
    constraints::infeasible_reasons,
    crash_pairs::infeasible_reasons,
    alloc::infeasible_reasons,
    spread::infeasible_reasons,
    static_ports::infeasible_reasons,
    dynamic_ports::infeasible_reasons,
    devices::infeasible_reasons,
    named_resources::infeasible_reasons,
    task_limit::infeasible_reasons,
    resources::infeasible_reasons,
    pressure::infeasible_reasons,
];

/// The first reason why a task of the class does not fit; `None`: it fits.
#[must_use]
pub fn first_reason(
    snapshot: &ClusterSnapshot,
    class: &Class,
    target: &PlacementTarget<'_>,
) -> Option<InfeasibleReason> {
    let mut found = Vec::new();
    for predicate in PREDICATES {
        predicate(snapshot, class, target, &mut found);
        if !found.is_empty() {
            return found.into_iter().next();
        }
    }
    None
}

/// Every reason why a task of the class does not fit; empty: it fits.
#[must_use]
pub fn all_reasons(
    snapshot: &ClusterSnapshot,
    class: &Class,
    target: &PlacementTarget<'_>,
) -> Vec<InfeasibleReason> {
    let mut found = Vec::new();
    for predicate in PREDICATES {
        predicate(snapshot, class, target, &mut found);
        if !snapshot.machines.exists(target.machine.slot()) {
            break;
        }
    }
    found
}

/// The targets of a class on one machine: the allocs of its set there, or the machine.
#[must_use]
pub fn targets_on(
    snapshot: &ClusterSnapshot,
    class: &Class,
    machine: MachineId,
) -> Vec<PlacementTarget<'static>> {
    let set = class.request.alloc_set.and_then(|set| set.0);
    let allocs = set.map_or(&[][..], |set| snapshot.allocs_of(set));
    let on_machine = allocs
        .iter()
        .filter(|alloc| snapshot.allocs.get(alloc).is_some_and(|row| row.machine == machine));
    let found: Vec<PlacementTarget<'static>> = on_machine
        .map(|alloc| PlacementTarget { machine, alloc: Some(*alloc), without: &[] })
        .collect();
    if found.is_empty() { vec![PlacementTarget::on_machine(machine)] } else { found }
}

/// Whether a task of a class outside alloc sets fits on machine slot `m` as things are.
#[inline]
pub(crate) fn is_feasible(snapshot: &ClusterSnapshot, class: &Class, m: usize) -> bool {
    snapshot.machines.room[m].fits(&class.need)
        && snapshot.machines.status[m] >= class.min_status
        && task_limit::free_task_slots(snapshot, m) > 0
        && (class.is_plain || other_predicates_hold(snapshot, class, m))
}

/// Cheapest first: the order does not matter for a yes or no.
fn other_predicates_hold(snapshot: &ClusterSnapshot, class: &Class, m: usize) -> bool {
    other_machine::is_met(class, m)
        && constraints::is_met(snapshot, class, m)
        && spread::is_met(snapshot, class, m)
        && crash_pairs::is_met(class, m)
        && class.request.alloc_set.is_none()
        && static_ports::is_met(snapshot, class, m)
        && dynamic_ports::is_met(snapshot, class, m)
        && devices::is_met(snapshot, class, m)
        && named_resources::is_met(snapshot, class, m)
}

/// Whether a task of a class inside an alloc set fits into `alloc` as things are.
pub(crate) fn is_feasible_in(snapshot: &ClusterSnapshot, class: &Class, alloc_id: TaskId) -> bool {
    let Some(row) = snapshot.allocs.get(&alloc_id) else { return false };
    let m = row.machine.slot();
    class.request.alloc_set.is_some_and(|set| set.0 == Some(row.set))
        && alloc::is_met(snapshot, class, alloc_id)
        && row.room.fits(&class.need)
        && snapshot.machines.status[m] >= class.min_status
        && task_limit::free_task_slots(snapshot, m) > 0
        && constraints::is_met(snapshot, class, m)
        && spread::is_met(snapshot, class, m)
        && crash_pairs::is_met(class, m)
        && static_ports::is_met(snapshot, class, m)
        && dynamic_ports::is_met(snapshot, class, m)
        && devices::is_met(snapshot, class, m)
        && named_resources::is_met(snapshot, class, m)
}
