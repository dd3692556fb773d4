//! What a periodic job must look like: its own fields, and the job that its runs are.

use super::{CronSpec, MAX_CRON_NAME, MAX_RUNS, MissedRuns};
use crate::admit::review::field_error;
use crate::admit::{AdmissionResult, FieldError, Review, Rule, well_formed};
use crate::field::FieldSet;

/// # Errors
/// [`crate::reason::Refusal::BadField`] for the first field that is out of range.
pub fn check_cron(spec: &CronSpec) -> AdmissionResult {
    Review::first_error(|review| cron(spec, &[well_formed], review))
}

/// Everything that is wrong with it, `rules` being those for its job: see
/// [`crate::admit::review_job`].
#[must_use]
pub fn review_cron(spec: &CronSpec, rules: &[Rule], unknown: FieldSet) -> Vec<FieldError> {
    let mut review = Review::new(unknown);
    cron(spec, rules, &mut review);
    review.into_errors()
}

fn cron(spec: &CronSpec, rules: &[Rule], review: &mut Review) {
    review.ensure(spec.name.as_str().len() <= MAX_CRON_NAME, || {
        let allowed = format!("at most {MAX_CRON_NAME} characters, so that runs have names");
        field_error("name", &spec.name, allowed)
    });
    review.ensure(spec.job.name == spec.name || !review.are_known(["name"]), || {
        field_error("job.name", &spec.job.name, format!("{}, as name", spec.name))
    });
    review.ensure((1..=MAX_RUNS).contains(&spec.keep_runs), || {
        field_error("keep_runs", spec.keep_runs, format!("1 to {MAX_RUNS}"))
    });
    if let MissedRuns::RunAll { max } = spec.missed {
        review.ensure((1..=MAX_RUNS).contains(&max), || {
            field_error("missed.run_all.max", max, format!("1 to {MAX_RUNS}"))
        });
    }
    review.at_base("job", |review| rules.iter().for_each(|rule| rule(&spec.job, review)));
}
