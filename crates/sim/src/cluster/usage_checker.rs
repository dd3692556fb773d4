//! Checks what must follow from the usage of tasks: nothing of it is booked twice, reservations
//! keep up with it, and a machine under resource pressure is known to be. Both are measured at the
//! virtual machines themselves, whatever their agents reported, and only while nothing else is
//! wrong: usage that does not arrive cannot be followed.

use super::ledger::CheckFailure;
use super::world::{Cluster, EVICTION_REQUEST_DELAY, machine_spec};
use crate::agent::virtual_kernel::Kernel;
use cellwright_cell::id::Attempt;
use cellwright_cell::priority::AppClass;
use cellwright_cell::resource::Dimension;
use cellwright_cell::state::State;
use cellwright_cell::task::TaskState;
use cellwright_supervise::lock;
use std::collections::BTreeMap;

/// Milliseconds for which a reservation may be below what its task uses: a poll and an entry of the
/// log, with time to spare.
const MAX_UNDER_RESERVED_MILLIS: u64 = 10_000;
/// Milliseconds that an eviction request may take to arrive.
const PRESSURE_REPORT_MILLIS: u64 = 8000;
/// Milli-cores of missing CPU below which no task counts as starved.
const NOTICEABLE_MILLI_CORES: u64 = 50;

#[derive(Debug, Default)]
pub struct UsageChecker {
    /// Since when a task uses more than it reserves.
    under_reserved_since: BTreeMap<(usize, Attempt), u64>,
    /// Since when a machine is short of CPU.
    pressure_since: BTreeMap<usize, u64>,
}

impl UsageChecker {
    /// # Errors
    /// The first rule violation found.
    pub fn check(&mut self, cluster: &Cluster, state: &State) -> Result<(), CheckFailure> {
        check_books(cluster)?;
        if !cluster.is_healthy_except_disk() {
            (self.under_reserved_since, self.pressure_since) = Default::default();
            return Ok(());
        }
        for (number, agent) in cluster.agents().iter().enumerate() {
            let agent = lock(agent);
            self.check_reservations(number, agent.kernel(), state, cluster.now())?;
            self.check_pressure(number, agent.kernel(), state, cluster.now())?;
        }
        Ok(())
    }

    fn check_reservations(
        &mut self,
        number: usize,
        kernel: &Kernel,
        state: &State,
        now: u64,
    ) -> Result<(), CheckFailure> {
        self.under_reserved_since
            .retain(|(at, attempt), _| *at != number || kernel.programs().contains_key(attempt));
        for (attempt, row) in kernel.running().filter(|(attempt, _)| !attempt.is_log_saver()) {
            let Some(task) = state.tasks().get(attempt.task) else { continue };
            let runs = task.state == TaskState::Running && task.attempt == attempt.number;
            let less = |dimension: &Dimension| {
                let used = row.granted.get(*dimension).min(row.work.limits.get(*dimension));
                task.reservation.get(*dimension) < used
            };
            let dimension = [Dimension::Cpu, Dimension::Ram].into_iter().find(less);
            let Some(dimension) = dimension.filter(|_| runs) else {
                self.under_reserved_since.remove(&(number, *attempt));
                continue;
            };
            let since = *self.under_reserved_since.entry((number, *attempt)).or_insert(now);
            if now - since > MAX_UNDER_RESERVED_MILLIS {
                let (used, has) = (row.granted.get(dimension), task.reservation.get(dimension));
                let name = &row.order.name;
                return Err(CheckFailure(format!(
                    "{name} uses {used} {dimension} and reserves {has}"
                )));
            }
        }
        Ok(())
    }

    fn check_pressure(
        &mut self,
        number: usize,
        kernel: &Kernel,
        state: &State,
        now: u64,
    ) -> Result<(), CheckFailure> {
        let spec = machine_spec(number as u64);
        if !is_under_cpu_pressure(kernel, spec.capacity.cpu) {
            self.pressure_since.remove(&number);
            return Ok(());
        }
        let since = *self.pressure_since.entry(number).or_insert(now);
        let row = state.machine_named(&spec.name).and_then(|id| state.machines().get(id));
        let is_known = row.is_some_and(|row| !row.resource_pressure.is_empty());
        if now - since > EVICTION_REQUEST_DELAY.0 + PRESSURE_REPORT_MILLIS && !is_known {
            let name = spec.name;
            return Err(CheckFailure(format!(
                "{name} is short of CPU, and the cell does not know"
            )));
        }
        Ok(())
    }
}

/// Nothing that a machine's tasks used is in history twice, whatever was lost or killed.
fn check_books(cluster: &Cluster) -> Result<(), CheckFailure> {
    for (number, agent) in (0..).zip(cluster.agents()) {
        let name = machine_spec(number).name;
        let used = u64::try_from(lock(agent).kernel().spent.as_micros()).unwrap_or(u64::MAX);
        let booked = cluster.usage.of_machine(&name);
        if booked > used {
            return Err(CheckFailure(format!(
                "{name} used {used} microseconds of CPU, and history has {booked}"
            )));
        }
    }
    Ok(())
}

/// A latency-sensitive task is starved within its limit, on a full machine, beside batch tasks.
fn is_under_cpu_pressure(kernel: &Kernel, capacity: u64) -> bool {
    let used: u64 = kernel.running().map(|(_, row)| row.granted.cpu).sum();
    let is_batch = |class| class == AppClass::Batch;
    let rows = || kernel.running().map(|(_, row)| row);
    let batch = rows().any(|row| is_batch(row.work.appclass) && row.granted.cpu > 0);
    let is_starved = rows().any(|row| {
        let within = row.granted.cpu > 0 && row.granted.cpu < row.work.limits.cpu;
        !is_batch(row.work.appclass) && within && row.cpu_shortfall() >= NOTICEABLE_MILLI_CORES
    });
    batch && is_starved && used + capacity / 20 >= capacity
}
