//! Why tasks are pending: the classes with most pending tasks, each explained in full.

use cellwright_cell::State;
use cellwright_sched::executor::Executor;
use cellwright_sched::explain::standing::Standings;
use cellwright_sched::explain::{Explainer, Explanation};
use cellwright_sched::queue::Order;
use cellwright_sched::{Board, Outcome};
use serde::Serialize;
use std::cmp::Reverse;

/// Classes of pending tasks; how many there are, and those that are explained.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PendingReport {
    pub classes_total: usize,
    pub classes: Vec<PendingClass>,
}

/// Tasks no decision can tell apart, all pending for the same reasons.
#[derive(Clone, Debug, Serialize)]
pub struct PendingClass {
    /// The first of them: `user/job/index`. Its place in the queue is in the explanation.
    pub example: String,
    pub tasks: usize,
    #[serde(flatten)]
    pub explanation: Explanation,
}

/// Explains the `most` classes with most pending tasks.
#[must_use]
pub fn explain_pending(
    state: &State,
    board: &Board,
    outcome: &Outcome,
    seed: u64,
    most: usize,
    executor: &dyn Executor,
) -> PendingReport {
    let mut classes: Vec<_> = outcome.pending_by_class().into_iter().collect();
    let classes_total = classes.len();
    if most == 0 || classes.is_empty() {
        return PendingReport { classes_total, classes: Vec::new() };
    }
    classes.sort_by_key(|(class, tasks)| (Reverse(tasks.len()), *class));
    classes.truncate(most);
    let explainer = Explainer::new(board, state, executor);
    let standings = Standings::new(board, Order::Fair, state.now(), seed);
    let explained = classes.iter().filter_map(|(_, tasks)| {
        let first = *tasks.first()?;
        Some(PendingClass {
            example: state.task_name(first),
            tasks: tasks.len(),
            explanation: explainer.task(first, &standings)?,
        })
    });
    PendingReport { classes_total, classes: explained.collect() }
}
