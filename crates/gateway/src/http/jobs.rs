//! Jobs and their tasks.

use super::call::Call;
use super::{Api, ApiResult, reply, user_of, view};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::{SubmitJob, owner_or};
use cellwright_cell::command::{Command, TasksToStart};
use cellwright_cell::id::{JobId, TaskId};
use cellwright_cell::job::JobState;
use cellwright_cell::label;
use cellwright_cell::name::JobKey;
use cellwright_cell::reason::Rejection;
use cellwright_cell::rollout;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::state::State;
use cellwright_cell::suggestions::nearest;
use cellwright_cell::task::TaskState;

fn job_state_text(state: JobState) -> &'static str {
    match state {
        JobState::Deferred => "deferred",
        JobState::Active => "active",
        JobState::Stopping => "stopping",
        JobState::Dead(_) => "dead",
    }
}

fn task_state_text(state: TaskState) -> &'static str {
    match state {
        TaskState::Deferred => "deferred",
        TaskState::Pending => "pending",
        TaskState::Assigned => "assigned",
        TaskState::Running => "running",
        TaskState::Stopping(_) => "stopping",
        TaskState::Dead(_) => "dead",
    }
}

pub(super) fn find_job(state: &State, job: &JobKey) -> Result<JobId, ApiError> {
    state.job_named(job).ok_or_else(|| {
        let mut error = ApiError::from(Rejection::NoSuchJob(job.clone()));
        error.message.push_str(&suggestion(state, job));
        error
    })
}

/// Limit of the names compared for a suggestion: it must not cost more than the request itself.
const MAX_COMPARED: usize = 1000;
/// Names that differ in length by more letters are not suggested.
const MAX_LENGTH_DIFFERENCE: usize = 3;

/// `; did you mean ...?` for a job that does not exist, or an empty text: the closest name among
/// the jobs of that user. Where there is no such user, the user's name may be that of a job. A
/// periodic job of that name is suggested with its last run, which is a job.
///
/// It searches all jobs: not to be called while the state is locked.
pub(super) fn suggestion(state: &State, wrong: &JobKey) -> String {
    if let Some(cron) = state.cron_named(wrong).and_then(|id| state.crons().get(id)) {
        return match cron.last_job().and_then(|job| state.job_key(job)) {
            Some(last) => format!("; {wrong} is a periodic job, and its last run is {last}"),
            None => format!("; {wrong} is a periodic job, which has not run yet"),
        };
    }
    let jobs = || state.jobs().iter().map(|(_, row)| row);
    let suggested = match state.user_named(&wrong.user) {
        Some(user) => {
            let own = jobs().filter(|row| row.user == user);
            let names = own.map(|row| row.spec().name.as_str());
            let name = nearest(wrong.job.as_str(), similar_names(wrong.job.as_str(), names));
            name.map(|name| format!("{}/{name}", wrong.user))
        }
        None => jobs().find(|row| row.spec().name == wrong.user).and_then(|row| {
            let owner = state.users().get(row.user)?;
            Some(format!("{}/{}", owner.name, wrong.user))
        }),
    };
    suggested.map_or(String::new(), |meant| format!("; did you mean {meant}?"))
}

/// The names among these that are similar enough to compare with `wrong`.
fn similar_names<'a>(
    wrong: &str,
    names: impl Iterator<Item = &'a str>,
) -> impl Iterator<Item = &'a str> {
    let letters = wrong.len();
    names
        .filter(move |name| name.len().abs_diff(letters) <= MAX_LENGTH_DIFFERENCE)
        .take(MAX_COMPARED)
}

impl Call {
    /// The index in the path; beyond any job's where it is no such number.
    fn task_index(&self) -> Result<u32, ApiError> {
        Ok(u32::try_from(self.number("index")?).unwrap_or(u32::MAX))
    }

    /// The task in the path.
    pub fn task_row(&self, state: &State) -> Result<TaskId, ApiError> {
        let job = self.job()?;
        let row = state.jobs().get(find_job(state, &job)?);
        let index = usize::try_from(self.number("index")?).unwrap_or(usize::MAX);
        let found = row.and_then(|row| row.tasks.get(index).copied());
        found.ok_or_else(|| {
            let tasks = row.map_or(0, |row| row.tasks.len());
            Api::not_found(Code::NoSuchTask, format!("task {job}/{index}; it has {tasks}"))
                .hint(format!("list the tasks of the job: cell status {job}"))
        })
    }
}

impl Api {
    pub(super) async fn list_jobs(&self, call: Call) -> ApiResult {
        let terms = call.selector()?;
        let user = call.query("user").map(str::to_owned);
        let state_filter = call.query("state").map(str::to_owned);
        let (view, consistent) = call.view(self).await?;
        let state = &view.state;
        let rows = state.jobs().iter().filter(|(id, row)| {
            let is_owner = |name: &str| {
                state.users().get(row.user).is_some_and(|owner| owner.name.as_str() == name)
            };
            let job_state = job_state_text(row.state);
            let matches_state = |want: &str| match want {
                "live" => job_state != "dead",
                "waiting" => state.job_load(*id).is_some_and(|load| load.pending > 0),
                want => job_state == want,
            };
            user.as_deref().is_none_or(is_owner)
                && state_filter.as_deref().is_none_or(matches_state)
                && label::selects(&terms, &row.spec().labels)
        });
        let rows = rows.map(|(id, _)| (u64::from(id.0), id));
        let viewer = call.viewer()?;
        let show = |id| view::job(state, &viewer, id);
        let page = call.page('j', (view.index, consistent), rows, show)?;
        reply::page(&call, &page)
    }

    pub(super) async fn get_job(&self, call: Call) -> ApiResult {
        let key = call.job()?;
        let (view, consistent) = call.view(self).await?;
        let id = find_job(&view.state, &key)?;
        let job = view::job(&view.state, &call.viewer()?, id);
        let job = job.ok_or_else(|| ApiError::from(Rejection::NoSuchJob(key)))?;
        reply::one(&call, view.index, consistent, job)
    }

    pub(super) async fn submit_job(&self, mut call: Call) -> ApiResult {
        let SubmitJob { owner, spec } = call.json(self).await?;
        let owner = owner_or(owner, user_of(call.caller()?))?;
        self.change(&call, Command::SubmitJob { owner, spec: Box::new(spec) }).await
    }

    pub(super) async fn update_job(&self, mut call: Call) -> ApiResult {
        let spec: JobSpec = call.json(self).await?;
        let JobKey { user: owner, job } = call.job()?;
        if spec.name != job {
            let allowed = format!("{job}, as in the path");
            return Err(ApiError::field("name", spec.name.as_str(), &allowed));
        }
        let expect = call.expect()?;
        self.change(&call, Command::UpdateJob { owner, spec: Box::new(spec), expect }).await
    }

    pub(super) async fn stop_job(&self, call: Call) -> ApiResult {
        let (job, expect) = (call.job()?, call.expect()?);
        let command = match call.span("notice")? {
            Some(notice) => Command::StopWithin { job, index: None, notice, expect },
            None => Command::StopJob { job, expect },
        };
        self.change(&call, command).await
    }

    pub(super) async fn stop_task(&self, call: Call) -> ApiResult {
        let (job, expect) = (call.job()?, call.expect()?);
        let index = call.task_index()?;
        let command = match call.span("notice")? {
            Some(notice) => Command::StopWithin { job, index: Some(index), notice, expect },
            None => Command::StopTask { job, index, expect },
        };
        self.change_task(&call, command).await
    }

    /// A change of the task in the path.
    async fn change_task(&self, call: &Call, command: Command) -> ApiResult {
        let changed = self.change(call, command).await;
        changed.map_err(|error| match error.code {
            // A read of a task that does not exist says how many tasks its job has; so does this.
            Code::NoSuchRow => {
                let found = self.handle.replicated().with(|view| call.task_row(&view.state));
                found.err().unwrap_or(error)
            }
            _ => error,
        })
    }

    pub(super) async fn restart_job(&self, call: Call) -> ApiResult {
        let job = call.job()?;
        self.change(&call, Command::RestartTasks { job, index: None }).await
    }

    pub(super) async fn restart_task(&self, call: Call) -> ApiResult {
        let (job, index) = (call.job()?, Some(call.task_index()?));
        self.change_task(&call, Command::RestartTasks { job, index }).await
    }

    pub(super) async fn start_failed_tasks(&self, call: Call) -> ApiResult {
        let job = call.job()?;
        self.change(&call, Command::StartTasks { job, which: TasksToStart::Failed }).await
    }

    pub(super) async fn start_task(&self, call: Call) -> ApiResult {
        let (job, which) = (call.job()?, TasksToStart::One(call.task_index()?));
        self.change_task(&call, Command::StartTasks { job, which }).await
    }

    pub(super) async fn undo_update(&self, call: Call) -> ApiResult {
        let (job, expect) = (call.job()?, call.expect()?);
        self.change(&call, Command::UndoUpdate { job, expect }).await
    }

    pub(super) async fn close_update(&self, call: Call) -> ApiResult {
        let (job, expect) = (call.job()?, call.expect()?);
        self.change(&call, Command::CloseUpdate { job, expect }).await
    }

    pub(super) async fn promote_update(&self, call: Call) -> ApiResult {
        let (job, expect) = (call.job()?, call.expect()?);
        self.change(&call, rollout::Command::Promote { job, expect }.into()).await
    }

    pub(super) async fn finish_update(&self, call: Call) -> ApiResult {
        let (job, expect) = (call.job()?, call.expect()?);
        self.change(&call, rollout::Command::Finish { job, expect }.into()).await
    }

    pub(super) async fn list_tasks(&self, call: Call) -> ApiResult {
        let key = call.job()?;
        let state_filter = call.query("state").map(str::to_owned);
        let (view, consistent) = call.view(self).await?;
        let state = &view.state;
        let row = state.jobs().get(find_job(state, &key)?);
        let ids = row.map(|row| row.tasks.clone()).unwrap_or_default();
        let stands = |id: &TaskId| {
            let Some(row) = state.tasks().get(*id) else { return false };
            state_filter.as_deref().is_none_or(|want| task_state_text(row.state) == want)
        };
        let rows = ids.iter().enumerate().filter(|(_, id)| stands(id));
        let rows = rows.map(|(at, id)| (at as u64, *id));
        let usage = self.handle.usage().await;
        let show = |id| view::task(state, &usage, id);
        let page = call.page('t', (view.index, consistent), rows, show)?;
        reply::page(&call, &page)
    }

    pub(super) async fn get_task(&self, call: Call) -> ApiResult {
        let (view, consistent) = call.view(self).await?;
        let id = call.task_row(&view.state)?;
        let task = view::task(&view.state, &self.handle.usage().await, id);
        let missing = || Api::not_found(Code::NoSuchTask, view.state.task_name(id));
        reply::one(&call, view.index, consistent, task.ok_or_else(missing)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_compares_a_bounded_number_of_names_of_like_length() {
        let check = |others: usize, other: &str, want: Option<&str>| {
            let names = std::iter::repeat_n(other, others).chain(["web-server-of-ann"]);
            let wrong = "web-servre-of-ann";
            assert_eq!(nearest(wrong, similar_names(wrong, names)), want, "{others} of {other}");
        };
        let right = Some("web-server-of-ann");
        check(MAX_COMPARED - 1, "nothing-like-that", right);
        check(MAX_COMPARED, "nothing-like-that", None);
        // Names of another length are not compared, however many they are.
        check(MAX_COMPARED * 2, "web", right);
        let far = "web-server-of-ann-two";
        assert_eq!(similar_names("web-server-of-ann", [far].into_iter()).count(), 0);
    }
}
