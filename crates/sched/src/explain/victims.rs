//! Who would have to go to make room, and why they may not be made to.
//!
//! A pass has already looked for victims it may take. For a task that still waits the question is
//! what it would cost to ignore the rules: that tells its owner whether a higher priority, a larger
//! disruption budget or only more machines would help.
//!
//! Looking for the cheapest victims on every machine in full is far too slow for a large cell, so
//! the walk over the machines only bounds the cost from below (by room alone, lowest priorities
//! first), and the most promising machines are worked out exactly. What is reported is the cheapest
//! of those: always enough and minimal, though a machine further down the list may be as cheap.

use super::names::{self, MachineRef, Names, TaskRef};
use super::verdict::Asked;
use crate::board::machines::Room;
use crate::board::{Board, Holding};
use crate::class::SUMS;
use crate::feasible::{self, Spot};
use cellwright_cell::id::{JobId, MachineId, TaskId};
use cellwright_cell::priority::{Band, Priority};
use serde::Serialize;
use std::cmp::Reverse;

/// Machines worked out exactly.
const WORKED_OUT: usize = 32;

/// Why a victim may not be taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Obstacle {
    /// Its priority is equal or higher.
    NotLower,
    /// Inside a prod band nobody preempts anybody.
    SameProdBand(Band),
    /// Its job may not lose that many more tasks now.
    Budget { left: u32 },
    /// It is stopping to start again in place, and cannot be stopped twice.
    Restarting,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VictimNeeded {
    pub task: TaskRef,
    pub priority: Priority,
    /// `None`: it may be taken.
    pub obstacle: Option<Obstacle>,
}

/// The victims that would make room on one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Victims {
    pub machine: MachineRef,
    pub alloc: Option<TaskRef>,
    pub tasks: Vec<VictimNeeded>,
    /// Whether all of them may be taken.
    pub allowed: bool,
}

/// One holder, as far as evicting it matters.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Highest priority among an alloc and its tasks.
    priority: Priority,
    /// It restarts in place, or a job involved has no disruption budget left.
    spared: bool,
    held: [i64; SUMS],
}

/// Holders of all machines, lowest priority first: made once, read for every class.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    /// By machine slot: where its entries end.
    ends: Vec<usize>,
    entries: Vec<Entry>,
}

impl Ledger {
    pub fn new(board: &Board) -> Ledger {
        let mut ledger = Ledger::default();
        for holders in &board.machines.holders {
            let from = ledger.entries.len();
            ledger.entries.extend(holders.iter().map(|task| entry(board, *task)));
            ledger.entries[from..].sort_unstable_by_key(|e| (e.priority, e.spared, e.held));
            ledger.ends.push(ledger.entries.len());
        }
        ledger
    }

    fn of(&self, machine: MachineId) -> &[Entry] {
        let m = machine.slot();
        let from = if m == 0 { 0 } else { self.ends[m - 1] };
        &self.entries[from..self.ends[m]]
    }
}

fn entry(board: &Board, task: TaskId) -> Entry {
    let whole = || std::iter::once(task).chain(board.members(task).iter().copied());
    let spared = |t: TaskId| {
        let row = &board.tasks[t.slot()];
        match row.holding {
            Holding::Running => board.budget_of(row.job) == Some(0),
            // Down already: stopping it disrupts nobody.
            Holding::Assigned => false,
            Holding::Restarting => t == task,
        }
    };
    Entry {
        priority: whole().filter_map(|t| board.priority_of(t)).max().unwrap_or_default(),
        spared: whole().any(spared),
        held: feasible::held(board, task),
    }
}

/// How bad an eviction is, mildest first: allowed, of a task that must be spared for now, against
/// the priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tier {
    Allowed,
    Spared,
    Priority,
}

fn tier(preemptor: Priority, entry: &Entry) -> Tier {
    match (preemptor.may_preempt(entry.priority), entry.spared) {
        (true, false) => Tier::Allowed,
        (true, true) => Tier::Spared,
        (false, _) => Tier::Priority,
    }
}

/// What evictions at a place cost at least: the worst victim, then how many.
type Cost = (Tier, Priority, u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    bound: Cost,
    machine: MachineId,
    alloc: Option<TaskId>,
}

/// The most promising places of a range of machines.
#[derive(Clone, Debug, Default)]
pub(super) struct Candidates {
    best: Vec<Candidate>,
}

impl Candidates {
    /// Takes a place into account at which the task would fit if it were empty.
    pub fn consider(&mut self, asked: &Asked<'_>, spot: &Spot<'_>) {
        let full = self.best.len() >= WORKED_OUT;
        let limit = if full { self.best.last().map(|c| c.bound) } else { None };
        let bound = match spot.alloc {
            None if hopeless(asked, spot, limit) => None,
            None => bound(asked, spot, asked.ledger.of(spot.machine), limit),
            Some(alloc) => {
                let members = asked.board.members(alloc).iter();
                let mut entries: Vec<Entry> =
                    members.map(|task| entry(asked.board, *task)).collect();
                entries.sort_unstable_by_key(|e| (e.priority, e.spared, e.held));
                bound(asked, spot, &entries, limit)
            }
        };
        if let Some(bound) = bound {
            let Spot { machine, alloc, .. } = *spot;
            let candidate = Candidate { bound, machine, alloc };
            let at = self.best.partition_point(|known| *known < candidate);
            self.best.insert(at, candidate);
            self.best.truncate(WORKED_OUT);
        }
    }

    pub fn add(&mut self, later: Candidates) {
        self.best.extend(later.best);
        self.best.sort_unstable();
        self.best.truncate(WORKED_OUT);
    }

    /// The cheapest victims among the candidates; `None` when no eviction helps.
    pub fn cheapest(&self, asked: &Asked<'_>, names: &dyn Names) -> Option<Victims> {
        let mut best: Option<(Cost, Spot<'static>, Vec<TaskId>)> = None;
        for candidate in &self.best {
            if best.as_ref().is_some_and(|(cost, ..)| cost < &candidate.bound) {
                break;
            }
            let Candidate { machine, alloc, .. } = *candidate;
            let spot = Spot { machine, alloc, without: &[] };
            let Some((cost, victims)) = work_out(asked, &spot) else { continue };
            if best.as_ref().is_none_or(|(known, ..)| cost < *known) {
                best = Some((cost, spot, victims));
            }
        }
        let (_, spot, victims) = best?;
        Some(describe(asked, &spot, &victims, names))
    }
}

/// Whether even the least important holder is too much: nearly all machines of a large cell, and
/// told without looking at their holders. Machines come in order, so an equal bound comes too late.
fn hopeless(asked: &Asked<'_>, spot: &Spot<'_>, limit: Option<Cost>) -> bool {
    let Some(limit) = limit else { return false };
    let lowest = Priority(asked.board.machines.lowest[spot.machine.slot()]);
    let tier = match asked.class.request.priority.may_preempt(lowest) {
        true => Tier::Allowed,
        false => Tier::Priority,
    };
    (tier, lowest, 1) >= limit && !asked.room(spot).fits(&asked.class.need)
}

/// Evicting lowest priorities first, mildest tier first, until there is room: the worst victim
/// needed at least. `None` when it is certainly no better than `limit`.
fn bound(
    asked: &Asked<'_>,
    spot: &Spot<'_>,
    entries: &[Entry],
    limit: Option<Cost>,
) -> Option<Cost> {
    let (need, preemptor) = (&asked.class.need, asked.class.request.priority);
    let mut room = asked.room(spot);
    let mut cost = (Tier::Allowed, Priority(0), 0);
    for tier_now in [Tier::Allowed, Tier::Spared, Tier::Priority] {
        for entry in entries.iter().filter(|e| tier(preemptor, e) == tier_now) {
            if room.fits(need) {
                return Some(cost);
            }
            // Not the number of entries, which large victims first would make smaller.
            cost = (tier_now, entry.priority, 1);
            if limit.is_some_and(|limit| cost >= limit) {
                return None;
            }
            room.give(&entry.held);
        }
    }
    room.fits(need).then_some(cost)
}

/// A minimal set of victims at the place, mildest first, and what it costs.
fn work_out(asked: &Asked<'_>, spot: &Spot<'_>) -> Option<(Cost, Vec<TaskId>)> {
    let (board, preemptor) = (asked.board, asked.class.request.priority);
    let holders = match spot.alloc {
        None => board.holders(spot.machine),
        Some(alloc) => board.members(alloc),
    };
    let mut all: Vec<(Tier, Priority, Reverse<[i64; SUMS]>, TaskId)> = holders
        .iter()
        .map(|task| {
            let entry = entry(board, *task);
            (tier(preemptor, &entry), entry.priority, Reverse(entry.held), *task)
        })
        .collect();
    all.sort_unstable();
    let fits = |victims: &[TaskId]| {
        feasible::first(board, asked.class, &Spot { without: victims, ..*spot }).is_none()
    };
    let mut victims: Vec<TaskId> = Vec::new();
    let mut room: Room = asked.room(spot);
    let mut enough = false;
    for (_, _, Reverse(held), task) in &all {
        victims.push(*task);
        room.give(held);
        enough = room.fits(&asked.class.need) && fits(&victims);
        if enough {
            break;
        }
    }
    if !enough {
        return None;
    }
    for at in (0..victims.len()).rev() {
        let spared = victims.remove(at);
        if victims.is_empty() || !fits(&victims) {
            victims.insert(at, spared);
        }
    }
    let worst = all.iter().filter(|(.., task)| victims.contains(task)).map(|(t, p, ..)| (*t, *p));
    let (tier, priority) = worst.max()?;
    Some(((tier, priority, victims.len() as u32), victims))
}

fn describe(asked: &Asked<'_>, spot: &Spot<'_>, victims: &[TaskId], names: &dyn Names) -> Victims {
    let board = asked.board;
    let mut taken: Vec<JobId> = Vec::new();
    let everybody = victims
        .iter()
        .flat_map(|task| std::iter::once(*task).chain(board.members(*task).iter().copied()));
    let tasks: Vec<VictimNeeded> = everybody
        .map(|task| {
            let priority = board.priority_of(task).unwrap_or_default();
            let obstacle = obstacle(asked, spot.alloc, task, &mut taken);
            VictimNeeded { task: names::task(names, task), priority, obstacle }
        })
        .collect();
    Victims {
        machine: names::machine(names, spot.machine),
        alloc: spot.alloc.map(|alloc| names::task(names, alloc)),
        allowed: tasks.iter().all(|victim| victim.obstacle.is_none()),
        tasks,
    }
}

/// `taken` lists the jobs of the victims so far: their budgets are spent one by one.
fn obstacle(
    asked: &Asked<'_>,
    alloc: Option<TaskId>,
    task: TaskId,
    taken: &mut Vec<JobId>,
) -> Option<Obstacle> {
    let preemptor = asked.class.request.priority;
    let priority = asked.board.priority_of(task)?;
    if preemptor <= priority {
        return Some(Obstacle::NotLower);
    }
    if !preemptor.may_preempt(priority) {
        return Some(Obstacle::SameProdBand(priority.band()));
    }
    let row = &asked.board.tasks[task.slot()];
    match row.holding {
        Holding::Restarting if row.place.alloc() == alloc => return Some(Obstacle::Restarting),
        Holding::Running => {}
        _ => return None,
    }
    let job = row.job;
    let left = asked.board.budget_of(job)?;
    let before = taken.iter().filter(|j| **j == job).count();
    taken.push(job);
    (before >= left as usize).then_some(Obstacle::Budget { left })
}
