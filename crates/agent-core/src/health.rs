//! What the results of a health check mean (B15). The probes themselves are elsewhere.

use crate::reconcile::Health;
use cellwright_cell::health::HealthCheck;
use cellwright_cell::time::Span;

/// While a task starts it is probed at least this often: it is of use as soon as it is healthy.
const STARTING_INTERVAL: Span = Span(500);

/// Tracks the meaning of the results so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthTracker {
    health: Health,
    failures_in_row: u32,
    /// Failures in a row that make it unhealthy.
    failure_threshold: u32,
    /// Failures before do not count, unless it was healthy already.
    grace_ends: u64,
}

impl HealthTracker {
    /// For a task that started at `started`, in milliseconds.
    #[must_use]
    pub fn new(check: &HealthCheck, started: u64) -> HealthTracker {
        HealthTracker {
            health: Health::Starting,
            failures_in_row: 0,
            failure_threshold: check.failures,
            grace_ends: started.saturating_add(check.start_period.0),
        }
    }

    /// Records one result.
    pub fn record_result(&mut self, well: bool, now: u64) -> Health {
        if well {
            self.failures_in_row = 0;
            self.health = Health::Healthy;
        } else if self.health != Health::Starting || now >= self.grace_ends {
            self.failures_in_row = self.failures_in_row.saturating_add(1);
            if self.failures_in_row >= self.failure_threshold {
                self.health = Health::Unhealthy;
            }
        }
        self.health
    }

    /// How long until the next probe.
    #[must_use]
    pub fn interval(&self, check: &HealthCheck) -> Span {
        match self.health {
            Health::Starting => check.interval.min(STARTING_INTERVAL),
            Health::Healthy | Health::Unhealthy => check.interval,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::health::Probe;

    fn check() -> HealthCheck {
        HealthCheck {
            probe: Probe::Tcp { port: 0 },
            interval: Span(1000),
            timeout: Span(60_000),
            start_period: Span(100),
            failures: 2,
        }
    }

    #[test]
    fn a_task_that_starts_is_asked_more_often() {
        let mut checker = HealthTracker::new(&check(), 0);
        assert_eq!(checker.interval(&check()), Span(500));
        checker.record_result(true, 1);
        assert_eq!(checker.interval(&check()), Span(1000));
    }

    #[test]
    fn failures_count_after_the_start_and_in_a_row() {
        use Health::{Healthy, Starting, Unhealthy};
        let play = |answers: &[(bool, u64)]| {
            let mut checker = HealthTracker::new(&check(), 1000);
            let results = answers.iter().map(|(well, now)| checker.record_result(*well, *now));
            results.collect::<Vec<Health>>()
        };
        let slow = play(&[(false, 1000), (false, 1050), (false, 1099), (true, 1100)]);
        assert_eq!(slow, [Starting, Starting, Starting, Healthy]);
        let never = play(&[(false, 1099), (false, 1100), (false, 1101), (false, 1102)]);
        assert_eq!(never, [Starting, Starting, Unhealthy, Unhealthy]);
        // Once it was healthy the start is over.
        let soon = play(&[(true, 1001), (false, 1002), (true, 1003), (false, 1004), (false, 1005)]);
        assert_eq!(soon, [Healthy, Healthy, Healthy, Healthy, Unhealthy]);
    }
}
