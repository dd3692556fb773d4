//! Explanations: why a task waits, why it is where it is, and how it last ended. They are computed
//! by the scheduler's own code on a snapshot of the live state, and read from the events.

pub(super) mod explanation_view;
mod forecast;
mod gang;
mod health;

use super::call::Call;
use super::jobs::find_job;
use super::missing_packages::MissingPackages;
use super::{Api, ApiResult, reply, view};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::{ExplanationView, JobExplanation, ObstacleView, WaitingGroup};
use cellwright_cell::id::{JobId, TaskId};
use cellwright_cell::job::JobState;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::state::State;
use cellwright_cell::task::{ExitClass, Task, TaskOutcome, TaskState};
use cellwright_cell::time::Time;
use cellwright_control::lease::SchedulerShardName;
use cellwright_master::replicated_state::View;
use cellwright_master::usage::UsageSnapshot;
use cellwright_sched::executor::Sequential;
use cellwright_sched::explain::Explainer;
use cellwright_sched::explain::placement_ranking::rank_placements;
use cellwright_sched::explain::queue_position::QueuePositions;
use cellwright_sched::queue::QueueOrder;
use cellwright_sched::{ClusterSnapshot, DEFAULT_SEED, Options};
use explanation_view::{TaskHistory, base_view};
use forecast::Forecast;
use std::collections::BTreeMap;

/// Limit of a task's events in an explanation.
const MAX_HISTORY: usize = 10;
/// Limits of the explained groups of a job, and of the indices named of each.
const MAX_GROUPS: usize = 8;
const MAX_NAMED_TASKS: usize = 20;
/// Code of the obstacle that no scheduler serves the job's shard.
const SHARD_NOT_SERVED: &str = "shard-not-served";

impl Api {
    pub(super) async fn explain_task(&self, call: Call) -> ApiResult {
        let (view, consistent) = call.view(self).await?;
        let id = call.task_row(&view.state)?;
        let row = view.state.tasks().get(id).cloned();
        let missing = || Api::not_found(Code::NoSuchTask, view.state.task_name(id));
        let row = row.ok_or_else(missing)?;
        let obstacles = self.obstacles(&view.state, row.job, row.state).await?;
        let now = self.handle.log_time();
        let (served, usage) = (is_served(&obstacles), self.handle.usage().await);
        let (index, explanation) = self
            .query_snapshot(call.actor_text(), move |api, view, snapshot| {
                let query = ExplainQuery { api, view, now, served, usage: &usage };
                let history = api.task_history(&view.state, row.job, row.index);
                let explained = query.task(snapshot, id, history, true);
                Ok((view.index, explained))
            })
            .await?;
        let gone = || Api::not_found(Code::NoSuchTask, "task of that name any more");
        let mut explanation = explanation.ok_or_else(gone)?;
        explanation.text = prepend_obstacles(&obstacles, &explanation.text);
        explanation.obstacles.extend(obstacles);
        reply::one(&call, index, consistent, explanation)
    }

    pub(super) async fn explain_job(&self, call: Call) -> ApiResult {
        let key = call.job()?;
        let (view, consistent) = call.view(self).await?;
        let id = find_job(&view.state, &key)?;
        let waiting = self.obstacles(&view.state, id, TaskState::Pending).await?;
        let failed = TaskState::Dead(TaskOutcome::Failed(ExitClass::CouldNotStart));
        let failing = self.obstacles(&view.state, id, failed).await?;
        let now = self.handle.log_time();
        let (served, lacks) = (is_served(&waiting), !failing.is_empty());
        let usage = self.handle.usage().await;
        let (index, explanation) = self
            .query_snapshot(call.actor_text(), move |api, view, snapshot| {
                let query = ExplainQuery { api, view, now, served, usage: &usage };
                Ok((view.index, query.job(snapshot, id, lacks)))
            })
            .await?;
        let gone = || Api::not_found(Code::NoSuchJob, format!("job {key} any more"));
        let mut explanation = explanation.ok_or_else(gone)?;
        let found = if explanation.tasks.pending > 0 { &waiting } else { &failing };
        let concerns = |group: &WaitingGroup| match group.why.state {
            TaskState::Pending => Some(&waiting),
            state if awaits_packages(state) => Some(&failing),
            _ => None,
        };
        let all: Vec<_> = explanation.groups.iter().map(|group| concerns(group).cloned()).collect();
        // A task that is starting may be in no group, and cannot run without its packages either.
        if all.iter().any(Option::is_some) || explanation.tasks.assigned > 0 {
            explanation.text = prepend_obstacles(found, &explanation.text);
        }
        for (group, found) in explanation.groups.iter_mut().zip(all) {
            group.why.obstacles.extend(found.unwrap_or_default());
        }
        reply::one(&call, index, consistent, explanation)
    }

    /// Queries the snapshot on a blocking thread, one query at a time.
    pub(super) async fn query_snapshot<T, Q>(
        &self,
        actor: String,
        question: Q,
    ) -> Result<T, ApiError>
    where
        T: Send + 'static,
        Q: FnOnce(&Api, &View, &mut ClusterSnapshot) -> Result<T, ApiError> + Send + 'static,
    {
        let permit = self.explanation_queue.acquire(&actor).await?;
        self.run_blocking(move |api| {
            // Held until the work is done, even if the caller disconnects.
            let _one_at_a_time = permit;
            let cell = api.handle.replicated();
            api.snapshot_cache.query(cell, |view, snapshot| question(api, view, snapshot))
        })
        .await
    }

    /// Recent events of a task. If they cannot be read, the rest is explained all the same.
    fn task_history(&self, state: &State, job: JobId, index: u32) -> TaskHistory {
        let events = &self.handle.replicated().records.events;
        match events.recent_task_events(job, index, MAX_HISTORY) {
            Ok((events, from)) => TaskHistory::new(state, job, events, Some(from)),
            Err(error) => {
                tracing::warn!(%error, "the past of a task could not be read");
                TaskHistory::default()
            }
        }
    }

    /// What keeps a task of the job from running in this state, whatever resources the machines
    /// have.
    async fn obstacles(
        &self,
        state: &State,
        job: JobId,
        at: TaskState,
    ) -> Result<Vec<ObstacleView>, ApiError> {
        let Some(row) = state.jobs().get(job) else { return Ok(Vec::new()) };
        let spec = row.spec().clone();
        let mut found = Vec::new();
        if at == TaskState::Pending {
            found.extend(match stopped_alloc_set(state, &spec) {
                Some(stopped) => Some(stopped),
                None => self.unserved_shard(&spec).await,
            });
        }
        if awaits_packages(at) {
            let state = state.clone();
            let look = move |_: &Api| Ok(MissingPackages::of(&state, [&*spec]).obstacles(&spec));
            found.extend(self.run_blocking(look).await?);
        }
        Ok(found)
    }

    /// Whether tasks wait for a scheduler rather than for a machine. A replica that does not lead
    /// cannot know, and returns nothing.
    pub(super) async fn unserved_shard(&self, spec: &JobSpec) -> Option<ObstacleView> {
        let code = SHARD_NOT_SERVED.to_owned();
        let shard = match SchedulerShardName::of(spec) {
            Ok(shard) => shard,
            Err(bad) => {
                let message = format!("no scheduler can serve the label `scheduler`: {bad}");
                let hint = "submit the job with another label, or without it".to_owned();
                return Some(ObstacleView { code, message, hint });
            }
        };
        if self.handle.scheduler_shard_holder(shard.clone()).await.ok()?.is_some() {
            return None;
        }
        let (message, start) = match shard.as_str() {
            "" => ("no scheduler runs".to_owned(), "cell scheduler".to_owned()),
            name => (
                format!("no scheduler serves scheduler shard {name}"),
                format!("cell scheduler --shard {name}"),
            ),
        };
        Some(ObstacleView { code, message, hint: format!("start one with `{start}`") })
    }
}

fn is_served(obstacles: &[ObstacleView]) -> bool {
    obstacles.iter().all(|obstacle| obstacle.code != SHARD_NOT_SERVED)
}

/// Whether a task in this state still has to fetch its packages, or could not.
fn awaits_packages(state: TaskState) -> bool {
    let failed = TaskState::Dead(TaskOutcome::Failed(ExitClass::CouldNotStart));
    matches!(state, TaskState::Pending | TaskState::Assigned) || state == failed
}

fn prepend_obstacles(obstacles: &[ObstacleView], text: &str) -> String {
    let lines = obstacles.iter().map(|found| format!("{}: {}\n", found.message, found.hint));
    lines.chain([text.to_owned()]).collect()
}

/// Tasks of a job inside an alloc set wait for an alloc set of that name: for good, unless it is
/// submitted again.
fn stopped_alloc_set(state: &State, spec: &JobSpec) -> Option<ObstacleView> {
    let set = spec.alloc_set.as_ref()?;
    let row = state.job_named(set).and_then(|id| state.jobs().get(id));
    let message = match row.map(|row| row.state) {
        Some(JobState::Stopping | JobState::Dead(_)) => format!("alloc set {set} was stopped"),
        Some(_) => return None,
        None => format!("there is no alloc set {set} any more"),
    };
    let hint = "run it again, and its tasks go on there".to_owned();
    Some(ObstacleView { code: "no-alloc-set".to_owned(), message, hint })
}

/// Context that the explanations of one query share.
struct ExplainQuery<'a> {
    api: &'a Api,
    view: &'a View,
    now: Time,
    /// Whether a scheduler serves the shard of such tasks at present.
    served: bool,
    usage: &'a UsageSnapshot,
}

impl ExplainQuery<'_> {
    /// `timed`: with its estimated start, if it waits.
    fn task(
        &self,
        snapshot: &mut ClusterSnapshot,
        id: TaskId,
        history: TaskHistory,
        timed: bool,
    ) -> Option<ExplanationView> {
        let (state, now) = (&self.view.state, self.now);
        let row = state.tasks().get(id)?;
        let mut result = base_view(state, id, history, now)?;
        match row.state {
            TaskState::Pending => {
                let positions = QueuePositions::new(snapshot, QueueOrder::Fair, now, DEFAULT_SEED);
                let explanation =
                    Explainer::new(snapshot, state, &Sequential).task(id, &positions)?;
                explanation_view::add_waiting(&mut result, &explanation);
                let events = &self.api.handle.replicated().records.events;
                let outlook = Forecast { state, snapshot, events, now, served: self.served };
                outlook.add_easier(&mut result, &explanation, id);
                if timed {
                    outlook.add_eta(&mut result, &explanation, id);
                }
            }
            state_now if state_now.is_on_machine() => {
                let here = rank_placements(snapshot, id, state, Options::default(), DEFAULT_SEED);
                explanation_view::add_placement(&mut result, state, id, here, self.usage, now);
            }
            _ => explanation_view::add_inactive(&mut result, state, row, now),
        }
        if let Some(line) = gang::gives_back_text(state, row, now.max(state.now())) {
            result.text.push('\n');
            result.text.push_str(&line);
        }
        Some(result)
    }

    /// `lacks`: packages of the job are not available anywhere.
    fn job(
        &self,
        snapshot: &mut ClusterSnapshot,
        id: JobId,
        lacks: bool,
    ) -> Option<JobExplanation> {
        let state = &self.view.state;
        let job = state.jobs().get(id)?;
        let mut alike_tasks: BTreeMap<GroupKey, Vec<(u32, TaskId)>> = BTreeMap::new();
        for task in job.tasks.iter() {
            let Some(row) = state.tasks().get(*task) else { continue };
            if let Some(group_key) = group_key(state, snapshot, *task, row) {
                alike_tasks.entry(group_key).or_default().push((row.index, *task));
            }
        }
        let mut groups_by_size: Vec<Vec<(u32, TaskId)>> = alike_tasks.into_values().collect();
        groups_by_size.sort_by_key(|tasks| std::cmp::Reverse(tasks.len()));
        let left_out = groups_by_size.len().saturating_sub(MAX_GROUPS);
        let mut groups: Vec<WaitingGroup> = Vec::new();
        for tasks in groups_by_size.into_iter().take(MAX_GROUPS) {
            let (index, task) = *tasks.first()?;
            let history = self.api.task_history(state, id, index);
            // Simulating the queue costs more than all the rest, so it is done for the largest
            // waiting group only.
            let timed = groups.iter().all(|group| group.why.eta.is_none());
            let Some(why) = self.task(snapshot, task, history, timed) else { continue };
            groups.push(WaitingGroup {
                count: tasks.len() as u32,
                tasks: tasks.iter().take(MAX_NAMED_TASKS).map(|(index, _)| *index).collect(),
                why,
            });
        }
        let tasks = state.job_load(id).map(view::task_counts).unwrap_or_default();
        let dead = matches!(job.state, JobState::Dead(_));
        let is_well = !(dead || lacks && tasks.assigned > 0);
        let text = explanation_view::job_text(&tasks, &groups, left_out, is_well);
        let job_name = state.job_key(id)?.to_string();
        Some(JobExplanation { job: job_name, state: job.state, tasks, text, groups })
    }
}

/// What is wrong with a task, coarse enough to group tasks by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum GroupKey {
    Waits(u32),
    Fails(TaskState),
    Deferred,
    /// It has not passed its health check yet.
    Starts,
}

fn group_key(
    state: &State,
    snapshot: &ClusterSnapshot,
    id: TaskId,
    row: &Task,
) -> Option<GroupKey> {
    match row.state {
        TaskState::Pending if row.failures_in_row > 0 => Some(GroupKey::Fails(row.state)),
        TaskState::Pending => snapshot.class_of(id).map(|class| GroupKey::Waits(class.0)),
        TaskState::Deferred => Some(GroupKey::Deferred),
        TaskState::Assigned if health::is_start_awaited(state, row) => Some(GroupKey::Starts),
        TaskState::Dead(TaskOutcome::Failed(_) | TaskOutcome::DependencyFailed) => {
            Some(GroupKey::Fails(row.state))
        }
        _ => None,
    }
}
