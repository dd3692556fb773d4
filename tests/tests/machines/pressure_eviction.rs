//! A machine that stays short of CPU with batch held back asks for an eviction, and the masters
//! move batch to a machine that has some. Production, which was short, is left alone.

use crate::reclaim::small_machine;
use cellwright_api::client::ChangeOptions;
use cellwright_cell::event::{EventKind, TaskChange};
use cellwright_cell::reason::Reason;
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_tests::machines::{CAPACITY, MACHINES, Machines, MachinesPlan, name, on};
use serde_json::{Value, json};

/// Milli-cores of each machine: for production and batch by their limits. What batch is never held
/// back below is more than its limit, and that is what production goes short of.
const CPU: u64 = 200;
const PRODUCTION: u64 = 190;
const BATCH: u64 = 10;

const FAST_SETTINGS: &[(&str, &str)] = &[
    ("poll_interval = \"5s\"", "poll_interval = \"200ms\""),
    // Polls so close together would take a busy computer for a lost machine.
    ("missed_polls = 3", "missed_polls = 100"),
];

/// Uses all that it gets, on two cores if there are so many.
const BUSY: &str = "while :; do :; done & while :; do :; done";

fn job(cell: &Machines, name: &str, priority: u32, cpu: u64) -> Value {
    let mut job = cell.job(name, 1, BUSY);
    job["priority"] = json!(priority);
    job["task"]["limits"]["cpu"] = json!(cpu);
    job["task"]["notice"] = json!(0);
    // What it uses is not what this is about.
    job["reclaimable"] = json!(false);
    job
}

/// Whether all machines but the first take new work.
async fn allow_only_first(cell: &Machines, only: bool) {
    for machine in 2..=MACHINES {
        let done =
            cell.client().drain_machine(&name(machine), only, &ChangeOptions::default()).await;
        done.unwrap_or_else(|why| panic!("{why}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_is_moved_from_a_machine_that_cannot_help_itself() {
    let capacity = Some(Resources { cpu: CPU, ..CAPACITY });
    let agents = "control = { pressure_eviction_seconds = 2 }";
    let plan = MachinesPlan { changes: FAST_SETTINGS, capacity, agents, ..MachinesPlan::default() };
    let Some(cell) = Machines::launch_with(&plan).await else { return };
    let _tree = small_machine(&cell, CPU);
    let mut production = job(&cell, "production", 200, PRODUCTION);
    production["appclass"] = json!("latency_sensitive");
    production["constraints"] = on(1);
    cell.submit(&production).await;
    cell.wait_until_running("production").await;
    allow_only_first(&cell, true).await;
    cell.submit(&job(&cell, "batch", 100, BATCH)).await;
    let batch = cell.wait_until_running("batch").await;
    assert_eq!(batch[0].machine, Some(name(1)));
    allow_only_first(&cell, false).await;

    cell.until("the machine asks for an eviction, and batch is told to leave it", async |cell| {
        let mut events = cell.events("batch").await.into_iter();
        let was_evicted = events.any(|event| match event.kind {
            EventKind::Task { change: TaskChange::Stopping { .. }, .. } => {
                event.reason == Reason::ResourcePressure(Dimension::Cpu)
            }
            _ => false,
        });
        was_evicted.then_some(())
    })
    .await;
    let moved =
        cell.wait_for_tasks("batch", |task| task.attempt == 2 && task.machine.is_some()).await;
    assert_ne!(moved[0].machine, Some(name(1)), "it came straight back");
    // With nobody to hold back there is nothing left to ask for.
    cell.until("the machine is well", async |cell| {
        cell.machine(1).await?.resource_pressure.is_empty().then_some(())
    })
    .await;
    let production = cell.wait_until_running("production").await;
    assert_eq!((production[0].attempt, production[0].failures_in_row), (1, 0));
}
