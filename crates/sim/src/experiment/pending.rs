//! Why tasks are pending: the classes with most pending tasks, or one task by name, explained in
//! full.

use cellwright_cell::State;
use cellwright_cell::explanation::Explanation;
use cellwright_cell::id::TaskId;
use cellwright_cell::name::{JobKey, Name};
use cellwright_sched::cluster_snapshot::PlacementState;
use cellwright_sched::executor::Executor;
use cellwright_sched::explain::Explainer;
use cellwright_sched::explain::queue_position::QueuePositions;
use cellwright_sched::queue::QueueOrder;
use cellwright_sched::{ClusterSnapshot, PassOutcome};
use serde::Serialize;
use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

/// What to explain.
#[derive(Clone, Copy, Debug)]
pub enum Explain<'a> {
    /// So many classes of pending tasks, those with most tasks first.
    Classes(usize),
    /// One task, pending or not.
    Task(&'a TaskName),
}

/// A task in the form that people write: `user/job/index`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskName {
    pub job: JobKey,
    pub index: u32,
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.job, self.index)
    }
}

/// A text that is not a task name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("allowed: USER/JOB/INDEX, such as ci/riscv-port/0")]
pub struct InvalidTaskName;

impl FromStr for TaskName {
    type Err = InvalidTaskName;

    fn from_str(text: &str) -> Result<TaskName, InvalidTaskName> {
        let parts: Vec<&str> = text.split('/').collect();
        let [user, job, index] = parts.as_slice() else { return Err(InvalidTaskName) };
        let name = |text: &str| Name::new(text).map_err(|_| InvalidTaskName);
        let index = index.parse().map_err(|_| InvalidTaskName)?;
        Ok(TaskName { job: JobKey { user: name(user)?, job: name(job)? }, index })
    }
}

/// A task that the workload does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no task {name}; allowed: {allowed}")]
pub struct NoSuchTask {
    pub name: String,
    pub allowed: String,
}

/// How many users or jobs are suggested when the requested one does not exist.
const MAX_SUGGESTIONS: usize = 8;

/// The task of that name.
///
/// # Errors
/// Lists the users, the jobs of the user or the indices of the job that there are.
pub fn find_task(state: &State, name: &TaskName) -> Result<TaskId, NoSuchTask> {
    let refused = |allowed: String| NoSuchTask { name: name.to_string(), allowed };
    let row = state.job_named(&name.job).and_then(|job| state.jobs().get(job));
    let Some(row) = row else { return Err(refused(suggestions(state, &name.job))) };
    let at = |task: &TaskId| state.tasks().get(*task).is_some_and(|row| row.index == name.index);
    row.tasks.iter().copied().find(at).ok_or_else(|| match row.tasks.len() {
        1 => refused(format!("only index 0 of {}", name.job)),
        tasks => refused(format!("an index of {} from 0 to {}", name.job, tasks - 1)),
    })
}

/// Jobs of the user, or users when the user does not exist.
fn suggestions(state: &State, wanted: &JobKey) -> String {
    let keys = || state.jobs().iter().filter_map(|(job, _)| state.job_key(job));
    let mut names: Vec<String> =
        keys().filter(|key| key.user == wanted.user).map(|key| key.to_string()).collect();
    let allowed_kind = if names.is_empty() { "a user of this cell" } else { "a job of this user" };
    if names.is_empty() {
        names = keys().map(|key| key.user.to_string()).collect();
    }
    names.sort();
    names.dedup();
    let more = if names.len() > MAX_SUGGESTIONS { ", ..." } else { "" };
    names.truncate(MAX_SUGGESTIONS);
    format!("{allowed_kind}: {}{more}", names.join(", "))
}

/// One task that was selected by name.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainedTask {
    pub task: String,
    /// `pending`, `placed`, or `evicted`: placed first and evicted later in the same pass.
    pub state: &'static str,
    /// Where it was placed.
    pub machine: Option<String>,
    /// Why it is pending.
    pub explanation: Option<Explanation>,
}

/// Explains where the task is or why it is not placed.
#[must_use]
pub fn explain_task(
    state: &State,
    snapshot: &ClusterSnapshot,
    task: TaskId,
    seed: u64,
    executor: &dyn Executor,
) -> ExplainedTask {
    let position = snapshot.placement_of(task);
    let machine =
        position.and_then(PlacementState::machine).and_then(|id| state.machines().get(id));
    let positions = QueuePositions::new(snapshot, QueueOrder::Fair, state.now(), seed);
    let explanation = Explainer::new(snapshot, state, executor).task(task, &positions);
    ExplainedTask {
        task: state.task_name(task),
        state: match position {
            Some(PlacementState::Pending { .. }) => "pending",
            Some(_) => "placed",
            None => "evicted",
        },
        machine: machine.map(|row| row.spec.name.to_string()),
        explanation,
    }
}

/// Classes of pending tasks; how many there are, and those that are explained.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PendingReport {
    pub classes_total: usize,
    pub classes: Vec<PendingClass>,
}

/// Tasks that are the same for every decision, all pending for the same reasons.
#[derive(Clone, Debug, Serialize)]
pub struct PendingClass {
    /// The first of them: `user/job/index`. Its queue position is in the explanation.
    pub example: String,
    pub tasks: usize,
    #[serde(flatten)]
    pub explanation: Explanation,
}

/// Explains the `max_classes` classes with most pending tasks.
#[must_use]
pub fn explain_pending(
    state: &State,
    snapshot: &ClusterSnapshot,
    outcome: &PassOutcome,
    seed: u64,
    max_classes: usize,
    executor: &dyn Executor,
) -> PendingReport {
    let mut classes: Vec<_> = outcome.pending_by_class().into_iter().collect();
    let classes_total = classes.len();
    if max_classes == 0 || classes.is_empty() {
        return PendingReport { classes_total, classes: Vec::new() };
    }
    classes.sort_by_key(|(class, tasks)| (Reverse(tasks.len()), *class));
    classes.truncate(max_classes);
    let explainer = Explainer::new(snapshot, state, executor);
    let positions = QueuePositions::new(snapshot, QueueOrder::Fair, state.now(), seed);
    let explained = classes.iter().filter_map(|(_, tasks)| {
        let first = *tasks.first()?;
        Some(PendingClass {
            example: state.task_name(first),
            tasks: tasks.len(),
            explanation: explainer.task(first, &positions)?,
        })
    });
    PendingReport { classes_total, classes: explained.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_name_has_three_parts() {
        let name: TaskName = "ci/riscv-port/12".parse().expect("a name");
        assert_eq!((name.index, name.to_string().as_str()), (12, "ci/riscv-port/12"));
        for wrong in ["", "ci", "ci/a", "ci/a/b", "ci/a/1/2", "ci//1", "CI/a/1", "ci/a/-1"] {
            assert_eq!(wrong.parse::<TaskName>(), Err(InvalidTaskName), "{wrong}");
        }
    }
}
