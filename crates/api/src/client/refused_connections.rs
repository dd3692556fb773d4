//! Detects that no master is running. A refused connection says something about now only: a master
//! that is being restarted refuses too, and so does the old leader of a cell that has a new one. So
//! a client retries; but when every known master refuses, again and again, and none of them was
//! ever reached, then waiting is pointless and the call fails.

use super::Client;
use std::time::Duration;
use tokio::time::Instant;

/// Consecutive refused connections.
#[derive(Debug, Default)]
pub(super) struct RefusedConnections {
    count: usize,
    since: Option<Instant>,
}

impl RefusedConnections {
    /// Records the result of one attempt. Anything other than a refusal resets the count: a master
    /// may be running.
    pub fn record(&mut self, is_refused: bool, now: Instant) {
        if is_refused {
            self.count += 1;
            self.since.get_or_insert(now);
        } else {
            *self = RefusedConnections::default()
        }
    }

    /// Whether all `masters` have refused, and will have refused for longer than `limit` by the
    /// time of the next attempt.
    fn exceed(&self, masters: usize, limit: Duration, next: Instant) -> bool {
        let lasted = self.since.map_or(Duration::ZERO, |since| next.duration_since(since));
        self.count >= masters.max(1) && lasted > limit
    }
}

impl Client {
    /// Whether no master was ever reached, and `refused` says that none will be.
    pub(super) fn are_masters_down(&self, refused: &RefusedConnections, next: Instant) -> bool {
        let config = &self.shared.config;
        refused.exceed(self.masters().len(), config.refused_timeout, next)
            && !self.shared.pool.has_connected()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_all_masters_together_and_for_long_enough_are_nobody() {
        let (begun, limit) = (Instant::now(), Duration::from_secs(1));
        let at = |millis: u64| begun + Duration::from_millis(millis);
        let mut refused = RefusedConnections::default();
        assert!(!refused.exceed(1, Duration::ZERO, at(9000)), "nobody has refused yet");
        refused.record(true, at(0));
        assert!(!refused.exceed(1, limit, at(900)), "not long enough");
        assert!(refused.exceed(1, limit, at(1100)));
        assert!(!refused.exceed(2, limit, at(1100)), "the other was not asked");
        refused.record(true, at(1000));
        assert!(refused.exceed(2, limit, at(1100)));
        refused.record(false, at(1200));
        refused.record(true, at(1300));
        refused.record(true, at(1400));
        assert!(!refused.exceed(2, limit, at(2200)), "counted from the last break on");
        assert!(refused.exceed(2, limit, at(2400)));
    }
}
