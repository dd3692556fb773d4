//! Jobs and their tasks.

use super::call::Call;
use super::{Answered, Api, reply, user_of, view};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::{ResizeJob, SubmitJob, owner_or};
use cellwright_cell::command::Command;
use cellwright_cell::id::{JobId, TaskId};
use cellwright_cell::job::JobState;
use cellwright_cell::label;
use cellwright_cell::name::JobKey;
use cellwright_cell::reason::Refusal;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::state::{LAST_ENDS, State};
use cellwright_cell::task::TaskState;

fn job_state(state: JobState) -> &'static str {
    match state {
        JobState::Deferred => "deferred",
        JobState::Active => "active",
        JobState::Stopping => "stopping",
        JobState::Dead(_) => "dead",
    }
}

fn task_state(state: TaskState) -> &'static str {
    match state {
        TaskState::Deferred => "deferred",
        TaskState::Pending => "pending",
        TaskState::Assigned => "assigned",
        TaskState::Running => "running",
        TaskState::Stopping(_) => "stopping",
        TaskState::Dead(_) => "dead",
    }
}

pub(super) fn find(state: &State, job: &JobKey) -> Result<JobId, ApiError> {
    state.job_named(job).ok_or_else(|| Refusal::NoSuchJob(job.clone()).into())
}

impl Call {
    /// The task the path names.
    pub fn task_row(&self, state: &State) -> Result<TaskId, ApiError> {
        let job = self.job()?;
        let row = state.jobs().get(find(state, &job)?);
        let index = usize::try_from(self.number("index")?).unwrap_or(usize::MAX);
        let found = row.and_then(|row| row.tasks.get(index).copied());
        found.ok_or_else(|| {
            let tasks = row.map_or(0, |row| row.tasks.len());
            Api::missing(Code::NoSuchTask, format!("task {job}/{index}; it has {tasks}"))
        })
    }
}

impl Api {
    pub(super) async fn list_jobs(&self, call: Call) -> Answered {
        let terms = call.selector()?;
        let user = call.query("user").map(str::to_owned);
        let wanted = call.query("state").map(str::to_owned);
        let (view, consistent) = call.view(self).await?;
        let state = &view.state;
        let rows = state.jobs().iter().filter(|(id, row)| {
            let named = |name: &str| {
                state.users().get(row.user).is_some_and(|owner| owner.name.as_str() == name)
            };
            let standing = job_state(row.state);
            let stands = |want: &str| match want {
                "live" => standing != "dead",
                "waiting" => state.job_load(*id).is_some_and(|load| load.pending > 0),
                want => standing == want,
            };
            user.as_deref().is_none_or(named)
                && wanted.as_deref().is_none_or(stands)
                && label::selects(&terms, &row.spec().labels)
        });
        let rows = rows.map(|(id, _)| (u64::from(id.0), id));
        let page = call.page('j', (view.index, consistent), rows, |id| view::job(state, id))?;
        reply::page(&call, &page)
    }

    pub(super) async fn get_job(&self, call: Call) -> Answered {
        let key = call.job()?;
        let (view, consistent) = call.view(self).await?;
        let id = find(&view.state, &key)?;
        let job = view::job(&view.state, id);
        let job = job.ok_or_else(|| ApiError::from(Refusal::NoSuchJob(key)))?;
        reply::one(&call, view.index, consistent, job)
    }

    pub(super) async fn submit_job(&self, mut call: Call) -> Answered {
        let SubmitJob { owner, spec } = call.json(self).await?;
        let owner = owner_or(owner, user_of(call.caller()?))?;
        self.change(&call, Command::SubmitJob { owner, spec }).await
    }

    pub(super) async fn update_job(&self, mut call: Call) -> Answered {
        let spec: JobSpec = call.json(self).await?;
        let JobKey { user: owner, job } = call.job()?;
        if spec.name != job {
            let allowed = format!("{job}, as in the path");
            return Err(ApiError::field("name", spec.name.as_str(), &allowed));
        }
        let expect = call.expect()?;
        self.change(&call, Command::UpdateJob { owner, spec, expect }).await
    }

    pub(super) async fn resize_job(&self, mut call: Call) -> Answered {
        let ResizeJob { count } = call.json(self).await?;
        let (job, expect) = (call.job()?, call.expect()?);
        self.change(&call, Command::ResizeJob { job, count, expect }).await
    }

    pub(super) async fn stop_job(&self, call: Call) -> Answered {
        let (job, expect) = (call.job()?, call.expect()?);
        self.change(&call, Command::StopJob { job, expect }).await
    }

    pub(super) async fn stop_task(&self, call: Call) -> Answered {
        let (job, expect) = (call.job()?, call.expect()?);
        let index = u32::try_from(call.number("index")?).unwrap_or(u32::MAX);
        // Before every replica knows the command, none of them may find it in the log.
        if self.handle.replicated().with(|view| view.state.level()) < LAST_ENDS {
            let message = "some replica is of a build that cannot stop a single task";
            return Err(ApiError::new(Code::WrongState, message).hint("upgrade every replica"));
        }
        self.change(&call, Command::StopTask { job, index, expect }).await
    }

    pub(super) async fn undo_update(&self, call: Call) -> Answered {
        let (job, expect) = (call.job()?, call.expect()?);
        self.change(&call, Command::UndoUpdate { job, expect }).await
    }

    pub(super) async fn close_update(&self, call: Call) -> Answered {
        let (job, expect) = (call.job()?, call.expect()?);
        self.change(&call, Command::CloseUpdate { job, expect }).await
    }

    pub(super) async fn list_tasks(&self, call: Call) -> Answered {
        let key = call.job()?;
        let wanted = call.query("state").map(str::to_owned);
        let (view, consistent) = call.view(self).await?;
        let state = &view.state;
        let row = state.jobs().get(find(state, &key)?);
        let ids = row.map(|row| row.tasks.clone()).unwrap_or_default();
        let stands = |id: &TaskId| {
            let Some(row) = state.tasks().get(*id) else { return false };
            wanted.as_deref().is_none_or(|want| task_state(row.state) == want)
        };
        let rows = ids.iter().enumerate().filter(|(_, id)| stands(id));
        let rows = rows.map(|(at, id)| (at as u64, *id));
        let usage = self.handle.usage().await;
        let show = |id| view::task(state, &usage, id);
        let page = call.page('t', (view.index, consistent), rows, show)?;
        reply::page(&call, &page)
    }

    pub(super) async fn get_task(&self, call: Call) -> Answered {
        let (view, consistent) = call.view(self).await?;
        let id = call.task_row(&view.state)?;
        let task = view::task(&view.state, &self.handle.usage().await, id);
        let missing = || Api::missing(Code::NoSuchTask, view.state.task_name(id));
        reply::one(&call, view.index, consistent, task.ok_or_else(missing)?)
    }
}
