//! Apply ("make this job so") and resize ("make its size so"), and their dry runs.
//!
//! A dry run applies the very command to a copy of the newest state, so that it cannot disagree
//! with the cell; the state can only have changed since. `POST /v1/plan` goes further, and finds
//! placements for the tasks as well.

use super::access::Viewer;
use super::call::Call;
use super::plan::{field_diffs, mask_secrets};
use super::{Api, ApiResult, reply, user_of};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::{Applied, RevertJob, SubmitJob, owner_or, resize_command};
use cellwright_cell::command::{Actor, ApplyOutcome, Command, Done, Entry, Request, Verdict};
use cellwright_cell::name::JobKey;
use cellwright_cell::rollout;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::spec_change;
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
use std::sync::Arc;

impl Api {
    pub(super) async fn apply_job(&self, mut call: Call) -> ApiResult {
        let SubmitJob { owner, spec } = call.json(self).await?;
        let owner = owner_or(owner, user_of(call.caller()?))?;
        let (expect, again) = (call.expect()?, call.flag("again"));
        let key = JobKey { user: owner.clone(), job: spec.name.clone() };
        self.apply_or_try(
            &call,
            key,
            Command::ApplyJob { owner, spec: Box::new(spec), expect, again },
        )
        .await
    }

    pub(super) async fn resize_job(&self, mut call: Call) -> ApiResult {
        let size = call.json(self).await?;
        let (job, expect) = (call.job()?, call.expect()?);
        let command = resize_command(job.clone(), size, expect)?;
        self.apply_or_try(&call, job, command).await
    }

    pub(super) async fn revert_job(&self, mut call: Call) -> ApiResult {
        let RevertJob { version } = call.json(self).await?;
        let (job, expect) = (call.job()?, call.expect()?);
        let command = rollout::Command::Revert { job: job.clone(), version, expect };
        self.apply_or_try(&call, job, command.into()).await
    }

    /// The command's effect on the job `key`, or with `dry_run` what it would be.
    async fn apply_or_try(&self, call: &Call, key: JobKey, command: Command) -> ApiResult {
        if call.flag("dry_run") {
            return self.dry_run(call, key, command).await;
        }
        let warnings = self.warnings(&command);
        let (index, done) = self.commit(call, command).await?;
        Ok(reply::json(call, index, &Applied { warnings, ..applied_view(index, key, &done)? }))
    }

    /// What the call would do to the cell as it is now. Answered by the leader, as the call itself
    /// would be; an idempotency key has no effect here.
    async fn dry_run(&self, call: &Call, key: JobKey, command: Command) -> ApiResult {
        let caller = call.caller()?.clone();
        self.check_limits(&command)?;
        // Before anything of the job is looked at: a diff reveals the present spec.
        self.check_may_change(&caller, &key).inspect_err(|error| {
            self.write_audit(call, command.name(), &key.to_string(), error.code.as_str());
        })?;
        let rejection_context = self.rejection_context(&command);
        self.handle.read_linearizable().await?;
        let warnings = self.warnings(&command);
        let (viewer, by, now) = (Viewer::of(&caller), caller, self.handle.log_time());
        let job = key.clone();
        let (index, verdict, old, new) = self
            .query_snapshot(call.actor_text(), move |_, view, _| {
                let (verdict, after) = try_out(&view.state, by, now, &command);
                let new = live_job(&after, &job).map(|(_, spec)| match command {
                    // Secrets that come with the call are not compared for everybody.
                    Command::ApplyJob { .. } | Command::Component(_) => {
                        mask_secrets(&view.state, &viewer, &job.user, &spec)
                    }
                    _ => (*spec).clone(),
                });
                Ok((view.index, verdict, live_job(&view.state, &job), new))
            })
            .await?;
        let done = verdict
            .map_err(|rejection| self.rejection_error(&rejection, index, &rejection_context))?;
        let mut applied = applied_view(index, key, &done)?;
        (applied.dry_run, applied.warnings) = (true, warnings);
        applied.expect = Some(old.as_ref().map_or(0, |(version, _)| *version));
        let is_changed = matches!(applied.became, ApplyOutcome::Updated | ApplyOutcome::Resized);
        if let (Some((_, old)), Some(new), true) = (old, new, is_changed) {
            applied.changes = field_diffs(&old, &new);
            applied.class = Some(spec_change::classify(&old, &new));
        }
        Ok(reply::json(call, index, &applied))
    }
}

/// The verdict on the command if it were applied next, and the state after it.
fn try_out(state: &State, by: Actor, now: Time, command: &Command) -> (Verdict, State) {
    let mut copy = state.clone();
    let entry = Entry { now, requests: vec![Request { by, id: None, command: command.clone() }] };
    let mut verdicts = copy.apply(&entry, &mut Vec::new());
    // An entry with one request has one verdict.
    (verdicts.pop().unwrap_or(Ok(Done::Applied)), copy)
}

/// Version and spec of the live job of that name.
fn live_job(state: &State, key: &JobKey) -> Option<(u32, Arc<JobSpec>)> {
    let job = state.jobs().get(state.job_named(key)?)?;
    (!job.is_dead()).then(|| (job.version, job.spec().clone()))
}

fn applied_view(index: u64, key: JobKey, done: &Done) -> Result<Applied, ApiError> {
    let Done::Job { became, version, closed } = *done else {
        return Err(ApiError::new(Code::Internal, "the verdict is not one on a job"));
    };
    Ok(Applied {
        index,
        user: key.user,
        name: key.job,
        became,
        version,
        closed_update: closed,
        dry_run: false,
        expect: None,
        changes: Vec::new(),
        class: None,
        warnings: Vec::new(),
    })
}
