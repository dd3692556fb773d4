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

use crate::board::machines::{Room, Status};
use crate::board::{Board, Holding};
use crate::class::Class;
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
    if board.machines.status[m] != Status::Open
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

/// Same, inside an alloc: its members are the candidates.
pub(crate) fn in_alloc(
    board: &Board,
    class: &Class,
    alloc: TaskId,
    ranking: Ranking,
) -> Option<Eviction> {
    let row = board.allocs.get(&alloc)?;
    let spot = Spot { machine: row.machine, alloc: Some(alloc), without: &[] };
    at_spot(board, class, &spot, &row.members, ranking)
}

fn at_spot(
    board: &Board,
    class: &Class,
    spot: &Spot<'_>,
    holders: &[TaskId],
    ranking: Ranking,
) -> Option<Eviction> {
    if spot.alloc.is_none() && board.machines.status[spot.machine.slot()] != Status::Open {
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
    let fits = |room: &Room, victims: &[TaskId]| {
        room.fits(&class.need)
            && (class.plain
                || feasible::first(board, class, &Spot { without: victims, ..*spot }).is_none())
    };
    let mut room = feasible::room(board, spot);
    let mut budget = Budget::default();
    let mut victims: Vec<TaskId> = Vec::new();
    let mut enough = false;
    for task in candidates {
        if budget.spend(board, task) {
            victims.push(task);
            room.give(&feasible::held(board, task));
            enough = fits(&room, &victims);
        }
        if enough {
            break;
        }
    }
    if !enough {
        return None;
    }
    for at in (0..victims.len()).rev() {
        let spared = victims.remove(at);
        let held = feasible::held(board, spared);
        room.take(&held);
        if victims.is_empty() || !fits(&room, &victims) {
            victims.insert(at, spared);
            room.give(&held);
        }
    }
    victims.sort_unstable();
    let score = score(board, class, &Spot { without: &victims, ..*spot }, ranking);
    Some(Eviction { victims, score })
}

/// Whether priority allows it, for the task and everything inside it.
fn evictable(board: &Board, class: &Class, task: TaskId) -> bool {
    let priority = class.request.priority;
    let allowed = |t: &TaskId| board.priority_of(*t).is_some_and(|p| priority.may_preempt(p));
    board.tasks[task.slot()].holding != Holding::Restarting
        && allowed(&task)
        && board.members(task).iter().all(allowed)
}

/// How much of each job's disruption budget the victims chosen so far have used.
#[derive(Default)]
struct Budget {
    used: Vec<(JobId, u32)>,
}

impl Budget {
    /// Takes the task and its members into account; false (and nothing spent) when a job involved
    /// has no budget left.
    fn spend(&mut self, board: &Board, task: TaskId) -> bool {
        let before = self.used.clone();
        let all = std::iter::once(&task).chain(board.members(task));
        for victim in all {
            let row = &board.tasks[victim.slot()];
            // A task that does not run is down already: stopping it disrupts nobody.
            if row.holding != Holding::Running {
                continue;
            }
            let job = row.job;
            let Some(budget) = board.budget_of(job) else { continue };
            let at = self.used.iter().position(|(j, _)| *j == job).unwrap_or_else(|| {
                self.used.push((job, 0));
                self.used.len() - 1
            });
            self.used[at].1 += 1;
            if self.used[at].1 > budget {
                self.used = before;
                return false;
            }
        }
        true
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
