//! What a simulated cell keeps of its machines' books, instead of SQLite: rows by the same key, in
//! a table that outlives every master, and on each master the product's own inbox, which dies with
//! it.
//!
//! Checked against the kernels of the virtual machines: however masters, machines and messages were
//! lost, no more is in the table than was used.

use cellwright_cell::name::Name;
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
use cellwright_master::history::{UsageDelivery, UsageInbox};
use cellwright_master::links::UsageLedger;
use cellwright_master::replicated_state::ReplicatedState;
use cellwright_messages::{AgentReport, UsageMark};
use cellwright_supervise::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// As the unique key of the table `usage`.
type RowKey = (String, Time, String, String, u32, u32);

/// The usage of the cell.
#[derive(Debug, Default)]
pub struct UsageTable(Mutex<Rows>);

#[derive(Debug, Default)]
struct Rows {
    keys: BTreeSet<RowKey>,
    /// CPU time by machine, in microseconds.
    sums: BTreeMap<String, u64>,
}

impl UsageTable {
    fn write(&self, delivery: &UsageDelivery) {
        let mut table = lock(&self.0);
        for row in &delivery.rows {
            let (machine, user, job) = (row.machine.clone(), row.user.clone(), row.job.clone());
            if table.keys.insert((machine, row.time, user, job, row.task_index, row.attempt)) {
                *table.sums.entry(row.machine.clone()).or_default() += row.cpu_micros;
            }
        }
    }

    /// CPU time of all tasks of a machine, in microseconds.
    pub fn of_machine(&self, machine: &Name) -> u64 {
        lock(&self.0).sums.get(machine.as_str()).copied().unwrap_or(0)
    }
}

/// The part of one master.
pub struct UsageRecorder {
    inbox: Mutex<UsageInbox>,
    table: Arc<UsageTable>,
    replicated: Arc<ReplicatedState>,
}

impl UsageRecorder {
    pub fn new(table: Arc<UsageTable>, replicated: Arc<ReplicatedState>) -> UsageRecorder {
        UsageRecorder { inbox: Mutex::default(), table, replicated }
    }
}

impl UsageLedger for UsageRecorder {
    fn record(&self, state: &State, report: &AgentReport) {
        let now = self.replicated.log_time();
        let mut inbox = lock(&self.inbox);
        // What came with the report before is on the disk by now; what comes now may be lost.
        let delivery = inbox.delivery();
        self.table.write(&delivery);
        inbox.confirm(&delivery);
        inbox.accept(state, report, now);
    }

    fn recorded(&self, machine: &Name) -> Option<UsageMark> {
        lock(&self.inbox).recorded(machine)
    }
}
