//! Rate limit of audit lines for rejected requests. The first few of each source are audited one by
//! one; further ones in a minute are counted and audited as a number, so that a client cannot push
//! the actions of others out of the log, or fill the disk, by being rejected.

use cellwright_cell::time::{Span, Time};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

const WINDOW: Span = Span::seconds(60);
/// Lines of one source in a window.
pub const MAX_LINES_PER_SOURCE: u64 = 8;
/// Lines of all sources in a window.
pub const MAX_LINES_IN_ALL: u64 = 128;
/// Sources that are counted separately; the rest are counted together.
const MAX_SOURCES: usize = 512;
/// Sources named when a window ends.
const MAX_NAMED_SOURCES: usize = 16;
/// The source name for the rest.
const OTHERS: &str = "others";

/// What to write for one rejected request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditDecision {
    /// Whether the request itself gets a line.
    pub write_line: bool,
    /// Requests of the previous window that got no line, by source.
    pub summaries: Vec<(String, u64)>,
}

#[derive(Default)]
pub struct RejectionAuditLimiter(Mutex<Tally>);

#[derive(Default)]
struct Tally {
    since: Time,
    lines: u64,
    /// Rejected in this window: with a line, and without.
    sources: BTreeMap<String, (u64, u64)>,
}

impl RejectionAuditLimiter {
    /// Records a rejected request of this source.
    pub fn record(&self, now: Time, source: &str) -> AuditDecision {
        let mut tally = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sums = tally.flush(now);
        AuditDecision { write_line: tally.count(source), summaries: sums }
    }

    /// The counts of a window that is over.
    pub fn flush(&self, now: Time) -> Vec<(String, u64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush(now)
    }
}

impl Tally {
    fn count(&mut self, source: &str) -> bool {
        let known = self.sources.contains_key(source) || self.sources.len() < MAX_SOURCES;
        let counted = self.sources.entry(if known { source } else { OTHERS }.to_owned());
        let (written, beyond) = counted.or_default();
        let line = *written < MAX_LINES_PER_SOURCE && self.lines < MAX_LINES_IN_ALL;
        if line {
            *written += 1;
            self.lines += 1;
        } else {
            *beyond += 1;
        }
        line
    }

    fn flush(&mut self, now: Time) -> Vec<(String, u64)> {
        // A clock that was set back starts a new window too.
        if now >= self.since && now.since(self.since) < WINDOW {
            return Vec::new();
        }
        let ended = std::mem::replace(self, Tally { since: now, ..Tally::default() });
        let counted = ended.sources.into_iter().map(|(source, (_, beyond))| (source, beyond));
        let mut sums: Vec<(String, u64)> = counted.filter(|(_, beyond)| *beyond > 0).collect();
        sums.sort_by_key(|(_, beyond)| std::cmp::Reverse(*beyond));
        let rest: u64 = sums.iter().skip(MAX_NAMED_SOURCES).map(|(_, beyond)| beyond).sum();
        sums.truncate(MAX_NAMED_SOURCES);
        if rest > 0 {
            sums.push((OTHERS.to_owned(), rest));
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time(1_000_000);

    #[test]
    fn the_first_few_have_lines_and_the_rest_a_number() {
        let limiter = RejectionAuditLimiter::default();
        let lines = (0..1000).filter(|_| limiter.record(START, "a").write_line).count() as u64;
        assert_eq!(lines, MAX_LINES_PER_SOURCE);
        assert!(limiter.record(START, "b").write_line, "another is taken down all the same");
        let later = limiter.record(START.plus(WINDOW), "a");
        assert_eq!(
            later,
            AuditDecision {
                write_line: true,
                summaries: vec![("a".into(), 1000 - MAX_LINES_PER_SOURCE)]
            }
        );
        assert_eq!(limiter.flush(START.plus(WINDOW)), []);
    }

    #[test]
    fn a_crowd_of_sources_writes_no_more_than_one() {
        let limiter = RejectionAuditLimiter::default();
        let each = |n: u64| limiter.record(START, &format!("192.0.2.{n}"));
        assert_eq!((0..5_000).filter(|n| each(*n).write_line).count() as u64, MAX_LINES_IN_ALL);
        let sums = limiter.flush(START.plus(WINDOW));
        assert_eq!(sums.len(), MAX_NAMED_SOURCES + 1);
        let total: u64 = sums.iter().map(|(_, beyond)| beyond).sum();
        assert_eq!(total, 5_000 - MAX_LINES_IN_ALL, "everybody is counted");
    }
}
