//! The loop's part in reading the numbers that tasks tell: of which tasks, and what is reported.

use super::{Agent, LocalAttempt};
use crate::attempt::AttemptUpdate;
use crate::metrics::{MetricsTarget, Numbers, read_repeatedly};
use cellwright_agent_core::agent::AttemptEntry;
use cellwright_agent_core::reconcile::Phase;
use cellwright_cell::desired::Action as Order;
use cellwright_cell::id::Attempt;
use cellwright_cell::scale::MetricsOrder;
use cellwright_messages::TaskNumbers;
use tokio::task::JoinHandle;

/// The reading of one attempt, which ends when this is dropped.
pub(super) struct NumberReading {
    order: MetricsOrder,
    reader: JoinHandle<()>,
    last: Numbers,
}

impl Drop for NumberReading {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Agent {
    /// Reads from now on what the present orders say, of all attempts.
    pub(super) fn read_numbers_as_ordered(&mut self) {
        let differs = |(attempt, entry): (&Attempt, &AttemptEntry)| {
            let known = self.locals.get(attempt)?.numbers.as_ref().map(|reading| &reading.order);
            (known != numbers_order(entry)).then_some(*attempt)
        };
        let others: Vec<Attempt> = self.core.attempts().iter().filter_map(differs).collect();
        others.into_iter().for_each(|attempt| self.read_numbers(attempt));
    }

    /// Reads the numbers of one attempt, if its order says so and it runs.
    pub(super) fn read_numbers(&mut self, attempt: Attempt) {
        let Some(local) = self.locals.get_mut(&attempt) else { return };
        local.numbers = None;
        let Some(entry) = self.core.attempt(attempt) else { return };
        let (Some(order), Order::Run(work)) = (numbers_order(entry), &entry.order.action) else {
            return;
        };
        let target = MetricsTarget {
            name: entry.order.name.clone(),
            order: order.clone(),
            ports: work.ports.clone(),
            folder: self.folders.work_dir(attempt),
            permits: self.reading.clone(),
        };
        let updates = self.updates_tx.clone();
        let reader = self.supervisor.spawn_restarting("a reader of numbers", move || {
            let updates = updates.clone();
            read_repeatedly(target.clone(), move |numbers| {
                // The loop that received updates may have ended.
                let _ = updates.send((attempt, AttemptUpdate::Numbers(numbers)));
            })
        });
        local.numbers =
            Some(NumberReading { order: order.clone(), reader, last: Numbers::default() });
    }

    /// What was read last of all tasks.
    pub(super) fn told_numbers(&self) -> Vec<TaskNumbers> {
        let told = |(attempt, local): (&Attempt, &LocalAttempt)| {
            let Numbers { told, refused } = local.numbers.as_ref()?.last.clone();
            Some(TaskNumbers { task: attempt.task, attempt: attempt.number, told, refused })
        };
        self.locals.iter().filter_map(told).collect()
    }
}

impl LocalAttempt {
    /// Returns whether there may be something to reconcile, which there never is.
    pub(super) fn take_numbers(&mut self, numbers: Numbers) -> bool {
        if let Some(reading) = &mut self.numbers {
            reading.last = numbers;
        }
        false
    }
}

/// What is to be read of an attempt now.
fn numbers_order(entry: &AttemptEntry) -> Option<&MetricsOrder> {
    match (&entry.status.phase, &entry.order.action) {
        (Phase::Running(_), Order::Run(work)) => work.metrics.as_ref(),
        _ => None,
    }
}
