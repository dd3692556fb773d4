//! Resource pressure reports of a machine's agent (B39). [`crate::pressure_eviction`] chooses the
//! victim, and an eviction removes it.

use super::Context;
use crate::command::{Done, Verdict};
use crate::event::MachineChange;
use crate::id::MachineId;
use crate::machine::{MachineStatus, ResourcePressure, ResourcePressureReport};
use crate::pressure_eviction;
use crate::reason::{Allowed, Conflict, Given, Reason, Rejection};

impl Context<'_> {
    /// The list is complete: what it does not name is not short, and has not been lately.
    pub(super) fn set_resource_pressure(
        &mut self,
        machine: MachineId,
        incarnation: u64,
        reported: &[ResourcePressureReport],
    ) -> Verdict {
        let row = self.machine_row(machine)?;
        if row.status != MachineStatus::Up {
            return Err(Rejection::WrongState(Conflict::MachineDown(row.spec.name.clone())));
        }
        if incarnation != row.incarnation {
            let (machine, found) = (row.spec.name.clone(), row.incarnation);
            return Err(Rejection::StaleIncarnation { machine, reported: incarnation, found });
        }
        if let Some(pair) = reported.windows(2).find(|pair| pair[0].dimension >= pair[1].dimension)
        {
            let value = Given::text(pair[1].dimension);
            return Err(Rejection::bad_field(
                "resource_pressure",
                value,
                Allowed::ResourcesInOrder,
            ));
        }
        if !pressure_eviction::has_changes(row, reported) {
            return Ok(Done::Unchanged);
        }
        let before = row.resource_pressure.clone();
        let after = pressure_eviction::merge_reports(self.state, machine, reported);
        self.state.edit_machine(machine, |m| m.resource_pressure = after.clone());
        for change in pressure_changes(&before, &after) {
            self.machine_event(machine, change, Reason::AgentReport);
        }
        Ok(Done::Applied)
    }
}

/// Events for each resource that one of the lists names.
fn pressure_changes(before: &[ResourcePressure], after: &[ResourcePressure]) -> Vec<MachineChange> {
    let in_list = |list: &[ResourcePressure], this: &ResourcePressure| {
        list.iter().find(|other| other.dimension == this.dimension).copied()
    };
    let gone = before.iter().filter(|old| in_list(after, old).is_none());
    let gone = gone.map(|old| MachineChange::PressureEnded { dimension: old.dimension });
    let news = after.iter().filter(|new| in_list(before, new) != Some(**new));
    let to_change = |new: &ResourcePressure| match (new.requested, new.dimension) {
        (0, dimension) => MachineChange::PressureEased { dimension },
        (_, dimension) => MachineChange::PressureReported { dimension },
    };
    gone.chain(news.map(to_change)).collect()
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, all, job, key};
    use crate::command::{Command, EvictCause, Observed};
    use crate::fit::{Candidate, infeasible_reason};
    use crate::id::MachineId;
    use crate::machine::ResourcePressureReport;
    use crate::pressure_eviction;
    use crate::priority::Band;
    use crate::reason::InfeasibleReason;
    use crate::resource::{Dimension, Resources};
    use crate::spec::JobKind;
    use crate::task::{StopCause, TaskState};
    use crate::time::Span;
    use crate::words;

    const M1: MachineId = MachineId(0);
    const CPU: Dimension = Dimension::Cpu;

    fn report(requested: u32) -> Vec<ResourcePressureReport> {
        vec![ResourcePressureReport { dimension: CPU, lasted: Span::seconds(60), requested }]
    }

    fn report_pressure(cell: &mut Cell, resource_pressure: Vec<ResourcePressureReport>) -> String {
        let command =
            Command::SetResourcePressure { machine: M1, incarnation: 1, resource_pressure };
        let verdict = cell.send(command);
        words::verdict(&cell.state, &verdict)
    }

    fn evict_for_pressure(cell: &mut Cell, job: &str) -> String {
        let (task, attempt) = (cell.task_id(job, 0), cell.task(job, 0).attempt);
        let command = Command::Evict { task, attempt, cause: EvictCause::ResourcePressure(CPU) };
        let verdict = cell.send(command);
        words::verdict(&cell.state, &verdict)
    }

    fn next(cell: &Cell) -> Option<String> {
        pressure_eviction::next_victim(&cell.state, M1).map(|(task, _)| cell.state.task_name(task))
    }

    /// Production, two of batch and one of best effort on `m1`.
    fn cell() -> Cell {
        let mut cell = Cell::with_machines(1);
        cell.now += 120_000;
        cell.grant("ubar", Band::BestEffort, 100);
        let jobs = [("jprod", 200, 20), ("jbig", 100, 9), ("jsmall", 100, 3), ("jlow", 50, 1)];
        for (name, priority, cpu) in jobs {
            let mut spec = job(name, 1, priority);
            spec.task.limits = Resources::new(cpu, 1, 1, 1);
            spec.max_down = Some(0);
            cell.submit(&spec);
            cell.run(name, 0, "m1");
        }
        cell
    }

    #[test]
    fn one_leaves_each_time_the_machine_asks_and_never_production() {
        let mut cell = cell();
        assert_eq!((next(&cell), evict_for_pressure(&mut cell, "jlow")), (None, no_pressure()));
        assert_eq!(report_pressure(&mut cell, report(1)), "done");
        assert_eq!(cell.event_lines, [asks()]);
        assert_eq!(report_pressure(&mut cell, report(1)), "nothing to do");
        let first = "refused: not possible while task row 3 must leave machine m1 first, for cpu";
        assert_eq!(evict_for_pressure(&mut cell, "jprod"), first);
        // The lowest priority; of equals the one that uses most. Budgets do not keep it.
        for (requested, leaves) in [(1, "jlow"), (2, "jbig"), (3, "jsmall")] {
            report_pressure(&mut cell, report(2 * requested));
            assert_eq!(next(&cell), Some(format!("ubar/{leaves}/0")));
            assert_eq!(evict_for_pressure(&mut cell, leaves), "done");
            assert_eq!(cell.states(leaves), [TaskState::Stopping(StopCause::ResourcePressure)]);
            // Nothing else is evicted before another request, and before this one has gone.
            assert_eq!(
                (next(&cell), evict_for_pressure(&mut cell, "jprod")),
                (None, no_pressure())
            );
            report_pressure(&mut cell, report(2 * requested + 1));
            assert_eq!(next(&cell), None);
            cell.report(leaves, 0, Observed::Stopped);
            assert_eq!(next(&cell), None);
        }
        report_pressure(&mut cell, report(8));
        assert_eq!((next(&cell), evict_for_pressure(&mut cell, "jprod")), (None, no_pressure()));
        assert_eq!(cell.states("jprod"), [TaskState::Running]);
    }

    #[test]
    fn who_states_no_rate_leaves_after_those_of_its_priority_who_state_one() {
        const RATE: Dimension = Dimension::DiskRate;
        let mut cell = Cell::with_machines(1);
        cell.grant("ubar", Band::BestEffort, 100);
        let jobs = [("jprod", 200, 0), ("jhog", 100, 0), ("jrate", 100, 2), ("jidle", 50, 1)];
        for (name, priority, rate) in jobs {
            let mut spec = job(name, 1, priority);
            spec.task.limits = Resources::new(1, 1, 1, rate);
            cell.submit(&spec);
            cell.run(name, 0, "m1");
        }
        // It states a rate, and is known to use none of it.
        let idle = cell.task_id("jidle", 0);
        cell.state.edit_task(idle, |task| task.reservation.disk_rate = 0);
        for (requested, leaves) in [(1, "jrate"), (2, "jhog")] {
            let shortage =
                ResourcePressureReport { dimension: RATE, lasted: Span::seconds(60), requested };
            assert_eq!(report_pressure(&mut cell, vec![shortage]), "done");
            assert_eq!(next(&cell), Some(format!("ubar/{leaves}/0")));
            let (task, attempt) = (cell.task_id(leaves, 0), cell.task(leaves, 0).attempt);
            cell.ok(Command::Evict { task, attempt, cause: EvictCause::ResourcePressure(RATE) });
            cell.report(leaves, 0, Observed::Stopped);
        }
        let shortage =
            ResourcePressureReport { dimension: RATE, lasted: Span::seconds(60), requested: 3 };
        assert_eq!(report_pressure(&mut cell, vec![shortage]), "done");
        assert_eq!(next(&cell), None, "production and whoever uses nothing stay");
    }

    fn no_pressure() -> String {
        "refused: not possible while machine m1 asks for no eviction".into()
    }

    fn asks() -> String {
        "m1 short of cpu, asks for an eviction: seen by the machine's agent".into()
    }

    #[test]
    fn whoever_left_does_not_come_back_before_the_machine_has_been_well_for_a_while() {
        let mut cell = cell();
        report_pressure(&mut cell, report(1));
        evict_for_pressure(&mut cell, "jlow");
        let why = "the machine is short of cpu, and throttling did not help";
        let expected_events = [
            format!("m1 evicts a task for cpu: {why}"),
            format!("ubar/jlow/0 told to stop on m1: {why}"),
        ];
        assert_eq!(cell.event_lines, expected_events);
        cell.report("jlow", 0, Observed::Stopped);
        let left = format!("ubar/jlow/0 evicted from m1, pending again: {why}");
        assert_eq!(cell.event_lines, [left]);
        assert_eq!(infeasible_for_jlow(&cell), Some(InfeasibleReason::ResourcePressure));
        report_pressure(&mut cell, report(0));
        assert_eq!(cell.event_lines, [eased()]);
        assert_eq!(evict_for_pressure(&mut cell, "jbig"), no_pressure());
        assert_eq!(infeasible_for_jlow(&cell), Some(InfeasibleReason::ResourcePressure));
        // Production is not kept away.
        cell.submit(&job("jmore", 1, 200));
        cell.run("jmore", 0, "m1");
        report_pressure(&mut cell, vec![]);
        assert_eq!(infeasible_for_jlow(&cell), None);
        cell.run("jlow", 0, "m1");
    }

    fn infeasible_for_jlow(cell: &Cell) -> Option<InfeasibleReason> {
        let candidate = Candidate::of(&cell.state, cell.task_id("jlow", 0)).unwrap();
        infeasible_reason(&cell.state, &candidate, M1, None)
    }

    fn eased() -> String {
        let change_text = "m1 short of cpu no longer, takes only production for a while yet";
        format!("{change_text}: seen by the machine's agent")
    }

    #[test]
    fn a_shortage_keeps_its_beginning_until_another_one_begins() {
        let mut cell = cell();
        let row = |cell: &Cell| {
            let short = cell.state.machines().get(M1).unwrap().resource_pressure.first().copied();
            short.map(|short| (short.since.0, short.requested, short.answered))
        };
        report_pressure(&mut cell, report(1));
        let since = cell.state.now().0 - 60_000;
        assert_eq!(row(&cell), Some((since, 1, 0)));
        evict_for_pressure(&mut cell, "jlow");
        cell.report("jlow", 0, Observed::Stopped);
        cell.now += 60_000;
        report_pressure(&mut cell, report(2));
        assert_eq!(row(&cell), Some((since, 2, 1)));
        // The next agent counts from the start again.
        report_pressure(&mut cell, report(1));
        let again = cell.state.now().0 - 60_000;
        assert_eq!(row(&cell), Some((again, 1, 0)));
        report_pressure(&mut cell, report(0));
        assert_eq!(row(&cell), Some((again, 0, 0)));
        cell.ok(Command::MachineDown { machine: M1 });
        assert_eq!(row(&cell), None);
        let down = "refused: not possible while machine m1 is down";
        assert_eq!(report_pressure(&mut cell, report(1)), down);
        cell.ok(Command::MachineUp { machine: M1, incarnation: 2 });
        let stale = report_pressure(&mut cell, report(1));
        assert!(stale.starts_with("refused: machine m1 is at incarnation 2"), "{stale}");
        let resource_pressure = [report(1), report(1)].concat();
        let twice = Command::SetResourcePressure { machine: M1, incarnation: 2, resource_pressure };
        let twice = cell.rejection_text(twice);
        assert!(twice.starts_with("field resource_pressure: value cpu is not valid"), "{twice}");
    }

    #[test]
    fn an_alloc_leaves_with_what_is_in_it_unless_it_is_of_production() {
        for (priority, leaves) in [(100, "ubar/jset/0"), (200, "ubar/jin/0")] {
            let mut cell = Cell::with_machines(1);
            let mut set = job("jset", 1, priority);
            set.kind = JobKind::AllocSet;
            set.task.limits = all(20);
            cell.submit(&set);
            cell.run("jset", 0, "m1");
            report_pressure(&mut cell, report(1));
            assert_eq!(next(&cell), None, "nobody uses anything");
            report_pressure(&mut cell, vec![]);
            let mut inner = job("jin", 1, 100);
            inner.alloc_set = Some(key("ubar/jset"));
            cell.submit(&inner);
            let alloc = cell.task_id("jset", 0);
            cell.run_in("jin", 0, "m1", Some(alloc));
            report_pressure(&mut cell, report(1));
            assert_eq!(next(&cell).as_deref(), Some(leaves));
            let job = leaves.split('/').nth(1).unwrap();
            assert_eq!(evict_for_pressure(&mut cell, job), "done");
        }
    }
}
