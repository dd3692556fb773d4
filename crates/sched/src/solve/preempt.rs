//! Preemption (B32): when a task fits nowhere freely, tasks that it may preempt make room, lowest
//! priority first, and only those that are needed.
//!
//! On one machine the candidates are added lowest priority first (larger ones first among equals,
//! so that few suffice) until the task fits; then each is reprieved, highest priority first, if the
//! task fits without its eviction. The set that remains is minimal: no victim can be reprieved.
//! Between machines, the one whose most important victim is of the lowest band wins, then the one
//! that goes least beyond disruption budgets, then the lowest priority, then the fewest victims.
//!
//! Each victim must be allowed by its priority. An alloc takes its tasks with it, and a task of a
//! gang the whole gang, wherever it is, so all of them must be allowed, and all of them count.
//! Disruption budgets order the victims of a band: those that their jobs can spare go first. A
//! budget protects a task from its own band only ([`Priority::overrules_budget_of`]).
//! Rejected: budgets that bind every preemptor. Free work that says it can spare nothing would then
//! hold a machine against production that has bought it.
//!
//! Where a budget protects a task that is needed, victims of the same job are exchanged for it, one
//! for one, as long as that helps. The best choice under several budgets at once is a knapsack
//! problem, and not solved: a set that is allowed can be missed when it differs from the greedy one
//! by more than a series of such exchanges, for instance two small victims replaced by one alloc
//! with two tasks.

use crate::class::{Class, SUMS};
use crate::cluster_snapshot::machines::Room;
use crate::cluster_snapshot::{ClusterSnapshot, TaskPhase};
use crate::feasible::{self, PlacementTarget};
use crate::score::packing::PackingModel;
use crate::score::{Ranking, Score, locality, mixing, packing, preference, spread};
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::priority::Priority;
use std::cmp::Reverse;

/// A way to make room.
#[derive(Clone, Debug)]
pub(crate) struct Eviction {
    /// Sorted by task id; allocs without their members.
    pub victims: Vec<TaskId>,
    pub score: Score,
}

/// A cheap check: could evicting all tasks that may be evicted ever be enough?
#[inline]
pub(crate) fn is_possible(snapshot: &ClusterSnapshot, class: &Class, m: usize) -> bool {
    let priority = class.request.priority;
    if snapshot.machines.status[m] < class.min_status
        || !priority.may_preempt(Priority(snapshot.machines.lowest_priority[m]))
        || !snapshot.machines.room_without_band[evictable_bands(priority)][m].fits(&class.need)
    {
        return false;
    }
    let mut room = snapshot.machines.room[m];
    for task in &snapshot.machines.holders[m] {
        let released = snapshot.class(snapshot.tasks[task.slot()].class);
        if priority.may_preempt(released.request.priority) {
            room.give(&feasible::released_by(snapshot, *task));
        }
    }
    room.fits(&class.need)
}

/// No task above this band can be a victim: inside a prod band no task preempts another.
fn evictable_bands(priority: Priority) -> usize {
    let band = priority.band() as usize;
    if priority.is_prod() { band - 1 } else { band }
}

/// The victims needed on machine slot `m`, and the score of that; `None` when evicting all tasks
/// that may be evicted does not help. Meant for tasks that do not fit freely.
pub(crate) fn on_machine(
    snapshot: &ClusterSnapshot,
    class: &Class,
    m: usize,
    ranking: Ranking,
) -> Option<Eviction> {
    let target = PlacementTarget::on_machine(MachineId(m as u32));
    at_target(snapshot, class, &target, &snapshot.machines.holders[m], ranking)
}

/// The same, inside an alloc: its members are the candidates, and where the machine is at its task
/// limit, all other tasks on it.
pub(crate) fn in_alloc(
    snapshot: &ClusterSnapshot,
    class: &Class,
    alloc: TaskId,
    ranking: Ranking,
) -> Option<Eviction> {
    let row = snapshot.allocs.get(&alloc)?;
    let target = PlacementTarget { machine: row.machine, alloc: Some(alloc), without: &[] };
    let mut holders = row.members.clone();
    if feasible::full(snapshot, &target).is_some() {
        // Any task that leaves the machine frees the task slot that is missing.
        let beside = snapshot.machines.holders[row.machine.slot()].iter();
        holders.extend(beside.filter(|task| **task != alloc));
    }
    at_target(snapshot, class, &target, &holders, ranking)
}

fn at_target(
    snapshot: &ClusterSnapshot,
    class: &Class,
    target: &PlacementTarget<'_>,
    holders: &[TaskId],
    ranking: Ranking,
) -> Option<Eviction> {
    if target.alloc.is_none() && snapshot.machines.status[target.machine.slot()] < class.min_status
    {
        return None;
    }
    let mut candidates: Vec<TaskId> =
        holders.iter().copied().filter(|task| is_evictable(snapshot, class, *task)).collect();
    let size = |task: &TaskId| {
        let shape = snapshot.machines.shape_of(target.machine.slot());
        let released = snapshot.tasks[task.slot()].placement.reservation().to_array();
        released.iter().enumerate().map(|(d, x)| shape.fraction(d, *x as i64)).max()
    };
    candidates.sort_by_cached_key(|task| {
        let gang = snapshot.placed_of_gang(*task);
        (snapshot.priority_of(*task), gang, Reverse(size(task)), *task)
    });
    spare_budgets(snapshot, &mut candidates);
    let room = feasible::room(snapshot, target);
    let mut victim_set =
        VictimSet { snapshot, class, target, room, victims: vec![], budget: Budget::default() };
    if !victim_set.gather(&candidates) {
        return None;
    }
    victim_set.reprieve_all();
    let mut victims = victim_set.victims;
    victims.sort_unstable();
    let score = score(snapshot, class, &PlacementTarget { without: &victims, ..*target }, ranking);
    Some(Eviction { victims, score })
}

/// The victims at one target, while they are chosen.
struct VictimSet<'a> {
    snapshot: &'a ClusterSnapshot,
    class: &'a Class,
    target: &'a PlacementTarget<'a>,
    /// Room once the victims have left.
    room: Room,
    victims: Vec<TaskId>,
    budget: Budget,
}

impl VictimSet<'_> {
    /// Room at the target released by the task: none in an alloc for a task outside it.
    fn released_by(&self, task: TaskId) -> [i64; SUMS] {
        if self.snapshot.tasks[task.slot()].placement.alloc() == self.target.alloc {
            feasible::released_by(self.snapshot, task)
        } else {
            [0; SUMS]
        }
    }

    fn fits(&self) -> bool {
        let target = PlacementTarget { without: &self.victims, ..*self.target };
        self.room.fits(&self.class.need)
            && feasible::full(self.snapshot, &target).is_none()
            && (self.class.is_plain
                || feasible::first_reason(self.snapshot, self.class, &target).is_none())
    }

    /// Adds candidates in order until the task fits.
    fn gather(&mut self, candidates: &[TaskId]) -> bool {
        let mut blocked = Vec::new();
        for task in candidates {
            let gang = self.snapshot.gang_of(*task);
            if gang.is_some() && self.victims.contains(task) {
                continue;
            }
            if !self.budget.spend(self.snapshot, self.class, *task) {
                blocked.push(*task);
                continue;
            }
            self.add(*task);
            if gang.is_some() {
                let of_gang =
                    |other: &&TaskId| *other != task && self.snapshot.gang_of(**other) == gang;
                let rest: Vec<TaskId> = candidates.iter().filter(of_gang).copied().collect();
                rest.into_iter().for_each(|other| self.add(other));
            }
            if self.fits() {
                return true;
            }
        }
        !blocked.is_empty() && self.exchange_blocked(blocked)
    }

    fn add(&mut self, task: TaskId) {
        self.victims.push(task);
        self.room.give(&self.released_by(task));
    }

    /// An early victim may have spent the budget that a more useful task of its job needs:
    /// exchanges one for another as long as that brings the task closer to fitting.
    fn exchange_blocked(&mut self, mut blocked: Vec<TaskId>) -> bool {
        let mut all = self.room;
        blocked.iter().for_each(|task| all.give(&self.released_by(*task)));
        if !all.fits(&self.class.need) {
            return false;
        }
        // Every exchange brings it closer, but small steps could be many.
        for _ in 0..self.victims.len() + blocked.len() {
            let pairs =
                (0..blocked.len()).flat_map(|b| (0..self.victims.len()).map(move |v| (b, v)));
            let pairs: Vec<(usize, usize)> = pairs.collect();
            if !pairs.into_iter().any(|(b, v)| self.try_exchange(&mut blocked[b], v)) {
                return false;
            }
            if self.fits() {
                // Lowest priorities first again, as the reprieve expects.
                let snapshot = self.snapshot;
                self.victims.sort_by_key(|task| (snapshot.priority_of(*task), *task));
                return true;
            }
        }
        false
    }

    fn try_exchange(&mut self, blocked: &mut TaskId, at: usize) -> bool {
        let snapshot = self.snapshot;
        let (old, new) = (self.victims[at], *blocked);
        // A gang is exchanged for nobody: it would be one for many.
        if snapshot.gang_of(old).is_some() || snapshot.gang_of(new).is_some() {
            return false;
        }
        if !budgeted_jobs(snapshot, old).any(|job| budgeted_jobs(snapshot, new).any(|j| j == job)) {
            return false;
        }
        let (room, budget, before) = (self.room, self.budget.clone(), self.shortfall());
        self.budget.refund(snapshot, old);
        if self.budget.spend(snapshot, self.class, new) {
            self.room.take(&self.released_by(old));
            self.room.give(&self.released_by(new));
            self.victims[at] = new;
            let after = self.shortfall();
            let worse = (0..SUMS).any(|i| after.0[i] > before.0[i]) || after.1 > before.1;
            if !worse && after != before {
                *blocked = old;
                return true;
            }
        }
        (self.room, self.budget) = (room, budget);
        self.victims[at] = old;
        false
    }

    /// What is missing of each sum, and the number of reasons against the target in all.
    fn shortfall(&self) -> ([i64; SUMS], usize) {
        let need = &self.class.need;
        let shortfall_of = |i: usize| need[i].saturating_sub(self.room.free[i]).max(0);
        let target = PlacementTarget { without: &self.victims, ..*self.target };
        let reasons = if self.class.is_plain {
            usize::from(feasible::full(self.snapshot, &target).is_some())
        } else {
            feasible::all_reasons(self.snapshot, self.class, &target).len()
        };
        (std::array::from_fn(shortfall_of), reasons)
    }

    /// Reprieves victims, highest priority first, whose eviction is not needed.
    fn reprieve_all(&mut self) {
        for at in (0..self.victims.len()).rev() {
            // Fewer are left where a gang was reprieved.
            let Some(task) = self.victims.get(at).copied() else { continue };
            if let Some(gang) = self.snapshot.gang_of(task) {
                self.reprieve_gang(gang);
                continue;
            }
            let reprieved = self.victims.remove(at);
            let released = self.released_by(reprieved);
            self.room.take(&released);
            if self.victims.is_empty() || !self.fits() {
                self.victims.insert(at, reprieved);
                self.room.give(&released);
            }
        }
    }
}

impl VictimSet<'_> {
    /// Reprieves all of a gang, if its eviction is not needed.
    fn reprieve_gang(&mut self, gang: JobId) {
        let before = (self.victims.clone(), self.room);
        let snapshot = self.snapshot;
        let (reprieved, rest): (Vec<TaskId>, Vec<TaskId>) =
            before.0.iter().partition(|task| snapshot.gang_of(**task) == Some(gang));
        self.victims = rest;
        reprieved.iter().for_each(|task| self.room.take(&self.released_by(*task)));
        if self.victims.is_empty() || !self.fits() {
            (self.victims, self.room) = before;
        }
    }
}

/// Whether its priority allows eviction, for the task and all that leave with it.
fn is_evictable(snapshot: &ClusterSnapshot, class: &Class, task: TaskId) -> bool {
    let priority = class.request.priority;
    let allowed = |t: &TaskId| snapshot.priority_of(*t).is_some_and(|p| priority.may_preempt(p));
    snapshot.tasks[task.slot()].phase != TaskPhase::Restarting
        && snapshot.leaving_with(task).all(|other| allowed(&other))
}

/// Within each band, moves candidates back that their jobs cannot spare beside those before them.
fn spare_budgets(snapshot: &ClusterSnapshot, candidates: &mut [TaskId]) {
    let mut budget = Budget::default();
    let mut gangs: Vec<(JobId, bool)> = Vec::new();
    let mut is_beyond = |task: TaskId| {
        let gang = snapshot.gang_of(task);
        let known = gangs.iter().find(|(known, _)| Some(*known) == gang);
        if let Some((_, beyond)) = known {
            return *beyond;
        }
        let beyond = budget.draw(snapshot, task) > 0;
        gangs.extend(gang.map(|gang| (gang, beyond)));
        beyond
    };
    let beyond: Vec<(TaskId, bool)> =
        candidates.iter().map(|task| (*task, is_beyond(*task))).collect();
    if beyond.iter().any(|(_, beyond)| *beyond) {
        let mut sorted = beyond;
        sorted.sort_by_key(|(task, beyond)| {
            (snapshot.priority_of(*task).map(Priority::band), *beyond)
        });
        candidates.iter_mut().zip(sorted).for_each(|(slot, (task, _))| *slot = task);
    }
}

/// Jobs with a disruption budget that evicting the task would draw on, once for each task that
/// leaves with it. A task that does not run is down already: stopping it disrupts nothing.
fn budgeted_jobs(snapshot: &ClusterSnapshot, task: TaskId) -> impl Iterator<Item = JobId> + '_ {
    budgeted_tasks(snapshot, task).map(|(_, job)| job)
}

fn budgeted_tasks(
    snapshot: &ClusterSnapshot,
    task: TaskId,
) -> impl Iterator<Item = (TaskId, JobId)> + '_ {
    let rows = snapshot.leaving_with(task).map(|t| (t, &snapshot.tasks[t.slot()]));
    let running = rows.filter(|(_, row)| row.phase == TaskPhase::Running);
    running.map(|(t, row)| (t, row.job)).filter(|(_, job)| snapshot.budget_of(*job).is_some())
}

/// How much of each job's disruption budget the victims chosen so far have used.
#[derive(Clone, Default)]
struct Budget {
    used: Vec<(JobId, u32)>,
}

impl Budget {
    /// Spends budget for all that leave with the task; false (and nothing spent) when a job of the
    /// preemptor's own band has no budget left.
    fn spend(&mut self, snapshot: &ClusterSnapshot, class: &Class, task: TaskId) -> bool {
        let preemptor = class.request.priority;
        for (spent, (member, job)) in budgeted_tasks(snapshot, task).enumerate() {
            let overruled =
                snapshot.priority_of(member).is_some_and(|p| preemptor.overrules_budget_of(p));
            if !overruled && !self.has_room(snapshot, job) {
                budgeted_jobs(snapshot, task).take(spent).for_each(|job| self.decrement(job));
                return false;
            }
            self.increment(job);
        }
        true
    }

    /// Spends budget for all that leave with the task, and returns how many are beyond it.
    fn draw(&mut self, snapshot: &ClusterSnapshot, task: TaskId) -> usize {
        let mut beyond = 0;
        for job in budgeted_jobs(snapshot, task) {
            beyond += usize::from(!self.has_room(snapshot, job));
            self.increment(job);
        }
        beyond
    }

    fn has_room(&self, snapshot: &ClusterSnapshot, job: JobId) -> bool {
        let used = self.used.iter().find(|(j, _)| *j == job).map_or(0, |(_, used)| *used);
        snapshot.budget_of(job).is_none_or(|budget| used < budget)
    }

    fn increment(&mut self, job: JobId) {
        match self.used.iter_mut().find(|(j, _)| *j == job) {
            Some((_, used)) => *used += 1,
            None => self.used.push((job, 1)),
        }
    }

    fn refund(&mut self, snapshot: &ClusterSnapshot, task: TaskId) {
        budgeted_jobs(snapshot, task).for_each(|job| self.decrement(job));
    }

    fn decrement(&mut self, job: JobId) {
        if let Some((_, used)) = self.used.iter_mut().find(|(j, _)| *j == job) {
            *used -= 1;
        }
    }
}

fn score(
    snapshot: &ClusterSnapshot,
    class: &Class,
    target: &PlacementTarget<'_>,
    ranking: Ranking,
) -> Score {
    let m = target.machine.slot();
    let chosen = snapshot.one_of_each_gang(target.without);
    let victims: Vec<TaskId> =
        chosen.iter().flat_map(|task| snapshot.leaving_with(*task)).collect();
    let worst = victims.iter().filter_map(|task| snapshot.priority_of(*task)).max();
    let mut budget = Budget::default();
    let beyond: usize = chosen.iter().map(|task| budget.draw(snapshot, *task)).sum();
    let room = feasible::room(snapshot, target);
    Score {
        worst_band: worst.map_or(0, |priority| priority.band() as u8 + 1),
        beyond_budget: beyond.min(usize::from(u16::MAX)) as u16,
        worst_victim: worst.map_or(0, Priority::in_band),
        victims: victims.len().min(usize::from(u16::MAX)) as u16,
        preference: preference::missed_weight(snapshot, class, m),
        spread: spread::share_at_stake(snapshot, class, m),
        locality: locality::fetch_seconds(snapshot, class, m),
        // The devices released by victims are not priced: the victims matter more.
        devices: 0,
        one_sided: ranking.model == PackingModel::Hybrid
            && target.alloc.is_none()
            && mixing::with_room(snapshot, class, m, &room.free),
        packing: packing::room_term(snapshot, class, m, &room.free, ranking.model),
        rank: ranking.rank(m),
    }
}
