//! How a job's updates go beyond task by task (B7, X4): which tasks try a new version first, and
//! when the cell goes back by itself.
//!
//! Canaries are the tasks with the lowest indices, updated where they are. Rejected: additional
//! tasks beside the others. They would need room and quota that the job does not have, a name of
//! their own, and a way to tell them from tasks that the owner asked for.

#[cfg(feature = "schema")]
use crate::admit::MAX_SPAN;
use crate::job::{Job, Update};
use crate::spec::JobSpec;
#[cfg(feature = "schema")]
use crate::spec::MAX_TASKS;
use crate::state::State;
use crate::task::{TaskOutcome, TaskState};
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// Largest `failures` of a rollback: each is a time in the job's row.
pub const MAX_ROLLBACK_FAILURES: u32 = 1000;

/// Which tasks get a new version first, and when the cell goes back by itself. Left out: all tasks
/// in turn, and never.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct UpdatePolicy {
    /// So many tasks, those with the lowest indices, try a new version; the others get it once it
    /// is promoted. The first of them that fails brings the old version back, unless `rollback`
    /// allows more. Left out: 0.
    #[cfg_attr(feature = "schema", schemars(range(max = MAX_TASKS)))]
    pub canaries: u32,
    /// The version is promoted when all canaries have been well for so long, in milliseconds.
    /// `None`: by hand.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1, "maximum" = MAX_SPAN.0)))]
    pub promote_after: Option<Span>,
    /// `None`: never, but for canaries.
    pub rollback: Option<RollbackLimit>,
}

/// The cell goes back to the version before when so many attempts at the new one have failed or
/// turned unhealthy within a span: while the update goes on, and for the same span after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RollbackLimit {
    /// Attempts, of whichever tasks.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_ROLLBACK_FAILURES)))]
    pub failures: u32,
    /// Length of the span, in milliseconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1, "maximum" = MAX_SPAN.0)))]
    pub within: Span,
}

/// What holds for canaries of a job that says nothing of rollbacks.
const CANARY_ROLLBACK: RollbackLimit = RollbackLimit { failures: 1, within: Span::seconds(3600) };

impl JobSpec {
    /// When the cell goes back by itself: as the job says, or at once while canaries try.
    #[must_use]
    pub fn rollback_limit(&self, tries_canaries: bool) -> Option<RollbackLimit> {
        self.update.rollback.or(tries_canaries.then_some(CANARY_ROLLBACK))
    }
}

impl Update {
    /// Whether only canaries have the new version, and the others wait for its promotion.
    #[must_use]
    pub fn tries_canaries(&self) -> bool {
        self.canaries > 0
    }

    /// Whether the task at `index` waits until the version is promoted.
    #[must_use]
    pub fn waits_for_promotion(&self, index: u32) -> bool {
        self.tries_canaries() && index >= self.canaries
    }

    /// Whether a failure at `now` still says something about the new version: not when all tasks
    /// have run it for `within`. What fails weeks later has another cause.
    #[must_use]
    pub fn counts_failures(&self, limit: RollbackLimit, now: Time) -> bool {
        !self.undoing
            && (self.tries_canaries()
                || self.completed_at.is_none_or(|done| now <= done.plus(limit.within)))
    }

    /// The times of failures after another one at `now`: the latest as many as count, and whether
    /// they are too many.
    #[must_use]
    pub fn after_failure(&self, limit: RollbackLimit, now: Time) -> (Vec<Time>, bool) {
        let most = limit.failures.max(1) as usize;
        let mut failed_at = self.failed_at.clone();
        failed_at.push(now);
        failed_at.drain(..failed_at.len().saturating_sub(most));
        let within = failed_at.first().is_some_and(|first| now <= first.plus(limit.within));
        let too_many = failed_at.len() == most && within;
        (failed_at, too_many)
    }
}

impl Job {
    /// How many disruptions its open update may cause; no bound where its owner asked to finish it.
    #[must_use]
    pub fn update_bound(&self) -> Option<u32> {
        let finishing = self.update.as_ref().is_some_and(|update| update.finishing);
        self.spec().max_update_disruptions.filter(|_| !finishing)
    }
}

impl State {
    /// Since when every canary of the job's open update runs the new version and is well; `None`
    /// while one is not, or no canaries try.
    #[must_use]
    pub fn canaries_well_since(&self, job: &Job) -> Option<Time> {
        let update = job.update.as_ref().filter(|update| update.tries_canaries())?;
        let mut since = update.opened_at;
        for task in job.tasks.iter().take(update.canaries as usize) {
            let row = self.tasks().get(*task)?;
            if !job.wants(row.index) {
                continue;
            }
            let well = match row.state {
                TaskState::Running => row.healthy,
                state => state == TaskState::Dead(TaskOutcome::Finished),
            };
            if !well || row.version != update.to {
                return None;
            }
            since = since.max(row.changed_at);
        }
        Some(since)
    }

    /// When the job's canaries will have been well for long enough, if they stay so.
    #[must_use]
    pub fn promotion_due(&self, job: &Job) -> Option<Time> {
        let span = job.spec().update.promote_after?;
        Some(self.canaries_well_since(job)?.plus(span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update() -> Update {
        Update::opened(1, 2, Time(0))
    }

    #[test]
    fn so_many_failures_within_the_span_are_too_many() {
        let check = |failures: u32, earlier: &[u64], now: u64, want: (&[u64], bool)| {
            let limit = RollbackLimit { failures, within: Span(100) };
            let failed_at = earlier.iter().copied().map(Time).collect();
            let got = Update { failed_at, ..update() }.after_failure(limit, Time(now));
            let want: (Vec<Time>, bool) = (want.0.iter().copied().map(Time).collect(), want.1);
            assert_eq!(got, want, "{failures} in 100 after {earlier:?} at {now}");
        };
        check(1, &[], 50, (&[50], true));
        check(2, &[], 50, (&[50], false));
        check(2, &[50], 150, (&[50, 150], true));
        check(2, &[50], 151, (&[50, 151], false));
        check(2, &[50, 151], 200, (&[151, 200], true));
        check(3, &[50, 60], 70, (&[50, 60, 70], true));
    }

    #[test]
    fn what_fails_long_after_an_update_says_nothing_about_it() {
        let limit = RollbackLimit { failures: 1, within: Span(100) };
        let counts = |change: fn(&mut Update), now: u64| {
            let mut update = update();
            change(&mut update);
            update.counts_failures(limit, Time(now))
        };
        assert!(counts(|_| (), 1_000_000));
        assert!(counts(|u| u.completed_at = Some(Time(50)), 150));
        assert!(!counts(|u| u.completed_at = Some(Time(50)), 151));
        assert!(!counts(|u| u.undoing = true, 1));
        assert!(counts(|u| (u.completed_at, u.canaries) = (Some(Time(50)), 1), 151));
    }
}
