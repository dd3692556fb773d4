//! An update that has nothing left to do does not keep the next change of its job waiting: it is
//! closed first, and whoever typed the change is told.
//!
//! The cell itself leaves an update open until somebody closes it, because until then it can be
//! undone. Whoever asks for something newer has made up their mind. Rejected: closing it in the
//! cell as soon as it is complete. That would take the way back at the moment when people look.

use crate::connection::Cell;
use crate::output::print_notice;
use cellwright_api::client::{ChangeOptions, ClientError, Reply};
use cellwright_api::error::Code;
use cellwright_api::types::{Changed, PlanJobs, SubmitJob};
use cellwright_cell::name::JobKey;
use cellwright_cell::spec::JobSpec;

/// Sends a change of a job, and once more if only a complete update was in its way. `seen_version`: the
/// version it was seen at, where it was. `wanted_spec`: the spec that is asked for; where the cell would
/// refuse it all the same, nothing is closed.
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
    // Only the update that was seen: whoever opens another one meanwhile keeps it.
    let close = ChangeOptions { expect: Some(version), ..ChangeOptions::default() };
    cell.client.close_update(key, &close).await?;
    print_notice(&closed_message(key, version));
    Ok(change().await?.value)
}

/// What is said of an update that was closed on the way.
pub fn closed_message(key: &JobKey, version: u32) -> String {
    format!("the update of {key} to version {version} was complete: it is closed")
}
