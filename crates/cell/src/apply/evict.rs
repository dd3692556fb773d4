//! Evictions (B39, B41): a controller moves one task or alloc away. Voluntary evictions keep to
//! disruption budgets and disruption limits, until the deadline of a drain has passed. Evictions
//! from an over-committed machine do not, and may for that reason take only what
//! [`overcommit_eviction::victims`] names. The same holds for a machine under resource pressure:
//! only [`pressure_eviction::next_victim`] may be evicted.

use super::Context;
use crate::command::{Done, EvictCause, Verdict};
use crate::disruption::{self, DisruptionLimit};
use crate::event::MachineChange;
use crate::id::{JobId, MachineId, TaskId};
use crate::overcommit_eviction;
use crate::pressure_eviction;
use crate::priority::Priority;
use crate::reason::{Conflict, Reason, Rejection, TaskAction};
use crate::resource::Dimension;
use crate::task::{StopCause, Task, TaskState};
use crate::time::Span;
use std::collections::BTreeMap;

impl Context<'_> {
    pub(super) fn evict(&mut self, task: TaskId, attempt: u32, cause: EvictCause) -> Verdict {
        let row = self.task_at_attempt(task, attempt)?;
        let Some(machine) = row.machine() else {
            return Err(wrong_state(task, &row, TaskAction::Eviction));
        };
        let time_left = self.drain_time_left(machine).filter(|_| cause == EvictCause::Drain);
        if matches!(row.state, TaskState::Stopping(why) if !why.restarts_in_place()) {
            let hastened = time_left.is_some_and(|left| self.hasten(task, left, &Reason::Drained));
            return Ok(if hastened { Done::Applied } else { Done::Unchanged });
        }
        let (stop, reason) = match cause {
            EvictCause::Drain => {
                self.check_draining(machine)?;
                (StopCause::Drained, Reason::Drained)
            }
            EvictCause::OverCommit => {
                self.check_overcommit_victim(machine, task)?;
                (StopCause::OverCommitted, Reason::OverCommitted)
            }
            EvictCause::Rebalance if row.state != TaskState::Running => {
                return Err(wrong_state(task, &row, TaskAction::Rebalancing));
            }
            EvictCause::Rebalance => (StopCause::Rebalanced, Reason::Rebalanced),
            EvictCause::ResourcePressure(dimension) => {
                self.answer_pressure(machine, task, dimension)?;
                (StopCause::ResourcePressure, Reason::ResourcePressure(dimension))
            }
        };
        let chosen = match cause {
            EvictCause::OverCommit | EvictCause::ResourcePressure(_) => BTreeMap::new(),
            // Its deadline has passed: whose task this is was asked, and had until then.
            EvictCause::Drain if time_left == Some(Span::ZERO) => BTreeMap::new(),
            EvictCause::Drain | EvictCause::Rebalance => {
                self.check_disruption_budget(task)?;
                self.check_disruption_rate(task)?
            }
        };
        self.stop_task(task, stop, reason);
        if time_left.is_some() {
            self.limit_notice(task, time_left);
        }
        chosen.into_iter().for_each(|(job, tasks)| self.record_disruptions(job, tasks));
        Ok(Done::Applied)
    }

    /// Running tasks that go down with `task`, by job with a disruption limit; rejected if it is
    /// too soon for one of these jobs.
    fn check_disruption_rate(&self, task: TaskId) -> Result<BTreeMap<JobId, u32>, Rejection> {
        let mut limited = disruption::disrupted_tasks(self.state, task);
        limited.retain(|job, _| self.disruption_limit(*job).is_some());
        if let Some((job, next)) = disruption::blocking_job(self.state, task, self.now)
            && let Some(DisruptionLimit { most, within }) = self.disruption_limit(job)
        {
            return Err(Rejection::DisruptedTooOften { job, most, within, next });
        }
        Ok(limited)
    }

    fn disruption_limit(&self, job: JobId) -> Option<DisruptionLimit> {
        self.state.jobs.get(job)?.spec().disruptions
    }

    /// Only as many times are kept as the limit counts: older ones are never needed.
    fn record_disruptions(&mut self, job: JobId, tasks: u32) {
        let Some(limit) = self.disruption_limit(job) else { return };
        let now = self.now;
        self.state.edit_job(job, |row| {
            row.disrupted_at.extend(std::iter::repeat_n(now, tasks as usize));
            let old = row.disrupted_at.len().saturating_sub(limit.most as usize);
            row.disrupted_at.drain(..old);
        });
    }

    fn check_draining(&self, machine: MachineId) -> Result<(), Rejection> {
        let row = self.machine_row(machine)?;
        if row.draining {
            Ok(())
        } else {
            Err(Rejection::WrongState(Conflict::NotDraining(row.spec.name.clone())))
        }
    }

    fn check_overcommit_victim(&self, machine: MachineId, task: TaskId) -> Result<(), Rejection> {
        let row = self.machine_row(machine)?;
        let named =
            row.over_committed && overcommit_eviction::victims(self.state, machine).contains(&task);
        if named {
            return Ok(());
        }
        let machine = row.spec.name.clone();
        Err(Rejection::WrongState(if row.over_committed {
            Conflict::OthersFirst { machine, task }
        } else {
            Conflict::NotOverCommitted(machine)
        }))
    }

    /// Records that the machine's request is answered, if it is open and `task` is the victim.
    fn answer_pressure(
        &mut self,
        machine: MachineId,
        task: TaskId,
        dimension: Dimension,
    ) -> Result<(), Rejection> {
        let name = self.machine_row(machine)?.spec.name.clone();
        let conflict = match pressure_eviction::next_victim(self.state, machine) {
            Some((next, short)) if (next, short) == (task, dimension) => {
                // One eviction answers all open requests: the agent will report whether it helped.
                self.state.edit_machine(machine, |m| {
                    m.resource_pressure
                        .iter_mut()
                        .for_each(|short| short.answered = short.requested);
                });
                let change = MachineChange::PressureEvicted { dimension };
                self.machine_event(machine, change, Reason::ResourcePressure(dimension));
                return Ok(());
            }
            Some((task, dimension)) => {
                Conflict::PressureEvictionFirst { machine: name, task, dimension }
            }
            None => Conflict::NoResourcePressure(name),
        };
        Err(Rejection::WrongState(conflict))
    }

    /// Whether the system may choose to stop `task`, and with an alloc the tasks inside it. A task
    /// that does not run is down already: stopping it is no disruption.
    pub(super) fn check_disruption_budget(&self, task: TaskId) -> Result<(), Rejection> {
        let inner = self.state.alloc_load(task).map_or(&[][..], |load| &load.tasks);
        if inner.is_empty() {
            return match self.running_job(task) {
                Some(job) => self.check_job_budget(job, 1),
                None => Ok(()),
            };
        }
        let disrupted = disruption::disrupted_tasks(self.state, task);
        disrupted.into_iter().try_for_each(|(job, tasks)| self.check_job_budget(job, tasks))
    }

    /// The same for a task that `by` preempts: a budget binds no higher band.
    pub(super) fn check_budget_against(&self, by: Priority, task: TaskId) -> Result<(), Rejection> {
        let bound = |job: &JobId| {
            let row = self.state.jobs.get(*job);
            row.is_some_and(|row| !by.overrules_budget_of(row.spec().priority))
        };
        let mut disrupted = disruption::disrupted_tasks(self.state, task);
        disrupted.retain(|job, _| bound(job));
        disrupted.into_iter().try_for_each(|(job, tasks)| self.check_job_budget(job, tasks))
    }

    fn running_job(&self, task: TaskId) -> Option<JobId> {
        let row = self.state.tasks.get(task)?;
        (row.state == TaskState::Running).then_some(row.job)
    }

    fn check_job_budget(&self, job: JobId, tasks: u32) -> Result<(), Rejection> {
        let Some(row) = self.state.jobs.get(job) else { return Ok(()) };
        let down = self.state.job_load(job).map_or(0, |load| load.down());
        match row.spec().max_down {
            Some(max) if !disruption::within_max_down(row.spec(), down, tasks) => {
                Err(Rejection::BudgetExhausted { job, down, max })
            }
            _ => Ok(()),
        }
    }
}

fn wrong_state(task: TaskId, row: &Task, action: TaskAction) -> Rejection {
    Rejection::WrongTaskState { task, state: row.state, action }
}

#[cfg(test)]
mod tests {
    use crate::alloc_pairing::AllocPairing;
    use crate::apply::fixture::{Cell, job, key, machine, name};
    use crate::command::{Command, EvictCause, Observed};
    use crate::disruption::DisruptionLimit;
    use crate::id::MachineId;
    use crate::overcommit_eviction;
    use crate::spec::JobKind;
    use crate::task::{StopCause, TaskState};
    use crate::time::Span;
    use crate::words;

    fn evict(cell: &mut Cell, job: &str, index: usize, cause: EvictCause) -> String {
        let (task, attempt) = (cell.task_id(job, index), cell.task(job, index).attempt);
        let verdict = cell.send(Command::Evict { task, attempt, cause });
        words::verdict(&cell.state, &verdict)
    }

    /// Jobs `jfoo` (batch) and `jbar` (best effort) with a task each on `m1`, and one pending.
    fn cell() -> Cell {
        let mut cell = Cell::with_machines(1);
        let mut foo = job("jfoo", 2, 100);
        foo.max_down = Some(1);
        cell.submit(&foo);
        cell.grant("ubar", crate::priority::Band::BestEffort, 100);
        cell.submit(&job("jbar", 1, 50));
        cell.run("jfoo", 0, "m1");
        cell.run("jbar", 0, "m1");
        cell
    }

    fn check(prepare: fn(&mut Cell), job: &str, index: usize, cause: EvictCause, want: &str) {
        let mut cell = cell();
        prepare(&mut cell);
        assert_eq!(evict(&mut cell, job, index, cause), want, "{job}/{index} {cause:?}");
    }

    fn drain(cell: &mut Cell) {
        cell.ok(Command::StartDrain { name: name("m1"), expect: None });
    }

    fn shrink(cell: &mut Cell) {
        cell.ok(Command::UpdateMachine { spec: machine("m1", 10), expect: None });
    }

    #[test]
    fn an_eviction_needs_its_cause_and_keeps_to_budgets() {
        use EvictCause::{Drain, OverCommit, Rebalance};
        check(drain, "jbar", 0, Drain, "done");
        check(|_| {}, "jbar", 0, Drain, "refused: not possible while machine m1 is not draining");
        check(|_| {}, "jbar", 0, Rebalance, "done");
        let waits = "refused: ubar/jfoo/1 is pending, which does not allow eviction: it is on no \
            machine";
        check(drain, "jfoo", 1, Drain, waits);
        // The second task of jfoo is down already; once it runs, one may go.
        let budget = "1 task down already, at most 1 allowed";
        let mut cell = cell();
        let message = evict(&mut cell, "jfoo", 0, Rebalance);
        assert!(message.contains(budget), "{message}");
        cell.run("jfoo", 1, "m1");
        assert_eq!(evict(&mut cell, "jfoo", 0, Rebalance), "done");
        drain(&mut cell);
        let message = evict(&mut cell, "jfoo", 1, Drain);
        assert!(message.contains(budget), "{message}");
        let fits = "refused: not possible while machine m1 holds no more than it has";
        check(|_| {}, "jbar", 0, OverCommit, fits);
        check(shrink, "jbar", 0, OverCommit, "done");
        let others = "refused: not possible while others must leave machine m1 before task row 0";
        check(shrink, "jfoo", 0, OverCommit, others);
    }

    /// `jfoo` with three tasks on `m1`, of which `most` may be moved in 100 ms, and drained.
    fn limited(most: u32) -> Cell {
        let mut cell = Cell::with_machines(2);
        let mut foo = job("jfoo", 3, 100);
        foo.disruptions = Some(DisruptionLimit { most, within: Span(100) });
        cell.submit(&foo);
        (0..3).for_each(|index| cell.run("jfoo", index, "m1"));
        drain(&mut cell);
        cell
    }

    fn disrupted_at(cell: &Cell) -> Vec<u64> {
        let id = cell.state.job_named(&key("ubar/jfoo")).unwrap();
        cell.state.jobs.get(id).unwrap().disrupted_at.iter().map(|at| at.0).collect()
    }

    #[test]
    fn a_job_is_disrupted_so_often_within_a_span() {
        use EvictCause::{Drain, Rebalance};
        let mut cell = limited(1);
        assert_eq!(evict(&mut cell, "jfoo", 0, Drain), "done");
        let first = cell.now;
        let too_soon = format!(
            "refused: ubar/jfoo has at most 1 task disrupted within 100 ms, the next at {} ms",
            first + 100
        );
        assert_eq!(evict(&mut cell, "jfoo", 1, Drain), too_soon);
        // Running again, though elsewhere, the task counts like any other.
        cell.report("jfoo", 0, Observed::Stopped);
        cell.run("jfoo", 0, "m2");
        assert_eq!(evict(&mut cell, "jfoo", 0, Rebalance), too_soon);
        assert_eq!(disrupted_at(&cell), [first]);
        cell.now = first + 98;
        assert_eq!(evict(&mut cell, "jfoo", 1, Drain), too_soon);
        assert_eq!(evict(&mut cell, "jfoo", 1, Drain), "done");
        assert_eq!(disrupted_at(&cell), [first + 100]);
    }

    #[test]
    fn what_must_be_or_is_asked_for_is_not_limited() {
        let mut cell = limited(1);
        assert_eq!(evict(&mut cell, "jfoo", 0, EvictCause::Drain), "done");
        cell.report("jfoo", 0, Observed::Stopped);
        cell.ok(Command::StopDrain { name: name("m1"), expect: None });
        cell.run("jfoo", 0, "m1");
        cell.ok(Command::UpdateMachine { spec: machine("m1", 20), expect: None });
        let must = overcommit_eviction::victims(&cell.state, MachineId(0))[0];
        let index = cell.state.tasks.get(must).unwrap().index;
        assert_eq!(evict(&mut cell, "jfoo", index as usize, EvictCause::OverCommit), "done");
        assert_eq!(disrupted_at(&cell).len(), 1);
        let (job, index) = (key("ubar/jfoo"), (index + 1) % 3);
        cell.ok(Command::StopTask { job, index, expect: None });
        assert_eq!(disrupted_at(&cell).len(), 1);
    }

    #[test]
    fn as_many_times_are_kept_as_count() {
        let mut cell = limited(2);
        assert_eq!(evict(&mut cell, "jfoo", 0, EvictCause::Drain), "done");
        let first = cell.now;
        assert_eq!(evict(&mut cell, "jfoo", 1, EvictCause::Drain), "done");
        let message = evict(&mut cell, "jfoo", 2, EvictCause::Drain);
        assert!(message.ends_with(&format!("the next at {} ms", first + 100)), "{message}");
        cell.now = first + 99;
        assert_eq!(evict(&mut cell, "jfoo", 2, EvictCause::Drain), "done");
        assert_eq!(disrupted_at(&cell), [first + 1, first + 100]);
    }

    #[test]
    fn evicting_twice_is_harmless_and_the_task_comes_back_to_the_queue() {
        let mut cell = cell();
        assert_eq!(evict(&mut cell, "jbar", 0, EvictCause::Rebalance), "done");
        assert_eq!(cell.states("jbar"), [TaskState::Stopping(StopCause::Rebalanced)]);
        assert_eq!(evict(&mut cell, "jbar", 0, EvictCause::Rebalance), "nothing to do");
        cell.report("jbar", 0, Observed::Stopped);
        assert_eq!(cell.states("jbar"), [TaskState::Pending]);
        let (task, attempt) = (cell.task_id("jbar", 0), 7);
        let stale = Command::Evict { task, attempt, cause: EvictCause::Drain };
        assert_eq!(cell.rejection_text(stale), "ubar/jbar/0 is at attempt 1, not 7");
    }

    #[test]
    fn an_alloc_takes_its_tasks_along_if_their_budget_allows() {
        use AllocPairing::{Any, Index};
        // Tasks that are paired with the alloc leave it together or never.
        let cases =
            [(1, Any, "refused"), (2, Any, "done"), (0, Index, "refused"), (1, Index, "done")];
        for (max_down, alloc_pairing, want) in cases {
            let mut cell = Cell::with_machines(1);
            let mut set = job("jset", 1, 100);
            set.kind = JobKind::AllocSet;
            set.task.limits = crate::apply::fixture::all(20);
            cell.submit(&set);
            let mut inner = job("jfoo", 2, 100);
            inner.alloc_set = Some(key("ubar/jset"));
            (inner.max_down, inner.alloc_pairing) = (Some(max_down), alloc_pairing);
            cell.submit(&inner);
            cell.run("jset", 0, "m1");
            let alloc = cell.task_id("jset", 0);
            cell.run_in("jfoo", 0, "m1", Some(alloc));
            cell.run_in("jfoo", 1, "m1", Some(alloc));
            drain(&mut cell);
            let message = evict(&mut cell, "jset", 0, EvictCause::Drain);
            assert!(message.starts_with(want), "max_down {max_down}: {message}");
            let moved = TaskState::Stopping(StopCause::AllocMoved);
            assert_eq!(cell.states("jfoo") == [moved; 2], want == "done");
        }
    }

    #[test]
    fn an_alloc_takes_its_tasks_along_if_they_may_be_disrupted_together() {
        for (most, want) in [(1, "never so many at once"), (2, "done")] {
            let mut cell = Cell::with_machines(1);
            let mut set = job("jset", 1, 100);
            set.kind = JobKind::AllocSet;
            set.task.limits = crate::apply::fixture::all(20);
            cell.submit(&set);
            let mut inner = job("jfoo", 2, 100);
            inner.alloc_set = Some(key("ubar/jset"));
            inner.disruptions = Some(DisruptionLimit { most, within: Span(100) });
            cell.submit(&inner);
            cell.run("jset", 0, "m1");
            let alloc = cell.task_id("jset", 0);
            cell.run_in("jfoo", 0, "m1", Some(alloc));
            cell.run_in("jfoo", 1, "m1", Some(alloc));
            drain(&mut cell);
            let message = evict(&mut cell, "jset", 0, EvictCause::Drain);
            assert!(message.ends_with(want), "most {most}: {message}");
            let want = if most == 2 { vec![cell.now; 2] } else { vec![] };
            assert_eq!(disrupted_at(&cell), want);
        }
    }
}
