//! Tests of the invariants themselves: each case is a step or a state as `apply` leaves it,
//! corrupted in one place, and the one invariant that must notice. A check that never fails guards
//! nothing.

use super::{check_state, check_step};
use crate::apply::fixture::{Cell, job, key, machine, name};
use crate::command::{Command, Entry, EvictCause, Observed, Request, ReservationChange};
use crate::components::ephemeral::{self, CapacityId, Tables};
use crate::constraint::{AttributeValue, Constraint, Operator, Strength};
use crate::disruption::DisruptionLimit;
use crate::ephemeral::{CapacityChange, NodeChoice};
use crate::hold::{Hold, Holds};
use crate::id::{JobId, MachineId, TaskId};
use crate::isolation::{HOST_VOLUME_WRITABLE, Volume, host_volume_attribute};
use crate::job::Job;
use crate::name::Token;
use crate::plan::{Assignment, Group, Plan};
use crate::priority::Priority;
use crate::resource::Resources;
use crate::retry::{AttemptEndKind, EndCount};
use crate::spec::{Domain, JobKind, JobSpec, SpreadLimit};
use crate::state::State;
use crate::task::{Grant, Task, TaskState};
use crate::time::{Span, Time};
use std::collections::BTreeMap;
use std::sync::Arc;

const M2: MachineId = MachineId(1);

fn room_on(machine: MachineId) -> Hold {
    Hold { machine, alloc: None, grant: None }
}

fn token(text: &str) -> Token {
    Token::new(text).unwrap()
}

fn placing(cell: &Cell, task: &str, index: usize) -> Command {
    let (task, row) = (cell.task_id(task, index), cell.task(task, index));
    let (machine, alloc, ports, devices) = (MachineId(0), None, vec![], vec![]);
    let assignment = Assignment { task, attempt: row.attempt, machine, alloc, ports, devices };
    let group = Group { victims: vec![], assignments: vec![assignment] };
    Command::CommitPlan(Plan { made_at: 0, groups: vec![group] })
}

/// Applies the command and corrupts the result; returns the invariant that notices.
fn violated_by_step(
    cell: &mut Cell,
    command: Command,
    corrupt: impl Fn(&mut State),
) -> Option<&'static str> {
    let before = cell.state.clone();
    let requests = vec![Request::from_default_sender(command, &before)];
    let entry = Entry { now: Time(cell.now), requests };
    let mut events = Vec::new();
    let verdicts = cell.state.apply(&entry, &mut events);
    check_step(&before, &entry, &verdicts, &cell.state, &events).unwrap();
    corrupt(&mut cell.state);
    let found = check_step(&before, &entry, &verdicts, &cell.state, &events);
    found.err().map(|violation| violation.invariant)
}

fn violated_in_state(cell: &mut Cell, corrupt: impl Fn(&mut State)) -> Option<&'static str> {
    check_state(&cell.state).unwrap();
    corrupt(&mut cell.state);
    check_state(&cell.state).err().map(|violation| violation.invariant)
}

/// `jfoo/1` is placed on `m1`; corrupted, it went to `m2`, which `prepare` made a wrong place.
fn check_misplaced(shape: fn(&mut JobSpec), prepare: fn(&mut Cell), want: &str) {
    let mut cell = Cell::with_machines(2);
    let mut spec = job("jfoo", 2, 100);
    shape(&mut spec);
    cell.submit(&spec);
    prepare(&mut cell);
    let (command, task) = (placing(&cell, "jfoo", 1), cell.task_id("jfoo", 1));
    let corrupt = |state: &mut State| {
        state.edit_task(task, |t| t.holds = Holds::primary_only(room_on(M2)));
    };
    assert_eq!(violated_by_step(&mut cell, command, corrupt), Some(want));
}

#[test]
fn a_task_in_a_place_it_may_not_have_is_noticed() {
    let spread = |spec: &mut JobSpec| {
        spec.spread = vec![SpreadLimit { domain: Domain::Machine, limit: 1 }];
    };
    check_misplaced(spread, |cell| cell.run("jfoo", 0, "m2"), "spread_kept");
    let drain = |cell: &mut Cell| {
        cell.ok(Command::StartDrain { name: name("m2"), expect: None });
    };
    check_misplaced(|_| {}, drain, "placed_where_allowed");
    let constrained = |spec: &mut JobSpec| {
        let (operator, strength) = (Operator::Absent, Strength::Hard);
        spec.constraints = vec![Constraint { attribute: token("slow"), operator, strength }];
    };
    let slow = |cell: &mut Cell| {
        let mut spec = machine("m2", 100);
        spec.attributes.insert(token("slow"), AttributeValue::Integer(1));
        cell.ok(Command::UpdateMachine { spec, expect: None });
    };
    check_misplaced(constrained, slow, "placed_where_allowed");
    let borrows = |spec: &mut JobSpec| {
        let (source, target) = ("/srv".into(), "/srv".into());
        spec.task.isolation.volumes = vec![Volume { source, target, writable: true }];
    };
    let lends = |cell: &mut Cell| {
        let mut spec = machine("m1", 100);
        let how = AttributeValue::Text(HOST_VOLUME_WRITABLE.into());
        spec.attributes.insert(host_volume_attribute("/srv").unwrap(), how);
        cell.ok(Command::UpdateMachine { spec, expect: None });
    };
    check_misplaced(borrows, lends, "placed_where_allowed");
}

#[test]
fn a_task_that_does_not_wait_for_those_who_leave_is_noticed() {
    let mut cell = Cell::with_machines(1);
    cell.submit(&job("jold", 1, 100));
    cell.run("jold", 0, "m1");
    cell.ok(Command::StopJob { job: key("ubar/jold"), expect: None });
    cell.submit(&job("jfoo", 1, 100));
    let (command, task) = (placing(&cell, "jfoo", 0), cell.task_id("jfoo", 0));
    let corrupt = |state: &mut State| {
        state.edit_task(task, |t| t.holds = Holds::primary_only(room_on(MachineId(0))));
    };
    assert_eq!(violated_by_step(&mut cell, command, corrupt), Some("waits_for_leaving"));
}

/// `jgang/1` is lost and not made good in time, and `jgang/0` has to go.
#[test]
fn a_part_that_a_gang_keeps_when_it_gives_back_is_noticed() {
    let mut cell = Cell::with_machines(2);
    let mut spec = job("jgang", 3, 100);
    spec.gang = true;
    cell.submit(&spec);
    let mut all = Vec::new();
    for (index, machine) in [(0, MachineId(0)), (1, M2), (2, MachineId(0))] {
        let (task, alloc, ports, devices) = (cell.task_id("jgang", index), None, vec![], vec![]);
        all.push(Assignment { task, attempt: 0, machine, alloc, ports, devices });
    }
    let groups = vec![Group { victims: vec![], assignments: all }];
    cell.ok(Command::CommitPlan(Plan { made_at: 0, groups }));
    cell.ok(Command::MachineDown { machine: M2 });
    cell.now += 60_000;
    let kept = cell.task_id("jgang", 2);
    let stayed = Task { healthy: false, ..cell.task("jgang", 2).clone() };
    let corrupt = |state: &mut State| {
        state.edit_task(kept, |t| *t = stayed.clone());
    };
    let command = Command::GiveBack { job: key("ubar/jgang") };
    assert_eq!(violated_by_step(&mut cell, command, corrupt), Some("gang_whole"));
}

/// `jfoo/0` runs on `m1` and holds room on `m2`, with a port in each; corrupted in one place.
fn check_hold(corrupt: impl Fn(&mut State, TaskId), want: &str) {
    let mut cell = Cell::with_machines(3);
    let mut spec = job("jfoo", 2, 100);
    spec.task.static_ports = vec![80];
    cell.submit(&spec);
    cell.run("jfoo", 0, "m1");
    cell.run("jfoo", 1, "m3");
    let task = cell.task_id("jfoo", 0);
    let (machine, alloc, ports, devices) = (M2, None, vec![80], vec![]);
    let target = Assignment { task, attempt: 1, machine, alloc, ports, devices };
    cell.ok(Command::ReserveHold(target));
    assert_eq!(violated_in_state(&mut cell, |state| corrupt(state, task)), Some(want));
}

#[test]
fn room_held_in_a_wrong_place_or_for_nobody_is_noticed() {
    let with_port = |machine| {
        let grant = Grant { ports: vec![80], ..Grant::default() };
        Hold { grant: Some(Arc::new(grant)), ..room_on(machine) }
    };
    let reserve = move |state: &mut State, task, machine| {
        state.edit_task(task, |t| t.holds.reserve(with_port(machine)));
    };
    let twice = |state: &mut State, task| {
        state.edit_task(task, |t| t.holds.reserve(room_on(MachineId(0))));
    };
    check_hold(twice, "one_machine");
    // The port is that of `jfoo/1`.
    check_hold(|state, task| reserve(state, task, MachineId(2)), "one_machine");
    check_hold(|state, task| reserve(state, task, MachineId(7)), "references");
    let assigned = |state: &mut State, task| {
        state.edit_task(task, |t| t.state = TaskState::Assigned);
    };
    check_hold(assigned, "one_machine");
    let without_port = |state: &mut State, task| {
        state.edit_task(task, |t| t.holds.reserve(room_on(M2)));
    };
    check_hold(without_port, "one_machine");
    let drained = |state: &mut State, _| {
        state.edit_machine(M2, |m| m.draining = true);
    };
    check_hold(drained, "one_machine");
    let uncounted = |state: &mut State, _| {
        if let Some(load) = state.machine_loads.get_mut(M2) {
            load.held_for.clear();
        }
    };
    check_hold(uncounted, "sums_equal_parts");
}

/// An alloc set of priority 110 with a job inside, and reservations beyond what the alloc has.
fn full_alloc() -> Cell {
    let mut cell = Cell::with_machines(1);
    let mut set = job("jset", 1, 110);
    set.kind = JobKind::AllocSet;
    cell.submit(&set);
    cell.run("jset", 0, "m1");
    let mut inner = job("jfoo", 2, 110);
    inner.alloc_set = Some(key("ubar/jset"));
    cell.submit(&inner);
    let alloc = cell.task_id("jset", 0);
    for index in [0, 1] {
        let (task, attempt) = (cell.task_id("jfoo", index), 0);
        let reservation = Resources { cpu: 4, ..Resources::ZERO };
        let change = ReservationChange { task, attempt, reservation };
        cell.ok(Command::SetReservations(vec![change]));
        cell.run_in("jfoo", index, "m1", Some(alloc));
    }
    let reservation = Resources { cpu: 8, ..Resources::ZERO };
    let change = ReservationChange { task: cell.task_id("jfoo", 0), attempt: 1, reservation };
    cell.ok(Command::SetReservations(vec![change]));
    cell
}

#[test]
fn an_alloc_that_holds_too_much_or_too_important_a_job_is_noticed() {
    let unflag = |state: &mut State| {
        state.edit_machine(MachineId(0), |m| m.over_committed = false);
    };
    assert_eq!(violated_in_state(&mut full_alloc(), unflag), Some("overcommit_flagged"));
    let mut cell = full_alloc();
    let set = cell.state.job_named(&key("ubar/jset")).unwrap();
    let demote = |state: &mut State| {
        state.edit_job(set, |job| {
            let version = job.version;
            let mut spec = (**job.spec()).clone();
            spec.priority = Priority(109);
            job.specs.insert(version, Arc::new(spec));
        });
    };
    assert_eq!(violated_in_state(&mut cell, demote), Some("inner_not_above_set"));
    let mut cell = full_alloc();
    let alloc = cell.task_id("jset", 0);
    let reclaim = |state: &mut State| {
        state.edit_task(alloc, |t| t.reservation.cpu -= 1);
    };
    assert_eq!(violated_in_state(&mut cell, reclaim), Some("alloc_rules"));
}

/// A task of `jfoo`, of which one may be disrupted in a minute, is rebalanced.
fn moved() -> (Cell, JobId, Command) {
    let mut cell = Cell::with_machines(1);
    let mut spec = job("jfoo", 2, 100);
    spec.disruptions = Some(DisruptionLimit { most: 1, within: Span::seconds(60) });
    cell.submit(&spec);
    cell.run("jfoo", 0, "m1");
    let (id, task) = (cell.state.job_named(&key("ubar/jfoo")).unwrap(), cell.task_id("jfoo", 0));
    (cell, id, Command::Evict { task, attempt: 1, cause: EvictCause::Rebalance })
}

#[test]
fn a_disruption_that_is_not_counted_or_comes_too_soon_is_noticed() {
    let corruptions: [fn(&mut Vec<Time>); 2] = [Vec::clear, |times| times[0].0 -= 1];
    for corrupt in corruptions {
        let (mut cell, id, command) = moved();
        let corrupted = |state: &mut State| {
            state.edit_job(id, |row| corrupt(&mut row.disrupted_at));
        };
        assert_eq!(violated_by_step(&mut cell, command, corrupted), Some("disruption_rate"));
    }
    let (mut cell, id, command) = moved();
    let mut before = cell.state.clone();
    let requests = vec![Request::from_default_sender(command, &before)];
    let entry = Entry { now: Time(cell.now), requests };
    let mut events = Vec::new();
    let verdicts = cell.state.apply(&entry, &mut events);
    before.edit_job(id, |row| row.disrupted_at.push(Time(cell.now - 1)));
    let found = check_step(&before, &entry, &verdicts, &cell.state, &events).unwrap_err();
    assert_eq!(found.invariant, "disruption_rate");
    assert!(found.detail.contains("at most 1 allowed"), "{found}");
    let ahead = |state: &mut State| {
        state.edit_job(id, |row| row.disrupted_at.push(Time::NEVER));
    };
    assert_eq!(violated_in_state(&mut moved().0, ahead), Some("disruption_rate"));
}

#[test]
fn a_namespace_of_two_owners_is_noticed() {
    let mut cell = Cell::with_machines(1);
    for text in ["slot", "data"] {
        let (namespace, name) = (token("app"), token(text));
        let lease = Span::seconds(60);
        let set = ephemeral::Command::Set { namespace, name, lease, changes: vec![] };
        cell.send_as("ubar", set).unwrap();
    }
    let (last, _) = cell.state.resources().iter().last().unwrap();
    let corrupt = |state: &mut State| {
        if let Some(row) = state.components.ephemeral.resources.get_mut(last) {
            row.owner = None;
        }
    };
    assert_eq!(violated_in_state(&mut cell, corrupt), Some("one_owner_per_namespace"));
}

#[test]
fn what_is_kept_beside_ephemeral_resources_is_added_up_again() {
    let corruptions: [fn(&mut Tables); 6] = [
        |tables| tables.namespaces = Default::default(),
        |tables| tables.resource_counts = Default::default(),
        |tables| tables.machines_of = Default::default(),
        |tables| tables.resources_on = Default::default(),
        |tables| tables.leases = Default::default(),
        |tables| {
            tables.vacant.insert(CapacityId(0), ());
        },
    ];
    for corrupt in corruptions {
        let mut cell = Cell::with_machines(1);
        let changes = vec![(NodeChoice::Node(name("m1")), CapacityChange::Add(1))];
        let (namespace, lease) = (token("app"), Span::seconds(60));
        let set = ephemeral::Command::Set { namespace, name: token("slot"), lease, changes };
        cell.send_as("ubar", set).unwrap();
        let corrupt = |state: &mut State| corrupt(&mut state.components.ephemeral);
        assert_eq!(violated_in_state(&mut cell, corrupt), Some("sums_equal_parts"));
    }
}

#[test]
fn ends_counted_apart_that_do_not_add_up_are_noticed() {
    let entry = |kind, count| EndCount { kind, count };
    for apart in [
        vec![entry(AttemptEndKind::TimedOut, 1)],
        vec![entry(AttemptEndKind::Lost, 0)],
        vec![entry(AttemptEndKind::Evicted, 1), entry(AttemptEndKind::Lost, 1)],
    ] {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 1, 100));
        let task = cell.task_id("jfoo", 0);
        let corrupt = |state: &mut State| {
            state.edit_task(task, |row| row.apart = apart.clone());
        };
        assert_eq!(violated_in_state(&mut cell, corrupt), Some("counted_apart"), "{apart:?}");
    }
}

#[test]
fn a_placement_before_its_time_is_noticed() {
    let mut cell = Cell::with_machines(1);
    let mut spec = job("jfoo", 1, 100);
    spec.restart.max_failures = None;
    cell.submit(&spec);
    cell.run("jfoo", 0, "m1");
    cell.report("jfoo", 0, Observed::Failed(crate::task::ExitClass::Code(1)));
    let early = cell.now;
    cell.now = cell.task("jfoo", 0).not_before.0;
    let command = placing(&cell, "jfoo", 0);
    let before = cell.state.clone();
    let requests = vec![Request::from_default_sender(command, &before)];
    let mut entry = Entry { now: Time(cell.now), requests };
    let mut events = Vec::new();
    let verdicts = cell.state.apply(&entry, &mut events);
    // The same step as if it had happened before the back-off was over.
    (entry.now, cell.state.now) = (Time(early), Time(early));
    events.iter_mut().for_each(|event| event.at = Time(early));
    let task = cell.task_id("jfoo", 0);
    cell.state.edit_task(task, |t| t.changed_at = Time(early));
    let found = check_step(&before, &entry, &verdicts, &cell.state, &events);
    assert_eq!(found.unwrap_err().invariant, "leases_kept");
}

/// A daemon on `m1` and `m2`, of whose tasks the first runs.
#[test]
fn a_task_of_a_daemon_is_on_its_own_machine_which_is_there() {
    let check = |change: fn(&mut Job), want: Option<&str>| {
        let mut cell = Cell::with_machines(2);
        let mut spec = job("jfoo", 1, 100);
        spec.kind = JobKind::Daemon;
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        let id = cell.state.job_named(&key("ubar/jfoo")).unwrap();
        let corrupt = |state: &mut State| {
            state.edit_job(id, change);
        };
        assert_eq!(violated_in_state(&mut cell, corrupt), want);
    };
    check(|_| {}, None);
    check(|job| job.machines = of([(0, 1), (1, 0)]), Some("one_per_machine"));
    check(|job| job.machines = of([(0, 0), (1, 0)]), Some("one_per_machine"));
    check(|job| job.machines = of([(0, 0), (1, 7)]), Some("one_per_machine"));
}

/// Machines by index.
fn of(list: [(u32, u32); 2]) -> Arc<BTreeMap<u32, MachineId>> {
    Arc::new(list.into_iter().map(|(index, machine)| (index, MachineId(machine))).collect())
}
