//! The tasks that would have to be evicted to make room, and the obstacles to evicting them.
//!
//! A pass has already looked for victims that it may evict. For a task that is still pending the
//! question is what it would cost to ignore the rules: that shows its owner whether a higher
//! priority, a larger disruption budget or only more machines would help.
//!
//! Searching the cheapest victims on every machine in full is far too slow for a large cell, so the
//! walk over the machines only computes a lower bound of the cost (by room alone, lowest priorities
//! first), and the most promising machines are evaluated exactly. The result is the cheapest of
//! those: always enough and minimal, though a machine further down the list may be as cheap.

use super::evaluation::PreparedClass;
use super::names::{self, NameResolver};
use crate::class::SUMS;
use crate::cluster_snapshot::machines::Room;
use crate::cluster_snapshot::{ClusterSnapshot, TaskPhase};
use crate::feasible::{self, PlacementTarget};
use cellwright_cell::explanation::{Obstacle, RequiredVictim, Victims};
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::priority::Priority;
use std::cmp::Reverse;

/// Machines evaluated exactly.
const EXACT_CANDIDATES: usize = 32;

/// One holder, with what its eviction depends on.
#[derive(Clone, Copy, Debug)]
struct HolderEntry {
    /// Highest priority among an alloc and its tasks.
    priority: Priority,
    /// It restarts in place.
    is_restarting: bool,
    /// The highest priority among tasks whose job has no disruption budget left.
    unspared: Option<Priority>,
    released: [i64; SUMS],
}

impl HolderEntry {
    fn rank(&self) -> (Priority, bool, [i64; SUMS]) {
        let may_be_protected = self.is_restarting || self.unspared.is_some();
        (self.priority, may_be_protected, self.released)
    }
}

/// Holders of all machines, lowest priority first: made once, used for every class.
#[derive(Clone, Debug, Default)]
pub(super) struct HolderIndex {
    /// By machine slot: the end of its entries.
    ends: Vec<usize>,
    entries: Vec<HolderEntry>,
}

impl HolderIndex {
    pub fn new(snapshot: &ClusterSnapshot) -> HolderIndex {
        let mut index = HolderIndex::default();
        for holders in &snapshot.machines.holders {
            let from = index.entries.len();
            index.entries.extend(holders.iter().map(|task| entry(snapshot, *task)));
            index.entries[from..].sort_unstable_by_key(HolderEntry::rank);
            index.ends.push(index.entries.len());
        }
        index
    }

    fn of(&self, machine: MachineId) -> &[HolderEntry] {
        let m = machine.slot();
        let from = if m == 0 { 0 } else { self.ends[m - 1] };
        &self.entries[from..self.ends[m]]
    }
}

fn entry(snapshot: &ClusterSnapshot, task: TaskId) -> HolderEntry {
    let whole = || std::iter::once(task).chain(snapshot.members(task).iter().copied());
    // What does not run is down already: stopping it disrupts nothing.
    let is_unspared = |t: &TaskId| {
        let row = &snapshot.tasks[t.slot()];
        row.phase == TaskPhase::Running && snapshot.budget_of(row.job) == Some(0)
    };
    HolderEntry {
        priority: whole().filter_map(|t| snapshot.priority_of(t)).max().unwrap_or_default(),
        is_restarting: snapshot.tasks[task.slot()].phase == TaskPhase::Restarting,
        unspared: whole().filter(is_unspared).filter_map(|t| snapshot.priority_of(t)).max(),
        released: feasible::released_by(snapshot, task),
    }
}

/// How bad an eviction is, mildest first: allowed; of a task that is protected for now; against the
/// priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EvictionTier {
    Allowed,
    Protected,
    Priority,
}

fn tier(preemptor: Priority, entry: &HolderEntry) -> EvictionTier {
    let is_protected = entry.is_restarting
        || entry.unspared.is_some_and(|priority| !preemptor.overrules_budget_of(priority));
    match (preemptor.may_preempt(entry.priority), is_protected) {
        (true, false) => EvictionTier::Allowed,
        (true, true) => EvictionTier::Protected,
        (false, _) => EvictionTier::Priority,
    }
}

/// A lower bound of the evictions at a target: the worst victim, then their number.
type EvictionCost = (EvictionTier, Priority, u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EvictionCandidate {
    min_cost: EvictionCost,
    machine: MachineId,
    alloc: Option<TaskId>,
}

/// The most promising targets in a range of machines.
#[derive(Clone, Debug, Default)]
pub(super) struct EvictionCandidates {
    best: Vec<EvictionCandidate>,
}

impl EvictionCandidates {
    /// Considers a target at which the task would fit if it were empty.
    pub fn consider(&mut self, prepared: &PreparedClass<'_>, target: &PlacementTarget<'_>) {
        let full = self.best.len() >= EXACT_CANDIDATES;
        let limit = if full { self.best.last().map(|c| c.min_cost) } else { None };
        let bound = match target.alloc {
            None if is_hopeless(prepared, target, limit) => None,
            None => lower_bound(prepared, target, prepared.holders.of(target.machine), limit),
            Some(alloc) => {
                let members = prepared.snapshot.members(alloc).iter();
                let mut entries: Vec<HolderEntry> =
                    members.map(|task| entry(prepared.snapshot, *task)).collect();
                entries.sort_unstable_by_key(HolderEntry::rank);
                lower_bound(prepared, target, &entries, limit)
            }
        };
        if let Some(bound) = bound {
            let PlacementTarget { machine, alloc, .. } = *target;
            let candidate = EvictionCandidate { min_cost: bound, machine, alloc };
            let at = self.best.partition_point(|known| *known < candidate);
            self.best.insert(at, candidate);
            self.best.truncate(EXACT_CANDIDATES);
        }
    }

    pub fn merge(&mut self, later: EvictionCandidates) {
        self.best.extend(later.best);
        self.best.sort_unstable();
        self.best.truncate(EXACT_CANDIDATES);
    }

    /// The cheapest victims among the candidates; `None` when no eviction helps.
    pub fn cheapest(
        &self,
        prepared: &PreparedClass<'_>,
        names: &dyn NameResolver,
    ) -> Option<Victims> {
        let mut best: Option<(EvictionCost, PlacementTarget<'static>, Vec<TaskId>)> = None;
        for candidate in &self.best {
            if best.as_ref().is_some_and(|(cost, ..)| cost < &candidate.min_cost) {
                break;
            }
            let EvictionCandidate { machine, alloc, .. } = *candidate;
            let target = PlacementTarget { machine, alloc, without: &[] };
            let Some((cost, victims)) = find_victims(prepared, &target) else { continue };
            if best.as_ref().is_none_or(|(known, ..)| cost < *known) {
                best = Some((cost, target, victims));
            }
        }
        let (_, target, victims) = best?;
        Some(describe_victims(prepared, &target, &victims, names))
    }
}

/// Whether even the least important holder costs too much: true of nearly all machines of a large
/// cell, and found without reading their holders. Machines come in order, so an equal bound comes
/// too late.
fn is_hopeless(
    prepared: &PreparedClass<'_>,
    target: &PlacementTarget<'_>,
    limit: Option<EvictionCost>,
) -> bool {
    let Some(limit) = limit else { return false };
    let lowest = Priority(prepared.snapshot.machines.lowest_priority[target.machine.slot()]);
    let tier = if prepared.class.request.priority.may_preempt(lowest) {
        EvictionTier::Allowed
    } else {
        EvictionTier::Priority
    };
    (tier, lowest, 1) >= limit && !prepared.room(target).fits(&prepared.class.need)
}

/// Evicts lowest priorities first, mildest tier first, until there is room: the worst victim needed
/// at least. `None` when it is certainly no better than `limit`.
fn lower_bound(
    prepared: &PreparedClass<'_>,
    target: &PlacementTarget<'_>,
    entries: &[HolderEntry],
    limit: Option<EvictionCost>,
) -> Option<EvictionCost> {
    let (need, preemptor) = (&prepared.class.need, prepared.class.request.priority);
    let mut room = prepared.room(target);
    let mut cost = (EvictionTier::Allowed, Priority(0), 0);
    for tier_now in [EvictionTier::Allowed, EvictionTier::Protected, EvictionTier::Priority] {
        for entry in entries.iter().filter(|e| tier(preemptor, e) == tier_now) {
            if room.fits(need) {
                return Some(cost);
            }
            // Not the number of entries, because large victims first would need fewer.
            cost = (tier_now, entry.priority, 1);
            if limit.is_some_and(|limit| cost >= limit) {
                return None;
            }
            room.give(&entry.released);
        }
    }
    room.fits(need).then_some(cost)
}

/// A minimal set of victims at the target, mildest first, and its cost.
fn find_victims(
    prepared: &PreparedClass<'_>,
    target: &PlacementTarget<'_>,
) -> Option<(EvictionCost, Vec<TaskId>)> {
    let (snapshot, preemptor) = (prepared.snapshot, prepared.class.request.priority);
    let holders = match target.alloc {
        None => snapshot.holders(target.machine),
        Some(alloc) => snapshot.members(alloc),
    };
    let mut all: Vec<(EvictionTier, Priority, Reverse<[i64; SUMS]>, TaskId)> = holders
        .iter()
        .map(|task| {
            let entry = entry(snapshot, *task);
            (tier(preemptor, &entry), entry.priority, Reverse(entry.released), *task)
        })
        .collect();
    all.sort_unstable();
    let fits = |victims: &[TaskId]| {
        feasible::first_reason(
            snapshot,
            prepared.class,
            &PlacementTarget { without: victims, ..*target },
        )
        .is_none()
    };
    let mut victims: Vec<TaskId> = Vec::new();
    let mut room: Room = prepared.room(target);
    let mut enough = false;
    for (_, _, _, task) in &all {
        if victims.contains(task) {
            continue;
        }
        // A gang leaves as a whole.
        for (_, _, Reverse(released), other) in &all {
            if other == task || snapshot.are_of_one_gang(*task, *other) {
                victims.push(*other);
                room.give(released);
            }
        }
        enough = room.fits(&prepared.class.need) && fits(&victims);
        if enough {
            break;
        }
    }
    if !enough {
        return None;
    }
    for at in (0..victims.len()).rev() {
        // Fewer are left where a gang was reprieved.
        let Some(task) = victims.get(at).copied() else { continue };
        let before = victims.clone();
        victims.retain(|other| *other != task && !snapshot.are_of_one_gang(task, *other));
        if victims.is_empty() || !fits(&victims) {
            victims = before;
        }
    }
    let worst = all.iter().filter(|(.., task)| victims.contains(task)).map(|(t, p, ..)| (*t, *p));
    let (tier, priority) = worst.max()?;
    Some(((tier, priority, victims.len() as u32), victims))
}

fn describe_victims(
    prepared: &PreparedClass<'_>,
    target: &PlacementTarget<'_>,
    victims: &[TaskId],
    names: &dyn NameResolver,
) -> Victims {
    let snapshot = prepared.snapshot;
    let mut victim_jobs: Vec<JobId> = Vec::new();
    let chosen = snapshot.one_of_each_gang(victims);
    let all = chosen.iter().flat_map(|task| snapshot.leaving_with(*task));
    let tasks: Vec<RequiredVictim> = all
        .map(|task| {
            let priority = snapshot.priority_of(task).unwrap_or_default();
            let obstacle = obstacle(prepared, target.alloc, task, &mut victim_jobs);
            RequiredVictim { task: names::task_ref(names, task), priority, obstacle }
        })
        .collect();
    Victims {
        machine: names::machine_ref(names, target.machine),
        alloc: target.alloc.map(|alloc| names::task_ref(names, alloc)),
        allowed: tasks.iter().all(|victim| victim.obstacle.is_none()),
        tasks,
    }
}

/// `victim_jobs` lists the jobs of the victims so far: their budgets are spent one by one.
fn obstacle(
    prepared: &PreparedClass<'_>,
    alloc: Option<TaskId>,
    task: TaskId,
    victim_jobs: &mut Vec<JobId>,
) -> Option<Obstacle> {
    let preemptor = prepared.class.request.priority;
    let priority = prepared.snapshot.priority_of(task)?;
    if preemptor <= priority {
        return Some(Obstacle::NotLower);
    }
    if !preemptor.may_preempt(priority) {
        return Some(Obstacle::SameProdBand(priority.band()));
    }
    let row = &prepared.snapshot.tasks[task.slot()];
    match row.phase {
        TaskPhase::Restarting if row.placement.alloc() == alloc => {
            return Some(Obstacle::Restarting);
        }
        TaskPhase::Running => {}
        _ => return None,
    }
    let job = row.job;
    if preemptor.overrules_budget_of(priority) {
        return None;
    }
    let left = prepared.snapshot.budget_of(job)?;
    let before = victim_jobs.iter().filter(|j| **j == job).count();
    victim_jobs.push(job);
    (before >= left as usize).then_some(Obstacle::Budget { left })
}
