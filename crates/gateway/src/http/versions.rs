//! Versions of jobs: who made which and when, and what differs between two of them.
//!
//! Everybody sees that there are versions, and which fields each changed. Values are for those who
//! may see specs, and whether a secret is the same in two versions is for its owner: whoever may
//! replace it could find it out by trying.

use super::access::Viewer;
use super::call::Call;
use super::jobs::find_job;
use super::plan::{field_diffs, hide_secrets};
use super::{Api, ApiResult, reply};
use cellwright_api::error::ApiError;
use cellwright_api::types::{JobVersions, VersionDiff, VersionView};
use cellwright_cell::id::JobId;
use cellwright_cell::job::Job;
use cellwright_cell::name::JobKey;
use cellwright_cell::reason::Rejection;
use cellwright_cell::rollout::{JobVersion, VersionOrigin};
use cellwright_cell::spec::JobSpec;
use cellwright_cell::spec_change;
use cellwright_cell::state::State;

impl Api {
    pub(super) async fn list_versions(&self, call: Call) -> ApiResult {
        let key = call.job()?;
        let (view, consistent) = call.view(self).await?;
        let (id, job) = job_row(&view.state, &key)?;
        let versions = view.state.versions_of(id).map(|row| version_view(&view.state, job, row));
        let versions = versions.collect();
        let answer = JobVersions { user: key.user, name: key.job, versions };
        reply::one(&call, view.index, consistent, answer)
    }

    pub(super) async fn diff_versions(&self, call: Call) -> ApiResult {
        let key = call.job()?;
        let (version, against) = (number(&call, "version")?, number(&call, "against")?);
        let viewer = call.viewer()?;
        let (view, consistent) = call.view(self).await?;
        let (id, job) = job_row(&view.state, &key)?;
        let to = version.unwrap_or(job.version);
        let from = against.unwrap_or_else(|| version_before(&view.state, id, to));
        let answer = diff(&view.state, &viewer, &key, (id, job), (from, to))?;
        reply::one(&call, view.index, consistent, answer)
    }
}

fn job_row<'s>(state: &'s State, key: &JobKey) -> Result<(JobId, &'s Job), ApiError> {
    let id = find_job(state, key)?;
    let job = state.jobs().get(id);
    Ok((id, job.ok_or_else(|| ApiError::from(Rejection::NoSuchJob(key.clone())))?))
}

fn number(call: &Call, name: &str) -> Result<Option<u32>, ApiError> {
    let Some(text) = call.query(name) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| ApiError::parameter(name, text, "a version"))
}

/// What a version came from, or the nearest older one that is kept; itself if it is the oldest.
fn version_before(state: &State, job: JobId, version: u32) -> u32 {
    let origin = state.job_version(job, version).and_then(|row| row.origin.previous());
    let is_kept = |version: &u32| state.job_version(job, *version).is_some();
    let older = state.versions_of(job).map(|row| row.version).filter(|older| *older < version);
    origin.filter(is_kept).or_else(|| older.max()).unwrap_or(version)
}

pub(super) fn version_view(state: &State, job: &Job, row: &JobVersion) -> VersionView {
    let tasks = state.job_load(row.job).and_then(|load| load.at_version.get(&row.version));
    VersionView {
        version: row.version,
        at: row.at,
        by: row.by.to_string(),
        change: change_text(row),
        origin: row.origin,
        current: job.version == row.version,
        tasks: tasks.copied().unwrap_or(0),
        rolled_back: row.rolled_back,
    }
}

fn change_text(row: &JobVersion) -> String {
    let fields = row.changed.join(", ");
    match row.origin {
        VersionOrigin::Submitted => "created".to_owned(),
        VersionOrigin::Updated { .. } | VersionOrigin::Resized { .. } => fields,
        VersionOrigin::Reverted { to, .. } => format!("back to version {to}: {fields}"),
    }
}

fn diff(
    state: &State,
    viewer: &Viewer,
    key: &JobKey,
    (id, job): (JobId, &Job),
    (from, to): (u32, u32),
) -> Result<VersionDiff, ApiError> {
    let redacted = !viewer.sees_specs(state, job.user);
    let spec_of = |name: &str, version: u32| -> Result<JobSpec, ApiError> {
        let spec = state.spec_of_version(id, version).ok_or_else(|| {
            let kept: Vec<String> =
                state.versions_of(id).map(|row| row.version.to_string()).collect();
            let allowed = format!("a version that is kept: {}", kept.join(", "));
            ApiError::field(name, &version.to_string(), &allowed)
        })?;
        Ok(if redacted { spec.public_view() } else { (**spec).clone() })
    };
    let (old, mut new) = (spec_of("against", from)?, spec_of("version", to)?);
    if from != to && !viewer.is_user(&key.user) && *viewer != Viewer::Trusted {
        hide_secrets(Some(&old), &mut new);
    }
    let changes = field_diffs(&old, &new);
    let class = (old != new).then(|| spec_change::classify(&old, &new));
    let (user, name) = (key.user.clone(), key.job.clone());
    Ok(VersionDiff { user, name, from, to, changes, class, redacted })
}
