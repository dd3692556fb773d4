//! Jobs by their labels, `-l team=search,stage!=prod`: once for all verbs, so that the same labels
//! mean the same jobs everywhere. A query that finds nothing is an error: whoever waits for
//! nothing, or reads the output of nothing, has most likely mistyped it. Only lists may be empty.

use super::pages;
use crate::failure::Failure;
use crate::reach::Cell;
use cellwright_api::client::JobFilter;
use cellwright_api::types::JobView;
use cellwright_cell::name::JobKey;
use std::collections::BTreeSet;

/// Which of the jobs with the labels are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meant {
    All,
    /// Only those that are not over.
    Live,
}

/// The jobs that are meant, at least one.
pub async fn jobs(cell: &Cell, selector: &str, meant: Meant) -> Result<Vec<JobView>, Failure> {
    let filter = JobFilter {
        selector: Some(selector.to_owned()),
        state: (meant == Meant::Live).then(|| "live".to_owned()),
        ..JobFilter::default()
    };
    let jobs = newest(pages::jobs(cell, &filter).await?);
    if jobs.is_empty() {
        let live = if meant == Meant::Live { "live " } else { "" };
        return Err(Failure::Work {
            message: format!("no {live}job has labels {selector}"),
            next: "see the labels: cell job status -o json".into(),
        });
    }
    Ok(jobs)
}

pub fn key(job: &JobView) -> JobKey {
    JobKey { user: job.user.clone(), job: job.name.clone() }
}

/// A name belongs to the newest of the jobs that had it, and verbs act on names.
pub fn newest(jobs: Vec<JobView>) -> Vec<JobView> {
    let mut seen = BTreeSet::new();
    let mut kept: Vec<JobView> =
        jobs.into_iter().rev().filter(|job| seen.insert(key(job))).collect();
    kept.reverse();
    kept
}
