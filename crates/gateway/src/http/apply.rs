//! Apply ("make this job so"), and its dry run.
//!
//! A dry run applies the very command to a copy of the newest state, so that it cannot disagree
//! with the cell; the state can only have changed since. `POST /v1/plan` goes further, and finds
//! placements for the tasks as well.

use super::access::Viewer;
use super::call::Call;
use super::plan::{field_diffs, mask_secrets};
use super::{Api, ApiResult, reply, user_of};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::{Applied, SubmitJob, owner_or};
use cellwright_cell::command::{Actor, ApplyOutcome, Command, Done, Entry, Request, Verdict};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::spec::JobSpec;
use cellwright_cell::spec_change;
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
use std::sync::Arc;

impl Api {
    pub(super) async fn apply_job(&self, mut call: Call) -> ApiResult {
        let SubmitJob { owner, spec } = call.json(self).await?;
        let owner = owner_or(owner, user_of(call.caller()?))?;
        let expect = call.expect()?;
        let name = spec.name.clone();
        if call.flag("dry_run") {
            return self.dry_run(&call, owner, spec, expect).await;
        }
        let command = Command::ApplyJob { owner: owner.clone(), spec, expect };
        let (index, done) = self.commit(&call, command).await?;
        let applied = applied_view(index, (owner, name), &done)?;
        Ok(reply::json(&call, index, &applied))
    }

    /// What the call would do to the cell as it is now. Answered by the leader, as the call itself
    /// would be; an idempotency key has no effect here.
    async fn dry_run(
        &self,
        call: &Call,
        owner: Name,
        spec: JobSpec,
        expect: Option<u32>,
    ) -> ApiResult {
        let caller = call.caller()?.clone();
        let command = Command::ApplyJob { owner: owner.clone(), spec: spec.clone(), expect };
        self.check_limits(&command)?;
        let key = JobKey { user: owner.clone(), job: spec.name.clone() };
        // Before anything of the job is looked at: a diff reveals the present spec.
        self.check_may_change(&caller, &key).inspect_err(|error| {
            self.write_audit(call, "apply_job", &key.to_string(), error.code.as_str());
        })?;
        let rejection_context = self.rejection_context(&command);
        self.handle.read_linearizable().await?;
        let (viewer, by, now) = (Viewer::of(&caller), caller, self.handle.log_time());
        let (index, verdict, old, spec) = self
            .query_snapshot(call.actor_text(), move |_, view, _| {
                let old = live_job(&view.state, &key);
                let masked = mask_secrets(&view.state, &viewer, &key.user, &spec);
                Ok((view.index, dry_run_verdict(&view.state, by, now, command), old, masked))
            })
            .await?;
        let done = verdict
            .map_err(|rejection| self.rejection_error(&rejection, index, &rejection_context))?;
        let mut applied = applied_view(index, (owner, spec.name.clone()), &done)?;
        applied.dry_run = true;
        applied.expect = Some(old.as_ref().map_or(0, |(version, _)| *version));
        if let (Some((_, old)), ApplyOutcome::Updated) = (old, applied.became) {
            applied.changes = field_diffs(&old, &spec);
            applied.class = Some(spec_change::classify(&old, &spec));
        }
        Ok(reply::json(call, index, &applied))
    }
}

/// The verdict on the command if it were applied next.
fn dry_run_verdict(state: &State, by: Actor, now: Time, command: Command) -> Verdict {
    let mut copy = state.clone();
    let entry = Entry { now, requests: vec![Request { by, id: None, command }] };
    let mut verdicts = copy.apply(&entry, &mut Vec::new());
    // An entry with one request has one verdict.
    verdicts.pop().unwrap_or(Ok(Done::Applied))
}

/// Version and spec of the live job of that name.
fn live_job(state: &State, key: &JobKey) -> Option<(u32, Arc<JobSpec>)> {
    let job = state.jobs().get(state.job_named(key)?)?;
    (!job.is_dead()).then(|| (job.version, job.spec().clone()))
}

fn applied_view(index: u64, (user, name): (Name, Name), done: &Done) -> Result<Applied, ApiError> {
    let Done::Job { became, version, closed } = *done else {
        return Err(ApiError::new(Code::Internal, "the verdict is not one on a job"));
    };
    Ok(Applied {
        index,
        user,
        name,
        became,
        version,
        closed_update: closed,
        dry_run: false,
        expect: None,
        changes: Vec::new(),
        class: None,
    })
}
