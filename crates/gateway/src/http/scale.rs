//! How a job is scaled: read, and handed over.
//!
//! What is shown is what the rules say at this moment, by the function that the controller calls;
//! the last decision that was made stands beside it.

use super::call::Call;
use super::jobs::find_job;
use super::{Api, ApiResult, reply};
use cellwright_api::error::ApiError;
use cellwright_api::types::{ScaleView, SetScaleMode, ToldNumber};
use cellwright_cell::job::Job;
use cellwright_cell::name::JobKey;
use cellwright_cell::reason::{Conflict, Rejection};
use cellwright_cell::scale::{MetricTarget, ScaleMode, ScalePolicy, ScaleSize};
use cellwright_cell::scaling;
use cellwright_cell::state::State;
use cellwright_cell::task::{Task, TaskState};
use cellwright_cell::time::Time;
use cellwright_cell::words;
use cellwright_control::controller::scaling::decision;
use cellwright_master::usage::UsageSnapshot;

impl Api {
    pub(super) async fn get_scale(&self, call: Call) -> ApiResult {
        let key = call.job()?;
        // What tasks tell is in no log.
        let usage = self.handle.usage().await;
        let (view, consistent) = call.view(self).await?;
        let id = find_job(&view.state, &key)?;
        let job = view.state.jobs().get(id).filter(|job| !job.is_dead());
        let scaled = job.and_then(|job| Some((job, job.spec().scale.as_ref()?)));
        let Some((job, policy)) = scaled else {
            return Err(ApiError::from(Rejection::WrongState(Conflict::NotScaled(key))));
        };
        let now = self.handle.log_time();
        let mut shown = scale_view(&view.state, &key, job, policy, now);
        add_numbers(&mut shown, &view.state, job, policy, &usage);
        reply::one(&call, view.index, consistent, shown)
    }

    pub(super) async fn set_scale_mode(&self, mut call: Call) -> ApiResult {
        let SetScaleMode { manual } = call.json(self).await?;
        let job = call.job()?;
        self.change(&call, scaling::Command::SetMode { job, manual }.into()).await
    }
}

fn scale_view(
    state: &State,
    key: &JobKey,
    job: &Job,
    policy: &ScalePolicy,
    now: Time,
) -> ScaleView {
    let row = state.job_named(key).and_then(|id| Some((id, state.scaling_of(id)?.1)));
    let size = ScaleSize::of(job.spec());
    let mode = match (row.is_some_and(|(_, row)| row.manual), policy.advise) {
        (true, _) => ScaleMode::Manual,
        (false, true) => ScaleMode::Advise,
        (false, false) => ScaleMode::Auto,
    };
    let shown = row.and_then(|(id, row)| decision(state, id, job, policy, row, now));
    let want = shown.as_ref().map_or(size, |shown| shown.want);
    let vetoes = shown.iter().flat_map(|shown| &shown.vetoes);
    let text =
        shown.as_ref().map_or_else(|| "was not measured yet".into(), words::scaling::decision);
    let measured = row.and_then(|(_, row)| row.measured.as_ref());
    ScaleView {
        job: key.clone(),
        mode,
        min: policy.min,
        max: policy.max,
        now: size.count,
        want: want.count,
        now_size: size,
        want_size: want,
        rule: shown.as_ref().map(|shown| shown.rule.code().into_owned()),
        vetoed_by: vetoes.map(|veto| veto.as_str().to_owned()).collect(),
        text: format!("{key} {text}"),
        measured_at: measured.map(|measured| measured.at),
        need: measured.map(|measured| measured.need),
        last: row.and_then(|(_, row)| row.decision.clone()),
        recent: row.map_or_else(Vec::new, |(_, row)| row.memory.recent.clone()),
        numbers: Vec::new(),
        refused: 0,
    }
}

/// What the job's running tasks told last.
fn add_numbers(
    view: &mut ScaleView,
    state: &State,
    job: &Job,
    policy: &ScalePolicy,
    usage: &UsageSnapshot,
) {
    let running = |id| {
        let row: &Task = state.tasks().get(id)?;
        let machine = row.machine().filter(|_| row.state == TaskState::Running)?;
        Some((machine, id, row.attempt))
    };
    let running: Vec<_> = job.tasks.iter().filter_map(|id| running(*id)).collect();
    let of = u32::try_from(running.len()).unwrap_or(u32::MAX);
    let number = |target: &MetricTarget| {
        let series = target.series();
        let told = |(machine, task, attempt): &_| usage.number(*machine, *task, *attempt, &series);
        let told: Vec<u64> = running.iter().filter_map(told).collect();
        let by = u32::try_from(told.len()).unwrap_or(u32::MAX);
        let told = told.into_iter().fold(0, u64::saturating_add);
        ToldNumber { series, per_task: target.per_task, told, by, of }
    };
    view.numbers = policy.target.metrics.iter().map(number).collect();
    let refused = |(machine, task, attempt): &_| usage.refused(*machine, *task, *attempt);
    view.refused = running.iter().map(refused).fold(0, u64::saturating_add);
}
