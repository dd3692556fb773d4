//! A job as it goes into the archive: everything that the record has of it, in the words of the
//! API, so that it is read in years by what reads it today.

use super::access::Viewer;
use super::versions::version_view;
use super::view;
use cellwright_api::types::{ARCHIVED_JOB_FORMAT, ArchivedJob, ArchivedVersion};
use cellwright_cell::id::JobId;
use cellwright_cell::name::Name;
use cellwright_cell::state::State;
use cellwright_master::usage::UsageSnapshot;

/// `None` for a row that contradicts the others, which does not occur in a checked state.
pub(crate) fn archived_job(cell: &Name, state: &State, id: JobId) -> Option<ArchivedJob> {
    let row = state.jobs().get(id)?;
    let versions = state.versions_of(id).map(|version| ArchivedVersion {
        version: version_view(state, row, version),
        spec: state.spec_of_version(id, version.version).map(|spec| spec.redacted()),
    });
    let usage = UsageSnapshot::default();
    Some(ArchivedJob {
        format: ARCHIVED_JOB_FORMAT,
        cell: cell.to_string(),
        job: view::job(state, &Viewer::Trusted, id)?,
        versions: versions.collect(),
        tasks: row.tasks.iter().filter_map(|task| view::task(state, &usage, *task)).collect(),
    })
}
