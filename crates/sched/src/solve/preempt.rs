//! Preemption (B32): when a task fits nowhere freely, tasks it may preempt make room, lowest
//! priority first, and only those that are needed.
//!
//! On one machine the candidates are added lowest priority first (larger ones first among equals,
//! so that few suffice) until the task fits; then each is given back, highest priority first, if
//! the task fits without it. What remains is minimal: no victim can be spared. Between machines the
//! one whose most important victim matters least wins, then the one with the fewest victims.
//!
//! A victim must be allowed by priority and by the disruption budget of its job. An alloc takes
//! its tasks with it, so all of them must be allowed.
//!
//! Where a budget keeps a needed task back, victims of the same job are exchanged for it, one for
//! one, as long as that helps. Whom to take under several budgets at once is a knapsack, and not
//! solved: a set that is allowed can be missed when it differs from the greedy one by more than a
//! row of such exchanges, for instance two small victims given up for one alloc with two tasks.

use crate::board::machines::Room;
use crate::board::{Board, Holding};
use crate::class::{Class, SUMS};
use crate::feasible::{self, Spot};
use crate::score::{Ranking, Score, locality, packing, preference, spread};
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

/// A cheap look: could evicting everything that may be evicted ever be enough?
#[inline]
pub(crate) fn possible(board: &Board, class: &Class, m: usize) -> bool {
    let priority = class.request.priority;
    if board.machines.status[m] < class.least
        || !priority.may_preempt(Priority(board.machines.lowest[m]))
        || !board.machines.without_band[highest_victims(priority)][m].fits(&class.need)
    {
        return false;
    }
    let mut room = board.machines.room[m];
    for task in &board.machines.holders[m] {
        let held = board.class(board.tasks[task.slot()].class);
        if priority.may_preempt(held.request.priority) {
            room.give(&feasible::held(board, *task));
        }
    }
    room.fits(&class.need)
}

/// Nobody above this band can be a victim: inside a prod band nobody preempts anybody.
fn highest_victims(priority: Priority) -> usize {
    let band = priority.band() as usize;
    if priority.is_prod() { band - 1 } else { band }
}

/// The victims needed on machine slot `m`, and how good that would be; `None` when evicting all
/// that may be evicted does not help. Meant for tasks that do not fit freely.
pub(crate) fn on_machine(
    board: &Board,
    class: &Class,
    m: usize,
    ranking: Ranking,
) -> Option<Eviction> {
    let spot = Spot::on(MachineId(m as u32));
    at_spot(board, class, &spot, &board.machines.holders[m], ranking)
}

/// Same, inside an alloc: its members are the candidates, and where the machine has as many tasks
/// as it may, all others on it.
pub(crate) fn in_alloc(
    board: &Board,
    class: &Class,
    alloc: TaskId,
    ranking: Ranking,
) -> Option<Eviction> {
    let row = board.allocs.get(&alloc)?;
    let spot = Spot { machine: row.machine, alloc: Some(alloc), without: &[] };
    let mut holders = row.members.clone();
    if feasible::full(board, &spot).is_some() {
        // Whoever leaves the machine makes the place that is missing.
        let beside = board.machines.holders[row.machine.slot()].iter();
        holders.extend(beside.filter(|task| **task != alloc));
    }
    at_spot(board, class, &spot, &holders, ranking)
}

fn at_spot(
    board: &Board,
    class: &Class,
    spot: &Spot<'_>,
    holders: &[TaskId],
    ranking: Ranking,
) -> Option<Eviction> {
    if spot.alloc.is_none() && board.machines.status[spot.machine.slot()] < class.least {
        return None;
    }
    let mut candidates: Vec<TaskId> =
        holders.iter().copied().filter(|task| evictable(board, class, *task)).collect();
    let size = |task: &TaskId| {
        let shape = board.machines.shape_of(spot.machine.slot());
        let held = board.tasks[task.slot()].place.reservation().to_array();
        held.iter().enumerate().map(|(d, x)| shape.fraction(d, *x as i64)).max()
    };
    candidates.sort_by_cached_key(|task| (board.priority_of(*task), Reverse(size(task)), *task));
    let room = feasible::room(board, spot);
    let mut taken = Taken { board, class, spot, room, victims: vec![], budget: Budget::default() };
    if !taken.gather(&candidates) {
        return None;
    }
    taken.spare_all();
    let mut victims = taken.victims;
    victims.sort_unstable();
    let score = score(board, class, &Spot { without: &victims, ..*spot }, ranking);
    Some(Eviction { victims, score })
}

/// The victims at one place, while they are chosen.
struct Taken<'a> {
    board: &'a Board,
    class: &'a Class,
    spot: &'a Spot<'a>,
    /// Once the victims have left.
    room: Room,
    victims: Vec<TaskId>,
    budget: Budget,
}

impl Taken<'_> {
    /// Room that the spot has when the task has left: none of an alloc by who is beside it.
    fn gives(&self, task: TaskId) -> [i64; SUMS] {
        match self.board.tasks[task.slot()].place.alloc() == self.spot.alloc {
            true => feasible::held(self.board, task),
            false => [0; SUMS],
        }
    }

    fn fits(&self) -> bool {
        let spot = Spot { without: &self.victims, ..*self.spot };
        self.room.fits(&self.class.need)
            && feasible::full(self.board, &spot).is_none()
            && (self.class.plain || feasible::first(self.board, self.class, &spot).is_none())
    }

    /// Takes candidates in order until the task fits.
    fn gather(&mut self, candidates: &[TaskId]) -> bool {
        let mut blocked = Vec::new();
        for task in candidates {
            if !self.budget.spend(self.board, *task) {
                blocked.push(*task);
                continue;
            }
            self.victims.push(*task);
            self.room.give(&self.gives(*task));
            if self.fits() {
                return true;
            }
        }
        !blocked.is_empty() && self.exchange(blocked)
    }

    /// A victim taken early may have spent the budget that a more useful task of its job needs:
    /// exchanges one for another as long as that brings the task closer to fitting.
    fn exchange(&mut self, mut blocked: Vec<TaskId>) -> bool {
        let mut all = self.room;
        blocked.iter().for_each(|task| all.give(&self.gives(*task)));
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
                // Lowest priorities first again, as those who are spared are looked for.
                let board = self.board;
                self.victims.sort_by_key(|task| (board.priority_of(*task), *task));
                return true;
            }
        }
        false
    }

    fn try_exchange(&mut self, blocked: &mut TaskId, at: usize) -> bool {
        let board = self.board;
        let (old, new) = (self.victims[at], *blocked);
        if !limited_jobs(board, old).any(|job| limited_jobs(board, new).any(|j| j == job)) {
            return false;
        }
        let (room, budget, before) = (self.room, self.budget.clone(), self.lacks());
        self.budget.give_back(board, old);
        if self.budget.spend(board, new) {
            self.room.take(&self.gives(old));
            self.room.give(&self.gives(new));
            self.victims[at] = new;
            let after = self.lacks();
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

    /// What is short of each sum, and how many reasons there are against the place in all.
    fn lacks(&self) -> ([i64; SUMS], usize) {
        let need = &self.class.need;
        let short = |i: usize| need[i].saturating_sub(self.room.free[i]).max(0);
        let spot = Spot { without: &self.victims, ..*self.spot };
        let reasons = match self.class.plain {
            true => usize::from(feasible::full(self.board, &spot).is_some()),
            false => feasible::all(self.board, self.class, &spot).len(),
        };
        (std::array::from_fn(short), reasons)
    }

    /// Gives back, highest priority first, whoever need not leave.
    fn spare_all(&mut self) {
        for at in (0..self.victims.len()).rev() {
            let spared = self.victims.remove(at);
            let held = self.gives(spared);
            self.room.take(&held);
            if self.victims.is_empty() || !self.fits() {
                self.victims.insert(at, spared);
                self.room.give(&held);
            }
        }
    }
}

/// Whether priority allows it, for the task and everything inside it.
fn evictable(board: &Board, class: &Class, task: TaskId) -> bool {
    let priority = class.request.priority;
    let allowed = |t: &TaskId| board.priority_of(*t).is_some_and(|p| priority.may_preempt(p));
    board.tasks[task.slot()].holding != Holding::Restarting
        && allowed(&task)
        && board.members(task).iter().all(allowed)
}

/// Jobs with a disruption budget that evicting the task and its members would draw on, once for
/// each task. One that does not run is down already: stopping it disrupts nobody.
fn limited_jobs(board: &Board, task: TaskId) -> impl Iterator<Item = JobId> + '_ {
    let all = std::iter::once(task).chain(board.members(task).iter().copied());
    let running = all.map(|t| &board.tasks[t.slot()]).filter(|t| t.holding == Holding::Running);
    running.map(|row| row.job).filter(|job| board.budget_of(*job).is_some())
}

/// How much of each job's disruption budget the victims chosen so far have used.
#[derive(Clone, Default)]
struct Budget {
    used: Vec<(JobId, u32)>,
}

impl Budget {
    /// Takes the task and its members into account; false (and nothing spent) when a job involved
    /// has no budget left.
    fn spend(&mut self, board: &Board, task: TaskId) -> bool {
        for (spent, job) in limited_jobs(board, task).enumerate() {
            let at = self.used.iter().position(|(j, _)| *j == job).unwrap_or_else(|| {
                self.used.push((job, 0));
                self.used.len() - 1
            });
            if board.budget_of(job).is_some_and(|budget| self.used[at].1 >= budget) {
                limited_jobs(board, task).take(spent).for_each(|job| self.less(job));
                return false;
            }
            self.used[at].1 += 1;
        }
        true
    }

    fn give_back(&mut self, board: &Board, task: TaskId) {
        limited_jobs(board, task).for_each(|job| self.less(job));
    }

    fn less(&mut self, job: JobId) {
        if let Some((_, used)) = self.used.iter_mut().find(|(j, _)| *j == job) {
            *used -= 1;
        }
    }
}

fn score(board: &Board, class: &Class, spot: &Spot<'_>, ranking: Ranking) -> Score {
    let m = spot.machine.slot();
    let all = |task: &TaskId| {
        std::iter::once(*task).chain(board.members(*task).iter().copied()).collect::<Vec<_>>()
    };
    let victims: Vec<TaskId> = spot.without.iter().flat_map(all).collect();
    let worst = victims.iter().filter_map(|task| board.priority_of(*task)).max();
    let room = feasible::room(board, spot);
    Score {
        worst_victim: worst.map_or(0, |priority| priority.0 + 1),
        victims: victims.len().min(usize::from(u16::MAX)) as u16,
        preference: preference::missed(board, class, m),
        locality: locality::missing(board, class, m),
        spread: spread::share_at_stake(board, class, m),
        // What the victims give back is not priced: who leaves matters more.
        devices: 0,
        packing: packing::in_room(board, class, m, &room.free, ranking.model),
        rank: ranking.rank(m),
    }
}
