//! Machines are added, changed, lost and removed (B1, B24). Commands of operators need the right to
//! manage machines; an agent reports for its own machine.
//!
//! When a machine is lost its tasks go back to pending at once. Waiting for the machine to return
//! was rejected: nobody knows whether it will, and the orders of a returning agent are to kill what
//! has been placed elsewhere. Only tasks of `at_most_one` jobs wait, until their lease has surely
//! run out on a machine that can no longer be reached.

use super::Context;
use crate::admit;
use crate::command::{Done, Verdict};
use crate::credential::PartKind;
use crate::event::{EventKind, MachineChange, TaskChange};
use crate::id::{MachineId, TaskId};
use crate::machine::{
    MAX_CELL_CAPACITY, MAX_MACHINES, MAX_PACKAGES, Machine, MachineSpec, MachineStatus,
};
use crate::name::Name;
use crate::reason::{Allowed, Given, Object, Reason, Rejection, Storage};
use crate::resource::Resources;
use crate::spec::PackageRef;
use crate::state::State;
use crate::task::{StopCause, TaskState};
use crate::time::{Span, Time};
use std::collections::BTreeSet;

/// Added to the lease of an `at_most_one` task whose machine was lost: covers the difference
/// between the machine's clock and log time.
pub const LEASE_MARGIN: Span = Span::seconds(5);

/// Tasks on a machine that is up end at once when it is removed, without notice and disregarding
/// disruption budgets. This must be requested explicitly.
fn check_no_tasks(state: &State, name: &Name) -> Result<(), Rejection> {
    let Some(machine) = state.machine_named(name) else { return Ok(()) };
    let is_up = state.machines().get(machine).is_some_and(|row| row.status == MachineStatus::Up);
    let tasks = state.machine_load(machine).map_or(0, |load| load.tasks.len());
    if is_up && tasks > 0 {
        Err(Rejection::HoldsTasks { machine: name.clone(), tasks: tasks as u32 })
    } else {
        Ok(())
    }
}

impl Context<'_> {
    /// A new machine is down until its agent reports.
    pub(super) fn add_machine(&mut self, spec: &MachineSpec) -> Verdict {
        admit::check_machine(spec)?;
        if let Some(old) = self.state.machine_named(&spec.name) {
            let same = self.state.machines.get(old).is_some_and(|m| m.spec == *spec);
            return if same {
                Ok(Done::Unchanged)
            } else {
                Err(Rejection::Exists(Object::Machine(spec.name.clone())))
            };
        }
        if self.state.machines.slots() >= MAX_MACHINES {
            return Err(Rejection::Full(Storage::Machines));
        }
        self.check_cell_capacity(Resources::ZERO, spec.capacity)?;
        let machine = self.state.insert_machine(Machine {
            spec: spec.clone(),
            status: MachineStatus::Down,
            draining: false,
            drain_by: None,
            incarnation: 0,
            generation: 0,
            packages: BTreeSet::new(),
            retained: Vec::new(),
            over_committed: false,
            resource_pressure: Vec::new(),
            since: self.now,
        });
        self.machine_event(machine, MachineChange::Added, Reason::Requested);
        self.lift_revocation(PartKind::Agent, &spec.name);
        Ok(Done::Applied)
    }

    /// Whether the sum over the cell stays exact when one machine's capacity changes.
    fn check_cell_capacity(&self, old: Resources, new: Resources) -> Result<(), Rejection> {
        let total = self.state.capacity.minus(old).plus(new).to_array();
        if total.iter().all(|amount| *amount <= MAX_CELL_CAPACITY) {
            Ok(())
        } else {
            Err(Rejection::Full(Storage::Capacity))
        }
    }

    /// An update that shrinks a machine below what is held on it, or replaces a device by one its
    /// holder did not ask for, is not rejected: it describes a fact. The excess is flagged when the
    /// command settles.
    pub(super) fn update_machine(&mut self, spec: &MachineSpec, expect: Option<u32>) -> Verdict {
        admit::check_machine(spec)?;
        let (machine, row) = self.machine_by_name(&spec.name)?;
        if row.spec == *spec {
            return Ok(Done::Unchanged);
        }
        Self::check_expected(|| Object::Machine(spec.name.clone()), row.generation, expect)?;
        let old = row.spec.capacity;
        self.check_cell_capacity(old, spec.capacity)?;
        self.state.edit_machine(machine, |m| {
            m.spec = spec.clone();
            m.generation = m.generation.saturating_add(1);
        });
        self.touched.push(machine);
        self.machine_event(machine, MachineChange::Updated, Reason::Requested);
        Ok(Done::Applied)
    }

    /// After the removal the prod quota sold may exceed the cell: the operator has to settle that;
    /// it is no reason to keep a machine that is gone. Its agent is revoked.
    pub(super) fn remove_machine(&mut self, name: &Name, expect: Option<u32>) -> Verdict {
        let (machine, row) = self.machine_by_name(name)?;
        Self::check_expected(|| Object::Machine(name.clone()), row.generation, expect)?;
        self.forget_machine(machine);
        self.lose_tasks(machine, &Reason::MachineRemoved);
        self.state.remove_machine(machine);
        self.machine_event(machine, MachineChange::Removed, Reason::Requested);
        self.add_revocation(PartKind::Agent, name);
        Ok(Done::Applied)
    }

    /// As [`Context::remove_machine`], but rejected if the machine has tasks.
    pub(super) fn remove_empty_machine(&mut self, name: &Name, expect: Option<u32>) -> Verdict {
        check_no_tasks(self.state, name)?;
        self.remove_machine(name, expect)
    }

    /// An agent is connected. A higher incarnation means a restart: tasks of the earlier one are
    /// lost.
    pub(super) fn machine_up(&mut self, machine: MachineId, incarnation: u64) -> Verdict {
        let row = self.machine_row(machine)?;
        let (found, up) = (row.incarnation, row.status == MachineStatus::Up);
        if incarnation < found {
            let machine = row.spec.name.clone();
            return Err(Rejection::StaleIncarnation { machine, reported: incarnation, found });
        }
        if incarnation == found && up {
            return Ok(Done::Unchanged);
        }
        self.lose_tasks(machine, &Reason::MachineDown);
        let now = self.now;
        self.state.edit_machine(machine, |m| {
            m.status = MachineStatus::Up;
            m.since = now;
            m.incarnation = incarnation;
            m.resource_pressure.clear();
            m.generation = m.generation.saturating_add(1);
        });
        self.machine_event(machine, MachineChange::Up { incarnation }, Reason::AgentReport);
        Ok(Done::Applied)
    }

    pub(super) fn machine_down(&mut self, machine: MachineId) -> Verdict {
        if self.machine_row(machine)?.status == MachineStatus::Down {
            return Ok(Done::Unchanged);
        }
        let now = self.now;
        self.state.edit_machine(machine, |m| {
            m.status = MachineStatus::Down;
            m.since = now;
            m.resource_pressure.clear();
            m.generation = m.generation.saturating_add(1);
        });
        self.machine_event(machine, MachineChange::Down, Reason::MachineDown);
        self.lose_tasks(machine, &Reason::MachineDown);
        Ok(Done::Applied)
    }

    pub(super) fn set_packages(
        &mut self,
        machine: MachineId,
        packages: &BTreeSet<PackageRef>,
    ) -> Verdict {
        if packages.len() > MAX_PACKAGES {
            let (value, allowed) =
                (Given::entries(packages.len()), Allowed::AtMost(MAX_PACKAGES as u64));
            return Err(Rejection::bad_field("packages", value, allowed));
        }
        if self.machine_row(machine)?.packages == *packages {
            return Ok(Done::Unchanged);
        }
        self.state.edit_machine(machine, |m| m.packages = packages.clone());
        self.machine_event(machine, MachineChange::PackagesChanged, Reason::AgentReport);
        Ok(Done::Applied)
    }

    pub(super) fn machine_event(
        &mut self,
        machine: MachineId,
        change: MachineChange,
        reason: Reason,
    ) {
        self.emit(EventKind::Machine { machine, change }, reason);
    }

    pub(crate) fn machine_row(&self, machine: MachineId) -> Result<&Machine, Rejection> {
        let row = self.state.machines.get(machine);
        row.ok_or_else(|| Rejection::NoSuchRow(machine.into()))
    }

    pub(super) fn machine_by_name(&self, name: &Name) -> Result<(MachineId, &Machine), Rejection> {
        let machine = self.state.machine_named(name);
        let found = machine.and_then(|id| Some((id, self.state.machines.get(id)?)));
        found.ok_or_else(|| Rejection::NoSuchMachine(name.clone()))
    }

    /// All tasks on the machine are lost. Inner tasks first: an alloc that leaves would report
    /// those still inside as moved, and their leases would be disregarded.
    fn lose_tasks(&mut self, machine: MachineId, reason: &Reason) {
        self.release_reserved_on(machine, reason);
        let Some(load) = self.state.machine_load(machine) else { return };
        let mut tasks = load.tasks.clone();
        let inner = |id: &TaskId| self.state.tasks.get(*id).is_some_and(|t| t.alloc().is_some());
        tasks.sort_by_key(|id| (!inner(id), *id));
        for task in tasks {
            self.lose_task(task, machine, reason);
        }
    }

    /// A task that was killed is dead; any other, stopping or not, goes back to pending.
    pub(super) fn lose_task(&mut self, id: TaskId, machine: MachineId, reason: &Reason) {
        let Some(task) = self.state.tasks.get(id).cloned() else { return };
        let lease = self.state.spec_of(&task).and_then(|spec| spec.at_most_one);
        let not_before = match lease {
            Some(lease) => self.now.plus(lease).plus(LEASE_MARGIN),
            None => Time::ZERO,
        };
        // On the row even if it dies here: a job that reuses its name has to wait as long.
        self.set_task(id, |t| t.not_before = not_before);
        self.record_end(id, machine, reason.clone());
        if task.state == TaskState::Stopping(StopCause::Killed) {
            return self.task_stopped(id);
        }
        if task.state.holds_resources() {
            // Not holding any more, so that `requeue` has nothing left to release.
            self.set_task(id, |t| t.state = TaskState::Stopping(StopCause::Killed));
            if *reason != Reason::MachineRemoved {
                self.retain_disk(id, &task, machine);
            }
        }
        self.requeue(id, TaskChange::Lost { machine }, reason.clone(), not_before);
    }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, all, job, key, machine, name};
    use crate::command::{Command, Done, Observed};
    use crate::device::{Device, DeviceRequest};
    use crate::id::MachineId;
    use crate::job_size::JobSize;
    use crate::machine::{MachineSpec, MachineStatus};
    use crate::name::Token;
    use crate::reason::Rejection;
    use crate::spec::{JobKind, RetainDisk};
    use crate::task::{TaskOutcome, TaskState};
    use crate::time::{Span, Time};
    use crate::words;
    use std::collections::BTreeSet;

    const M1: MachineId = MachineId(0);

    /// One command on a cell in which `m1` is up in its first life.
    fn check(command: Command, want: &str) {
        let mut cell = Cell::with_machines(1);
        let verdict = cell.send(command);
        assert_eq!(words::verdict(&cell.state, &verdict), want);
    }

    fn up(incarnation: u64) -> Command {
        Command::MachineUp { machine: M1, incarnation }
    }

    #[test]
    fn commands_on_machines() {
        check(Command::AddMachine(machine("m2", 100)), "done");
        check(Command::AddMachine(machine("m1", 100)), "nothing to do");
        check(Command::AddMachine(machine("m1", 99)), "refused: machine m1 exists already");
        check(Command::UpdateMachine { spec: machine("m1", 99), expect: None }, "done");
        check(Command::UpdateMachine { spec: machine("m1", 100), expect: None }, "nothing to do");
        let none = "refused: there is no machine m7";
        check(Command::UpdateMachine { spec: machine("m7", 100), expect: None }, none);
        check(Command::RemoveMachine { name: name("m1"), expect: None }, "done");
        check(Command::RemoveMachine { name: name("m7"), expect: None }, none);
        check(Command::StartDrain { name: name("m1"), expect: None }, "done");
        check(Command::StopDrain { name: name("m1"), expect: None }, "nothing to do");
        check(Command::StartDrain { name: name("m7"), expect: None }, none);
        check(up(1), "nothing to do");
        check(up(2), "done");
        let stale = "refused: machine m1 is at incarnation 1, the report is of 0";
        check(up(0), stale);
        check(Command::MachineDown { machine: M1 }, "done");
        let no_row = "refused: there is no such row: machine 7";
        check(Command::MachineDown { machine: MachineId(7) }, no_row);
        let packages = BTreeSet::new();
        check(Command::SetMachinePackages { machine: M1, packages }, "nothing to do");
    }

    #[test]
    fn a_new_machine_is_down_and_every_change_of_spec_or_status_counts() {
        let mut cell = Cell::default();
        cell.ok(Command::AddMachine(machine("m1", 100)));
        let row = |cell: &Cell| {
            let row = cell.state.machines().get(M1).unwrap();
            (row.status, row.draining, row.incarnation, row.generation)
        };
        assert_eq!(row(&cell), (MachineStatus::Down, false, 0, 0));
        cell.ok(up(3));
        assert_eq!(row(&cell), (MachineStatus::Up, false, 3, 1));
        cell.ok(Command::StartDrain { name: name("m1"), expect: None });
        cell.ok(Command::UpdateMachine { spec: machine("m1", 50), expect: None });
        cell.ok(Command::MachineDown { machine: M1 });
        assert_eq!(row(&cell), (MachineStatus::Down, true, 3, 4));
        cell.ok(up(3));
        assert_eq!(row(&cell), (MachineStatus::Up, true, 3, 5));
    }

    /// What becomes of a running, a killed and an unhealthy task when their machine is lost.
    fn check_lost(lose: Command) {
        let mut cell = Cell::with_machines(2);
        let mut leased = job("jfoo", 2, 100);
        leased.at_most_one = Some(Span::seconds(30));
        cell.submit(&leased);
        cell.submit(&job("jbar", 2, 100));
        for (job, index) in [("jfoo", 0), ("jfoo", 1), ("jbar", 0), ("jbar", 1)] {
            cell.run(job, index, "m1");
        }
        cell.report("jfoo", 1, Observed::Unhealthy);
        cell.ok(Command::ResizeJob {
            job: key("ubar/jbar"),
            size: JobSize::tasks(1),
            expect: None,
        });
        assert_eq!(cell.ok(lose.clone()), Done::Applied, "{lose:?}");
        assert_eq!(cell.states("jfoo"), [TaskState::Pending; 2], "{lose:?}");
        let killed = TaskState::Dead(TaskOutcome::Killed);
        assert_eq!(cell.states("jbar"), [TaskState::Pending, killed], "{lose:?}");
        let lease_over = Time(cell.now).plus(Span::seconds(30)).plus(super::LEASE_MARGIN);
        for index in [0, 1] {
            assert_eq!(cell.task("jfoo", index).not_before, lease_over, "{lose:?}");
        }
        assert_eq!(cell.task("jbar", 0).not_before, Time::ZERO, "{lose:?}");
        // Nothing is lost twice, and elsewhere it runs again.
        cell.run("jbar", 0, "m2");
    }

    #[test]
    fn a_lost_machine_gives_its_tasks_back() {
        check_lost(Command::MachineDown { machine: M1 });
        check_lost(Command::RemoveMachine { name: name("m1"), expect: None });
        check_lost(up(2));
    }

    #[test]
    fn whoever_removes_an_empty_machine_spares_what_was_placed_meanwhile() {
        let mut cell = Cell::with_machines(2);
        cell.submit(&job("jfoo", 2, 100));
        let remove = || Command::RemoveEmptyMachine { name: name("m1"), expect: None };
        // Placed after the check for tasks.
        cell.run("jfoo", 0, "m1");
        let held = "machine m1 is up with 1 task on it, which would end at once";
        assert_eq!(cell.rejection_text(remove()), held);
        cell.run("jfoo", 1, "m1");
        assert!(cell.rejection_text(remove()).contains("m1 is up with 2 tasks on it"));
        assert!(matches!(cell.send_as("ubar", remove()), Err(Rejection::NotAllowed { .. })));
        assert!(cell.states("jfoo").iter().all(|state| state.holds_resources()));
        // A machine that is down holds nothing any more; a missing one is reported as missing.
        cell.ok(Command::MachineDown { machine: M1 });
        assert_eq!(cell.ok(remove()), Done::Applied);
        assert_eq!(cell.rejection_text(remove()), "there is no machine m1");
        let empty = |expect| Command::RemoveEmptyMachine { name: name("m2"), expect };
        assert!(cell.rejection_text(empty(Some(7))).contains("is at version 1, not 7"));
        assert_eq!(cell.ok(empty(Some(1))), Done::Applied);
    }

    #[test]
    fn a_lost_alloc_takes_its_tasks_along_and_leaves_its_disk_unless_the_machine_is_gone() {
        for (lose, kept) in [
            (Command::MachineDown { machine: M1 }, Some(5)),
            (Command::RemoveMachine { name: name("m1"), expect: None }, None),
        ] {
            let mut cell = Cell::with_machines(1);
            let mut set = job("jset", 1, 100);
            set.kind = JobKind::AllocSet;
            set.retain_disk =
                Some(RetainDisk { bytes: 5, keep: Span::seconds(60), log_saver: None });
            cell.submit(&set);
            let mut inner = job("jfoo", 1, 100);
            inner.alloc_set = Some(key("ubar/jset"));
            cell.submit(&inner);
            cell.run("jset", 0, "m1");
            let alloc = cell.task_id("jset", 0);
            cell.run_in("jfoo", 0, "m1", Some(alloc));
            cell.ok(lose);
            assert_eq!(cell.states("jset"), [TaskState::Pending]);
            assert_eq!(cell.states("jfoo"), [TaskState::Pending]);
            let lost = cell.event_lines.iter().filter(|line| line.contains("lost")).count();
            assert!(lost >= 2, "{:?}", cell.event_lines);
            assert_eq!(cell.state.machine_load(M1).map(|load| load.reserved.disk), kept);
        }
    }

    /// A spec that takes something away flags the machine; giving it back clears the flag.
    fn check_excess(before: &MachineSpec, after: &MachineSpec) {
        let mut cell = Cell::with_machines(0);
        cell.ok(Command::AddMachine(before.clone()));
        cell.ok(up(1));
        let mut spec = job("jfoo", 2, 100);
        if !before.devices.is_empty() {
            let kind = Token::new("gpu").unwrap();
            spec.task.devices = vec![DeviceRequest { kind, models: vec![], count: 1, milli: 600 }];
        }
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        cell.run("jfoo", 1, "m1");
        let flagged = |cell: &Cell| cell.state.machines().get(M1).unwrap().over_committed;
        cell.ok(Command::UpdateMachine { spec: after.clone(), expect: None });
        assert!(flagged(&cell), "{after:?}");
        assert_eq!(cell.event_lines.len(), 2);
        cell.ok(Command::UpdateMachine { spec: before.clone(), expect: None });
        assert!(!flagged(&cell), "{before:?}");
    }

    #[test]
    fn a_machine_that_shrinks_below_what_it_holds_is_flagged() {
        let whole = machine("m1", 100);
        check_excess(&whole, &machine("m1", 19));
        let narrow = MachineSpec {
            capacity: crate::resource::Resources { ram: 19, ..all(100) },
            ..whole.clone()
        };
        check_excess(&whole, &narrow);
        let token = |text| Token::new(text).unwrap();
        let gpu = Device { kind: token("gpu"), model: token("a") };
        let with = |count| MachineSpec { devices: vec![gpu.clone(); count], ..whole.clone() };
        check_excess(&with(2), &with(1));
    }
}
