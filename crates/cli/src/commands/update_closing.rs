//! A completed update does not block the next change of its job: it is closed first, and the user
//! is told so.
//!
//! The cell itself leaves an update open until it is closed, because until then it can be undone. A
//! user who submits a newer version no longer needs that. Rejected: closing it in the cell as soon
//! as it is complete, which would make it impossible to undo at the moment when people look.

use crate::connection::Cell;
use crate::output::print_notice;
use cellwright_api::client::{ChangeOptions, ClientError, Reply};
use cellwright_api::error::Code;
use cellwright_api::types::{Changed, PlanJobs, SubmitJob};
use cellwright_cell::name::JobKey;
use cellwright_cell::spec::JobSpec;

/// Sends a change of a job, and retries once if only a complete update blocked it. `seen_version`:
/// the version that the change is based on, if known. `wanted_spec`: the new spec; if the cell
/// would reject it anyway, the update is not closed.
pub async fn send_change(
    cell: &Cell,
    key: &JobKey,
    seen_version: Option<u32>,
    wanted_spec: Option<&JobSpec>,
    change: impl AsyncFn() -> Result<Reply<Changed>, ClientError>,
) -> Result<Changed, ClientError> {
    let blocking_error = match change().await {
        Ok(reply) => return Ok(reply.value),
        Err(ClientError::Api(error)) if error.code == Code::WrongState => error,
        Err(error) => return Err(error),
    };
    let job = cell.client.job(key).await?.value.item;
    if !job.update_complete {
        return Err(ClientError::Api(blocking_error));
    }
    let version = seen_version.unwrap_or(job.version);
    if let Some(spec) = wanted_spec {
        let job = SubmitJob { owner: Some(key.user.clone()), spec: spec.clone() };
        let plan = cell.client.plan(&PlanJobs { jobs: vec![job] }).await?.value.item;
        if let Some(rejection) = plan.jobs.into_iter().find_map(|job| job.refused) {
            return Err(ClientError::Api(rejection));
        }
    }
    // Closes only the update that was seen: one that another user opens meanwhile stays.
    let close = ChangeOptions { expect: Some(version), ..ChangeOptions::default() };
    cell.client.close_update(key, &close).await?;
    print_notice(&closed_message(key, version));
    Ok(change().await?.value)
}

/// The message about an update that was closed on the way.
pub fn closed_message(key: &JobKey, version: u32) -> String {
    format!("the update of {key} to version {version} was complete: it is closed")
}
