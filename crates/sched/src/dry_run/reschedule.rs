//! Reschedules evicted tasks in a dry run: they are pending again, and passes place them elsewhere
//! as a live cell would, evicting still lower priorities in turn. All on a further copy: where
//! victims land is reported, but the next dry run finds them stopping.

use super::scratch_cell::ScratchCell;
use crate::explain::names;
use crate::queue::Queue;
use crate::solve::{PassOutcome, Solver};
use crate::whatif::Evicted;
use cellwright_cell::explanation::MachineRef;
use cellwright_cell::id::TaskId;
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
use std::collections::{BTreeMap, BTreeSet};

pub(super) struct Rescheduled {
    /// Where victims are placed; those missing here stay pending.
    pub moves_to: BTreeMap<TaskId, MachineRef>,
    /// Tasks that were evicted in turn, in that order.
    pub evicted_in_turn: Vec<TaskId>,
}

/// All tasks that the plan evicts, tasks inside allocs and whole gangs included. `before` is the
/// state in which they are still placed.
pub(super) fn evicted_tasks(before: &State, outcome: &PassOutcome) -> Vec<TaskId> {
    let listed = outcome.plan.groups.iter().flat_map(|group| &group.victims);
    let mut outer: Vec<TaskId> = Vec::new();
    for task in listed.flat_map(|victim| with_gang(before, victim.task)) {
        if !outer.contains(&task) {
            outer.push(task);
        }
    }
    let evicted = outer.into_iter().flat_map(|task| {
        let inside = before.alloc_load(task).map(|load| load.tasks.clone());
        std::iter::once(task).chain(inside.unwrap_or_default())
    });
    evicted.collect()
}

/// The task, and the rest of its gang that has places.
fn with_gang(before: &State, task: TaskId) -> Vec<TaskId> {
    let row = before.tasks().get(task);
    let job = row.and_then(|row| before.jobs().get(row.job)).filter(|job| job.spec().gang);
    let is_placed = |other: &TaskId| {
        let row = before.tasks().get(*other);
        *other != task && row.is_some_and(|row| row.state.holds_resources())
    };
    let rest = job.map_or(&[][..], |job| &job.tasks).iter().copied().filter(is_placed);
    std::iter::once(task).chain(rest).collect()
}

/// A pass that places a task leaves more tasks placed at some priority and fewer only below it, so
/// the passes come to an end.
pub(super) fn reschedule(
    scratch: &ScratchCell,
    first: &[TaskId],
    solver: &Solver,
    seed: u64,
) -> Rescheduled {
    let mut scratch = scratch.clone();
    let mut known: BTreeSet<TaskId> = first.iter().copied().collect();
    let mut rescheduled = Rescheduled { moves_to: BTreeMap::new(), evicted_in_turn: Vec::new() };
    let mut leaving = first.to_vec();
    loop {
        // Tasks inside an alloc go before the alloc.
        leaving.sort_by_key(|task| {
            let row = scratch.state.tasks().get(*task);
            (row.is_some_and(|row| row.alloc().is_none()), *task)
        });
        scratch.report_stopped(&leaving);
        let is_evicted = |task: TaskId| known.contains(&task);
        let snapshot = &mut scratch.snapshot;
        let queue = Queue::of_tasks(snapshot, solver.options.order, Time::NEVER, seed, is_evicted);
        let outcome = solver.pass_with_queue(snapshot, queue, seed);
        let next = evicted_tasks(&scratch.state, &outcome);
        scratch.commit(&outcome);
        for task in &next {
            rescheduled.moves_to.remove(task);
        }
        let placed = outcome.plan.groups.iter().flat_map(|group| &group.assignments);
        for assignment in placed {
            let machine = names::machine_ref(&scratch.state, assignment.machine);
            rescheduled.moves_to.insert(assignment.task, machine);
        }
        rescheduled.evicted_in_turn.extend(next.iter().copied().filter(|task| known.insert(*task)));
        if outcome.placed == 0 || next.is_empty() {
            return rescheduled;
        }
        leaving = next;
    }
}

/// `before` is the state before any eviction, with the tasks where they were. A task that was
/// already stopping inside an evicted alloc is no victim.
pub(super) fn describe_evicted(
    before: &State,
    tasks: &[TaskId],
    moves_to: &BTreeMap<TaskId, MachineRef>,
) -> Vec<Evicted> {
    let evicted = |task: &TaskId| {
        let row = before.tasks().get(*task).filter(|row| row.state.holds_resources())?;
        Some(Evicted {
            task: names::task_ref(before, *task),
            job: row.job,
            index: row.index,
            priority: before.spec_of(row)?.priority,
            machine: names::machine_ref(before, row.machine()?),
            moves_to: moves_to.get(task).cloned(),
        })
    };
    let mut evicted: Vec<Evicted> = tasks.iter().filter_map(evicted).collect();
    evicted.sort_by_key(|victim| (victim.priority, victim.job, victim.index));
    evicted
}
