//! The obligation that comes with over-commitment (B39, B40): who must leave a machine that holds
//! more than it has. The lowest priorities go first, of equals the one that gives back most of what
//! is lacking, and nobody goes whose leaving turns out not to be needed.
//!
//! Prod pays only for prod: a prod task is named when the limits of prod alone exceed the machine,
//! or when it holds a device the machine no longer has. Where prod fits and what others left behind
//! for log savers does not, nobody is named: the disk comes back by itself. Named resources whose
//! capacity fell below their use oblige nobody: their holders stay.
//!
//! Rejected: the smallest set by count. It would evict one batch task where two best-effort tasks
//! suffice, and a priority is a promise about order.

use crate::device::{DeviceGrant, WHOLE};
use crate::edit::retained;
use crate::id::{MachineId, TaskId};
use crate::priority::Priority;
use crate::resource::Resources;
use crate::state::State;
use crate::task::Task;
use std::cmp::Reverse;

/// Who must leave `machine`, first one first; empty when it holds no more than it has.
#[must_use]
pub fn victims(state: &State, machine: MachineId) -> Vec<TaskId> {
    let Some(mut sums) = Sums::of(state, machine) else { return Vec::new() };
    if !sums.exceed() {
        return Vec::new();
    }
    let mut rest = holders(state, machine);
    let mut chosen = Vec::new();
    for round in [Round::ProdForProd, Round::NonProd, Round::ProdForDevices] {
        shed(&mut sums, &mut rest, &mut chosen, round);
    }
    drop_needless(&mut sums, &mut chosen);
    chosen.into_iter().map(|holder| holder.id).collect()
}

/// Whom a round of choosing may take.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// Prod, as far as the limits of prod alone exceed the machine.
    ProdForProd,
    NonProd,
    /// Prod, as far as it holds devices that are not there.
    ProdForDevices,
}

/// Takes holders out, worst first, while the round has one that gives something back.
fn shed<'a>(
    sums: &mut Sums<'a>,
    rest: &mut Vec<Holder<'a>>,
    chosen: &mut Vec<Holder<'a>>,
    round: Round,
) {
    loop {
        let worst = rest
            .iter()
            .enumerate()
            .map(|(at, holder)| (at, holder, sums.relief(holder, round)))
            .filter(|(.., relief)| *relief > 0)
            .min_by_key(|(_, holder, relief)| (holder.priority, Reverse(*relief), holder.id))
            .map(|(at, ..)| at);
        let Some(at) = worst else { return };
        let holder = rest.remove(at);
        sums.shift(&holder, false);
        chosen.push(holder);
    }
}

/// Whoever can come back without renewing the excess stays; the highest priority is asked first.
fn drop_needless(sums: &mut Sums<'_>, chosen: &mut Vec<Holder<'_>>) {
    let mut order: Vec<(Priority, TaskId)> = chosen.iter().map(|h| (h.priority, h.id)).collect();
    order.sort_unstable();
    for (_, id) in order.into_iter().rev() {
        let Some(at) = chosen.iter().position(|holder| holder.id == id) else { continue };
        let before = sums.excess();
        sums.shift(&chosen[at], true);
        if sums.excess() == before {
            chosen.remove(at);
        } else {
            sums.shift(&chosen[at], false);
        }
    }
}

/// A task or alloc charged to the machine.
struct Holder<'a> {
    id: TaskId,
    priority: Priority,
    limits: Resources,
    reservation: Resources,
    devices: &'a [DeviceGrant],
}

impl Holder<'_> {
    fn prod(&self) -> bool {
        self.priority.is_prod()
    }

    fn prod_limits(&self) -> Resources {
        if self.prod() { self.limits } else { Resources::ZERO }
    }
}

fn holders(state: &State, machine: MachineId) -> Vec<Holder<'_>> {
    let tasks = state.machine_load(machine).map_or(&[][..], |load| &load.tasks);
    let holder = |id: &TaskId| {
        let task: &Task = state.tasks().get(*id)?;
        let spec = state.spec_of(task)?;
        (task.state.holds_resources() && task.alloc.is_none()).then(|| Holder {
            id: *id,
            priority: spec.priority,
            limits: spec.limits_of(task.index),
            reservation: task.reservation,
            devices: task.devices(),
        })
    };
    tasks.iter().filter_map(holder).collect()
}

/// What the machine has and what is held of it, changed as holders are taken out and put back.
struct Sums<'a> {
    machine: &'a crate::machine::Machine,
    /// What reservations are held against. At least the retained disk: no eviction gives that
    /// back, so nobody leaves because of it.
    capacity: Resources,
    prod_limits: Resources,
    reserved: Resources,
    devices: Vec<u32>,
}

/// How much is lacking: prod by limits, all by reservations, device shares beyond what exists.
#[derive(PartialEq, Eq)]
struct Excess {
    prod: Resources,
    all: Resources,
    devices: u32,
}

impl<'a> Sums<'a> {
    fn of(state: &'a State, id: MachineId) -> Option<Sums<'a>> {
        let machine = state.machines().get(id)?;
        let load = state.machine_load(id)?;
        Some(Sums {
            machine,
            capacity: machine.spec.capacity.max(retained(machine)),
            prod_limits: load.prod_limits,
            reserved: load.reserved,
            devices: load.devices.iter().map(|used| u32::from(*used)).collect(),
        })
    }

    fn excess(&self) -> Excess {
        Excess {
            prod: self.prod_limits.minus(self.machine.spec.capacity),
            all: self.reserved.minus(self.capacity),
            devices: (0..self.devices.len()).map(|at| self.device_excess(at)).sum(),
        }
    }

    fn exceed(&self) -> bool {
        self.excess() != Excess { prod: Resources::ZERO, all: Resources::ZERO, devices: 0 }
    }

    fn device_excess(&self, at: usize) -> u32 {
        let whole = if at < self.machine.spec.devices.len() { u32::from(WHOLE) } else { 0 };
        self.devices.get(at).map_or(0, |used| used.saturating_sub(whole))
    }

    /// How far the excess shrinks when `holder` leaves: thousandths of what is lacking, summed
    /// over what is lacking, so that bytes and milli-cores weigh alike.
    fn relief(&self, holder: &Holder<'_>, round: Round) -> u64 {
        if round == Round::NonProd && holder.prod() {
            return 0;
        }
        let lacking = self.excess();
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
        let for_prod = part(holder.prod_limits(), lacking.prod);
        match round {
            Round::ProdForProd => for_prod,
            Round::NonProd => part(holder.reservation, lacking.all) + devices.sum::<u64>(),
            Round::ProdForDevices => devices.sum::<u64>(),
        }
    }

    fn shift(&mut self, holder: &Holder<'_>, back: bool) {
        let by = |sum: Resources, part| if back { sum.plus(part) } else { sum.minus(part) };
        self.prod_limits = by(self.prod_limits, holder.prod_limits());
        self.reserved = by(self.reserved, holder.reservation);
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
    use crate::priority::Band;

    const M1: MachineId = MachineId(0);

    /// A task of `priority` with limits, and devices of the machine it asks for.
    #[derive(Clone, Copy)]
    struct Holds {
        priority: u16,
        cpu: u64,
        ram: u64,
        gpus: u8,
    }

    fn plain(priority: u16, cpu: u64) -> Holds {
        Holds { priority, cpu, ram: 1, gpus: 0 }
    }

    /// Tasks placed in this order on a machine of 100 with two devices, which then shrinks to
    /// `cpu`, `ram` and `gpus`: the positions of those who must go.
    fn check(tasks: &[Holds], cpu: u64, ram: u64, gpus: usize, want: &[usize]) {
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
            let mut asks = job(&format!("j{at}"), 1, task.priority);
            asks.task.limits = Resources::new(task.cpu, task.ram, 1, 1);
            if task.gpus > 0 {
                let (kind, count) = (token("gpu"), task.gpus);
                asks.task.devices =
                    vec![DeviceRequest { kind, models: vec![], count, milli: 1000 }];
            }
            cell.submit(&asks);
            cell.run(&format!("j{at}"), 0, "m1");
        }
        assert_eq!(victims(&cell.state, M1), [], "nobody must leave before the machine shrinks");
        spec.capacity = Resources::new(cpu, ram, 100, 100);
        spec.devices.truncate(gpus);
        cell.ok(Command::UpdateMachine { spec });
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
        // The best effort task that came first in line is not needed once the batch one must go.
        check(&[plain(50, 10), plain(100, 50)], 20, 100, 2, &[1]);
        // Whoever holds nothing of what is lacking stays.
        let (small, large) = (plain(50, 10), Holds { priority: 100, cpu: 10, ram: 60, gpus: 0 });
        check(&[small, large], 100, 50, 2, &[1]);
    }

    #[test]
    fn prod_goes_only_for_prod() {
        check(&[plain(200, 40), plain(50, 40)], 60, 100, 2, &[1]);
        check(&[plain(200, 40), plain(50, 40)], 30, 100, 2, &[0, 1]);
        check(&[plain(200, 40), plain(50, 20)], 30, 100, 2, &[0]);
        check(&[plain(210, 20), plain(200, 20)], 20, 100, 2, &[1]);
        // A device that is gone can only be given back by who holds it.
        let with_gpus = Holds { priority: 200, cpu: 10, ram: 1, gpus: 2 };
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

    #[test]
    fn prod_does_not_leave_for_disk_that_others_left_behind() {
        let mut cell = Cell::with_machines(1);
        let mut prod = job("jfoo", 1, 200);
        prod.task.limits = Resources::new(1, 1, 60, 1);
        let mut batch = job("jbar", 1, 100);
        batch.task.limits = Resources::new(1, 1, 40, 1);
        let keep = crate::time::Span::seconds(60);
        batch.retain_disk = Some(crate::spec::RetainDisk { bytes: 40, keep });
        for (name, spec) in [("jfoo", prod), ("jbar", batch)] {
            cell.submit(&spec);
            cell.run(name, 0, "m1");
        }
        cell.report("jbar", 0, crate::command::Observed::Finished);
        let shrink = |disk| {
            let mut spec = machine("m1", 100);
            spec.capacity.disk = disk;
            Command::UpdateMachine { spec }
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
