//! One-move repair: when a class fits nowhere, a task planned in this same pass may be moved so
//! that it does. The plan has not been executed, so the move costs nothing and disturbs no task.
//!
//! For each class that got stuck, the planned tasks whose move would open a machine for it are
//! listed, smallest first: small ones fit elsewhere most easily. A task that needs at least as much
//! as the stuck one in every dimension is not moved, because the stuck task could itself have been
//! placed wherever it would move; unless the stuck one is kept apart from its siblings and the
//! planned one is not.
//!
//! Rejected: longer chains of moves. One move closes most of the gap to the lower bound already.

use super::{Choice, Pass};
use crate::class::{Class, ClassId};
use crate::cluster_snapshot::{ClusterSnapshot, PlacementState};
use crate::feasible::{self, PlacementTarget};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::plan::Group;
use cellwright_cell::resource::{DIMENSIONS, Resources};
use cellwright_cell::spec::JobKind;
use cellwright_cell::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Lists made per pass: each walks over the whole plan.
const MAX_LISTS: u32 = 64;
/// Planned tasks examined per stuck task.
const MAX_EXAMINED: u32 = 64;

/// A planned task whose move would open its machine. Smallest last, to be popped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Opening {
    size: u64,
    machine: MachineId,
    task: TaskId,
    group: u32,
}

#[derive(Debug)]
struct OpeningList {
    openings: Vec<Opening>,
    /// Number of moves when the list was made.
    moves: u32,
}

/// The state of repair within one pass.
#[derive(Debug, Default)]
pub(super) struct Repair {
    lists: BTreeMap<ClassId, OpeningList>,
    lists_made: u32,
    moves: u32,
    /// Machines with an eviction in this pass. Tasks planned there are not moved: otherwise the
    /// victims would have been evicted for nothing.
    pub evicted_on: BTreeSet<MachineId>,
}

impl Pass<'_> {
    /// A machine opened for the class by moving one planned task elsewhere.
    pub(super) fn find_by_moving(&mut self, class: ClassId, task: TaskId) -> Option<Choice> {
        let mut stuck: Vec<ClassId> = Vec::new();
        for _ in 0..MAX_EXAMINED {
            let opening = self.next_opening(class)?;
            let Opening { task: planned, machine, group, .. } = opening;
            let Some(mover) = self.snapshot.class_of(planned).filter(|c| !stuck.contains(c)) else {
                continue;
            };
            let stays = self.repair.evicted_on.contains(&machine);
            if stays
                || !self.is_planned(&opening)
                || !would_open(self.snapshot, self.snapshot.class(class), planned, machine)
            {
                continue;
            }
            let found = match self.find_free(mover, planned) {
                Some(m) if m == machine.slot() => self.find_beside(planned, mover, task, machine),
                other => other,
            };
            let Some(m) = found else {
                stuck.push(mover);
                continue;
            };
            self.move_planned(planned, mover, group, MachineId(m as u32));
            return Some(Choice { machine, alloc: None, victims: Vec::new() });
        }
        None
    }

    /// Whether the opening's group is still what it was when the list was made. Checking the
    /// machine alone is not enough: a task that moved away and back is in another group.
    fn is_planned(&self, opening: &Opening) -> bool {
        match &self.outcome.plan.groups[opening.group as usize].assignments[..] {
            [only] => only.task == opening.task && only.machine == opening.machine,
            _ => false,
        }
    }

    /// Where the planned task would go if the stuck one had its machine already. Needed when its
    /// own machine scores best for it, because it still has room for one more.
    fn find_beside(
        &mut self,
        planned: TaskId,
        mover: ClassId,
        task: TaskId,
        machine: MachineId,
    ) -> Option<usize> {
        let class = self.snapshot.class_of(task)?;
        let Some(PlacementState::Pending { not_before }) = self.snapshot.placement_of(task) else {
            return None;
        };
        let not_before = *not_before;
        let hold = self.snapshot.unassign(planned, Time::ZERO)?;
        let choice = Choice { machine, alloc: None, victims: Vec::new() };
        self.commit(task, class, choice, &mut Group::default());
        let found = self.find_free(mover, planned);
        self.snapshot.unassign(task, not_before);
        self.snapshot.assign(planned, hold);
        found.filter(|m| *m != machine.slot())
    }

    /// The smallest opening not tried yet; lists are made again only after a move.
    fn next_opening(&mut self, class: ClassId) -> Option<Opening> {
        let moves = self.repair.moves;
        let known = self.repair.lists.get_mut(&class);
        if let Some(opening) = known.and_then(|list| list.openings.pop()) {
            return Some(opening);
        }
        let useless = self.repair.lists.get(&class).is_some_and(|list| list.moves == moves);
        if useless || self.repair.lists_made == MAX_LISTS {
            return None;
        }
        self.repair.lists_made += 1;
        let mut openings = self.openings(class);
        let first = openings.pop();
        self.repair.lists.insert(class, OpeningList { openings, moves });
        first
    }

    fn openings(&self, class: ClassId) -> Vec<Opening> {
        let stuck = self.snapshot.class(class);
        let total = total_capacity(self.snapshot);
        let mut found = Vec::new();
        for (at, group) in self.outcome.plan.groups.iter().enumerate() {
            let Some(task) = movable(self.snapshot, group) else { continue };
            let Some(machine) = self.snapshot.placement_of(task).and_then(|p| p.machine()) else {
                continue;
            };
            let planned = self.snapshot.class(self.snapshot.tasks[task.slot()].class);
            let stays = self.repair.evicted_on.contains(&machine);
            if !stays
                && is_worth_moving(planned, stuck)
                && would_open(self.snapshot, stuck, task, machine)
            {
                let size = demand_size(planned, &total);
                found.push(Opening { size, machine, task, group: at as u32 });
            }
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        found
    }

    /// Moves a planned task elsewhere. Its group goes to the end of the plan: the room it relies on
    /// may have been made by a group planned after it.
    fn move_planned(&mut self, task: TaskId, class: ClassId, group: u32, machine: MachineId) {
        self.repair.moves += 1;
        self.outcome.stats.moves += 1;
        self.outcome.plan.groups[group as usize] = Group::default();
        // It is placed again at once, so its earliest start time does not matter.
        self.snapshot.unassign(task, Time::ZERO);
        let mut moved = Group::default();
        let choice = Choice { machine, alloc: None, victims: Vec::new() };
        self.commit(task, class, choice, &mut moved);
        self.outcome.plan.groups.push(moved);
    }
}

/// The task of a group that may be moved: alone, without victims, in no alloc, and no alloc itself.
fn movable(snapshot: &ClusterSnapshot, group: &Group) -> Option<TaskId> {
    let ([only], []) = (&group.assignments[..], &group.victims[..]) else { return None };
    let (job, _) = snapshot.identity_of(only.task)?;
    let spec = snapshot.job_spec(job)?;
    let free = only.alloc.is_none() && spec.kind == JobKind::Tasks && !spec.gang;
    free.then_some(only.task)
}

/// Whether the stuck class fits on the machine once the planned task has left it.
fn would_open(
    snapshot: &ClusterSnapshot,
    stuck: &Class,
    planned: TaskId,
    machine: MachineId,
) -> bool {
    let mut room = snapshot.machines.room[machine.slot()];
    room.give(&feasible::released_by(snapshot, planned));
    if !room.fits(&stuck.need) || snapshot.machines.status[machine.slot()] < stuck.min_status {
        return false;
    }
    let without = [planned];
    let target = PlacementTarget { machine, alloc: None, without: &without };
    if feasible::full(snapshot, &target).is_some() {
        return false;
    }
    stuck.is_plain || feasible::first_reason(snapshot, stuck, &target).is_none()
}

fn is_worth_moving(planned: &Class, stuck: &Class) -> bool {
    let as_large = stuck.request.limits.within(planned.request.limits)
        && stuck.request.reservation.within(planned.request.reservation);
    let freer = !stuck.request.spread.is_empty() && planned.request.spread.is_empty();
    !as_large || freer
}

fn total_capacity(snapshot: &ClusterSnapshot) -> [u64; DIMENSIONS] {
    let mut total = Resources::ZERO;
    for machine in snapshot.machine_ids() {
        total = total.plus(snapshot.capacity(machine));
    }
    total.to_array()
}

/// Sum of the shares of the cell that a task requests, in 2^-40.
fn demand_size(class: &Class, total: &[u64; DIMENSIONS]) -> u64 {
    let requested = class.request.limits.to_array();
    let share = |d: usize| (u128::from(requested[d]) << 40) / u128::from(total[d].max(1));
    (0..DIMENSIONS).map(|d| share(d) as u64).sum()
}
