//! Explanations are exact: their counts are those of the cell's own definition of what fits, asked
//! machine by machine, and every change they propose is the largest that the definition accepts.

mod support;

use cellwright_cell::State;
use cellwright_cell::command::{Actor, Command, Entry, Request};
use cellwright_cell::constraint::{AttributeValue, Constraint, Operator, Strength};
use cellwright_cell::device::{Device, DeviceRequest, WHOLE};
use cellwright_cell::fit::{self, Candidate};
use cellwright_cell::id::{JobId, MachineId, TaskId, UserId};
use cellwright_cell::isolation::{LENT_READ_ONLY, Volume, lent_attribute};
use cellwright_cell::machine::{MachineSpec, MachineStatus, PortRange};
use cellwright_cell::name::Name;
use cellwright_cell::reason::Misfit;
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_cell::spec::{Domain, JobSpec, SpreadLimit};
use cellwright_cell::task::Task;
use cellwright_cell::time::Time;
use cellwright_sched::board::{HeldFacts, Holding, JobFacts, MachineFacts, PendingFacts};
use cellwright_sched::executor::{Executor, Sequential};
use cellwright_sched::explain::names::{BoardNames, Names};
use cellwright_sched::explain::standing::Standings;
use cellwright_sched::explain::units::Natural;
use cellwright_sched::explain::{
    Change, Counterfactual, Explainer, Explanation, FITS, Obstacle, text,
};
use cellwright_sched::feasible::{self, Spot};
use cellwright_sched::queue::Order;
use cellwright_sched::{Board, ClassId, Options};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use support::World;
use support::specs::{self, token};

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
struct Asking {
    task: Task,
    spec: JobSpec,
}

impl Asking {
    fn lower(&self, dimension: Dimension, value: u64) -> Asking {
        let mut changed = self.clone();
        let index = changed.task.index;
        let mut limits = changed.spec.limits_of(index);
        limits.set(dimension, value);
        changed.spec.overrides.clear();
        changed.spec.task.limits = limits;
        changed.task.reservation = changed.task.reservation.min(limits);
        changed
    }

    fn with(&self, change: impl FnOnce(&mut JobSpec)) -> Asking {
        let mut changed = self.clone();
        change(&mut changed.spec);
        changed
    }
}

/// Places on a machine: allocs of the task's set, or the machine.
fn places(world: &World, task: TaskId, machine: MachineId) -> Vec<Option<TaskId>> {
    let class = world.board.class(world.board.class_of(task).unwrap());
    feasible::spots(&world.board, class, machine).into_iter().map(|spot| spot.alloc).collect()
}

fn fits_at(state: &State, asking: &Asking, machine: MachineId, alloc: Option<TaskId>) -> bool {
    let candidate = Candidate { task: &asking.task, spec: &asking.spec };
    fit::misfit(state, &candidate, machine, alloc).is_none()
}

/// Machines on which the task would fit, in order.
fn fitting(world: &World, state: &State, id: TaskId, asking: &Asking) -> Vec<MachineId> {
    let machines = state.machines().iter().map(|(machine, _)| machine);
    machines
        .filter(|m| places(world, id, *m).iter().any(|alloc| fits_at(state, asking, *m, *alloc)))
        .collect()
}

/// Counts per code as the definition gives them; of several allocs the one that comes furthest.
fn counts_by_definition(world: &World, id: TaskId, asking: &Asking) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    let candidate = Candidate { task: &asking.task, spec: &asking.spec };
    for (machine, _) in world.state.machines().iter() {
        let misfits = places(world, id, machine);
        let mut misfits: Vec<Option<Misfit>> = misfits
            .into_iter()
            .map(|alloc| fit::misfit(&world.state, &candidate, machine, alloc))
            .collect();
        misfits.sort();
        let fits = misfits.contains(&None);
        let furthest = misfits.last().unwrap().as_ref();
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

/// The state with every drain ended and, if asked, every machine up.
fn mended(state: &State, up: bool) -> State {
    let mut state = state.clone();
    let rows: Vec<_> = state.machines().iter().map(|(id, row)| (id, row.clone())).collect();
    let mut requests = Vec::new();
    for (machine, row) in rows {
        let mut ask = |command| requests.push(Request { by: Actor::System, id: None, command });
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
fn changed(asking: &Asking, change: &Change) -> (Asking, Option<Asking>) {
    match change {
        Change::Resource { dimension, at_most, .. } => {
            (asking.lower(*dimension, *at_most), Some(asking.lower(*dimension, at_most + 1)))
        }
        Change::TwoResources([a, b]) => {
            let both = |x: u64, y: u64| asking.lower(a.dimension, x).lower(b.dimension, y);
            (both(a.at_most, b.at_most), None)
        }
        Change::Ports { at_most, .. } => {
            let with = |n: u64| asking.with(|spec| spec.task.ports = n as u8);
            (with(*at_most), Some(with(at_most + 1)))
        }
        Change::Named { name, at_most, .. } => {
            let with = |n: u64| {
                asking.with(|spec| {
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
                asking.with(|spec| match n {
                    0 => drop(spec.task.devices.remove(*position as usize)),
                    _ => spec.task.devices[*position as usize].count = n as u8,
                })
            };
            (with(*at_most), Some(with(at_most + 1)))
        }
        Change::DeviceShares { position, at_most, .. } => {
            let at = *position as usize;
            let with = |n: u64| asking.with(|spec| spec.task.devices[at].milli = n as u16);
            (with(*at_most), Some(with(at_most + 1)))
        }
        Change::Spread { domain, at_least, .. } => {
            let with = |n: u64| {
                asking.with(|spec| {
                    for s in spec.spread.iter_mut().filter(|s| s.domain == *domain) {
                        s.limit = n as u32;
                    }
                })
            };
            (with(*at_least), Some(with(at_least - 1)))
        }
        Change::DropConstraint { position, .. } => {
            (asking.with(|spec| drop(spec.constraints.remove(*position as usize))), None)
        }
        Change::DropVolume(loan) => {
            let volumes = |spec: &mut JobSpec| {
                spec.task.isolation.volumes.retain(|volume| volume.loan() != *loan);
            };
            (asking.with(volumes), None)
        }
        Change::DropStaticPort { port } => {
            (asking.with(|spec| spec.task.static_ports.retain(|p| p != port)), None)
        }
        Change::DrainEnded | Change::MachineBack => (asking.clone(), None),
    }
}

/// The change makes the task fit there and on that many machines; one unit more does not, anywhere.
fn check_change(
    world: &World,
    id: TaskId,
    asking: &Asking,
    found: &Counterfactual,
) -> Result<(), TestCaseError> {
    let (with, one_more) = changed(asking, &found.change);
    let state = match found.change {
        Change::DrainEnded => mended(&world.state, false),
        Change::MachineBack => mended(&world.state, true),
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
            let none = asking.with(|spec| spec.spread.retain(|s| s.domain != domain));
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
fn changes_by_trial(world: &World, id: TaskId, asking: &Asking) -> Vec<String> {
    let helps = |asking: &Asking| !fitting(world, &world.state, id, asking).is_empty();
    let mut found = Vec::new();
    let limits = asking.spec.limits_of(asking.task.index);
    for dimension in Dimension::ALL {
        let asked = limits.get(dimension);
        if let Some(v) = (0..asked).rev().find(|v| helps(&asking.lower(dimension, *v))) {
            found.push(format!("{dimension} {v}"));
        }
    }
    let task = &asking.spec.task;
    let ports = (0..task.ports).rev().find(|n| helps(&asking.with(|spec| spec.task.ports = *n)));
    found.extend(ports.map(|n| format!("ports {n}")));
    for (at, ask) in task.named.iter().enumerate() {
        let with = |n: u64| {
            asking.with(|spec| match n {
                0 => drop(spec.task.named.remove(at)),
                _ => spec.task.named[at].amount = n,
            })
        };
        let most = (0..ask.amount.max(1)).rev().find(|n| helps(&with(*n)));
        found.extend(most.map(|n| format!("{} {n}", ask.name)));
    }
    for (at, device) in task.devices.iter().enumerate() {
        let count = |n: u8| {
            asking.with(|spec| match n {
                0 => drop(spec.task.devices.remove(at)),
                _ => spec.task.devices[at].count = n,
            })
        };
        let most = (0..device.count).rev().find(|n| helps(&count(*n)));
        found.extend(most.map(|n| format!("device {at} count {n}")));
        if device.count == 1 {
            let milli = |n: u16| asking.with(|spec| spec.task.devices[at].milli = n);
            let most = (1..device.milli).rev().find(|n| helps(&milli(*n)));
            found.extend(most.map(|n| format!("device {at} milli {n}")));
        }
    }
    for at in 0..asking.spec.spread.len() {
        let more = |n: u32| asking.with(|spec| spec.spread[at].limit = n);
        let limit = asking.spec.spread[at].limit;
        let least = (limit + 1..200).find(|n| helps(&more(*n)));
        found.extend(least.map(|n| format!("spread {:?} {n}", asking.spec.spread[at].domain)));
    }
    let hard =
        (0..asking.spec.constraints.len()).filter(|at| asking.spec.constraints[*at].is_hard());
    for at in hard {
        if helps(&asking.with(|spec| drop(spec.constraints.remove(at)))) {
            found.push(format!("constraint {at}"));
        }
    }
    let loans: BTreeSet<_> = task.isolation.volumes.iter().map(|volume| volume.loan()).collect();
    for loan in loans {
        let without = |spec: &mut JobSpec| {
            spec.task.isolation.volumes.retain(|volume| volume.loan() != loan);
        };
        if helps(&asking.with(without)) {
            found.push(loan.to_string());
        }
    }
    for port in &task.static_ports {
        if helps(&asking.with(|spec| spec.task.static_ports.retain(|p| p != port))) {
            found.push(format!("port {port}"));
        }
    }
    found.sort();
    found
}

fn changes(explanation: &Explanation) -> Vec<String> {
    let all = explanation.counterfactual.iter().chain(&explanation.alternatives);
    let one = |c: &Counterfactual| match &c.change {
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
        Change::DropVolume(loan) => Some(loan.to_string()),
        Change::DropStaticPort { port } => Some(format!("port {port}")),
        Change::TwoResources(_) | Change::DrainEnded | Change::MachineBack => None,
    };
    let mut all: Vec<String> = all.filter_map(one).collect();
    all.sort();
    all
}

/// Enough, minimal, and forbidden exactly when somebody among them is.
fn check_victims(world: &World, id: TaskId, found: &Explanation) -> Result<(), TestCaseError> {
    let Some(victims) = &found.victims else { return Ok(()) };
    let class = world.board.class(world.board.class_of(id).unwrap());
    let alloc = victims.alloc.as_ref().map(|alloc| alloc.id);
    let outer = |task: TaskId| world.board.place_of(task).unwrap().alloc() == alloc;
    let all: Vec<TaskId> = victims.tasks.iter().map(|v| v.task.id).filter(|t| outer(*t)).collect();
    let fits = |without: &[TaskId]| {
        let spot = Spot { machine: victims.machine.id, alloc, without };
        feasible::first(&world.board, class, &spot).is_none()
    };
    prop_assert!(fits(&all), "not enough: {:?}", victims);
    for spared in &all {
        let fewer: Vec<TaskId> = all.iter().copied().filter(|t| t != spared).collect();
        prop_assert!(!fits(&fewer), "{:?} is not needed: {:?}", spared, victims);
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
    let asking = Asking { task: candidate.task.clone(), spec: candidate.spec.clone() };
    prop_assert_eq!(counts(found), counts_by_definition(world, id, &asking));
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
        check_change(world, id, &asking, change)?;
    }
    prop_assert_eq!(changes(found), changes_by_trial(world, id, &asking));
    check_victims(world, id, found)?;
    let lines = text::render(found, &Natural);
    prop_assert!(lines.lines().all(|line| line.chars().count() <= 80), "{}", lines);
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
            if world.draw.one_in(3) {
                world.schedule(Options::exact(), seed);
            }
        }
        let names = &world.state;
        let explainer = Explainer::new(&world.board, names, &Sequential);
        let now = Time(world.now);
        let standings = Standings::new(&world.board, Order::Fair, now, seed);
        for id in world.board.pending().to_vec() {
            let found = explainer.task(id, &standings).unwrap();
            check_task(&world, id, &found)?;
        }
    }
}

/// A walk over several parts gives the same whoever runs them, alone or with others.
#[test]
fn does_not_depend_on_the_executor() {
    let mut world = World::new(7, 4500);
    (0..80).for_each(|_| world.submit());
    world.schedule(Options::exact(), 3);
    (0..20).for_each(|_| world.submit());
    let classes: Vec<ClassId> = (0..world.board.class_count() as u32).map(ClassId).collect();
    let names = BoardNames(&world.board);
    let by =
        |executor: &dyn Executor| Explainer::new(&world.board, &names, executor).classes(&classes);
    let sequential = by(&Sequential);
    assert_eq!(sequential, by(&Reversed));
    assert_eq!(sequential, by(&Threads));
    let alone = |class: &ClassId| Explainer::new(&world.board, &names, &Reversed).class(*class);
    let few: Vec<Explanation> = classes.iter().take(5).map(alone).collect();
    assert_eq!(sequential[..5], few[..]);
    for explanation in &sequential {
        let sum: u32 = explanation.reasons.iter().map(|r| r.machines).sum();
        assert_eq!(sum, 4500);
    }
}

const GIB: u64 = 1 << 30;

/// A cell built by hand: machines by name and capacity, jobs by what differs from the plain one.
struct Small {
    board: Board,
    machines: Vec<MachineSpec>,
    jobs: Vec<Arc<JobSpec>>,
    tasks: u32,
}

impl Small {
    fn new() -> Small {
        Small { board: Board::new(), machines: vec![], jobs: vec![], tasks: 0 }
    }

    fn add_machine(
        &mut self,
        name: &str,
        cores: u64,
        gib: u64,
        more: impl FnOnce(&mut MachineSpec),
    ) {
        let id = MachineId(self.machines.len() as u32);
        let mut spec = MachineSpec {
            name: Name::new(name).unwrap(),
            capacity: Resources::new(cores * 1000, gib * GIB, 100 * GIB, 0),
            attributes: BTreeMap::new(),
            labels: BTreeMap::new(),
            rack: None,
            power: None,
            devices: vec![],
            named: vec![],
            ports: PortRange { first: 20_000, last: 20_009 },
            address: None,
        };
        more(&mut spec);
        self.machines.push(spec);
        self.put_machine(id, true, false, false);
    }

    fn put_machine(&mut self, id: MachineId, up: bool, draining: bool, short: bool) {
        let facts = MachineFacts {
            spec: &self.machines[id.slot()],
            up,
            draining,
            short,
            retained_disk: 0,
            ephemeral: &[],
            packages: &[],
        };
        self.board.put_machine(id, &facts);
    }

    fn job(&mut self, name: &str, priority: u16, more: impl FnOnce(&mut JobSpec)) -> JobId {
        let mut spec = specs::plain(name, 1, priority, Resources::new(1000, GIB, 0, 0));
        more(&mut spec);
        let id = JobId(self.jobs.len() as u32);
        let spec = Arc::new(spec);
        let facts = JobFacts {
            user: UserId(0),
            spec: &spec,
            version: 1,
            alloc_set: None,
            budget: spec.max_down,
            absent: 0,
        };
        self.board.put_job(id, &facts);
        self.jobs.push(spec);
        id
    }

    fn wait(&mut self, job: JobId, not_before: u64) -> TaskId {
        let task = TaskId(self.tasks);
        let facts = PendingFacts {
            job,
            index: self.tasks,
            attempt: 0,
            not_before: Time(not_before),
            reservation: None,
            avoid: &[],
        };
        self.board.put_pending(task, &facts);
        self.tasks += 1;
        task
    }

    fn hold(&mut self, job: JobId, machine: u32) -> TaskId {
        let task = TaskId(self.tasks);
        let spec = self.jobs[job.slot()].clone();
        let facts = HeldFacts {
            job,
            index: self.tasks,
            attempt: 1,
            spec: &spec,
            version: 1,
            holding: Holding::Running,
            machine: MachineId(machine),
            alloc: None,
            reservation: spec.task.limits,
            ports: &spec.task.static_ports,
            devices: &[],
        };
        self.board.put_held(task, &facts);
        self.tasks += 1;
        task
    }

    fn explain(&self, task: TaskId) -> Explanation {
        let standings = Standings::new(&self.board, Order::Fair, Time(100), 0);
        Explainer::new(&self.board, self, &Sequential).task(task, &standings).unwrap()
    }

    fn text(&self, task: TaskId) -> String {
        text::render(&self.explain(task), &Natural)
    }
}

impl Names for Small {
    fn machine(&self, id: MachineId) -> String {
        self.machines[id.slot()].name.to_string()
    }
    fn task(&self, id: TaskId) -> String {
        format!("ada/{}", BoardNames(&self.board).task(id))
    }
}

#[test]
fn a_shortage_reads_like_a_sentence() {
    let mut cell = Small::new();
    cell.add_machine("m1", 8, 16, |_| {});
    cell.add_machine("m2", 8, 16, |_| {});
    cell.add_machine("m3", 2, 64, |_| {});
    let web = cell.job("web", 200, |spec| spec.task.limits = Resources::new(2000, 13 * GIB, 0, 0));
    cell.hold(web, 0);
    let db = cell.job("db", 210, |spec| spec.task.limits = Resources::new(2000, 14 * GIB, 0, 0));
    cell.hold(db, 1);
    let new = cell.job("new", 220, |spec| spec.task.limits = Resources::new(4000, 4 * GIB, 0, 0));
    let task = cell.wait(new, 0);
    let want = "\
pending: needs 4 cores cpu and 4 GiB ram; no machine of 3 has both free.
2 lack ram (most free: 3 GiB on m1), 1 lacks cpu (most free: 2 cores on m3).
Would fit if ram <= 3 GiB (on m1). Or if cpu <= 2 cores (on m3).
The cell is only full: 2 machines could take it when empty.
Room would need ada/web/0 (priority 200) on m1 evicted, which is not allowed:
  production never preempts production.
Number 1 of 1 in the queue, 0 of higher priority.";
    assert_eq!(cell.text(task), want);
}

#[test]
fn a_machine_that_is_short_itself_says_so_to_all_but_production() {
    let mut cell = Small::new();
    cell.add_machine("m1", 8, 16, |_| {});
    cell.add_machine("m2", 1, 16, |_| {});
    cell.put_machine(MachineId(0), true, false, true);
    let ask = |spec: &mut JobSpec| spec.task.limits = Resources::new(2000, GIB, 0, 0);
    let batch = cell.job("batch", 100, ask);
    let task = cell.wait(batch, 0);
    let want = "\
pending: needs 2 cores cpu; the only machine it may run on lacks it.
1 lacks cpu (most free: 1 core on m2), 1 is short itself, open to production
  only.
Would fit if cpu <= 1 core (on m2).
A machine that is short takes it when that has passed.
Number 1 of 1 in the queue, 0 of higher priority.";
    assert_eq!(cell.text(task), want);
    let web = cell.job("web", 200, ask);
    let task = cell.wait(web, 0);
    assert_eq!(cell.explain(task).fitting(), 1);
}

#[test]
fn a_port_clash_names_the_port_and_its_holders() {
    let mut cell = Small::new();
    cell.add_machine("m1", 8, 16, |_| {});
    cell.add_machine("m2", 8, 16, |_| {});
    let web = cell.job("web", 200, |spec| spec.task.static_ports = vec![8080]);
    cell.hold(web, 0);
    cell.hold(web, 1);
    let new = cell.job("new", 100, |spec| spec.task.static_ports = vec![8080]);
    let task = cell.wait(new, 0);
    let want = "\
pending: no machine of 2 can take it.
on 2 port 8080 is taken (by ada/web/0 on m1 and ada/web/1 on m2).
Would fit if it did not insist on port 8080 (on 2 machines, such as m1).
The cell is only full: 2 machines could take it when empty.
Room would need ada/web/0 (priority 200) on m1 evicted, which is not allowed:
  equal or higher priority is never evicted.
Number 1 of 1 in the queue, 0 of higher priority.";
    assert_eq!(cell.text(task), want);
}

#[test]
fn a_constraint_is_quoted_and_can_be_dropped() {
    let mut cell = Small::new();
    let flash = |spec: &mut MachineSpec| {
        spec.attributes.insert(token("flash"), AttributeValue::Integer(1));
    };
    cell.add_machine("m1", 8, 16, |_| {});
    cell.add_machine("m2", 1, 16, flash);
    let new = cell.job("new", 100, |spec| {
        spec.task.limits = Resources::new(2000, GIB, 0, 0);
        let (attribute, operator) = (token("flash"), Operator::Exists);
        spec.constraints = vec![Constraint { attribute, operator, strength: Strength::Hard }];
    });
    let task = cell.wait(new, 0);
    let want = "\
pending: needs 2 cores cpu; the only machine it may run on lacks it.
1 fails the constraint flash exists, 1 lacks cpu (most free: 1 core on m2).
Would fit if cpu <= 1 core (on m2). Or if the constraint flash exists were
  dropped (on m1).
As asked, no machine could take it even when empty: waiting will not help.
Number 1 of 1 in the queue, 0 of higher priority.";
    assert_eq!(cell.text(task), want);
}

/// Whoever waits for the end of a drain, or for a machine to come back, does not wait in vain.
#[test]
fn a_machine_that_drains_or_is_down_is_worth_waiting_for() {
    let in_vain = "As asked, no machine could take it even when empty: waiting will not help.";
    let waits = "It waits for machines that drain or are down: 1 machine could take it once open \
                 and empty.";
    let check = |up: bool, draining: bool, full: bool, kind: i64, want: &str| {
        let mut cell = Small::new();
        cell.add_machine("m1", 8, 16, |spec| {
            spec.attributes.insert(token("kind"), AttributeValue::Integer(kind));
        });
        cell.add_machine("m2", 1, 16, |_| {});
        let all = cell.job("all", 100, |spec| spec.task.limits.cpu = 8000);
        if full {
            cell.hold(all, 0);
        }
        cell.put_machine(MachineId(0), up, draining, false);
        let new = cell.job("new", 100, |spec| {
            spec.task.limits.cpu = 2000;
            let operator = Operator::NotEqual(AttributeValue::Integer(7));
            let attribute = token("kind");
            spec.constraints = vec![Constraint { attribute, operator, strength: Strength::Hard }];
        });
        let task = cell.wait(new, 0);
        let text = cell.text(task).replace("\n  ", " ");
        assert!(text.contains(want), "up {up}, draining {draining}, full {full}: {text}");
    };
    check(true, true, false, 1, waits);
    check(true, true, true, 1, waits);
    check(false, false, false, 1, waits);
    check(true, true, false, 7, in_vain);
    check(true, false, true, 1, "The cell is only full");
}

#[test]
fn two_limits_together_and_limits_beyond_the_largest_machine() {
    let mut cell = Small::new();
    cell.add_machine("m1", 8, 16, |_| {});
    let new = cell.job("new", 100, |spec| {
        spec.task.limits = Resources::new(10_000, 32 * GIB, 0, 0);
    });
    let task = cell.wait(new, 0);
    let want = "\
pending: needs 10 cores cpu; no machine of 1 has it free.
1 lacks cpu (most free: 8 cores on m1).
No single change of the request would make it fit; cpu <= 8 cores and ram <= 16
  GiB (on m1) together would.
No machine is large enough even when empty: asked 10 cores cpu, the largest has
  8 cores and 32 GiB ram, the largest has 16 GiB.
Number 1 of 1 in the queue, 0 of higher priority.";
    assert_eq!(cell.text(task), want);
}

#[test]
fn a_task_in_back_off_fits_and_says_until_when_it_waits() {
    let mut cell = Small::new();
    cell.add_machine("m1", 8, 16, |_| {});
    let new = cell.job("new", 100, |_| {});
    let task = cell.wait(new, 5000);
    let want = "\
pending: fits on the only machine as it is now.
Next try in 5 s (back-off or lease).";
    assert_eq!(cell.text(task), want);
}

#[test]
fn a_spent_budget_protects_a_victim() {
    let mut cell = Small::new();
    cell.add_machine("m1", 1, 16, |_| {});
    let low = cell.job("low", 50, |spec| spec.max_down = Some(0));
    cell.hold(low, 0);
    let new = cell.job("new", 100, |_| {});
    let task = cell.wait(new, 0);
    let victims = cell.explain(task).victims.unwrap();
    assert!(!victims.allowed);
    assert_eq!(victims.tasks[0].obstacle, Some(Obstacle::Budget { left: 0 }));
}

#[test]
fn the_place_in_the_queue_follows_priority_and_turns() {
    let mut cell = Small::new();
    cell.add_machine("m1", 1, 1, |_| {});
    let low = cell.job("low", 50, |_| {});
    let high = cell.job("high", 250, |_| {});
    let first_low = cell.wait(low, 0);
    let second_low = cell.wait(low, 0);
    let only_high = cell.wait(high, 0);
    let check = |task, position, higher_priority| {
        let standing = cell.explain(task).standing.unwrap();
        assert_eq!((standing.position, standing.waiting), (Some(position), 3));
        assert_eq!(standing.higher_priority, higher_priority);
    };
    check(only_high, 1, 0);
    check(first_low, 2, 1);
    check(second_low, 3, 1);
}

#[test]
fn a_shortage_of_devices_makes_the_headline() {
    let mut cell = Small::new();
    let gpus = |model: &'static str, count: usize| {
        move |spec: &mut MachineSpec| {
            spec.devices = vec![Device { kind: token("gpu"), model: token(model) }; count];
        }
    };
    cell.add_machine("m1", 8, 16, gpus("t4", 1));
    cell.add_machine("m2", 8, 16, gpus("t4", 1));
    cell.add_machine("m3", 1, 16, gpus("t4", 2));
    let new = cell.job("new", 100, |spec| {
        let (kind, models) = (token("gpu"), vec![token("a100"), token("t4")]);
        spec.task.limits = Resources::new(2000, GIB, 0, 0);
        spec.task.devices = vec![DeviceRequest { kind, models, count: 2, milli: WHOLE }];
    });
    let task = cell.wait(new, 0);
    let text = cell.text(task);
    let want = "\
pending: needs 2 gpu (a100 or t4) and 2 cores cpu; no machine of 3 has both
  free.
2 lack gpu (a100 or t4) (asked 2, at best 1 on m1), 1 lacks cpu (most free: 1
  core on m3).
";
    assert!(text.starts_with(want), "{text}");
}

/// Tasks of its own job keep it away from machines that are far from full.
#[test]
fn machines_kept_apart_by_spread_are_told_from_full_ones() {
    let mut cell = Small::new();
    let rack = |spec: &mut MachineSpec| spec.rack = Some(token("r1"));
    cell.add_machine("m1", 8, 16, rack);
    cell.add_machine("m2", 8, 16, rack);
    let apart = |domain: Domain| {
        move |spec: &mut JobSpec| spec.spread = vec![SpreadLimit { domain, limit: 1 }]
    };
    let web = cell.job("web", 100, apart(Domain::Machine));
    cell.hold(web, 0);
    cell.hold(web, 1);
    let task = cell.wait(web, 0);
    let found = cell.explain(task);
    assert_eq!((found.when_empty, found.kept_apart), (2, 2));
    let line = "Tasks of its own job are in the way: 2 machines could take it when empty.";
    assert!(cell.text(task).contains(line), "{}", cell.text(task));
    // A sibling elsewhere in the rack stands against an empty machine too.
    let db = cell.job("db", 100, apart(Domain::Rack));
    cell.hold(db, 0);
    let task = cell.wait(db, 0);
    let found = cell.explain(task);
    assert_eq!((found.when_empty, found.kept_apart), (1, 1));
    // Full machines are counted beside those kept apart.
    let big = cell.job("big", 200, |spec| {
        spec.task.limits = Resources::new(7000, GIB, 0, 0);
    });
    cell.hold(big, 1);
    let two = cell.job("two", 100, |spec| {
        apart(Domain::Machine)(spec);
        spec.task.limits = Resources::new(2000, GIB, 0, 0);
    });
    cell.hold(two, 0);
    let task = cell.wait(two, 0);
    let found = cell.explain(task);
    assert_eq!((found.when_empty, found.kept_apart), (2, 1));
    let text = cell.text(task).replace("\n  ", " ");
    assert!(text.contains("1 machine could take it when empty, 1 more without tasks of its"));
}

#[test]
fn the_machines_a_task_could_be_on_are_told_best_first_and_nothing_changes() {
    use cellwright_sched::explain::here::why_here;
    let mut cell = Small::new();
    for name in ["m1", "m2", "m3", "m4"] {
        cell.add_machine(name, 8, 16, |_| {});
    }
    let web = cell.job("web", 100, |spec| spec.task.limits = Resources::new(5000, GIB, 0, 0));
    let (task, _) = (cell.hold(web, 0), cell.hold(web, 1));
    let before = cell.board.clone();
    let names = BoardNames(&before);
    let here = why_here(&mut cell.board, task, &names, Options::exact(), 0).unwrap();
    assert!(cell.board.same_as(&before).is_ok());
    // Its own place counts as free; the other task's machine has no room for a second.
    assert_eq!(here.fitting, 3);
    let own: Vec<u32> = here.candidates.iter().filter(|c| c.here).map(|c| c.machine.id.0).collect();
    assert_eq!(own, [0]);
    let ranks: Vec<u32> = here.candidates.iter().map(|c| c.rank).collect();
    assert_eq!(ranks, [1, 2, 3]);
    let waits = cell.wait(web, 0);
    assert_eq!(why_here(&mut cell.board, waits, &names, Options::exact(), 0), None);
}

#[test]
fn a_folder_that_nobody_lends_is_named_and_so_is_doing_without_it() {
    let mut cell = Small::new();
    let lends = |how: &'static str| {
        move |spec: &mut MachineSpec| {
            let how = AttributeValue::Text(how.into());
            spec.attributes.insert(lent_attribute("/srv").unwrap(), how);
        }
    };
    cell.add_machine("m1", 4, 8, |_| ());
    cell.add_machine("m2", 4, 8, lends(LENT_READ_ONLY));
    let borrows = |writable| {
        move |spec: &mut JobSpec| {
            let (source, target) = ("/srv/data".into(), "/data".into());
            spec.task.isolation.volumes = vec![Volume { source, target, writable }];
        }
    };
    let (writer, reader) =
        (cell.job("writer", 100, borrows(true)), cell.job("reader", 100, borrows(false)));
    let (writer, reader) = (cell.wait(writer, 0), cell.wait(reader, 0));
    let codes = |task| -> Vec<(&str, u32)> {
        cell.explain(task).reasons.iter().map(|reason| (reason.code, reason.machines)).collect()
    };
    assert_eq!(codes(writer), [("volume", 2)]);
    assert_eq!(codes(reader), [("volume", 1), (FITS, 1)]);
    assert_eq!(
        cell.text(writer),
        "pending: no machine of 2 can take it.\n\
         2 do not lend volume /srv/data for writing.\n\
         Would fit if it did without volume /srv/data for writing (on 2 machines, such as\n  m1).\n\
         As asked, no machine could take it even when empty: waiting will not help.\n\
         Number 1 of 2 in the queue, 0 of higher priority."
    );
    // Whoever does not lend comes before whoever is full, and counts once.
    let large = cell.job("large", 100, |spec| {
        borrows(false)(spec);
        spec.task.limits = Resources::new(9000, GIB, 0, 0);
    });
    let large = cell.wait(large, 0);
    let counts: BTreeMap<&str, u32> =
        cell.explain(large).reasons.iter().map(|r| (r.code, r.machines)).collect();
    assert_eq!(counts, BTreeMap::from([("volume", 1), ("resource", 1)]));
}
