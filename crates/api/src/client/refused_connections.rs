//! Knowing that nobody is there. A connection that is refused is a fact about now: a master that is
//! just being restarted refuses too, and so does the old leader of a cell that has a new one. So a
//! client goes on asking; but when every master there is refuses, again and again, and none of them
//! was ever reached, then whoever waits waits for nothing and is better told so.

use super::Client;
use std::time::Duration;
use tokio::time::Instant;

/// Connections that were refused, one after the other.
#[derive(Debug, Default)]
pub(super) struct RefusedConnections {
    count: usize,
    since: Option<Instant>,
}

impl RefusedConnections {
    /// How one try went. Whatever is not a refusal breaks the row: somebody may be there.
    pub fn record(&mut self, is_refused: bool, now: Instant) {
        match is_refused {
            true => {
                self.count += 1;
                self.since.get_or_insert(now);
            }
            false => *self = RefusedConnections::default(),
        }
    }

    /// Whether so many masters have all refused, and go on doing so for longer than `patience` by
    /// the time of the next try.
    fn exceed(&self, masters: usize, patience: Duration, next: Instant) -> bool {
        let lasted = self.since.map_or(Duration::ZERO, |since| next.duration_since(since));
        self.count >= masters.max(1) && lasted > patience
    }
}

impl Client {
    /// Whether nobody was ever reached, and `refused` say that nobody will be.
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
        let (begun, patience) = (Instant::now(), Duration::from_secs(1));
        let at = |millis: u64| begun + Duration::from_millis(millis);
        let mut refusals = RefusedConnections::default();
        assert!(!refusals.exceed(1, Duration::ZERO, at(9000)), "nobody has refused yet");
        refusals.record(true, at(0));
        assert!(!refusals.exceed(1, patience, at(900)), "not long enough");
        assert!(refusals.exceed(1, patience, at(1100)));
        assert!(!refusals.exceed(2, patience, at(1100)), "the other was not asked");
        refusals.record(true, at(1000));
        assert!(refusals.exceed(2, patience, at(1100)));
        refusals.record(false, at(1200));
        refusals.record(true, at(1300));
        refusals.record(true, at(1400));
        assert!(!refusals.exceed(2, patience, at(2200)), "counted from the last break on");
        assert!(refusals.exceed(2, patience, at(2400)));
    }
}
