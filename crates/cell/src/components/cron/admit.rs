//! Admission checks of a periodic job: its own fields, and the job that each run is.

use super::{CronSpec, MAX_CRON_NAME, MAX_RUNS, MissedRuns};
use crate::admit::review::bad;
use crate::admit::{AdmissionResult, FieldError, Review, Rule, well_formed};
use crate::field::FieldSet;
use crate::reason::Allowed;
use crate::spec::JobKind;

/// # Errors
/// [`crate::reason::Rejection::BadField`] for the first field that is out of range.
pub fn check_cron(spec: &CronSpec) -> AdmissionResult {
    Review::first_error(|review| cron(spec, &[well_formed], review))
}

/// All errors of the spec; `rules` apply to its job: see [`crate::admit::review_job`].
#[must_use]
pub fn review_cron(spec: &CronSpec, rules: &[Rule], unknown: FieldSet) -> Vec<FieldError> {
    let mut review = Review::new(unknown);
    cron(spec, rules, &mut review);
    review.into_errors()
}

fn cron(spec: &CronSpec, rules: &[Rule], review: &mut Review) {
    review.ensure(spec.name.as_str().len() <= MAX_CRON_NAME, || {
        bad("name", &spec.name, Allowed::CronName { most: MAX_CRON_NAME as u64 })
    });
    review.ensure(spec.job.name == spec.name || !review.are_known(["name"]), || {
        bad("job.name", &spec.job.name, Allowed::AsCronName(spec.name.clone()))
    });
    let is_daemon = spec.job.kind == JobKind::Daemon && review.are_known(["job.kind"]);
    review.ensure(!is_daemon, || bad("job.kind", "daemon", Allowed::NoDaemonRuns));
    review.ensure((1..=MAX_RUNS).contains(&spec.keep_runs), || {
        bad("keep_runs", spec.keep_runs, Allowed::range(1u64, MAX_RUNS))
    });
    if let MissedRuns::RunAll { max } = spec.missed {
        review.ensure((1..=MAX_RUNS).contains(&max), || {
            bad("missed.run_all.max", max, Allowed::range(1u64, MAX_RUNS))
        });
    }
    review.at_base("job", |review| rules.iter().for_each(|rule| rule(&spec.job, review)));
}
