//! Eviction from over-committed machines (B39, B40): the tasks that must leave a machine that holds
//! more than it has. The lowest priorities go first, of equals the one that gives back most of what
//! is lacking, and no task goes whose leaving turns out not to be needed.
//!
//! The same holds inside an alloc, which is to its tasks what a machine is to the rest: when their
//! reservations rise beyond it, some of them leave it. An alloc that leaves takes its tasks along,
//! so no victims are chosen inside one that does.
//!
//! Prod that is packed by its limits is evicted only for its like: such a task is a victim when
//! their limits alone exceed the machine, or when it holds a device that the machine no longer has,
//! or has replaced by one of another kind or model than the task asked for. Prod of the batch class
//! is packed by reservations like everything below it, and leaves after all of that. If prod fits
//! but retained disk does not, there are no victims: the disk is freed by itself. Named resources
//! whose capacity fell below their use make no victims: their holders stay.
//!
//! Only tasks that run on the machine are victims: room held for a task that runs elsewhere is
//! released by the command that made the excess, before any task has to leave (`crate::apply`).
//!
//! Rejected: the smallest set by count. It would evict one batch task where two best-effort tasks
//! suffice, and a priority is a promise about order.

use crate::device::{DeviceGrant, WHOLE_DEVICE};
use crate::edit::retained_disk;
use crate::id::{MachineId, TaskId};
use crate::priority::Priority;
use crate::resource::Resources;
use crate::state::State;
use crate::task::Task;
use std::cmp::Reverse;

/// The victims on `machine`, in order of eviction; empty when it is not over-committed.
#[must_use]
pub fn victims(state: &State, machine: MachineId) -> Vec<TaskId> {
    let Some(sums) = Sums::of(state, machine) else { return Vec::new() };
    let mut leaving = choose_victims(sums, holders(state, machine, None));
    let full = state.machine_load(machine).map_or(&[][..], |load| &load.overfull_allocs);
    let stay: Vec<TaskId> = full.iter().filter(|alloc| !leaving.contains(alloc)).copied().collect();
    for alloc in stay {
        let inside = Sums::inside(state, alloc);
        let named = inside.map(|sums| choose_victims(sums, holders(state, machine, Some(alloc))));
        leaving.extend(named.unwrap_or_default());
    }
    leaving
}

/// Chooses the victims among `rest`.
fn choose_victims<'a>(mut sums: Sums<'a>, mut rest: Vec<Holder<'a>>) -> Vec<TaskId> {
    if !sums.is_exceeded() {
        return Vec::new();
    }
    let mut chosen = Vec::new();
    for round in [EvictionRound::ByLimits, EvictionRound::ByReservations, EvictionRound::ForDevices]
    {
        add_victims(&mut sums, &mut rest, &mut chosen, round);
    }
    reprieve_unneeded(&mut sums, &mut chosen);
    chosen.into_iter().map(|holder| holder.id).collect()
}

/// The candidates of one round of choosing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EvictionRound {
    /// What is packed by limits, while these limits alone exceed the machine.
    ByLimits,
    /// What is packed by reservations.
    ByReservations,
    /// What is packed by limits and holds devices that were removed, or are not what it asked for.
    ForDevices,
}

/// Takes holders out, the worst first, while the round has one that gives something back.
fn add_victims<'a>(
    sums: &mut Sums<'a>,
    rest: &mut Vec<Holder<'a>>,
    chosen: &mut Vec<Holder<'a>>,
    round: EvictionRound,
) {
    loop {
        let worst = rest
            .iter()
            .enumerate()
            .map(|(at, holder)| (at, holder, sums.excess_reduction(holder, round)))
            .filter(|(.., relief)| *relief > 0)
            .min_by_key(|(_, holder, relief)| (holder.priority, Reverse(*relief), holder.id))
            .map(|(at, ..)| at);
        let Some(at) = worst else { return };
        let holder = rest.remove(at);
        sums.add_or_remove(&holder, false);
        chosen.push(holder);
    }
}

/// Reprieves victims that can come back without renewing the excess, the highest priority first.
fn reprieve_unneeded(sums: &mut Sums<'_>, chosen: &mut Vec<Holder<'_>>) {
    let mut order: Vec<(Priority, TaskId)> = chosen.iter().map(|h| (h.priority, h.id)).collect();
    order.sort_unstable();
    for (_, id) in order.into_iter().rev() {
        let Some(at) = chosen.iter().position(|holder| holder.id == id) else { continue };
        let before = sums.excess();
        sums.add_or_remove(&chosen[at], true);
        if sums.excess() == before {
            chosen.remove(at);
        } else {
            sums.add_or_remove(&chosen[at], false);
        }
    }
}

/// A task or alloc charged to the machine, or a task charged to an alloc.
struct Holder<'a> {
    id: TaskId,
    priority: Priority,
    is_packed_by_limits: bool,
    limits: Resources,
    reservation: Resources,
    devices: &'a [DeviceGrant],
}

impl Holder<'_> {
    fn prod_limits(&self) -> Resources {
        if self.is_packed_by_limits { self.limits } else { Resources::ZERO }
    }
}

fn holders(state: &State, machine: MachineId, alloc: Option<TaskId>) -> Vec<Holder<'_>> {
    let tasks = state.machine_load(machine).map_or(&[][..], |load| &load.tasks);
    let holder = |id: &TaskId| {
        let task: &Task = state.tasks().get(*id)?;
        let spec = state.spec_of(task)?;
        (task.state.holds_resources() && task.alloc() == alloc).then(|| Holder {
            id: *id,
            priority: spec.priority,
            is_packed_by_limits: spec.is_packed_by_limits(),
            limits: task.counted_limits(spec.limits_of(task.index)),
            reservation: task.reservation,
            devices: task.devices(),
        })
    };
    tasks.iter().filter_map(holder).collect()
}

/// Capacity of a machine or an alloc and what is held of it, changed as holders are taken out and
/// put back.
struct Sums<'a> {
    prod_capacity: Resources,
    /// The capacity for reservations. At least the retained disk: no eviction gives that back, so
    /// no task leaves because of it.
    capacity: Resources,
    prod_limits: Resources,
    reserved: Resources,
    devices: Vec<u32>,
    known_devices: usize,
    /// Holders of devices they did not ask for, and how many of them are still there.
    wrong_holders: &'a [TaskId],
    wrong_left: usize,
}

/// The shortfall: prod by limits, all by reservations, device shares beyond what exists, and the
/// number of holders of devices they did not ask for.
#[derive(PartialEq, Eq)]
struct Excess {
    prod: Resources,
    all: Resources,
    devices: u32,
    wrong: usize,
}

impl<'a> Sums<'a> {
    fn of(state: &'a State, id: MachineId) -> Option<Sums<'a>> {
        let machine = state.machines().get(id)?;
        let load = state.machine_load(id)?;
        Some(Sums {
            prod_capacity: machine.spec.capacity,
            capacity: machine.spec.capacity.max(retained_disk(machine)),
            prod_limits: load.prod_limits,
            reserved: load.reserved,
            devices: load.devices.iter().map(|used| u32::from(*used)).collect(),
            known_devices: machine.spec.devices.len(),
            wrong_holders: &load.wrong_devices,
            wrong_left: load.wrong_devices.len(),
        })
    }

    /// Inside an alloc there are no devices: its tasks share those of the alloc.
    fn inside(state: &'a State, alloc: TaskId) -> Option<Sums<'a>> {
        let row = state.tasks().get(alloc)?;
        let load = state.alloc_load(alloc)?;
        let limits = state.spec_of(row)?.limits_of(row.index);
        Some(Sums {
            prod_capacity: limits,
            capacity: limits,
            prod_limits: load.prod_limits,
            reserved: load.reserved,
            devices: Vec::new(),
            known_devices: 0,
            wrong_holders: &[],
            wrong_left: 0,
        })
    }

    fn excess(&self) -> Excess {
        Excess {
            prod: self.prod_limits.minus(self.prod_capacity),
            all: self.reserved.minus(self.capacity),
            devices: (0..self.devices.len()).map(|at| self.device_excess(at)).sum(),
            wrong: self.wrong_left,
        }
    }

    fn is_exceeded(&self) -> bool {
        let (prod, all) = (Resources::ZERO, Resources::ZERO);
        self.excess() != Excess { prod, all, devices: 0, wrong: 0 }
    }

    fn device_excess(&self, at: usize) -> u32 {
        let whole = if at < self.known_devices { u32::from(WHOLE_DEVICE) } else { 0 };
        self.devices.get(at).map_or(0, |used| used.saturating_sub(whole))
    }

    /// How far the excess shrinks when `holder` leaves: thousandths of what is lacking, summed over
    /// the dimensions, so that bytes and milli-cores weigh alike.
    fn excess_reduction(&self, holder: &Holder<'_>, round: EvictionRound) -> u64 {
        if round == EvictionRound::ByReservations && holder.is_packed_by_limits {
            return 0;
        }
        let excess = self.excess();
        let share = |gives: u64, lacks: u64| match lacks {
            0 => 0,
            _ => u64::max(gives.min(lacks).saturating_mul(1000) / lacks, u64::from(gives > 0)),
        };
        let part = |gives: Resources, lacks: Resources| -> u64 {
            let pairs = gives.to_array().into_iter().zip(lacks.to_array());
            pairs.map(|(gives, lacks)| share(gives, lacks)).sum()
        };
        let devices = holder.devices.iter().map(|grant| {
            let at = usize::from(grant.device);
            share(u64::from(grant.milli), u64::from(self.device_excess(at)))
        });
        let wrong = if self.wrong_holders.contains(&holder.id) { 1000 } else { 0 };
        let for_devices = wrong + devices.sum::<u64>();
        match round {
            EvictionRound::ByLimits => part(holder.prod_limits(), excess.prod),
            EvictionRound::ByReservations => part(holder.reservation, excess.all) + for_devices,
            EvictionRound::ForDevices => for_devices,
        }
    }

    fn add_or_remove(&mut self, holder: &Holder<'_>, back: bool) {
        let by = |sum: Resources, part| if back { sum.plus(part) } else { sum.minus(part) };
        self.prod_limits = by(self.prod_limits, holder.prod_limits());
        self.reserved = by(self.reserved, holder.reservation);
        if self.wrong_holders.contains(&holder.id) {
            self.wrong_left = if back { self.wrong_left + 1 } else { self.wrong_left - 1 };
        }
        for grant in holder.devices {
            if let Some(used) = self.devices.get_mut(usize::from(grant.device)) {
                let milli = u32::from(grant.milli);
                *used = if back { *used + milli } else { used.saturating_sub(milli) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fixture::{Cell, job, machine};
    use crate::command::{Command, ReservationChange};
    use crate::device::{Device, DeviceRequest};
    use crate::name::Token;
    use crate::priority::{AppClass, Band};

    const M1: MachineId = MachineId(0);

    /// A task of `priority` with limits and a number of devices.
    #[derive(Clone, Copy)]
    struct TaskFixture {
        priority: u16,
        cpu: u64,
        ram: u64,
        gpus: u8,
    }

    fn plain(priority: u16, cpu: u64) -> TaskFixture {
        TaskFixture { priority, cpu, ram: 1, gpus: 0 }
    }

    /// Places these tasks in order on a machine of 100 with two devices, which then shrinks to
    /// `cpu`, `ram` and `gpus`, and compares the positions of the victims.
    fn check(tasks: &[TaskFixture], cpu: u64, ram: u64, gpus: usize, want: &[usize]) {
        let mut cell = Cell::with_machines(0);
        let token = |text| Token::new(text).unwrap();
        let gpu = Device { kind: token("gpu"), model: token("a") };
        let mut spec = machine("m1", 100);
        spec.devices = vec![gpu.clone(); 2];
        cell.ok(Command::AddMachine(spec.clone()));
        cell.ok(Command::MachineUp { machine: M1, incarnation: 1 });
        for band in [Band::BestEffort, Band::Batch, Band::Production] {
            cell.grant("ubar", band, 100);
        }
        for (at, task) in tasks.iter().enumerate() {
            let mut job_spec = job(&format!("j{at}"), 1, task.priority);
            job_spec.task.limits = Resources::new(task.cpu, task.ram, 1, 1);
            if task.gpus > 0 {
                let (kind, count) = (token("gpu"), task.gpus);
                job_spec.task.devices =
                    vec![DeviceRequest { kind, models: vec![], count, milli: 1000 }];
            }
            cell.submit(&job_spec);
            cell.run(&format!("j{at}"), 0, "m1");
        }
        assert_eq!(victims(&cell.state, M1), [], "nobody must leave before the machine shrinks");
        spec.capacity = Resources::new(cpu, ram, 100, 100);
        spec.devices.truncate(gpus);
        cell.ok(Command::UpdateMachine { spec, expect: None });
        let want: Vec<TaskId> = want.iter().map(|at| cell.task_id(&format!("j{at}"), 0)).collect();
        assert_eq!(victims(&cell.state, M1), want);
    }

    #[test]
    fn the_lowest_priority_goes_first_and_only_as_many_as_needed() {
        let three = [plain(150, 30), plain(50, 30), plain(100, 30)];
        check(&three, 90, 100, 2, &[]);
        check(&three, 60, 100, 2, &[1]);
        check(&three, 59, 100, 2, &[1, 2]);
        check(&three, 0, 100, 2, &[1, 2, 0]);
        // Of equals the one that gives back most; the small one would not have sufficed.
        check(&[plain(50, 10), plain(50, 30)], 25, 100, 2, &[1]);
        // The best-effort task that was chosen first is not needed once the batch one must go.
        check(&[plain(50, 10), plain(100, 50)], 20, 100, 2, &[1]);
        // A task that holds nothing of what is lacking stays.
        let (small, large) =
            (plain(50, 10), TaskFixture { priority: 100, cpu: 10, ram: 60, gpus: 0 });
        check(&[small, large], 100, 50, 2, &[1]);
    }

    #[test]
    fn prod_goes_only_for_prod() {
        check(&[plain(200, 40), plain(50, 40)], 60, 100, 2, &[1]);
        check(&[plain(200, 40), plain(50, 40)], 30, 100, 2, &[0, 1]);
        check(&[plain(200, 40), plain(50, 20)], 30, 100, 2, &[0]);
        check(&[plain(210, 20), plain(200, 20)], 20, 100, 2, &[1]);
        // Shares of a removed device can only be given back by the task that holds it.
        let with_gpus = TaskFixture { priority: 200, cpu: 10, ram: 1, gpus: 2 };
        check(&[with_gpus, plain(50, 10)], 100, 100, 1, &[0]);
        check(&[with_gpus, plain(50, 10)], 100, 100, 2, &[]);
    }

    #[test]
    fn reservations_that_rise_oblige_non_prod() {
        let mut cell = Cell::with_machines(1);
        let mut prod = job("jfoo", 1, 200);
        prod.task.limits = Resources::new(90, 1, 1, 1);
        cell.submit(&prod);
        cell.run("jfoo", 0, "m1");
        let task = cell.task_id("jfoo", 0);
        let set = |cpu| {
            let reservation = Resources::new(cpu, 1, 1, 1);
            Command::SetReservations(vec![ReservationChange { task, attempt: 1, reservation }])
        };
        cell.ok(set(20));
        let mut batch = job("jbar", 1, 100);
        batch.task.limits = Resources::new(60, 1, 1, 1);
        cell.submit(&batch);
        cell.run("jbar", 0, "m1");
        cell.ok(set(41));
        assert_eq!(victims(&cell.state, M1), [cell.task_id("jbar", 0)]);
    }

    /// Production of the batch class fits where its limits would not, and gives way when
    /// reservations rise, after everything below it.
    #[test]
    fn production_of_the_batch_class_is_packed_by_reservations_and_leaves_last() {
        let mut cell = Cell::with_machines(2);
        cell.grant("ubar", Band::Production, 200);
        let mut prod = job("jprod", 3, 200);
        prod.appclass = Some(AppClass::Batch);
        prod.task.limits = Resources::new(50, 1, 1, 1);
        cell.submit(&prod);
        let set = |cell: &mut Cell, index: usize, cpu: u64| {
            let task = cell.task_id("jprod", index);
            let reservation = Resources::new(cpu, 1, 1, 1);
            let change = ReservationChange { task, attempt: 1, reservation };
            cell.ok(Command::SetReservations(vec![change]));
        };
        for index in 0..3 {
            cell.run("jprod", index, "m1");
            set(&mut cell, index, 20);
        }
        let load = cell.state.machine_load(M1).unwrap();
        assert_eq!((load.limits.cpu, load.reserved.cpu, load.prod_limits.cpu), (150, 60, 0));
        let mut batch = job("jbatch", 1, 100);
        batch.task.limits = Resources::new(30, 1, 1, 1);
        cell.submit(&batch);
        cell.run("jbatch", 0, "m1");
        set(&mut cell, 0, 40);
        let low = cell.task_id("jbatch", 0);
        assert_eq!(victims(&cell.state, M1), [low]);
        let cause = crate::command::EvictCause::OverCommit;
        cell.ok(Command::Evict { task: low, attempt: 1, cause });
        set(&mut cell, 1, 50);
        assert_eq!(victims(&cell.state, M1), [cell.task_id("jprod", 0)]);
        // The same job that says nothing more of itself is packed by its limits.
        prod.appclass = None;
        prod.name = crate::apply::fixture::name("jserve");
        prod.task.limits.cpu = 20;
        prod.count = 1;
        cell.submit(&prod);
        cell.run("jserve", 0, "m2");
        let load = cell.state.machine_load(MachineId(1)).unwrap();
        assert_eq!(load.prod_limits.cpu, 20);
    }

    /// Inside an alloc of 20: a prod task and two others with limits of 10 each, then reservations.
    #[test]
    fn reservations_that_rise_inside_an_alloc_oblige_those_inside() {
        let mut cell = Cell::with_machines(1);
        let mut set = job("jset", 1, 200);
        set.kind = crate::spec::JobKind::AllocSet;
        set.task.limits = crate::apply::fixture::all(20);
        cell.submit(&set);
        cell.run("jset", 0, "m1");
        let alloc = cell.task_id("jset", 0);
        for (name, priority) in [("jtop", 200), ("jmid", 110), ("jlow", 100)] {
            let mut spec = job(name, 1, priority);
            spec.alloc_set = Some(crate::apply::fixture::key("ubar/jset"));
            cell.submit(&spec);
        }
        let set = |cell: &mut Cell, name: &str, cpu: u64| {
            let (task, attempt) = (cell.task_id(name, 0), cell.task(name, 0).attempt);
            let reservation = Resources { cpu, ..Resources::ZERO };
            let change = ReservationChange { task, attempt, reservation };
            cell.ok(Command::SetReservations(vec![change]));
        };
        for name in ["jtop", "jmid", "jlow"] {
            set(&mut cell, name, 2);
            cell.run_in(name, 0, "m1", Some(alloc));
        }
        let flagged = |cell: &Cell| cell.state.machines().get(M1).unwrap().over_committed;
        set(&mut cell, "jtop", 10);
        set(&mut cell, "jmid", 8);
        assert_eq!((victims(&cell.state, M1), flagged(&cell)), (vec![], false));
        set(&mut cell, "jmid", 9);
        assert_eq!(
            (victims(&cell.state, M1), flagged(&cell)),
            (vec![cell.task_id("jlow", 0)], true)
        );
        set(&mut cell, "jlow", 1);
        set(&mut cell, "jmid", 10);
        assert_eq!(victims(&cell.state, M1), [cell.task_id("jlow", 0)]);
        let (task, attempt) = (cell.task_id("jtop", 0), 1);
        let cause = crate::command::EvictCause::OverCommit;
        let others = "not possible while others must leave machine m1 before task row 1";
        assert_eq!(cell.rejection_text(Command::Evict { task, attempt, cause }), others);
        let task = cell.task_id("jlow", 0);
        cell.ok(Command::Evict { task, attempt, cause });
        assert_eq!((victims(&cell.state, M1), flagged(&cell)), (vec![], false));
        // When the alloc itself must go, there are no victims inside it.
        let shrink = |cpu| {
            let mut spec = machine("m1", 100);
            spec.capacity.cpu = cpu;
            Command::UpdateMachine { spec, expect: None }
        };
        cell.report("jlow", 0, crate::command::Observed::Stopped);
        set(&mut cell, "jlow", 0);
        cell.run_in("jlow", 0, "m1", Some(alloc));
        set(&mut cell, "jlow", 1);
        cell.ok(shrink(19));
        assert_eq!(victims(&cell.state, M1), [alloc]);
    }

    /// Two tasks that take any device and one that takes a model, on a device each; then the
    /// machine has other devices.
    #[test]
    fn holders_of_a_device_that_was_replaced_by_another_must_leave() {
        let token = |text| Token::new(text).unwrap();
        let device = |kind, model| Device { kind: token(kind), model: token(model) };
        let with = |second: Device, third: Device| {
            let mut spec = machine("m1", 100);
            spec.devices = vec![device("gpu", "a"), second, third];
            spec
        };
        let gpu = || device("gpu", "a");
        let mut cell = Cell::with_machines(0);
        cell.ok(Command::AddMachine(with(gpu(), gpu())));
        cell.ok(Command::MachineUp { machine: M1, incarnation: 1 });
        cell.grant("ubar", Band::Production, 100);
        for (name, models) in [("jany", vec![]), ("jpick", vec![token("a")]), ("jlast", vec![])] {
            let mut spec = job(name, 1, 200);
            spec.task.devices =
                vec![DeviceRequest { kind: token("gpu"), models, count: 1, milli: 1000 }];
            cell.submit(&spec);
            cell.run(name, 0, "m1");
        }
        let mut check = |second: Device, third: Device, want: &[&str]| {
            cell.ok(Command::UpdateMachine { spec: with(second, third), expect: None });
            let want: Vec<TaskId> = want.iter().map(|name| cell.task_id(name, 0)).collect();
            assert_eq!(victims(&cell.state, M1), want);
            let flagged = cell.state.machines().get(M1).unwrap().over_committed;
            assert_eq!(flagged, !want.is_empty());
        };
        check(gpu(), device("gpu", "b"), &[]);
        check(device("gpu", "b"), gpu(), &["jpick"]);
        check(device("gpu", "b"), device("tpu", "a"), &["jpick", "jlast"]);
        check(gpu(), gpu(), &[]);
    }

    #[test]
    fn prod_does_not_leave_for_disk_that_others_left_behind() {
        let mut cell = Cell::with_machines(1);
        let mut prod = job("jfoo", 1, 200);
        prod.task.limits = Resources::new(1, 1, 60, 1);
        let mut batch = job("jbar", 1, 100);
        batch.task.limits = Resources::new(1, 1, 40, 1);
        let keep = crate::time::Span::seconds(60);
        batch.retain_disk = Some(crate::spec::RetainDisk { bytes: 40, keep, log_saver: None });
        for (name, spec) in [("jfoo", prod), ("jbar", batch)] {
            cell.submit(&spec);
            cell.run(name, 0, "m1");
        }
        cell.report("jbar", 0, crate::command::Observed::Finished);
        let shrink = |disk| {
            let mut spec = machine("m1", 100);
            spec.capacity.disk = disk;
            Command::UpdateMachine { spec, expect: None }
        };
        cell.ok(shrink(70));
        assert!(cell.state.machines().get(M1).unwrap().over_committed);
        assert_eq!(victims(&cell.state, M1), []);
        cell.ok(shrink(59));
        assert_eq!(victims(&cell.state, M1), [cell.task_id("jfoo", 0)]);
        cell.ok(shrink(39));
        assert_eq!(victims(&cell.state, M1), [cell.task_id("jfoo", 0)]);
    }
}
