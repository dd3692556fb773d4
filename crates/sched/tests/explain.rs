//! Explanations are exact: their counts are those of the cell's own definition of what fits,
//! evaluated machine by machine, and every change they propose is the largest that the definition
//! accepts.

#[path = "explain/sentences.rs"]
mod sentences;
mod support;

use cellwright_cell::State;
use cellwright_cell::command::{Command, Entry, Request};
use cellwright_cell::explanation::{Change, Counterfactual, Explanation, FITS, Obstacle};
use cellwright_cell::fit::{self, Candidate};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::machine::MachineStatus;
use cellwright_cell::reason::InfeasibleReason;
use cellwright_cell::resource::Dimension;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::task::Task;
use cellwright_cell::time::Time;
use cellwright_cell::words::{self, quantity::Natural};
use cellwright_sched::executor::{Executor, Sequential};
use cellwright_sched::explain::Explainer;
use cellwright_sched::explain::names::SnapshotNames;
use cellwright_sched::explain::queue_position::QueuePositions;
use cellwright_sched::feasible::{self, PlacementTarget};
use cellwright_sched::queue::QueueOrder;
use cellwright_sched::{ClassId, Options};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use support::World;

/// Runs the parts last to first.
struct Reversed;

impl Executor for Reversed {
    fn run(&self, parts: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..parts).rev().for_each(work);
    }
}

/// Runs every part on a thread of its own.
struct Threads;

impl Executor for Threads {
    fn run(&self, parts: usize, work: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for part in 0..parts {
                scope.spawn(move || work(part));
            }
        });
    }
}

/// A task and its spec as they would be after a change.
#[derive(Clone)]
struct HypotheticalTask {
    task: Task,
    spec: JobSpec,
}

impl HypotheticalTask {
    fn lower(&self, dimension: Dimension, value: u64) -> HypotheticalTask {
        let mut changed = self.clone();
        let index = changed.task.index;
        let mut limits = changed.spec.limits_of(index);
        limits.set(dimension, value);
        changed.spec.overrides.clear();
        changed.spec.task.limits = limits;
        changed.task.reservation = changed.task.reservation.min(limits);
        changed
    }

    fn with(&self, change: impl FnOnce(&mut JobSpec)) -> HypotheticalTask {
        let mut changed = self.clone();
        change(&mut changed.spec);
        changed
    }
}

/// Targets on a machine: allocs of the task's set, or the machine.
fn targets(world: &World, task: TaskId, machine: MachineId) -> Vec<Option<TaskId>> {
    let class = world.snapshot.class(world.snapshot.class_of(task).unwrap());
    feasible::targets_on(&world.snapshot, class, machine)
        .into_iter()
        .map(|target| target.alloc)
        .collect()
}

fn fits_at(
    state: &State,
    task: &HypotheticalTask,
    machine: MachineId,
    alloc: Option<TaskId>,
) -> bool {
    let candidate = Candidate { task: &task.task, spec: &task.spec };
    fit::infeasible_reason(state, &candidate, machine, alloc).is_none()
}

/// Machines on which the task would fit, in order.
fn fitting(world: &World, state: &State, id: TaskId, task: &HypotheticalTask) -> Vec<MachineId> {
    let machines = state.machines().iter().map(|(machine, _)| machine);
    machines
        .filter(|m| targets(world, id, *m).iter().any(|alloc| fits_at(state, task, *m, *alloc)))
        .collect()
}

/// Counts per code by the definition; of several allocs the one whose reason comes last in
/// precedence.
fn counts_by_definition(
    world: &World,
    id: TaskId,
    task: &HypotheticalTask,
) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    let candidate = Candidate { task: &task.task, spec: &task.spec };
    for (machine, _) in world.state.machines().iter() {
        let infeasible_reasons = targets(world, id, machine);
        let mut infeasible_reasons: Vec<Option<InfeasibleReason>> = infeasible_reasons
            .into_iter()
            .map(|alloc| fit::infeasible_reason(&world.state, &candidate, machine, alloc))
            .collect();
        infeasible_reasons.sort();
        let fits = infeasible_reasons.contains(&None);
        let furthest = infeasible_reasons.last().unwrap().as_ref();
        let code = if fits { FITS } else { furthest.unwrap().code() };
        *counts.entry(code.to_owned()).or_insert(0) += 1;
    }
    counts
}

fn counts(explanation: &Explanation) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for reason in &explanation.reasons {
        *counts.entry(reason.code.to_owned()).or_insert(0) += reason.machines;
    }
    counts
}

/// The state with every drain ended and, if `up`, every machine up.
fn restored(state: &State, up: bool) -> State {
    let mut state = state.clone();
    let rows: Vec<_> = state.machines().iter().map(|(id, row)| (id, row.clone())).collect();
    let mut requests = Vec::new();
    for (machine, row) in rows {
        let mut ask = |command| requests.push(Request::from_default_sender(command, &state));
        if row.draining {
            ask(Command::StopDrain { name: row.spec.name.clone(), expect: None });
        }
        if up && row.status == MachineStatus::Down {
            ask(Command::MachineUp { machine, incarnation: row.incarnation + 1 });
        }
    }
    state.apply(&Entry { now: state.now(), requests }, &mut Vec::new());
    state
}

/// What the request becomes with the change, and with one unit less of it.
fn changed(
    task: &HypotheticalTask,
    change: &Change,
) -> (HypotheticalTask, Option<HypotheticalTask>) {
    match change {
        Change::Resource { dimension, at_most, .. } => {
            (task.lower(*dimension, *at_most), Some(task.lower(*dimension, at_most + 1)))
        }
        Change::TwoResources([a, b]) => {
            let both = |x: u64, y: u64| task.lower(a.dimension, x).lower(b.dimension, y);
            (both(a.at_most, b.at_most), None)
        }
        Change::Ports { at_most, .. } => {
            let with = |n: u64| task.with(|spec| spec.task.ports = n as u8);
            (with(*at_most), Some(with(at_most + 1)))
        }
        Change::Named { name, at_most, .. } => {
            let with = |n: u64| {
                task.with(|spec| {
                    spec.task.named.retain_mut(|ask| {
                        let this = ask.name == *name;
                        ask.amount = if this { n } else { ask.amount };
                        !this || n > 0
                    });
                })
            };
            (with(*at_most), Some(with(at_most + 1)))
        }
        Change::DeviceCount { position, at_most, .. } => {
            let with = |n: u64| {
                task.with(|spec| match n {
                    0 => drop(spec.task.devices.remove(*position as usize)),
                    _ => spec.task.devices[*position as usize].count = n as u8,
                })
            };
            (with(*at_most), Some(with(at_most + 1)))
        }
        Change::DeviceShares { position, at_most, .. } => {
            let at = *position as usize;
            let with = |n: u64| task.with(|spec| spec.task.devices[at].milli = n as u16);
            (with(*at_most), Some(with(at_most + 1)))
        }
        Change::Spread { domain, at_least, .. } => {
            let with = |n: u64| {
                task.with(|spec| {
                    for s in spec.spread.iter_mut().filter(|s| s.domain == *domain) {
                        s.limit = n as u32;
                    }
                })
            };
            (with(*at_least), Some(with(at_least - 1)))
        }
        Change::DropConstraint { position, .. } => {
            (task.with(|spec| drop(spec.constraints.remove(*position as usize))), None)
        }
        Change::DropVolume(host_volume) => {
            let volumes = |spec: &mut JobSpec| {
                spec.task.isolation.volumes.retain(|volume| volume.host_volume() != *host_volume);
            };
            (task.with(volumes), None)
        }
        Change::DropStaticPort { port } => {
            (task.with(|spec| spec.task.static_ports.retain(|p| p != port)), None)
        }
        Change::DrainEnded | Change::MachineBack => (task.clone(), None),
    }
}

/// The change makes the task fit there and on that many machines; one unit more does not, anywhere.
fn check_change(
    world: &World,
    id: TaskId,
    task: &HypotheticalTask,
    found: &Counterfactual,
) -> Result<(), TestCaseError> {
    let (with, one_more) = changed(task, &found.change);
    let state = match found.change {
        Change::DrainEnded => restored(&world.state, false),
        Change::MachineBack => restored(&world.state, true),
        _ => world.state.clone(),
    };
    let alloc = found.alloc.as_ref().map(|alloc| alloc.id);
    prop_assert!(fits_at(&state, &with, found.machine.id, alloc), "{:?}", found);
    let machines = fitting(world, &state, id, &with);
    let down = |m: &MachineId| {
        world.state.machines().get(*m).is_some_and(|row| row.status == MachineStatus::Down)
    };
    let wanted = match found.change {
        // Ending the drains of machines that are up must not count here.
        Change::MachineBack => machines.into_iter().filter(down).collect(),
        // Raised just enough it fits on the first, dropped it fits on all that are counted.
        Change::Spread { domain, .. } => {
            let none = task.with(|spec| spec.spread.retain(|s| s.domain != domain));
            prop_assert_eq!(machines[0], found.machine.id);
            fitting(world, &state, id, &none)
        }
        _ => machines,
    };
    if !matches!(found.change, Change::TwoResources(_)) {
        prop_assert_eq!(wanted.len(), found.machines as usize, "{:?}", found);
        prop_assert!(wanted.contains(&found.machine.id));
    }
    if let Some(one_more) = one_more {
        prop_assert_eq!(fitting(world, &state, id, &one_more), vec![], "one more: {:?}", found);
    }
    Ok(())
}

/// Every single change that would help, by trying them all.
fn changes_by_trial(world: &World, id: TaskId, hypothetical: &HypotheticalTask) -> Vec<String> {
    let helps = |hypothetical: &HypotheticalTask| {
        !fitting(world, &world.state, id, hypothetical).is_empty()
    };
    let mut found = Vec::new();
    let limits = hypothetical.spec.limits_of(hypothetical.task.index);
    for dimension in Dimension::ALL {
        let requested = limits.get(dimension);
        if let Some(v) = (0..requested).rev().find(|v| helps(&hypothetical.lower(dimension, *v))) {
            found.push(format!("{dimension} {v}"));
        }
    }
    let task = &hypothetical.spec.task;
    let ports =
        (0..task.ports).rev().find(|n| helps(&hypothetical.with(|spec| spec.task.ports = *n)));
    found.extend(ports.map(|n| format!("ports {n}")));
    for (at, ask) in task.named.iter().enumerate() {
        let with = |n: u64| {
            hypothetical.with(|spec| match n {
                0 => drop(spec.task.named.remove(at)),
                _ => spec.task.named[at].amount = n,
            })
        };
        let largest = (0..ask.amount.max(1)).rev().find(|n| helps(&with(*n)));
        found.extend(largest.map(|n| format!("{} {n}", ask.name)));
    }
    for (at, device) in task.devices.iter().enumerate() {
        let count = |n: u8| {
            hypothetical.with(|spec| match n {
                0 => drop(spec.task.devices.remove(at)),
                _ => spec.task.devices[at].count = n,
            })
        };
        let largest = (0..device.count).rev().find(|n| helps(&count(*n)));
        found.extend(largest.map(|n| format!("device {at} count {n}")));
        if device.count == 1 {
            let milli = |n: u16| hypothetical.with(|spec| spec.task.devices[at].milli = n);
            let largest = (1..device.milli).rev().find(|n| helps(&milli(*n)));
            found.extend(largest.map(|n| format!("device {at} milli {n}")));
        }
    }
    for at in 0..hypothetical.spec.spread.len() {
        let more = |n: u32| hypothetical.with(|spec| spec.spread[at].limit = n);
        let limit = hypothetical.spec.spread[at].limit;
        let smallest = (limit + 1..200).find(|n| helps(&more(*n)));
        found.extend(
            smallest.map(|n| format!("spread {:?} {n}", hypothetical.spec.spread[at].domain)),
        );
    }
    let hard = (0..hypothetical.spec.constraints.len())
        .filter(|at| hypothetical.spec.constraints[*at].is_hard());
    for at in hard {
        if helps(&hypothetical.with(|spec| drop(spec.constraints.remove(at)))) {
            found.push(format!("constraint {at}"));
        }
    }
    found.extend(removals_by_trial(hypothetical, helps));
    found.sort();
    found
}

/// Host volumes and static ports without which the task would fit.
fn removals_by_trial(
    hypothetical: &HypotheticalTask,
    helps: impl Fn(&HypotheticalTask) -> bool,
) -> Vec<String> {
    let mut found = Vec::new();
    let task = &hypothetical.spec.task;
    let host_volumes: BTreeSet<_> =
        task.isolation.volumes.iter().map(|volume| volume.host_volume()).collect();
    for host_volume in host_volumes {
        let without = |spec: &mut JobSpec| {
            spec.task.isolation.volumes.retain(|volume| volume.host_volume() != host_volume);
        };
        if helps(&hypothetical.with(without)) {
            found.push(host_volume.to_string());
        }
    }
    for port in &task.static_ports {
        if helps(&hypothetical.with(|spec| spec.task.static_ports.retain(|p| p != port))) {
            found.push(format!("port {port}"));
        }
    }
    found
}

fn changes(explanation: &Explanation) -> Vec<String> {
    let all = explanation.counterfactual.iter().chain(&explanation.alternatives);
    let text = |c: &Counterfactual| match &c.change {
        Change::Resource { dimension, at_most, .. } => Some(format!("{dimension} {at_most}")),
        Change::Ports { at_most, .. } => Some(format!("ports {at_most}")),
        Change::Named { name, at_most, .. } => Some(format!("{name} {at_most}")),
        Change::DeviceCount { position, at_most, .. } => {
            Some(format!("device {position} count {at_most}"))
        }
        Change::DeviceShares { position, at_most, .. } => {
            Some(format!("device {position} milli {at_most}"))
        }
        Change::Spread { domain, at_least, .. } => Some(format!("spread {domain:?} {at_least}")),
        Change::DropConstraint { position, .. } => Some(format!("constraint {position}")),
        Change::DropVolume(host_volume) => Some(host_volume.to_string()),
        Change::DropStaticPort { port } => Some(format!("port {port}")),
        Change::TwoResources(_) | Change::DrainEnded | Change::MachineBack => None,
    };
    let mut all: Vec<String> = all.filter_map(text).collect();
    all.sort();
    all
}

/// The victims are enough and minimal, and not allowed exactly when one of them is not.
fn check_victims(world: &World, id: TaskId, found: &Explanation) -> Result<(), TestCaseError> {
    let Some(victims) = &found.victims else { return Ok(()) };
    let class = world.snapshot.class(world.snapshot.class_of(id).unwrap());
    let alloc = victims.alloc.as_ref().map(|alloc| alloc.id);
    // The rest of a gang may be elsewhere.
    let outer = |task: TaskId| {
        let placement = world.snapshot.placement_of(task).unwrap();
        placement.machine() == Some(victims.machine.id) && placement.alloc() == alloc
    };
    let gang_of = |task: TaskId| {
        let (job, _) = world.snapshot.identity_of(task)?;
        world.snapshot.job_spec(job).filter(|spec| spec.gang).map(|_| job)
    };
    let all: Vec<TaskId> = victims.tasks.iter().map(|v| v.task.id).filter(|t| outer(*t)).collect();
    let fits = |without: &[TaskId]| {
        let target = PlacementTarget { machine: victims.machine.id, alloc, without };
        feasible::first_reason(&world.snapshot, class, &target).is_none()
    };
    prop_assert!(fits(&all), "not enough: {:?}", victims);
    for victim in &all {
        let gang = gang_of(*victim);
        let stays = |t: &TaskId| t == victim || (gang.is_some() && gang_of(*t) == gang);
        let fewer: Vec<TaskId> = all.iter().copied().filter(|t| !stays(t)).collect();
        prop_assert!(!fits(&fewer), "{:?} is not needed: {:?}", victim, victims);
    }
    for victim in &victims.tasks {
        let may = found.priority.may_preempt(victim.priority);
        let by_priority =
            matches!(victim.obstacle, Some(Obstacle::NotLower | Obstacle::SameProdBand(_)));
        prop_assert_eq!(may, !by_priority, "{:?}", victim);
    }
    prop_assert_eq!(victims.allowed, victims.tasks.iter().all(|v| v.obstacle.is_none()));
    Ok(())
}

fn check_task(world: &World, id: TaskId, found: &Explanation) -> Result<(), TestCaseError> {
    let candidate = Candidate::of(&world.state, id).unwrap();
    let task = HypotheticalTask { task: candidate.task.clone(), spec: candidate.spec.clone() };
    prop_assert_eq!(counts(found), counts_by_definition(world, id, &task));
    let total: u32 = found.reasons.iter().map(|r| r.machines).sum();
    prop_assert_eq!(total, found.machines_total);
    prop_assert_eq!(found.machines_total as usize, world.state.machines().iter().count());
    let all: Vec<&Counterfactual> =
        found.counterfactual.iter().chain(&found.alternatives).collect();
    if found.fitting() > 0 {
        prop_assert!(all.is_empty() && found.victims.is_none());
        return Ok(());
    }
    let sizes: Vec<u32> = all.iter().map(|c| c.permille).collect();
    let pair = matches!(all.first().map(|c| &c.change), Some(Change::TwoResources(_)));
    prop_assert!(pair || sizes.is_sorted(), "nearest first: {:?}", all);
    for change in &all {
        check_change(world, id, &task, change)?;
    }
    prop_assert_eq!(changes(found), changes_by_trial(world, id, &task));
    check_victims(world, id, found)?;
    // Sentences are lines, and how wide they may be is for whoever shows them.
    let text = words::explanation::render(found, &Natural);
    prop_assert!(text.lines().all(|line| line.ends_with('.')), "{}", text);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_definition_and_with_trial(
        seed in any::<u64>(),
        machines in 1u32..9,
        steps in 5usize..50,
    ) {
        let mut world = World::new(seed, machines);
        for _ in 0..steps {
            world.step();
            if world.rng.one_in(3) {
                world.schedule(Options::exact(), seed);
            }
        }
        let names = &world.state;
        let explainer = Explainer::new(&world.snapshot, names, &Sequential);
        let now = Time(world.now);
        let positions = QueuePositions::new(&world.snapshot, QueueOrder::Fair, now, seed);
        for id in world.snapshot.pending().to_vec() {
            let found = explainer.task(id, &positions).unwrap();
            check_task(&world, id, &found)?;
        }
    }
}

/// A walk over several parts gives the same result on every executor, for one class or for many.
#[test]
fn does_not_depend_on_the_executor() {
    let mut world = World::new(7, 4500);
    (0..80).for_each(|_| world.submit());
    world.schedule(Options::exact(), 3);
    (0..20).for_each(|_| world.submit());
    let classes: Vec<ClassId> = (0..world.snapshot.class_count() as u32).map(ClassId).collect();
    let names = SnapshotNames(&world.snapshot);
    let by = |executor: &dyn Executor| {
        Explainer::new(&world.snapshot, &names, executor).classes(&classes)
    };
    let sequential = by(&Sequential);
    assert_eq!(sequential, by(&Reversed));
    assert_eq!(sequential, by(&Threads));
    let alone = |class: &ClassId| Explainer::new(&world.snapshot, &names, &Reversed).class(*class);
    let few: Vec<Explanation> = classes.iter().take(5).map(alone).collect();
    assert_eq!(sequential[..5], few[..]);
    for explanation in &sequential {
        let sum: u32 = explanation.reasons.iter().map(|r| r.machines).sum();
        assert_eq!(sum, 4500);
    }
}
