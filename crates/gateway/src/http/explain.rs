//! Why a task waits, why it is where it is, and how it last ended: worked out by the scheduler's
//! own code on a mirror of the live state, and read from the events.

mod health;
mod outlook;
pub(super) mod shown;

use super::call::Call;
use super::jobs::find;
use super::missing::Missing;
use super::{Answered, Api, reply, view};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::{ExplanationView, JobExplanation, ObstacleView, WaitingGroup};
use cellwright_cell::id::{JobId, TaskId};
use cellwright_cell::job::JobState;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::state::State;
use cellwright_cell::task::{ExitClass, Fate, Task, TaskState};
use cellwright_cell::time::Time;
use cellwright_control::lease::LaneName;
use cellwright_master::replicated::View;
use cellwright_master::usage::Usage;
use cellwright_sched::executor::Sequential;
use cellwright_sched::explain::Explainer;
use cellwright_sched::explain::here::why_here;
use cellwright_sched::explain::standing::Standings;
use cellwright_sched::queue::Order;
use cellwright_sched::{Board, Options, SEED};
use outlook::Outlook;
use shown::{Past, blank};
use std::collections::BTreeMap;

/// Things that happened to a task, told with it.
const HISTORY: usize = 10;
/// Groups of a job that are explained, and indices named of each.
const GROUPS: usize = 8;
const NAMED: usize = 20;
/// Code of the obstacle that no scheduler plans such tasks.
const NOT_SERVED: &str = "lane-not-served";

impl Api {
    pub(super) async fn explain_task(&self, call: Call) -> Answered {
        let (view, consistent) = call.view(self).await?;
        let id = call.task_row(&view.state)?;
        let row = view.state.tasks().get(id).cloned();
        let missing = || Api::missing(Code::NoSuchTask, view.state.task_name(id));
        let row = row.ok_or_else(missing)?;
        let obstacles = self.obstacles(&view.state, row.job, row.state).await?;
        let now = self.handle.log_time();
        let (served, usage) = (is_served(&obstacles), self.handle.usage().await);
        let (index, explanation) = self
            .ask_mirror(call.who(), move |api, view, board| {
                let asked = Asked { api, view, now, served, usage: &usage };
                let past = api.past(&view.state, row.job, row.index);
                let made = asked.task(board, id, past, true);
                Ok((view.index, made))
            })
            .await?;
        let gone = || Api::missing(Code::NoSuchTask, "task of that name any more");
        let mut explanation = explanation.ok_or_else(gone)?;
        explanation.text = said_first(&obstacles, &explanation.text);
        explanation.obstacles.extend(obstacles);
        reply::one(&call, index, consistent, explanation)
    }

    pub(super) async fn explain_job(&self, call: Call) -> Answered {
        let key = call.job()?;
        let (view, consistent) = call.view(self).await?;
        let id = find(&view.state, &key)?;
        let waiting = self.obstacles(&view.state, id, TaskState::Pending).await?;
        let failed = TaskState::Dead(Fate::Failed(ExitClass::CouldNotStart));
        let failing = self.obstacles(&view.state, id, failed).await?;
        let now = self.handle.log_time();
        let (served, lacks) = (is_served(&waiting), !failing.is_empty());
        let usage = self.handle.usage().await;
        let (index, made) = self
            .ask_mirror(call.who(), move |api, view, board| {
                let asked = Asked { api, view, now, served, usage: &usage };
                Ok((view.index, asked.job(board, id, lacks)))
            })
            .await?;
        let gone = || Api::missing(Code::NoSuchJob, format!("job {key} any more"));
        let mut made = made.ok_or_else(gone)?;
        let found = if made.tasks.pending > 0 { &waiting } else { &failing };
        let concerns = |group: &WaitingGroup| match group.why.state {
            TaskState::Pending => Some(&waiting),
            state if awaits_packages(state) => Some(&failing),
            _ => None,
        };
        let all: Vec<_> = made.groups.iter().map(|group| concerns(group).cloned()).collect();
        // A task that starts may be in no group, and cannot run without its packages either.
        if all.iter().any(Option::is_some) || made.tasks.assigned > 0 {
            made.text = said_first(found, &made.text);
        }
        for (group, found) in made.groups.iter_mut().zip(all) {
            group.why.obstacles.extend(found.unwrap_or_default());
        }
        reply::one(&call, index, consistent, made)
    }

    /// Asks the mirror where waiting does no harm, one question at a time.
    pub(super) async fn ask_mirror<T: Send + 'static>(
        &self,
        who: String,
        question: impl FnOnce(&Api, &View, &mut Board) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = self.explaining.take(&who).await?;
        self.blocking(move |api| {
            // Held until the work is done, not until the asker is gone.
            let _one_at_a_time = turn;
            let cell = api.handle.replicated();
            api.mirror.ask(cell, |view, board| question(api, view, board))
        })
        .await
    }

    /// What happened to a task lately. That it cannot be read is no reason to explain nothing.
    fn past(&self, state: &State, job: JobId, index: u32) -> Past {
        let events = &self.handle.replicated().records.events;
        match events.lately(job, index, HISTORY) {
            Ok((events, from)) => Past::new(state, job, events, Some(from)),
            Err(error) => {
                tracing::warn!(%error, "the past of a task could not be read");
                Past::default()
            }
        }
    }

    /// What keeps a task of the job from running in this state, whatever machines offer.
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
            found.extend(match stopped_set(state, &spec) {
                Some(stopped) => Some(stopped),
                None => self.unserved_lane(&spec).await,
            });
        }
        if awaits_packages(at) {
            let state = state.clone();
            let look = move |_: &Api| Ok(Missing::of(&state, [&*spec]).obstacles(&spec));
            found.extend(self.blocking(look).await?);
        }
        Ok(found)
    }

    /// Whether tasks wait for a scheduler rather than for a machine. A replica that does not lead
    /// cannot tell, and says nothing.
    pub(super) async fn unserved_lane(&self, spec: &JobSpec) -> Option<ObstacleView> {
        let code = NOT_SERVED.to_owned();
        let lane = match LaneName::of(spec) {
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

fn is_served(obstacles: &[ObstacleView]) -> bool {
    obstacles.iter().all(|obstacle| obstacle.code != NOT_SERVED)
}

/// Whether the packages of a task in this state are still to be had, or could not be.
fn awaits_packages(state: TaskState) -> bool {
    let failed = TaskState::Dead(Fate::Failed(ExitClass::CouldNotStart));
    matches!(state, TaskState::Pending | TaskState::Assigned) || state == failed
}

fn said_first(obstacles: &[ObstacleView], text: &str) -> String {
    let said = obstacles.iter().map(|found| format!("{}: {}\n", found.message, found.hint));
    said.chain([text.to_owned()]).collect()
}

/// Tasks of a job inside an alloc set wait for one of that name: for good, unless somebody runs it
/// again.
fn stopped_set(state: &State, spec: &JobSpec) -> Option<ObstacleView> {
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

/// What explanations of one question share.
struct Asked<'a> {
    api: &'a Api,
    view: &'a View,
    now: Time,
    /// Whether a scheduler plans such tasks at present.
    served: bool,
    usage: &'a Usage,
}

impl Asked<'_> {
    /// `timed`: with when it starts, if it waits.
    fn task(
        &self,
        board: &mut Board,
        id: TaskId,
        past: Past,
        timed: bool,
    ) -> Option<ExplanationView> {
        let (state, now) = (&self.view.state, self.now);
        let row = state.tasks().get(id)?;
        let mut told = blank(state, id, past, now)?;
        match row.state {
            TaskState::Pending => {
                let standings = Standings::new(board, Order::Fair, now, SEED);
                let made = Explainer::new(board, state, &Sequential).task(id, &standings)?;
                shown::waiting(&mut told, &made);
                let events = &self.api.handle.replicated().records.events;
                let outlook = Outlook { state, board, events, now, served: self.served };
                outlook.add_easier(&mut told, &made, id);
                if timed {
                    outlook.add_eta(&mut told, &made, id);
                }
            }
            state_now if state_now.on_machine() => {
                let here = why_here(board, id, state, Options::default(), SEED);
                shown::placed(&mut told, state, id, here, self.usage, now);
            }
            _ => shown::apart(&mut told, state, row, now),
        }
        Some(told)
    }

    /// `lacks`: packages of the job are to be had nowhere.
    fn job(&self, board: &mut Board, id: JobId, lacks: bool) -> Option<JobExplanation> {
        let state = &self.view.state;
        let job = state.jobs().get(id)?;
        let mut alike: BTreeMap<Matter, Vec<(u32, TaskId)>> = BTreeMap::new();
        for task in job.tasks.iter() {
            let Some(row) = state.tasks().get(*task) else { continue };
            if let Some(matter) = matter(state, board, *task, row) {
                alike.entry(matter).or_default().push((row.index, *task));
            }
        }
        let mut alike: Vec<Vec<(u32, TaskId)>> = alike.into_values().collect();
        alike.sort_by_key(|tasks| std::cmp::Reverse(tasks.len()));
        let left_out = alike.len().saturating_sub(GROUPS);
        let mut groups: Vec<WaitingGroup> = Vec::new();
        for tasks in alike.into_iter().take(GROUPS) {
            let (index, task) = *tasks.first()?;
            let past = self.api.past(state, id, index);
            // To play the queue forward costs more than all the rest, so that is done for the
            // largest group that waits.
            let timed = groups.iter().all(|group| group.why.eta.is_none());
            let Some(why) = self.task(board, task, past, timed) else { continue };
            groups.push(WaitingGroup {
                count: tasks.len() as u32,
                tasks: tasks.iter().take(NAMED).map(|(index, _)| *index).collect(),
                why,
            });
        }
        let tasks = state.job_load(id).map(view::counts).unwrap_or_default();
        let dead = matches!(job.state, JobState::Dead(_));
        let is_well = !(dead || lacks && tasks.assigned > 0);
        let text = shown::job_text(&tasks, &groups, left_out, is_well);
        let job_name = state.job_key(id)?.to_string();
        Some(JobExplanation { job: job_name, state: job.state, tasks, text, groups })
    }
}

/// What is the matter with a task, as far as tasks with the same can be told together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Matter {
    Waits(u32),
    Fails(TaskState),
    Deferred,
    /// It has still to pass its health check for the first time.
    Starts,
}

fn matter(state: &State, board: &Board, id: TaskId, row: &Task) -> Option<Matter> {
    match row.state {
        TaskState::Pending if row.failures_in_row > 0 => Some(Matter::Fails(row.state)),
        TaskState::Pending => board.class_of(id).map(|class| Matter::Waits(class.0)),
        TaskState::Deferred => Some(Matter::Deferred),
        TaskState::Assigned if health::is_awaited(state, row) => Some(Matter::Starts),
        TaskState::Dead(Fate::Failed(_) | Fate::DependencyFailed) => Some(Matter::Fails(row.state)),
        _ => None,
    }
}
