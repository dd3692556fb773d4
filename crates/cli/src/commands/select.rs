//! Label selectors, `-l team=search,stage!=prod`: resolved here for all verbs, so that the same
//! labels mean the same jobs everywhere. A selector that matches nothing is an error: a user who
//! waits for no job, or reads its output, has most likely mistyped it. Only lists may be empty.

use super::pagination;
use crate::connection::Cell;
use crate::failure::Failure;
use cellwright_api::client::JobFilter;
use cellwright_api::types::JobView;
use cellwright_cell::name::JobKey;
use std::collections::BTreeSet;

/// Which of the matching jobs are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobScope {
    All,
    /// Only those that are not dead.
    Live,
}

/// The selected jobs, at least one.
pub async fn select_jobs(
    cell: &Cell,
    selector: &str,
    scope: JobScope,
) -> Result<Vec<JobView>, Failure> {
    let filter = JobFilter {
        selector: Some(selector.to_owned()),
        state: (scope == JobScope::Live).then(|| "live".to_owned()),
        ..JobFilter::default()
    };
    let jobs = newest(pagination::jobs(cell, &filter).await?);
    if jobs.is_empty() {
        let live = if scope == JobScope::Live { "live " } else { "" };
        return Err(Failure::Operation {
            message: format!("no {live}job has labels {selector}"),
            next: "see the labels: cell job status -o json".into(),
        });
    }
    Ok(jobs)
}

pub fn job_key(job: &JobView) -> JobKey {
    JobKey { user: job.user.clone(), job: job.name.clone() }
}

/// Keeps the newest job of each name, since verbs act on names.
pub fn newest(jobs: Vec<JobView>) -> Vec<JobView> {
    let mut seen_keys = BTreeSet::new();
    let mut newest_jobs: Vec<JobView> =
        jobs.into_iter().rev().filter(|job| seen_keys.insert(job_key(job))).collect();
    newest_jobs.reverse();
    newest_jobs
}
