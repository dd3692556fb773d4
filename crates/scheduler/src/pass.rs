//! One scheduling pass: the pending tasks of this scheduler's shard, their placements, and the
//! commands for them.
//!
//! The solver sees the whole cluster snapshot, placed and pending tasks of other scheduler shards
//! included; only the queue is restricted to the shard. In a snapshot of the shard's own tasks,
//! occupied machines would seem free.
//!
//! A plan is split into commands of bounded size in its own order, because a later group may need
//! the room that the victims of an earlier one leave. A group is never split: it is accepted whole.

use crate::cell_copy::CellCopy;
use crate::scheduler_shard::SchedulerShard;
use cellwright_cell::command::{Actor, Command, Request};
use cellwright_cell::id::TaskId;
use cellwright_cell::name::Name;
use cellwright_cell::plan::{Group, Plan};
use cellwright_cell::time::Time;
use cellwright_messages::Proposal;
use cellwright_sched::queue::Queue;
use cellwright_sched::{Solver, Stats};
use std::collections::VecDeque;

/// Makes passes for one scheduler shard.
#[derive(Clone, Debug)]
pub struct PassRunner {
    pub solver: Solver,
    pub shard: SchedulerShard,
    pub seed: u64,
    /// Assignments and victims in one command, unless a single group has more.
    pub chunk_size: usize,
}

/// The plans of a pass and the tasks that it could not place.
#[derive(Clone, Debug, Default)]
pub struct PassPlan {
    pub chunks: VecDeque<Plan>,
    /// Tasks of the shard that could not be placed.
    pub pending: usize,
    /// Tasks of the shard that may not start yet.
    pub not_due: usize,
    pub stats: Stats,
}

/// The times at which a pending task may become placeable by the clock alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wakeups {
    /// A task may start.
    pub next_start: Option<Time>,
    /// A machine that a task crashed on may be tried again. Compared with log time: it has not come
    /// until an entry says so.
    pub crash_avoidance_ends: Option<Time>,
}

impl PassRunner {
    /// Tries every pending task of the shard once. The copy must be synced; its cluster snapshot
    /// holds the result until the next sync.
    pub fn pass(&self, copy: &mut CellCopy, now: Time) -> PassPlan {
        let order = self.solver.options.order;
        let shard = &self.shard;
        let queue =
            Queue::of_jobs(copy.snapshot(), order, now, self.seed, |spec| self.shard.owns(spec));
        tracing::trace!(%shard, tasks = queue.len(), "pass");
        let outcome = self.solver.pass_with_queue(copy.snapshot_mut(), queue, self.seed);
        PassPlan {
            chunks: split_plan(outcome.plan, self.chunk_size),
            pending: outcome.pending.len(),
            not_due: outcome.not_yet,
            stats: outcome.stats,
        }
    }

    /// Whether any task of the shard is pending, ready or not.
    #[must_use]
    pub fn has_work(&self, copy: &CellCopy) -> bool {
        copy.snapshot().pending().iter().any(|task| self.is_in_shard(copy, *task))
    }

    fn is_in_shard(&self, copy: &CellCopy, task: TaskId) -> bool {
        let job =
            copy.snapshot().identity_of(task).and_then(|(job, _)| copy.snapshot().job_spec(job));
        job.is_some_and(|spec| self.shard.owns(spec))
    }

    /// The next times after `now` at which a task of the shard may become placeable by the clock
    /// alone.
    #[must_use]
    pub fn wakeups(&self, copy: &CellCopy, now: Time) -> Wakeups {
        let earlier =
            |known: Option<Time>, other: Time| Some(known.map_or(other, |t| t.min(other)));
        let mut due = Wakeups::default();
        let waiting =
            copy.snapshot().pending().iter().filter(|task| self.is_in_shard(copy, **task));
        for row in waiting.filter_map(|task| copy.state().tasks().get(*task)) {
            if row.not_before > now {
                due.next_start = earlier(due.next_start, row.not_before);
            }
            for pair in row.crashed_on.iter().filter(|pair| row.avoids(pair.machine, copy.now())) {
                due.crash_avoidance_ends = earlier(due.crash_avoidance_ends, pair.until);
            }
        }
        due
    }
}

/// Splits a plan, keeping the order of its groups, into plans of at most `max` assignments and
/// victims; a larger group has a plan of its own.
#[must_use]
pub fn split_plan(plan: Plan, max: usize) -> VecDeque<Plan> {
    let size = |group: &Group| group.assignments.len() + group.victims.len();
    let mut chunks: VecDeque<Plan> = VecDeque::new();
    let mut filled = 0;
    for group in plan.groups {
        let grown = filled + size(&group);
        match chunks.back_mut() {
            Some(chunk) if grown <= max => {
                filled = grown;
                chunk.groups.push(group);
            }
            _ => {
                filled = size(&group);
                chunks.push_back(Plan { made_at: plan.made_at, groups: vec![group] });
            }
        }
    }
    chunks
}

/// A plan as a message to the master. Without a request id: a plan applied twice is rejected by the
/// attempts it names, so it need not be remembered.
#[must_use]
pub fn proposal(scheduler: &Name, plan: Plan) -> Proposal {
    let (by, command) = (Actor::Scheduler(scheduler.clone()), Command::CommitPlan(plan));
    Proposal { requests: vec![Request { by, id: None, command }] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::id::MachineId;
    use cellwright_cell::plan::Assignment;

    fn check(sizes: &[u32], max: usize, want: &[usize]) {
        let mut next = 0;
        let mut group = |size: &u32| {
            let tasks = next..next + *size;
            next += *size;
            let assignment = |task| Assignment {
                task: TaskId(task),
                attempt: 0,
                machine: MachineId(0),
                alloc: None,
                ports: vec![],
                devices: vec![],
            };
            Group { victims: vec![], assignments: tasks.map(assignment).collect() }
        };
        let plan = Plan { made_at: 7, groups: sizes.iter().map(&mut group).collect() };
        let cut = split_plan(plan.clone(), max);
        let counts: Vec<usize> =
            cut.iter().map(|p| p.groups.iter().map(|g| g.assignments.len()).sum()).collect();
        assert_eq!(counts, want, "{sizes:?} by {max}");
        assert!(cut.iter().all(|chunk| chunk.made_at == 7));
        let joined: Vec<Group> = cut.into_iter().flat_map(|chunk| chunk.groups).collect();
        assert_eq!(joined, plan.groups, "order and groups stay");
    }

    #[test]
    fn plans_are_cut_between_groups() {
        check(&[], 3, &[]);
        check(&[1, 1, 1], 3, &[3]);
        check(&[1, 1, 1, 1], 3, &[3, 1]);
        check(&[2, 2, 2], 3, &[2, 2, 2]);
        check(&[1, 9, 1], 3, &[1, 9, 1]);
        check(&[4], 1, &[4]);
    }
}
