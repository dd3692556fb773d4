//! What a periodic job must look like: its own fields, and the job that its runs are.

use super::{CronSpec, MAX_CRON_NAME, MAX_RUNS, MissedRuns};
use crate::admit::review::bad;
use crate::admit::{Checked, Rejection, Review, Rule, well_formed};
use crate::field::FieldSet;

/// # Errors
/// [`crate::reason::Refusal::BadField`] for the first field that is out of range.
pub fn check_cron(spec: &CronSpec) -> Checked {
    Review::first(|review| cron(spec, &[well_formed], review))
}

/// Everything that is wrong with it, `rules` being those for its job: see
/// [`crate::admit::review_job`].
#[must_use]
pub fn review_cron(spec: &CronSpec, rules: &[Rule], unknown: FieldSet) -> Vec<Rejection> {
    let mut review = Review::new(unknown);
    cron(spec, rules, &mut review);
    review.rejections()
}

fn cron(spec: &CronSpec, rules: &[Rule], review: &mut Review) {
    review.ensure(spec.name.as_str().len() <= MAX_CRON_NAME, || {
        let allowed = format!("at most {MAX_CRON_NAME} characters, so that runs have names");
        bad("name", &spec.name, allowed)
    });
    review.ensure(spec.job.name == spec.name || !review.knows(["name"]), || {
        bad("job.name", &spec.job.name, format!("{}, as name", spec.name))
    });
    review.ensure((1..=MAX_RUNS).contains(&spec.keep_runs), || {
        bad("keep_runs", spec.keep_runs, format!("1 to {MAX_RUNS}"))
    });
    if let MissedRuns::RunAll { max } = spec.missed {
        review.ensure((1..=MAX_RUNS).contains(&max), || {
            bad("missed.run_all.max", max, format!("1 to {MAX_RUNS}"))
        });
    }
    review.within("job", |review| rules.iter().for_each(|rule| rule(&spec.job, review)));
}
