//! What must follow from what tasks use: reservations keep up with it, and a machine that is short
//! is known to be. Both are measured at the virtual machines themselves, whatever their agents
//! said, and only while nothing else is wrong: usage that does not arrive cannot be followed.

use super::ledger::Broken;
use super::world::{ASK_AFTER, Cluster, machine_spec};
use crate::agent::kernel::Kernel;
use cellwright_cell::id::Attempt;
use cellwright_cell::priority::AppClass;
use cellwright_cell::resource::Dimension;
use cellwright_cell::state::State;
use cellwright_cell::task::TaskState;
use cellwright_supervise::lock;
use std::collections::BTreeMap;

/// Milliseconds for which a reservation may be below what its task uses: a poll and an entry of the
/// log, with time to spare.
const LOW: u64 = 10_000;
/// Milliseconds that a request for relief may take to arrive.
const ARRIVES: u64 = 8000;
/// Milli-cores of waiting below which nobody goes short.
const NOTICEABLE: u64 = 50;

#[derive(Debug, Default)]
pub struct UsageRules {
    /// Since when a task uses more than it reserves.
    low: BTreeMap<(usize, Attempt), u64>,
    /// Since when a machine is short of CPU.
    short: BTreeMap<usize, u64>,
}

impl UsageRules {
    /// # Errors
    /// The first rule found broken.
    pub fn check(&mut self, cluster: &Cluster, state: &State) -> Result<(), Broken> {
        if !cluster.is_otherwise_well() {
            (self.low, self.short) = Default::default();
            return Ok(());
        }
        for (number, agent) in cluster.agents().iter().enumerate() {
            let agent = lock(agent);
            self.reservations(number, agent.kernel(), state, cluster.now())?;
            self.shortages(number, agent.kernel(), state, cluster.now())?;
        }
        Ok(())
    }

    fn reservations(
        &mut self,
        number: usize,
        kernel: &Kernel,
        state: &State,
        now: u64,
    ) -> Result<(), Broken> {
        self.low.retain(|(at, attempt), _| *at != number || kernel.rows().contains_key(attempt));
        for (attempt, row) in kernel.running().filter(|(attempt, _)| !attempt.is_saver()) {
            let Some(task) = state.tasks().get(attempt.task) else { continue };
            let runs = task.state == TaskState::Running && task.attempt == attempt.number;
            let less = |dimension: &Dimension| {
                let used = row.has.get(*dimension).min(row.work.limits.get(*dimension));
                task.reservation.get(*dimension) < used
            };
            let dimension = [Dimension::Cpu, Dimension::Ram].into_iter().find(less);
            let Some(dimension) = dimension.filter(|_| runs) else {
                self.low.remove(&(number, *attempt));
                continue;
            };
            let since = *self.low.entry((number, *attempt)).or_insert(now);
            if now - since > LOW {
                let (used, has) = (row.has.get(dimension), task.reservation.get(dimension));
                let name = &row.order.name;
                return Err(Broken(format!("{name} uses {used} {dimension} and reserves {has}")));
            }
        }
        Ok(())
    }

    fn shortages(
        &mut self,
        number: usize,
        kernel: &Kernel,
        state: &State,
        now: u64,
    ) -> Result<(), Broken> {
        let spec = machine_spec(number as u64);
        if !is_short(kernel, spec.capacity.cpu) {
            self.short.remove(&number);
            return Ok(());
        }
        let since = *self.short.entry(number).or_insert(now);
        let row = state.machine_named(&spec.name).and_then(|id| state.machines().get(id));
        let is_known = row.is_some_and(|row| !row.shortages.is_empty());
        if now - since > ASK_AFTER.0 + ARRIVES && !is_known {
            let name = spec.name;
            return Err(Broken(format!("{name} is short of CPU, and the cell does not know")));
        }
        Ok(())
    }
}

/// Somebody latency-sensitive goes short within its limit, on a full machine, beside batch.
fn is_short(kernel: &Kernel, capacity: u64) -> bool {
    let used: u64 = kernel.running().map(|(_, row)| row.has.cpu).sum();
    let is_batch = |class| class == AppClass::Batch;
    let rows = || kernel.running().map(|(_, row)| row);
    let batch = rows().any(|row| is_batch(row.work.appclass) && row.has.cpu > 0);
    let goes_short = rows().any(|row| {
        let within = row.has.cpu > 0 && row.has.cpu < row.work.limits.cpu;
        !is_batch(row.work.appclass) && within && row.lacks() >= NOTICEABLE
    });
    batch && goes_short && used + capacity / 20 >= capacity
}
