//! Why a task waits, worked out by the scheduler's own code on a picture of the live state.

use super::call::Call;
use super::{Answered, Api, reply};
use crate::lease::LaneName;
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::{ExplanationView, ObstacleView, ReasonView};
use cellwright_cell::id::TaskId;
use cellwright_cell::state::State;
use cellwright_cell::task::TaskState;
use cellwright_sched::Board;
use cellwright_sched::executor::Sequential;
use cellwright_sched::explain::standing::Standings;
use cellwright_sched::explain::units::Natural;
use cellwright_sched::explain::{Explainer, Explanation, text};
use cellwright_sched::queue::Order;

/// The order of the queue is fair whatever the seed; positions need some seed.
const SEED: u64 = 0;

impl Api {
    pub(super) async fn explain_task(&self, call: Call) -> Answered {
        let (view, consistent) = call.view(self).await?;
        let id = call.task_row(&view.state)?;
        let row = view.state.tasks().get(id).map(|row| row.state);
        let name = view.state.task_name(id);
        if row != Some(TaskState::Pending) {
            let message = format!("{name} does not wait for a machine");
            return Err(ApiError::new(Code::WrongState, message)
                .hint("only pending tasks are explained; read the task to see where it is")
                .with("state", serde_json::to_value(row).unwrap_or_default()));
        }
        let obstacle = self.unserved_lane(&view.state, id).await;
        let broken = |_| ApiError::new(Code::Internal, "the explanation was not finished");
        let _one_at_a_time = self.explaining.clone().acquire_owned().await.map_err(broken)?;
        let index = view.index;
        let made = tokio::task::spawn_blocking(move || explain(&view.state, id)).await;
        let explanation = made.map_err(|_| ApiError::new(Code::Internal, "explaining failed"))?;
        let missing = || Api::missing(Code::NoSuchTask, format!("pending task {name}"));
        let mut explanation = explanation.ok_or_else(missing)?;
        if let Some(found) = obstacle {
            explanation.text = format!("{}: {}\n{}", found.message, found.hint, explanation.text);
            explanation.obstacles.push(found);
        }
        reply::one(&call, index, consistent, explanation)
    }

    /// Whether the task waits for a scheduler rather than for a machine. A replica that does not
    /// lead cannot tell, and says nothing.
    async fn unserved_lane(&self, state: &State, task: TaskId) -> Option<ObstacleView> {
        let job = state.tasks().get(task).and_then(|row| state.jobs().get(row.job))?;
        let code = "lane-not-served".to_owned();
        let lane = match LaneName::of(job.spec()) {
            Ok(lane) => lane,
            Err(bad) => {
                let message = format!("no scheduler can serve the label `scheduler`: {bad}");
                let hint = "submit the job with another label, or without it".to_owned();
                return Some(ObstacleView { code, message, hint });
            }
        };
        if self.handle.lane_holder(lane.clone()).await.ok()?.is_some() {
            return None;
        }
        let (message, start) = match lane.as_str() {
            "" => ("no scheduler runs".to_owned(), "cell scheduler".to_owned()),
            name => (
                format!("no scheduler serves lane {name}"),
                format!("cell scheduler --lane {name}"),
            ),
        };
        Some(ObstacleView { code, message, hint: format!("start one with `{start}`") })
    }
}

fn explain(state: &State, task: TaskId) -> Option<ExplanationView> {
    let board = Board::from_state(state);
    let standings = Standings::new(&board, Order::Fair, state.now(), SEED);
    let explanation = Explainer::new(&board, state, &Sequential).task(task, &standings)?;
    Some(shown(state, task, &explanation))
}

fn shown(state: &State, task: TaskId, explanation: &Explanation) -> ExplanationView {
    let changes = explanation.counterfactual.iter().chain(&explanation.alternatives);
    let victims = explanation.victims.as_ref();
    let standing = explanation.standing.as_ref();
    ExplanationView {
        task: state.task_name(task),
        state: TaskState::Pending,
        priority: explanation.priority,
        text: text::render(explanation, &Natural),
        machines_total: explanation.machines_total,
        reasons: explanation
            .reasons
            .iter()
            .map(|reason| ReasonView { code: reason.code.into(), machines: reason.machines })
            .collect(),
        when_empty: explanation.when_empty,
        changes: changes.filter_map(|change| serde_json::to_value(change).ok()).collect(),
        victims: victims
            .map(|v| v.tasks.iter().map(|victim| victim.task.name.clone()).collect())
            .unwrap_or_default(),
        victims_allowed: victims.is_some_and(|v| v.allowed),
        position: standing.and_then(|s| s.position),
        waiting: standing.map_or(0, |s| s.waiting),
        higher_priority: standing.map_or(0, |s| s.higher_priority),
        not_before: standing.and_then(|s| s.not_before),
        obstacles: Vec::new(),
    }
}
