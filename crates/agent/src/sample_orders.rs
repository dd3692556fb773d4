//! Orders for tests.

use cellwright_cell::desired::{Action as Order, DesiredTask, RunSpec};
use cellwright_cell::id::TaskId;
use cellwright_cell::priority::{AppClass, Priority};
use cellwright_cell::time::Span;
use std::collections::BTreeMap;

pub(crate) fn order(task: u32, attempt: u32, action: Order) -> DesiredTask {
    let name = format!("u/j/{task}");
    let task = TaskId(task);
    DesiredTask { task, attempt, log_saver_run: 0, name, action, lease: None, resizes: 0 }
}

pub(crate) fn work() -> RunSpec {
    RunSpec {
        command: vec!["true".into()],
        env: BTreeMap::new(),
        limits: Default::default(),
        reservation: Default::default(),
        ports: Vec::new(),
        devices: Vec::new(),
        packages: Vec::new(),
        notice: Span::seconds(1),
        priority: Priority(100),
        appclass: AppClass::Batch,
        alloc: None,
        waits_for: Vec::new(),
        delay: Span::ZERO,
        health: None,
        max_run: None,
        files: BTreeMap::new(),
        user: None,
        logs: None,
        isolation: Default::default(),
        secrets: BTreeMap::new(),
        metrics: None,
    }
}

pub(crate) fn run() -> Order {
    Order::Run(Box::new(work()))
}
