//! Why a task waits, why it is where it is, and how it last ended.

use super::TaskCounts;
use cellwright_cell::job::JobState;
use cellwright_cell::priority::Priority;
use cellwright_cell::resource::Resources;
use cellwright_cell::task::TaskState;
use cellwright_cell::time::{Span, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Machines that give the same reason for a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReasonView {
    /// Stable code of the reason why the task cannot be placed, or `fits`.
    pub code: String,
    pub machines: u32,
    /// What the reason is about: which limit, which port and its holders, which constraint; null
    /// where the code says it all.
    pub detail: Value,
    /// The reason as a sentence, with the number of machines.
    pub text: String,
    /// The same without their number, which is said beside it.
    pub about: String,
}

/// The machine with the fewest obstacles for a task; open machines come first, and of those with as
/// many the one that lacks least.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NearestView {
    pub machine: String,
    /// Of a task inside an alloc set: the alloc, as `user/job/index`.
    pub alloc: Option<String>,
    /// All of them, in the order in which they are checked; `machines` is 1 in each.
    pub obstacles: Vec<ReasonView>,
}

/// A change of the request with which it would fit somewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CounterfactualView {
    /// Such as `ram <= 3 GiB (on m1)`.
    pub text: String,
    /// What would have to be different, as data.
    pub change: Value,
    /// The size of the change, in thousandths of what was requested.
    pub permille: u32,
    /// Machines that would accept it then.
    pub machines: u32,
    /// The first of them.
    pub machine: String,
}

/// A task that fails repeatedly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailingView {
    pub failures_in_row: u32,
    /// How the last attempt ended, where that is still known.
    pub last: Option<String>,
    /// Milliseconds until it is retried; absent: at the next opportunity.
    pub next_try_in: Option<Span>,
}

/// One event of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HappenedView {
    /// Milliseconds since the Unix epoch.
    pub at: Time,
    pub attempt: u32,
    /// Stable code of the reason.
    pub reason: String,
    pub text: String,
}

/// A machine on which a task could be placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CandidateView {
    pub machine: String,
    /// 1 is the best.
    pub rank: u32,
    /// Whether the task is on it.
    pub here: bool,
    /// Terms of the score by name, most important first in the guide; lower is better.
    pub score: Value,
}

/// Why a task is where it is, evaluated against the present state of the cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HereView {
    pub machine: String,
    /// Machines that would accept it now.
    pub fitting: u32,
    /// The best of them, and its own.
    pub candidates: Vec<CandidateView>,
}

/// When a waiting task will start, as far as it can be predicted (X5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EtaView {
    /// Milliseconds since the Unix epoch; absent: cannot be predicted.
    pub at: Option<Time>,
    /// Milliseconds until then.
    pub starts_in: Option<Span>,
    /// The basis of the prediction: `next-pass` (it can be placed), `not-before` (its back-off or
    /// lease), `known-ends` (tasks that may run only so long), `rate` (how fast such tasks were
    /// placed lately); or why there is no prediction: `nothing-ends`, `not-even-then`, `too-far`,
    /// `closed`, `never-fits`, `no-scheduler`.
    pub basis: String,
    /// How certain the prediction is, in words.
    pub confidence: String,
    /// Where it would start.
    pub machine: Option<String>,
    /// Tasks whose end makes room there, as `user/job/index`.
    pub after: Vec<String>,
    /// The prediction in a sentence.
    pub text: String,
}

/// A smaller request with which a task would fit on many machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EasierView {
    pub limits: Resources,
    /// Machines that would accept it then.
    pub machines: u32,
    /// The reduction of CPU and memory together, in thousandths of what was requested.
    pub permille: u32,
    /// The same in a sentence.
    pub text: String,
}

/// Why a task waits (B17), why it is where it is, why it ended. The machine counts of the reasons
/// add up to those of the cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExplanationView {
    /// `user/job/index`.
    pub task: String,
    pub state: TaskState,
    pub priority: Priority,
    /// The whole explanation in sentences.
    pub text: String,
    /// 0 for a task that has ended: no machine was evaluated.
    pub machines_total: u32,
    pub reasons: Vec<ReasonView>,
    /// The nearest change with which it would fit; absent when it fits as it is, or nothing helps.
    pub counterfactual: Option<CounterfactualView>,
    /// The other changes that would help, nearest first.
    pub alternatives: Vec<CounterfactualView>,
    /// The machine that comes nearest to taking it, and everything that stands against it there;
    /// absent when it fits somewhere.
    pub nearest: Option<NearestView>,
    /// Machines that would accept it if nothing else ran on them.
    pub when_empty: u32,
    /// Tasks that would have to be evicted, as `user/job/index`.
    pub victims: Vec<String>,
    /// Whether all of them may be evicted.
    pub victims_allowed: bool,
    /// Position in the queue; 1 is next.
    pub position: Option<u32>,
    pub waiting: u32,
    pub higher_priority: u32,
    /// Not placed before this time; milliseconds since the Unix epoch.
    pub not_before: Option<Time>,
    /// Milliseconds until then.
    pub next_try_in: Option<Span>,
    /// The jobs it starts after, as `user/job`, those that have not ended.
    pub waits_for: Vec<String>,
    /// For a task that has its place: the tasks that have to leave it first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stopping: Vec<StoppingTaskView>,
    pub failing: Option<FailingView>,
    /// For a task on a machine: why it is there.
    pub here: Option<HereView>,
    /// How its last attempt ended, where that is still known.
    pub last_end: Option<HappenedView>,
    /// Its events, newest last, as far as the events examined reach.
    pub history: Vec<HappenedView>,
    /// All events after this log index were examined for the history.
    pub history_from: Option<u64>,
    /// What keeps it waiting whatever resources the machines have.
    pub obstacles: Vec<ObstacleView>,
    /// When it will start; only for a task that waits for a machine. For a job: of the largest
    /// group of such tasks.
    pub eta: Option<EtaView>,
    /// The nearest smaller request that fits on many machines; absent when it fits as it is, or
    /// nothing helps.
    pub easier: Option<EasierView>,
}

/// A task that is told to stop, for whose end another waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoppingTaskView {
    /// `user/job/index`.
    pub task: String,
    /// When its notice is over and it is killed; milliseconds since the Unix epoch.
    pub killed_at: Time,
}

/// A reason that is not about any machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ObstacleView {
    /// `shard-not-served`: no scheduler plans the job's scheduler shard. `package-not-in-cell`:
    /// neither the masters nor a machine that is up has a package it names.
    pub code: String,
    /// The obstacle, in a sentence.
    pub message: String,
    /// What to do about it.
    pub hint: String,
}

/// Tasks of one job that wait for the same reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaitingGroup {
    pub count: u32,
    /// The lowest of their indices.
    pub tasks: Vec<u32>,
    /// Why the first of them waits.
    pub why: ExplanationView,
}

/// Why the tasks of a job wait or fail, grouped by reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobExplanation {
    /// `user/job`.
    pub job: String,
    pub state: JobState,
    pub tasks: TaskCounts,
    /// The whole explanation in sentences.
    pub text: String,
    /// Tasks with a problem, by reason: most tasks first.
    pub groups: Vec<WaitingGroup>,
}
