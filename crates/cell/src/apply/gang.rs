//! Gangs lose their places as a whole (B28, B32): to a preemption at once, and to other losses when
//! they could not be made whole in time. When that is stands in [`crate::gang`], and is checked
//! here again, because a task of the gang may have found a place since a controller looked.
//!
//! A plan names as victims the tasks whose room it needs; the rest of their gangs goes with them,
//! whatever the plan says. So no scheduler can leave a part of a gang behind, and a member that
//! another plan placed meanwhile is no reason to refuse.

use super::Context;
use super::plan::{PreemptedTask, UndoLog};
use crate::command::{Done, Verdict};
use crate::gang;
use crate::id::{JobId, TaskId};
use crate::name::JobKey;
use crate::priority::Priority;
use crate::reason::{Reason, Rejection};
use crate::task::StopCause;
use std::collections::BTreeSet;

impl Context<'_> {
    pub(super) fn give_back(&mut self, key: &JobKey) -> Verdict {
        let (id, job) = self.owned_job(key)?;
        if gang::gives_back_at(self.state, id).is_none_or(|at| at > self.now) {
            return Ok(Done::Unchanged);
        }
        for task in job.tasks.iter() {
            self.stop_task(*task, StopCause::GangBroken, Reason::GangBroken);
        }
        Ok(Done::Applied)
    }

    /// Preempts what is left of the gangs of these jobs, whose tasks these tasks preempt, if they
    /// may preempt all of them.
    pub(super) fn preempt_rest_of_gangs(
        &mut self,
        victims: &[(JobId, (Priority, TaskId))],
        journal: &mut UndoLog,
    ) -> Result<Vec<PreemptedTask>, Rejection> {
        let (mut rest, mut seen) = (Vec::new(), BTreeSet::new());
        for (job, by) in victims {
            if !seen.insert(*job) {
                continue;
            }
            for task in self.tasks_of_gang(*job) {
                rest.extend(self.preempt_member(task, *by, journal)?);
            }
        }
        Ok(rest)
    }

    /// All tasks of the job, if it is a gang.
    fn tasks_of_gang(&self, job: JobId) -> Vec<TaskId> {
        let row = self.state.jobs.get(job).filter(|row| row.spec().gang);
        row.map(|row| row.tasks.to_vec()).unwrap_or_default()
    }

    fn preempt_member(
        &mut self,
        id: TaskId,
        by: (Priority, TaskId),
        journal: &mut UndoLog,
    ) -> Result<Option<PreemptedTask>, Rejection> {
        let row = self.state.tasks.get(id).filter(|row| row.state.holds_resources()).cloned();
        let Some((row, machine)) = row.and_then(|row| row.machine().map(|on| (row, on))) else {
            return Ok(None);
        };
        let priority = self.state.spec_of(&row).map_or(by.0, |spec| spec.priority);
        if !by.0.may_preempt(priority) {
            return Err(Rejection::MayNotPreempt { by: by.0, victim: priority });
        }
        self.check_budget_against(by.0, id)?;
        let gone = self.preempted_task(id, row);
        journal.save_victim(self.state, id, machine);
        self.stop_task(id, StopCause::Preempted, Reason::Preempted { by: by.1 });
        Ok(Some(gone))
    }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, all, job, key};
    use crate::command::{Command, Done, Observed};
    use crate::gang::{REPAIR, gives_back_at};
    use crate::id::{JobId, MachineId};
    use crate::plan::{Assignment, Group, Plan, Victim};
    use crate::spec::JobSpec;
    use crate::task::{StopCause, TaskState};
    use crate::time::{Span, Time};
    use crate::words;
    use TaskState::{Assigned, Pending, Running, Stopping};

    const BROKEN: TaskState = Stopping(StopCause::GangBroken);
    const PREEMPTED: TaskState = Stopping(StopCause::Preempted);

    fn gang(name: &str, repair: Option<Span>) -> JobSpec {
        let mut spec = job(name, 2, 100);
        (spec.gang, spec.repair, spec.task.limits) = (true, repair, all(10));
        spec
    }

    fn id(cell: &Cell, name: &str) -> JobId {
        cell.state.job_named(&key(&format!("ubar/{name}"))).unwrap()
    }

    fn due(cell: &Cell, name: &str) -> Option<Time> {
        gives_back_at(&cell.state, id(cell, name))
    }

    fn give_back(cell: &mut Cell, name: &str) -> Done {
        cell.ok(Command::GiveBack { job: key(&format!("ubar/{name}")) })
    }

    fn assign(cell: &Cell, name: &str, index: usize, machine: u32) -> Assignment {
        let (task, attempt) = (cell.task_id(name, index), cell.task(name, index).attempt);
        let (alloc, ports, devices) = (None, Vec::new(), Vec::new());
        Assignment { task, attempt, machine: MachineId(machine), alloc, ports, devices }
    }

    fn commit(cell: &mut Cell, victims: Vec<Victim>, assignments: Vec<Assignment>) -> String {
        let groups = vec![Group { victims, assignments }];
        let verdict = cell.send(Command::CommitPlan(Plan { made_at: 0, groups }));
        words::verdict(&cell.state, &verdict)
    }

    /// Places the first tasks of a gang on these machines, and reports them started.
    fn run_on(cell: &mut Cell, name: &str, machines: &[u32]) {
        let places = machines.iter().enumerate();
        let places = places.map(|(index, m)| assign(cell, name, index, *m)).collect();
        assert_eq!(commit(cell, Vec::new(), places), "done");
        (0..machines.len()).for_each(|index| cell.report(name, index, Observed::Started));
    }

    /// Gangs of two, each with its second task lost, one after the other.
    fn broken(gangs: &[(&str, Option<Span>)]) -> Cell {
        let mut cell = Cell::with_machines(2);
        for (name, repair) in gangs {
            cell.submit(&gang(name, *repair));
            run_on(&mut cell, name, &[0, 1]);
            assert_eq!(due(&cell, name), None, "it is whole");
        }
        gangs.iter().for_each(|(name, _)| cell.report(name, 1, Observed::Lost));
        cell
    }

    #[test]
    fn a_gang_that_is_not_made_whole_in_time_gives_back_all_of_it() {
        for (repair, span) in [(None, REPAIR), (Some(Span(500)), Span(500))] {
            let mut cell = broken(&[("jfoo", repair)]);
            let since = cell.task("jfoo", 1).changed_at;
            assert_eq!(due(&cell, "jfoo"), Some(since.plus(span)));
            assert_eq!(give_back(&mut cell, "jfoo"), Done::Unchanged);
            cell.now = since.plus(span).0;
            assert_eq!(give_back(&mut cell, "jfoo"), Done::Applied);
            let told = "ubar/jfoo/0 told to stop on m1: its gang lost a task and could not be made \
                        whole in time";
            assert_eq!(cell.event_lines, [told]);
            assert_eq!(cell.states("jfoo"), [BROKEN, Pending]);
            assert_eq!(due(&cell, "jfoo"), None, "it holds nothing any more");
            assert_eq!(give_back(&mut cell, "jfoo"), Done::Unchanged);
            cell.report("jfoo", 0, Observed::Stopped);
            assert_eq!(cell.states("jfoo"), [Pending, Pending]);
            // From now on it is placed whole or not at all.
            let alone = vec![assign(&cell, "jfoo", 1, 0)];
            assert!(commit(&mut cell, Vec::new(), alone).contains("1 of 2 tasks in the group"));
        }
    }

    #[test]
    fn a_gang_that_was_made_whole_keeps_its_places() {
        let mut cell = broken(&[("jfoo", None)]);
        cell.run("jfoo", 1, "m1");
        cell.now += 1_000_000;
        assert_eq!(give_back(&mut cell, "jfoo"), Done::Unchanged);
        assert_eq!(cell.states("jfoo"), [Running, Running]);
        // What is no gang may run in parts.
        cell.submit(&job("jbar", 2, 100));
        cell.run("jbar", 0, "m1");
        cell.now += 1_000_000;
        assert_eq!(give_back(&mut cell, "jbar"), Done::Unchanged);
    }

    #[test]
    fn of_two_broken_gangs_the_younger_gives_back_and_the_older_has_its_time_once_more() {
        let span = Some(Span(500));
        let mut cell = broken(&[("jold", span), ("jnew", span)]);
        let since = cell.task("jold", 1).changed_at;
        // The younger lost its task later, and goes when the time of the older is over.
        assert!(cell.task("jnew", 1).changed_at > since);
        assert_eq!(due(&cell, "jnew"), Some(Time(since.0 + 500)));
        assert_eq!(due(&cell, "jold"), Some(Time(since.0 + 1000)));
        cell.now = since.0 + 500;
        assert_eq!(give_back(&mut cell, "jold"), Done::Unchanged);
        assert_eq!(give_back(&mut cell, "jnew"), Done::Applied);
        assert_eq!(due(&cell, "jold"), Some(Time(since.0 + 1000)));
        cell.now = since.0 + 1000;
        assert_eq!(give_back(&mut cell, "jold"), Done::Applied);
    }

    #[test]
    fn the_last_of_the_broken_gangs_has_its_time_again_from_when_another_gave_back() {
        let mut cell = broken(&[("jold", Some(Span(500))), ("jnew", Some(Span(100)))]);
        let since = cell.task("jold", 1).changed_at;
        cell.now = cell.task("jnew", 1).changed_at.0 + 100;
        assert_eq!(give_back(&mut cell, "jnew"), Done::Applied);
        assert_eq!(due(&cell, "jold"), Some(Time(cell.now + 500)));
        assert!(due(&cell, "jold") > Some(Time(since.0 + 500)));
    }

    /// `jgang` of two tasks of 60, one on each of two machines, and `jtop` of 60 that waits.
    fn full(priority: u16, shape: impl FnOnce(&mut JobSpec)) -> (Cell, Victim) {
        let mut cell = Cell::with_machines(2);
        for band in [crate::priority::Band::Batch, crate::priority::Band::Production] {
            cell.grant("ubar", band, 200);
        }
        let mut spec = gang("jgang", None);
        spec.task.limits = all(60);
        shape(&mut spec);
        cell.submit(&spec);
        run_on(&mut cell, "jgang", &[0, 1]);
        let mut top = job("jtop", 1, priority);
        top.task.limits = all(60);
        cell.submit(&top);
        let victim = Victim { task: cell.task_id("jgang", 0), attempt: 1 };
        (cell, victim)
    }

    #[test]
    fn who_preempts_one_of_a_gang_preempts_it_whole() {
        let (mut cell, victim) = full(200, |_| {});
        let place = vec![assign(&cell, "jtop", 0, 0)];
        assert_eq!(commit(&mut cell, vec![victim], place), "done");
        let lines = [
            "ubar/jgang/0 told to stop on m1: preempted by ubar/jtop/0",
            "ubar/jgang/1 told to stop on m2: preempted by ubar/jtop/0",
            "ubar/jtop/0 scheduled on m1: found a place",
        ];
        assert_eq!(cell.event_lines, lines);
        assert_eq!(
            (cell.states("jgang"), cell.states("jtop")),
            (vec![PREEMPTED; 2], vec![Assigned])
        );
    }

    #[test]
    fn a_refused_group_gives_the_whole_gang_its_places_back() {
        let (mut cell, victim) = full(200, |_| {});
        let before = [0, 1].map(|index| cell.task("jgang", index).clone());
        let mut place = assign(&cell, "jtop", 0, 0);
        place.ports = vec![20_000];
        let message = commit(&mut cell, vec![victim], vec![place]);
        assert!(message.contains("assignment.ports"), "{message}");
        assert_eq!([0, 1].map(|index| cell.task("jgang", index).clone()), before);
    }

    #[test]
    fn a_budget_protects_the_gang_as_a_whole_from_its_own_band() {
        let (mut cell, victim) = full(110, |spec| spec.max_down = Some(1));
        let place = vec![assign(&cell, "jtop", 0, 0)];
        let message = commit(&mut cell, vec![victim], place);
        assert!(message.contains("at most 1"), "{message}");
        assert_eq!(cell.states("jgang"), [Running, Running]);
    }

    /// Neither of the two that share a machine is in the way alone; the gang is.
    #[test]
    fn a_gang_is_in_the_way_if_all_of_it_on_a_machine_is() {
        let mut cell = Cell::with_machines(1);
        let mut spec = gang("jgang", None);
        spec.task.limits = all(30);
        cell.submit(&spec);
        run_on(&mut cell, "jgang", &[0, 0]);
        let mut top = job("jtop", 1, 200);
        top.task.limits = all(60);
        cell.submit(&top);
        let victims = [0, 1].map(|index| Victim { task: cell.task_id("jgang", index), attempt: 1 });
        let place = vec![assign(&cell, "jtop", 0, 0)];
        assert_eq!(commit(&mut cell, victims.to_vec(), place), "done");
        assert_eq!(cell.states("jgang"), [PREEMPTED; 2]);
    }
}
