//! Reservations on a second machine (B3): the system reserves room on the target of a move, and
//! releases it.
//!
//! A reservation is weaker than any running task. It takes no task's room, and it is released at
//! once when its task no longer runs as it did, when its machine is lost, drained or
//! over-committed, and when the alloc it is in leaves: releasing it disrupts no task, so it needs
//! no budget and no controller. In which of two holds a task runs never changes here.
//!
//! Rejected: reservations as victims of plans. A plan would have to say which hold of a task it
//! means, and all it would gain is the room of a move that is over in seconds.

use super::Context;
use crate::command::{Done, Verdict};
use crate::event::TaskChange;
use crate::fit::{self, Candidate};
use crate::hold::{Hold, HoldRole};
use crate::id::{MachineId, TaskId};
use crate::plan::Assignment;
use crate::reason::{Conflict, Reason, Rejection, TaskAction};
use crate::spec::JobKind;
use crate::task::{Grant, Task, TaskState};
use std::sync::Arc;

impl Context<'_> {
    /// Reserves room for a running task on one more machine, under the spec it runs.
    pub(super) fn reserve_hold(&mut self, target: &Assignment) -> Verdict {
        let Assignment { task, attempt, machine, alloc, ports, devices } = target;
        let row = self.task_at_attempt(*task, *attempt)?;
        let place = self.machine_row(*machine)?;
        let (flagged, name) = (place.over_committed, place.spec.name.clone());
        let wrong = |action: TaskAction| {
            let (task, state) = (*task, row.state);
            Err(Rejection::WrongTaskState { task, state, action })
        };
        if row.state != TaskState::Running {
            return wrong(TaskAction::Hold);
        }
        let grant = new_grant(ports, devices);
        let wanted = Hold { machine: *machine, alloc: *alloc, grant };
        match row.holds.on(*machine) {
            Some((HoldRole::Primary, _)) => {
                return wrong(TaskAction::HoldWhereItRuns);
            }
            Some((HoldRole::Reserved, held)) if *held == wanted => return Ok(Done::Unchanged),
            _ if row.holds.reserved().is_some() => {
                return wrong(TaskAction::SecondHold);
            }
            _ => {}
        }
        let Some(spec) = self.task_spec(&row) else {
            return Err(Rejection::NoSuchRow(row.job.into()));
        };
        if spec.kind == JobKind::AllocSet {
            return wrong(TaskAction::HoldOfAlloc);
        }
        let candidate = Candidate { task: &row, spec: &spec };
        if let Some(infeasible) = fit::infeasible_reason(self.state, &candidate, *machine, *alloc) {
            return Err(Rejection::DoesNotFit { task: *task, machine: *machine, infeasible });
        }
        self.check_ports_and_devices(target, &spec)?;
        // It may be over-committed in another dimension: then the reservation would be released at
        // once.
        if flagged {
            return Err(Rejection::WrongState(Conflict::HoldsTooMuch(name)));
        }
        self.edit_holds(*task, |row| row.holds.reserve(wanted));
        let change = TaskChange::HoldReserved { machine: *machine };
        self.task_event(*task, change, Reason::Requested);
        Ok(Done::Applied)
    }

    /// Releases the reservation on `machine`. Does nothing if it is released already: the loss of
    /// the machine may have come first.
    pub(super) fn release_hold(
        &mut self,
        task: TaskId,
        attempt: u32,
        machine: MachineId,
    ) -> Verdict {
        let row = self.task_at_attempt(task, attempt)?;
        match row.holds.on(machine) {
            None => Ok(Done::Unchanged),
            Some((HoldRole::Reserved, _)) => {
                self.release_reserved(task, &Reason::Requested);
                Ok(Done::Applied)
            }
            Some((HoldRole::Primary, _)) => {
                let action = TaskAction::Release;
                Err(Rejection::WrongTaskState { task, state: row.state, action })
            }
        }
    }

    /// Releases the reservation of a task, if it has one.
    pub(super) fn release_reserved(&mut self, task: TaskId, reason: &Reason) {
        let row = self.state.tasks.get(task);
        let Some(machine) = row.and_then(|row| row.holds.reserved()).map(|hold| hold.machine)
        else {
            return;
        };
        self.edit_holds(task, |row| {
            row.holds.release_reserved();
        });
        self.task_event(task, TaskChange::HoldReleased { machine }, reason.clone());
    }

    /// Releases all reservations on a machine that is lost or drained.
    pub(super) fn release_reserved_on(&mut self, machine: MachineId, reason: &Reason) {
        let load = self.state.machine_load(machine);
        let held_for = load.map_or_else(Vec::new, |load| load.held_for.clone());
        held_for.into_iter().for_each(|task| self.release_reserved(task, reason));
    }

    /// Releases all reservations in an alloc that leaves.
    pub(super) fn release_reserved_in(&mut self, alloc: TaskId) {
        let load = self.state.alloc_load(alloc);
        let held_for = load.map_or_else(Vec::new, |load| load.held_for.clone());
        held_for.into_iter().for_each(|task| self.release_reserved(task, &Reason::AllocMoved));
    }

    /// On an over-committed machine reservations are released before any running task has to leave:
    /// the lowest priority first, and no more of them than needed.
    pub(super) fn release_for_excess(&mut self, machine: MachineId) {
        loop {
            let row = self.state.machines.get(machine).zip(self.state.machine_load(machine));
            let Some((_, load)) = row.filter(|(row, load)| load.exceeds(row)) else { return };
            let priority = |task: &TaskId| {
                let row = self.state.tasks.get(*task)?;
                Some((self.state.spec_of(row)?.priority, *task))
            };
            let Some((_, task)) = load.held_for.iter().filter_map(priority).min() else { return };
            self.release_reserved(task, &Reason::Excess);
        }
    }

    /// Changes a task's reservation. The row is not stamped: the task keeps running as it did.
    fn edit_holds(&mut self, task: TaskId, change: impl FnOnce(&mut Task)) {
        self.touch_machines(task);
        self.state.edit_task(task, change);
        self.touch_machines(task);
    }
}

/// The ports and devices of a hold. A task that starts there waits for the tasks that are leaving;
/// a reservation does not.
fn new_grant(ports: &[u16], devices: &[crate::device::DeviceGrant]) -> Option<Arc<Grant>> {
    let nothing = ports.is_empty() && devices.is_empty();
    let (ports, devices, waits_for) = (ports.to_vec(), devices.to_vec(), Vec::new());
    (!nothing).then(|| Arc::new(Grant { ports, devices, waits_for }))
}

#[cfg(test)]
mod tests {
    use crate::alloc_pairing::AllocPairing;
    use crate::apply::fixture::{Cell, all, job, key, machine, name};
    use crate::bounds::Bounds;
    use crate::command::{Command, Done, EvictCause, Observed, ReservationChange};
    use crate::desired::{desired_tasks, retained_tasks};
    use crate::device::{Device, DeviceRequest};
    use crate::encode;
    use crate::fit;
    use crate::id::{MachineId, TaskId};
    use crate::load::MachineLoad;
    use crate::name::Token;
    use crate::observed::differences;
    use crate::plan::{Assignment, Group, Plan, Victim};
    use crate::priority::Band;
    use crate::spec::{Domain, JobKind, JobSpec, SpreadLimit};
    use crate::task::{StopCause, TaskState};
    use crate::words;

    const M1: MachineId = MachineId(0);
    const M2: MachineId = MachineId(1);

    /// A reservation for a running task on `machine`, with the ports and devices that are free
    /// there.
    fn target(cell: &Cell, job: &str, machine: MachineId, alloc: Option<TaskId>) -> Command {
        let (task, row) = (cell.task_id(job, 0), cell.task(job, 0));
        let spec = cell.state.spec_of(row).unwrap();
        let place = cell.state.machines().get(machine).unwrap();
        let load = cell.state.machine_load(machine).unwrap();
        let ports = fit::choose_ports(spec, place, load);
        let devices = fit::choose_devices(&place.spec.devices, load, &spec.task.devices);
        let (attempt, devices) = (row.attempt, devices.unwrap_or_default());
        Command::ReserveHold(Assignment { task, attempt, machine, alloc, ports, devices })
    }

    fn reserve(cell: &mut Cell, job: &str, machine: MachineId) {
        let command = target(cell, job, machine, None);
        assert_eq!(cell.ok(command), Done::Applied);
    }

    fn release(cell: &Cell, job: &str, machine: MachineId) -> Command {
        let (task, attempt) = (cell.task_id(job, 0), cell.task(job, 0).attempt);
        Command::ReleaseHold { task, attempt, machine }
    }

    fn load(cell: &Cell, machine: MachineId) -> MachineLoad {
        cell.state.machine_load(machine).unwrap().clone()
    }

    /// `jfoo/0` on `m1` with room on `m2`, of `machines` of them.
    fn cell(machines: u32, shape: impl Fn(&mut JobSpec)) -> Cell {
        let mut cell = Cell::with_machines(machines);
        let mut spec = job("jfoo", 1, 100);
        shape(&mut spec);
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        reserve(&mut cell, "jfoo", M2);
        cell
    }

    fn is_held(cell: &Cell) -> bool {
        cell.task("jfoo", 0).holds.reserved().is_some()
    }

    #[test]
    fn a_reservation_counts_on_its_machine_like_a_task_and_once_for_quota() {
        let token = |text| Token::new(text).unwrap();
        let gpu = Device { kind: token("gpu"), model: token("a") };
        let mut cell = Cell::with_machines(0);
        for (number, machine_name) in ["m1", "m2"].into_iter().enumerate() {
            let mut spec = machine(machine_name, 100);
            spec.devices = vec![gpu.clone()];
            spec.rack = Some(token("r1"));
            cell.ok(Command::AddMachine(spec));
            let machine = MachineId(number as u32);
            cell.ok(Command::MachineUp { machine, incarnation: 1 });
        }
        cell.grant("ubar", Band::Production, 100);
        let mut spec = job("jfoo", 2, 200);
        (spec.task.static_ports, spec.task.ports) = (vec![80], 1);
        let request = DeviceRequest { kind: token("gpu"), models: vec![], count: 1, milli: 600 };
        spec.task.devices = vec![request];
        spec.spread = vec![SpreadLimit { domain: Domain::Rack, limit: 2 }];
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        let charged = cell.charged(Band::Production);
        let empty = load(&cell, M2);
        reserve(&mut cell, "jfoo", M2);
        let (first, second) = (load(&cell, M1), load(&cell, M2));
        let id = cell.task_id("jfoo", 0);
        assert_eq!((&second.tasks[..], &second.held_for[..]), (&[][..], &[id][..]));
        let same = MachineLoad { tasks: vec![], held_for: vec![id], ..first };
        assert_eq!(second, same, "what it holds where it runs, it holds there");
        assert_eq!((second.holder_count(), second.ports.len()), (1, 2));
        assert_eq!(cell.charged(Band::Production), charged);
        // The rack is full with two holds of one task; the port and the device are taken.
        let other = fit::Candidate::of(&cell.state, cell.task_id("jfoo", 1)).unwrap();
        let infeasible = fit::infeasible_reason(&cell.state, &other, M2, None).unwrap();
        assert_eq!(infeasible.code(), "spread");
        let sums = second.prod_limits;
        let again = encode::load(&encode::save(&cell.state)).unwrap();
        assert_eq!(again.machine_load(M2).unwrap().prod_limits, sums);
        assert_eq!(again.tasks().get(id), cell.state.tasks().get(id));
        let let_go = release(&cell, "jfoo", M2);
        cell.ok(let_go);
        assert_eq!(load(&cell, M2), empty);
    }

    #[test]
    fn a_reservation_is_refused_like_a_placement() {
        let check = |prepare: fn(&mut Cell), want: &str| {
            let mut cell = Cell::with_machines(2);
            cell.submit(&job("jfoo", 1, 100));
            cell.run("jfoo", 0, "m1");
            prepare(&mut cell);
            let command = target(&cell, "jfoo", M2, None);
            let verdict = cell.send(command);
            assert_eq!(words::verdict(&cell.state, &verdict), want);
        };
        check(|_| {}, "done");
        let full = |cell: &mut Cell| {
            let mut big = job("jbig", 1, 200);
            big.task.limits = all(91);
            cell.submit(&big);
            cell.run("jbig", 0, "m2");
        };
        let short = "refused: ubar/jfoo/0 does not fit on m2: cpu: asked 0.01 cores, available \
                     0.009 cores, short by 0.001 cores";
        check(full, short);
        let drain = |cell: &mut Cell| {
            cell.ok(Command::StartDrain { name: name("m2"), expect: None });
        };
        check(drain, "refused: ubar/jfoo/0 does not fit on m2: the machine is draining");
        let crowded = |cell: &mut Cell| {
            cell.submit(&job("jone", 1, 100));
            cell.run("jone", 0, "m2");
            cell.ok(Command::SetBounds(Bounds { machine_tasks: 1, ..Bounds::default() }));
        };
        let many = "refused: ubar/jfoo/0 does not fit on m2: the machine has as many tasks as it \
                    may: 1";
        check(crowded, many);
        let stop = |cell: &mut Cell| {
            cell.ok(Command::StopJob { job: key("ubar/jfoo"), expect: None });
        };
        check(
            stop,
            "refused: ubar/jfoo/0 is stopping, which does not allow a reservation elsewhere: only \
             running tasks move",
        );
    }

    #[test]
    fn nothing_is_reserved_where_too_much_is_held_of_something_else() {
        let mut cell = Cell::with_machines(2);
        let mut spec = job("jfoo", 1, 100);
        spec.task.limits.cpu = 0;
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        cell.submit(&job("jhere", 1, 100));
        cell.run("jhere", 0, "m2");
        let mut small = machine("m2", 100);
        small.capacity.cpu = 9;
        cell.ok(Command::UpdateMachine { spec: small, expect: None });
        let command = target(&cell, "jfoo", M2, None);
        assert_eq!(cell.rejection_text(command), "not possible while machine m2 holds too much");
    }

    #[test]
    fn ports_of_a_reservation_are_what_the_spec_asks_for() {
        let mut cell = Cell::with_machines(2);
        let mut spec = job("jfoo", 1, 100);
        spec.task.ports = 1;
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        let Command::ReserveHold(mut wrong) = target(&cell, "jfoo", M2, None) else { panic!() };
        wrong.ports = vec![];
        let message = cell.rejection_text(Command::ReserveHold(wrong.clone()));
        assert!(message.contains("assignment.ports"), "{message}");
        wrong.machine = MachineId(9);
        let message = cell.rejection_text(Command::ReserveHold(wrong));
        assert_eq!(message, "there is no such row: machine 9");
        let commands = [target(&cell, "jfoo", M2, None), release(&cell, "jfoo", M2)];
        for command in commands {
            assert!(cell.send_as("ubar", command).is_err(), "this is for the system alone");
        }
    }

    #[test]
    fn the_machine_of_a_reservation_is_told_nothing_and_asked_nothing() {
        let mut cell = cell(2, |spec| {
            let keep = crate::time::Span::seconds(60);
            spec.retain_disk = Some(crate::spec::RetainDisk { bytes: 1, keep, log_saver: None });
        });
        assert_eq!(desired_tasks(&cell.state, M1).len(), 1);
        assert_eq!(desired_tasks(&cell.state, M2), []);
        assert_eq!(retained_tasks(&cell.state, M2), []);
        assert_eq!(differences(&cell.state, M2, 1, &[]), []);
        let task = cell.task_id("jfoo", 0);
        let reports =
            vec![crate::command::TaskReport { task, attempt: 1, what: Observed::Started }];
        let command = Command::TaskReports { machine: M2, incarnation: 1, reports };
        let verdict = cell.send(command);
        let said = words::verdict(&cell.state, &verdict);
        assert!(said.contains("a report from another machine"), "{said}");
    }

    /// What ends a reservation, and whether the task keeps running where it is.
    #[test]
    fn a_reservation_ends_with_its_reason() {
        let check = |end: fn(&mut Cell), runs: bool, why: &str| {
            let mut cell = cell(3, |_| {});
            end(&mut cell);
            assert!(!is_held(&cell), "{why}");
            assert_eq!(load(&cell, M2).held_for, [], "{why}");
            let released_line =
                cell.event_lines.iter().find(|said| said.contains("holds no room on m2"));
            let want = format!("ubar/jfoo/0 holds no room on m2 any more: {why}");
            assert_eq!(released_line, Some(&want), "{:?}", cell.event_lines);
            assert_eq!(cell.task("jfoo", 0).state == TaskState::Running, runs, "{why}");
        };
        let let_go = |cell: &mut Cell| {
            let command = release(cell, "jfoo", M2);
            cell.ok(command);
        };
        check(let_go, true, "requested");
        let no_longer_runs = "the task it is for does not run as it did";
        let down: [fn(&mut Cell); 2] = [
            |cell| drop(cell.ok(Command::MachineDown { machine: M1 })),
            |cell| drop(cell.ok(Command::MachineDown { machine: M2 })),
        ];
        check(down[0], false, no_longer_runs);
        check(down[1], true, "the machine is down");
        let reboot = |cell: &mut Cell| {
            cell.ok(Command::MachineUp { machine: M2, incarnation: 2 });
        };
        check(reboot, true, "the machine is down");
        let remove = |cell: &mut Cell| {
            cell.ok(Command::RemoveMachine { name: name("m1"), expect: None });
        };
        check(remove, false, no_longer_runs);
        let drain = |cell: &mut Cell| {
            cell.ok(Command::StartDrain { name: name("m2"), expect: None });
        };
        check(drain, true, "the machine is drained");
        let shrink = |cell: &mut Cell| {
            cell.ok(Command::UpdateMachine { spec: machine("m2", 9), expect: None });
        };
        check(shrink, true, "more is held than there is");
        check(|cell| cell.report("jfoo", 0, Observed::Finished), false, no_longer_runs);
        check(|cell| cell.report("jfoo", 0, Observed::Unhealthy), false, no_longer_runs);
        let stop = |cell: &mut Cell| {
            cell.ok(Command::StopJob { job: key("ubar/jfoo"), expect: None });
        };
        check(stop, false, no_longer_runs);
        let evict = |cell: &mut Cell| {
            let (task, cause) = (cell.task_id("jfoo", 0), EvictCause::Rebalance);
            cell.ok(Command::Evict { task, attempt: 1, cause });
        };
        check(evict, false, no_longer_runs);
        let update = |cell: &mut Cell| {
            let mut spec = job("jfoo", 1, 100);
            spec.max_down = Some(1);
            cell.ok(Command::UpdateJob { owner: name("ubar"), spec: Box::new(spec), expect: None });
        };
        check(update, true, no_longer_runs);
    }

    #[test]
    fn reservations_go_before_who_runs_and_no_more_than_needed() {
        let mut cell = Cell::with_machines(2);
        for (name, priority) in [("jlow", 100), ("jhigh", 110)] {
            let mut spec = job(name, 1, priority);
            spec.task.limits = all(30);
            cell.submit(&spec);
            cell.run(name, 0, "m1");
            reserve(&mut cell, name, M2);
        }
        let mut here = job("jhere", 1, 100);
        here.task.limits = all(40);
        cell.submit(&here);
        cell.run("jhere", 0, "m2");
        cell.ok(Command::UpdateMachine { spec: machine("m2", 75), expect: None });
        assert!(cell.task("jlow", 0).holds.reserved().is_none());
        assert!(cell.task("jhigh", 0).holds.reserved().is_some());
        assert!(!cell.state.machines().get(M2).unwrap().over_committed);
        cell.ok(Command::UpdateMachine { spec: machine("m2", 30), expect: None });
        assert!(cell.task("jhigh", 0).holds.reserved().is_none());
        assert!(cell.state.machines().get(M2).unwrap().over_committed);
        let victims = crate::overcommit_eviction::victims(&cell.state, M2);
        assert_eq!(victims, [cell.task_id("jhere", 0)]);
    }

    #[test]
    fn one_estimate_moves_the_reservation_on_both_machines() {
        let mut cell = cell(2, |_| {});
        let task = cell.task_id("jfoo", 0);
        let set = |cpu| {
            let reservation = crate::resource::Resources { cpu, ..all(10) };
            Command::SetReservations(vec![ReservationChange { task, attempt: 1, reservation }])
        };
        cell.ok(set(4));
        assert_eq!((load(&cell, M1).reserved.cpu, load(&cell, M2).reserved.cpu), (4, 4));
        let mut big = job("jbig", 1, 200);
        big.task.limits = all(90);
        cell.submit(&big);
        cell.run("jbig", 0, "m2");
        cell.ok(set(10));
        assert!(is_held(&cell));
    }

    /// `jlow/0` on `m1` is preempted; its reservation on `m2` is restored if the group fails.
    #[test]
    fn a_victim_gives_up_all_it_holds_and_gets_it_back_when_its_group_is_refused() {
        let mut cell = cell(2, |spec| spec.task.limits = all(60));
        let mut high = job("jhigh", 2, 200);
        (high.task.limits, high.gang) = (all(50), true);
        cell.submit(&high);
        let victim = Victim { task: cell.task_id("jfoo", 0), attempt: 1 };
        let place = |cell: &Cell, index: usize, machine| {
            let (task, attempt) = (cell.task_id("jhigh", index), 0);
            Assignment { task, attempt, machine, alloc: None, ports: vec![], devices: vec![] }
        };
        let commit = |assignments| {
            let groups = vec![Group { victims: vec![victim], assignments }];
            Command::CommitPlan(Plan { made_at: 0, groups })
        };
        let before = cell.task("jfoo", 0).clone();
        let both = vec![place(&cell, 0, M1), place(&cell, 1, MachineId(9))];
        assert!(matches!(cell.ok(commit(both)), Done::Partly(refused) if refused.len() == 1));
        assert_eq!(*cell.task("jfoo", 0), before);
        let both = vec![place(&cell, 0, M1), place(&cell, 1, M2)];
        assert_eq!(cell.ok(commit(both)), Done::Applied);
        assert_eq!(cell.states("jfoo"), [TaskState::Stopping(StopCause::Preempted)]);
        assert!(!is_held(&cell));
    }

    #[test]
    fn room_reserved_for_others_is_no_victim() {
        let mut cell = cell(2, |spec| spec.task.limits = all(60));
        let mut high = job("jhigh", 1, 200);
        high.task.limits = all(50);
        cell.submit(&high);
        let victims = vec![Victim { task: cell.task_id("jfoo", 0), attempt: 1 }];
        let task = cell.task_id("jhigh", 0);
        let (alloc, ports, devices) = (None, vec![], vec![]);
        let place = Assignment { task, attempt: 0, machine: M2, alloc, ports, devices };
        let groups = vec![Group { victims, assignments: vec![place] }];
        let done = cell.ok(Command::CommitPlan(Plan { made_at: 0, groups }));
        let said = words::verdict(&cell.state, &Ok(done));
        assert!(said.contains("ubar/jfoo/0 need not give way"), "{said}");
        assert!(is_held(&cell));
    }

    #[test]
    fn a_reservation_in_an_alloc_goes_with_the_alloc() {
        let mut cell = Cell::with_machines(2);
        let mut set = job("jset", 2, 200);
        (set.kind, set.task.limits) = (JobKind::AllocSet, all(20));
        cell.submit(&set);
        cell.run("jset", 0, "m1");
        cell.run("jset", 1, "m2");
        let mut inner = job("jfoo", 1, 200);
        (inner.alloc_set, inner.task.limits) = (Some(key("ubar/jset")), all(20));
        inner.alloc_pairing = AllocPairing::Any;
        cell.submit(&inner);
        let [first, second] = [0, 1].map(|index| cell.task_id("jset", index));
        cell.run_in("jfoo", 0, "m1", Some(first));
        let outside = target(&cell, "jfoo", M2, None);
        let message = cell.rejection_text(outside);
        assert!(message.contains("alloc"), "{message}");
        let inside = target(&cell, "jfoo", M2, Some(second));
        cell.ok(inside);
        let held = cell.state.alloc_load(second).unwrap();
        assert_eq!((held.prod_limits, held.tasks.len(), held.held_for.len()), (all(20), 0, 1));
        assert_eq!(load(&cell, M2).prod_limits, all(20), "it is inside the alloc");
        let alloc = target(&cell, "jset", M2, None);
        let message = cell.rejection_text(alloc);
        assert!(message.contains("an alloc does not move"), "{message}");
        let cause = EvictCause::Rebalance;
        cell.ok(Command::Evict { task: second, attempt: 1, cause });
        assert!(!is_held(&cell) && cell.state.alloc_load(second).is_none());
        assert_eq!(cell.states("jfoo"), [TaskState::Running]);
    }
}
