//! Stops and drains that do not wait (B8, B41): their notice, and with a drain the disruption
//! budgets too, hold until a time that a person names. Nobody else's wish keeps a machine or a task
//! beyond that: an owner asked for its task to end, an operator needs the machine.
//!
//! A shorter notice is a bound on the row that goes to the agent with the order to stop. It counts
//! from when it is given, so a task that was told to stop yesterday with a year of notice is killed
//! so long after today. Rejected: a kill as an order of its own. A stop with no notice is one.

use super::Context;
use crate::admit::MAX_SPAN;
use crate::command::{Done, Verdict};
use crate::event::{MachineChange, TaskChange};
use crate::id::{MachineId, TaskId};
use crate::name::{JobKey, Name};
use crate::notice;
use crate::reason::{Allowed, Given, Object, Reason, Rejection};
use crate::task::TaskState;
use crate::time::Span;

impl Context<'_> {
    /// Stops a job or one task of it with a notice of at most `most`, which shortens that of tasks
    /// that are stopping already, whatever for.
    pub(super) fn stop_within(
        &mut self,
        key: &JobKey,
        index: Option<u32>,
        most: Span,
        expect: Option<u32>,
    ) -> Verdict {
        check_span("notice", most)?;
        let (_, job) = self.owned_job(key)?;
        let tasks = match index {
            None => job.tasks.to_vec(),
            Some(index) => job.tasks.get(index as usize).copied().into_iter().collect(),
        };
        let is_stopping = |id: &TaskId| {
            let row = self.state.tasks.get(*id);
            row.is_some_and(|row| matches!(row.state, TaskState::Stopping(_)))
        };
        let (stopping, rest): (Vec<TaskId>, Vec<TaskId>) = tasks.into_iter().partition(is_stopping);
        let told = match index {
            None => self.stop_job(key, expect)?,
            Some(index) => self.stop_single_task(key, index, expect)?,
        };
        let mut is_hastened = false;
        for task in stopping {
            is_hastened |= self.hasten(task, most, &Reason::Requested);
        }
        if told == Done::Applied {
            rest.into_iter().for_each(|task| self.limit_notice_of_stop(task, most));
        }
        Ok(if is_hastened { Done::Applied } else { told })
    }

    /// Drains a machine until `within` from now: then its tasks end, whatever their budgets and
    /// notices say.
    pub(super) fn drain_within(
        &mut self,
        name: &Name,
        within: Span,
        expect: Option<u32>,
    ) -> Verdict {
        check_span("within", within)?;
        let (machine, row) = self.machine_by_name(name)?;
        let (by, drained_before) = (self.now.plus(within), row.draining);
        let is_over = |at| at == by || (at <= self.now && by <= self.now);
        if row.draining && row.drain_by.is_some_and(is_over) {
            return Ok(Done::Unchanged);
        }
        Self::check_expected(|| Object::Machine(name.clone()), row.generation, expect)?;
        self.state.edit_machine(machine, |m| {
            m.draining = true;
            m.drain_by = Some(by);
            m.generation = m.generation.saturating_add(1);
        });
        self.machine_event(machine, MachineChange::DrainStarted, Reason::Requested);
        if !drained_before {
            self.release_reserved_on(machine, &Reason::Drained);
        }
        Ok(Done::Applied)
    }

    /// The time that is left of the drain of this machine, if it has a deadline.
    pub(super) fn drain_time_left(&self, machine: MachineId) -> Option<Span> {
        let by = self.state.machines.get(machine)?.drain_by?;
        Some(by.since(self.now))
    }

    /// Gives a stopping task at most this notice from now, and what stops inside it when it is an
    /// alloc; true if that is less than it had.
    pub(super) fn hasten(&mut self, id: TaskId, most: Span, why: &Reason) -> bool {
        let inner = self.state.alloc_load(id).map_or_else(Vec::new, |load| load.tasks.clone());
        let mut is_hastened = false;
        for task in inner.into_iter().chain([id]) {
            is_hastened |= self.hasten_one(task, most, why);
        }
        is_hastened
    }

    /// Bounds the notice of a task that this very command told to stop.
    fn limit_notice_of_stop(&mut self, id: TaskId, most: Span) {
        let row = self.state.tasks.get(id);
        if row.is_some_and(|row| matches!(row.state, TaskState::Stopping(_))) {
            self.limit_notice(id, Some(most));
        }
    }

    fn hasten_one(&mut self, id: TaskId, most: Span, why: &Reason) -> bool {
        let (now, Some(row)) = (self.now, self.state.tasks.get(id)) else { return false };
        let (TaskState::Stopping(_), Some(machine)) = (row.state, row.machine()) else {
            return false;
        };
        let Some(spec) = self.state.spec_of(row) else { return false };
        let has = notice::notice_of_task(self.state, row, spec);
        let told = row.last_end.as_ref().map_or(now, |end| end.at);
        if now.plus(most) >= told.plus(has) {
            return false;
        }
        self.set_task(id, |row| {
            row.notice_max = Some(most);
            if let Some(end) = &mut row.last_end {
                end.at = now;
            }
        });
        self.task_event(id, TaskChange::Stopping { machine }, why.clone());
        true
    }
}

fn check_span(field: &str, value: Span) -> Result<(), Rejection> {
    if value <= MAX_SPAN {
        return Ok(());
    }
    Err(Rejection::bad_field(field, Given::Length(value), Allowed::LengthAtMost(MAX_SPAN)))
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, job, key, name};
    use crate::bounds::Bounds;
    use crate::command::{Command, EvictCause};
    use crate::desired::{Action, desired_tasks};
    use crate::disruption::DisruptionLimit;
    use crate::id::MachineId;
    use crate::notice::{LongestNotice, killed_at};
    use crate::task::{StopCause, TaskState};
    use crate::time::Span;

    const DAY: Span = Span::seconds(86_400);

    /// `jfoo` with two tasks on `m1`, which ask for a day of notice and can spare nobody.
    fn slow() -> Cell {
        let mut cell = Cell::with_machines(1);
        let mut spec = job("jfoo", 2, 200);
        (spec.task.notice, spec.max_down) = (DAY, Some(0));
        spec.disruptions = Some(DisruptionLimit { most: 1, within: DAY });
        cell.submit(&spec);
        (0..2).for_each(|index| cell.run("jfoo", index, "m1"));
        cell
    }

    fn notices(cell: &Cell) -> Vec<Option<u64>> {
        let orders = desired_tasks(&cell.state, MachineId(0)).into_iter();
        let notice = |action| match action {
            Action::Stop { notice, .. } => Some(notice.0),
            _ => None,
        };
        orders.map(|order| notice(order.action)).collect()
    }

    fn stop(index: Option<u32>, notice: Span) -> Command {
        Command::StopWithin { job: key("ubar/jfoo"), index, notice, expect: None }
    }

    #[test]
    fn a_stop_with_a_notice_of_its_own_shortens_that_of_the_job_and_never_lengthens_it() {
        let mut cell = slow();
        cell.ok(stop(Some(1), Span(500)));
        assert_eq!(notices(&cell), [None, Some(500)]);
        assert_eq!(killed_at(&cell.state, cell.task_id("jfoo", 0)), None);
        cell.ok(Command::StopJob { job: key("ubar/jfoo"), expect: None });
        assert_eq!(notices(&cell), [Some(DAY.0), Some(500)]);
        cell.now += 100;
        cell.ok(stop(None, Span(1000)));
        assert_eq!(notices(&cell), [Some(1000), Some(500)], "the second ends sooner already");
        let until = killed_at(&cell.state, cell.task_id("jfoo", 0)).unwrap();
        assert_eq!(until.0, cell.now + 1000);
        cell.ok(stop(None, Span::ZERO));
        assert_eq!(notices(&cell), [Some(0), Some(0)]);
        let long = cell.rejection_text(stop(None, Span(u64::MAX)));
        assert!(long.contains("notice") && long.contains("at most"), "{long}");
        let none = cell.rejection_text(stop(Some(7), Span::ZERO));
        assert!(none.contains('7'), "{none}");
    }

    #[test]
    fn no_band_gets_more_notice_than_the_cell_gives_it() {
        let mut cell = slow();
        let longest_notice = LongestNotice { production: Span(3000), ..Default::default() };
        cell.ok(Command::SetBounds(Bounds { longest_notice, ..Bounds::default() }));
        cell.ok(Command::StopJob { job: key("ubar/jfoo"), expect: None });
        assert_eq!(notices(&cell), [Some(3000), Some(3000)]);
        let told = cell.now;
        // A setting that is lowered later holds for what is stopping.
        let longest_notice = LongestNotice { production: Span(20), ..longest_notice };
        cell.ok(Command::SetBounds(Bounds { longest_notice, ..Bounds::default() }));
        assert_eq!(notices(&cell), [Some(20), Some(20)]);
        let until = killed_at(&cell.state, cell.task_id("jfoo", 0)).unwrap();
        assert_eq!(until.0, told + 20);
    }

    fn evict(cell: &mut Cell, index: usize) -> String {
        let (task, attempt) = (cell.task_id("jfoo", index), cell.task("jfoo", index).attempt);
        let cause = EvictCause::Drain;
        let verdict = cell.send(Command::Evict { task, attempt, cause });
        crate::words::verdict(&cell.state, &verdict)
    }

    #[test]
    fn budgets_and_notices_hold_until_the_deadline_of_a_drain() {
        let mut cell = slow();
        let drain = |within| Command::DrainWithin { name: name("m1"), within, expect: None };
        cell.ok(drain(Span(1000)));
        let by = cell.state.machines.get(MachineId(0)).unwrap().drain_by.unwrap();
        let early = evict(&mut cell, 0);
        assert!(early.contains("at most 0 allowed"), "{early}");
        cell.now = by.0;
        assert_eq!(evict(&mut cell, 0), "done");
        assert_eq!(evict(&mut cell, 1), "done");
        assert_eq!(notices(&cell), [Some(0), Some(0)]);
        assert_eq!(evict(&mut cell, 1), "nothing to do");
        let why = TaskState::Stopping(StopCause::Drained);
        assert_eq!(cell.states("jfoo"), [why, why]);
        cell.ok(Command::StopDrain { name: name("m1"), expect: None });
        assert_eq!(cell.state.machines.get(MachineId(0)).unwrap().drain_by, None);
    }

    #[test]
    fn the_deadline_of_a_drain_shortens_notices_that_would_outlast_it() {
        let mut cell = slow();
        let loose = |spec: &mut crate::spec::JobSpec| {
            (spec.max_down, spec.disruptions) = (None, None);
        };
        let mut spec = job("jfoo", 2, 200);
        spec.task.notice = DAY;
        loose(&mut spec);
        cell.ok(Command::UpdateJob { owner: name("ubar"), spec: Box::new(spec), expect: None });
        let drain = |within| Command::DrainWithin { name: name("m1"), within, expect: None };
        cell.ok(drain(Span(1000)));
        assert_eq!(evict(&mut cell, 0), "done");
        let left = notices(&cell)[0].unwrap();
        assert!((990..1000).contains(&left), "{left}");
        assert_eq!(notices(&cell)[1], None);
        cell.ok(drain(Span::ZERO));
        assert_eq!(evict(&mut cell, 0), "done");
        assert_eq!(evict(&mut cell, 1), "done");
        assert_eq!(notices(&cell), [Some(0), Some(0)]);
    }
}
